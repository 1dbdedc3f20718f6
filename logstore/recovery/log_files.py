"""The files in the directory of one log when it is opened, by name and size."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from checkpoints.topic_properties import TOPIC_PROPERTIES
from logstore.common.clock import Clock
from logstore.common.config import MAX_INT, LogConfig
from logstore.common.errors import CorruptBatchError, CorruptDataError
from logstore.format import filenames
from logstore.format.filenames import (
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    UNFINISHED_SUFFIX,
)
from logstore.recovery.report import RecoveryReport
from logstore.segments.segment import Segment
from logstore.storage.aside import move_aside
from logstore.storage.base import FileKind, Storage

_IRREPLACEABLE = (filenames.PARTITION_METADATA, TOPIC_PROPERTIES)
_REPLACEABLE = (
    filenames.LEADER_EPOCH_CHECKPOINT,
    filenames.LEADER_EPOCH_CHECKPOINT + filenames.TEMPORARY_SUFFIX,
    filenames.PARTITION_METADATA + filenames.TEMPORARY_SUFFIX,
    TOPIC_PROPERTIES + filenames.TEMPORARY_SUFFIX,
    filenames.CLEAN_STOP,
    filenames.CLEAN_STOP + filenames.TEMPORARY_SUFFIX,
)


class LogFiles:
    """One listing, and the segments that are opened from it.

    Attributes:
        segments: sizes in bytes by base offset and suffix, of files under their final names.
        snapshots: offsets of the producer snapshots.
        rolled: bases of segments that wait for the one before them, ascending.
        unsettled: sizes of the files whose names end in .swap, .cleaned or .deleted.
        others: names of the files that belong to no segment.
        irregular: names of entries that are no regular file, directories included.
        opened: every segment that was opened, for ``close``.
    """

    def __init__(
        self,
        storage: Storage,
        directory: str,
        config: LogConfig,
        clock: Clock,
        report: RecoveryReport,
    ) -> None:
        self.storage = storage
        self.directory = directory
        self.config = config
        self.clock = clock
        self.report = report
        self.segments: dict[int, dict[str, int]] = {}
        self.snapshots: list[int] = []
        self.opened: list[Segment] = []
        self.rolled: deque[int] = deque()
        self.others: set[str] = set()
        self.irregular: dict[str, FileKind] = {}
        self.unsettled: dict[str, int] = {}

    def read(self) -> None:
        """List the directory; nothing is changed."""
        segments: dict[int, dict[str, int]] = {}
        self.segments = segments
        self.snapshots, self.others, self.unsettled = [], set(), {}
        self.irregular = {}
        for name, size, _, kind in self.storage.scan_dir(self.directory):
            if kind is not FileKind.FILE:
                self.irregular[name] = kind
                continue
            number, suffix = name[:20], name[20:]
            base = -1
            if suffix in filenames.PLAIN_SUFFIXES and number.isdecimal() and number.isascii():
                base = int(number)
            if not 0 <= base <= filenames.MAX_OFFSET:
                if name.endswith(filenames.TRANSITIONAL_SUFFIXES):
                    self.unsettled[name] = size
                else:
                    self.others.add(name)
            elif suffix == SNAPSHOT_SUFFIX:
                self.snapshots.append(base)
            elif base in segments:
                segments[base][suffix] = size
            else:
                segments[base] = {suffix: size}

    def check(self) -> None:
        """
        Raises:
            CorruptDataError: a file that nothing can replace is not a regular file, or is too
                large. Nothing was changed.
        """
        for name, kind in self.irregular.items():
            if name in _IRREPLACEABLE or (
                (parsed := filenames.parse_segment_file(name)) is not None
                and parsed.suffix == LOG_SUFFIX
                and parsed.transition in ("", SWAP_SUFFIX)
            ):
                reason = "is a directory" if kind is FileKind.DIRECTORY else "is no regular file"
                raise CorruptDataError(self.path(name), 0, reason)
        for base, found in self.segments.items():
            self._check_size(found.get(LOG_SUFFIX, 0), base)
        for name, size in self.unsettled.items():
            p = filenames.parse_segment_file(name)
            if p and p.suffix == LOG_SUFFIX and p.transition != filenames.DELETED_SUFFIX:
                self._check_size(size, p.offset, p.transition)

    def clear_irregular(self) -> None:
        """Rename each entry that has the name of a file which recovery writes from the ``.log``.

        It may be a user's, so it is kept.
        """
        names = [name for name in self.irregular if _is_replaceable(name)]
        for name in names:
            aside = os.path.basename(move_aside(self.storage, self.path(name)))
            what = (
                "a directory" if self.irregular[name] is FileKind.DIRECTORY else "no regular file"
            )
            self.act(f"renamed {name} to {aside}: it is {what}")
            self.report.warnings.append(f"{name} was {what}; it is {aside}, and is rebuilt")
        if names:
            self.storage.sync_dir(self.directory)

    def all_names(self) -> list[str]:
        found = [*self.others, *self.unsettled]
        found += [
            filenames.segment_file_name(b, s) for b, files in self.segments.items() for s in files
        ]
        return found + [filenames.segment_file_name(o, SNAPSHOT_SUFFIX) for o in self.snapshots]

    def act(self, action: str) -> None:
        self.report.actions.append(action)

    def remove(self, name: str, why: str) -> None:
        self.act(f"removed {name}: {why}")
        self.storage.remove(self.path(name))

    def rename(self, name: str, target: str) -> None:
        self.act(f"renamed {name} to {target}")
        self.storage.rename(self.path(name), self.path(target))

    def sync(self) -> None:
        """Make the names in the directory durable."""
        self.storage.sync_dir(self.directory)

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def open_segments(self) -> list[Segment]:
        """Pass 4: remove indexes without a log, and open every log as a segment (F-241, F-242)."""
        opened = []
        for base in sorted(self.segments):
            found = self.segments[base]
            if LOG_SUFFIX in found:
                opened.append(self.open_segment(base))
            elif base not in self.rolled:
                for suffix in found:
                    self.remove(filenames.segment_file_name(base, suffix), "there is no .log")
        return opened

    def open_segment(self, base: int, suffix: str = "") -> Segment:
        """Open a segment of the last listing. ``suffix`` is that of its ``.log``.

        Raises:
            CorruptBatchError: it is larger than any index can address.
        """
        found = self.segments[base]
        self._check_size(found[LOG_SUFFIX], base)
        segment = self.segment(base, found, suffix)
        segment.name_durable = True  # once the directory is synced, at the end of the load
        self.opened.append(segment)
        return segment

    def segment(
        self, base: int, sizes: Mapping[str, int] | None = None, suffix: str = ""
    ) -> Segment:
        return Segment(self.storage, self.directory, base, self.config, self.clock, sizes, suffix)

    @contextmanager
    def opened_by_name(self, base: int, transition: str) -> Iterator[Segment]:
        """A segment by the name of its ``.log``, without its indexes, inside the block."""
        segment = self.by_name(base, transition)
        try:
            yield segment
        finally:
            segment.close()

    def by_name(self, base: int, transition: str) -> Segment:
        name = filenames.segment_file_name(base, LOG_SUFFIX, transition)
        info = self.storage.info(self.path(name))
        return self.segment(base, {LOG_SUFFIX: info.size if info else 0}, transition)

    def close(self) -> None:
        """Close the files of all segments, because the log cannot be opened."""
        for segment in self.opened:
            segment.close()

    def _check_size(self, size: int, base: int, transition: str = "") -> None:
        if size > MAX_INT:
            path = self.path(filenames.segment_file_name(base, LOG_SUFFIX, transition))
            raise CorruptBatchError(path, MAX_INT, f"{size} bytes are too many for a segment")

    def open_rolled(self, base: int, suffix: str) -> Segment:
        """Open a segment that waits for the one before it, by the present name of its ``.log``."""
        self.segments.setdefault(base, {})[LOG_SUFFIX] = self.unsettled[rolled_name(base)]
        return self.open_segment(base, suffix)


def _is_replaceable(name: str) -> bool:
    return (
        name in _REPLACEABLE
        or name.endswith(UNFINISHED_SUFFIX)
        or filenames.parse_segment_file(name) is not None
    )


def rolled_name(base: int) -> str:
    return filenames.segment_file_name(base, LOG_SUFFIX, SWAP_SUFFIX)
