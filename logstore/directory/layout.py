"""From paths to the partitions and segments below them, by names and sizes alone."""

from __future__ import annotations

import fnmatch
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from checkpoints.errors import MalformedCheckpointError
from checkpoints.loggers import get_logger
from checkpoints.meta_properties import META_PROPERTIES, MetaPropertiesFile
from checkpoints.offset_checkpoint import HIGH_WATERMARK, LOG_START, OffsetCheckpoint
from checkpoints.types import TopicPartition
from logstore.common.errors import ConfigError, InvalidTopicError
from logstore.common.parallel import at_once
from logstore.directory.errors import DuplicatePartitionError, NotALogDirectoryError
from logstore.directory.listing import (
    UNKNOWN,
    PartitionLayout,
    listed,
    settled_layout,
    topic_id,
    until,
)
from logstore.format import filenames
from logstore.storage.base import FileInfo, ShowsFiles, Storage
from logstore.storage.broker_directories import broker_directories
from logstore.storage.uri import join_uri, log_directory, open_storage, shown

WRITES = "logstore-writes"
"""The file that lists the writes of ``df.write`` to a log directory.

Each write replaces the directory.
"""

_LOG_DIR_FILES = (HIGH_WATERMARK, LOG_START, META_PROPERTIES)
_PARTITION_FILES = (filenames.LEADER_EPOCH_CHECKPOINT, filenames.PARTITION_METADATA)

_T = TypeVar("_T")

logger = get_logger(__name__)

Note = Callable[[str], None]
TopicFilter = Callable[[str, int, bool], bool]
"""Called with topic, partition, and whether the path is the partition's own directory."""


def list_partitions(
    paths: Sequence[str],
    wanted: TopicFilter | None = None,
    *,
    broker: str = "",
    replicas: bool = False,
) -> list[PartitionLayout]:
    """The partitions below ``paths``, by topic, partition and broker. No segment is opened.

    Args:
        paths: log directories, of one broker or several, directories that hold the brokers of a
            cluster, or directories of partitions; ``*``, ``?`` and ``[…]`` match as in a shell.
            Each may be a URI (``logstore.storage.uri``).
        broker: take only what this broker has: an id, or the path of its log directory.
        replicas: whether to list the copies of all brokers.
    Raises:
        NotALogDirectoryError: a path is neither.
        DuplicatePartitionError: a partition was found more than once.
        ConfigError: no directory belongs to ``broker``.
        ResourceBusyError: directories change faster than they can be listed.
        OSError: the medium refused.
    """
    found: dict[str, PartitionLayout] = {}
    brokers: set[str] = set()
    broker = broker.rstrip("/") or broker
    named = map(log_directory, chain.from_iterable(map(_expand, paths)))
    for path in chain.from_iterable(map(_of_brokers, named)):
        for layout in _Lister(path.rstrip("/") or path, wanted, broker, brokers).layouts():
            storage, local = open_storage(layout.uri)
            found.setdefault(storage.real_path(local), layout)  # the same path given twice
    if broker and not brokers & {broker}:
        there = ", ".join(shown(name) for name in sorted(brokers)) or "none"
        raise ConfigError(f"broker {shown(broker)} is none of those there: {there}")
    layouts = _named_apart(list(found.values()))
    if not replicas:
        _refuse_copies(layouts)
    return sorted(layouts, key=lambda layout: (layout.topic, layout.partition, layout.broker))


def list_partition(directory: str, beside: LogDirFiles) -> PartitionLayout:
    """The log in the directory of one partition, a path or a URI. No segment is opened.

    Args:
        beside: the files of its log directory, which all partitions there share.
    Raises:
        NotALogDirectoryError: it is none, by its name.
        ResourceBusyError, OSError: as ``list_partitions``.
    """
    return _Lister(directory, None, "", set()).one_partition(beside)[0]


def _named_apart(layouts: list[PartitionLayout]) -> list[PartitionLayout]:
    """Name copies of a partition under one broker id, as in backups of two clusters, by their
    paths.
    """
    count: dict[tuple[str, int, str], int] = defaultdict(int)
    for layout in layouts:
        count[layout.topic, layout.partition, layout.broker] += 1
    return [
        replace(layout, broker=shown(layout.uri))
        if count[layout.topic, layout.partition, layout.broker] > 1
        else layout
        for layout in layouts
    ]


def _refuse_copies(layouts: list[PartitionLayout]) -> None:
    copies: dict[TopicPartition, list[tuple[str, str]]] = defaultdict(list)
    for layout in layouts:
        copies[TopicPartition(layout.topic, layout.partition)].append((layout.broker, layout.uri))
    for (topic, partition), places in sorted(copies.items()):
        if len(places) > 1:
            raise DuplicatePartitionError(topic, partition, tuple(sorted(places)))


# ---- one path --------------------------------------------------------------------------------


@dataclass(slots=True)
class _Lister:
    path: str
    wanted: TopicFilter | None
    broker: str
    brokers: set[str]
    """The brokers whose directories were listed, by id and path."""
    storage: Storage = field(init=False)
    _local: str = field(init=False)

    def __post_init__(self) -> None:
        self.storage, self._local = open_storage(self.path)

    def layouts(self) -> Iterable[PartitionLayout]:
        local = self._local
        info = self.storage.info(local)
        if info is None:
            raise NotALogDirectoryError(self.path, "no such file or directory")
        if not info.is_dir:
            raise NotALogDirectoryError(self.path, "it is a file")
        if _holds_segments(self.path, self.storage.scan_dir(local)):
            return self.one_partition()
        return until(lambda: self._stable(local), self.path, "partitions")

    def _stable(self, local: str) -> list[PartitionLayout] | None:
        """The partitions.

        None if the set of partitions changed while they were listed, or if a write replaced the
        directory, because old and new partitions must not be mixed.
        """
        written, entries = self._written(), self.storage.scan_dir(local)
        found = self._log_dir(entries)
        now = self._named(self.storage.scan_dir(local)), self._written()
        return found if now == (self._named(entries), written) else None

    def _written(self) -> bytes:
        """A value that changes with each write."""
        try:
            return self.storage.read_file(open_storage(join_uri(self.path, WRITES))[1])
        except (FileNotFoundError, NotADirectoryError):
            return b""

    def one_partition(self, beside: LogDirFiles | None = None) -> list[PartitionLayout]:
        name = last_component(self.path)
        try:
            parsed = filenames.parse_partition_dir(name)
        except InvalidTopicError as error:
            raise NotALogDirectoryError(self.path, f"it holds segments, but {error}") from None
        if parsed.suffix:
            raise NotALogDirectoryError(self.path, f"a {parsed.suffix} directory is no live log")
        if beside is None:
            beside = LogDirFiles(_parent(self.path))
            beside.read()
        self.brokers.update((beside.broker, beside.uri))
        if not self._has(beside) or not self._wants(parsed.topic_partition, True):
            return []
        return [self._settled(self.path, parsed.topic_partition, beside)]

    def _log_dir(self, entries: list[FileInfo]) -> list[PartitionLayout]:
        here = self._named(entries, warn=True)
        if not here and not any(_belongs_to_log_dir(entry) for entry in entries):
            names = ", ".join(entry.name for entry in entries[:3]) or "nothing"
            raise NotALogDirectoryError(self.path, f"it holds {names}")
        files = LogDirFiles(self.path)
        files.read()
        self.brokers.update((files.broker, files.uri))
        if not self._has(files):
            return []
        found = at_once(lambda item: self._listed(files, *item), here.items())
        return [layout for layout in found if layout is not None]

    def _named(self, entries: list[FileInfo], *, warn: bool = False) -> dict[str, TopicPartition]:
        """The wanted partitions, by the names of their directories."""
        here: dict[str, TopicPartition] = {}
        for entry in entries:
            if not entry.is_dir or entry.name == filenames.REMOTE_LOG_INDEX_CACHE:
                continue
            try:
                parsed = filenames.parse_partition_dir(entry.name)
            except InvalidTopicError as error:
                if warn:
                    logger.warning("%s: left out: %s", shown(self.path), error)
                continue
            if not parsed.suffix and self._wants(parsed.topic_partition, False):
                here[entry.name] = parsed.topic_partition
        return here

    def _listed(self, files: LogDirFiles, name: str, tp: TopicPartition) -> PartitionLayout | None:
        uri = join_uri(self.path, name)
        try:
            return self._settled(uri, tp, files)
        except FileNotFoundError:
            logger.warning("%s: deleted while it was listed", shown(uri))
            return None

    def _settled(self, uri: str, tp: TopicPartition, files: LogDirFiles) -> PartitionLayout:
        local = open_storage(uri)[1]

        def list_files() -> PartitionLayout:
            found = _timed(listed(uri, tp, self.storage.scan_dir(local)))
            return replace(
                found,
                broker=files.broker,
                log_start_offset=max(found.log_start_offset, files.log_starts.get(tp, 0)),
                checkpointed_start=files.log_starts.get(tp, UNKNOWN),
                high_watermark=files.high_watermarks.get(tp, UNKNOWN),
                topic_id=topic_id(uri),
            )

        return settled_layout(list_files)

    def _wants(self, tp: TopicPartition, own_path: bool) -> bool:
        return self.wanted is None or self.wanted(tp.topic, tp.partition, own_path)

    def _has(self, files: LogDirFiles) -> bool:
        return self.broker in ("", files.broker, files.uri, files.uri.rstrip("/"))


def _timed(layout: PartitionLayout) -> PartitionLayout:
    """The layout with the times of its segments, where its storage knows them."""
    storage, _ = open_storage(layout.uri)
    if not isinstance(storage, ShowsFiles):
        return layout
    paths = (open_storage(layout.path_of(segment.base_offset))[1] for segment in layout.segments)
    times = map(storage.max_timestamp, paths)
    segments = zip(layout.segments, times, strict=True)
    return replace(layout, segments=tuple(replace(s, max_timestamp=time) for s, time in segments))


def _belongs_to_log_dir(entry: FileInfo) -> bool:
    if not entry.is_dir:
        return entry.name in _LOG_DIR_FILES
    return filenames.partition_dir(entry.name) is not None


def _holds_segments(path: str, entries: Sequence[FileInfo]) -> bool:
    """A directory with files of segments, or an empty one with the name of a partition."""
    names = [entry.name for entry in entries if not entry.is_dir]
    if any(name in _PARTITION_FILES or filenames.parse_segment_file(name) for name in names):
        return True
    return not entries and filenames.partition_dir(last_component(path)) is not None


@dataclass(slots=True)
class LogDirFiles:
    """The files of a log directory: its broker, and the log starts and high watermarks.

    ``note`` is called for a checkpoint that is malformed, and so counts as missing (S-55).
    """

    uri: str
    note: Note = logger.warning
    broker: str = ""
    log_starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    high_watermarks: Mapping[TopicPartition, int] = field(default_factory=dict)

    def read(self) -> None:
        """Read them as they are now."""
        self.broker = shown(self.uri)
        try:
            meta = self._open(META_PROPERTIES, MetaPropertiesFile).read()
            if meta is not None and meta.node_id is not None:
                self.broker = str(meta.node_id)
        except MalformedCheckpointError as error:
            self.note(f"taken as missing: {error}")
        self.log_starts = self._offsets(LOG_START)
        self.high_watermarks = self._offsets(HIGH_WATERMARK)

    def _offsets(self, name: str) -> Mapping[TopicPartition, int]:
        try:
            return self._open(name, OffsetCheckpoint).read()
        except MalformedCheckpointError as error:
            self.note(f"taken as missing: {error}")
            return {}

    def _open(self, name: str, kind: Callable[[str, Storage], _T]) -> _T:
        storage, path = open_storage(join_uri(self.uri, name))
        return kind(path, storage)


# ---- patterns --------------------------------------------------------------------------------


def _expand(path: str) -> Iterator[str]:
    """The directories that a pattern matches, sorted; a path without a pattern is itself.

    Raises:
        NotALogDirectoryError: a pattern that matches nothing.
    """
    root, components = _split_path(path)
    if not any(_is_pattern(component, path) for component in components):
        yield path
        return
    matches = [root]
    for component in components:
        matches = [found for base in matches for found in _step(base, component, path)]
    if not matches:
        raise NotALogDirectoryError(path, "the pattern matches nothing")
    yield from matches


def _of_brokers(path: str) -> list[str]:
    """``path``, or the log directories of all brokers in it."""
    storage, local = open_storage(path)
    info = storage.info(local)
    if info is None or not info.is_dir:
        return [path]
    names = broker_directories(storage, local)
    return [join_uri(path.rstrip("/"), name) for name in names] or [path]


def _step(base: str, component: str, path: str) -> list[str]:
    if not _is_pattern(component, path):
        return [join_uri(base, component)]
    base = log_directory(base) if base else base
    storage, local = open_storage(base or ".")
    try:
        entries = storage.scan_dir(local)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [
        join_uri(base, entry.name)
        for entry in entries
        if entry.is_dir and fnmatch.fnmatchcase(entry.name, component)
    ]


def _is_pattern(component: str, path: str) -> bool:
    """Whether a component is a pattern. In a URI a question mark begins the query."""
    return any(sign in component for sign in ("*[" if "://" in path else "*?["))


def _split_path(path: str) -> tuple[str, list[str]]:
    """Split a path into its start and the components that follow, not quoted."""
    if "://" not in path:
        return ("/" if path.startswith("/") else ""), [c for c in path.split("/") if c]
    parts = urlsplit(path)
    components = [unquote(c) for c in parts.path.split("/") if c]
    return urlunsplit(parts._replace(path="")), components


def last_component(path: str) -> str:
    """The name of a directory, whichever way its path is written."""
    storage, local = open_storage(path)
    return storage.real_path(local).rstrip("/").rpartition("/")[2]


def _parent(path: str) -> str:
    if "://" in path:
        parts = urlsplit(path)
        return urlunsplit(parts._replace(path=parts.path.rstrip("/").rpartition("/")[0]))
    storage, local = open_storage(path)
    return storage.real_path(local).rpartition("/")[0] or "/"
