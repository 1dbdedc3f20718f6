"""A store of segments shown as a Kafka log directory, read only.

So whatever reads a directory reads a store: ``verify``, ``ls``, ``read``, Spark, a broker that
adopts it. Below the root ``s3://bucket/base`` there are, though no object has these names::

    meta.properties  replication-offset-checkpoint  log-start-offset-checkpoint
    orders-0/00000000000000000000.log  .index  .timeindex  .txnindex
    orders-0/00000000000000001000.snapshot  leader-epoch-checkpoint  partition.metadata

Each offset comes from one object. A segment that reaches beyond the base of the next one is shown
cut, at the border of a batch. Where an offset is missing in between, the partition is refused.
"""

from __future__ import annotations

import errno
import os
import posixpath
import threading
from collections.abc import Mapping
from contextlib import closing
from typing import Any, NoReturn

from checkpoints.files import check_size
from checkpoints.loggers import get_logger
from logstore.format import filenames
from logstore.storage.base import DirLock, File, FileInfo, FileKind
from logstore.storage.local import LocalStorage
from logstore.tiers.cutting import (
    border_at,
    cut_offset_index,
    cut_time_index,
    cut_txn_index,
    end_of,
    read_all,
)
from logstore.tiers.errors import broken
from logstore.tiers.layouts import RemoteLayout, RemotePartition, RemoteSegment
from logstore.tiers.lineage import Choice, NotShown, Piece, choose
from logstore.tiers.sources import (
    ByteSource,
    ChunkedObject,
    InlineBytes,
    Objects,
    RefusedObject,
    WholeObject,
)

logger = get_logger(__name__)


class _Entry:
    """A shown file."""

    __slots__ = ("max_timestamp_ms", "mtime_ms", "source")

    def __init__(self, source: ByteSource, mtime_ms: int, max_timestamp_ms: int = -1) -> None:
        self.source, self.mtime_ms = source, mtime_ms
        self.max_timestamp_ms = max_timestamp_ms


class TierStorage:
    """``Storage`` whose directory ``root`` is the log directory that a layout describes.

    What a partition has is found at the first look into it, and kept: a view shows one moment, and
    a new one is made to see what came later. Thread-safe. It writes nothing.

    Args:
        root: how paths begin here, for messages too.
        layout: where the segments are.
        objects: reads them.
    """

    def __init__(self, root: str, layout: RemoteLayout, objects: Objects) -> None:
        self._root = root.rstrip("/")
        self._layout, self._objects = layout, objects
        self._guard = threading.RLock()
        self._files: dict[str, _Entry] | None = None
        self._partitions: dict[str, dict[str, _Entry]] = {}

    def under(self, root: str) -> TierStorage:
        """The same view, shown below another root."""
        return TierStorage(root, self._layout, self._objects)

    # ---- names

    def _names(self, path: str) -> list[str] | None:
        """The components below the root; ``None`` outside of it."""
        path = self.real_path(path)
        if path == self._root:
            return []
        if not path.startswith(f"{self._root}/"):
            return None
        return path[len(self._root) + 1 :].split("/")

    def real_path(self, path: str) -> str:
        scheme, separator, rest = path.rpartition("://")
        # Two slashes would mean something of their own to ``normpath``.
        return scheme + separator + posixpath.normpath(rest.rstrip("/") or "/")

    def _is_above(self, path: str) -> bool:
        """Whether the root is somewhere below: what lies over this storage walks down to it."""
        return self._root.startswith(f"{self.real_path(path).rstrip('/')}/")

    def _find(self, path: str) -> _Entry | None:
        names = self._names(path)
        if not names or len(names) > 2:
            return None
        if len(names) == 1:
            return self._root_files().get(names[0])
        return self._partition(names[0], path).get(names[1])

    def _root_files(self) -> Mapping[str, _Entry]:
        with self._guard:
            if self._files is None:
                shown = self._layout.files().items()
                self._files = {name: _Entry(InlineBytes(data), 0) for name, data in shown}
            return self._files

    def _partition(self, name: str, path: str) -> Mapping[str, _Entry]:
        if name not in self._layout.partitions():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        with self._guard:
            found = self._partitions.get(name)
        if found is None:
            # Not under the guard: partitions are listed at once, and each takes requests. Two
            # threads that meet here find the same.
            remote = self._layout.partition(name)
            found = show_partition(f"{self._root}/{name}", remote, self._objects)
            with self._guard:
                found = self._partitions.setdefault(name, found)
        return found

    # ---- Storage

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        if create or writable:
            self._refuse(path)
        entry = self._find(path)
        if entry is None:
            if self.info(path) is not None:
                raise broken(path, "is a directory, not a file")
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._objects.open(entry.source, path)

    def read_file(self, path: str, limit: int = -1) -> bytes:
        with closing(self.open(path, writable=False)) as file:
            check_size(path, file.size(), limit)
            return file.read_at(0, file.size())

    def scan_dir(self, path: str) -> list[FileInfo]:
        names = self._names(path)
        if names == []:
            shown = [FileInfo(n, 0, 0, FileKind.DIRECTORY) for n in self._layout.partitions()]
            return sorted(shown + [_info(n, each) for n, each in self._root_files().items()])
        if names is None or len(names) != 1 or names[0] not in self._layout.partitions():
            missing = self.info(path) is None
            number = errno.ENOENT if missing else errno.ENOTDIR
            raise OSError(number, os.strerror(number), path)
        return sorted(_info(n, entry) for n, entry in self._partition(names[0], path).items())

    def info(self, path: str) -> FileInfo | None:
        names = self._names(path)
        is_partition = names and len(names) == 1 and names[0] in self._layout.partitions()
        if names == [] or is_partition or self._is_above(path):
            return FileInfo(posixpath.basename(self.real_path(path)), 0, 0, FileKind.DIRECTORY)
        try:
            entry = self._find(path)
        except FileNotFoundError:
            return None
        return None if entry is None or not names else _info(names[-1], entry)

    def real_file(self, path: str) -> str:
        """The file on the local disk that has exactly the bytes of a shown one; "" if there is
        none: it is in a store, in chunks, a part of a file, or cut."""
        entry = self._find(path)
        if entry is None or not isinstance(self._objects.storage, LocalStorage):
            return ""
        source = entry.source
        is_it = isinstance(source, WholeObject) and source.size == source.whole
        return source.path if isinstance(source, WholeObject) and is_it else ""

    def max_timestamp(self, path: str) -> int:
        """In ms: no record of a shown segment is later. −1 where that is not known."""
        entry = self._find(path)
        return -1 if entry is None else entry.max_timestamp_ms

    def free_bytes(self, path: str) -> int:
        return 0  # nothing is written here

    def lock(self, path: str) -> DirLock:
        self._refuse(path)

    def _refuse(self, path: str, *_: Any, **__: Any) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    write_file = rename = remove = sync_dir = make_dir = remove_tree = set_mtime = _refuse


def _info(name: str, entry: _Entry) -> FileInfo:
    return FileInfo(name, entry.source.size, entry.mtime_ms, FileKind.FILE)


# ---- one partition ---------------------------------------------------------------------------


def show_partition(path: str, remote: RemotePartition, objects: Objects) -> dict[str, _Entry]:
    """The files of a partition's directory.

    Raises:
        BrokenTierError: offsets are missing in between, or two segments that overlap differ.
        OSError: the store refused.
    """
    choice = choose(remote.segments, remote.history, remote.log_start)
    for hole in choice.holes:
        raise broken(path, f"offsets {hole.start} to {hole.end - 1} are {remote.missing}")
    for segment, reason in choice.left:
        logger.info("%s: %s is left out: %s", path, _place(segment), reason.value)
    _check_covering(path, choice, objects)
    end = choice.pieces[-1].end if choice.pieces else remote.log_start or 0
    if end < remote.end_offset and choice.pieces:
        raise broken(path, f"offsets {end} to {remote.end_offset - 1} are in no segment")
    shown = {
        name: _Entry(InlineBytes(data), remote.mtime_ms) for name, data in remote.files.items()
    }
    followers = [*choice.pieces[1:], None][: len(choice.pieces)]
    for piece, following in zip(choice.pieces, followers, strict=True):
        sources = (
            _cut(piece, following.segment, objects)
            if following is not None and piece.is_cut
            else _files_of(piece.segment)
        )
        for (offset, suffix), source in sources.items():
            name = filenames.segment_file_name(offset, suffix)
            shown[name] = _Entry(source, piece.segment.mtime_ms, piece.segment.max_timestamp_ms)
    if not choice.pieces:
        empty = max(remote.end_offset, 0)
        for suffix in (filenames.LOG_SUFFIX, filenames.INDEX_SUFFIX, filenames.TIME_INDEX_SUFFIX):
            name = filenames.segment_file_name(empty, suffix)
            shown[name] = _Entry(InlineBytes(b""), remote.mtime_ms)
    return shown


def _check_covering(path: str, choice: Choice[RemoteSegment], objects: Objects) -> None:
    """Refuse a segment that covers others by an end that its log does not have: a manifest has no
    checksum, and the others' records would be left out in silence."""
    covered = [s.base_offset for s, reason in choice.left if reason is NotShown.COVERED]
    for segment, _ in choice.pieces:
        base, end = segment.base_offset, segment.end_offset
        if isinstance(segment.log, RefusedObject) or not any(base <= at < end for at in covered):
            continue
        place = _place(segment)
        source = segment.indexes.get(filenames.INDEX_SUFFIX)
        index = b"" if source is None else read_all(objects.open(source, place))
        with closing(objects.open(segment.log, place)) as log:
            found = end_of(log, index, base)
        if found < end:
            reason = (
                f"ends at offset {found}, and {end} by its manifest, which hides other segments"
            )
            raise broken(place or path, reason)


def _place(segment: RemoteSegment) -> str:
    return getattr(segment.log, "path", "")


def _files_of(segment: RemoteSegment) -> dict[tuple[int, str], ByteSource]:
    base = segment.base_offset
    files: dict[tuple[int, str], ByteSource] = {(base, filenames.LOG_SUFFIX): segment.log}
    files |= {(base, suffix): source for suffix, source in segment.indexes.items()}
    if segment.snapshot is not None:
        files[segment.end_offset, filenames.SNAPSHOT_SUFFIX] = segment.snapshot
    return files


def _cut(
    piece: Piece[RemoteSegment], following: RemoteSegment, objects: Objects
) -> dict[tuple[int, str], ByteSource]:
    """The files of a segment up to the next one's base. Its snapshot is that of its end, which is
    not shown; Kafka makes the missing one anew."""
    segment = piece.segment
    base, offset = segment.base_offset, piece.end

    def content(suffix: str) -> bytes:
        source = segment.indexes.get(suffix)
        return b"" if source is None else read_all(objects.open(source, _place(segment)))

    index = content(filenames.INDEX_SUFFIX)
    with (
        closing(objects.open(segment.log, _place(segment))) as log,
        closing(objects.open(following.log, _place(following))) as behind,
    ):
        position = border_at(log, index, base, offset, behind)
    files = dict(_files_of(segment))
    files.pop((segment.end_offset, filenames.SNAPSHOT_SUFFIX), None)
    files[base, filenames.LOG_SUFFIX] = _shortened(segment.log, position)
    if filenames.INDEX_SUFFIX in segment.indexes:
        files[base, filenames.INDEX_SUFFIX] = InlineBytes(cut_offset_index(index, position))
    if filenames.TIME_INDEX_SUFFIX in segment.indexes:
        times = content(filenames.TIME_INDEX_SUFFIX)
        files[base, filenames.TIME_INDEX_SUFFIX] = InlineBytes(cut_time_index(times, base, offset))
    if filenames.TXN_INDEX_SUFFIX in segment.indexes:
        data = cut_txn_index(content(filenames.TXN_INDEX_SUFFIX), offset, _place(segment))
        files[base, filenames.TXN_INDEX_SUFFIX] = InlineBytes(data)
    return files


def _shortened(source: ByteSource, size: int) -> ByteSource:
    match source:
        case WholeObject(path, _, whole):
            return WholeObject(path, size, whole)
        case ChunkedObject(path, chunks, _):
            return ChunkedObject(path, chunks, size)
    return source


__all__ = ["TierStorage", "show_partition"]
