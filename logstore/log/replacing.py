"""Replace segments of a log by a rewritten one. Kafka's ``LocalLog.replaceSegments``.

The cleaner rewrites segments without a lock, from views that may become stale. Here it is decided,
under the structure lock, whether these views are still in the log.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from logstore.common.errors import LogCleaningAbortedError
from logstore.common.shield import shielded
from logstore.format import filenames
from logstore.format.filenames import CLEANED_SUFFIX, LOG_SUFFIX, SWAP_SUFFIX
from logstore.log.core import LogCore
from logstore.log.maintenance import LogMaintenance
from logstore.log.writing.state import LogState
from logstore.recovery.replaced_list import ReplacedList, remove_replaced_list
from logstore.recovery.replacements import CleanedSegment
from logstore.segments.segment import Segment
from logstore.segments.segment_view import SegmentView


class LogReplacing:
    """Replaces segments.

    Only the structure lock is held during disk waits, so appends, reads and flushes go on.
    """

    def __init__(self, core: LogCore, state: LogState, maintenance: LogMaintenance) -> None:
        self._core = core
        self._state = state
        self._maintenance = maintenance

    def cleaned_segment(self, base_offset: int) -> CleanedSegment:
        """Begin a segment whose files are ``.cleaned``. Leftovers of an earlier one are removed."""
        discard_cleaned(self._cleaned(base_offset, None))
        return self._cleaned(base_offset, None)

    def written(self, cleaned: CleanedSegment, size: int) -> CleanedSegment:
        """The same segment once ``size`` bytes of its ``.log`` are written."""
        cleaned.close()
        return self._cleaned(cleaned.base_offset, {LOG_SUFFIX: size})

    def _cleaned(self, base_offset: int, sizes: dict[str, int] | None) -> CleanedSegment:
        core = self._core
        return CleanedSegment(
            core.storage, core.directory, base_offset, core.config, core.clock, sizes
        )

    def holds(self, views: Sequence[SegmentView]) -> bool:
        """Whether all views are current sealed segments of the log."""
        sealed = {id(view) for view in self._core.snapshot.sealed}
        return self._core.failure is None and all(id(view) in sealed for view in views)

    @shielded
    def replace(
        self,
        sources: Sequence[SegmentView],
        cleaned: CleanedSegment,
        crc: int,
        guard: Sequence[SegmentView],
    ) -> SegmentView:
        """Replace ``sources`` by ``cleaned``, which is durable. Returns its view.

        A crash leaves all old segments or the new one. Readers of the old ones go on; their files
        are removed after ``file.delete.delay.ms``.

        Args:
            crc: CRC-32C of the whole ``.log``.
            guard: other views that ``cleaned`` depends on, because they hold the records that
                superseded removed ones.
        Raises:
            LogCleaningAbortedError: one of these is no longer in the log; nothing was changed.
            StorageFailedError: the disk refused; the log is offline.
            OSError: the disk is full; nothing was changed.
        """
        core = self._core
        with self._maintenance.structure_lock:
            core.check()
            if not self.holds((*sources, *guard)):
                raise LogCleaningAbortedError(f"{core.directory}: segments were cut or removed")
            if not self._settled([view.segment for view in sources]):
                raise LogCleaningAbortedError(f"{core.directory}: segments are still to be synced")
            bases = tuple(view.base_offset for view in sources)
            try:
                ReplacedList(bases[0], cleaned.size, crc, bases).write(core.storage, core.directory)
            except OSError:
                remove_replaced_list(core.storage, core.directory)
                raise
            with core.doing("replace segments", whole=False):
                return self._swap_structure_locked([view.segment for view in sources], cleaned)

    def _settled(self, segments: list[Segment]) -> bool:
        """Whether no flush still has to sync these: everything below the log end was flushed after
        they were sealed.
        """
        with self._state.lock:
            waiting = {
                id(segment)
                for roll in self._state.unsettled
                for segment in (roll.before, roll.segment)
            }
            bases = self._state.segments.bases
            behind = bases[bases.index(segments[-1].base_offset) + 1]
            return self._state.synced >= behind and not any(id(s) in waiting for s in segments)

    def _swap_structure_locked(
        self, sources: list[Segment], cleaned: CleanedSegment
    ) -> SegmentView:
        core, state = self._core, self._state
        names = [
            filenames.segment_file_name(cleaned.base_offset, suffix)
            for suffix in filenames.SEGMENT_SUFFIXES
            if core.storage.info(cleaned.path(suffix)) is not None
        ]
        sizes = {
            name[20:]: info.size
            for name in names
            if (info := core.storage.info(self._path(name + CLEANED_SUFFIX)))
        }
        self._rename(names, CLEANED_SUFFIX, SWAP_SUFFIX)
        core.storage.sync_dir(core.directory)  # from here on a start would finish it
        gone: list[str] = []
        for segment in sources:
            gone += segment.mark_replaced()
        core.storage.sync_dir(core.directory)  # no original comes back beside its replacement
        self._rename(names, SWAP_SUFFIX, "")  # the .log first: alone it would look like a roll
        core.storage.sync_dir(core.directory)
        remove_replaced_list(core.storage, core.directory)
        fresh = Segment(
            core.storage, core.directory, cleaned.base_offset, core.config, core.clock, sizes
        )
        fresh.name_durable = True
        with state.lock:
            kept = [s for s in state.segments if s not in sources]
            state.replace_segments_locked([*kept, fresh])
            state.publish_removal_locked()
            snapshots = [
                path
                for segment in sources
                if segment.base_offset != fresh.base_offset
                and (path := state.producers.forget_snapshot(segment.base_offset)) is not None
            ]
        for segment in sources:
            segment.close()
        for path in snapshots:
            marked = state.producers.mark_deleted(path)
            gone += [marked] if marked else []
        self._maintenance.remove_later_structure_locked(gone)
        sealed: tuple[SegmentView, ...] = core.snapshot.sealed
        return next(view for view in sealed if view.segment is fresh)

    def _rename(self, names: list[str], before: str, after: str) -> None:
        for name in names:
            self._core.storage.rename(self._path(name + before), self._path(name + after))

    def _path(self, name: str) -> str:
        return os.path.join(self._core.directory, name)


def discard_cleaned(cleaned: CleanedSegment) -> None:
    """Remove a segment that was never part of the log. A start removes what is left."""
    cleaned.close()
    for suffix in (*(s for s in filenames.SEGMENT_SUFFIXES if s != LOG_SUFFIX), LOG_SUFFIX):
        with suppress(OSError):
            cleaned._storage.remove(cleaned.path(suffix))


__all__ = ["LogReplacing", "discard_cleaned"]
