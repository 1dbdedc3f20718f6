"""What ``logstore simulate`` prints: the failure first, what repeats it, then counters in words."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from replication.simulator.command.counters import in_words
from replication.simulator.command.simulate import simulate
from replication.simulator.world.fault_kinds import KINDS
from tests.mutants import mutated, replication  # noqa: F401

MUTANT = "high-watermark-without-followers"


@pytest.mark.slow
def test_the_failure_comes_first_and_its_command_repeats_it(tmp_path: Path) -> None:
    saved = tmp_path / "small plan.json"
    arguments = ["--schedules", "2", "--workers", "1", "--events", "40"]
    with mutated(MUTANT):
        done = CliRunner().invoke(simulate, [*arguments, "--save", str(saved)])
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert re.match(r"seed \d+: I-", lines[0])
    repeats = [line for line in lines if line.startswith("Repeat it with: ")]
    counters = [i for i, line in enumerate(lines) if line.endswith("count  in %")]
    assert counters
    assert lines.index(repeats[0]) < counters[0]
    # The command as a person copies it, with the shrunk schedule.
    words = shlex.split(repeats[0].removeprefix("Repeat it with: logstore simulate "))
    with mutated(MUTANT):
        again = CliRunner().invoke(simulate, words)
    assert again.exit_code == 1
    small = [line for line in lines if re.match(r"I-\d", line)]
    assert small
    assert again.stdout.splitlines()[0] == small[0]


@pytest.mark.slow
def test_without_a_place_the_shrunk_schedule_is_a_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with mutated(MUTANT):
        done = CliRunner().invoke(simulate, ["--schedules", "1", "--events", "40"])
    assert done.exit_code == 1
    assert f"--replay {tmp_path}/logstore-seed-1.json" in done.stdout
    assert list(tmp_path.glob("*.json"))


def test_counters_are_words_of_80_columns() -> None:
    counters = {
        "ELR used": 3,
        "fatal": 1,
        "polls": 7,
        "reassign NONE": 2,
        "produce NotLeaderOrFollowerError": 4,
        "delete-records UNKNOWN_TOPIC_OR_PARTITION": 1,
        "excused: a damaged disk": 1,
        "warned: broker %s: %d of " + "word " * 30: 1,
        **dict.fromkeys(KINDS, 1_000_000),
    }
    lines = list(in_words(counters, counters, 1_000_000))
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 80
    assert "%s" not in text
    for words in (
        "produce: not leader or follower",
        "delete-records: unknown topic or partition",
        "reassign: done",
        "  a damaged disk",
        "broker …: … of word",
        "message-loss ",
    ):
        assert words in text
    heads = [line for line in lines if line.endswith("in %")]
    assert len(heads) == 5
    assert (
        text.index("message-loss ") < text.index("message-delay ") < text.index("half-open-peer ")
    )
