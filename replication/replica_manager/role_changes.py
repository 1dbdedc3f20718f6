"""Carry out the controller's orders to lead, follow or stop (R-16 … R-19), and take partitions of a
failed log directory offline (R-151 … R-155).
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from logstore.common.errors import (
    ConfigError,
    LogstoreError,
    LogUnavailableError,
    ResourceBusyError,
    UnknownTopicOrPartitionError,
)
from logstore.log.moving import LogCopy
from logstore.manager import LogManager
from replication.common.error_codes import ErrorCode
from replication.common.errors import (
    InconsistentClusterIdError,
    LogAheadError,
    ReplicationError,
)
from replication.common.limited_log import LimitedLogger
from replication.common.messages import (
    EPOCH_DURING_DELETE,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionChange,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
)
from replication.common.state import NO_LEADER, UNKNOWN_EPOCH
from replication.decisions.strays import GONE, Belonging, belonging
from replication.decisions.truncation import TruncationRule
from replication.fetcher.fetcher_manager import FetcherManager
from replication.fetcher.fetcher_state import InitialFetchState
from replication.partition import UNASSIGNED, Partition, storage_error
from replication.replica_manager.fetch_reader import answer_code
from replication.replica_manager.hosted_partitions import HostedPartitions
from replication.replica_manager.metadata_cache import MetadataCache

logger = get_logger(__name__)
limited = LimitedLogger(logger)

Codes = dict[TopicPartition, ErrorCode]


class RoleChanges:
    """Changes roles, one change at a time. Its lock comes before those of fetchers and partitions.

    Args:
        on_changed: called after the lock is released, with partitions that have a new leadership or
            are gone or offline, because requests may wait there.
        on_foreign_tree: called if the tree seems to be another cluster's. The broker must stop.
    Attributes:
        shutting_down: whether the broker is about to stop. It then follows only what it must
            (R-17).
    """

    def __init__(
        self,
        broker_id: int,
        partitions: HostedPartitions,
        log_manager: LogManager,
        fetchers: FetcherManager,
        metadata: MetadataCache,
        rule: TruncationRule,
        on_changed: Callable[[Sequence[TopicPartition]], None],
        on_foreign_tree: Callable[[ReplicationError], None],
    ) -> None:
        self.shutting_down = False
        self._broker_id = broker_id
        self._partitions = partitions
        self._log_manager = log_manager
        self._fetchers = fetchers
        self._metadata = metadata
        self._rule = rule
        self._on_changed = on_changed
        self._on_foreign_tree = on_foreign_tree
        self._log_epochs: dict[TopicPartition, int] = {}  # that the present order does not know
        self._unknown: list[TopicPartition] = []  # logs of which the tree knows nothing
        self._lock = threading.RLock()

    # -- lead and follow -----------------------------------------------------------------------

    def leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Carry out the controller's orders (R-18). A repetition changes nothing.

        Leaders come first, so that they serve early.
        """
        ended: list[TopicPartition] = []
        with self._lock:
            self._log_epochs = {}
            if request.is_full:
                places = self._belonging_of_logs(request)
                if self._is_foreign(places):
                    return LeaderAndIsrResponse(ErrorCode.INCONSISTENT_CLUSTER_ID)
            self._metadata.update(request)
            if request.is_full:
                ended += self._set_strays_aside(places)
            found = {change.tp: self._check(change) for change in request.partitions}
            ended += self._open_logs(request.partitions, found)
            accepted = [c for c in request.partitions if found[c.tp] is ErrorCode.NONE]
            leading = [c for c in accepted if c.registration.leader == self._broker_id]
            following = [c for c in accepted if c.registration.leader != self._broker_id]
            ended += self._make_leaders(leading, found)
            ended += self._make_followers(following, found)
            self._fetchers.close_idle()
            log_epochs = self._log_epochs
        if log_epochs:
            logger.warning(
                "broker %s: the logs of %s partitions (%s-%s, …) know later epochs than the "
                "controller, up to %s: it has to elect above",
                self._broker_id,
                len(log_epochs),
                *min(log_epochs),
                max(log_epochs.values()),
            )
        self._on_changed(ended)
        return LeaderAndIsrResponse(ErrorCode.NONE, tuple(found.items()), log_epochs)

    def _belonging_of_logs(self, request: LeaderAndIsrRequest) -> dict[TopicPartition, Belonging]:
        """Look up the place of each log here in the tree."""
        found: dict[TopicPartition, uuid.UUID | None] = dict.fromkeys(
            self._log_manager.unavailable_logs
        )
        found |= {tp: log.topic_id for tp, log in self._log_manager.logs.items()}
        return {
            tp: belonging(tp, topic_id, self._broker_id, request.topics, request.deleted)
            for tp, topic_id in found.items()
        }

    def _is_foreign(self, places: Mapping[TopicPartition, Belonging]) -> bool:
        """Whether the tree seems to be another cluster's, since it knows none of the logs here.

        All of them would go. Then this broker stops.
        """
        known = {Belonging.HERE, Belonging.MOVED, Belonging.DELETED}
        if not places or known.intersection(places.values()):
            return False
        manager = self._log_manager
        reason = f"the coordinator's tree knows none of its {len(places)} logs any more"
        error = InconsistentClusterIdError(
            manager.live_directories[0], manager.cluster_id, None, reason
        )
        self._on_foreign_tree(error)
        return True

    def _set_strays_aside(self, places: Mapping[TopicPartition, Belonging]) -> list[TopicPartition]:
        """Set aside logs that have no place here any more: their replica was moved, or their topic
        deleted, while this broker was away. Logs of which nothing is known stay, and are not
        served.
        """
        strays = [tp for tp, place in places.items() if place in GONE]
        unknown = [tp for tp, place in places.items() if place is Belonging.UNKNOWN]
        if unknown and unknown != self._unknown:
            logger.warning(
                "broker %s: the controller knows nothing of the topics of %s logs here (%s, …); "
                "they stay as they are, and are not served",
                self._broker_id,
                len(unknown),
                unknown[0],
            )
        self._unknown = unknown
        self._fetchers.remove_fetchers([*strays, *unknown])
        for tp in (*strays, *unknown):
            self._partitions.remove(tp)
        for topic in dict.fromkeys(tp.topic for tp in strays):
            partitions = [tp.partition for tp in strays if tp.topic == topic]
            try:
                self._log_manager.set_aside(topic, partitions)
            except LogstoreError as error:
                logger.warning("strays of topic %s are not set aside: %s", topic, error)
        return [*strays, *unknown]

    def _check(self, change: PartitionChange) -> ErrorCode:
        new, partition = change.registration, self._partitions.get(change.tp)
        known = UNASSIGNED.leader_epoch, UNASSIGNED.partition_epoch
        if partition is not None:
            if partition.offline:
                return ErrorCode.KAFKA_STORAGE_ERROR
            topic_id = None if partition.log is None else partition.log.topic_id
            if None not in (topic_id, change.topic_id) and topic_id != change.topic_id:
                return ErrorCode.INCONSISTENT_TOPIC_ID
            known = partition.leader_epoch, partition.partition_epoch
        if new.leader_epoch < known[0] or new.partition_epoch < known[1]:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if self._broker_id not in new.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE

    def _open_logs(self, changes: Sequence[PartitionChange], codes: Codes) -> list[TopicPartition]:
        """Open or create the logs that the accepted roles need, all at once.

        Their names are durable before any of them serves.
        """
        wanted = {}
        for change in changes:
            if codes[change.tp] is ErrorCode.NONE:
                partition = self._partitions.create(change.tp)
                if partition.log is None:
                    with suppress(ConfigError):  # its role will say so
                        wanted[change.tp] = partition.wanted_log(change)
        ended = []
        for tp, (_, error) in self._log_manager.get_or_create_all(wanted.values()).items():
            # What is short now is tried once more with the role, after idle files are closed.
            if isinstance(error, Exception) and not isinstance(error, ResourceBusyError):
                codes[tp] = self._give_up(self._partitions.create(tp), storage_error(error))
                ended.append(tp)
        return ended

    def _make_leaders(
        self, changes: Sequence[PartitionChange], codes: Codes
    ) -> list[TopicPartition]:
        self._fetchers.remove_fetchers([change.tp for change in changes])
        ended = []
        partitions = [self._partitions.create(change.tp) for change in changes]
        # Each syncs its epoch file. One after the other, a thousand take seconds.
        outcomes = self._log_manager.run_all(
            partial(partition.make_leader, change)
            for partition, change in zip(partitions, changes, strict=True)
        )
        for partition, (look_again, error) in zip(partitions, outcomes, strict=False):
            if isinstance(error, Exception):
                codes[partition.tp] = self._give_up(partition, error)
            elif error is not None:
                raise error
            if error is not None or look_again:
                ended.append(partition.tp)
        return ended

    def _make_followers(
        self, changes: Sequence[PartitionChange], codes: Codes
    ) -> list[TopicPartition]:
        begun, idle, ended = [], [], []
        for change in changes:
            partition = self._partitions.create(change.tp)
            try:
                rose = partition.make_follower(change)
            except Exception as error:
                codes[change.tp] = self._give_up(partition, error)
                ended.append(change.tp)
                continue
            if not self._should_fetch(change):
                idle.append(change.tp)
            elif rose or not self._fetchers.is_fetched(change.tp):  # an earlier try got stuck
                begun.append(change)
            if rose:
                ended.append(change.tp)
            self._keep_overdue(partition, codes)
        # A fetcher may still be applying an answer, which must end before we decide where to begin.
        self._fetchers.remove_fetchers([*ended, *idle])
        initial = {}
        for change in begun:
            try:
                initial[change.tp] = change.registration.leader, self._initial_state(change)
            except Exception as error:
                codes[change.tp] = self._give_up(self._partitions.create(change.tp), error)
        self._fetchers.add_fetchers(initial)
        return ended

    def _keep_overdue(self, partition: Partition, codes: Codes) -> None:
        """Sync what the new configuration demands.

        Until then the follower reports no more than under the old limit, and the next append would
        sync it, too.
        """
        try:
            partition.follower.flush_overdue()
        except Exception as error:
            codes[partition.tp] = self._give_up(partition, error)

    def _should_fetch(self, change: PartitionChange) -> bool:
        new = change.registration
        if new.leader == NO_LEADER or not self._metadata.is_alive(new.leader):
            return False
        return not self.shutting_down or self._broker_id in new.isr

    def _initial_state(self, change: PartitionChange) -> InitialFetchState:
        """Return where a follower begins to fetch (R-112)."""
        log = self._partitions.find(change.tp).local_log()
        offset = self._rule.initial_offset(
            log.epochs.latest, log.high_watermark, log.log_end_offset
        )
        return InitialFetchState(change.topic_id, change.registration.leader_epoch, offset)

    def _give_up(self, partition: Partition, error: Exception) -> ErrorCode:
        """Give up one partition. It does not stop the others (R-19)."""
        code = answer_code(partition.tp, error)
        if isinstance(error, LogAheadError):
            self._log_epochs[partition.tp] = error.log_epoch
            return code  # one line for all of them follows
        if isinstance(error, ResourceBusyError):
            code = ErrorCode.REPLICA_NOT_AVAILABLE  # the controller retries after a pause
        # The controller asks again, once a second, for as long as nothing changes.
        limited.warning("%s keeps its role: %s", partition.tp, error, about=partition.tp)
        if code is ErrorCode.KAFKA_STORAGE_ERROR:
            partition.mark_offline()
        elif partition.log is None:
            self._partitions.remove(partition.tp)
        return code

    def configure(self, topic: str, config: Mapping[str, str]) -> None:
        """Take over another configuration of a topic."""
        ended = []
        with self._lock:
            for partition in self._partitions:
                if partition.tp.topic == topic and not partition.offline:
                    try:
                        if partition.configure(config):
                            ended.append(partition.tp)
                    except (LogstoreError, ReplicationError) as error:
                        logger.error("%s is not configured: %s", partition.tp, error)
        self._on_changed(ended)

    # -- moves between directories -------------------------------------------------------------

    def switch_log(self, tp: TopicPartition, copy: LogCopy, replace: Callable[[], None]) -> bool:
        """Let a partition go on with a copy of its log, as ``Partition.move_log``.

        False while roles change.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            partition = self._partitions.get(tp)
            if partition is None:
                return False
            return partition.move_log(copy.current, copy.future, replace)
        finally:
            self._lock.release()

    # -- stop ----------------------------------------------------------------------------------

    def stop_replicas(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Stop following or leading partitions. With ``delete`` their logs are deleted."""
        with self._lock:
            found = {stop.tp: self._check_stop(stop) for stop in request.partitions}
            stopped = [
                stop
                for stop in request.partitions
                if found[stop.tp] is ErrorCode.NONE and self._is_meant(stop)
            ]
            self._fetchers.remove_fetchers([stop.tp for stop in stopped])
            deleted = [stop.tp for stop in stopped if stop.delete]
            for tp in deleted:
                self._partitions.remove(tp)
            for tp, error in self._log_manager.delete_all(deleted).items():
                found[tp] = answer_code(tp, error)
            self._fetchers.close_idle()
        self._on_changed([stop.tp for stop in stopped])
        return StopReplicaResponse(ErrorCode.NONE, tuple(found.items()))

    def _check_stop(self, stop: StopReplicaPartition) -> ErrorCode:
        partition = self._partitions.get(stop.tp)
        if partition is None:
            return ErrorCode.NONE  # its log may be here from before a restart
        if partition.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        unfenced = stop.leader_epoch in (EPOCH_DURING_DELETE, UNKNOWN_EPOCH)
        if unfenced or stop.leader_epoch >= partition.leader_epoch:
            return ErrorCode.NONE
        return ErrorCode.FENCED_LEADER_EPOCH

    def _is_meant(self, stop: StopReplicaPartition) -> bool:
        """Whether a stop concerns this log.

        False if the log belongs to a later topic of that name.
        """
        try:
            topic_id = self._log_manager.get(*stop.tp).topic_id
        except (UnknownTopicOrPartitionError, LogUnavailableError):
            return True
        return None in (stop.topic_id, topic_id) or stop.topic_id == topic_id

    # -- failures ------------------------------------------------------------------------------

    def take_failed_offline(self) -> list[TopicPartition]:
        """Take the partitions of a failed log directory offline until the broker restarts (R-152).

        Do not call it from a fetcher's work, or with the lock of a partition or a log.
        """
        with self._lock:
            failed = [p for p in self._partitions if p.log is not None and p.log.failed]
            tps = [partition.tp for partition in failed]
            self._fetchers.remove_fetchers(tps)
            for partition in failed:
                partition.mark_offline()
            self._fetchers.close_idle()
        self._on_changed(tps)
        return tps
