"""The files of a log directory that speak of all its partitions (F-9 … F-15)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID

from checkpoints import clean_shutdown
from checkpoints.checkpoint_file import FileState
from checkpoints.errors import CheckpointFailedError, MalformedCheckpointError
from checkpoints.files import UnusableFileError
from checkpoints.meta_properties import META_PROPERTIES, MetaPropertiesFile
from checkpoints.offset_checkpoint import (
    CLEANER,
    HIGH_WATERMARK,
    LOG_START,
    RECOVERY_POINT,
    OffsetCheckpoint,
)
from checkpoints.partition_metadata import (
    PARTITION_METADATA,
    PartitionMetadataFile,
    topic_id_from_text,
)
from checkpoints.printable import printable
from checkpoints.types import TopicPartition
from logstore.format import filenames
from logstore.storage.base import FileInfo, ShowsFiles, Storage
from logstore.verify.common.report import UNKNOWN, Finding, Problem, error, info, warning
from logstore.verify.common.text_files import (
    CheckedFile,
    check_clean_marker,
    check_meta,
    check_offsets,
)
from logstore.verify.partition.ends import LogDirFacts

CHECKPOINTS = (RECOVERY_POINT, LOG_START, HIGH_WATERMARK, CLEANER)
_READ = (*CHECKPOINTS, META_PROPERTIES, clean_shutdown.CLEAN_SHUTDOWN)
_CREATION_PREFIX = "topic-creation-"
_CREATIONS_MAX = 1000


@dataclass(slots=True)
class LogDirCheck:
    """Reads the files of one log directory, before its partitions are checked.

    That order is safe beside a running broker: it raises these offsets only after the log has
    grown.
    """

    storage: Storage
    path: str
    findings: list[Finding] = field(default_factory=list)
    offsets: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    clean: bool = False
    files: int = 0
    broker: str = ""
    cluster_id: str = ""
    findings_max: int = 1000
    suppressed: int = 0
    """How many findings were left out because their file already had ``findings_max``."""
    _reported: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.broker = self.path

    def read(self) -> None:
        """
        Raises:
            OSError: a file cannot be read.
        """
        self._read_marker()
        self._read_meta()
        for name in CHECKPOINTS:
            self._read_offsets(name)

    def _small_file(self, name: str, rule: str) -> CheckedFile:
        return CheckedFile(self.storage, self.path, name, rule, self._find)

    def _find(
        self, name: str, problem: Problem, base: int = UNKNOWN, tp: TopicPartition | None = None
    ) -> None:
        self._reported[name] += 1
        if self._reported[name] > self.findings_max:
            self.suppressed += 1
            return
        self.findings.append(problem.in_file(os.path.join(self.path, name), tp, self.broker, base))

    def _read_marker(self) -> None:
        with self._small_file(clean_shutdown.CLEAN_SHUTDOWN, "clean-marker") as file:
            try:
                self.clean = clean_shutdown.exists(file.path, file)
            except CheckpointFailedError as failure:
                if not isinstance(failure.__cause__, UnusableFileError):
                    raise
                file.report([error("not-a-file", failure.__cause__.reason)])
            self.files += self.clean
            file.report(check_clean_marker(file.data))

    def _read_offsets(self, name: str) -> None:
        with self._small_file(name, "checkpoint-form") as file:
            state, offsets = OffsetCheckpoint(file.path, file).inspect()
            self.files += state is not FileState.MISSING
            self.offsets[name] = offsets
            file.report(check_offsets(file.path, file.data, offsets))

    def _read_meta(self) -> None:
        with self._small_file(META_PROPERTIES, "meta-form") as file:
            meta = MetaPropertiesFile(file.path, file).read()
            if meta is None:
                # No broker formats what is shown of a store, and a tier names no cluster.
                if not isinstance(self.storage, ShowsFiles):
                    message = "missing: a broker refuses a directory that was never formatted"
                    file.report([warning("meta-missing", message)])
                return
            self.files += 1
            self.broker = self.path if meta.node_id is None else str(meta.node_id)
            self.cluster_id = meta.cluster_id or ""
            file.report(check_meta(file.path, file.data, meta.version))

    def facts_of(self, tp: TopicPartition | None) -> LogDirFacts:
        if tp is None:
            return LogDirFacts(self.broker, self.cluster_id, self.clean)
        point, start, mark, cleaner = (
            self.offsets.get(name, {}).get(tp, UNKNOWN) for name in CHECKPOINTS
        )
        points, marks = (name in self.offsets for name in (RECOVERY_POINT, HIGH_WATERMARK))
        return LogDirFacts(
            self.broker, self.cluster_id, self.clean, points, marks, point, start, mark, cleaner
        )

    def check_entries(self, partitions: set[TopicPartition], leaving: set[TopicPartition]) -> None:
        """Report entries of partitions that are not here.

        The next write drops them (F-289, S-55).
        """
        for name, offsets in self.offsets.items():
            others = [tp for tp in offsets if tp not in partitions]
            for tp in sorted(others, key=leaving.__contains__):  # what matters before what is cut
                if tp in leaving:
                    message = f"{_shown(tp)} is being deleted"
                    self._find(name, info("checkpoint-deleted", message, offset=offsets[tp]), tp=tp)
                else:
                    message = f"{_shown(tp)} is not in this directory"
                    self._find(
                        name, warning("checkpoint-stray", message, offset=offsets[tp]), tp=tp
                    )

    def check_names(self, entries: list[FileInfo]) -> None:
        """Report leftovers beside the known files (F-24, F-26)."""
        for entry in entries:
            if not (entry.is_file or entry.is_dir) and entry.name not in _READ:
                message = "is no regular file, or a link to none"
                self._find(entry.name, warning("not-a-file", message))
            elif not entry.is_dir and entry.name.endswith(filenames.TEMPORARY_SUFFIX):
                message = "left behind by a write that was cut short"
                self._find(entry.name, info("temporary-file", message))

    def check_creations(self, entries: list[FileInfo], here: Mapping[str, TopicPartition]) -> None:
        """Report topics whose creation was interrupted, going by the partitions that are here."""
        names = [e.name for e in entries if e.name.startswith(_CREATION_PREFIX) and not e.is_dir]
        names = [n for n in names if not n.endswith(filenames.TEMPORARY_SUFFIX)][:_CREATIONS_MAX]
        ids = self._topic_ids(here) if names else {}
        for name in names:
            self._check_creation(name, ids)

    def _check_creation(self, name: str, ids: Mapping[TopicPartition, UUID]) -> None:
        try:
            topic_id = topic_id_from_text(name.removeprefix(_CREATION_PREFIX))
        except ValueError as failure:
            self._find(name, warning("topic-creation", str(failure)))
            return
        with self._small_file(name, "topic-creation") as file:
            state, offsets = OffsetCheckpoint(file.path, file).inspect()
            if state is FileState.MISSING:
                return
            file.report(check_offsets(file.path, file.data, dict.fromkeys(offsets, 0)))
            for tp, known in ids.items():
                if (tp in offsets) > (known == topic_id):
                    message = f"{_shown(tp)} has another topic id, {known}"
                    self._find(name, warning("topic-creation", message), tp=tp)
                elif known == topic_id and any(other.topic != tp.topic for other in offsets):
                    message = f"{_shown(next(iter(offsets)))}, but {_shown(tp)} has its id"
                    self._find(name, warning("topic-creation", message), tp=tp)
            message = "a topic was being created: the next start completes or removes it"
            file.report([info("topic-creation", message)])

    def _topic_ids(self, here: Mapping[str, TopicPartition]) -> dict[TopicPartition, UUID]:
        found = {}
        for name, tp in here.items():
            path = os.path.join(self.path, name, PARTITION_METADATA)
            with suppress(MalformedCheckpointError, CheckpointFailedError):  # has its own finding
                metadata = PartitionMetadataFile(path, self.storage).read()
                if metadata is not None:
                    found[tp] = metadata.topic_id
        return found

    def refuse_name(self, name: str, reason: str) -> None:
        self._find(name, error("directory-name", reason))

    def note_leftover(self, name: str, suffix: str) -> None:
        message = f"a {suffix} directory: its content is not checked"
        self._find(name, info("directory-skipped", message))


def _shown(tp: TopicPartition) -> str:
    """The whole name if a directory can have it. A checkpoint may hold a topic of any length."""
    return printable(str(tp), filenames.MAX_DIR_NAME)
