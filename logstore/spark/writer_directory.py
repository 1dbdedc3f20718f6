"""From the files of the tasks to a log directory: assembled beside the target, then renamed.

Nothing of a write is seen under the target's name before all of it is on the disk. Everything else
lies in ``.<name>.writing-<id>`` beside it, which a commit and an abort both remove::

    .backup.writing-5f1c…/tasks/00000003-9a7e…     batches of one task, offsets not yet placed
                         /directory/flights-0/…    the log directory, while it is assembled
                         /replaced/…               what an overwrite took away, for a moment
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from checkpoints import clean_shutdown
from checkpoints.loggers import get_logger
from checkpoints.meta_properties import META_PROPERTIES
from checkpoints.offset_checkpoint import CLEANER, HIGH_WATERMARK, LOG_START, RECOVERY_POINT
from logstore.errors import ConfigError, InvalidTopicError, StorageFailedError
from logstore.format import filenames
from logstore.manager import LogManager
from logstore.manager.log_dir import LOCK
from logstore.producer_state import AppendOrigin
from logstore.random_id import new_uuid, random_id
from logstore.spark.writer_options import WriteOptions
from logstore.storage.base import File, Storage
from logstore.storage.local import LocalStorage
from logstore.types import TopicPartition

logger = get_logger(__name__)

_WINDOW = 16 << 20  # bytes of a task's file looked at together
_PREFIX = 12  # base offset and length of a batch
_FILES = (
    LOCK,
    META_PROPERTIES,
    RECOVERY_POINT,
    LOG_START,
    HIGH_WATERMARK,
    CLEANER,
    clean_shutdown.CLEAN_SHUTDOWN,
    "bootstrap.checkpoint",  # of a KRaft broker
)


@dataclass(frozen=True, slots=True)
class Extent:
    """Whole batches of one partition in the file of a task, one after the other."""

    topic: str
    partition: int
    position: int
    size: int
    largest: int  # bytes of the largest batch
    records: int


@dataclass(frozen=True, slots=True)
class StagedFile:
    """What one task wrote; ``path`` is empty where it had no rows."""

    task: int
    path: str
    size: int
    extents: tuple[Extent, ...]


class StagingArea:
    """The directory of one write. The driver and every executor must see it under the same path."""

    def __init__(self, target: str, write_id: str, storage: Storage | None = None) -> None:
        self.storage = storage or LocalStorage()
        # Of a link what it leads to: a rename stays on one file system, and the link stays.
        self.target = self.storage.real_path(target)
        self.parent, name = os.path.split(self.target)
        self.path = os.path.join(self.parent, f".{name}.writing-{write_id}")

    @property
    def tasks(self) -> str:
        return os.path.join(self.path, "tasks")

    @property
    def directory(self) -> str:
        return os.path.join(self.path, "directory")

    @property
    def replaced(self) -> str:
        return os.path.join(self.path, "replaced")

    def remove(self) -> None:
        """Best effort: a task that was given up may still be writing.

        A log directory that was taken away for one that did not come goes back first; where that
        fails all stays, for it may be the only copy.
        """
        storage = self.storage
        try:
            if storage.info(self.replaced) is not None and storage.info(self.directory) is not None:
                storage.rename(self.replaced, self.target)
                storage.sync_dir(self.parent)
            storage.remove_tree(self.path)
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("left behind: %s: %s", self.path, error)


# ---- before the job ----------------------------------------------------------------------------


def check_target(storage: Storage, target: str, overwrite: bool) -> None:
    """Refuse a target that must not be replaced.

    Raises:
        ConfigError: it is a file; it holds something, and that is not to be overwritten or is no
            log directory.
    """
    info = storage.info(target)
    if info is None:
        return
    if not info.is_dir:
        raise ConfigError(f"{target} is a file; a log directory is written")
    for entry in storage.scan_dir(target):
        if not overwrite:
            raise ConfigError(
                f'{target} is not empty: write to a new directory, or with mode("overwrite"); '
                "records are not appended to logs that exist"
            )
        if not (_is_partition(entry.name) if entry.is_dir else _is_log_dir_file(entry.name)):
            raise ConfigError(
                f"{target} holds {entry.name!r}, which is no part of a log directory: not replaced"
            )


def _is_partition(name: str) -> bool:
    try:
        filenames.parse_partition_dir(name)
    except InvalidTopicError:
        return name == filenames.REMOTE_LOG_INDEX_CACHE
    return True


def _is_log_dir_file(name: str) -> bool:
    return name.removesuffix(filenames.TEMPORARY_SUFFIX) in _FILES


# ---- after the job -----------------------------------------------------------------------------


def commit(
    area: StagingArea, staged: Sequence[StagedFile], options: WriteOptions, overwrite: bool
) -> int:
    """Make the log directory of what the tasks wrote; returns the number of records.

    Offsets follow the numbers of the tasks, and within a task its rows: the same rows in the same
    tasks give the same logs, whatever was retried. Durable on return.

    Raises:
        ConfigError: the target is not what it was before the job.
        StorageFailedError: a task's file is not here, or the disk refused.
    """
    try:
        records = _assemble(area.storage, area.directory, staged, options)
        check_target(area.storage, area.target, overwrite)
        _publish(area)
    except OSError as error:
        raise StorageFailedError(area.target, "commit", str(error)) from error
    finally:
        area.remove()
    return records


def _assemble(
    storage: Storage, directory: str, staged: Sequence[StagedFile], options: WriteOptions
) -> int:
    """The log directory by way of the log itself: rolls, indexes, checkpoints and the marker."""
    sources = _by_partition(storage, staged)
    with LogManager(
        [directory],
        options.log_config,
        storage=storage,
        cluster_id=options.cluster_id or None,
        node_id=options.node_id,
    ) as manager:
        topics = {tp.topic for tp in sources} | ({options.topic} - {""})
        ids = {topic: new_uuid(random_id) for topic in sorted(topics)}
        partitions = set(sources)
        partitions.update(
            TopicPartition(topic, n) for topic in ids for n in range(options.partition_count)
        )
        logs = {tp: manager.get_or_create(*tp, topic_id=ids[tp.topic]) for tp in sorted(partitions)}

        def fill(tp: TopicPartition) -> None:
            for path, extent in sources[tp]:
                for batch in _batches(storage, path, extent):
                    # The tasks made these bytes: beyond the checksum they need no second look.
                    logs[tp].append_as_leader(batch, options.leader_epoch, AppendOrigin.REPLICATION)

        for _, error in manager.run_all(partial(fill, tp) for tp in sources):
            if error is not None:
                raise error
    marker = os.path.join(directory, clean_shutdown.CLEAN_SHUTDOWN)
    if not clean_shutdown.exists(marker, storage):
        raise StorageFailedError(directory, "close", "a log was not closed cleanly, see the log")
    storage.sync_dir(directory)
    return sum(extent.records for file in staged for extent in file.extents)


def _by_partition(
    storage: Storage, staged: Sequence[StagedFile]
) -> Mapping[TopicPartition, list[tuple[str, Extent]]]:
    sources: dict[TopicPartition, list[tuple[str, Extent]]] = defaultdict(list)
    for file in sorted(staged, key=lambda file: file.task):
        info = storage.info(file.path) if file.path else None
        if file.path and (info is None or info.size != file.size):
            found = "not there" if info is None else f"{info.size} bytes long, not {file.size}"
            raise StorageFailedError(
                file.path,
                f"read what task {file.task} wrote",
                f"it is {found}; the driver and all executors must mount the same file system",
            )
        for extent in file.extents:
            sources[TopicPartition(extent.topic, extent.partition)].append((file.path, extent))
    return sources


def _batches(storage: Storage, path: str, extent: Extent) -> Iterator[memoryview]:
    """The batches of an extent; each view is valid until the next one is asked for."""
    file: File = storage.open(path, writable=False)
    try:
        position, end = extent.position, extent.position + extent.size
        while position < end:
            with file.view(position, min(max(_WINDOW, extent.largest), end - position)) as window:
                done = 0
                while done + _PREFIX <= len(window):
                    size = _PREFIX + int.from_bytes(window[done + 8 : done + _PREFIX])
                    if done + size > len(window):
                        break
                    yield window[done : done + size]
                    done += size
            if not done:
                raise StorageFailedError(path, "read", f"no whole batch at byte {position}")
            position += done
    finally:
        file.close()


def _publish(area: StagingArea) -> None:
    """Give the directory its name, atomically where the target is new or empty.

    An overwrite takes the old directory away first: between the two renames there is none. An
    error just then puts it back (``StagingArea.remove``), a crash leaves both in the staging area.
    """
    storage = area.storage
    if storage.info(area.target) is not None and storage.scan_dir(area.target):
        lock = storage.lock(os.path.join(area.target, LOCK))  # a broker may be running on it
        try:
            storage.rename(area.target, area.replaced)
        finally:
            lock.release()
    storage.rename(area.directory, area.target)
    storage.sync_dir(area.parent)


__all__ = ["Extent", "StagedFile", "StagingArea", "check_target", "commit"]
