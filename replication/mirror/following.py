"""The partitions of a mirror, and what makes them follow whom."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from logstore.common.errors import LogstoreError
from logstore.log import PartitionLog
from logstore.manager import LogManager, WantedLog
from logstore.storage.base import Storage
from replication.common.error_codes import ErrorCode
from replication.common.errors import (
    FencedLeaderEpochError,
    LogAheadError,
    NotLeaderOrFollowerError,
)
from replication.common.messages import AlterPartitionItem, AlterPartitionResult, PartitionChange
from replication.common.quota import ReplicationQuota
from replication.common.runtime import Runtime
from replication.common.state import NO_LEADER, UNKNOWN_EPOCH, PartitionRegistration
from replication.common.transport import Transport
from replication.decisions.truncation import CONSUMER_RULE
from replication.fetcher import FetcherManager, InitialFetchState
from replication.fetcher.fetch_failures import REACTIONS, FetcherContext, FetchReaction
from replication.mirror.config import MirrorConfig
from replication.mirror.decisions import LocalPartition, MirrorPlan, Replaced, WantedPartition
from replication.mirror.errors import SourceContradictsError
from replication.mirror.follower import MirrorFollower
from replication.mirror.report import MirrorEventKind, MirrorReport
from replication.mirror.status import MirroredStatus, PartitionState
from replication.partition import Partition, PartitionContext, finish_changes

logger = get_logger(__name__)

CLIENT_ID = -1  # in place of a broker's: it fetches as a consumer


class _NoCluster:
    """What a partition asks its cluster if it leads. Here none does."""

    def eligible(self, broker_id: int, broker_epoch: int) -> bool:
        return False

    def is_alive(self, broker_id: int) -> bool:
        return False

    def broker_epoch(self, broker_id: int) -> int:
        return UNKNOWN_EPOCH

    def submit(
        self, item: AlterPartitionItem, on_result: Callable[[AlterPartitionResult], None]
    ) -> bool:
        return False


class MirroredPartition(Partition):
    """A partition that only follows, with a follower's side of its own."""

    follower: MirrorFollower


class Following:
    """Follows what `decide` says. ``apply`` is for one thread at a time, the rest for any.

    Args:
        on_progress: called, without a lock, with partitions that went on.
        on_stale_metadata: called, under a fetcher's lock, when a leader is not where it was.
    """

    def __init__(
        self,
        log_manager: LogManager,
        storage: Storage,
        runtime: Runtime,
        transport: Transport,
        config: MirrorConfig,
        report: MirrorReport,
        *,
        on_progress: Callable[[list[TopicPartition]], None],
        on_stale_metadata: Callable[[], None],
    ) -> None:
        self._log_manager, self._storage, self._report = log_manager, storage, report
        self._keep_deleted, self._silence_ms = config.keep_deleted, config.silence_ms
        self._now_ms, rate, fetching = runtime.now_ms, config.rate_bytes_per_s, config.fetching()
        nobody = _NoCluster()
        self._env = PartitionContext(
            CLIENT_ID,
            log_manager,
            fetching,
            nobody,
            nobody,
            runtime.now_ms,
            lambda: UNKNOWN_EPOCH,
        )
        quota = None
        if rate is not None:
            quota = ReplicationQuota(max(1, int(rate)), runtime.now_ms, lists_all=True)
        self._failed: dict[TopicPartition, Exception] = {}
        self._fetchers = FetcherManager(
            FetcherContext(
                CLIENT_ID,
                runtime,
                transport,
                fetching,
                CONSUMER_RULE,
                self.find,
                lambda: UNKNOWN_EPOCH,
                on_progress,
                partial(finish_changes, log_manager),
                quota,
                self._failed,
                self._on_refused,
            )
        )
        self._on_stale_metadata = on_stale_metadata
        self._partitions: dict[TopicPartition, MirroredPartition] = {}
        self._leaders: dict[TopicPartition, tuple[int, int]] = {}
        self._gone: frozenset[str] | None = None
        self.former_bytes = self.former_cuts = 0  # of logs that were set aside
        self._lock = threading.Lock()

    def find(self, tp: TopicPartition) -> MirroredPartition:
        """
        Raises:
            NotLeaderOrFollowerError: it is not mirrored any more.
        """
        partition = self._partitions.get(tp)
        if partition is None:
            raise NotLeaderOrFollowerError(f"{tp} is not mirrored any more")
        return partition

    def close(self) -> None:
        """Follow nobody. On return nothing is appended any more."""
        self._fetchers.close()

    def _on_refused(self, tp: TopicPartition | None, code: ErrorCode) -> None:
        """Under a fetcher's lock."""
        reaction = REACTIONS[code]
        if tp is None or reaction in (FetchReaction.SOON, FetchReaction.FAIL):
            self._on_stale_metadata()
        partition = None if tp is None else self._partitions.get(tp)
        if partition is not None and reaction in (FetchReaction.SOON, FetchReaction.LATER):
            partition.follower.refused(code, self._now_ms())

    @property
    def received(self) -> int:
        """Bytes that were appended, also to logs that were set aside since."""
        return self._fetchers.replication_bytes_in

    @property
    def dead_fetchers(self) -> int:
        """Those that ended with an error of ours."""
        return self._fetchers.dead_workers

    # -- what is here --------------------------------------------------------------------------

    @property
    def leaders(self) -> dict[TopicPartition, int]:
        """Whom the partitions follow that follow somebody."""
        with self._lock:
            return {tp: leader_id for tp, (leader_id, _) in self._leaders.items()}

    def local(self, *, retry: bool) -> dict[TopicPartition, LocalPartition]:
        """All logs here, for `decide`.

        Args:
            retry: those that failed may be tried again.
        """
        failed = dict(self._failed)
        for tp, error in failed.items():
            self._report_failure(tp, error)
        for topic, code in self._refusals().items():
            self._report.add_once(MirrorEventKind.FAILED, topic, f"the source says {code.name}")
        with self._lock:
            leaders = dict(self._leaders)
        found = {}
        for tp, log in self._log_manager.logs.items():
            leader_id, epoch = leaders.get(tp, (NO_LEADER, UNKNOWN_EPOCH))
            again = tp in failed and (retry or isinstance(failed[tp], FencedLeaderEpochError))
            found[tp] = LocalPartition(log.topic_id, leader_id, epoch, again, log.epochs.latest)
        return found

    def _refusals(self) -> dict[str, ErrorCode]:
        """One answer for all partitions of a topic: without rights these are many."""
        found = {}
        for tp, partition in [*self._partitions.items()]:
            refusal = partition.follower.refusal
            if refusal is not None and self._has_failed(refusal):
                found[tp.topic] = refusal[0]
        return found

    def _has_failed(self, refusal: tuple[ErrorCode, int]) -> bool:
        """Some refusals end by themselves, as soon as a new leader knows that it is one."""
        code, since_ms = refusal
        is_soon = REACTIONS[code] is FetchReaction.SOON
        return not is_soon or self._now_ms() - since_ms >= self._silence_ms

    def _trouble(self, tp: TopicPartition, follower: MirrorFollower) -> tuple[str, bool]:
        """Why nothing comes from the leader, and whether that is a failure by now."""
        refusal, since_ms = follower.refusal, self._fetchers.unanswered_since_ms(tp)
        if refusal is not None and (since_ms is None or self._has_failed(refusal)):
            return f"the source says {refusal[0].name}", self._has_failed(refusal)
        if since_ms is not None:
            silent_ms = self._now_ms() - since_ms
            reason = f"its leader has not answered for {silent_ms // 1000} s"
            return reason, silent_ms >= self._silence_ms
        return "", False

    def _report_failure(self, tp: TopicPartition, error: Exception) -> None:
        if isinstance(error, LogAheadError):
            kind = MirrorEventKind.CONTRADICTION
        elif isinstance(error, FencedLeaderEpochError | SourceContradictsError):
            return  # a change of leaders; or it is there already
        else:
            kind = MirrorEventKind.FAILED
        self._report.add_once(kind, tp, str(error))

    def has_reached(self, tp: TopicPartition, end: int) -> bool:
        """Whether all below ``end`` is here, and the leader of now has answered so."""
        partition = self._partitions.get(tp)
        log = None if partition is None else partition.log
        if partition is None or log is None or partition.follower.source_high_watermark < 0:
            return False
        if partition.follower.met_epoch != partition.leader_epoch:
            return False  # it may have a tail that is still to be cut
        snapshot = log.core.snapshot
        reached = min(snapshot.high_watermark, snapshot.log_end_offset)
        if reached == snapshot.log_end_offset:
            reached = max(reached, partition.follower.gap_end)
        return reached >= end

    def status(self) -> dict[TopicPartition, MirroredStatus]:
        """How far each partition is."""
        with self._lock:
            leaders, gone = dict(self._leaders), self._gone or ()
        found = {}
        for tp, log in self._log_manager.logs.items():
            found[tp] = self._status_of(tp, log, tp in leaders, tp.topic in gone)
        return found

    def _status_of(
        self, tp: TopicPartition, log: PartitionLog, is_led: bool, is_gone: bool
    ) -> MirroredStatus:
        partition, snapshot = self._partitions.get(tp), log.core.snapshot
        start, end = snapshot.log_start_offset, snapshot.log_end_offset
        error = self._failed.get(tp)
        if partition is None:
            state = PartitionState.WAITING if error is None else PartitionState.FAILED
            state = PartitionState.GONE if is_gone else state
            return MirroredStatus(state, start, end, reason="" if error is None else str(error))
        follower = partition.follower
        known = follower.source_high_watermark
        refused = self._report.open_reason(MirrorEventKind.REFUSED, tp)
        trouble, has_failed = self._trouble(tp, follower)
        if is_gone:
            state = PartitionState.GONE
        elif error is not None or has_failed:
            state = PartitionState.FAILED
        elif refused:
            state = PartitionState.REFUSED
        elif not is_led or known < 0 or trouble:
            state = PartitionState.WAITING
        else:
            reached = max(end, follower.gap_end) >= known
            state = PartitionState.CAUGHT_UP if reached else PartitionState.BEHIND
        reason = (refused if error is None else str(error)) or trouble
        return MirroredStatus(
            state,
            start,
            end,
            known if known >= 0 else None,
            follower.received,
            follower.cuts,
            reason,
            max(0, follower.gap_end - end),
        )

    # -- changes -------------------------------------------------------------------------------

    def apply(
        self,
        plan: MirrorPlan,
        configs: Mapping[str, Mapping[str, str]],
    ) -> None:
        """Carry out a plan. What fails for one partition does not stop the others.

        Args:
            configs: of topics, where they are known. Of others no default is stored: whoever
                promotes the logs would take it for theirs, and delete by it.
        """
        for each in plan.replaced:
            self.set_aside(each, "the source has another topic of that name")
        self._note_gone(plan.gone, {each.tp.topic for each in plan.wanted})
        self._leave(plan.pause)
        made = self._make_logs(plan.wanted, configs)
        self._follow([each for each in made if each.leader_id != NO_LEADER], configs)
        self._fetchers.close_idle()

    def _leave(self, tps: Collection[TopicPartition]) -> None:
        """Follow nobody in these partitions."""
        self._fetchers.remove_fetchers(tps)
        with self._lock:
            for tp in tps:
                self._leaders.pop(tp, None)

    def set_aside(self, old: Replaced, reason: str) -> None:
        """Give up logs for a later topic of their name. They stay, under another name."""
        tps = [TopicPartition(old.topic, number) for number in old.partitions]
        self._leave(tps)
        for tp in tps:
            self._failed.pop(tp, None)
            partition = self._partitions.pop(tp, None)
            if partition is not None:
                self.former_bytes += partition.follower.received
                self.former_cuts += partition.follower.cuts
                partition.delete()
        logs = self._log_manager.logs
        for tp in tps:
            if tp in logs:
                self._report.add(
                    MirrorEventKind.SET_ASIDE,
                    tp,
                    reason,
                    logs[tp].log_start_offset,
                    logs[tp].log_end_offset,
                    **_ids(old),
                )
        self._log_manager.set_aside(old.topic, old.partitions)

    def _note_gone(self, gone: Iterable[str], shown: set[str]) -> None:
        now, before = frozenset(gone), self._gone
        if before is None:  # in this run: a run each hour is not to say it each hour
            before = self._report.gone()
        back = before & shown
        for topic in sorted(now - before):
            self._report.add(MirrorEventKind.GONE, topic, "the source does not show the topic")
        for topic in sorted(back):
            self._report.add(MirrorEventKind.BACK, topic, "the source shows the topic again")
        self._gone = now | (before - back)

    def _make_logs(
        self, wanted: Iterable[WantedPartition], configs: Mapping[str, Mapping[str, str]]
    ) -> list[WantedPartition]:
        """Open or create the logs; those that are there."""
        asked = {each.tp: each for each in wanted}
        made = self._log_manager.get_or_create_all(
            WantedLog(tp, each.topic_id, configs.get(tp.topic)) for tp, each in asked.items()
        )
        found = []
        for tp, (_, error) in made.items():
            if isinstance(error, Exception):
                self._fail(tp, error)
            elif error is not None:
                raise error
            else:
                found.append(asked[tp])
        return found

    def _fail(self, tp: TopicPartition, error: Exception) -> None:
        logger.warning("%s is not mirrored: %s", tp, error)
        self._failed[tp] = error
        self._report_failure(tp, error)

    def _follow(
        self, wanted: Iterable[WantedPartition], configs: Mapping[str, Mapping[str, str]]
    ) -> None:
        begun: dict[TopicPartition, WantedPartition] = {}
        for each in wanted:
            tp = each.tp
            partition = self._partitions.get(tp) or self._new_partition(tp)
            if each.leader_epoch < partition.leader_epoch:
                continue  # from a broker behind the others
            registration = PartitionRegistration(
                (each.leader_id,), (each.leader_id,), each.leader_id, each.leader_epoch, 0
            )
            change = PartitionChange(tp, registration, each.topic_id, configs.get(tp.topic))
            try:
                partition.make_follower(change)
                self._partitions[tp] = partition
                begun[tp] = each
            except (LogstoreError, OSError) as error:
                self._fetchers.remove_fetchers([tp])
                self._fail(tp, error)
        # A fetcher may still be applying an answer, which must end before we decide where to begin.
        self._fetchers.remove_fetchers(begun)
        initial = {}
        for tp, each in begun.items():
            log = self._partitions[tp].local_log()
            offset = CONSUMER_RULE.initial_offset(
                log.epochs.latest, log.high_watermark, log.log_end_offset
            )
            state = InitialFetchState(each.topic_id, each.leader_epoch, offset)
            initial[tp] = each.leader_id, state
        with self._lock:
            for tp, each in begun.items():
                self._leaders[tp] = each.leader_id, each.leader_epoch
        self._fetchers.add_fetchers(initial)

    def _new_partition(self, tp: TopicPartition) -> MirroredPartition:
        partition = MirroredPartition(tp, self._env)
        partition.follower = MirrorFollower(
            partition, self._report, self._storage, keep_deleted=self._keep_deleted
        )
        return partition

    def configure(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """Take over configurations of topics that may have changed."""
        for partition in [*self._partitions.values()]:
            config = configs.get(partition.tp.topic)
            if config is not None:
                try:
                    partition.configure(config)
                except (LogstoreError, OSError) as error:
                    logger.error("%s is not configured: %s", partition.tp, error)

    def delete_released(self) -> None:
        """Delete segments that lie below the log start, which is the source's."""
        for tp, partition in [*self._partitions.items()]:
            log = partition.log
            if log is None or log.failed:
                continue
            before = log.segments[0].base_offset
            try:
                if log.maintenance.delete_old_segments(only_released=True):
                    now = log.segments[0].base_offset
                    self._report.add(
                        MirrorEventKind.DELETED, tp, "the source deleted them", before, now
                    )
            except (LogstoreError, OSError) as error:
                logger.error("what the source deleted of %s is still here: %s", tp, error)


def _ids(old: Replaced) -> dict[str, str]:
    if old.old_id is None:
        return {}
    return {"old_id": str(old.old_id), "new_id": str(old.new_id)}


__all__ = ["Following"]
