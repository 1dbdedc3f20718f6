"""The whole rescue: from sources to a new log directory."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress

from checkpoints import (
    LOG_START,
    META_PROPERTIES,
    OffsetCheckpoint,
    PartitionMetadata,
    PartitionMetadataFile,
    TopicPartition,
    TopicPropertiesFile,
)
from checkpoints.partition_metadata import PARTITION_METADATA
from checkpoints.printable import printable
from checkpoints.topic_properties import TOPIC_PROPERTIES
from logstore.common.config import LogConfig
from logstore.common.errors import ConfigError, LogDirLockedError, RescueError
from logstore.common.random_id import random_id
from logstore.format import filenames
from logstore.log import run_inline
from logstore.manager import LogManager, ManagerOwner
from logstore.rescue.partition import PartitionMerge, RescueWriter
from logstore.rescue.report import RescueReport
from logstore.rescue.sources import LOCK, SourceReader, SourceReplica, Sources, choose_topic_ids
from logstore.rescue.survey import FilePool
from logstore.storage.base import Storage
from logstore.storage.local import LocalStorage
from logstore.storage.paths import Paths, each_path

Progress = Callable[[int, int], None]
"""Bytes surveyed, bytes in all."""


def rescue(
    sources: Paths,
    target: str | os.PathLike[str],
    *,
    topic_ids: Mapping[str, uuid.UUID] | None = None,
    broker: int | None = None,
    dry_run: bool = False,
    partitions: Container[TopicPartition] | None = None,
    storage: Storage | None = None,
    progress: Progress | None = None,
) -> RescueReport:
    """Make a new log directory from what can be read in ``sources``, which are not changed.

    Args:
        sources: log directories or partition directories, not in use.
        target: must be missing or an empty directory. It appears complete, or not at all.
        topic_ids: of topics for which the sources have several.
        broker: the source with this node id gives its ``meta.properties``; by default the source
            does, if all have the same.
        partitions: only these; by default all.
    Raises:
        ConfigError: the sources do not belong together, or the target is in use.
        LogDirLockedError: a source is in use.
        RescueError: a source changed during the rescue.
        OSError: the target could not be written; there is no target then.
    """
    job = _Rescue(storage or LocalStorage(), each_path(sources), target, broker, progress)
    return job.run(topic_ids or {}, dry_run, partitions)


class _Rescue:
    def __init__(
        self,
        storage: Storage,
        sources: Sequence[str],
        target: str | os.PathLike[str],
        broker: int | None,
        progress: Progress | None,
    ) -> None:
        self._storage, self._target = storage, os.path.abspath(target)
        self._paths = list(dict.fromkeys(storage.real_path(path) for path in sources))
        self._broker, self._progress = broker, progress
        self._done = self._total = 0

    def run(
        self,
        topic_ids: Mapping[str, uuid.UUID],
        dry_run: bool,
        partitions: Container[TopicPartition] | None,
    ) -> RescueReport:
        self._check_target()
        with ExitStack() as stack:
            for path in self._paths:
                stack.enter_context(_not_in_use(self._storage, path))
            if dry_run:  # which keeps no broker from starting
                stack.close()
            found = self._read_sources()
            ids = choose_topic_ids(found, topic_ids)
            if partitions is not None:
                found.replicas = {tp: r for tp, r in found.replicas.items() if tp in partitions}
            meta = self._meta_source(found)
            self._total = found.bytes
            report = RescueReport(self._target, dry_run, notes=found.notes)
            pool = FilePool(self._storage)
            stack.callback(pool.close)
            if dry_run:
                for tp, replicas in sorted(found.replicas.items()):
                    merge = PartitionMerge(tp, replicas, pool, self._count_bytes)
                    report.partitions.append(merge.run(None))
            else:
                with self._staging() as staging:
                    self._write(staging, found, ids, pool, report)
                    self._finish(staging, report, meta)
        return report

    # -- sources and target ------------------------------------------------------------------------

    def _check_target(self) -> None:
        info = self._storage.info(self._target)
        if info is not None and (not info.is_dir or self._storage.scan_dir(self._target)):
            raise ConfigError(f"{printable(self._target)} is there already, and not empty")
        real = self._storage.real_path(self._target)
        for path in self._paths:
            if (real + os.sep).startswith(path.rstrip(os.sep) + os.sep):
                raise ConfigError(f"{printable(self._target)} lies in {printable(path)}")

    def _read_sources(self) -> Sources:
        reader = SourceReader(self._storage)
        for path in self._paths:
            reader.add(path)
        found = reader.found
        clusters = {meta.cluster_id for meta in found.metas.values() if meta.cluster_id}
        if len(clusters) > 1:
            names = ", ".join(printable(name, 200) for name in sorted(clusters))
            raise ConfigError(f"the sources belong to different clusters: {names}")
        return found

    def _meta_source(self, found: Sources) -> str | None:
        """The source whose ``meta.properties`` the result gets."""
        nodes: dict[int | None, str] = {}
        for path, meta in found.metas.items():
            nodes.setdefault(meta.node_id, path)
        if self._broker is not None and self._broker not in nodes:
            raise ConfigError(f"no source is of broker {self._broker}")
        if self._broker is not None:
            return nodes[self._broker]
        if len(nodes) == 1:
            return next(iter(nodes.values()))
        why = "no source has one"
        if nodes:
            ids = ", ".join(str(node) for node in nodes if node is not None)
            why = f"the sources are of different brokers; give --broker ID, one of {ids}"
        found.notes.append(f"the result has no {META_PROPERTIES}: {why}")
        return None

    # -- the result --------------------------------------------------------------------------------

    @contextmanager
    def _staging(self) -> Iterator[str]:
        """A directory beside the target, removed if the work in it fails."""
        staging = f"{self._target}.rescue-{random_id()[:8]}"
        self._storage.make_dir(staging)
        try:
            yield staging
        except BaseException:
            with suppress(OSError):
                self._storage.remove_tree(staging)
            raise

    def _write(
        self,
        staging: str,
        found: Sources,
        ids: Mapping[str, uuid.UUID],
        pool: FilePool,
        report: RescueReport,
    ) -> None:
        starts: dict[TopicPartition, int] = {}
        for tp, replicas in sorted(found.replicas.items()):
            directory = os.path.join(staging, filenames.partition_dir_name(tp))
            self._storage.make_dir(directory)
            config = self._small_files(directory, ids.get(tp.topic), replicas)
            merge = PartitionMerge(tp, replicas, pool, self._count_bytes)
            writer = RescueWriter(self._storage, directory, merge.bases, config.segment_bytes)
            report.partitions.append(merge.run(writer))
            if merge.log_start > 0:
                starts[tp] = merge.log_start
            self._storage.sync_dir(directory)
        OffsetCheckpoint(os.path.join(staging, LOG_START), self._storage).write(starts)

    def _small_files(
        self, directory: str, topic_id: uuid.UUID | None, replicas: Sequence[SourceReplica]
    ) -> LogConfig:
        if topic_id is not None:
            path = os.path.join(directory, PARTITION_METADATA)
            PartitionMetadataFile(path, self._storage).write(PartitionMetadata(topic_id))
        known = [r.properties for r in replicas if r.properties is not None]
        if not known:
            return LogConfig()
        latest = max(known, key=lambda properties: properties.revision)
        with suppress(ConfigError):
            config = LogConfig.from_properties(dict(latest.values))
            path = os.path.join(directory, TOPIC_PROPERTIES)
            TopicPropertiesFile(path, self._storage).write(latest)
            return config
        return LogConfig()

    def _count_bytes(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._total)

    def _finish(self, staging: str, report: RescueReport, meta: str | None) -> None:
        """Rebuild indexes, epoch files, producer snapshots and checkpoints as a start after a crash
        does. Then give the directory its name.
        """
        manager = LogManager(
            [staging], storage=self._storage, owner=ManagerOwner(run_later=run_inline)
        )
        try:
            self._check(manager, report)
        except BaseException:
            manager.crash()
            raise
        manager.close()
        own = os.path.join(staging, META_PROPERTIES)
        if meta is None:
            self._storage.remove(own)
        else:
            content = self._storage.read_file(os.path.join(meta, META_PROPERTIES))
            self._storage.write_file(own, content)
        self._storage.remove(os.path.join(staging, LOCK))
        self._storage.sync_dir(staging)
        self._storage.rename(staging, self._target)
        self._storage.sync_dir(os.path.dirname(self._target))

    def _check(self, manager: LogManager, report: RescueReport) -> None:
        """Check that the log reads back exactly what was written."""
        unavailable = manager.unavailable_logs
        for found in report.partitions:
            tp = TopicPartition(found.topic, found.partition)
            if tp in unavailable:
                raise RescueError(f"{tp} cannot be opened: {unavailable[tp].reason}")
            log = manager.get(*tp)
            recovered = log.recovery_report
            if recovered.bytes_cut or log.log_end_offset != max(found.end, found.start):
                raise RescueError(f"{tp} changed while it was read: {recovered.cut_reason}")
            first = log.replica.first_unstable_offset
            if first is not None:
                text = f"a transaction is open from offset {first} on; its end is not in the log"
                found.add(found.notes, text)


@contextmanager
def _not_in_use(storage: Storage, path: str) -> Iterator[None]:
    """Hold the lock of a source that has one.

    A source that cannot be locked because it is read-only is not in use.
    """
    lock = None
    for directory in (path, os.path.dirname(path)):
        name = os.path.join(directory, LOCK)
        if storage.info(name) is not None:
            with suppress(OSError):
                lock = storage.lock(name)
            break
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


__all__ = ["LogDirLockedError", "Progress", "rescue"]
