"""What all translations share: topics around partitions, and codes as values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import TypeVar

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.protocol import MalformedMessageError

P = TypeVar("P")
T = TypeVar("T")
_CODES = {int(code): code for code in ErrorCode}


def code_of(value: int) -> ErrorCode:
    """The code of an answer. One that a later broker has stands for an unknown error."""
    return _CODES.get(value, ErrorCode.UNKNOWN_SERVER_ERROR)


def nested(
    parts: Iterable[P], topic_of: Callable[[P], str], make: Callable[[str, list[P]], T]
) -> tuple[T, ...]:
    """Partitions below their topics, in their order."""
    return tuple([make(topic, [*group]) for topic, group in groupby(parts, topic_of)])


def answer_to(found: Mapping[TopicPartition, T], tp: TopicPartition, name: str, version: int) -> T:
    """
    Raises:
        MalformedMessageError: the answer lacks a partition that was asked for.
    """
    if tp not in found:
        raise MalformedMessageError(name, version, -1, f"{tp} is missing")
    return found[tp]
