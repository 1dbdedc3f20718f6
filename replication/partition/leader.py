"""The leader's side: appends, fetches, requests for offsets. Followers serve consumers too."""

from __future__ import annotations

from logstore.common.errors import LeadershipEndedError, LogMovedError, OffsetOutOfRangeError
from logstore.common.types import Buffer
from logstore.format.index_entry import AbortedTxn
from logstore.log import PartitionLog
from logstore.log.reading.fetching import EARLIEST, LATEST, SLICE_MIN
from logstore.segments.producer_state import AppendOrigin, TransactionCheck, VerificationStateEntry
from logstore.storage import FileSlice
from replication.common.error_codes import ErrorCode
from replication.common.errors import (
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    UnknownLeaderEpochError,
)
from replication.common.messages import CONSUMER, EpochEndOffset, FetchPartition, IsolationLevel
from replication.common.state import UNKNOWN_EPOCH
from replication.decisions.truncation import cannot_be_compared, diverging_epoch
from replication.partition.env import FetchRead, LeaderAppend
from replication.partition.isr_changes import IsrChanges
from replication.partition.replica import Leadership, Replica, Role

READ_COMMITTED = IsolationLevel.READ_COMMITTED


class LeaderSide:
    """Serves producers, consumers and followers.

    A read without the lock loads the role first, and confirms it last.
    """

    def __init__(self, replica: Replica, isr_changes: IsrChanges) -> None:
        self._replica = replica
        self._tp = replica.tp
        self._isr_changes = isr_changes

    # -- append --------------------------------------------------------------------------------

    def append(
        self,
        records: Buffer,
        acks: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        wanted_epoch: int = UNKNOWN_EPOCH,
        check: TransactionCheck = TransactionCheck.NONE,
    ) -> LeaderAppend:
        """Append a producer's batches in the current epoch, which must be ``wanted_epoch`` if
        given.

        Raises:
            NotEnoughReplicasError: acks is −1 and the ISR too small; nothing was appended (R-83).
            NotLeaderOrFollowerError: this broker does not lead, or no longer when the log is
                reached; nothing was appended.
            RecordRejectedError: a batch breaks a rule; nothing was appended.
        """
        leading = self._replica.leading()
        if wanted_epoch not in (UNKNOWN_EPOCH, leading.leader_epoch):
            raise NotLeaderOrFollowerError(
                f"{self._tp}: led in epoch {leading.leader_epoch}, not in {wanted_epoch}"
            )
        if acks == -1 and len(leading.isr.committed) < leading.min_isr:
            raise NotEnoughReplicasError(
                f"{self._tp}: ISR {list(leading.isr.committed)} is smaller than {leading.min_isr}"
            )
        log, epoch = leading.log, leading.leader_epoch
        try:
            info = self._replica.call_storage(log.append_as_leader, records, epoch, origin, check)
        except LeadershipEndedError as error:
            raise NotLeaderOrFollowerError(str(error)) from error
        except LogMovedError:
            if not self._replica.has_moved(log):
                raise
            return self.append(records, acks, origin, epoch, check)
        now = self._replica.role  # the ISR may have changed since
        moved = (
            isinstance(now, Leadership)
            and now.leader_epoch == epoch
            and self._isr_changes.try_high_watermark(now)
        )
        if info.duplicate:
            original = log.epochs.epoch_for_offset(info.last_offset)
            self._replica.confirm_epoch(leading, log)
            epoch = epoch if original is None else original
        return LeaderAppend(info, moved, epoch)

    def begin_verification(
        self, producer_id: int, producer_epoch: int, sequence: int, *, bumps_epoch: bool
    ) -> VerificationStateEntry | None:
        """Return what must be verified before the producer may begin a transaction here; None if
        one is open already.

        Raises:
            NotLeaderOrFollowerError, KafkaStorageError: this broker does not lead it.
        """
        return self._replica.leading().log.producers.begin_verification(
            producer_id, producer_epoch, sequence, bumps_epoch=bumps_epoch
        )

    def is_waiting_for(self, required_offset: int, leader_epoch: int) -> bool:
        """A cheap check of many requests at each step of the high watermark.

        True only if ``acks_satisfied`` would say "not yet". Anything that changes that later is an
        event after which requests are checked again.
        """
        role = self._replica.role
        return (
            isinstance(role, Leadership)
            and role.leader_epoch == leader_epoch
            and role.log.core.snapshot.high_watermark < required_offset
        )

    def acks_satisfied(self, required_offset: int, leader_epoch: int) -> tuple[bool, ErrorCode]:
        """Whether an append that ended at ``required_offset`` in ``leader_epoch`` is committed
        (R-84).

        Raises:
            NotLeaderOrFollowerError, KafkaStorageError: this leader will never commit it, or
                another leader's records are at these offsets.
        """
        leading = self._replica.leading()
        log = leading.log
        # This broker may have led again since. Under one epoch an offset has one record, so the
        # append is still there exactly if its epoch is.
        if (
            leading.leader_epoch != leader_epoch
            and log.epochs.epoch_for_offset(required_offset - 1) != leader_epoch
        ):
            raise NotLeaderOrFollowerError(
                f"{self._tp}: what epoch {leader_epoch} had below {required_offset} was replaced"
            )
        done = log.core.snapshot.high_watermark >= required_offset
        self._replica.confirm_epoch(leading, log)
        if not done:
            return False, ErrorCode.NONE
        if len(leading.isr.maximal) < leading.min_isr:
            return True, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return True, ErrorCode.NONE

    def has_committed(self, append: LeaderAppend) -> bool:
        """Whether an append is committed, by enough replicas. If not, ``acks_satisfied`` says
        more."""
        role = self._replica.role
        return (
            isinstance(role, Leadership)
            and role.leader_epoch == append.leader_epoch
            and len(role.isr.maximal) >= role.min_isr
            and role.log.high_watermark > append.info.last_offset
            and self._replica.role is role
        )

    # -- fetch ---------------------------------------------------------------------------------

    def fetch(
        self,
        part: FetchPartition,
        *,
        replica_id: int,
        replica_epoch: int,
        isolation: IsolationLevel,
        max_bytes: int,
        minimum_one: bool,
        update_follower: bool = True,
        takes_slices: bool = False,
    ) -> FetchRead:
        """Serve one partition of a fetch of a follower (``replica_id`` ≥ 0) or a consumer.

        Before the return a follower's progress is noted and its joining of the ISR proposed
        (R-107), unless the answer is a diverging epoch (R-9) or ``update_follower`` is false.
        ``takes_slices``: many bytes may stay in their file, as far as they are committed: nobody
        cuts these off, and so nobody has to copy the file for it.

        Raises:
            OffsetOutOfRangeError: the offset is outside the log (R-102, R-103, R-105).
        """
        from_follower = replica_id >= 0
        role, log = self._readable(part, replica_id, replica_epoch)
        seen = log.core.snapshot
        start, end = seen.log_start_offset, seen.log_end_offset
        high_watermark, stable = seen.high_watermark, seen.last_stable_offset
        if part.last_fetched_epoch != UNKNOWN_EPOCH and not _agrees(role, part, start, end):
            parted = self._diverging(role, log, part, replica_id)
            if parted is not None:
                start = log.log_start_offset  # not older than the read
                return FetchRead(b"", high_watermark, stable, start, end, parted)
        if not start <= part.fetch_offset <= end:
            self._replica.confirm_epoch(role, log)
            raise OffsetOutOfRangeError(str(self._tp), part.fetch_offset, start, end)
        committed = isolation is READ_COMMITTED and not from_follower
        limit = end if from_follower else stable if committed else high_watermark
        records: Buffer | FileSlice = b""
        aborted: tuple[AbortedTxn, ...] = ()
        if part.fetch_offset < limit and (max_bytes > 0 or minimum_one):
            most = min(max_bytes, part.partition_max_bytes)
            by_slice = takes_slices and part.fetch_offset < high_watermark
            if by_slice:
                limit = min(limit, high_watermark)
            recent = None
            if not committed:
                kept = min(most, SLICE_MIN) if by_slice else most
                recent = log.replica.read_recent(part.fetch_offset, limit, kept, whole=by_slice)
            if recent is not None:
                records = recent
            else:
                data = self._replica.call_storage(
                    log.reader.read,
                    part.fetch_offset,
                    most,
                    minimum_one=minimum_one,
                    up_to=limit,
                    committed=committed,
                    by_slice=by_slice,
                )
                if data.has_whole_batch:  # a part of one helps nobody
                    records, aborted = data.file_slice or data.data, data.aborted
        moved, proposal = False, None
        if not (from_follower and update_follower):
            self._replica.confirm_epoch(role, log)
        else:
            with self._replica.lock:
                self._replica.confirm_epoch(role, log)
                moved, proposal = self._isr_changes.note_fetch(
                    self._replica.leading(), replica_id, replica_epoch, part, end
                )
        if proposal is not None:
            self._isr_changes.submit(*proposal)
        return FetchRead(records, high_watermark, stable, start, end, None, aborted, moved)

    def check_fetch(self, part: FetchPartition) -> None:
        """Refuse a consumer with another topic id or leader epoch, as ``fetch`` does."""
        self._readable(part, CONSUMER, UNKNOWN_EPOCH)

    def _readable(
        self, part: FetchPartition, replica_id: int, replica_epoch: int
    ) -> tuple[Role, PartitionLog]:
        """Check that this fetch may read here (R-8, R-97 … R-101).

        A follower serves consumers too (KIP-392, R-149).
        """
        replica = self._replica
        role = replica.role
        if type(role) is not Leadership and replica_id != CONSUMER:
            role = replica.leading()
        log = replica.local_log()
        # The right topic and epoch are not worth a call.
        asked, own = part.topic_id, log.core.topic_id
        if asked is not None and (own is None or asked.int != own.int):
            replica.check_topic(asked)
        if part.current_leader_epoch != role.leader_epoch:
            replica.check_epoch(role, part.current_leader_epoch)
        if replica_id >= 0 and isinstance(role, Leadership):
            if replica_id not in role.followers:
                reason = f"{self._tp}: broker {replica_id} is not in the assignment {role.replicas}"
                if part.current_leader_epoch != UNKNOWN_EPOCH:
                    raise UnknownLeaderEpochError(reason)
                raise NotLeaderOrFollowerError(reason)
            if UNKNOWN_EPOCH != replica_epoch < replica.env.metadata.broker_epoch(replica_id):
                raise NotLeaderOrFollowerError(f"{self._tp}: a fetch of an earlier {replica_id}")
        return role, log

    def _diverging(
        self, role: Role, log: PartitionLog, part: FetchPartition, replica_id: int
    ) -> EpochEndOffset | None:
        """Return where the requester's log diverges from ours, if before the fetch offset."""
        found = EpochEndOffset(*log.epochs.end_offset_for(part.last_fetched_epoch))
        seen = log.snapshot
        self._replica.confirm_epoch(role, log)
        start, end, fetch_offset = seen.log_start_offset, seen.log_end_offset, part.fetch_offset
        if found.end_offset < 0 or fetch_offset < start:
            raise OffsetOutOfRangeError(str(self._tp), fetch_offset, start, end)
        # A consumer has no producer state that could come from records of another leader.
        if replica_id >= 0 and cannot_be_compared(found, fetch_offset, start):
            return found
        return diverging_epoch(found, fetch_offset, part.last_fetched_epoch)

    def available_to_fetch(
        self, part: FetchPartition, replica_id: int, isolation: IsolationLevel, min_bytes: int
    ) -> int | None:
        """Count the bytes a waiting fetch would get now, at most 1 if it waits for no more (R-93).

        None if it must end. It ends as well if this raises as ``fetch``.
        """
        role, log = self._readable(part, replica_id, UNKNOWN_EPOCH)
        seen = log.core.snapshot
        if replica_id >= 0:
            limit = seen.log_end_offset
        elif isolation is READ_COMMITTED:
            limit = seen.last_stable_offset
        else:
            limit = seen.high_watermark
        start, end = seen.log_start_offset, seen.log_end_offset
        asks = part.last_fetched_epoch != UNKNOWN_EPOCH and not _agrees(role, part, start, end)
        if asks and self._diverging(role, log, part, replica_id) is not None:
            return None
        if part.fetch_offset >= limit:
            # Beyond the log end, after a truncation, the fetch must end. Beyond only the high
            # watermark it waits on.
            return None if part.fetch_offset > seen.log_end_offset else 0
        if part.fetch_offset < seen.active.base_offset <= limit:
            return None  # a whole segment is waiting
        if min_bytes <= 1:
            return 1
        available = self._replica.call_storage(log.reader.available_bytes, part.fetch_offset, limit)
        return min(available, part.partition_max_bytes)

    # -- offsets -------------------------------------------------------------------------------

    def end_offset_for_epoch(self, current_leader_epoch: int, epoch: int) -> EpochEndOffset:
        """The end of ``epoch`` in this leader's log; (−1, −1) if unknown (R-109)."""
        leading = self._replica.leading()
        self._replica.check_epoch(leading, current_leader_epoch)
        found = EpochEndOffset(*leading.log.epochs.end_offset_for(epoch))
        self._replica.confirm_epoch(leading, leading.log)
        return found

    def offset_for_timestamp(
        self,
        timestamp: int,
        *,
        current_leader_epoch: int = UNKNOWN_EPOCH,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        replica_id: int = CONSUMER,
    ) -> tuple[int, int, int]:
        """``(timestamp, offset, leader epoch)``; −1 each if there is no such record.

        Raises:
            OffsetNotAvailableError: a consumer asks for an offset at or above the high watermark,
                which has not reached the start of this leadership yet (R-150).
        """
        leading = self._replica.leading()
        self._replica.check_epoch(leading, current_leader_epoch)
        log, seen = leading.log, leading.log.snapshot
        consumer = replica_id == CONSUMER
        limit: int = seen.log_end_offset
        if consumer:
            committed = isolation is READ_COMMITTED
            limit = seen.last_stable_offset if committed else seen.high_watermark
        unsettled = consumer and seen.high_watermark < leading.start_offset
        found_at, offset = -1, limit
        if timestamp != LATEST:
            found = self._replica.call_storage(log.offset_for_timestamp, timestamp)
            if found is None:
                self._replica.confirm_epoch(leading, log)
                return -1, -1, -1
            found_at, offset = found.timestamp, found.offset
        # The end is that of this leadership for a consumer, also where open transactions lower it.
        epoch = None if consumer and timestamp == LATEST else log.epochs.epoch_for_offset(offset)
        self._replica.confirm_epoch(leading, log)
        if unsettled and (timestamp == LATEST or offset >= limit):
            raise OffsetNotAvailableError(f"{self._tp}: the high watermark is not settled yet")
        if timestamp not in (LATEST, EARLIEST) and offset >= limit:
            return -1, -1, -1
        return found_at, offset, leading.leader_epoch if epoch is None else epoch

    def delete_records(self, before_offset: int) -> int:
        """Raise the log start, and return it. Followers take it over with their next fetch."""
        with self._replica.lock:
            return self._replica.call_storage(
                self._replica.leading().log.delete_records, before_offset
            )

    @property
    def low_watermark(self) -> int:
        """The offset below which no live replica has records any more (R-96)."""
        leading = self._replica.leading()
        starts = [
            known.log_start
            for broker_id, known in leading.followers.items()
            if self._replica.env.metadata.is_alive(broker_id)
        ]
        return min([leading.log.log_start_offset, *starts])


def _agrees(role: Role, part: FetchPartition, log_start: int, log_end: int) -> bool:
    """Whether the epochs need no check, because the last fetched record belongs to this leadership,
    which ends at the log end.
    """
    return (
        part.last_fetched_epoch == role.leader_epoch
        and type(role) is Leadership
        and log_start <= part.fetch_offset <= log_end
    )
