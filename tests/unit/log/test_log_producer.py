"""Producers of a log whose appends may be tried again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logstore.common.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    LogClosedError,
    OutOfOrderSequenceError,
    ResourceBusyError,
)
from logstore.log import PartitionLog
from logstore.log.writing.producing import LogProducer, id_of_name
from tests.support.builders import Disk, produced
from tests.support.until import patience
from tests.support.waiting import race

A, B, C = [(None, b"a")], [(None, b"b"), (None, b"bb")], [(None, b"c")]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    opened = PartitionLog.open(tmp_path / "orders-0")
    yield opened
    opened.close()


def values(log: PartitionLog) -> list[bytes | None]:
    return [record.value for record in log.records()]


def test_a_retry_gets_the_old_offsets(log: PartitionLog) -> None:
    producer = log.producer("import")
    assert producer.next_sequence == 0
    first = producer.append(A)
    assert (first.first_offset, first.duplicate, producer.next_sequence) == (0, False, 1)
    sequence = producer.next_sequence
    second = producer.append(B, sync=True)
    log.append(C)
    for _ in range(2):
        again = producer.append(B, sequence=sequence)
        assert (again.first_offset, again.last_offset) == (1, 2)
        assert again.duplicate
    assert second.last_offset == 2
    assert producer.append(C).first_offset == 4
    assert values(log) == [b"a", b"b", b"bb", b"c", b"c"]


def test_sequences_that_are_not_next(log: PartitionLog) -> None:
    producer = log.producer(7)
    for number in range(8):
        producer.append([(None, b"%d" % number)])
    for sequence in (9, 0, 1):  # a gap; forgotten
        with pytest.raises(OutOfOrderSequenceError):
            producer.append(A, sequence=sequence)
    with pytest.raises(OutOfOrderSequenceError):
        producer.append(B, sequence=7)  # other records
    assert producer.append(A, sequence=3).duplicate
    assert producer.next_sequence == 8
    assert log.log_end_offset == 8


@pytest.mark.parametrize("end", ["close", "crash"])
def test_it_goes_on_after_a_restart(tmp_path: Path, end: str) -> None:
    log = PartitionLog.open(tmp_path / "orders-0")
    log.producer("import").append(A)
    sequence = log.producer("import").next_sequence  # a second one: epoch 1
    producer = log.producer("import")
    epoch, sequence = producer.epoch, producer.next_sequence
    producer.append(B)
    getattr(log, end)()
    with PartitionLog.open(tmp_path / "orders-0") as log:
        producer = log.producer("import")
        assert (producer.epoch, producer.next_sequence) == (epoch, sequence + 2)
        assert producer.append(B, sequence=sequence).duplicate  # its outcome was not known
        producer.append(C)
        assert values(log) == [b"a", b"b", b"bb", b"c"]


def test_a_newer_one_fences(log: PartitionLog) -> None:
    log.producer("import")
    older = log.producer("import")
    assert older.epoch == 0  # one that appended nothing is not fenced
    older.append(A)
    newer = log.producer("import")
    assert newer.epoch == older.epoch + 1
    with pytest.raises(InvalidProducerEpochError, match="fenced"):
        older.append(B)
    newer.append(B)
    assert (newer.next_sequence, values(log)) == (2, [b"a", b"b", b"bb"])
    log.producer("another").append(C)
    newer.append(A)


def test_names_and_ids(log: PartitionLog) -> None:
    assert log.producer("import").producer_id == id_of_name("import") >= 1 << 62
    assert id_of_name("import") != id_of_name("imports")
    assert log.producer(5).producer_id == 5
    bad: list[Any] = ["", -1, 2**63, None, 1.5]
    for name in bad:
        with pytest.raises(InvalidRecordError):
            log.producer(name)


def test_bad_records_use_no_sequence(log: PartitionLog) -> None:
    producer = log.producer("import")
    bad: list[Any] = [[], [(None, "text")], [7]]
    for records in bad:
        with pytest.raises(InvalidRecordError):
            producer.append(records)
    for sequence in (-1, 2**31):
        with pytest.raises(InvalidRecordError):
            producer.append(A, sequence=sequence)
    assert producer.next_sequence == 0
    producer.append(A)


def test_appended_but_not_synced(tmp_path: Path) -> None:
    """The outcome that a caller cannot know: tried again, it is there once."""
    log = PartitionLog.open(tmp_path / "orders-0")
    producer = log.producer("import")
    sequence = producer.next_sequence
    flush, log.flusher.flush = log.flusher.flush, _busy  # type: ignore[method-assign]
    with pytest.raises(ResourceBusyError):
        producer.append(B, sequence=sequence, sync=True)
    log.flusher.flush = flush  # type: ignore[method-assign]
    assert producer.append(B, sequence=sequence, sync=True).duplicate
    assert (log.recovery_point, values(log)) == (2, [b"b", b"bb"])
    log.close()


def _busy(offset: int | None = None) -> None:
    raise ResourceBusyError("", "flush", "no descriptors")


def test_records_that_are_lost_are_not_taken_for_duplicates() -> None:
    disk = Disk()
    log = disk.open()
    log.producer("import").append(A, sync=True)
    log.producer("import").append(B)
    disk.storage.crash(mode="all_lost")
    with disk.open() as log:
        producer = log.producer("import")
        assert producer.next_sequence == log.log_end_offset == 1
        assert not producer.append(B, sequence=1).duplicate


def test_a_cut_takes_the_sequence_back(log: PartitionLog) -> None:
    producer = log.producer("import")
    producer.append(A)
    producer.append(B)
    log.truncate_to(1)
    assert producer.next_sequence == 1
    assert not producer.append(B).duplicate


def test_a_producer_that_the_log_has_forgotten() -> None:
    disk = Disk()
    with disk.open(producer_id_expiration_ms=1000) as log:
        producer = log.producer("import")
        producer.append(B)
        disk.clock.advance(5000)
        assert log.producers.remove_expired() == 1
        assert producer.next_sequence == 2
        producer.append(A)
        assert producer.next_sequence == 3


def test_beside_batches_of_other_producers(log: PartitionLog) -> None:
    log.append_as_leader(produced(1, 0, 2), 0)
    producer = log.producer("import")
    producer.append(A)
    log.append_as_leader(produced(1, 2, 2), 0)
    assert (producer.next_sequence, log.producer(1).next_sequence) == (1, 4)


def test_threads_share_a_producer(log: PartitionLog) -> None:
    producer = log.producer("import")

    def work() -> None:
        for _ in range(30):
            assert not producer.append(A).duplicate

    race(work, work, work)
    assert (producer.next_sequence, log.log_end_offset) == (90, 90)


def test_threads_that_make_producers_at_once(log: PartitionLog) -> None:
    made: list[LogProducer] = []

    def work() -> None:
        for _ in range(10):
            producer = log.producer("import")
            made.append(producer)
            try:
                producer.append(A)
            except InvalidProducerEpochError:
                continue

    race(work, work)
    assert len({producer.epoch for producer in made}) == 20


def test_a_closed_log(log: PartitionLog) -> None:
    producer = log.producer("import")
    log.close()
    with pytest.raises(LogClosedError):
        producer.append(A)
    with pytest.raises(LogClosedError):
        log.producer("import")


IMPORT = """
import sys
from logstore import PartitionLog
log = PartitionLog.open(sys.argv[1])
producer = log.producer("import")
print(producer.next_sequence, flush=True)
for number in range(producer.next_sequence, 100_000):
    producer.append([(None, b"%d" % number)])
"""


def test_kill_9_leaves_each_record_once(tmp_path: Path) -> None:
    """An import that counts by its sequence goes on where the log ends."""
    directory = tmp_path / "orders-0"
    begun = []
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", IMPORT, str(directory)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        begun.append(int(process.stdout.readline()))
        follower = PartitionLog.open_reader(directory).follow(
            begun[-1], timeout=patience(), poll=0.005
        )
        for _ in range(20):
            next(follower)
        process.kill()
        process.communicate()
    assert begun[0] < begun[1] < begun[2]
    with PartitionLog.open(directory) as log:
        assert values(log) == [b"%d" % number for number in range(log.log_end_offset)]
        assert log.producer("import").next_sequence == log.log_end_offset
