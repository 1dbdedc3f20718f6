"""The files of a log directory that speak of all its partitions (F-9 … F-15)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from checkpoints import clean_shutdown
from checkpoints.checkpoint_file import FileState
from checkpoints.errors import CheckpointFailedError, MalformedCheckpointError
from checkpoints.meta_properties import META_PROPERTIES, MetaPropertiesFile
from checkpoints.offset_checkpoint import (
    CLEANER,
    HIGH_WATERMARK,
    LOG_START,
    RECOVERY_POINT,
    OffsetCheckpoint,
)
from checkpoints.types import TopicPartition
from logstore.format import filenames
from logstore.storage.base import FileInfo, Storage
from logstore.verify.partition import LogDirFacts, malformed
from logstore.verify.report import UNKNOWN, Finding, Problem, error, info, warning

CHECKPOINTS = (RECOVERY_POINT, LOG_START, HIGH_WATERMARK, CLEANER)


@dataclass(slots=True)
class LogDirCheck:
    """Reads the files of one log directory, before its partitions are looked at.

    A running broker only moves these offsets up, after the log has grown.
    """

    storage: Storage
    path: str
    findings: list[Finding] = field(default_factory=list)
    offsets: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    clean: bool = False
    files: int = 0
    broker: str = ""
    cluster_id: str = ""

    def __post_init__(self) -> None:
        self.broker = self.path

    def read(self) -> None:
        """
        Raises:
            OSError: the medium refused.
        """
        try:
            marker = os.path.join(self.path, clean_shutdown.CLEAN_SHUTDOWN)
            self.clean = clean_shutdown.exists(marker, self.storage)
            self.files += self.clean
            self._read_meta()
            for name in CHECKPOINTS:
                self._read_offsets(name)
        except CheckpointFailedError as failure:
            raise OSError(str(failure)) from failure

    def _find(self, name: str, problem: Problem, tp: TopicPartition | None = None) -> None:
        severity, rule, position, offset, message = problem
        topic, partition = tp or ("", UNKNOWN)
        path = os.path.join(self.path, name)
        finding = Finding(
            severity, rule, path, message, topic, partition, UNKNOWN, position, offset,
            self.broker,
        )  # fmt: skip
        self.findings.append(finding)

    def _read_offsets(self, name: str) -> None:
        try:
            state, offsets = OffsetCheckpoint(os.path.join(self.path, name), self.storage).inspect()
        except MalformedCheckpointError as failure:
            self._find(name, malformed("F-31", failure))
            return
        self.files += state is not FileState.MISSING
        self.offsets[name] = offsets

    def _read_meta(self) -> None:
        path = os.path.join(self.path, META_PROPERTIES)
        try:
            meta = MetaPropertiesFile(path, self.storage).read()
        except MalformedCheckpointError as failure:
            self._find(META_PROPERTIES, malformed("F-39", failure))
            return
        if meta is None:
            message = "missing: a broker refuses a directory that was never formatted"
            self._find(META_PROPERTIES, warning("F-10", UNKNOWN, UNKNOWN, message))
        else:
            self.files += 1
            self.broker = self.path if meta.node_id is None else str(meta.node_id)
            self.cluster_id = meta.cluster_id or ""

    def facts_of(self, tp: TopicPartition | None) -> LogDirFacts:
        if tp is None:
            return LogDirFacts(self.broker, self.cluster_id, self.clean)
        point, start, mark, cleaner = (
            self.offsets.get(name, {}).get(tp, UNKNOWN) for name in CHECKPOINTS
        )
        return LogDirFacts(self.broker, self.cluster_id, self.clean, point, start, mark, cleaner)

    def check_entries(self, partitions: set[TopicPartition], leaving: set[TopicPartition]) -> None:
        """Entries of partitions that are not here; they go with the next write (F-289, S-55)."""
        for name, offsets in self.offsets.items():
            for tp in offsets:
                if tp in partitions:
                    continue
                if tp in leaving:
                    message = f"{tp} is being deleted"
                    self._find(name, info("F-289", UNKNOWN, offsets[tp], message), tp)
                else:
                    message = f"{tp} is not in this directory"
                    self._find(name, warning("S-55", UNKNOWN, offsets[tp], message), tp)

    def check_names(self, entries: list[FileInfo]) -> None:
        """Leftovers beside the known files (F-24, F-26)."""
        for entry in entries:
            if not entry.is_dir and entry.name.endswith(filenames.TEMPORARY_SUFFIX):
                message = "left behind by a write that was cut short"
                self._find(entry.name, info("F-26", UNKNOWN, UNKNOWN, message))

    def refuse_name(self, name: str, reason: str) -> None:
        self._find(name, error("F-6", UNKNOWN, UNKNOWN, reason))

    def note_leftover(self, name: str, suffix: str) -> None:
        message = f"a {suffix} directory: its content is not checked"
        self._find(name, info("F-3", UNKNOWN, UNKNOWN, message))
