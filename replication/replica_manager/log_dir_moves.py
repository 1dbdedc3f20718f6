"""Moves of replicas between the log directories of this broker (KIP-113, X-156).

Kafka's ``ReplicaAlterLogDirsThread``: copies lie in ``logstore.manager.future_logs``; here is when
they are made, how fast, and how a partition goes on with its copy.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from logstore.common.errors import (
    LogClosedError,
    LogstoreError,
    ResourceBusyError,
    UnknownTopicOrPartitionError,
)
from logstore.format import filenames
from logstore.log.moving import LogCopy
from logstore.manager import LogManager
from replication.common.config import ReplicationConfig
from replication.common.error_codes import ErrorCode, error_code_of
from replication.common.limited_log import LimitedLogger
from replication.common.quota import ReplicationQuota
from replication.common.runtime import Actor, Runtime
from replication.replica_manager.hosted_partitions import HostedPartitions

logger = get_logger(__name__)

PREFERRED_MAX = 10_000  # partitions that are not here yet, whose directory is remembered
LEAST_PAUSE_MS = 20  # before another try to end a move, doubled each time
LONGEST_PAUSE_MS = 1000

Codes = dict[TopicPartition, ErrorCode]
Switch = Callable[[TopicPartition, LogCopy, Callable[[], None]], bool]


@dataclass(slots=True)
class _Move:
    tp: TopicPartition
    copy: LogCopy | None = None  # None: not opened yet
    due_ms: int = 0
    pause_ms: int = LEAST_PAUSE_MS


class LogDirMoves:
    """The moves of a broker, on an actor of their own: one after the other, a piece at a time.

    Args:
        switch: lets a partition go on with a copy; False if it cannot be now (``LogCopy.finish``).
        on_moved: called without a lock, with a partition that has its log in another directory now.
    """

    def __init__(
        self,
        broker_id: int,
        partitions: HostedPartitions,
        log_manager: LogManager,
        runtime: Runtime,
        quota: ReplicationQuota,
        config: ReplicationConfig,
        switch: Switch,
        on_moved: Callable[[LogCopy], None],
    ) -> None:
        self._broker_id = broker_id
        self._partitions = partitions
        self._manager = log_manager
        self._log = LimitedLogger(logger, runtime.clock)
        self._runtime = runtime
        self._quota = quota
        self._config = config
        self._switch = switch
        self._on_moved = on_moved
        self._moves: dict[TopicPartition, _Move] = {}  # of the actor, as the next one
        self._is_posted = False
        self._actor: Actor | None = None  # from the first move on
        self._closed = False

    def alter(self, wanted: Mapping[TopicPartition, str], respond: Callable[[Codes], None]) -> None:
        """Begin to move replicas to the log directories of these paths; or remember the path, of a
        replica that is not here yet: it is REPLICA_NOT_AVAILABLE now.
        """
        self._post(lambda: respond({tp: self._alter(tp, path) for tp, path in wanted.items()}))

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        """Go on with moves of partitions that have a role now."""
        begun = self._manager.futures.partitions()
        tps = [tp for tp in tps if tp in begun] if begun else []
        if tps:
            self._post(lambda: self._begin(tps))

    def close(self, wait: bool) -> None:
        self._closed = True
        if self._actor is not None:
            self._actor.close(wait)

    def _post(self, task: Callable[[], None]) -> None:
        if self._closed:
            return
        if self._actor is None:
            self._actor = self._runtime.actor(f"log-dirs-{self._broker_id}")
        self._actor.post(task)

    # -- on the actor --------------------------------------------------------------------------

    def _alter(self, tp: TopicPartition, path: str) -> ErrorCode:
        try:
            code = self._wanted(tp, path.rstrip("/") or "/")
        except LogstoreError as error:
            code = error_code_of(error)
            logger.warning("%s is not moved to %s: %s", tp, path, error)
        return code

    def _wanted(self, tp: TopicPartition, path: str) -> ErrorCode:
        """
        Raises:
            InvalidTopicError: the name of the copy's directory would be too long.
            StorageFailedError, ResourceBusyError: the move cannot begin.
        """
        filenames.future_dir_name(tp, "0" * 32)
        manager, futures = self._manager, self._manager.futures
        if path in manager.offline_directories:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if path not in manager.live_directories:
            return ErrorCode.LOG_DIR_NOT_FOUND
        partition = self._partitions.get(tp)
        if partition is not None and partition.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if futures.place_of(tp) not in (None, path):
            self._moves.pop(tp, None)
            futures.drop(tp)
        log = None if partition is None else partition.log
        if log is None:
            if len(futures.preferred) < PREFERRED_MAX:
                futures.preferred[tp] = path
            return ErrorCode.REPLICA_NOT_AVAILABLE
        if posixpath.dirname(log.directory) == path:
            return ErrorCode.NONE
        if manager.offline_directories:  # one of them may have a copy already
            return ErrorCode.KAFKA_STORAGE_ERROR
        futures.begin(tp, path)
        self._begin([tp])
        return ErrorCode.NONE

    def _begin(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            self._moves.setdefault(tp, _Move(tp))
        self._go_on()

    def _go_on(self, delay_ms: int = 0) -> None:
        if not self._moves or self._is_posted:
            return
        self._is_posted = True
        if delay_ms:
            self._runtime.call_later(delay_ms, lambda: self._post(self._work))
        else:
            self._post(self._work)

    def _work(self) -> None:
        """Copy a piece of the first move that is due."""
        self._is_posted = False
        now_ms = self._runtime.now_ms()
        due = [move for move in self._moves.values() if move.due_ms <= now_ms]
        if self._quota.is_exceeded():
            self._go_on(max(1, self._config.replica_fetch_backoff_ms))
        elif due:
            self._advance(due[0], now_ms)
            self._go_on()
        elif self._moves:
            self._go_on(min(move.due_ms for move in self._moves.values()) - now_ms)

    def _advance(self, move: _Move, now_ms: int) -> None:
        try:
            is_over = self._copy(move)
        except (LogClosedError, UnknownTopicOrPartitionError) as error:
            logger.info("%s is not moved any more: %s", move.tp, error)
            is_over = True
        except ResourceBusyError as error:
            self._log.warning("the move of %s waits: %s", move.tp, error, about=move.tp)
            is_over = False
        except Exception as error:  # the next role, or a request, tries it again
            logger.error("the move of %s has failed: %s", move.tp, error)
            is_over = True
        if is_over:
            self._moves.pop(move.tp, None)
        elif is_over is False:
            move.due_ms = now_ms + move.pause_ms
            move.pause_ms = min(2 * move.pause_ms, LONGEST_PAUSE_MS)

    def _copy(self, move: _Move) -> bool | None:
        """True if the move is over, False if it has to pause."""
        partition = self._partitions.get(move.tp)
        if partition is None or partition.offline or partition.log is None:
            return True  # its next role goes on
        copy = move.copy
        if copy is None or copy.current is not partition.log:
            copy = move.copy = self._manager.futures.begin(move.tp)
        most = max(1, self._config.replica_fetch_max_bytes)
        if not self._manager.futures.has_room(copy, most):
            raise ResourceBusyError(copy.future.directory, "copy", "its disk is almost full")
        size = copy.advance(most)
        self._quota.record(move.tp, size)
        if 2 * size > most:
            return None
        if not self._manager.futures.end(copy, partial(self._switch, move.tp, copy)):
            return False
        self._on_moved(copy)
        return True


__all__ = ["LogDirMoves"]
