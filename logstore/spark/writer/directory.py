"""Assemble a log directory from the files of the tasks beside the target, then rename it.

Nothing of a write appears under the target's name before all of it is on the disk. All other files
lie in ``.<name>.writing-<id>`` beside it, which commit and abort remove::

    .backup.writing-5f1c…/tasks/00000003-9a7e…     batches of one task, offsets not yet placed
                         /directory/flights-0/…    the log directory, while it is assembled
                         /replaced/…               what was taken away, where two directories cannot
                                                   change places at once
    .backup.committing                             locked by the write that commits

An append assembles the whole directory, too. Existing segments get a second name in it
(``target.continue_in``), and new rows go to new segments.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat

from pyspark.sql.datasource import WriterCommitMessage

from checkpoints import clean_shutdown
from checkpoints.errors import CheckpointFailedError
from checkpoints.loggers import get_logger
from checkpoints.partition_metadata import topic_id_from_text
from logstore.common.clock import SystemClock
from logstore.common.errors import (
    ConfigError,
    LogDirLockedError,
    ResourceBusyError,
    StorageFailedError,
)
from logstore.common.random_id import new_uuid, random_id
from logstore.common.types import TopicPartition
from logstore.manager import LogManager, ManagerOwner
from logstore.manager.log_dir import LOCK
from logstore.segments.producer_state import AppendOrigin
from logstore.spark.writer.options import WriteOptions
from logstore.spark.writer.target import Target, continue_in, look_at, store_writes
from logstore.storage.base import File, Storage
from logstore.storage.local import NamingStorage

logger = get_logger(__name__)

_WINDOW = 16 << 20  # bytes of a task's file read at a time
_PREFIX = 12  # base offset and length of a batch
_PAUSES_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
"""Between two looks whether another write has committed; the last one again and again."""


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """Consecutive whole batches of one partition in the file of a task."""

    topic: str
    partition: int
    position: int
    size: int
    largest: int  # the largest batch in bytes
    records: int


@dataclass(frozen=True, slots=True)
class StagedFile(WriterCommitMessage):
    """The file that one task wrote, as the task sends it to the driver.

    ``path`` is empty if the task had no rows.
    """

    task: int
    path: str
    size: int
    extents: tuple[WrittenRange, ...]


class StagingArea:
    """The directory of one write. The driver and every executor must see it under the same path."""

    def __init__(self, target: str, write_id: str, storage: NamingStorage | None = None) -> None:
        self.storage = storage or NamingStorage()
        self.write_id = write_id
        # For a link use its target: then the rename stays on one file system, and the link stays.
        self.target = self.storage.real_path(target)
        self.parent, name = os.path.split(self.target)
        self.path = os.path.join(self.parent, f".{name}.writing-{random_id()}")

    @property
    def tasks(self) -> str:
        return os.path.join(self.path, "tasks")

    @property
    def directory(self) -> str:
        return os.path.join(self.path, "directory")

    @property
    def replaced(self) -> str:
        return os.path.join(self.path, "replaced")

    def make(self) -> None:
        """Make the area before the job. A task never makes it, so a late task leaves nothing."""
        self.storage.make_dir(self.tasks)

    def remove(self) -> None:
        """Remove the area as far as possible: an abandoned task may still be writing.

        If the old log directory was moved away and the new one was not renamed, the old one is
        moved back first. If that fails everything stays, because it may be the only copy.
        """
        storage = self.storage
        try:
            if storage.info(self.path) is None:
                return
            if storage.info(self.replaced) is not None and storage.info(self.directory) is not None:
                storage.rename(self.replaced, self.target)
                storage.sync_dir(self.parent)
            with suppress(OSError):  # from now on tasks cannot find it
                storage.rename(self.tasks, f"{self.tasks}.ended")
            storage.remove_tree(self.path)
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("left behind: %s: %s", self.path, error)


# ---- before the job ----------------------------------------------------------------------------


def check_target(area: StagingArea, options: WriteOptions, overwrite: bool) -> Target:
    """Look at the target before the job, and refuse one that must not be written to.

    Raises:
        ConfigError: it is not a log directory, a killed write has moved it away, or a topic in it
            has another number of partitions than the options.
    """
    try:
        target = _look(area)
    except ConfigError:
        if not any(_areas(area)):
            raise
        with _committing(area, options.commit_timeout_ns):  # it may be half way through a commit
            target = _look(area)
    known = target.topics.get(options.topic)
    count = options.partition_count
    if known is not None and not overwrite and count and known.partitions != count:
        raise ConfigError(
            f"{area.target}: {options.topic} has {known.partitions} partitions, not {count} as "
            "numPartitions says"
        )
    return target


def _look(area: StagingArea) -> Target:
    """The target. Refuses one whose last write was killed between its two renames: nothing is
    lost, but a user has to know.
    """
    target = look_at(area.storage, area.target)
    for path in () if target.exists else _areas(area):
        replaced = os.path.join(path, "replaced")
        if area.storage.info(replaced) is not None:
            raise ConfigError(
                f"{area.target} was taken away by a write that was killed: rename {replaced} back"
            )
    return target


def _areas(area: StagingArea) -> Iterator[str]:
    """The staging areas of all writes of the target, also those that were left behind."""
    if area.storage.info(area.parent) is None:
        return
    prefix = f".{os.path.basename(area.target)}.writing-"
    for entry in area.storage.scan_dir(area.parent):
        if entry.name.startswith(prefix):
            yield os.path.join(area.parent, entry.name)


# ---- after the job -----------------------------------------------------------------------------


def commit(
    area: StagingArea,
    staged: Sequence[StagedFile],
    options: WriteOptions,
    before: Target,
    *,
    overwrite: bool,
) -> int:
    """Make the log directory of what the tasks wrote; returns the number of records.

    Offsets follow the numbers of the tasks, and within a task its rows: the same rows in the same
    tasks give the same logs, whatever was retried. Durable on return. If the target has this write
    already, nothing is done. Commits of one target wait for each other.

    Args:
        before: the target before the job, by which partitions were chosen.
    Raises:
        ConfigError: the target has changed since before the job.
        LogDirLockedError: a broker or a ``LogManager`` has the target open.
        ResourceBusyError: other writes were committing all of ``commitTimeout``.
        StorageFailedError: a task's file is missing, or the disk failed.
    """
    try:
        with _committing(area, options.commit_timeout_ns):
            try:
                with _locked(area):
                    return _commit(area, staged, options, before, overwrite)
            finally:
                area.remove()  # before the next one looks: it may put the old directory back
    except (OSError, CheckpointFailedError) as error:
        raise StorageFailedError(area.target, "commit", str(error)) from error
    finally:
        area.remove()


@contextmanager
def _committing(area: StagingArea, timeout_ns: int) -> Iterator[None]:
    """Hold the lock that writes of one target have among themselves, beside the target.

    No other program takes it: whoever has it is a write, so it is waited for. The target's own lock
    tells nothing of its holder. A process that is killed lets go of it.

    Raises:
        ResourceBusyError: after ``timeout_ns``.
    """
    storage, clock = area.storage, SystemClock()
    path = os.path.join(area.parent, f".{os.path.basename(area.target)}.committing")
    give_up_ns = clock.monotonic_ns() + timeout_ns
    for pause_s in chain(_PAUSES_S, repeat(_PAUSES_S[-1])):
        try:
            lock = storage.lock(path)
            break
        except LogDirLockedError as error:
            if clock.monotonic_ns() >= give_up_ns:
                reason = (
                    f"other writes, the last one by {error.holder}, have been committing for "
                    f"{timeout_ns // 10**9} s (commitTimeout)"
                )
                raise ResourceBusyError(area.target, "commit", reason) from None
        threading.Event().wait(pause_s)
    try:
        yield
    finally:
        with suppress(OSError):
            storage.remove(path)  # one that has it open already looks again for its name
        lock.release()


def _commit(
    area: StagingArea,
    staged: Sequence[StagedFile],
    options: WriteOptions,
    before: Target,
    overwrite: bool,
) -> int:
    now = _look(area)
    if area.write_id in now.writes:
        logger.info("%s: write %s is there already", area.target, area.write_id)
        return 0
    sources = _by_partition(area.storage, staged)
    base = Target() if overwrite else now
    if not overwrite:
        _refuse_changes(area, {tp.topic for tp in sources}, before, now)
    if base.exists:
        continue_in(area.storage, area.target, area.directory)
    _assemble(area.storage, area.directory, sources, options, base)
    store_writes(area.storage, area.directory, (*base.writes, area.write_id))
    area.storage.sync_dir(area.directory)
    _publish(area)
    return sum(extent.records for file in staged for extent in file.extents)


@contextmanager
def _locked(area: StagingArea) -> Iterator[None]:
    """Hold the lock of the target, if there is one yet, against brokers."""
    storage = area.storage
    if storage.info(area.target) is None or not storage.scan_dir(area.target):
        yield
        return
    lock = storage.lock(os.path.join(area.target, LOCK))
    try:
        yield
    finally:
        lock.release()


def _refuse_changes(area: StagingArea, topics: set[str], before: Target, now: Target) -> None:
    """Check that the topics have the same ids as before, because rows were placed by their
    partitions.
    """
    for topic in sorted(topics):
        if before.topics.get(topic) != now.topics.get(topic):
            raise ConfigError(
                f"{area.target}: {topic} was made, deleted or changed while the job ran; nothing "
                "was written, run it again"
            )


def _assemble(
    storage: Storage,
    directory: str,
    sources: Mapping[TopicPartition, list[tuple[str, WrittenRange]]],
    options: WriteOptions,
    base: Target,
) -> None:
    """Make the log directory with the log's own code: rolls, indexes, checkpoints and marker."""
    with LogManager(
        [directory],
        options.log_config,
        storage=storage,
        background=False,
        owner=ManagerOwner(cluster_id=options.cluster_id or None, node_id=options.node_id),
    ) as manager:
        partitions = _partitions(sources, options, base)
        logs = {
            tp: manager.get_or_create(*tp, topic_id=partitions[tp]) for tp in sorted(partitions)
        }

        def fill(tp: TopicPartition) -> None:
            log = logs[tp]
            if log.log_end_offset > log.segments[-1].base_offset:
                log.roll()  # existing segments may be links, and must not be written to
            epoch = max(options.leader_epoch, *(epoch for epoch, _ in log.epochs.entries), 0)
            for path, extent in sources[tp]:
                for batch in _batches(storage, path, extent):
                    # The tasks made these bytes, so only the checksum is checked again.
                    log.append_as_leader(batch, epoch, AppendOrigin.REPLICATION)

        for _, error in manager.run_all(partial(fill, tp) for tp in sources):
            if error is not None:
                raise error
    marker = os.path.join(directory, clean_shutdown.CLEAN_SHUTDOWN)
    if not clean_shutdown.exists(marker, storage):
        raise StorageFailedError(directory, "close", "a log was not closed cleanly, see the log")


def _partitions(
    sources: Iterable[TopicPartition], options: WriteOptions, base: Target
) -> dict[TopicPartition, uuid.UUID | None]:
    """All partitions of the write, with the ids of their topics if these exist."""
    found: dict[TopicPartition, uuid.UUID | None] = {}
    for topic in sorted({tp.topic for tp in sources} | ({options.topic} - {""})):
        known = base.topics.get(topic)
        numbers = {tp.partition for tp in sources if tp.topic == topic}
        topic_id = new_uuid(random_id) if known is None else _parsed(known.topic_id)
        for number in numbers.union(range(options.partition_count)):
            found[TopicPartition(topic, number)] = topic_id
    return found


def _parsed(topic_id: str) -> uuid.UUID | None:
    return topic_id_from_text(topic_id) if topic_id else None


def _by_partition(
    storage: Storage, staged: Sequence[StagedFile]
) -> Mapping[TopicPartition, list[tuple[str, WrittenRange]]]:
    sources: dict[TopicPartition, list[tuple[str, WrittenRange]]] = defaultdict(list)
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


def _batches(storage: Storage, path: str, extent: WrittenRange) -> Iterator[memoryview]:
    """The batches of a range. Each view is valid until the next one is requested."""
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
    """Rename the directory to the target, atomically if the target is new or empty, or if the file
    system can exchange two directories.

    Otherwise the old directory is moved away first, and between the two renames there is no target.
    An error then moves it back (``StagingArea.remove``). A crash leaves both in the staging area.
    """
    storage = area.storage
    there = storage.info(area.target) is not None and bool(storage.scan_dir(area.target))
    if not there or not storage.exchange(area.directory, area.target):
        if there:
            storage.rename(area.target, area.replaced)
        storage.rename(area.directory, area.target)
    storage.sync_dir(area.parent)


__all__ = ["StagedFile", "StagingArea", "WrittenRange", "check_target", "commit"]
