"""The periodic work on all logs (F-225 … F-229). When it is done is in ``duties``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from checkpoints.loggers import get_logger
from logstore.common.clock import Clock
from logstore.common.config import MAX_LONG
from logstore.common.errors import LogstoreError, StorageFailedError
from logstore.common.shield import shielded
from logstore.common.types import TopicPartition
from logstore.manager.directories import Directories
from logstore.manager.log_dir import LogDir
from logstore.manager.offsets import HIGH_WATERMARK, LOG_START, high_watermark, moved_start

logger = get_logger(__name__)


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

    def checkpoint_cuts(self, tps: Iterable[TopicPartition]) -> None:
        """Lower the entries of truncated logs that are above the end of the log.

        One write of a file serves all logs. An entry that is not above its log is not written, so a
        repeated call costs next to nothing.
        """
        concerned = set(tps)

        def lower(each: LogDir) -> None:
            cut = [(tp, log) for tp in concerned if (log := each.logs.get(tp)) is not None]
            each.offsets.settle(each.items, lambda: cut)

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

    def ms_until_flush(self) -> int:
        """How many ms ``flush_dirty_logs`` may wait, so that no record is unflushed for much longer
        than its ``flush.ms``, not even one that is appended now.
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
            log.maintenance.purge_deleted(now) for log in logs if not log.failed
        )
