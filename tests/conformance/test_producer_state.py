"""Kafka's ProducerStateManagerTest under its names, and the sequence table of F-184 … F-199: what a
log knows of the producers of batches that others made."""

from __future__ import annotations

import pytest

from logstore.common.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    RecordRejectedError,
    TransactionCoordinatorFencedError,
)
from logstore.log import PartitionLog
from logstore.segments.producer_state import (
    MAX_EPOCH,
    AppendOrigin,
    ProducerBatch,
    ProducerStateManager,
    TransactionCheck,
)
from tests.support.builders import NOW, Disk, marker, produced

DAY_MS = 86_400_000


def manager_on(disk: Disk) -> ProducerStateManager:
    return ProducerStateManager(disk.storage, disk.directory, DAY_MS)


def append(
    state: ProducerStateManager,
    offset: int,
    *,
    sequence: int = 0,
    epoch: int = 0,
    producer_id: int = 1,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    transactional: bool = False,
) -> None:
    """One batch of one record at ``offset``."""
    change = state.prepare(producer_id, origin)
    change.append(ProducerBatch(producer_id, epoch, sequence, offset, offset, NOW, transactional))
    state.update(change)
    state.map_end_offset = offset + 1


def snapshot(state: ProducerStateManager) -> list[object]:
    return [
        (
            e.producer_id,
            e.producer_epoch,
            e.coordinator_epoch,
            e.last_timestamp,
            list(e.batches),
            e.current_txn_first_offset,
        )
        for e in state.producers.values()
    ]


@pytest.mark.parametrize(
    ("epoch", "of_marker", "ends"),
    [
        (3, 4, True),
        (3, 3, False),
        (3, 2, False),
        (MAX_EPOCH - 1, MAX_EPOCH, True),
        (MAX_EPOCH, MAX_EPOCH, True),  # begun by a mistake of Kafka's: no epoch is above it
    ],
)
def test_the_epoch_of_a_marker_is_above_its_transaction(
    epoch: int, of_marker: int, ends: bool
) -> None:
    """In protocol 2 (W-164). One that comes late is of the epoch that the next transaction has."""
    state = manager_on(Disk())
    append(state, 0, epoch=epoch, transactional=True)
    change = state.prepare(1, AppendOrigin.COORDINATOR, TransactionCheck.NEWER_EPOCH)
    end = ProducerBatch(1, of_marker, -1, 1, 1, NOW, True, (False, 0), control=True)
    if ends:
        assert change.append(end) == (1, 0, 1, True)
    else:
        with pytest.raises(InvalidProducerEpochError):
            change.append(end)


class TestProducerStateManager:
    def test_accept_append_without_producer_state_on_replica(self) -> None:
        """testAcceptAppendWithoutProducerStateOnReplica: any first sequence of an unknown producer
        is taken from the leader, and from a client too (F-184, F-192)."""
        for origin in (AppendOrigin.REPLICATION, AppendOrigin.CLIENT):
            for sequence in (0, 1, 15, 2**31 - 1):
                state = manager_on(Disk())
                append(state, 0, sequence=sequence, origin=origin)
                assert state.producers[1].last_sequence == sequence

    def test_truncate_and_reload_removes_out_of_range_snapshots(self) -> None:
        """testTruncateAndReloadRemovesOutOfRangeSnapshots: snapshots outside the kept range go
        (F-201, step 2)."""
        disk = Disk()
        state = manager_on(disk)
        for offset in range(5):
            append(state, offset, sequence=offset)
            state.take_snapshot(sync=False)
        assert disk.bases(".snapshot") == [1, 2, 3, 4, 5]
        state.truncate_and_reload(1, 3, NOW)
        assert disk.bases(".snapshot") == [2, 3]
        assert state.map_end_offset == 3
        assert state.producers[1].last_sequence == 2

    def test_prepare_update_does_not_mutate(self) -> None:
        """testPrepareUpdateDoesNotMutate: validation alone changes nothing."""
        state = manager_on(Disk())
        change = state.prepare(1, AppendOrigin.CLIENT)
        change.append(ProducerBatch(1, 0, 0, 15, 20, NOW, False))
        assert not state.producers
        state.update(change)
        before = snapshot(state)
        change = state.prepare(1, AppendOrigin.CLIENT)
        change.append(ProducerBatch(1, 0, 6, 21, 29, NOW + 1, True))
        assert change.entry.last_sequence == 14
        assert snapshot(state) == before
        assert state.first_unstable_offset is None
        state.update(change)
        assert state.producers[1].last_sequence == 14
        assert state.first_unstable_offset == 21


def at(log: PartitionLog, sequence: int, epoch: int = 0, producer_id: int = 1) -> object:
    """Append one record as a client; the error class it meets, or None."""
    try:
        log.append_as_leader(produced(producer_id, sequence, producer_epoch=epoch), 0)
    except RecordRejectedError as error:
        return type(error)
    return None


@pytest.mark.parametrize(
    ("epoch", "sequence", "refused"),
    [
        (0, 3, None),  # F-188
        (0, 2, None),  # F-183: a duplicate of the last batch
        (0, 4, OutOfOrderSequenceError),  # F-189
        (1, 0, None),  # F-187
        (1, 3, OutOfOrderSequenceError),  # F-186
        (1, 1, OutOfOrderSequenceError),
    ],
)
def test_sequences_of_a_known_producer(epoch: int, sequence: int, refused: object) -> None:
    """F-186 … F-189, after batches 0, 1, 2 of epoch 0."""
    with Disk().open() as log:
        for known in range(3):
            assert at(log, known) is None
        assert at(log, sequence, epoch) is refused


def test_an_old_epoch_is_fenced() -> None:
    """testOldProducerEpoch (F-185); from replication it is taken."""
    with Disk().open() as log:
        assert at(log, 0, epoch=1) is None
        assert at(log, 0, epoch=0) is InvalidProducerEpochError
        log.replica.append_as_follower(produced(1, 0, base_offset=1))
        assert log.log_end_offset == 2


def test_the_sequence_wraps() -> None:
    """F-63, F-188: 0 follows 2³¹−1, also inside a batch."""
    with Disk().open() as log:
        assert at(log, 2**31 - 1) is None
        assert at(log, 0) is None
        log.append_as_leader(produced(2, 2**31 - 2, count=4), 0)
        assert log.producers.known.producers[2].last_sequence == 1
        assert at(log, 2, producer_id=2) is None
        assert at(log, 2**31 - 2, producer_id=2) is OutOfOrderSequenceError


def test_a_snapshot_remembers_one_batch() -> None:
    """F-128: after a reload a retry of the last batch is known, one before it is out of order."""
    disk = Disk()
    with disk.open() as log:
        for sequence in range(3):
            assert at(log, sequence) is None
    with disk.open(clean_shutdown=True) as log:
        assert log.append_as_leader(produced(1, 2), 0).duplicate
        assert at(log, 1) is OutOfOrderSequenceError
        assert at(log, 3) is None


def test_a_producer_known_by_a_marker_alone() -> None:
    """F-190: its last sequence counts as −1, so the first one must be 0."""
    for sequence, refused in ((5, OutOfOrderSequenceError), (0, None)):
        with Disk().open() as log:
            log.append_as_leader(marker(commit=True), 0, AppendOrigin.COORDINATOR)
            assert at(log, sequence) is refused


def test_transactions_open_and_end() -> None:
    """F-193 … F-196: opened by the first transactional batch, ended by a marker; in between the
    producer may not write outside of it; a marker without a transaction leaves no trace."""
    with Disk().open() as log:
        log.append_as_leader(produced(1, 0, 2, transactional=True), 0)
        assert log.replica.first_unstable_offset == log.last_stable_offset == 0
        with pytest.raises(InvalidTxnStateError):
            log.append_as_leader(produced(1, 2), 0)
        log.append_as_leader(produced(1, 2, transactional=True), 0)
        assert log.last_stable_offset == 0
        log.append_as_leader(marker(commit=False), 0, AppendOrigin.COORDINATOR)
        assert log.replica.first_unstable_offset is None
        assert log.last_stable_offset == log.log_end_offset == 4
        assert [(t.first_offset, t.last_offset) for t in log.reader.aborted_transactions(0, 4)] == [
            (0, 3)
        ]
        log.append_as_leader(marker(commit=False), 0, AppendOrigin.COORDINATOR)
        assert len(log.reader.aborted_transactions(0, 5)) == 1
        assert log.last_stable_offset == 5
        assert at(log, 3) is None  # cached batches stay if the epoch is unchanged


def test_a_marker_of_an_older_coordinator_is_fenced() -> None:
    """testZombieCoordinatorFenced (F-195); from replication it is taken."""
    with Disk().open() as log:
        log.append_as_leader(marker(commit=True, coordinator_epoch=5), 0, AppendOrigin.COORDINATOR)
        with pytest.raises(TransactionCoordinatorFencedError):
            log.append_as_leader(
                marker(commit=True, coordinator_epoch=4), 0, AppendOrigin.COORDINATOR
            )
        log.replica.append_as_follower(marker(commit=True, coordinator_epoch=4, base_offset=1))
        assert at(log, 0, epoch=3) is None
        old = marker(commit=True, producer_epoch=2, coordinator_epoch=6)
        with pytest.raises(InvalidProducerEpochError):
            log.append_as_leader(old, 0, AppendOrigin.COORDINATOR)


def test_the_high_watermark_decides_when_a_transaction_is_stable() -> None:
    """F-197, F-198: a decided transaction holds the LSO until the marker is below the HW."""
    with Disk().open(replicated=True) as log:
        log.append_as_leader(produced(1, 0, transactional=True), 0)
        log.append_as_leader(produced(2, 0, transactional=True), 0)
        log.append_as_leader(marker(commit=True, producer_id=1), 0, AppendOrigin.COORDINATOR)
        assert log.last_stable_offset == 0
        log.replica.update_high_watermark(2)
        assert (log.replica.first_unstable_offset, log.last_stable_offset) == (0, 0)
        log.replica.update_high_watermark(3)
        assert (log.replica.first_unstable_offset, log.last_stable_offset) == (1, 1)
        log.append_as_leader(marker(commit=False, producer_id=2), 0, AppendOrigin.COORDINATOR)
        log.replica.update_high_watermark(4)
        assert (log.replica.first_unstable_offset, log.last_stable_offset) == (None, 4)


def test_expiry() -> None:
    """F-199: without an open transaction, and silent for the whole time by its records."""
    disk = Disk()
    with disk.open(producer_id_expiration_ms=DAY_MS) as log:
        log.append_as_leader(produced(1, 0), 0)
        log.append_as_leader(produced(2, 0, transactional=True), 0)
        log.append_as_leader(produced(3, 0, timestamp=NOW + 1), 0)
        disk.clock.advance(DAY_MS - 1)
        assert log.producers.remove_expired() == 0
        disk.clock.advance(1)
        assert log.producers.remove_expired() == 1
        assert sorted(log.producers.known.producers) == [2, 3]
    disk.clock.advance(1)
    with disk.open(
        clean_shutdown=True, producer_id_expiration_ms=DAY_MS
    ) as log:  # when a snapshot is read, too
        assert sorted(log.producers.known.producers) == [2]


def test_a_cut_opens_the_transaction_of_an_expired_producer_again() -> None:
    """F-198, F-199: its marker is cut off, so its records are not stable."""
    disk = Disk()
    with disk.open(producer_id_expiration_ms=DAY_MS) as log:
        log.append_as_leader(produced(1, 0, transactional=True), 0)
        log.roll()
        log.append_as_leader(produced(1, 1, transactional=True), 0)
        log.append_as_leader(marker(commit=False, producer_id=1), 0, AppendOrigin.COORDINATOR)
        disk.clock.advance(DAY_MS + 1)
        assert log.producers.remove_expired() == 1
        assert log.last_stable_offset == 3
        log.truncate_to(2)
        assert log.last_stable_offset == 0
        assert log.producers.known.producers[1].last_sequence == 1


def test_a_cut_below_the_log_start_keeps_no_snapshot_from_being_taken() -> None:
    """F-130: the log starts inside the batch that is cut off."""
    disk = Disk()
    with disk.open() as log:
        log.append_as_leader(produced(1, 0, 4), 0)
        log.delete_records(3)
        log.truncate_to(3)
        assert (log.log_start_offset, log.log_end_offset) == (0, 0)
        log.append_as_leader(produced(1, 0, 2), 0)
    assert disk.bases(".snapshot") == [2]
    with disk.open(clean_shutdown=True) as log:
        assert log.producers.known.producers[1].last_sequence == 1


def test_an_unreadable_snapshot_gives_way_to_the_one_before() -> None:
    """F-130: version, length or checksum wrong → deleted, the next older one, and a replay."""
    disk = Disk()
    with disk.open() as log:
        assert at(log, 0) is None
        log.roll()
        assert at(log, 1) is None
    assert disk.bases(".snapshot") == [1, 2]
    disk.storage.flip(disk.path(f"{2:020d}.snapshot"), 20)
    with disk.open(clean_shutdown=True) as log:
        assert log.producers.known.producers[1].last_sequence == 1
        assert at(log, 2) is None


def test_stray_snapshots_go() -> None:
    """F-202: those that match no segment, but the newest at or past the last base."""
    disk = Disk()
    with disk.open() as log:
        for sequence in range(9):
            assert at(log, sequence) is None
            if sequence in (2, 5):
                log.roll()
    good = disk.read(f"{9:020d}.snapshot")
    for stray in (1, 2, 4, 5, 7, 8):
        disk.write(f"{stray:020d}.snapshot", good)
    disk.open(clean_shutdown=True).close()
    assert disk.bases(".snapshot") == [3, 6, 9]
