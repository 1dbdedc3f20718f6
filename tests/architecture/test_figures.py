"""The figures on the pages are those that were measured, with code that is not long gone."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_COMMITS = 200
LEAST_CLAIMS = 100
PROSE_LINES = 5
FIGURE = re.compile(r"\d ?(x|%|[kmnµ]?s|[KMGT]i?B)\b|\d%")


def _load() -> ModuleType:
    """Return ``bench/figures.py``, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("figures", ROOT / "bench" / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


figures = _load()


def test_the_pages_show_what_was_measured() -> None:
    """``python bench/figures.py --tables`` writes them."""
    assert figures.RESULTS.read_text() == figures.results_page()
    readme = figures.README.read_text()
    assert figures.BEGIN in readme
    assert readme == figures.readme_page(readme)


def test_every_lane_is_measured_and_every_benchmark_is_in_one() -> None:
    assert [*figures.measured()] == [*figures.LANES]
    lanes = [name for lane in figures.LANES.values() for name in lane.benchmarks]
    files = [path.stem.removeprefix("bench_") for path in (ROOT / "bench").glob("bench_*.py")]
    assert sorted(lanes) == sorted(files)
    paths = {path for lane in figures.LANES.values() for path in lane.measures}
    assert {path for path in paths if not (ROOT / path).exists()} == set()


def test_what_readme_shows_is_claimed() -> None:
    lanes = figures.measured()
    claims = {(name, claim["what"]) for name, lane in lanes.items() for claim in lane["claims"]}
    assert len(claims) > LEAST_CLAIMS
    assert set(figures.CHOSEN) - claims == set()


@pytest.mark.parametrize("lane", figures.LANES)
def test_prose_is_short_and_has_no_figures(lane: str) -> None:
    prose = figures.prose(lane)
    assert len(prose.splitlines()) <= PROSE_LINES
    assert FIGURE.search(prose) is None


def _git(*args: str) -> str | None:
    """What git says; ``None`` where there is no git, or it cannot tell."""
    try:
        found = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


@pytest.mark.parametrize("lane", figures.LANES)
def test_a_lane_is_not_older_than_what_it_measures(lane: str) -> None:
    if (_git("rev-parse", "--show-prefix"), _git("rev-parse", "--is-shallow-repository")) != (
        "",
        "false",
    ):
        pytest.skip("no git history here that could tell how old the figures are")
    commit = figures.measured()[lane]["commit"]
    changed = _git("log", "-1", "--format=%H", "--", *figures.LANES[lane].measures)
    commits = _git("rev-list", "--count", f"{commit}..{changed}")
    assert commits is not None, f"{commit}, where {lane} was measured, is not in this history"
    assert int(commits) <= MOST_COMMITS, f"python bench/figures.py --lane {lane}"


def test_a_claim_is_that_of_its_median_run() -> None:
    facts = {"unit": "s", "peer": "Kafka", "against": 6.0, "less": True, "note": "", "goal": 2}
    runs = [{**facts, "ours": ours, "ratio": 6 / ours} for ours in (4.0, 2.0, 3.0)]
    claim = figures.merge("a start", runs)
    assert figures.cells(claim) == [
        "a start",
        "3 s (2 to 4)",
        "Kafka: 6 s",
        "2x (1.5 to 3)",
        "at least 2x",
    ]
    assert (claim["met"], claim["runs"]) == (True, 3)


def test_a_limit_is_a_goal() -> None:
    facts = {"unit": "ms", "peer": "", "against": 5.0, "less": True, "note": "", "goal": 1}
    claim = figures.merge("a read", [{**facts, "ours": 6.0, "ratio": 5 / 6}])
    assert figures.cells(claim)[3:] == ["0.833x", "at most 5 ms"]
    assert claim["met"] is False
