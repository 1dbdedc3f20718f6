"""From paths to a report: which files there are, and who checks them.

Reads only: nothing is created, locked, cut or changed, so a directory in use by a broker may be
checked. What it writes meanwhile is either not seen, or noted as information.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock

from checkpoints import clean_shutdown
from checkpoints.leader_epoch_checkpoint import LEADER_EPOCH
from checkpoints.meta_properties import META_PROPERTIES
from checkpoints.partition_metadata import PARTITION_METADATA
from checkpoints.types import TopicPartition
from logstore.errors import InvalidTopicError
from logstore.format import filenames
from logstore.storage.base import FileInfo, Storage
from logstore.storage.local import LocalStorage
from logstore.verify.directory import CHECKPOINTS, LogDirCheck
from logstore.verify.partition import LogDirFacts, PartitionCheck
from logstore.verify.report import UNKNOWN, Finding, VerifyReport, error
from logstore.verify.scan import SegmentResult, VerifyOptions, verify_segment

Progress = Callable[[int, int], None]
"""Told the bytes of segments checked so far, and of all that are known of. From any thread."""

_OUTSTANDING_MAX = 16
"""Partitions whose small files are read ahead of their segments: few, as these files age."""

_DIR_FILES = (*CHECKPOINTS, META_PROPERTIES, clean_shutdown.CLEAN_SHUTDOWN)
_PARTITION_FILES = (LEADER_EPOCH, PARTITION_METADATA)


def verify(
    paths: Iterable[str | os.PathLike[str]],
    options: VerifyOptions | None = None,
    *,
    storage: Storage | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check log directories, partition directories or single files of them.

    Damage is a finding, never an exception; what cannot be read at all is listed in the report's
    ``unusable``, and the rest is checked.
    """
    walker = _Walker(storage or LocalStorage(), options or VerifyOptions(), progress)
    with ThreadPoolExecutor(walker.threads, thread_name_prefix="logstore-verify") as pool:
        walker.pool = pool
        for path in paths:
            walker.walk(os.fspath(path))
        walker.drain(0)
    return walker.report


@dataclass(slots=True)
class _Pending:
    check: PartitionCheck
    futures: list[Future[SegmentResult]]


@dataclass(slots=True)
class _Walker:
    storage: Storage
    options: VerifyOptions
    progress: Progress | None
    report: VerifyReport = field(default_factory=VerifyReport)
    pool: ThreadPoolExecutor | None = None
    _pending: deque[_Pending] = field(default_factory=deque)
    _guard: Lock = field(default_factory=Lock)
    _done: int = 0
    _total: int = 0

    @property
    def threads(self) -> int:
        return self.options.threads or min(8, os.cpu_count() or 1)

    def walk(self, path: str) -> None:
        try:
            found = self.storage.info(path)
            if found is None:
                self.report.unusable.append(f"{path}: no such file or directory")
            elif not found.is_dir:
                self._file(path)
            else:
                entries = self.storage.scan_dir(path)
                if _is_partition(path, entries):
                    self._count(entries)
                    self._partition(path, self._facts_beside(path))
                else:
                    self._log_dir(path, entries)
        except OSError as failure:
            self._refused(path, failure)

    def _refused(self, path: str, failure: OSError) -> None:
        reason = str(failure)
        self.report.unusable.append(reason if path in reason else f"{path}: {reason}")

    # -- progress ------------------------------------------------------------------------------

    def _count(self, entries: Iterable[FileInfo]) -> None:
        logs = (e.size for e in entries if e.name.endswith(filenames.LOG_SUFFIX) and not e.is_dir)
        self._total += sum(logs)

    def _advance(self, count: int) -> None:
        with self._guard:
            self._done += count
            if self.progress is not None:
                self.progress(self._done, max(self._total, self._done))

    # -- directories ---------------------------------------------------------------------------

    def _log_dir(self, path: str, entries: list[FileInfo]) -> None:
        check = LogDirCheck(self.storage, path)
        check.read()
        check.check_names(entries)
        here: dict[str, TopicPartition] = {}
        leaving: set[TopicPartition] = set()
        moving: list[str] = []
        for entry in entries:
            if not entry.is_dir or entry.name == filenames.REMOTE_LOG_INDEX_CACHE:
                continue
            try:
                parsed = filenames.parse_partition_dir(entry.name)
            except InvalidTopicError as failure:
                check.refuse_name(entry.name, str(failure))
                continue
            if parsed.suffix in ("", filenames.FUTURE_DIR_SUFFIX):
                if parsed.suffix:
                    moving.append(entry.name)
                else:
                    here[entry.name] = parsed.topic_partition
                if self.progress is not None:
                    self._count(self.storage.scan_dir(os.path.join(path, entry.name)))
            else:
                leaving.add(parsed.topic_partition)
                check.note_leftover(entry.name, parsed.suffix)
        check.check_entries(set(here.values()), leaving)
        self.report.files += check.files
        self.report.extend(check.findings)
        checks = [
            self._partition(os.path.join(path, name), check.facts_of(tp))
            for name, tp in here.items()
        ]
        for name in moving:
            self._partition(os.path.join(path, name), LogDirFacts(check.clean))
        self._check_topic_ids(zip(here.values(), checks, strict=True))

    def _check_topic_ids(
        self, checks: Iterable[tuple[TopicPartition, PartitionCheck | None]]
    ) -> None:
        """All partitions of a topic carry one id (F-37)."""
        ids: dict[str, tuple[str, object]] = {}
        for tp, check in checks:
            if check is None or check.metadata is None:
                continue
            path = os.path.join(check.directory, PARTITION_METADATA)
            first_path, topic_id = ids.setdefault(tp.topic, (path, check.metadata.topic_id))
            if topic_id != check.metadata.topic_id:
                message = f"topic id {check.metadata.topic_id}, in {first_path} it is {topic_id}"
                problem = error("F-37", 2, UNKNOWN, message)
                self.report.findings.append(
                    Finding(problem.severity, problem.rule, path, message, *tp, position=2)
                )

    def _facts_beside(self, path: str) -> LogDirFacts:
        """What the log directory around a partition says of it, if there is one."""
        parent = os.path.dirname(os.path.abspath(path))
        try:
            if not any(self.storage.info(os.path.join(parent, name)) for name in _DIR_FILES):
                return LogDirFacts()
            check = LogDirCheck(self.storage, parent)
            check.read()
            name = filenames.parse_partition_dir(os.path.basename(os.path.abspath(path)))
            return check.facts_of(None if name.suffix else name.topic_partition)
        except (OSError, InvalidTopicError):
            return LogDirFacts()

    def _partition(
        self, path: str, facts: LogDirFacts, only: int = UNKNOWN
    ) -> PartitionCheck | None:
        assert self.pool is not None
        check = PartitionCheck(self.storage, path, self.options, facts, only)
        try:
            check.prepare()
        except OSError as failure:
            self._refused(path, failure)
            return None
        futures = [
            self.pool.submit(verify_segment, self.storage, job, self.options, self._advance)
            for job in check.jobs
        ]
        self._pending.append(_Pending(check, futures))
        self.drain(_OUTSTANDING_MAX)
        return check

    def drain(self, left: int) -> None:
        """Join the oldest partitions until ``left`` are outstanding."""
        while len(self._pending) > left:
            pending = self._pending.popleft()
            check = pending.check
            try:
                results = [future.result() for future in pending.futures]
                self.report.partitions.append(check.finish(results))
            except OSError as failure:
                for future in pending.futures:
                    future.cancel()
                self._refused(check.directory, failure)
            self.report.files += check.files
            self.report.suppressed += check.suppressed
            self.report.extend(check.findings)

    # -- single files --------------------------------------------------------------------------

    def _file(self, path: str) -> None:
        """A file of a segment is checked with its neighbours, any other one by itself."""
        name = os.path.basename(path)
        directory = os.path.dirname(path) or "."
        parsed = filenames.parse_segment_file(name)
        if parsed is not None and parsed.suffix != filenames.SNAPSHOT_SUFFIX:
            if parsed.transition or name != filenames.segment_file_name(*parsed[:2]):
                reason = "only files with their final name can be checked"
                self.report.unusable.append(f"{path}: {reason}")
                return
            log = os.path.join(directory, filenames.segment_file_name(parsed.offset, ".log"))
            if self.storage.info(log) is None:
                self.report.unusable.append(f"{path}: there is no .log beside it to compare with")
                return
            self._partition(directory, self._facts_beside(directory), parsed.offset)
        elif parsed is not None or name in _PARTITION_FILES:
            self._small_file(directory, name)
        elif name in _DIR_FILES:
            check = LogDirCheck(self.storage, directory)
            check.read()
            self.report.files += 1
            self.report.extend(f for f in check.findings if os.path.basename(f.file) == name)
        else:
            reason = "not a file of a log directory, going by its name"
            self.report.unusable.append(f"{path}: {reason}")

    def _small_file(self, directory: str, name: str) -> None:
        check = PartitionCheck(self.storage, directory, self.options)
        check.read_small(name)
        self.report.files += 1
        self.report.extend(f for f in check.findings if os.path.basename(f.file) == name)


def _is_partition(path: str, entries: Iterable[FileInfo]) -> bool:
    """A directory with files of segments, or an empty one with the name of a partition."""
    names = [entry.name for entry in entries if not entry.is_dir]
    if any(name in _PARTITION_FILES or filenames.parse_segment_file(name) for name in names):
        return True
    try:
        filenames.parse_partition_dir(os.path.basename(os.path.abspath(path)))
    except InvalidTopicError:
        return False
    return not any(entry.is_dir or entry.name in _DIR_FILES for entry in entries)


__all__ = ["Progress", "VerifyOptions", "verify"]
