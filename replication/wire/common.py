"""Topics around partitions, and codes as values: shared by all translations."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Protocol, TypeVar

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.common.errors import InvalidRequestError
from replication.common.state import RecoveryState
from replication.protocol import ZERO_UUID, MalformedMessageError


class OfPartition(Protocol):
    """A part of a request that is about one partition."""

    @property
    def tp(self) -> TopicPartition: ...


P = TypeVar("P", bound=OfPartition)
T = TypeVar("T")
_CODES = {int(code): code for code in ErrorCode}


def code_of(value: int) -> ErrorCode:
    """The code of an answer. One that a later broker has stands for an unknown error."""
    return _CODES.get(value, ErrorCode.UNKNOWN_SERVER_ERROR)


def nested(parts: Iterable[P], make: Callable[[str, list[P]], T]) -> tuple[T, ...]:
    """Partitions below their topics, in their order."""
    topics = groupby(parts, lambda part: part.tp.topic)
    return tuple([make(topic, [*group]) for topic, group in topics])


def answers_for(
    tps: Iterable[TopicPartition],
    answers: Iterable[tuple[TopicPartition, T]],
    name: str,
    version: int,
) -> list[T]:
    """The answer for each of these partitions.

    Args:
        name: of the message that has the answers.
    Raises:
        MalformedMessageError: an answer is missing.
    """
    found, wanted = dict(answers), []
    for tp in tps:
        if tp not in found:
            raise MalformedMessageError(name, version, -1, f"{tp} is missing")
        wanted.append(found[tp])
    return wanted


def with_answers(
    asked: Sequence[P], answers: Iterable[tuple[TopicPartition, T]], name: str, version: int
) -> Iterator[tuple[P, T]]:
    """Pair each part of a request with its answer. Arguments and errors as of ``answers_for``."""
    return zip(asked, answers_for([part.tp for part in asked], answers, name, version), strict=True)


class OfTopic(OfPartition, Protocol):
    """A part of a request that is about one partition of the topic of that id."""

    @property
    def topic_id(self) -> uuid.UUID | None: ...


Q = TypeVar("Q", bound=OfTopic)


def by_topic(parts: Iterable[Q]) -> dict[tuple[str, uuid.UUID | None], list[Q]]:
    """Partitions by the name and the id of their topic, wherever they stand: Kafka's own classes
    take each topic once."""
    found: dict[tuple[str, uuid.UUID | None], list[Q]] = {}
    for part in parts:
        found.setdefault((part.tp.topic, part.topic_id), []).append(part)
    return found


def known_id(topic_id: uuid.UUID) -> uuid.UUID | None:
    """The id of a topic; None if it has none."""
    return None if topic_id == ZERO_UUID else topic_id


def recovery_state(value: int) -> RecoveryState:
    """
    Raises:
        InvalidRequestError: there is no such state.
    """
    try:
        return RecoveryState(value)
    except ValueError:
        raise InvalidRequestError(f"leader recovery state {value}") from None
