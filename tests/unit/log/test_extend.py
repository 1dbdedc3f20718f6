"""``extend`` and appends that wait until they are durable."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logstore.common.config import LogConfig
from logstore.common.errors import (
    ConfigError,
    InvalidTimestampError,
    LogClosedError,
    LogstoreError,
    PartialAppendError,
    RecordTooLargeError,
)
from logstore.common.types import Record
from logstore.log import PartitionLog
from logstore.segments.segment_view import BatchSpan
from tests.support.builders import Disk
from tests.support.waiting import race


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    with PartitionLog.open(tmp_path / "orders-0", LogConfig(max_message_bytes=2000)) as opened:
        yield opened


def numbers(count: int, size: int = 10) -> Iterator[tuple[None, bytes]]:
    for number in range(count):
        yield None, b"%d" % number * size


def batch_sizes(log: PartitionLog) -> list[int]:
    return [span.last_offset - span.base_offset + 1 for span in spans(log)]


def spans(log: PartitionLog) -> list[BatchSpan]:
    return list(log.segments[-1].live().walk(0))


def test_any_iterable_in_batches_that_fit(log: PartitionLog) -> None:
    done = log.extend(numbers(500))
    assert (done.first_offset, done.last_offset, done.record_count) == (0, 499, 500)
    assert done.batch_count == len(batch_sizes(log)) > 1
    assert done.size == log.size
    assert max(span.size for span in spans(log)) <= 2000
    assert [record.value for record in log.records()] == [value for _, value in numbers(500)]


def test_limits_of_a_batch(log: PartitionLog) -> None:
    log.extend(numbers(10), batch_records=4)
    assert batch_sizes(log) == [4, 4, 2]
    log.extend(numbers(20), batch_bytes=1)
    assert batch_sizes(log)[3:] == [16, 1, 1, 1, 1]
    log.extend(numbers(300, size=1), batch_bytes=700)
    assert all(size < 100 for size in batch_sizes(log)[9:])
    records = [Record(0, 5, b"k", b"v" * 900, [("h", b"x" * 400)])] * 3
    assert log.extend(records).record_count == 3
    for limits in ({"batch_records": 0}, {"batch_bytes": -1}):
        with pytest.raises(ConfigError):
            log.extend(numbers(1), **limits)


def test_nothing(log: PartitionLog) -> None:
    assert log.extend([]) == (-1, -1, 0, 0, 0)


def test_a_batch_stays_below_the_segment_size(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=300)
    with PartitionLog.open(tmp_path / "orders-0", config) as log:
        done = log.extend(numbers(100))
        assert done.record_count == 100
        assert len(log.segments) > 10


def test_what_does_not_compress_still_fits(tmp_path: Path) -> None:
    import random

    noise = random.Random(1).randbytes
    config = LogConfig(max_message_bytes=1000)
    with PartitionLog.open(tmp_path / "orders-0", config) as log:
        done = log.extend([(None, noise(40)) for _ in range(200)], compression="gzip")
        assert (done.record_count, log.log_end_offset) == (200, 200)


@pytest.mark.parametrize("at", [0, 1, 6, 7, 8, 99])
@pytest.mark.parametrize("bad", [(None, b"x" * 3000), (None, "text"), 7, (None,)], ids=repr)
def test_records_before_the_one_at_fault_are_appended(log: PartitionLog, bad: Any, at: int) -> None:
    records: list[Any] = [(None, b"%d" % n) for n in range(100)]
    records[at] = bad
    with pytest.raises(PartialAppendError) as caught:
        log.extend(records, batch_records=7)
    assert (caught.value.record_count, caught.value.last_offset) == (at, at - 1)
    assert isinstance(caught.value.__cause__, Exception)
    assert [r.value for r in log.records()] == [b"%d" % n for n in range(at)]


def test_the_cause_is_kept(log: PartitionLog) -> None:
    with pytest.raises(PartialAppendError, match="2 records were appended, up to offset 1") as e:
        log.extend([*numbers(2), (None, b"x" * 3000), *numbers(2)], sync=True)
    assert isinstance(e.value.__cause__, RecordTooLargeError)
    assert log.recovery_point == 2


def test_an_iterator_that_fails(log: PartitionLog) -> None:
    def failing() -> Iterator[tuple[None, bytes]]:
        yield from numbers(5)
        raise OSError("the input is gone")

    with pytest.raises(PartialAppendError, match="the input is gone") as caught:
        log.extend(failing())
    assert (caught.value.record_count, log.log_end_offset) == (5, 5)
    with pytest.raises(PartialAppendError):
        log.extend(7)  # type: ignore[arg-type]


def test_a_log_closed_in_the_middle(log: PartitionLog) -> None:
    def closing() -> Iterator[tuple[None, bytes]]:
        yield from numbers(5)
        log.close()
        yield from numbers(5)

    with pytest.raises(PartialAppendError) as caught:
        log.extend(closing(), batch_records=2, sync=True)
    assert caught.value.record_count == 4
    assert isinstance(caught.value.__cause__, LogClosedError)


def test_sync_waits_until_it_is_durable() -> None:
    disk = Disk()
    log = disk.open()
    log.append([(None, b"a")], sync=True)
    log.append_columns([b"b", b"c"], sync=True)
    assert log.recovery_point == 3
    log.extend(numbers(10), batch_records=3, sync=True)
    assert log.recovery_point == 13
    log.append([(None, b"lost")])
    disk.storage.crash(mode="all_lost")
    with disk.open() as log:
        assert log.log_end_offset >= 13


def test_threads_that_sync_at_once(tmp_path: Path) -> None:
    with PartitionLog.open(tmp_path / "orders-0") as log:

        def work() -> None:
            for _ in range(10):
                info = log.append([(None, b"v")], sync=True)
                assert log.recovery_point > info.last_offset
            assert log.extend(numbers(50), batch_records=7, sync=True).record_count == 50

        race(work, work, work)
        assert log.log_end_offset == 180


def test_aware_datetimes(log: PartitionLog) -> None:
    zone = datetime.timezone(datetime.timedelta(hours=2))
    moments = [datetime.datetime(2024, 5, 1, hour, tzinfo=zone) for hour in range(3)]
    log.append([(None, b"a", moments[0])])
    log.append_columns([b"b", b"c"], timestamps=moments[1:])
    found = log.offset_for_timestamp(moments[1])
    assert found is not None
    assert found == (int(moments[1].timestamp() * 1000), 1)
    naive = datetime.datetime(2024, 5, 1)
    for bad in (naive, -7, "now", moments[0].replace(year=1960)):
        with pytest.raises(InvalidTimestampError):
            log.offset_for_timestamp(bad)  # type: ignore[arg-type]
    with pytest.raises(LogstoreError):
        log.append([(None, b"a", naive)])  # type: ignore[list-item]
