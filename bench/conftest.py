"""Fixtures of the benchmarks, which note claims; ``figures.py`` runs them and keeps the claims.

Each benchmark runs three times, and once where it takes long.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / p) for p in ("bench", "bench/kafka", "tests/interop")]

from figures import merge  # noqa: E402
from workloads import QUICK  # noqa: E402

RUNS = 1 if QUICK else 3
LONG_S = 20.0

noted: dict[str, list[dict[str, Any]]] = {}
took: dict[object, float] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--claims", type=Path, help="where to write what was claimed, as JSON")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "run" in metafunc.fixturenames:
        metafunc.parametrize("run", range(RUNS))


def benchmark_of(item: pytest.Function) -> object:
    params = {name: repr(value) for name, value in item.callspec.params.items() if name != "run"}
    return item.path, item.originalname, *params.items()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Function) -> bool | None:
    return True if took.get(benchmark_of(item), 0.0) > LONG_S else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Function) -> Iterator[None]:
    started = time.perf_counter()
    yield
    took[benchmark_of(item)] = time.perf_counter() - started


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--claims")
    if path is not None:
        path.write_text(json.dumps([merge(what, runs) for what, runs in noted.items()]))


@pytest.fixture
def disk() -> Iterator[Path]:
    """A fresh directory on the disk of the project, not on a tmpfs."""
    path = ROOT / ".cache" / f"bench-{ROOT.name}"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def kafka() -> Any:
    """The front of Kafka's own classes, as the peer. Without a JDK and Maven the run fails."""
    import harness
    import kafka_jars

    kafka_jars.classpath()
    return harness


@pytest.fixture
def claim(run: int) -> Callable[..., None]:
    """Note one line of RESULTS.md.

    The ratio says how many times as good ours is as the peer's, or as a fixed limit. ``goal`` is
    the least ratio wanted. ``less`` is for times and memory, of which less is better.
    """

    def note(
        what: str,
        ours: float,
        unit: str,
        *,
        peer: str = "",
        theirs: float | None = None,
        limit: float | None = None,
        goal: float | None = None,
        less: bool = False,
        note: str = "",
    ) -> None:
        against = theirs if limit is None else limit
        assert against is not None, "a claim needs a peer or a limit"
        assert (limit is None) == bool(peer)
        least = against / 1e6  # nothing at all is a million times as good
        ratio = against / max(ours, least) if less else ours / against
        noted.setdefault(what, []).append(
            {
                "ours": ours,
                "unit": unit,
                "peer": peer,
                "against": against,
                "less": less,
                "ratio": ratio,
                "goal": 1 if limit is not None else goal,
                "note": note,
            }
        )

    return note


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    import spark_data

    from logstore.spark import session

    spark = session("local[2]", app_name="bench", conf=spark_data.CONF)
    yield spark
    spark.stop()
