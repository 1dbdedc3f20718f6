"""Fixtures of the benchmarks, which note claims; ``figures.py`` runs them and keeps the claims."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / p) for p in (".", "bench", "bench/kafka", "tests/interop")]

from figures import claimed  # noqa: E402


@pytest.fixture
def disk() -> Iterator[Path]:
    """A fresh directory on the disk of the project, not on a tmpfs."""
    path = ROOT / ".cache" / f"bench-{ROOT.name}"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def directory(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A fresh directory for all of a module, on the disk of the project, not on a tmpfs."""
    path = ROOT / ".cache" / f"{Path(request.node.name).stem}-{os.getpid()}"
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
def claim(benchmark: Any) -> Callable[..., None]:
    """Note a line of RESULTS.md, by the arguments of ``claimed``, with what has been timed."""

    def note(*args: Any, **options: Any) -> None:
        benchmark.extra_info.setdefault("claims", []).append(claimed(*args, **options))

    return note


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """With Spark's own Kafka source, as a peer."""
    import kafka_jars
    import spark_data

    from logstore.spark import session

    jars = kafka_jars.classpath(pom=ROOT / "bench" / "kafka" / "spark-source.xml")
    conf = {**spark_data.CONF, "spark.jars": jars.replace(os.pathsep, ",")}
    spark = session("local[2]", app_name="bench", conf=conf)
    yield spark
    spark.stop()
