"""Fixtures of the benchmarks; figures go by ``benchmark.extra_info`` to RESULTS.md."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "kafka")]


@pytest.fixture
def disk() -> Iterator[Path]:
    """A fresh directory on the disk of the project, not on a tmpfs."""
    path = ROOT / ".cache" / "bench"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def kafka() -> Any:
    """The front of Kafka's own classes, as the peer; without a JDK or Maven there is none."""
    import harness
    import kafka_jars

    try:
        kafka_jars.classpath()
    except kafka_jars.KafkaUnavailable as error:
        pytest.skip(f"no peer to compare with: {error}")
    return harness


@pytest.fixture
def claim(benchmark: Any) -> Callable[..., None]:
    """Note one line of RESULTS.md: what was measured, ours and the peer's, and the goal."""

    def note(**facts: object) -> None:
        benchmark.extra_info.setdefault("claims", []).append(facts)

    return note
