"""Look into a log directory without locking, opening or changing it."""

from __future__ import annotations

import posixpath
import uuid
from contextlib import suppress
from typing import NamedTuple

from checkpoints.errors import CheckpointError, MalformedCheckpointError
from checkpoints.meta_properties import META_PROPERTIES, MetaProperties, MetaPropertiesFile
from checkpoints.partition_metadata import PARTITION_METADATA, PartitionMetadataFile
from logstore.common.errors import InvalidTopicError
from logstore.common.types import TopicPartition
from logstore.format import filenames
from logstore.storage.base import Storage


class DirectoryContent(NamedTuple):
    """What a start would find: the owner, and the logs with the ids of their topics."""

    meta: MetaProperties | None
    logs: dict[TopicPartition, uuid.UUID | None]


def peek(path: str, storage: Storage) -> DirectoryContent:
    """What is in a log directory. What cannot be read is left out: opening it reports that."""
    try:
        meta = MetaPropertiesFile(posixpath.join(path, META_PROPERTIES), storage).read()
    except CheckpointError:
        meta = None
    try:
        entries = storage.scan_dir(path)
    except OSError:
        return DirectoryContent(meta, {})
    logs = {}
    for entry in entries:
        if not entry.is_dir or entry.name == filenames.CLUSTER_METADATA_DIR:
            continue
        try:
            parsed = filenames.parse_partition_dir(entry.name)
        except InvalidTopicError:
            continue
        if not parsed.suffix:
            topic_id = None
            with suppress(CheckpointError):
                topic_id = topic_id_in(posixpath.join(path, entry.name), storage)
            logs[parsed.topic_partition] = topic_id
    return DirectoryContent(meta, logs)


def topic_id_in(directory: str, storage: Storage) -> uuid.UUID | None:
    """The topic id of a partition's directory; None without one that makes sense.

    Raises:
        CheckpointFailedError: the medium refused.
    """
    try:
        found = PartitionMetadataFile(posixpath.join(directory, PARTITION_METADATA), storage).read()
    except MalformedCheckpointError:
        return None
    return None if found is None else found.topic_id
