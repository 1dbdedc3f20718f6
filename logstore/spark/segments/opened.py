"""Open the segment of a split: the file that it was planned from, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from checkpoints.loggers import get_logger
from logstore.format import filenames
from logstore.spark.common.errors import DataLossError
from logstore.spark.common.splits import ReadSettings, Split
from logstore.spark.layout.identity import topic_id
from logstore.storage.base import File, Storage
from logstore.storage.uri import join_uri, open_storage

_NAMES = ("", filenames.SWAP_SUFFIX, "", filenames.DELETED_SUFFIX)
"""Suffixes that a segment may have.

Retention and compaction rename what they remove, and delete it a minute later; until then it can be
read. A rolled segment gets its final name when all before it is durable.
"""

logger = get_logger(__name__)


@dataclass(slots=True)
class OpenedSegment:
    split: Split
    settings: ReadSettings
    file: File
    storage: Storage
    _told: bool = False

    def broken(self) -> str:
        """Why the file is not the one that the split was planned from; "" if it is."""
        if self.split.proof is not None:
            return self.split.proof.broken(self.file, self.storage)
        size = self.file.size()
        if size < self.split.end_position:
            return f"the segment was cut from {self.split.end_position} to {size} bytes meanwhile"
        return ""

    def check(self) -> None:
        """
        Raises:
            DataLossError: the file is not the one that the split was planned from.
        """
        reason = "" if self._told else self.broken()
        if reason:
            self._told = True
            lost(self.split, self.settings, reason)


def lost(split: Split, settings: ReadSettings, reason: str) -> None:
    loss = DataLossError(split.path, split.from_offset, split.end_offset, reason)
    if settings.fail_on_data_loss:
        raise loss
    logger.warning("%s", loss)


@contextmanager
def opened(split: Split, settings: ReadSettings) -> Iterator[OpenedSegment | None]:
    """The segment; ``None`` if it is gone and failOnDataLoss is off.

    Raises:
        DataLossError: it was deleted, cut or replaced.
        OSError: the medium refused.
    """
    segment, reason = _find(split, settings)
    try:
        if segment is None:
            lost(split, settings, _other_topic(split) or reason)
        else:
            segment.check()
        yield segment
    finally:
        if segment is not None:
            segment.file.close()


def _find(split: Split, settings: ReadSettings) -> tuple[OpenedSegment | None, str]:
    """The file under one of its names, or why there is none."""
    reason = "the segment was deleted meanwhile"
    for transition in _NAMES:
        name = filenames.segment_file_name(split.segment_base, filenames.LOG_SUFFIX, transition)
        storage, path = open_storage(join_uri(split.uri, name))
        try:
            file = storage.open(path, writable=False)
        except FileNotFoundError:
            continue
        try:
            segment = OpenedSegment(split, settings, file, storage)
            if split.proof is None or split.proof.is_of(file, storage):
                return segment, ""
        except BaseException:
            file.close()
            raise
        file.close()
        reason = "the segment was replaced by another one meanwhile: run the query again"
    return None, reason


def _other_topic(split: Split) -> str:
    found = topic_id(split.uri)
    if not split.topic_id or found in ("", split.topic_id):
        return ""
    return f"the topic was deleted and created again: its id was {split.topic_id}, and is {found}"


__all__ = ["OpenedSegment", "opened"]
