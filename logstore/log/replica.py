"""``ReplicaLog``: the methods of a log for managers and replicas.

Leader epochs, watermarks, appends of a follower, and the periodic work of a manager.
"""

from __future__ import annotations

from itertools import pairwise
from operator import index

from logstore.common.config import MAX_LONG, LogConfig
from logstore.common.errors import InvariantError, LogstoreError
from logstore.common.shield import shielded
from logstore.common.types import Buffer
from logstore.format.index_entry import AbortedTxn
from logstore.kernels import AppendInfo
from logstore.log.core.news import News
from logstore.log.core.snapshot import LogView
from logstore.log.partition_log import PartitionLog
from logstore.log.reading.reading import FetchData
from logstore.log.upkeep.replacing import LogReplacing
from logstore.log.writing.producing import is_id_of_name
from logstore.log.writing.recent import RecentAppends, RecentBudget
from logstore.segments.producer_state import (
    ProducerEntry,
    ProducerStateManager,
    VerificationStateEntry,
)


class ReplicaLog(PartitionLog):
    """A ``PartitionLog`` of a replica or of a ``LogManager``."""

    def crash(self) -> None:
        """Release files without flushing or trimming, as the end of the process does."""
        self._abandon()

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of an open or unreplicated transaction, not below the log start (F-198)."""
        with self._writer.lock:
            first = self._writer.producers.first_unstable_offset
        return None if first is None else max(first, self.log_start_offset)

    @property
    def restarting(self) -> bool:
        """Whether a truncation drops all records and is not durable yet, so that a crash would
        bring the old ones back.
        """
        return self._maintenance.restarting

    @property
    def kept_end_offset(self) -> int:
        """The log end offset, except records that ``flush.messages`` does not count before their
        sync.
        """
        end, flush_at = self._core.snapshot.log_end_offset, self._writer.flush_at
        return end if end <= flush_at else flush_at

    @property
    def last_flush_ms(self) -> int:
        return self._flusher.last_flush_ms

    @property
    def news(self) -> News:
        """Notices of the next change that a reader could see."""
        return self._core.news

    @property
    def producers(self) -> ProducerStateManager:
        return self._writer.producers

    def mark_failed(self, failure: LogstoreError) -> None:
        """Refuse further work, because another log of the same directory failed."""
        self._core.refuse(failure)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """``(epoch, end offset)`` for OffsetsForLeaderEpoch (F-208)."""
        with self._writer.lock:
            return self._writer.epochs.end_offset_for(epoch, self._writer.log_end_offset)

    def epoch_for_offset(self, offset: int) -> int | None:
        with self._writer.lock:
            return self._writer.epochs.epoch_for_offset(offset)

    @shielded
    def assign_epoch(self, epoch: int, start_offset: int | None = None) -> None:
        """Record a new leadership, before its first record; durable on return (F-219).

        The epoch of a log without records is durable before its first record is: a start would drop
        it (F-205), and a thousand new logs do not wait for a thousand files.
        """
        writer = self._writer
        with writer.lock:
            self._core.check()
            start = writer.log_end_offset if start_offset is None else start_offset
            writer.epochs.assign(epoch, start, durable=False)
            is_empty = start == writer.log_end_offset == self.log_start_offset
        if not is_empty:
            self._flusher.save_epochs()

    def lead(self, leader_epoch: int) -> int:
        """From now on accept only appends of the leader in this epoch. Returns the log end offset.

        On return no append of another role is under way. ``follow_leader`` is the other role.
        """
        writer = self._writer
        with writer.lock:
            self._core.check()
            writer.take_role_locked(leader_epoch, leads=True)
            return writer.log_end_offset

    def follow_leader(self, leader_epoch: int) -> None:
        """From now on accept only batches that were fetched in this epoch."""
        with self._writer.lock:
            self._core.check()
            self._writer.take_role_locked(leader_epoch, leads=False)
            self._writer.producers.end_verifications()

    def keep_recent(self, budget: RecentBudget | None) -> None:
        """Keep later appends as leader in memory for a while; None keeps none."""
        writer = self._writer
        with writer.lock:
            if writer.recent is not None:
                writer.recent.clear()
            writer.recent = None if budget is None else RecentAppends(budget)

    def read_to_send(
        self, start_offset: int, max_bytes: int, *, minimum_one: bool, up_to: int, committed: bool
    ) -> FetchData:
        """As ``read``, but many bytes stay in their file where the storage has descriptors: they
        are ``FetchData.file_slice`` and not ``data``.

        The slice shows what the log had at the time of the read, whatever is cut, compacted,
        deleted or closed later.
        """
        return self._readers.read(
            start_offset, max_bytes, minimum_one, up_to, committed, by_slice=True
        )

    def read_recent(
        self, start_offset: int, up_to: int, max_bytes: int, *, whole: bool = False
    ) -> bytes | None:
        """What ``read`` would return, in whole appends, if they are in memory; otherwise None.

        With ``whole`` also None if there are more records.
        """
        recent, core = self._writer.recent, self._core
        if recent is None:
            return None
        seen = core.snapshot
        limit = min(up_to, seen.log_end_offset)
        found = recent.read(start_offset, limit, max_bytes, whole=whole)
        # As in any read, it counts only if nothing was removed during it.
        if core.snapshot.version != seen.version or core.unreadable is not None:
            return None
        return found if start_offset >= seen.log_start_offset else None

    def append_as_follower(self, data: Buffer, leader_epoch: int | None = None) -> AppendInfo:
        """Append batches fetched from a leader: offsets, epochs and bytes stay (F-164).

        A partial batch at the end of ``data`` is left out (F-163). ``leader_epoch`` of the leader
        that sent them: no batch may have a later one, and the replica must still follow it.

        Raises:
            LeadershipEndedError: it does not, since ``lead`` or ``follow_leader``.
            UnexpectedAppendOffsetError: the first offset is below the log end offset.
            RecordRejectedError: offsets do not ascend, leader epochs fall, or a checksum is wrong.
        """
        info = self._writer.append_as_follower(leader_epoch, data)
        self._flusher.after_append(info.last_offset)
        return info

    def configure(self, config: LogConfig) -> None:
        """As ``reconfigure``, without the sync: records that ``flush.messages`` no longer allows to
        be unsynced wait for ``flush_what_is_due``, and are not in ``kept_end_offset``.
        """
        self._maintenance.reconfigure(config)

    def flush_what_is_due(self) -> None:
        """Sync what ``flush.messages`` does not allow to wait, after an append that could not sync.

        Raises:
            StorageFailedError, ResourceBusyError: the records are in the log but not durable.
        """
        self._flusher.flush_what_is_due()

    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark, clamped to [log start, log end]. Returns the new value (R-26)."""
        writer = self._writer
        with writer.lock:
            self._core.check()
            writer.set_high_watermark_locked(
                min(max(offset, writer.log_start_offset), writer.log_end_offset)
            )
            return writer.high_watermark

    def maybe_increment_high_watermark(self, offset: int) -> int | None:
        """Advance the high watermark. Returns the old value if it moved (R-23)."""
        writer = self._writer
        with writer.lock:
            self._core.check()
            end = writer.log_end_offset
            if offset > end:
                raise ValueError(f"high watermark {offset} is above the log end {end}")
            old = writer.high_watermark if writer.replicated else end
            if offset <= old:
                return None
            writer.set_high_watermark_locked(offset)
            return old

    @shielded
    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        """Raise the log start. The next retention pass removes segments below it (F-286).

        Raises:
            OffsetOutOfRangeError: above the high watermark.
        """
        with self._writer.lock:
            return self._raise_log_start_locked(offset)

    def truncate_fully_and_start_at(self, offset: int, log_start_offset: int | None = None) -> None:
        """Drop all records. The log becomes empty at ``offset`` (F-269 … F-277).

        Raises:
            ValueError: below 0, or above 2**63 - 1.
        """
        start = offset if log_start_offset is None else log_start_offset
        if not (0 <= index(offset) <= MAX_LONG and 0 <= index(start) <= MAX_LONG):
            raise ValueError(f"cannot start at offset {offset} with log start {start}")
        self._maintenance.truncate_fully_and_start_at(offset, start)

    @shielded
    def take_producer_snapshot(self) -> None:
        """Write the state of the producers at the log end, durably."""
        writer = self._writer
        with self._flusher.flush_lock, self._core.doing("write producer snapshot"):
            with writer.lock:
                self._core.check()
                writer.producers.map_end_offset = writer.log_end_offset
                offset = writer.producers.take_snapshot(sync=False)
            if offset is not None:
                writer.producers.sync_snapshot(offset)
                self._core.storage.sync_dir(self.directory)

    def begin_verification(
        self, producer_id: int, producer_epoch: int, sequence: int, *, bumps_epoch: bool
    ) -> VerificationStateEntry | None:
        """See ``ProducerStateManager.begin_verification``."""
        with self._writer.lock:
            return self._writer.producers.begin_verification(
                producer_id,
                producer_epoch,
                sequence,
                bumps_epoch=bumps_epoch,
                now_ms=self._core.clock.wall_ms(),
            )

    def producer_entries(self) -> list[ProducerEntry]:
        """Copies of the state of each producer, by producer id."""
        with self._writer.lock:
            known = self._writer.producers.producers
            return [known[producer_id].copy() for producer_id in sorted(known)]

    def largest_producer_id(self) -> int:
        """Of those that a cluster hands out; −1 without any."""
        with self._writer.lock:
            known = self._writer.producers.producers
            return max((each for each in known if not is_id_of_name(each)), default=-1)

    def largest_coordinator_epoch(self) -> int:
        """Of the last markers of all producers; −1 without any."""
        with self._writer.lock:
            known = self._writer.producers.producers.values()
            return max((each.coordinator_epoch for each in known), default=-1)

    def remove_expired_producers(self) -> int:
        with self._writer.lock:
            return self._writer.producers.remove_expired(self._core.clock.wall_ms())

    # -- for the cleaner -----------------------------------------------------------------------

    @property
    def replacing(self) -> LogReplacing:
        """Replaces segments by rewritten ones."""
        return self._replacing

    def last_producer_batches(self) -> tuple[list[int], dict[int, int]]:
        """What must stay for active producers: the offsets of their last records, and by producer
        id the epoch of producers that are known only by a marker.
        """
        with self._writer.lock:
            producers = list(self._writer.producers.producers.values())
            offsets = [p.batches[-1].last_offset for p in producers if p.batches]
            epochs = {p.producer_id: p.producer_epoch for p in producers if not p.batches}
        return offsets, epochs

    def aborted_between(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """Aborted transactions that overlap ``[start_offset, end_offset)``, below the log start
        too. Kafka's ``collectAbortedTransactions``."""
        found: list[AbortedTxn] = []
        log = LogView(self._core.snapshot)
        for at in range(log.floor(start_offset), len(log)):
            if log[at].segment.txn_index.collect(start_offset, end_offset, found):
                break
        return found

    def flush_epochs(self) -> None:
        """Write the epoch file if the cache has changed (F-207)."""
        self._flusher.save_epochs()

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if the log contradicts itself.

        Tests call this after each step.
        """
        writer = self._writer
        with writer.lock:
            bases = writer.segments.bases
            entries = writer.epochs.entries
            snapshot = self._core.snapshot
            end = writer.log_end_offset
            rules = {
                "log start <= high watermark <= log end": (
                    writer.log_start_offset <= writer.committed_offset <= end
                ),
                "recovery point <= log end": writer.recovery_point <= end,
                "segments ascend": bases == sorted(set(bases)),
                "epochs ascend": all(
                    a.epoch < b.epoch and a.start_offset < b.start_offset
                    for a, b in pairwise(entries)
                ),
                "readers see the log as it is": self.failed
                or (
                    (snapshot.log_start_offset, snapshot.log_end_offset, snapshot.high_watermark)
                    == (writer.log_start_offset, end, writer.committed_offset)
                ),
            }
            broken = [rule for rule, holds in rules.items() if not holds]
            if broken:
                raise InvariantError(f"{self}: not {', not '.join(broken)}")
