"""The periodic work of a log manager (F-225 … F-229): one list, whoever runs it.

A manager on its own runs the list on threads. A broker adds its own duties and runs all of it on
actors of its runtime, so that a simulation has the same list in virtual time.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeAlias

from checkpoints.loggers import get_logger
from logstore.cleaner.log_cleaner import LogCleaner
from logstore.common.clock import Clock
from logstore.common.config import MAX_LONG, BrokerConfig
from logstore.common.errors import LogstoreError, ResourceBusyError, StorageFailedError
from logstore.common.shield import shielded
from logstore.common.types import TopicPartition
from logstore.manager.directories import Directories
from logstore.manager.log_dir import LogDir
from logstore.manager.offsets import HIGH_WATERMARK, LOG_START, high_watermark, moved_start

logger = get_logger(__name__)

BACKGROUND = "background"
"""The thread of all duties that wait for a disk now and then, but never for long."""

LOG_RETENTION = "log-retention"
LOG_FLUSHER = "log-flusher"
RECOVERY_POINT_CHECKPOINT = "recovery-point-checkpoint"
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
PRODUCER_EXPIRATION = "producer-expiration"
DELETE_LOGS = "delete-logs"
LOG_CLEANER = "log-cleaner"

DELETE_INTERVAL_MS = 1000  # how late files that are due may be deleted
CHECKPOINT_PAUSE_MS = 1000  # between two checkpoints that rolls ask for
WRITTEN_AT_ONCE = 16 << 20  # bytes, so that the flush of a roll does not wait for long
LONGEST_WAIT_MS = 1000  # so that a thread notices that nobody holds its manager any more
SHORTEST_WAIT_MS = 10


class Housekeeper:
    """The periodic work. Call it from any thread that holds no lock of a log.

    In a forked child all of it raises ``ForkedError``. A directory that refuses a checkpoint goes
    offline. If descriptors or memory are short, a checkpoint raises ``ResourceBusyError``: the disk
    is well, and the rest was left out.
    """

    def __init__(self, directories: Directories, clock: Clock) -> None:
        self._directories = directories
        self._clock = clock
        self._ownership = directories.ownership

    # -- checkpoints ---------------------------------------------------------------------------

    def checkpoint_recovery_points(self, only: Collection[str] | None = None) -> None:
        """Write recovery points and log starts (F-11, F-227).

        Args:
            only: paths of the directories to write; all by default.
        """
        self._write(lambda each: each.offsets.write_recovery_points(each.items), only)

    def checkpoint_truncations(self, tps: Iterable[TopicPartition]) -> None:
        """Lower the entries of truncated logs that are above the end of the log.

        One write of a file serves all logs. An entry that is not above its log is not written, so a
        repeated call costs next to nothing.
        """
        concerned = set(tps)

        def lower(each: LogDir) -> None:
            cut = [(tp, log) for tp in concerned if (log := each.logs.get(tp)) is not None]
            each.offsets.lower_entries(each.items, lambda: cut)

        self._write(lower)

    def checkpoint_log_start_offsets(self) -> None:
        """Write the starts of logs that start inside their first segment (F-12)."""
        self._write(lambda each: each.offsets.write(LOG_START, each.items, moved_start))

    def checkpoint_high_watermarks(self) -> None:
        """Write the high watermark of every log (F-13)."""
        self._write(lambda each: each.offsets.write(HIGH_WATERMARK, each.items, high_watermark))

    @shielded
    def _write(self, write: Callable[[LogDir], None], only: Collection[str] | None = None) -> None:
        self._ownership.check()
        for log_dir in self._directories.live():
            if only is not None and log_dir.path not in only:
                continue
            guard = self._directories.guard(log_dir, "write checkpoint", whatever=True)
            with suppress(StorageFailedError), guard:
                write(log_dir)

    # -- logs ----------------------------------------------------------------------------------

    def flush_dirty_logs(self) -> int:
        """Flush logs whose last flush is at least ``flush.ms`` ago (F-221).

        Returns their number.
        """
        self._ownership.check()
        flushed = 0
        for log in self._directories.logs().values():
            waited = self._clock.wall_ms() - log.flusher.last_flush_ms
            if (
                log.log_end_offset > log.recovery_point
                and waited >= log.config.flush_ms
                and not log.failed
            ):
                try:
                    log.flush()
                    flushed += 1
                except LogstoreError as error:
                    logger.error("flush of %s: %s", log.name, error)
        return flushed

    def write_again(self) -> Iterator[int]:
        """Write, step by step, what a crash may have left in the page cache alone (decision 6).

        Yields the bytes of each step.
        """
        for log in self._directories.logs().values():
            try:
                while written := log.flusher.write_again(WRITTEN_AT_ONCE):
                    yield written
            except LogstoreError as error:
                logger.error("%s: what a crash has left is not written again: %s", log.name, error)

    def ms_until_flush(self) -> int:
        """Return how many ms ``flush_dirty_logs`` may wait, so that no record is unflushed for much
        longer than its ``flush.ms``, not even one that is appended now.
        """
        now, wait = self._clock.wall_ms(), MAX_LONG
        for log in self._directories.logs().values():
            flush_ms = log.config.flush_ms
            if flush_ms < MAX_LONG and not log.failed:
                waited = (
                    now - log.flusher.last_flush_ms
                    if log.log_end_offset > log.recovery_point
                    else 0
                )
                wait = min(wait, max(0, flush_ms - waited))
        return wait

    def clean_up(self) -> int:
        """Apply retention to all logs (F-225). Returns the number of deleted segments."""
        self._ownership.check()
        deleted = 0
        for log in self._directories.configured().values():
            try:
                if not log.failed:
                    deleted += log.maintenance.delete_old_segments()
            except LogstoreError as error:
                logger.error("retention of %s: %s", log.name, error)
        return deleted

    def remove_expired_producers(self) -> int:
        """Forget producers that were silent for too long. Returns their number."""
        self._ownership.check()
        logs = self._directories.logs().values()
        return sum(log.producers.remove_expired() for log in logs if not log.failed)

    @shielded
    def purge_deleted(self, *, at_once: bool = False) -> int:
        """Remove ``-delete`` directories and ``.deleted`` files that are due (F-229).

        Args:
            at_once: also those that are not due yet.
        """
        self._ownership.check()
        now = MAX_LONG if at_once else self._clock.wall_ms()
        logs = self._directories.logs().values()
        return self._directories.purge(now) + sum(
            log.maintenance.purge_deleted(now)
            for log in logs
            if log.maintenance.has_deleted and not log.failed  # few of many have, each second
        )


class Duty(NamedTuple):
    """One kind of periodic work.

    Attributes:
        name: as Kafka calls the task.
        period_ms: between the beginnings of two rounds.
        action: one round. It logs what concerns a single log, and goes on with the others.
        thread: rounds of duties of the same thread never overlap.
        at_once: the first round does not wait for ``log.initial.task.delay.ms``.
        may_wait_ms: how long the next round may wait, where that depends on the logs and not on the
            period alone.
    """

    name: str
    period_ms: int
    action: Callable[[], object]
    thread: str = BACKGROUND
    at_once: bool = False
    may_wait_ms: Callable[[], int] | None = None


def log_duties(keeper: Housekeeper, cleaner: LogCleaner, config: BrokerConfig) -> list[Duty]:
    """The duties of every log manager."""
    duties = [
        Duty(LOG_RETENTION, config.log_retention_check_interval_ms, keeper.clean_up),
        Duty(
            LOG_FLUSHER,
            config.log_flush_scheduler_interval_ms,
            keeper.flush_dirty_logs,
            at_once=True,
            may_wait_ms=keeper.ms_until_flush,
        ),
        Duty(
            RECOVERY_POINT_CHECKPOINT,
            config.log_flush_offset_checkpoint_interval_ms,
            keeper.checkpoint_recovery_points,
        ),
        Duty(
            LOG_START_OFFSET_CHECKPOINT,
            config.log_flush_start_offset_checkpoint_interval_ms,
            keeper.checkpoint_log_start_offsets,
        ),
        Duty(
            PRODUCER_EXPIRATION,
            config.producer_id_expiration_check_interval_ms,
            keeper.remove_expired_producers,
        ),
        Duty(DELETE_LOGS, DELETE_INTERVAL_MS, keeper.purge_deleted),
    ]
    if config.log_cleaner_enable:
        duties += [
            Duty(LOG_CLEANER, config.log_cleaner_backoff_ms, cleaner.clean_all, f"cleaner-{number}")
            for number in range(config.log_cleaner_threads)
        ]
    return duties


class Schedule:
    """The times at which the duties of one thread are due.

    Most first rounds wait for ``log.initial.task.delay.ms``, because a start has enough to do.
    ``run_due`` is for one thread, ``hurry`` for all.
    """

    def __init__(self, duties: Collection[Duty], clock: Clock, initial_delay_ms: int) -> None:
        self._duties = {duty.name: duty for duty in duties}
        self._clock = clock
        now = self._now_ms()
        self._due = {duty.name: now + (0 if duty.at_once else initial_delay_ms) for duty in duties}
        self._begun: dict[str, int] = {}  # the last round of each

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    def hurry(self, name: str, pause_ms: int = 0) -> None:
        """Let the next round of a duty begin now, or ``pause_ms`` after the last one."""
        now = self._now_ms()
        soon = max(now, self._begun.get(name, now - pause_ms) + pause_ms)
        self._due[name] = min(self._due[name], soon)

    def run_due(self) -> int:
        """Run what is due. Returns in how many ms to call again.

        An unexpected exception ends the call. The other duties that are due run in the next one.
        """
        soonest: dict[str, int] = {}  # when those are due that depend on the logs
        for duty in self._duties.values():
            now = self._now_ms()
            if self._is_due(duty, now, soonest):
                self._due[duty.name] = now + duty.period_ms
                self._begun[duty.name] = now
                try:
                    duty.action()
                except ResourceBusyError as error:
                    logger.warning("%s, again at its next turn: %s", duty.name, error)
                if duty.may_wait_ms:
                    soonest[duty.name] = self._now_ms() + duty.may_wait_ms()
        now = self._now_ms()
        waits = [due - now for due in (*self._due.values(), *soonest.values())]
        return max(SHORTEST_WAIT_MS, min(waits))

    def _is_due(self, duty: Duty, now: int, soonest: dict[str, int]) -> bool:
        if now >= self._due[duty.name]:
            return True
        if duty.may_wait_ms is None:
            return False
        # Once a turn: it looks at all logs, of which there may be thousands.
        soonest[duty.name] = now + duty.may_wait_ms()
        return soonest[duty.name] <= now


class Runner(Protocol):
    """Calls ``Schedule.run_due`` of one schedule again and again."""

    def wake(self) -> None:
        """Look again at what is due. From any thread."""
        ...

    def stop(self, *, wait: bool) -> None:
        """Begin no other round. ``wait`` for one that runs, but not from within it."""
        ...


StartRunner: TypeAlias = Callable[[str, Schedule], Runner]
"""Starts the runner of a thread's name and its schedule."""


class DutyThread:
    """Runs a schedule until ``stop``, or until the schedule is no longer referenced."""

    def __init__(self, name: str, schedule: Schedule) -> None:
        self._schedule = schedule
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=_keep_running,
            args=(weakref.ref(schedule), self._wake, self._stopped),
            name=f"logstore-{name}",
            daemon=True,
        )
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def stop(self, *, wait: bool) -> None:
        self._stopped.set()
        self._wake.set()
        if wait and self._thread is not threading.current_thread():
            self._thread.join()


def _keep_running(
    schedule: weakref.ref[Schedule], wake: threading.Event, stopped: threading.Event
) -> None:
    wait_ms = 0
    while True:
        wake.wait(min(wait_ms, LONGEST_WAIT_MS) / 1000)
        wake.clear()
        current = schedule()
        if current is None or stopped.is_set():
            return
        try:
            wait_ms = current.run_due()
        except Exception:
            logger.exception("a background task failed")
            wait_ms = SHORTEST_WAIT_MS
        del current


class Duties:
    """All duties of a manager while they run.

    Args:
        start: starts a runner for each thread.
        on_stop: makes a round that takes long end soon.
    """

    def __init__(
        self,
        duties: Iterable[Duty],
        clock: Clock,
        initial_delay_ms: int,
        start: StartRunner = DutyThread,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_stop = on_stop
        self.list = tuple(duties)
        self._running: list[tuple[Schedule, Runner, frozenset[str]]] = []
        for thread in dict.fromkeys(duty.thread for duty in self.list):
            own = [duty for duty in self.list if duty.thread == thread]
            schedule = Schedule(own, clock, initial_delay_ms)
            names = frozenset(duty.name for duty in own)
            self._running.append((schedule, start(thread, schedule), names))

    def wake(self, name: str) -> None:
        """Look again when a duty is due, because what it depends on has changed."""
        for _, runner, names in self._running:
            if name in names:
                runner.wake()

    def hurry(self, name: str, pause_ms: int = 0) -> None:
        """As ``Schedule.hurry``, on each thread that has the duty."""
        for schedule, _, names in self._running:
            if name in names:
                schedule.hurry(name, pause_ms)
        self.wake(name)

    def stop(self, *, wait: bool) -> None:
        """Begin no other round. ``wait`` for those that run. Idempotent."""
        self._on_stop()
        for _, runner, _ in self._running:
            runner.stop(wait=False)
        if wait:
            for _, runner, _ in self._running:
                runner.stop(wait=True)
