"""What a follower does with what it fetched: append, take over the watermarks, cut."""

from __future__ import annotations

from logstore.common.config import MAX_LONG
from logstore.common.errors import LeadershipEndedError, UnexpectedAppendOffsetError
from logstore.common.types import Buffer
from logstore.kernels import AppendInfo
from logstore.log import ReplicaLog
from replication.common.errors import NotLeaderOrFollowerError
from replication.common.messages import EpochEndOffset
from replication.partition.base import Replica


class Follower(Replica):
    """See the module. The fetcher of the partition is the only caller; orders to change the role
    come in between."""

    @property
    def latest_epoch(self) -> int:
        return self.local_log().latest_epoch

    @property
    def log_end_offset(self) -> int:
        return self.local_log().log_end_offset

    @property
    def log_start_offset(self) -> int:
        return self.local_log().log_start_offset

    @property
    def high_watermark(self) -> int:
        return self.local_log().high_watermark

    @property
    def syncs_appends(self) -> bool:
        """An append may wait for the disk."""
        log = self.log
        return log is None or log.config.flush_messages < MAX_LONG

    def own_end_offset_for(self, epoch: int) -> EpochEndOffset:
        """Where an epoch ends in this replica's log (F-208)."""
        return EpochEndOffset(*self.local_log().end_offset_for_epoch(epoch))

    def append_as_follower(
        self, records: Buffer, leader_epoch: int, leader_log_start: int = -1
    ) -> AppendInfo:
        """Append what was fetched under ``leader_epoch`` (F-164, R-119).

        Args:
            leader_log_start: where the leader's log began when it answered; −1 if not known.

        Raises:
            NotLeaderOrFollowerError: the role changed meanwhile; nothing was appended.
            UnexpectedAppendOffsetError, RecordRejectedError: the bytes do not fit this log.
        """
        log = self._following(leader_epoch)
        try:
            return self._append_fetched(log, records, leader_epoch)
        except UnexpectedAppendOffsetError as error:
            with self._lock:
                self._following(leader_epoch)
                end = log.log_end_offset
                straddles = error.first_offset < end <= error.last_offset
                needed = max(log.log_start_offset, leader_log_start)
                if needed < end or not straddles:
                    raise
                # The log begins inside a batch, after DeleteRecords on the leader (KAFKA-6975);
                # what we have lies below that, and may even differ from what the leader deleted.
                self._storage(log.truncate_fully_and_start_at, error.first_offset)
                return self._append_fetched(log, records, leader_epoch)

    def _append_fetched(self, log: ReplicaLog, records: Buffer, leader_epoch: int) -> AppendInfo:
        try:
            return self._storage(log.append_as_follower, records, leader_epoch)
        except LeadershipEndedError as error:
            raise NotLeaderOrFollowerError(str(error)) from error

    def _following(self, leader_epoch: int) -> ReplicaLog:
        log = self.local_log()
        if self.is_leader or self.leader_epoch != leader_epoch:
            raise NotLeaderOrFollowerError(
                f"{self.tp}: not a follower in epoch {leader_epoch} any more"
            )
        return log

    def follow(self, leader_high_watermark: int, leader_log_start: int, leader_epoch: int) -> bool:
        """Take over the leader's high watermark and log start; True when ours changed (R-26)."""
        with self._lock:
            log = self._following(leader_epoch)
            before = log.high_watermark, log.log_start_offset
            log.update_high_watermark(leader_high_watermark)
            if leader_log_start > log.log_start_offset:
                log.maybe_increment_log_start_offset(leader_log_start)
            return (log.high_watermark, log.log_start_offset) != before

    def keep_what_is_due(self) -> None:
        """Sync what a lower ``flush.messages`` does not allow to stay unsynced any more.

        Raises:
            KafkaStorageError, ResourceBusyError: it is not durable.
        """
        self._storage(self.local_log().flush_what_is_due)

    def truncate_to(self, offset: int, leader_epoch: int) -> None:
        """Cut the log (R-138). The caller sees to it that the checkpoints learn of it before
        anything is fetched behind the cut (``LogManager.checkpoint_cuts``)."""
        with self._lock:
            self._storage(self._following(leader_epoch).truncate_to, offset)

    def truncate_fully_and_start_at(self, offset: int, leader_epoch: int) -> None:
        """As ``truncate_to``."""
        with self._lock:
            self._storage(self._following(leader_epoch).truncate_fully_and_start_at, offset)
