"""The matrix: what each truncation rule loses in each scenario (T-…, S-…), and its reports."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from replication.common.messages import FetchResponse, OffsetForLeaderEpochResponse
from replication.simulator.command import matrix as command
from replication.simulator.command.simulate import simulate
from replication.simulator.matrix import (
    COLUMNS,
    DEFAULT,
    SCENARIOS,
    Cell,
    Findings,
    Scenario,
    reasons_of,
    run_cell,
    run_cells,
    to_json,
    to_markdown,
    to_svg,
)
from replication.simulator.matrix.cluster import ScriptError
from replication.simulator.matrix.stage import Stage
from tests.mutants import mutated, replication  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
RULES = {column.name: column for column in COLUMNS}

# Verdicts under hw, kip-101, epoch, fetch. None: some are lost, how many is up to the seed.
EXPECTED: dict[str, tuple[str | None, str | None, str | None, str | None]] = {
    "T-A1": ("lost 1, diverged 1", "ok", "ok", "ok"),
    "T-A2": ("lost 1, diverged 1", "ok", "ok", "ok"),
    "T-A3 os": ("lost 1, diverged 1", "lost 1", "lost 1", "lost 1"),
    "T-A3 ack": ("ok", "ok", "ok", "ok"),
    "T-C1 i": ("ok", "diverged 5, stuck", "ok", "ok"),
    "T-C1 ii": ("ok", "diverged 10", "ok", "ok"),
    "T-C1 iii": ("ok", "diverged 10", "ok", "ok"),
    "T-C2": ("diverged 8, stuck", "diverged 8, stuck", "ok", "ok"),
    "T-D1": ("ok", "ok", "ok", "ok"),  # no batch above the epoch that is followed (KAFKA-18723)
    "T-F1": ("ok", "ok", "ok", "ok"),
    "T-E1": ("ok", "ok", "ok", "ok"),
    "T-E1 −ELR": ("lost 1", "lost 1", "lost 1", "lost 1"),
    "S-18 off": ("ok", "ok", "ok", "ok"),
    "S-18 on": (
        "lost 4, diverged 2, reread 3",
        "lost 4, reread 3",
        "lost 4, reread 3",
        "lost 4, reread 3",
    ),
    "S-21": ("ok", "ok", "ok", "ok"),
    "S-22": ("lost 7, out of range 12", "ok", "ok", "ok"),
    "S-28 ack": ("ok", "ok", "ok", "ok"),
    "S-28 os": (None, None, None, None),
}
SLOW = ("S-22", "S-28 ack", "S-28 os")


@cache
def cell(scenario: str, rule: str, seed: int = 0) -> Cell:
    return run_cell(BY_NAME[scenario], RULES[rule], seed)


def check_row(name: str, seed: int = 0) -> None:
    """The old rules do lose, each what it is known for; the default loses only what it may."""
    for rule, verdict in zip(RULES, EXPECTED[name], strict=True):
        found = cell(name, rule, seed)
        if verdict is None:
            assert found.findings.lost
        else:
            assert found.findings.verdict == verdict, (rule, found.findings)
        assert found.findings.acknowledged > 0
        assert not found.failed


def test_every_scenario_has_its_expectations() -> None:
    assert list(EXPECTED) == [scenario.name for scenario in SCENARIOS]


@pytest.mark.slow
@pytest.mark.every
@pytest.mark.parametrize("name", [name for name in EXPECTED if name not in SLOW])
def test_row(name: str) -> None:
    check_row(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_row_of_many_steps(name: str) -> None:
    check_row(name)


@pytest.mark.parametrize(
    ("name", "rule", "lost", "diverged"),
    [
        ("T-A1", "hw", (10,), (10,)),  # the acknowledged record, and what was written in its place
        ("T-A2", "hw", (1,), (1,)),
        ("T-A3 os", "hw", (1,), (1,)),
        ("T-A3 os", "fetch", (1,), ()),
        ("T-C1 i", "kip-101", (), tuple(range(10, 15))),
        ("T-C1 ii", "kip-101", (), tuple(range(10, 20))),
        ("T-C1 iii", "kip-101", (), tuple(range(10, 20))),
        ("T-C2", "kip-101", (), tuple(range(10, 18))),
        ("T-E1 −ELR", "fetch", (10,), ()),
        ("S-18 on", "fetch", (6, 7, 8, 9), ()),  # exactly what is above the new leader's log end
        ("S-18 on", "hw", (6, 7, 8, 9), (6, 7)),
    ],
)
def test_offsets(name: str, rule: str, lost: tuple[int, ...], diverged: tuple[int, ...]) -> None:
    """Where, exactly: the offsets that the scenario's description names."""
    found = cell(name, rule).findings
    assert (found.lost, found.diverged) == (lost, diverged)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("name", "mutant", "lost"),
    [
        ("T-F1", "join-before-epoch-start", (5, 6, 7, 8, 9)),
        ("S-21", "unclean-restart-keeps-isr", (7, 8, 9)),
    ],
)
def test_what_a_guard_is_for(name: str, mutant: str, lost: tuple[int, ...], rule: str) -> None:
    """Without it every rule loses the same."""
    with mutated(mutant):
        found = run_cell(BY_NAME[name], RULES[rule]).findings
    assert (found.lost, found.diverged) == (lost, ())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXPECTED if name not in SLOW])
def test_verdicts_do_not_depend_on_delays(name: str) -> None:
    """The script decides what happens, not the small delays that the seed moves."""
    check_row(name, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_power_loss_under_load(seed: int) -> None:
    """S-28: with flush=ack nothing is lost; with flush=os the replicas agree all the same."""
    assert cell("S-28 ack", "fetch", seed).findings.ok
    found = cell("S-28 os", "fetch", seed)
    assert not found.failed, found.findings


# -- how the rules get there ---------------------------------------------------------------------


def exchanged(name: str, rule: str) -> list[int]:
    """The ends of epochs that leaders told followers, from the moment the script is over."""
    stage = Stage(RULES[rule], unclean=BY_NAME[name].unclean)
    asked, fetched = stage.count(OffsetForLeaderEpochResponse), stage.count(FetchResponse)
    BY_NAME[name].script(stage)
    assert stage.heal() == ""
    return [part.end_offset for answer in asked for part in answer.partitions] + [
        part.diverging_epoch[1]
        for answer in fetched
        for part in answer.partitions
        if part.diverging_epoch
    ]


def test_truncation_in_two_rounds() -> None:
    """T-C2: (3, 20) and (1, 12) in the numbers of the description; here epochs count leaderless
    times too, so only the offsets are the same."""
    for rule in ("epoch", "fetch"):
        assert exchanged("T-C2", rule)[-2:] == [20, 12]


# -- stage ---------------------------------------------------------------------------------------


def test_fetches_wait_for_the_script() -> None:
    stage = Stage(DEFAULT)
    stage.begin("AB")
    stage.produce("A", 3)
    assert (stage.leo("A"), stage.leo("B")) == (3, 0)
    stage.fetch("B")
    assert stage.leo("B") == 3
    stage.fetch_unanswered("B")
    assert stage.hw("A") == 3
    assert stage.hw("B") == 0
    assert stage.heal() == ""


def test_script_that_does_not_work_is_an_error() -> None:
    stage = Stage(DEFAULT)
    stage.begin("AB")
    with pytest.raises(ScriptError, match="all records acknowledged"):
        stage.acknowledged(stage.produce("A"))  # B does not fetch


def test_script_that_cannot_go_on_fails_its_cell() -> None:
    def script(stage: Stage) -> None:
        stage.begin("AB")
        stage.acknowledged(stage.produce("A"))

    found = run_cell(Scenario("x", "cannot work", script), DEFAULT)
    assert found.failed
    assert found.findings.stuck.startswith("in the script: never: all records acknowledged")


# -- verdicts and reports ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("findings", "rule", "allowed", "failed"),
    [
        (Findings(5), "fetch", "", False),
        (Findings(5, lost=(1,)), "fetch", "", True),
        (Findings(5, lost=(1,)), "hw", "", False),
        (Findings(5, lost=(1,)), "fetch", "power", False),
        (Findings(5, diverged=(1,)), "fetch", "power", True),  # differing is never allowed
        (Findings(5, stuck="B"), "fetch", "power", True),
        (Findings(5, reread=(1,)), "fetch", "", True),
        (Findings(5, out_of_range=1), "fetch", "", True),
    ],
)
def test_what_counts_as_failed(findings: Findings, rule: str, allowed: str, failed: bool) -> None:
    scenario = Scenario("x", "", lambda stage: None, allowed=allowed)
    assert Cell(scenario, RULES[rule], findings).failed is failed


SOME = [
    Cell(BY_NAME[name], column, findings)
    for name in ("T-A1", "S-18 on")
    for column, findings in zip(
        COLUMNS, (Findings(3, (1,), (2,)), Findings(3), Findings(3), Findings(3, (1,))), strict=True
    )
]


def test_reports_say_why_a_loss_is_allowed() -> None:
    assert reasons_of(SOME) == [BY_NAME["S-18 on"].allowed]
    text = to_markdown(SOME)
    assert (
        "| T-A1 | acknowledged record, two fail-overs in a row | **lost 1, diverged 1** |" in text
    )
    assert "**lost 1 FAILED** |" in text  # T-A1 under the default rule
    assert "**lost 1 (1)** |" in text
    assert f"(1) {BY_NAME['S-18 on'].allowed}" in text


def test_json() -> None:
    data = json.loads(to_json(SOME))
    assert data["failed"] == 1
    assert [column["name"] for column in data["columns"]] == list(RULES)
    assert data["rows"][0]["cells"]["hw"] == {
        "verdict": "lost 1, diverged 1",
        "failed": False,
        "acknowledged": 3,
        "lost": [1],
        "diverged": [2],
        "reread": [],
        "outOfRange": 0,
        "stuck": "",
    }


def test_picture_is_well_formed_and_has_every_cell() -> None:
    root = ElementTree.fromstring(to_svg(SOME))
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("ok") == 4
    assert "lost 1 (1)" in texts
    width, height = int(root.attrib["width"]), int(root.attrib["height"])
    for node in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert int(node.get("x", "0")) + int(node.attrib["width"]) <= width
        assert int(node.get("y", "0")) + int(node.attrib["height"]) <= height


def test_command_writes_files_and_fails_when_a_cell_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "run_cells", lambda progress: SOME)
    out = tmp_path / "made" / "here"
    result = CliRunner().invoke(simulate, ["--matrix", "--out", str(out)])
    assert result.exit_code == 1
    assert "T-A1 under the default rule: lost 1" in result.output
    assert (out / "matrix.md").read_text() == to_markdown(SOME)
    assert (out / "matrix.svg").read_text() == to_svg(SOME)
    assert (out / "matrix.json").read_text() == to_json(SOME)


def test_command_succeeds_on_a_good_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    good = run_cells([BY_NAME["T-A1"]], [DEFAULT])
    monkeypatch.setattr(command, "run_cells", lambda progress: good)
    result = CliRunner().invoke(simulate, ["--matrix", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.output)["failed"] == 0


# -- documentation ---------------------------------------------------------------------------------


def expected_cell(name: str, rule: str) -> Cell:
    """What ``test_row`` finds; how much ``S-28 os`` loses is up to the seed."""
    counts = dict.fromkeys(("lost", "diverged", "reread", "out of range", "stuck"), 0)
    for part in (EXPECTED[name][list(RULES).index(rule)] or "lost 1").split(", "):
        what, number = re.fullmatch(r"(.+?) ?(\d*)", part).groups()  # type: ignore[union-attr]
        counts[what] = int(number or 1)
    lost, diverged, reread = (tuple(range(counts[n])) for n in ("lost", "diverged", "reread"))
    stuck = "stuck" * counts["stuck"]
    findings = Findings(1, lost, diverged, reread, counts["out of range"], stuck)
    return Cell(BY_NAME[name], RULES[rule], findings)


def without_chance(text: str) -> str:
    head, mark, tail = text.partition("S-28 os")
    return head + mark + re.sub(r"lost \d+", "lost n", tail)


def test_documents_show_what_is_expected() -> None:
    """``logstore simulate --matrix --out docs`` wrote what is there."""
    cells = [expected_cell(name, rule) for name in EXPECTED for rule in RULES]
    guide = (ROOT / "docs" / "replication.md").read_text()
    shown = guide.partition("<!-- matrix: begin -->\n")[2].partition("<!-- matrix: end -->")[0]
    assert without_chance(shown) == without_chance(to_markdown(cells))
    picture = (ROOT / "docs" / "matrix.svg").read_text()
    assert without_chance(picture) == without_chance(to_svg(cells))
