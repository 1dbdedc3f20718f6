"""The topic id of a partition's directory: a topic of the same name may have been created again."""

from __future__ import annotations

from checkpoints.errors import MalformedCheckpointError
from checkpoints.loggers import get_logger
from checkpoints.partition_metadata import (
    PARTITION_METADATA,
    PartitionMetadataFile,
    topic_id_to_text,
)
from logstore.storage.uri import join_uri, open_storage

logger = get_logger(__name__)


def topic_id(uri: str) -> str:
    """The id that ``partition.metadata`` names, as text; "" where it is missing or malformed.

    Raises:
        OSError: the medium refused.
    """
    storage, path = open_storage(join_uri(uri, PARTITION_METADATA))
    try:
        found = PartitionMetadataFile(path, storage).read()
    except MalformedCheckpointError as error:
        logger.warning("taken as missing: %s", error)
        return ""
    return "" if found is None else topic_id_to_text(found.topic_id)


__all__ = ["topic_id"]
