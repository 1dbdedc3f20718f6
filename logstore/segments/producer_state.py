"""The state of a log's producers: sequences, open transactions, snapshots.

Matches Kafka's ``ProducerStateManager``, ``ProducerAppendInfo`` and ``ProducerStateEntry``
(rules F-182 … F-202). The owner holds its lock around every call.
"""

from __future__ import annotations

import errno
import os
from bisect import insort
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from checkpoints.files import UnusableFileError
from logstore.common.config import MAX_INT
from logstore.common.errors import (
    CorruptSnapshotError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from logstore.format import filenames
from logstore.format.header import add_sequence
from logstore.format.producer_snapshot import (
    ProducerSnapshotEntry,
    decode_snapshot,
    encode_snapshot,
    snapshot_size,
)
from logstore.storage.base import Storage

MAX_EPOCH = 2**15 - 1
BATCHES_TO_RETAIN = 5  # how far back a retry is recognised (F-182)
_SMALL_SNAPSHOT = 64 << 10  # bytes: with more than 1,400 producers it takes two reads


class AppendOrigin(Enum):
    """The origin of an append, which decides the checks (F-192)."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"
    RAFT_LEADER = "raft leader"


class TransactionCheck(Enum):
    """The demand of a leader on transactional batches beyond the rules of the log."""

    NONE = "none"
    # A batch that begins a transaction: the coordinator confirmed that the partition is in it.
    VERIFIED = "verified"
    # A marker: its epoch is above that of the transaction it ends. Each transaction has an epoch of
    # its own then, so a marker that comes late does not end the next one.
    NEWER_EPOCH = "newer epoch"


@dataclass(slots=True, eq=False)
class VerificationStateEntry:
    """A producer may begin a transaction here, once ``confirmed``; gone with its next marker, or
    when it was not asked for again for as long as producers are remembered."""

    asked_ms: int
    lowest_sequence: int
    """The first one of the producer's batches here. While it is refused, those after it are too:
    otherwise one of them would be the first of a producer that nobody knows, and be accepted. Once
    the log has a batch of the epoch, the next sequence follows from that."""
    bumps_epoch: bool
    """Whether each transaction has an epoch of its own, and begins it with sequence 0."""
    confirmed: bool = False


NONE_ASKED: Mapping[int, VerificationStateEntry] = MappingProxyType({})


class ProducerBatch(NamedTuple):
    """The fields of one batch that producer state needs.

    ``marker`` is (is commit, coordinator epoch).
    """

    producer_id: int
    producer_epoch: int
    base_sequence: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    transactional: bool
    marker: tuple[bool, int] | None = None
    control: bool = False

    @property
    def last_sequence(self) -> int:
        """The last sequence: it counts offsets and wraps from 2³¹−1 to 0 (F-63)."""
        if self.base_sequence < 0:
            return -1
        return add_sequence(self.base_sequence, self.last_offset - self.base_offset)


class BatchMetadata(NamedTuple):
    """A remembered batch, enough to answer a retry with its old offsets (F-183)."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        first = self.last_sequence - self.offset_delta
        return first + MAX_INT + 1 if first < 0 else first


class CompletedTxn(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


@dataclass(slots=True)
class ProducerEntry:
    """State of one producer id (F-182)."""

    producer_id: int
    producer_epoch: int = -1
    coordinator_epoch: int = -1
    last_timestamp: int = -1
    current_txn_first_offset: int = -1
    batches: deque[BatchMetadata] = field(default_factory=lambda: deque(maxlen=BATCHES_TO_RETAIN))

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1

    def is_in_transaction(self, producer_epoch: int) -> bool:
        """Whether a transaction of that epoch is open."""
        return self.current_txn_first_offset >= 0 and self.producer_epoch == producer_epoch

    def copy(self) -> ProducerEntry:
        return ProducerEntry(
            self.producer_id,
            self.producer_epoch,
            self.coordinator_epoch,
            self.last_timestamp,
            self.current_txn_first_offset,
            deque(self.batches, BATCHES_TO_RETAIN),
        )

    def maybe_new_epoch(self, epoch: int) -> None:
        if epoch != self.producer_epoch:
            self.batches.clear()
            self.producer_epoch = epoch

    def find_duplicate(self, batch: ProducerBatch) -> BatchMetadata | None:
        """A remembered batch of the same epoch with the same sequences (F-183)."""
        if batch.producer_epoch != self.producer_epoch:
            return None
        wanted = (batch.base_sequence, batch.last_sequence)
        for known in self.batches:
            if (known.first_sequence, known.last_sequence) == wanted:
                return known
        return None


class ProducerAppend:
    """The effect of one append on one producer, which ``update`` puts in place."""

    def __init__(
        self,
        current: ProducerEntry | None,
        producer_id: int,
        origin: AppendOrigin,
        check: TransactionCheck = TransactionCheck.NONE,
        verifications: Mapping[int, VerificationStateEntry] = NONE_ASKED,
    ):
        self.entry = current.copy() if current else ProducerEntry(producer_id)
        self._known = current is not None
        self._origin = origin
        self._check = check
        self._verifications = verifications  # by epoch
        self.ended_epoch = -1  # what was confirmed for it, or an earlier one, counts no more
        self.started: list[tuple[int, int]] = []  # (producer id, first offset) of new transactions

    def append(self, batch: ProducerBatch) -> CompletedTxn | None:
        """Check and note one batch. Returns the completed transaction if the batch is a marker.

        Raises:
            InvalidProducerEpochError, OutOfOrderSequenceError, InvalidTxnStateError,
            TransactionCoordinatorFencedError: see F-184 … F-195.
        """
        if batch.control:
            return self._append_marker(batch) if batch.marker is not None else None
        self._check_epoch(batch)
        self._check_sequence(batch)
        if self._check is TransactionCheck.VERIFIED and batch.transactional:
            self._check_verified(batch)
        entry = self.entry
        first_offset = batch.base_offset
        in_transaction = entry.current_txn_first_offset >= 0
        if (
            in_transaction
            and not batch.transactional
            and self._origin is not AppendOrigin.REPLICATION
        ):
            raise InvalidTxnStateError(
                f"non-transactional write of producer {batch.producer_id} at offset "
                f"{first_offset}, which has an open transaction"
            )
        entry.maybe_new_epoch(batch.producer_epoch)
        entry.batches.append(
            BatchMetadata(
                batch.last_sequence,
                batch.last_offset,
                batch.last_offset - batch.base_offset,
                batch.max_timestamp,
            )
        )
        entry.last_timestamp = batch.max_timestamp
        if batch.transactional and not in_transaction:
            entry.current_txn_first_offset = first_offset
            self.started.append((batch.producer_id, first_offset))
        return None

    def _check_epoch(self, batch: ProducerBatch) -> None:
        known = self.entry.producer_epoch
        if batch.producer_epoch < known and self._origin is not AppendOrigin.REPLICATION:
            raise InvalidProducerEpochError(
                f"epoch {batch.producer_epoch} of producer {batch.producer_id} is below the "
                f"known epoch {known}"
            )

    def _check_sequence(self, batch: ProducerBatch) -> None:
        if self._origin is not AppendOrigin.CLIENT or batch.base_sequence < 0:
            return
        entry, first = self.entry, batch.base_sequence
        asked = self._verifications.get(batch.producer_epoch)
        # A batch of this epoch says more than the question, which may be that of a late copy: of a
        # batch of an earlier transaction in the same epoch.
        has_begun = batch.producer_epoch == entry.producer_epoch and bool(entry.batches)
        if (
            asked is not None
            and not has_begun
            and (first > asked.lowest_sequence or (asked.bumps_epoch and first != 0))
        ):
            raise OutOfOrderSequenceError(
                f"producer {batch.producer_id} epoch {batch.producer_epoch}: sequence {first} "
                "without the ones before it"
            )
        if batch.producer_epoch != entry.producer_epoch:
            if first != 0 and entry.producer_epoch >= 0:
                raise OutOfOrderSequenceError(
                    f"producer {batch.producer_id} starts epoch {batch.producer_epoch} with "
                    f"sequence {first} instead of 0"
                )
            return
        if not self._known:
            return  # nothing was known before this append: any sequence (F-184)
        last = entry.last_sequence
        if first == last + 1 or (last == MAX_INT and first == 0):
            return
        raise OutOfOrderSequenceError(
            f"producer {batch.producer_id} epoch {batch.producer_epoch}: sequence {first} after "
            f"{last}"
        )

    def _check_verified(self, batch: ProducerBatch) -> None:
        if self.entry.is_in_transaction(batch.producer_epoch):
            return
        known = self._verifications.get(batch.producer_epoch)
        if known is None or not known.confirmed:
            raise InvalidTxnStateError(
                f"producer {batch.producer_id} epoch {batch.producer_epoch}: its coordinator did "
                "not confirm that a transaction may begin here"
            )

    def _append_marker(self, batch: ProducerBatch) -> CompletedTxn | None:
        assert batch.marker is not None
        is_commit, coordinator_epoch = batch.marker
        self._check_epoch(batch)
        entry = self.entry
        # Above the last epoch there is none: a transaction under it, which Kafka may have begun by
        # mistake, is ended under the same.
        if (
            self._check is TransactionCheck.NEWER_EPOCH
            and batch.producer_epoch != MAX_EPOCH
            and entry.is_in_transaction(batch.producer_epoch)
        ):
            raise InvalidProducerEpochError(
                f"a marker of epoch {batch.producer_epoch} of producer {batch.producer_id} ends an "
                "earlier transaction than the open one"
            )
        if (
            coordinator_epoch < entry.coordinator_epoch
            and self._origin is not AppendOrigin.REPLICATION
        ):
            raise TransactionCoordinatorFencedError(
                f"marker of coordinator epoch {coordinator_epoch} for producer "
                f"{batch.producer_id}, known is {entry.coordinator_epoch}"
            )
        entry.maybe_new_epoch(batch.producer_epoch)
        first_offset = entry.current_txn_first_offset
        entry.current_txn_first_offset = -1
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp = batch.max_timestamp
        newer = self._check is TransactionCheck.NEWER_EPOCH
        self.ended_epoch = batch.producer_epoch - (1 if newer else 0)
        if first_offset < 0:
            return None
        return CompletedTxn(batch.producer_id, first_offset, batch.last_offset, not is_commit)


class ProducerStateManager:
    """All producers of one log, with snapshots in its directory."""

    def __init__(self, storage: Storage, directory: str, expiration_ms: int) -> None:
        self._storage = storage
        self.directory = directory
        self.expiration_ms = expiration_ms
        self.producers: dict[int, ProducerEntry] = {}
        self._ongoing: list[tuple[int, int]] = []  # (first offset, producer id), ascending
        self._unreplicated: list[tuple[int, int]] = []  # (first offset, last offset), ascending
        self.map_end_offset = 0
        self.last_snapshot_offset = 0
        self.snapshots: list[int] = []  # offsets of the snapshot files, ascending
        # By producer id and epoch. A batch of another epoch has no say in this one's.
        self._verifications: dict[int, dict[int, VerificationStateEntry]] = {}
        self._forgot = False  # some have expired, so there was more state at earlier offsets

    # -- snapshots -----------------------------------------------------------------------------

    def set_snapshots(self, offsets: Iterable[int]) -> None:
        self.snapshots = sorted(offsets)

    def snapshot_path(self, offset: int) -> str:
        return os.path.join(
            self.directory, filenames.segment_file_name(offset, filenames.SNAPSHOT_SUFFIX)
        )

    def take_snapshot(self, *, sync: bool) -> int | None:
        """Write ``<map end offset>.snapshot`` if the state moved since the last one (F-130).

        Unlike Kafka the file is emptied first, so a shorter snapshot leaves no tail (F-129).
        Returns its offset, or None if none was due.
        """
        if self.map_end_offset <= self.last_snapshot_offset:
            return None
        offset = self.map_end_offset
        self._write_snapshot(offset, sync)
        self.last_snapshot_offset = offset
        return offset

    def take_empty_snapshot(self, offset: int) -> None:
        if offset not in self.snapshots:
            self._write_snapshot(offset, sync=False)

    def _write_snapshot(self, offset: int, sync: bool) -> None:
        data = encode_snapshot([_to_snapshot(entry) for entry in self.producers.values()])
        path = self.snapshot_path(offset)
        if sync:
            self._storage.write_file(path, data)
        else:
            with closing(self._storage.open(path, create=True)) as file:
                file.truncate(0)
                file.write_at(0, data)
        if offset not in self.snapshots:
            insort(self.snapshots, offset)

    def sync_snapshot(self, offset: int) -> None:
        """Make an earlier snapshot durable. It may have been deleted since."""
        with (
            suppress(FileNotFoundError),
            closing(self._storage.open(self.snapshot_path(offset))) as file,
        ):
            file.sync()

    def remove_snapshot(self, offset: int) -> None:
        path = self.forget_snapshot(offset)
        if path is not None:
            with suppress(FileNotFoundError):
                self._storage.remove(path)

    def forget_snapshot(self, offset: int) -> str | None:
        """Forget a snapshot. Returns its path, or None if there is none."""
        if offset not in self.snapshots:
            return None
        self.snapshots.remove(offset)
        if offset == self.last_snapshot_offset:  # otherwise the next one would never be due (F-130)
            self.last_snapshot_offset = self.snapshots[-1] if self.snapshots else 0
        return self.snapshot_path(offset)

    def mark_deleted(self, path: str) -> str | None:
        """Rename a snapshot to ``.deleted`` for a later unlink. Returns the new path (F-285)."""
        try:
            self._storage.rename(path, path + filenames.DELETED_SUFFIX)
        except FileNotFoundError:
            return None
        return path + filenames.DELETED_SUFFIX

    def remove_stray_snapshots(self, segment_bases: list[int]) -> None:
        """Drop snapshots without a segment, except the newest at or past the last base (F-202)."""
        bases = set(segment_bases)
        strays = [offset for offset in self.snapshots if offset not in bases]
        largest_base = max(bases, default=0)
        keep = strays[-1] if strays and strays[-1] >= largest_base else None
        for offset in strays:
            if offset != keep:
                self.remove_snapshot(offset)

    def truncate_and_reload(self, log_start_offset: int, log_end_offset: int, now_ms: int) -> None:
        """Drop snapshots outside the log; reload the newest if the end moved (F-201, step 2).

        If none lies above the log start, the newest at or below it stays. A producer is known until
        it expires, also if all its records are deleted.
        """
        self._remove_outside(log_start_offset, log_end_offset)
        if self.map_end_offset != log_end_offset:
            self.clear()
            self._load(log_start_offset, now_ms)
        else:
            self.on_log_start_changed(log_start_offset)

    def cut_empty(self, log_start_offset: int, log_end_offset: int) -> None:
        """As ``truncate_and_reload`` of a state without a producer, which never had one either."""
        self._remove_outside(log_start_offset, log_end_offset)
        self.map_end_offset = log_end_offset
        self.last_snapshot_offset = self.snapshots[-1] if self.snapshots else log_start_offset

    def _remove_outside(self, log_start_offset: int, log_end_offset: int) -> None:
        for offset in [each for each in self.snapshots if each > log_end_offset]:
            self.remove_snapshot(offset)
        for offset in self.snapshots[:-1]:
            if offset <= log_start_offset:
                self.remove_snapshot(offset)

    def load_for_replay(self, offset: int, now_ms: int) -> list[int]:
        """Load the newest readable snapshot as a base for a replay, or start empty at ``offset``.

        The files stay as they are. Returns the offsets of those that cannot be read.
        """
        unreadable: list[int] = []
        self._load(offset, now_ms, unreadable)
        return unreadable

    def _load(
        self, log_start_offset: int, now_ms: int, unreadable: list[int] | None = None
    ) -> None:
        while self.snapshots:
            offset = self.snapshots[-1]
            try:
                entries = self._read_snapshot(offset)
            except (CorruptSnapshotError, FileNotFoundError):  # the next older one is tried (F-130)
                if unreadable is None:
                    self.remove_snapshot(offset)
                else:
                    unreadable.append(self.snapshots.pop())
                continue
            for stored in entries:
                entry = _from_snapshot(stored)
                if self._expired(entry, now_ms):
                    self._forgot = True
                else:
                    self._install(entry)
            self.last_snapshot_offset = self.map_end_offset = offset
            return
        self.last_snapshot_offset = self.map_end_offset = log_start_offset

    def _read_snapshot(self, offset: int) -> list[ProducerSnapshotEntry]:
        path = self.snapshot_path(offset)
        try:
            data = self._storage.read_file(path, _SMALL_SNAPSHOT)
        except UnusableFileError as error:
            if error.errno != errno.EFBIG:
                raise CorruptSnapshotError(path, 0, error.reason) from error
            data = self._read_large(path)
        return decode_snapshot(data, path)

    def _read_large(self, path: str) -> bytes:
        """Read a large snapshot. If its size contradicts its header, only the header is read."""
        with closing(self._storage.open(path, writable=False)) as file:
            header = file.read_at(0, _SMALL_SNAPSHOT)
            size, actual = snapshot_size(header, path), file.size()
            if actual != size:
                raise CorruptSnapshotError(path, min(size, actual), f"{actual} bytes, not {size}")
            return header + file.read_at(len(header), size - len(header))

    def _install(self, entry: ProducerEntry) -> None:
        self.producers[entry.producer_id] = entry
        if entry.current_txn_first_offset >= 0:
            insort(self._ongoing, (entry.current_txn_first_offset, entry.producer_id))

    # -- state ---------------------------------------------------------------------------------

    @property
    def empty(self) -> bool:
        return not self.producers and not self._unreplicated

    @property
    def always_empty(self) -> bool:
        """Whether there was no producer at any earlier offset either.

        A producer that has expired may have had an open transaction, which a truncation opens
        again.
        """
        return self.empty and not self._forgot

    def clear(self) -> None:
        self.producers.clear()
        self._verifications.clear()
        self._ongoing.clear()
        self._unreplicated.clear()
        self.map_end_offset = 0

    def truncate_fully_and_start_at(self, offset: int) -> None:
        self.clear()
        for snapshot in list(self.snapshots):
            self.remove_snapshot(snapshot)
        self.last_snapshot_offset = 0
        self.map_end_offset = offset

    def begin_verification(
        self,
        producer_id: int,
        producer_epoch: int,
        sequence: int,
        *,
        bumps_epoch: bool,
        now_ms: int,
    ) -> VerificationStateEntry | None:
        """Return what the coordinator is to confirm; None: a transaction of the epoch is open.

        An answer that comes after the transaction was ended confirms nothing that counts.

        Raises:
            InvalidProducerEpochError: the log has records or a marker of a later epoch.
        """
        entry = self.producers.get(producer_id)
        if entry is not None and entry.is_in_transaction(producer_epoch):
            return None
        if entry is not None and producer_epoch < entry.producer_epoch:
            raise InvalidProducerEpochError(
                f"epoch {producer_epoch} of producer {producer_id} is below the known epoch "
                f"{entry.producer_epoch}"
            )
        of_producer = self._verifications.setdefault(producer_id, {})
        known = of_producer.get(producer_epoch)
        if known is None:
            known = VerificationStateEntry(now_ms, sequence, bumps_epoch)
            of_producer[producer_epoch] = known
        known.asked_ms = now_ms
        known.lowest_sequence = min(known.lowest_sequence, sequence)
        return known

    def take_over(self, other: ProducerStateManager) -> None:
        """Go on with the state of another log, which this one replaces, and which has the same end:
        some of it may be from records that are deleted."""
        self.producers = other.producers
        self._ongoing, self._unreplicated = other._ongoing, other._unreplicated
        self._verifications, self._forgot = other._verifications, other._forgot

    def end_verifications(self) -> None:
        """Drop what coordinators confirmed: another leader may append markers now."""
        self._verifications.clear()

    def prepare(
        self,
        producer_id: int,
        origin: AppendOrigin,
        check: TransactionCheck = TransactionCheck.NONE,
    ) -> ProducerAppend:
        """Prepare the checks of an append. Changes nothing yet."""
        verifications = self._verifications.get(producer_id, {})
        known = self.producers.get(producer_id)
        return ProducerAppend(known, producer_id, origin, check, verifications)

    def update(self, append: ProducerAppend) -> None:
        """Apply a prepared append after its bytes were written."""
        entry = append.entry
        old = self.producers.get(entry.producer_id)
        if entry.producer_epoch < 0 and not entry.batches and old is None:
            return  # it had control batches alone, of no transaction
        decided = old is not None and old.current_txn_first_offset not in (
            -1,
            entry.current_txn_first_offset,
        )
        if old is not None and decided:
            self._ongoing.remove((old.current_txn_first_offset, old.producer_id))
        self.producers[entry.producer_id] = entry
        self._forget_verifications(append)
        ongoing = (entry.current_txn_first_offset, entry.producer_id)
        if entry.current_txn_first_offset >= 0 and ongoing not in self._ongoing:
            insort(self._ongoing, ongoing)

    def open_transactions(self) -> dict[int, int]:
        """First offset of each open transaction, by producer id."""
        return {producer_id: first_offset for first_offset, producer_id in self._ongoing}

    def last_stable_offset(self, completed: CompletedTxn) -> int:
        """LSO once ``completed`` is decided: first other open transaction, else past it (F-123)."""
        for first_offset, producer_id in self._ongoing:
            if producer_id != completed.producer_id:
                return first_offset
        return completed.last_offset + 1

    def complete(self, completed: CompletedTxn) -> None:
        """Note that a marker is in the log but not yet below the high watermark (F-197)."""
        insort(self._unreplicated, (completed.first_offset, completed.last_offset))

    def on_high_watermark(self, high_watermark: int) -> bool:
        """Whether ``first_unstable_offset`` may have changed."""
        if not self._unreplicated:
            return False
        self._unreplicated = [t for t in self._unreplicated if t[1] >= high_watermark]
        return True

    def on_log_start_changed(self, log_start_offset: int) -> None:
        self._unreplicated = [t for t in self._unreplicated if t[1] >= log_start_offset]
        if self.map_end_offset < log_start_offset:
            self.map_end_offset = log_start_offset
        # Without one the next is due, unlike in Kafka: only it knows producers of deleted records.
        self.last_snapshot_offset = self.snapshots[-1] if self.snapshots else 0

    @property
    def first_unstable_offset(self) -> int | None:
        """Smallest first offset of a transaction that is open or not yet replicated (F-198)."""
        if not self._ongoing and not self._unreplicated:
            return None
        return min(t[0] for t in (*self._ongoing[:1], *self._unreplicated[:1]))

    def _forget_verifications(self, append: ProducerAppend) -> None:
        """Drop those of epochs whose transaction this append began or ended, and earlier ones."""
        producer_id = append.entry.producer_id
        verifications = self._verifications.get(producer_id)
        if verifications is None:
            return
        last = append.entry.producer_epoch if append.started else append.ended_epoch
        for epoch in [each for each in verifications if each <= last]:
            del verifications[epoch]
        if not verifications:
            del self._verifications[producer_id]

    def remove_expired(self, now_ms: int) -> int:
        expired = [e.producer_id for e in self.producers.values() if self._expired(e, now_ms)]
        for producer_id in expired:
            del self.producers[producer_id]
        self._forgot = self._forgot or bool(expired)
        self._remove_old_verifications(now_ms)
        return len(expired)

    def _remove_old_verifications(self, now_ms: int) -> None:
        """Many are asked for and never used: a producer may have no record here at all."""
        for producer_id, of_producer in list(self._verifications.items()):
            for epoch, asked in list(of_producer.items()):
                if now_ms - asked.asked_ms >= self.expiration_ms:
                    del of_producer[epoch]
            if not of_producer:
                del self._verifications[producer_id]

    def _expired(self, entry: ProducerEntry, now_ms: int) -> bool:
        """Whether it has no open transaction, and no new record for long (F-199)."""
        return (
            entry.current_txn_first_offset < 0
            and now_ms - entry.last_timestamp >= self.expiration_ms
        )


def _to_snapshot(entry: ProducerEntry) -> ProducerSnapshotEntry:
    last = entry.batches[-1] if entry.batches else BatchMetadata(-1, -1, 0, -1)
    return ProducerSnapshotEntry(
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        last_sequence=last.last_sequence,
        last_offset=last.last_offset,
        offset_delta=last.offset_delta,
        timestamp=entry.last_timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_first_offset=entry.current_txn_first_offset,
    )


def _from_snapshot(stored: ProducerSnapshotEntry) -> ProducerEntry:
    entry = ProducerEntry(
        stored.producer_id,
        stored.producer_epoch,
        stored.coordinator_epoch,
        stored.timestamp,
        stored.current_txn_first_offset,
    )
    if stored.last_offset >= 0:  # −1: only a marker of it is known (F-128)
        entry.batches.append(
            BatchMetadata(
                stored.last_sequence, stored.last_offset, stored.offset_delta, stored.timestamp
            )
        )
    return entry
