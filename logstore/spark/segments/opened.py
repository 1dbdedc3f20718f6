"""A split's segment, opened: the file that it was planned from and no other."""

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
"""What a segment may be called. Retention and compaction rename what they take away, and delete it
a minute later: until then it can be read. One that was rolled gets its name when what is before it
is durable."""

logger = get_logger(__name__)


@dataclass(slots=True)
class Segment:
    split: Split
    settings: ReadSettings
    file: File
    storage: Storage
    _told: bool = False

    def broken(self) -> str:
        """Why the file is not what the split was planned from; "" where it is."""
        if self.split.proof is not None:
            return self.split.proof.broken(self.file, self.storage)
        size = self.file.size()
        if size < self.split.end_position:
            return f"the segment was cut from {self.split.end_position} to {size} bytes meanwhile"
        return ""

    def check(self) -> None:
        """
        Raises:
            DataLossError: what was read is not what the split was planned from.
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
def opened(split: Split, settings: ReadSettings) -> Iterator[Segment | None]:
    """The segment; ``None`` when it is gone and the caller is content with what is there.

    Raises:
        DataLossError: it is gone, cut or replaced by another.
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


def _find(split: Split, settings: ReadSettings) -> tuple[Segment | None, str]:
    """The file under one of its names, and why there is none."""
    reason = "the segment was deleted meanwhile"
    for transition in _NAMES:
        name = filenames.segment_file_name(split.segment_base, filenames.LOG_SUFFIX, transition)
        storage, path = open_storage(join_uri(split.uri, name))
        try:
            file = storage.open(path, writable=False)
        except FileNotFoundError:
            continue
        try:
            segment = Segment(split, settings, file, storage)
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
    return f"the topic was deleted and made anew: its id was {split.topic_id}, and is {found}"


__all__ = ["Segment", "opened"]
