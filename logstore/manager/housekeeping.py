"""The periodic work on all logs (F-225 … F-229). When it is done is in ``duties``."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from checkpoints.errors import CheckpointError
from checkpoints.loggers import get_logger
from logstore.common.clock import Clock
from logstore.common.config import MAX_LONG
from logstore.common.disk_errors import is_busy
from logstore.common.errors import LogstoreError, ResourceBusyError, StorageFailedError
from logstore.common.shield import shielded
from logstore.common.types import TopicPartition
from logstore.manager.directories import Directories
from logstore.manager.log_dir import LogDir
from logstore.manager.offsets import HIGH_WATERMARK, LOG_START, high_watermark, moved_start
from logstore.manager.pending import PendingDeletes

logger = get_logger(__name__)


class Housekeeper:
    """The periodic work. Call it from any thread that holds no lock of a log.

    In a forked child all of it raises ``ForkedError``.
    """

    def __init__(self, directories: Directories, pending: PendingDeletes, clock: Clock) -> None:
        self._directories = directories
        self._pending = pending
        self._clock = clock
        self._ownership = directories.ownership

    # -- checkpoints ---------------------------------------------------------------------------

    @shielded
    def checkpoint_recovery_points(self, only: Collection[str] | None = None) -> None:
        """Write recovery points and log starts (F-11, F-227); a directory that refuses goes
        offline.

        Args:
            only: paths of the directories to write; all by default.
        Raises:
            ResourceBusyError: descriptors or memory are short; the rest was left out.
        """
        self._ownership.check()
        for log_dir in self._directories.live():
            if only is not None and log_dir.path not in only:
                continue
            try:
                log_dir.offsets.write_recovery_points(log_dir.items)
            except CheckpointError as error:
                self._fail(log_dir, error)

    @shielded
    def checkpoint_cuts(self, tps: Iterable[TopicPartition]) -> None:
        """Lower the entries of truncated logs that are above the end of the log.

        Raises:
            ResourceBusyError: descriptors or memory are short; the rest was left out.
        """
        self._ownership.check()
        concerned = set(tps)
        for log_dir in self._directories.live():
            cut = [(tp, log) for tp in concerned if (log := log_dir.logs.get(tp)) is not None]
            try:
                log_dir.offsets.settle(log_dir.items, lambda cut=cut: cut)  # type: ignore[misc]
            except CheckpointError as error:
                self._fail(log_dir, error)

    @shielded
    def checkpoint_log_start_offsets(self) -> None:
        """Write the starts of logs that start inside their first segment (F-12)."""
        self._ownership.check()
        for log_dir in self._directories.live():
            try:
                log_dir.offsets.write(LOG_START, log_dir.items, moved_start)
            except CheckpointError as error:
                self._fail(log_dir, error)

    @shielded
    def checkpoint_high_watermarks(self) -> None:
        """Write the high watermark of every log (F-13)."""
        self._ownership.check()
        for log_dir in self._directories.live():
            try:
                log_dir.offsets.write(HIGH_WATERMARK, log_dir.items, high_watermark)
            except CheckpointError as error:
                self._fail(log_dir, error)

    def _fail(self, log_dir: LogDir, error: CheckpointError) -> None:
        if is_busy(error):  # the disk works; the next round writes it
            raise ResourceBusyError(log_dir.path, "write checkpoint", str(error)) from error
        failure = StorageFailedError(log_dir.path, "write checkpoint", str(error))
        self._directories.fail(log_dir.path, failure)

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
        self._ownership.check()
        logs = self._directories.logs().values()
        return sum(log.producers.remove_expired() for log in logs if not log.failed)

    @shielded
    def purge_deleted(self, *, at_once: bool = False) -> int:
        """Remove ``-delete`` directories and ``.deleted`` files that are due (F-229)."""
        self._ownership.check()
        now = MAX_LONG if at_once else self._clock.wall_ms()
        logs = self._directories.logs().values()
        return self._pending.purge(now) + sum(
            log.maintenance.purge_deleted(now) for log in logs if not log.failed
        )
