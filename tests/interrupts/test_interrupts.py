"""What a signal handler raises in a call ends it before its beginning or after its end."""

from __future__ import annotations

import logging
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logstore import LogConfig, PartitionLog
from tests.interrupts.points import Interruption
from tests.interrupts.searching import ALL, Interrupted, quiet, search

FEW = 4


@pytest.fixture(autouse=True)
def _silence(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("call", ALL, ids=lambda call: call.name)
def test_interrupted_anywhere(call: Interrupted) -> None:
    assert search(call, FEW) == []


@pytest.mark.long
@pytest.mark.parametrize("call", ALL, ids=lambda call: call.name)
def test_interrupted_everywhere(call: Interrupted) -> None:
    assert search(call, None) == []


@pytest.fixture
def alarm() -> Iterator[Callable[[float], None]]:
    """Raises ``Interruption`` after so many seconds; 0: no more."""

    def expired(*_: object) -> None:
        raise Interruption

    before = signal.signal(signal.SIGALRM, expired)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_alarms_at_random(tmp_path: Path, seed: int, alarm: Callable[[float], None]) -> None:
    """The log stays on line, loses nothing, and an import stores nothing twice."""
    with quiet():
        _append_under_alarms(tmp_path, seed, alarm)


def _append_under_alarms(tmp_path: Path, seed: int, alarm: Callable[[float], None]) -> None:
    draw = random.Random(seed)
    config = LogConfig(segment_bytes=3000, index_interval_bytes=200)
    log = PartitionLog.open(tmp_path / "orders-0", config)
    producer = log.producer("import")
    acknowledged = set()
    calls = [log.roll, log.flush, lambda: list(log.records()), lambda: log.truncate_to(1 << 40)]
    for number in range(300):
        sequence = producer.next_sequence
        value = b"%d" % number + b"x" * draw.choice([1, 400])
        other = draw.choice(calls)
        try:
            try:
                alarm(draw.random() * 8e-4 + 1e-6)
                producer.append([(None, value)], sequence=sequence, sync=draw.random() < 0.1)
                other()
            finally:
                alarm(0)
        except Interruption:
            producer.append([(None, value)], sequence=sequence)
        acknowledged.add(value)
    seen = [record.value for record in log.records()]
    log.close()
    with PartitionLog.open(tmp_path / "orders-0", config) as again:
        assert again.recovery_report.warnings == []
        assert [record.value for record in again.records()] == seen
    assert len(seen) == len(set(seen))
    assert set(seen) == acknowledged
