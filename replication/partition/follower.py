"""The follower's side: append fetched records, take over watermarks, truncate."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from logstore.common.config import MAX_LONG
from logstore.common.errors import (
    LeadershipEndedError,
    LogClosedError,
    LogMovedError,
    StorageFailedError,
    UnexpectedAppendOffsetError,
)
from logstore.common.types import Buffer
from logstore.kernels import AppendInfo
from logstore.log import PartitionLog
from logstore.manager import LogManager
from logstore.segments.open_files import with_idle_closed
from replication.common.errors import NotLeaderOrFollowerError
from replication.common.messages import EpochEndOffset
from replication.partition.env import TruncationEvent
from replication.partition.replica import Leadership, Replica

logger = get_logger(__name__)


def finish_changes(manager: LogManager, tps: Collection[TopicPartition]) -> None:
    """Finish changes of logs before their leaders learn the log ends: lower the checkpoints of
    truncated ones, and sync what must not wait."""
    with_idle_closed(partial(manager.housekeeper.checkpoint_truncations, tps))
    logs = manager.logs
    for tp in tps:
        log = logs.get(tp)
        if log is None or log.failed:
            continue
        try:
            log.flusher.flush_overdue()
        except LogClosedError:  # moved or deleted since: nothing is left to be done
            continue
        except StorageFailedError as error:  # the log is offline, and its next append says so
            logger.error("%s is not durable: %s", tp, error)


class FollowerSide:
    """Serves the fetcher of the partition. Role changes may come in between."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._tp = replica.tp

    @property
    def syncs_appends(self) -> bool:
        """Whether an append may wait for the disk."""
        log = self._replica.log
        return log is None or log.core.config.flush_messages < MAX_LONG

    def own_end_offset_for(self, epoch: int) -> EpochEndOffset:
        """The end of an epoch in this replica's log (F-208)."""
        return EpochEndOffset(*self._replica.local_log().epochs.end_offset_for(epoch))

    def append(
        self,
        records: Buffer,
        leader_epoch: int,
        leader_log_start: int = -1,
        leader_high_watermark: int = MAX_LONG,
    ) -> AppendInfo:
        """Append records that were fetched under ``leader_epoch`` (F-164, R-119).

        Args:
            leader_log_start: where the leader's log began when it answered; −1 if not known.
            leader_high_watermark: of the same answer, for who does not take the leader's word.

        Raises:
            NotLeaderOrFollowerError: the role has changed; nothing was appended.
            UnexpectedAppendOffsetError, RecordRejectedError: the bytes do not fit this log.
        """
        log = self._following(leader_epoch)
        try:
            return self._append_fetched(log, records, leader_epoch)
        except LogMovedError:
            if not self._replica.has_moved(log):
                raise
            return self.append(records, leader_epoch, leader_log_start, leader_high_watermark)
        except UnexpectedAppendOffsetError as error:
            with self._replica.lock:
                self._following(leader_epoch)
                end = log.log_end_offset
                straddles = error.first_offset < end <= error.last_offset
                needed = max(log.log_start_offset, leader_log_start)
                if needed < end or not straddles:
                    raise
                # The leader's log begins inside a batch after DeleteRecords (KAFKA-6975). Our
                # records lie below that, and may even differ from those that the leader deleted.
                self._replica.call_storage(
                    log.maintenance.truncate_fully_and_start_at, error.first_offset
                )
                return self._append_fetched(log, records, leader_epoch)

    def _append_fetched(self, log: PartitionLog, records: Buffer, leader_epoch: int) -> AppendInfo:
        try:
            return self._replica.call_storage(log.replica.append_as_follower, records, leader_epoch)
        except LeadershipEndedError as error:
            raise NotLeaderOrFollowerError(str(error)) from error

    def _following(self, leader_epoch: int) -> PartitionLog:
        log, role = self._replica.local_log(), self._replica.role
        if type(role) is Leadership or role.leader_epoch != leader_epoch:
            raise NotLeaderOrFollowerError(
                f"{self._tp}: not a follower in epoch {leader_epoch} any more"
            )
        return log

    def follow(self, leader_high_watermark: int, leader_log_start: int, leader_epoch: int) -> bool:
        """Take over the leader's high watermark and log start.

        True if our high watermark changed (R-26).
        """
        with self._replica.lock:
            log = self._following(leader_epoch)
            before = log.core.snapshot
            log.replica.update_high_watermark(leader_high_watermark)
            if leader_log_start > before.log_start_offset:
                log.replica.maybe_increment_log_start_offset(leader_log_start)
            after = log.core.snapshot
            return (
                after.high_watermark != before.high_watermark
                or after.log_start_offset != before.log_start_offset
            )

    def flush_overdue(self) -> None:
        """Sync records that a lower ``flush.messages`` no longer allows to be unsynced.

        Raises:
            KafkaStorageError, ResourceBusyError: they are not durable.
        """
        self._replica.call_storage(self._replica.local_log().flusher.flush_overdue)

    def epoch_not_known(self, epoch: int) -> None:
        """The leader knows neither our latest epoch nor a later one, and so not where our log may
        differ from its own: what is above our high watermark goes (R-132)."""

    def logs_meet(self, leader_epoch: int) -> None:
        """The leader has all that our log has: what it has more is fetched."""

    def truncate_to(self, offset: int, leader_epoch: int) -> None:
        """Truncate the log (R-138).

        The caller must update the checkpoints before the next fetch
        (``Housekeeper.checkpoint_truncations``).
        """
        with self._replica.lock:
            log = self._following(leader_epoch)
            before = log.log_end_offset
            self._replica.call_storage(log.truncate_to, offset)
            self._note_truncation(before, log)

    def truncate_fully_and_start_at(self, offset: int, leader_epoch: int) -> None:
        """As ``truncate_to``."""
        with self._replica.lock:
            log = self._following(leader_epoch)
            before = log.log_end_offset
            self._replica.call_storage(log.maintenance.truncate_fully_and_start_at, offset)
            self._note_truncation(before, log)

    def take_end(self, offset: int, leader_epoch: int) -> None:
        """Cut what lies above the end of the leader's log, since it refuses our offset (R-129).

        As ``truncate_to``.
        """
        self.truncate_to(offset, leader_epoch)

    def take_start(self, offset: int, leader_end: int, leader_epoch: int) -> None:
        """Begin again at the start of the leader's log, which is above our end (R-129).

        As ``truncate_to``.
        """
        self.truncate_fully_and_start_at(offset, leader_epoch)

    def begin_at_start(self, cut: int, leader_start: int, leader_epoch: int) -> None:
        """Begin again at the start of the leader's log: ours differs from ``cut`` on, which is not
        above it.

        As ``truncate_to``.
        """
        self.truncate_fully_and_start_at(leader_start, leader_epoch)

    def _note_truncation(self, before: int, log: PartitionLog) -> None:
        after = log.log_end_offset
        if after < before:
            now = self._replica.env.now_ms()
            event = TruncationEvent(self._tp, now, self._replica.leader_epoch, before, after)
            self._replica.env.truncations.append(event)
