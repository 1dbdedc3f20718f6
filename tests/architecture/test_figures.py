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


def _skip_without_history() -> None:
    if (_git("rev-parse", "--show-prefix"), _git("rev-parse", "--is-shallow-repository")) != (
        "",
        "false",
    ):
        pytest.skip("no git history here that could tell how old the figures are")


@pytest.mark.parametrize("lane", figures.LANES)
def test_a_lane_is_not_older_than_what_it_measures(lane: str) -> None:
    _skip_without_history()
    facts, paths = figures.measured()[lane], figures.LANES[lane].measures
    commits = _commits_since(facts["commit"], facts["committed"], paths)
    assert commits <= MOST_COMMITS, f"python bench/figures.py --lane {lane}"


def _commits_since(commit: str, committed: str, paths: tuple[str, ...]) -> int:
    """How many commits there are from ``commit`` to the last one that changed one of the paths;
    merges bring nothing of their own.

    A rebase makes commits anew, and a clone does not have the old ones: then, those that changed
    the paths after its date.
    """
    changed = _git("log", "-1", "--format=%H", "--", *paths)
    commits = _git("rev-list", "--no-merges", "--count", f"{commit}..{changed}")
    if commits is None:
        commits = _git("rev-list", "--count", f"--since={committed}", "HEAD", "--", *paths)
    assert commits is not None, f"git counts no commits since {committed}"
    return int(commits)


def test_commits_are_counted_by_date_where_the_one_measured_is_gone() -> None:
    _skip_without_history()
    paths = ("logstore",)
    date = str(_git("log", "-1", "--skip=30", "--format=%cI", "--", *paths))
    gone = "0" * 40
    assert _commits_since(gone, date, paths) >= 30
    assert _commits_since(gone, "2090-01-01T00:00:00+00:00", paths) == 0


def test_a_claim_has_the_median_and_the_range_of_its_rounds() -> None:
    ours, theirs = [4.0, 2.0, 3.0], [6.0, 6.0, 3.0]
    claim = figures.claimed("a start", ours, "s", peer="Kafka", theirs=theirs, goal=2, less=True)
    assert figures.cells(claim) == [
        "a start",
        "3 s (2 to 4)",
        "Kafka: 6 s",
        "1.5x (1 to 3)",
        "at least 2x",
    ]
    assert (claim["met"], claim["runs"]) == (False, 3)


def test_a_figure_of_one_round_is_compared_with_each_of_the_others() -> None:
    claim = figures.claimed("appends", [2.0, 4.0, 8.0], "MB/s", peer="Kafka", theirs=4.0)
    assert figures.cells(claim)[1:] == ["4 MB/s (2 to 8)", "Kafka: 4 MB/s", "1x (0.5 to 2)", ""]
    assert claim["met"] is None


def test_a_limit_is_a_goal() -> None:
    claim = figures.claimed("a read", 6.0, "ms", limit=5.0, less=True)
    assert figures.cells(claim)[3:] == ["0.833x", "at most 5 ms"]
    assert claim["met"] is False
    assert figures.claimed("nothing", 0.0, "MB", limit=5.0, less=True)["ratio"] == 1e6
    nothing = figures.claimed("CPU", [0.0, 0.0], "s", peer="Kafka", theirs=[0.0, 1.0], less=True)
    assert nothing["ratio_range"] == [1, 1e6]
