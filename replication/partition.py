"""One partition on one broker: leader or follower (Kafka's ``Partition``).

The decisions are in ``isr`` and ``truncation``; here they meet the log. One lock guards the role,
the ISR and what is known of followers. It is never held while a caller is told something: what an
event causes elsewhere (a proposal to the controller, requests that may go on) happens after it is
released. The log's own lock is taken inside it, or alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

from checkpoints.types import TopicPartition
from logstore.config import LogConfig
from logstore.errors import (
    LogUnavailableError,
    OffsetOutOfRangeError,
    StorageFailedError,
    UnexpectedAppendOffsetError,
)
from logstore.index import AbortedTxn
from logstore.kernels import AppendInfo
from logstore.log import ReplicaLog
from logstore.log.reading import EARLIEST, LATEST
from logstore.manager import LogManager
from logstore.open_files import with_idle_closed
from logstore.producer_state import AppendOrigin
from logstore.types import Buffer
from replication.config import ReplicationConfig
from replication.error_codes import ErrorCode
from replication.errors import (
    KafkaStorageError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    UnknownLeaderEpochError,
    error_for,
)
from replication.isr import (
    IsrState,
    Progress,
    after_election,
    after_fetch,
    effective_min_isr,
    is_awaited,
    is_caught_up,
    may_join,
    may_start_empty,
    next_high_watermark,
)
from replication.messages import (
    CONSUMER,
    AlterPartitionItem,
    AlterPartitionResult,
    EpochEndOffset,
    FetchPartition,
    IsolationLevel,
    PartitionChange,
)
from replication.state import NO_LEADER, UNKNOWN_EPOCH, RecoveryState
from replication.truncation import check_leader_epoch, diverging_epoch

P = ParamSpec("P")
T = TypeVar("T")

READ_COMMITTED = IsolationLevel.READ_COMMITTED

# What the controller's answer to a proposal means beyond success; the rest: again.
_REVERTED = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
_UNDECIDED = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)


class IsrChannel(Protocol):
    """Carries a leader's ISR changes to the controller (R-34)."""

    def submit(
        self, item: AlterPartitionItem, on_result: Callable[[AlterPartitionResult], None]
    ) -> bool:
        """False when a change of the same partition is still on its way."""
        ...


class BrokerEpochs(Protocol):
    """What the metadata of the cluster says about other brokers."""

    def eligible(self, broker_id: int, broker_epoch: int) -> bool:
        """Alive, not shutting down, and of this epoch (or −1) (R-31)."""
        ...

    def broker_epoch(self, broker_id: int) -> int:
        """−1 when it is not known."""
        ...


@dataclass(slots=True)
class PartitionEnv:
    """What all partitions of a broker share."""

    broker_id: int
    log_manager: LogManager
    config: ReplicationConfig
    metadata: BrokerEpochs
    isr_channel: IsrChannel
    now_ms: Callable[[], int]
    own_epoch: Callable[[], int]
    # Called without a lock: an ISR change moved the high watermark; a change was (in)effective.
    on_high_watermark: Callable[[TopicPartition], None] = lambda tp: None
    on_isr_change: Callable[[TopicPartition, str], None] = lambda tp, kind: None


class LeaderAppend(NamedTuple):
    info: AppendInfo
    hw_moved: bool


class FetchRead(NamedTuple):
    """An answer to one partition of a fetch; offsets are those from before the read (R-106)."""

    records: Buffer
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    log_end_offset: int
    diverging: EpochEndOffset | None = None
    aborted: tuple[AbortedTxn, ...] = ()
    hw_moved: bool = False


class FetchLimit(NamedTuple):
    """Whether a waiting fetch has reason to end (R-93), and how many bytes it would get."""

    done: bool
    available: int


class Partition:
    """See the module. All methods may be called from any thread.

    Raises (most methods):
        KafkaStorageError: the log directory is offline.
        NotLeaderOrFollowerError, FencedLeaderEpochError, UnknownLeaderEpochError: R-98 … R-100.
    """

    def __init__(self, tp: TopicPartition, env: PartitionEnv) -> None:
        self.tp = tp
        self.log: ReplicaLog | None = None
        self.leader_id = NO_LEADER
        self.leader_epoch = UNKNOWN_EPOCH
        self.partition_epoch = -1
        self.epoch_start_offset: int | None = None  # of the leadership, while this broker leads
        self.replicas: tuple[int, ...] = ()
        self.isr = IsrState(())
        self.recovery_state = RecoveryState.RECOVERED
        self.offline = False
        self._env = env
        self._leads = False
        self._followers: dict[int, Progress] = {}
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        role = "leader" if self._leads else f"follower of {self.leader_id}"
        return f"Partition({self.tp}, {role}, epoch {self.leader_epoch}, {self.isr})"

    # -- state ---------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        return self._leads

    @property
    def min_isr(self) -> int:
        """R-20."""
        wanted = 1 if self.log is None else self.log.config.min_insync_replicas
        return effective_min_isr(wanted, max(1, len(self.replicas)))

    @property
    def under_replicated(self) -> bool:
        """R-174, as the next two."""
        return self._leads and len(self.isr.committed) < len(self.replicas)

    @property
    def under_min_isr(self) -> bool:
        return self._leads and len(self.isr.committed) < self.min_isr

    @property
    def at_min_isr(self) -> bool:
        return self._leads and len(self.isr.committed) == self.min_isr

    def follower(self, broker_id: int) -> Progress | None:
        """What this leader knows of a follower."""
        return self._followers.get(broker_id)

    def local_log(self) -> ReplicaLog:
        if self.offline:
            raise KafkaStorageError(f"{self.tp}: its log directory is offline")
        if self.log is None:
            raise NotLeaderOrFollowerError(f"{self.tp} has no log here yet")
        return self.log

    def _leader_log(self) -> ReplicaLog:
        log = self.local_log()
        if not self._leads:
            raise NotLeaderOrFollowerError(f"broker {self._env.broker_id} does not lead {self.tp}")
        return log

    def _check_epoch(self, requested: int) -> None:
        code = check_leader_epoch(requested, self.leader_epoch)
        if code is not ErrorCode.NONE:
            raise error_for(code, f"{self.tp}: epoch {requested}, here {self.leader_epoch}")

    # -- change of role ------------------------------------------------------------------------

    def make_leader(self, change: PartitionChange) -> bool:
        """R-12, R-13; True when a new leadership began.

        Raises:
            KafkaStorageError: the log could not be opened, or the epoch not be written.
            InconsistentTopicIdError: the log here belongs to another topic of that name.
        """
        new = change.registration
        with self._lock:
            if new.partition_epoch < self.partition_epoch or new.leader_epoch < self.leader_epoch:
                return False
            begins = new.leader_epoch > self.leader_epoch
            if self._leads and not begins and new.partition_epoch == self.partition_epoch:
                return False  # a repetition: a change of the ISR may be under way since
            log = self._open_log(change)
            remote = [r for r in new.replicas if r != self._env.broker_id]
            followers = {r: self._followers.get(r, Progress()) for r in remote}
            if begins:
                start = log.log_end_offset
                assign = partial(log.assign_epoch, new.leader_epoch, start)
                self._storage(with_idle_closed, assign)
                now = self._env.now_ms()
                # Of an epoch that we did not hear of another leader made followers cut their logs:
                # what they had of ours before counts no more.
                led = self._leads and new.leader_epoch == self.leader_epoch + 1
                followers = {
                    r: after_election(p, now, start, in_isr=r in new.isr, led_before=led)
                    for r, p in followers.items()
                }
                self.epoch_start_offset = start
            self._adopt(change)
            self._followers = followers
            self.isr = IsrState(new.isr)
            self.recovery_state = RecoveryState.RECOVERED
            self._leads = True
            moved = self._try_high_watermark(log)
        if moved:
            self._env.on_high_watermark(self.tp)
        return begins

    def make_follower(self, change: PartitionChange) -> bool:
        """R-12, R-14; True when the leader epoch rose: the fetcher must begin anew."""
        new = change.registration
        with self._lock:
            if new.partition_epoch < self.partition_epoch or new.leader_epoch < self.leader_epoch:
                return False
            self._open_log(change)
            rose = new.leader_epoch > self.leader_epoch
            self._adopt(change)
            self._stop_leading()
            return rose

    def _adopt(self, change: PartitionChange) -> None:
        new = change.registration
        self.leader_id = new.leader
        self.leader_epoch = new.leader_epoch
        self.partition_epoch = new.partition_epoch
        self.replicas = new.replicas

    def _open_log(self, change: PartitionChange) -> ReplicaLog:
        """The log, opened or created; its high watermark comes from the checkpoint (R-15)."""
        if self.offline:
            raise KafkaStorageError(f"{self.tp}: its log directory is offline")
        manager = self._env.log_manager
        config = _topic_config(manager.config, tuple(change.config.items()))

        # Never another log in place of one that failed: it would be empty.
        def find() -> ReplicaLog:
            return manager.get_or_create(
                *self.tp, topic_id=change.topic_id, config=config,
                is_new=may_start_empty(change.registration, self._env.broker_id),
            )  # fmt: skip

        log = self.log or self._storage(with_idle_closed, find)
        if log.failed:
            raise KafkaStorageError(f"{self.tp}: its log has failed")
        if change.topic_id is not None:
            self._storage(log.assign_topic_id, change.topic_id)
        if log.config is not config and log.config != config:
            log.reconfigure(config)
        self.log = log
        return log

    def _storage(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except (StorageFailedError, LogUnavailableError) as error:
            raise KafkaStorageError(str(error)) from error

    def mark_offline(self) -> None:
        """The log directory failed (R-152)."""
        with self._lock:
            self.offline = True
            self._drop()

    def delete(self) -> None:
        """The replica is removed; nothing is served any more. The caller deletes the log."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        self.log = None
        self._stop_leading()

    def _stop_leading(self) -> None:
        self._leads = False
        self._followers = {}
        self.isr = IsrState(())
        self.epoch_start_offset = None

    # -- leader: append ------------------------------------------------------------------------

    def append_as_leader(
        self, records: Buffer, acks: int, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> LeaderAppend:
        """Append a producer's batches in the current epoch.

        Raises:
            NotEnoughReplicasError: acks is −1 and the ISR too small; nothing was appended (R-83).
            RecordRejectedError: a batch breaks a rule; nothing was appended.
        """
        with self._lock:
            log = self._leader_log()
            if acks == -1 and len(self.isr.committed) < self.min_isr:
                raise NotEnoughReplicasError(
                    f"{self.tp}: ISR {list(self.isr.committed)} is smaller than {self.min_isr}"
                )
            info = self._storage(log.append_as_leader, records, self.leader_epoch, origin)
            return LeaderAppend(info, self._try_high_watermark(log))

    def is_waiting_for(self, required_offset: int) -> bool:
        """A look without the lock, for many requests at each step of the high watermark.

        True only if ``acks_satisfied`` would say "not yet"; what changes that later is an event
        of its own, after which everybody looks again.
        """
        log = self.log
        return self._leads and log is not None and log.high_watermark < required_offset

    def acks_satisfied(self, required_offset: int) -> tuple[bool, ErrorCode]:
        """Whether records below ``required_offset`` are committed (R-84).

        Raises:
            NotLeaderOrFollowerError, KafkaStorageError: they never will be, by this leader.
        """
        with self._lock:
            log = self._leader_log()
            if log.high_watermark < required_offset:
                return False, ErrorCode.NONE
            if len(self.isr.maximal) < self.min_isr:
                return True, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            return True, ErrorCode.NONE

    def _try_high_watermark(self, log: ReplicaLog) -> bool:
        """R-21 … R-25; the caller holds the lock."""
        log_end, high_watermark = log.log_end_offset, log.high_watermark
        if log_end == high_watermark:
            return False
        target = next_high_watermark(
            high_watermark, log_end, self._awaited_ends(log_end), len(self.isr.committed),
            self.min_isr,
        )  # fmt: skip
        if target == high_watermark:
            return False
        log.maybe_increment_high_watermark(target)
        return True

    def _awaited_ends(self, log_end: int) -> Iterator[int]:
        """Of the ISR first: one of them is mostly the reason why nothing moves."""
        maximal = self.isr.maximal
        for broker_id, known in self._followers.items():
            if is_awaited(broker_id in maximal, False, False):
                yield known.log_end
        env, now = self._env, self._env.now_ms()
        lag = env.config.replica_lag_time_max_ms
        for broker_id, known in self._followers.items():
            caught_up = is_caught_up(known, log_end, now, lag)
            if broker_id not in maximal and is_awaited(
                False, caught_up, env.metadata.eligible(broker_id, known.broker_epoch)
            ):
                yield known.log_end

    # -- leader: fetch -------------------------------------------------------------------------

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
    ) -> FetchRead:
        """Serve one partition of a fetch of a follower (``replica_id`` ≥ 0) or a consumer.

        A follower's progress is noted, and its joining the ISR proposed, before the return
        (R-107), unless the answer is a diverging epoch (R-9) or ``update_follower`` is false.

        Raises:
            OffsetOutOfRangeError: R-102, R-103, R-105.
        """
        from_follower = replica_id >= 0
        with self._lock:
            log = self._readable_log(part, replica_id, replica_epoch)
            epoch = self.leader_epoch
            start, end = log.log_start_offset, log.log_end_offset
            high_watermark, stable = log.high_watermark, log.last_stable_offset
            if part.last_fetched_epoch != UNKNOWN_EPOCH:
                found = self._find_epoch(log, part)
                parted = diverging_epoch(found, part.fetch_offset, part.last_fetched_epoch)
                if parted is not None:
                    return FetchRead(b"", high_watermark, stable, start, end, parted)
            if not start <= part.fetch_offset <= end:
                raise OffsetOutOfRangeError(str(self.tp), part.fetch_offset, start, end)
        committed = isolation is READ_COMMITTED and not from_follower
        limit = end if from_follower else stable if committed else high_watermark
        records: Buffer = b""
        aborted: tuple[AbortedTxn, ...] = ()
        if part.fetch_offset < limit and max_bytes > 0:
            data = self._storage(
                log.read, part.fetch_offset, min(max_bytes, part.partition_max_bytes),
                minimum_one=minimum_one, up_to=limit, committed=committed,
            )  # fmt: skip
            records, aborted = data.data, data.aborted
        moved, proposal = False, None
        if from_follower or records:
            with self._lock:
                # What was read while the role changed may be cut by now.
                if self.leader_epoch != epoch or self.log is not log:
                    raise NotLeaderOrFollowerError(f"{self.tp}: the leader changed meanwhile")
                if from_follower and update_follower:
                    moved, proposal = self._note_fetch(log, replica_id, replica_epoch, part, end)
        if proposal is not None:
            self._submit(*proposal)
        return FetchRead(records, high_watermark, stable, start, end, None, aborted, moved)

    def _readable_log(
        self, part: FetchPartition, replica_id: int, replica_epoch: int
    ) -> ReplicaLog:
        """R-8, R-97 … R-101; a follower here serves consumers too (KIP-392, R-149)."""
        log = self.local_log() if replica_id == CONSUMER else self._leader_log()
        if part.topic_id is not None and log.topic_id != part.topic_id:
            raise error_for(ErrorCode.INCONSISTENT_TOPIC_ID, f"{self.tp}: {part.topic_id}")
        self._check_epoch(part.current_leader_epoch)
        if replica_id >= 0:
            if replica_id not in self._followers:
                reason = f"{self.tp}: broker {replica_id} is not in the assignment {self.replicas}"
                if part.current_leader_epoch != UNKNOWN_EPOCH:
                    raise UnknownLeaderEpochError(reason)
                raise NotLeaderOrFollowerError(reason)
            if UNKNOWN_EPOCH != replica_epoch < self._env.metadata.broker_epoch(replica_id):
                raise NotLeaderOrFollowerError(f"{self.tp}: a fetch of an earlier {replica_id}")
        return log

    def _find_epoch(self, log: ReplicaLog, part: FetchPartition) -> EpochEndOffset:
        found = EpochEndOffset(*log.end_offset_for_epoch(part.last_fetched_epoch))
        start, end = log.log_start_offset, log.log_end_offset
        if found.end_offset < 0 or part.fetch_offset < start:
            raise OffsetOutOfRangeError(str(self.tp), part.fetch_offset, start, end)
        return found

    def _note_fetch(
        self, log: ReplicaLog, replica_id: int, replica_epoch: int, part: FetchPartition,
        leader_end: int,
    ) -> tuple[bool, tuple[AlterPartitionItem, IsrState] | None]:  # fmt: skip
        known = self._followers.get(replica_id)
        if known is None:  # left the assignment while the log was read
            return False, None
        now_ms = self._env.now_ms()
        after = after_fetch(
            known, part.fetch_offset, part.log_start_offset, now_ms, leader_end, replica_epoch
        )
        self._followers[replica_id] = after
        proposal = None
        if replica_id not in self.isr.maximal and may_join(
            after.log_end,
            log.high_watermark,
            self.epoch_start_offset or 0,
            in_isr=False,
            in_flight=self.isr.in_flight,
            eligible=self._env.metadata.eligible(replica_id, replica_epoch),
        ):
            proposal = self._propose((*self.isr.committed, replica_id))
        moved = after.log_end != known.log_end and self._try_high_watermark(log)
        return moved, proposal

    def note_idle_fetch(
        self, replica_id: int, known: Progress, isr: IsrState, now_ms: int
    ) -> Progress | None:
        """R-7 for a follower in sync that fetched once more from the end of an unchanged log: only
        times change. What is known now; None: not ``known`` or ``isr`` any more, so ``fetch``.

        A broker follows thousands of partitions of which few have news: this is a tenth of the
        cost of ``fetch``.
        """
        with self._lock:
            if self.isr is not isr or self._followers.get(replica_id) is not known:
                return None
            log_end, log_start, leader_end, _, _, broker_epoch = known
            after = Progress(log_end, log_start, leader_end, now_ms, now_ms, broker_epoch)
            self._followers[replica_id] = after
            return after

    def fetch_limit(
        self, part: FetchPartition, replica_id: int, isolation: IsolationLevel, min_bytes: int
    ) -> FetchLimit:
        """Look at a waiting fetch again (R-93). Raises as ``fetch``: then it is done, too."""
        with self._lock:
            log = self._readable_log(part, replica_id, UNKNOWN_EPOCH)
            if replica_id >= 0:
                limit = log.log_end_offset
            elif isolation is READ_COMMITTED:
                limit = log.last_stable_offset
            else:
                limit = log.high_watermark
            if part.last_fetched_epoch != UNKNOWN_EPOCH:
                found = self._find_epoch(log, part)
                if diverging_epoch(found, part.fetch_offset, part.last_fetched_epoch):
                    return FetchLimit(True, 0)
            if part.fetch_offset >= limit:
                # Beyond the log end, after a truncation, the caller must be told; beyond the
                # high watermark only it waits on.
                return FetchLimit(part.fetch_offset > log.log_end_offset, 0)
            if part.fetch_offset < log.active_segment.base_offset <= limit:
                return FetchLimit(True, 0)  # a whole segment is waiting
        if min_bytes <= 1:
            return FetchLimit(False, 1)
        available = self._storage(log.available_bytes, part.fetch_offset, limit)
        return FetchLimit(False, min(available, part.partition_max_bytes))

    # -- leader: offsets -----------------------------------------------------------------------

    def end_offset_for_epoch(self, current_leader_epoch: int, epoch: int) -> EpochEndOffset:
        """Where ``epoch`` ends in this leader's log, (−1, −1) if unknown (R-109)."""
        with self._lock:
            log = self._leader_log()
            self._check_epoch(current_leader_epoch)
            return EpochEndOffset(*log.end_offset_for_epoch(epoch))

    def offset_for_timestamp(
        self,
        timestamp: int,
        *,
        current_leader_epoch: int = UNKNOWN_EPOCH,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        replica_id: int = CONSUMER,
    ) -> tuple[int, int, int]:
        """``(timestamp, offset, leader epoch)``, −1 each when there is no such record.

        Raises:
            OffsetNotAvailableError: a consumer asks for what lies at or above the high watermark,
                which has not yet reached the start of this leadership (R-150).
        """
        with self._lock:
            log = self._leader_log()
            self._check_epoch(current_leader_epoch)
            consumer = replica_id == CONSUMER
            limit = log.log_end_offset
            if consumer:
                committed = isolation is READ_COMMITTED
                limit = log.last_stable_offset if committed else log.high_watermark
            unsettled = consumer and log.high_watermark < (self.epoch_start_offset or 0)
        found_at, offset = -1, limit
        if timestamp != LATEST:
            found = self._storage(log.offset_for_timestamp, timestamp)
            if found is None:
                return -1, -1, -1
            found_at, offset = found.timestamp, found.offset
        if unsettled and (timestamp == LATEST or offset >= limit):
            raise OffsetNotAvailableError(f"{self.tp}: the high watermark is not settled yet")
        if timestamp not in (LATEST, EARLIEST) and offset >= limit:
            return -1, -1, -1
        epoch = log.epoch_for_offset(offset)
        return found_at, offset, self.leader_epoch if epoch is None else epoch

    def delete_records(self, before_offset: int) -> int:
        """Raise the log start; the new one. Followers take it over with their next fetch."""
        with self._lock:
            return self._storage(self._leader_log().delete_records, before_offset)

    @property
    def low_watermark(self) -> int:
        """Below it no live replica has records any more (R-96)."""
        with self._lock:
            log = self._leader_log()
            starts = [
                known.log_start
                for broker_id, known in self._followers.items()
                if self._env.metadata.broker_epoch(broker_id) != UNKNOWN_EPOCH
            ]
            return min([log.log_start_offset, *starts])

    # -- leader: ISR ---------------------------------------------------------------------------

    def maybe_shrink_isr(self) -> None:
        """Propose to remove members that did not keep up (R-32)."""
        proposal = None
        with self._lock:
            if self._leads and self.log is not None and not self.isr.in_flight:
                now, log_end = self._env.now_ms(), self.log.log_end_offset
                lag = self._env.config.replica_lag_time_max_ms
                stay = tuple(
                    r
                    for r in self.isr.committed
                    if r not in self._followers
                    or is_caught_up(self._followers[r], log_end, now, lag)
                )
                if stay != self.isr.committed:
                    proposal = self._propose(stay)
        if proposal is not None:
            self._submit(*proposal)

    def _propose(self, members: tuple[int, ...]) -> tuple[AlterPartitionItem, IsrState]:
        """Pend before it is sent: from now on the high watermark waits for both (R-33)."""
        self.isr = IsrState(self.isr.committed, members)
        epochs = tuple(
            (
                r,
                self._followers[r].broker_epoch if r in self._followers else self._env.own_epoch(),
            )
            for r in members
        )
        item = AlterPartitionItem(
            self.tp, self.leader_epoch, self.partition_epoch, epochs, self.recovery_state
        )
        return item, self.isr

    def _submit(self, item: AlterPartitionItem, pending: IsrState) -> None:
        if not self._env.isr_channel.submit(item, lambda r: self._on_result(item, pending, r)):
            refused = AlterPartitionResult(self.tp, ErrorCode.OPERATION_NOT_ATTEMPTED)
            self._on_result(item, pending, refused)

    def _on_result(
        self, item: AlterPartitionItem, pending: IsrState, result: AlterPartitionResult
    ) -> None:
        """R-35 … R-40."""
        code, moved, kind = result.error_code, False, "failed"
        with self._lock:
            if self.isr is not pending or self.log is None:
                return  # new metadata came meanwhile
            if code is ErrorCode.NONE:
                stale = result.partition_epoch < self.partition_epoch
                if result.leader_epoch != self.leader_epoch or stale:
                    return
                grew = len(result.isr) > len(pending.committed)
                kind = "expand" if grew else "shrink"
                self.isr = IsrState(result.isr)
                self.partition_epoch = result.partition_epoch
                self.recovery_state = result.recovery_state
                moved = self._try_high_watermark(self.log)
            elif code in _REVERTED:
                self.isr = IsrState(pending.committed)
        self._env.on_isr_change(self.tp, kind)
        if moved:
            self._env.on_high_watermark(self.tp)
        if code is not ErrorCode.NONE and code not in _REVERTED and code not in _UNDECIDED:
            self._submit(item, pending)

    # -- follower ------------------------------------------------------------------------------

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

    def own_end_offset_for(self, epoch: int) -> EpochEndOffset:
        """F-208 on this replica's log."""
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
        with self._lock:
            log = self._following(leader_epoch)
            try:
                return self._storage(log.append_as_follower, records, leader_epoch)
            except UnexpectedAppendOffsetError as error:
                end = log.log_end_offset
                straddles = error.first_offset < end <= error.last_offset
                needed = max(log.log_start_offset, leader_log_start)
                if needed < end or not straddles:
                    raise
                # The log begins inside a batch, after DeleteRecords on the leader (KAFKA-6975);
                # what we have lies below that, and may even differ from what the leader deleted.
                log.truncate_fully_and_start_at(error.first_offset)
                return self._storage(log.append_as_follower, records, leader_epoch)

    def _following(self, leader_epoch: int) -> ReplicaLog:
        log = self.local_log()
        if self._leads or self.leader_epoch != leader_epoch:
            raise NotLeaderOrFollowerError(
                f"{self.tp}: not a follower in epoch {leader_epoch} any more"
            )
        return log

    def follow(self, leader_high_watermark: int, leader_log_start: int, leader_epoch: int) -> bool:
        """Take over the leader's watermarks; True when our high watermark changed (R-26)."""
        with self._lock:
            log = self._following(leader_epoch)
            before = log.high_watermark
            after = log.update_high_watermark(leader_high_watermark)
            if leader_log_start > log.log_start_offset:
                log.maybe_increment_log_start_offset(leader_log_start)
            return after != before

    def truncate_to(self, offset: int, leader_epoch: int) -> None:
        """R-138. The caller sees to it that the checkpoints learn of it, before it appends
        (``LogManager.checkpoint_cuts``)."""
        with self._lock:
            self._storage(self._following(leader_epoch).truncate_to, offset)

    def truncate_fully_and_start_at(self, offset: int, leader_epoch: int) -> None:
        """As ``truncate_to``."""
        with self._lock:
            self._storage(self._following(leader_epoch).truncate_fully_and_start_at, offset)


__all__ = [
    "FetchLimit",
    "FetchRead",
    "IsrChannel",
    "LeaderAppend",
    "Partition",
    "PartitionEnv",
]


@lru_cache(256)
def _topic_config(defaults: LogConfig, own: tuple[tuple[str, str], ...]) -> LogConfig:
    """One value for all partitions of a topic, however often they change roles."""
    return defaults.with_properties(dict(own))
