"""One log: its operations for each batch, segment, producer and epoch, and beside so many."""

from __future__ import annotations

from typing import Any

from logstore.log import PartitionLog
from logstore.segments.producer_state import AppendOrigin
from tests.growth.work import Act, Case, Per, check, for_cases
from tests.support.builders import NOW, Disk, batch, marker, produced
from tests.support.logs import take_producer_snapshot

APART_MS = 1000  # the segments of a log
BATCHES = 2  # of a segment


def filled(segments: int, disk: Disk | None = None, **config: Any) -> PartitionLog:
    log = (disk or Disk(**config)).open()
    for number in range(segments):
        if number:
            log.roll()
        for _ in range(BATCHES):
            log.append_as_leader(batch(timestamp=NOW + number * APART_MS), 0)
    return log


def read_all(log: PartitionLog, **how: Any) -> None:
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, **how)
        offset = max(offset + BATCHES, data.start_offset)


# -- batches and segments -------------------------------------------------------------------------


def append_each(size: int) -> Act:
    log = filled(1)
    return lambda: [log.append_as_leader(batch(), 0) for _ in range(size)]


def append_beside(size: int) -> Act:
    log = filled(size)
    return lambda: log.append_as_leader(batch(), 0)


def roll_beside(size: int) -> Act:
    return filled(size).roll


def read_beside(size: int) -> Act:
    log = filled(size)
    return lambda: log.read(BATCHES * size // 2)


def read_each(size: int) -> Act:
    log = filled(size)
    return lambda: read_all(log)


def records_each(size: int) -> Act:
    log = filled(size)
    return lambda: list(log.records())


def timestamp_beside(size: int) -> Act:
    log = filled(size)
    return lambda: log.offset_for_timestamp(NOW + (size - 1) * APART_MS)


def flush_each(size: int) -> Act:
    return filled(size).flush


def flush_beside(size: int) -> Act:
    log = filled(size)
    log.flush()
    log.append_as_leader(batch(), 0)
    return log.flush


# -- what is removed ------------------------------------------------------------------------------


def truncate_each(size: int) -> Act:
    log = filled(size)
    return lambda: log.truncate_to(1)


def truncate_beside(size: int) -> Act:
    log = filled(size)
    return lambda: log.truncate_to(log.log_end_offset - 1)


def delete_records_each(size: int) -> Act:
    log = filled(size)
    return lambda: log.delete_records(log.log_end_offset)


def delete_records_beside(size: int) -> Act:
    log = filled(size)
    return lambda: log.delete_records(1)


def retention_each(size: int) -> Act:
    log = filled(size, retention_ms=1)
    log.core.clock.advance(2 * size * APART_MS)  # type: ignore[attr-defined]
    return log.maintenance.delete_old_segments


def retention_beside(size: int) -> Act:
    """By time, none is due."""
    return filled(size, retention_ms=1 << 40).maintenance.delete_old_segments


def purge_each(size: int) -> Act:
    log = filled(size)
    log.delete_records(log.log_end_offset)
    return lambda: log.maintenance.purge_deleted(1 << 60)


# -- starts ---------------------------------------------------------------------------------------


def clean_start_each(size: int) -> Act:
    disk = Disk()
    filled(size, disk).close()
    return lambda: disk.open(clean_shutdown=True)


def recovery_each(size: int) -> Act:
    disk = Disk()
    filled(size, disk).crash()
    return disk.open


def recovery_beside(size: int) -> Act:
    """All but the last segment is durable."""
    disk = Disk()
    log = filled(size, disk)
    point = log.log_end_offset - 1
    log.flush()
    log.crash()
    return lambda: disk.open(recovery_point=point)


def recovery_of_batches(size: int) -> Act:
    disk = Disk()
    log = disk.open()
    for _ in range(size):
        log.append_as_leader(batch(), 0)
    log.crash()
    return disk.open


# -- producers and transactions -------------------------------------------------------------------


def with_producers(count: int, disk: Disk | None = None) -> PartitionLog:
    log = (disk or Disk()).open()
    for number in range(count):
        log.append_as_leader(produced(number + 1), 0)
    return log


def producers_each(size: int) -> Act:
    log = with_producers(1)
    return lambda: [log.append_as_leader(produced(number + 2), 0) for number in range(size)]


def producer_beside(size: int) -> Act:
    log = with_producers(size)
    return lambda: log.append_as_leader(produced(1, 1), 0)


def snapshot_each(size: int) -> Act:
    log = with_producers(size)
    return lambda: take_producer_snapshot(log)


def recover_producers(size: int) -> Act:
    disk = Disk()
    with_producers(size, disk).crash()
    return disk.open


def expire_producers(size: int) -> Act:
    log = with_producers(size)
    log.core.clock.advance(1 << 40)  # type: ignore[attr-defined]
    return log.producers.remove_expired


def with_aborted(count: int) -> PartitionLog:
    log = Disk().open()
    for number in range(count):
        log.append_as_leader(produced(number + 1, transactional=True), 0)
        log.append_as_leader(
            marker(commit=False, producer_id=number + 1), 0, AppendOrigin.COORDINATOR
        )
    return log


def transactions_each(size: int) -> Act:
    return lambda: with_aborted(size)


def committed_each(size: int) -> Act:
    log = with_aborted(size)
    return lambda: log.read(0, committed=True)


def committed_beside(size: int) -> Act:
    """The aborted transactions are below what is read."""
    log = with_aborted(size)
    log.append_as_leader(batch(), 0)
    end = log.log_end_offset
    return lambda: log.reader.aborted_transactions(end - 1, end)


# -- epochs ---------------------------------------------------------------------------------------


def with_epochs(count: int) -> PartitionLog:
    log = Disk().open()
    for epoch in range(count):
        log.replica.lead(epoch)
        log.append_as_leader(batch(), epoch)
    return log


def epochs_each(size: int) -> Act:
    return lambda: with_epochs(size)


def epoch_beside(size: int) -> Act:
    log = with_epochs(size)
    return lambda: log.epochs.end_offset_for(size // 2)


def append_beside_epochs(size: int) -> Act:
    log = with_epochs(size)
    return lambda: log.append_as_leader(batch(), size - 1)


@for_cases(
    Case("append", append_each),
    Case("append beside segments", append_beside, Per.ONE),
    Case("roll beside segments", roll_beside, Per.ONE),
    Case("read segments", read_each),
    Case("read beside segments", read_beside, Per.ONE),
    Case("records of segments", records_each),
    Case(
        "offset of a timestamp, beside segments",
        timestamp_beside,
        Per.ONE,
        known="segments are asked in turn, as Kafka does: time may go back",
    ),
    Case("flush segments", flush_each),
    Case("flush beside segments", flush_beside, Per.ONE),
    Case("truncate segments", truncate_each),
    Case(
        "truncate beside segments",
        truncate_beside,
        Per.ONE,
        known="a cut makes the list of segments anew",
    ),
    Case("delete records of segments", delete_records_each),
    Case("delete records beside segments", delete_records_beside, Per.ONE),
    Case("retention of segments", retention_each),
    Case("retention beside segments", retention_beside, Per.ONE),
    Case("purge segments", purge_each),
    Case("clean start of segments", clean_start_each),
    Case("recovery of segments", recovery_each, smallest=8),
    Case(
        "recovery beside segments",
        recovery_beside,
        Per.ONE,
        known="each segment is opened, as by a clean start",
    ),
    Case("recovery of batches", recovery_of_batches),
    Case("append of producers", producers_each),
    Case("append beside producers", producer_beside, Per.ONE),
    Case("snapshot of producers", snapshot_each),
    Case("recovery of producers", recover_producers),
    Case("producers expire", expire_producers),
    Case("transactions", transactions_each),
    Case("read aborted transactions", committed_each, smallest=64),  # an index entry each 4 KiB
    Case("aborted transactions beside others", committed_beside, Per.ONE),
    Case(
        "epochs",
        epochs_each,
        known="each epoch writes the file of all, as Kafka does",
    ),
    Case("epoch beside epochs", epoch_beside, Per.ONE),
    Case("append beside epochs", append_beside_epochs, Per.ONE),
)
def test_a_log_costs_what_it_does(case: Case) -> None:
    check(case)
