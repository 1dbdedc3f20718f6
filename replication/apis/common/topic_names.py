"""Names that topics can have, and the error for a topic that is not there."""

from __future__ import annotations

import uuid
from typing import NamedTuple

from logstore.common.errors import InvalidTopicError
from logstore.format.filenames import validate_topic
from replication.common.error_codes import ErrorCode


class TopicNameOrId(NamedTuple):
    """A topic as a request names it: by name, or by id alone."""

    name: str | None
    topic_id: uuid.UUID


def is_valid(name: str) -> bool:
    """Whether a topic can have that name."""
    try:
        validate_topic(name)
    except InvalidTopicError:
        return False
    return True


def missing_code(name: str) -> ErrorCode:
    """The error for a topic that is not there."""
    valid = is_valid(name)
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if valid else ErrorCode.INVALID_TOPIC_EXCEPTION
