"""Periodic work of a broker: on an actor, so that no timer's thread ever waits for a disk."""

from __future__ import annotations

from collections.abc import Callable

from checkpoints.loggers import get_logger
from logstore.common.config import MAX_LONG
from logstore.common.errors import ResourceBusyError
from logstore.manager import LogManager
from replication.common.runtime import Actor, Cancellable, Runtime, Task

logger = get_logger(__name__)

PURGE_INTERVAL_MS = 10_000  # how late files that are due may be deleted
FLUSH_INTERVAL_MS = 10_000  # how late a flush may be if only a topic has a flush.ms


class BackgroundTasks:
    """Periodic tasks on an actor. A task that still waits or runs is not posted again."""

    def __init__(self, runtime: Runtime, actor: Actor) -> None:
        self._runtime = runtime
        self._actor = actor
        self._timers: list[Cancellable] = []

    def every(self, interval_ms: float, task: Callable[[], object]) -> None:
        """Run a task periodically. An interval of Kafka's ``MAX_LONG`` means never."""
        if interval_ms >= MAX_LONG:
            return
        self._timers.append(self._runtime.every(interval_ms, self._poster(task)))

    def _poster(self, task: Callable[[], object]) -> Task:
        posted = False

        def run() -> None:
            nonlocal posted
            posted = False
            try:
                task()
            except ResourceBusyError as error:
                logger.warning("again at its next turn: %s", error)

        def post() -> None:
            nonlocal posted
            if not posted:
                posted = True
                self._actor.post(run)

        return post

    def schedule_log_tasks(self, log_manager: LogManager) -> None:
        """The tasks of a log manager which has no thread of its own; but for retention, which needs
        the configurations of topics: the controller has them."""
        config = log_manager.broker_config
        flush_ms = min(config.log_flush_scheduler_interval_ms, log_manager.config.flush_ms)
        self.every(min(max(1, flush_ms), FLUSH_INTERVAL_MS), log_manager.flush_dirty_logs)
        self.every(
            config.log_flush_offset_checkpoint_interval_ms, log_manager.checkpoint_recovery_points
        )
        self.every(
            config.log_flush_start_offset_checkpoint_interval_ms,
            log_manager.checkpoint_log_start_offsets,
        )
        self.every(
            config.producer_id_expiration_check_interval_ms, log_manager.remove_expired_producers
        )
        self.every(PURGE_INTERVAL_MS, log_manager.purge_deleted)

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._actor.close()
