"""Which tests one run takes: a lane, and of its slow tests all or a drawn sample.

A lane is a set of folders with the same needs. Lanes run one after the other, so that a JVM never
runs beside a test that watches threads.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

TESTS = Path(__file__).resolve().parents[1]


class Lane(NamedTuple):
    """One row of the table below.

    Attributes:
        folders: below ``tests``; what no lane names is of ``quick``.
        workers: processes that share the lane's tests.
        cpu_s: seconds of processor time that ``make test`` may spend here, on a slow machine.
    """

    name: str
    folders: tuple[str, ...]
    needs: str
    workers: int
    cpu_s: int


LANES = {
    lane.name: lane
    for lane in (
        Lane("quick", (), "nothing but Python", 2, 720),
        Lane("spark", ("spark",), "a JDK", 1, 300),
        Lane("kafka", ("interop", "adopt"), "a JDK and Maven", 1, 400),
        Lane("zookeeper", ("zookeeper",), "a JDK, and Maven or Debian's zookeeper", 1, 120),
        Lane("processes", ("processes",), "a C compiler, and what zookeeper needs", 1, 200),
        Lane("browser", ("browser",), "Debian's chromium and chromium-driver", 1, 120),
        Lane("clients", ("clients",), "clients and suites of others", 1, 300),
    )
}


def lane_of(path: Path) -> str:
    """The lane of a test file, by its folder."""
    folder = path.relative_to(TESTS).parts[0]
    return next((lane.name for lane in LANES.values() if folder in lane.folders), "quick")


def missing(reason: str) -> NoReturn:
    """Skip what needs a program that is not here. A build fails: a suite that skips itself in
    silence proves nothing."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lanes")
    group.addoption("--lane", choices=LANES, help="only the tests of this lane")
    group.addoption("--sample", metavar="SEED", help="of each slow test one case")
    group.addoption("--long", action="store_true", help="with the tests that take minutes")


def pytest_configure(config: pytest.Config) -> None:
    for mark in (
        "slow: more than a quarter of a second of processor time; `make quick` draws one case",
        "every: slow, and `make quick` takes each of its cases",
        "long: takes minutes; only `make test-all` has it",
        "essential: of a lane with a foreign program, what `make test` has",
        "unstable(reason, since): known to fail by luck; listed at the end, decides nothing",
    ):
        config.addinivalue_line("markers", mark)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Nothing of another lane is even imported: that alone would take seconds and packages."""
    lane = config.option.lane
    if lane is None or collection_path == TESTS or TESTS not in collection_path.parents:
        return None
    return None if lane_of(collection_path) == lane else True


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left = list(items)
    if not config.option.long:
        left = [item for item in left if item.get_closest_marker("long") is None]
    if config.option.sample is not None:
        left = list(_sample(left, config.option.sample))
    if len(left) < len(items):
        chosen = set(left)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = left


def _sample(items: list[pytest.Item], seed: str) -> Iterator[pytest.Item]:
    """All that is fast, and one case of each slow function."""
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("every"):
            cases[_function(item)].append(item)
    for function, those in cases.items():
        those.remove(random.Random(f"{seed} {function}").choice(those))
    left_out = {item for those in cases.values() for item in those}
    return (item for item in items if item not in left_out)


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]
