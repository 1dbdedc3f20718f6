"""The follower's side of a fetch session: what it has sent, and what to send next (Kafka's
``FetchSessionHandler``).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    INITIAL_SESSION_EPOCH,
    NO_SESSION,
    FetchPartition,
    FetchResponse,
    next_session_epoch,
)

Wanted = Mapping[TopicPartition, FetchPartition]
SPARE_NAMES = 16  # of topics that left the session


class SessionRequest(NamedTuple):
    """The part of a fetch request that depends on the session.

    Attributes:
        names: of all topics in the session by id, also of some that were in it.
    """

    partitions: tuple[FetchPartition, ...]
    session_id: int
    session_epoch: int
    forgotten: tuple[tuple[TopicPartition, uuid.UUID | None], ...] = ()
    names: Mapping[uuid.UUID | None, str] = {}

    @property
    def is_full(self) -> bool:
        return self.session_epoch == INITIAL_SESSION_EPOCH


class SessionOutcome(Enum):
    GOOD = "good"
    LOST = "lost"  # the leader has another view of the session: begin a new one at once
    BAD = "bad"  # the leader breaks the protocol


class FetchSessionHandler:
    """A session with one request at a time: ``next_request``, then ``on_answer`` or ``reset``.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = INITIAL_SESSION_EPOCH
        self._sent: dict[TopicPartition, FetchPartition] = {}
        self._names: dict[uuid.UUID | None, str] = {}  # of the topics in it
        self._doubted: set[TopicPartition] = set()

    def __repr__(self) -> str:
        return f"FetchSessionHandler({self._id}, epoch {self._epoch}, {len(self._sent)} sent)"

    def next_request(
        self, wanted: Wanted, changed: Iterable[TopicPartition] | None
    ) -> SessionRequest:
        """
        Args:
            wanted: all partitions to fetch, in the order to serve them.
            changed: partitions that may differ from what was last sent, those of ``doubt``
                included; None means that any may.
        """
        if self._epoch == INITIAL_SESSION_EPOCH:
            self._sent = dict(wanted)
            self._names = _names(wanted)
            self._doubted.clear()
            return SessionRequest(tuple(wanted.values()), self._id, self._epoch, names=self._names)
        known, doubted = self._sent, self._doubted
        if changed is None:
            changed = [*wanted, *(tp for tp in known if tp not in wanted)]
        parts, forgotten = [], []
        for tp in changed:
            new, old = wanted.get(tp), known.get(tp)
            if (new is old or new == old) and tp not in doubted:
                continue
            doubted.discard(tp)
            stays = new is not None and old is not None and _is_of_topic(new, old.topic_id)
            if old is not None and not stays:
                forgotten.append((tp, old.topic_id))
            if new is None:
                known.pop(tp, None)
                continue
            parts.append(new)
            known[tp] = new
            if not stays:
                self._names[new.topic_id] = tp.topic
        if len(self._names) > 2 * len(known) + SPARE_NAMES:
            self._names = _names(known)
        return SessionRequest(tuple(parts), self._id, self._epoch, tuple(forgotten), self._names)

    def on_answer(self, request: SessionRequest, response: FetchResponse) -> SessionOutcome:
        """Judge an answer, which decides the form of the next request (R-143)."""
        if response.error_code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self._id = NO_SESSION
            self.reset()
            return SessionOutcome.BAD if request.is_full else SessionOutcome.LOST
        if response.error_code:
            self.reset()
            return SessionOutcome.BAD if request.is_full else SessionOutcome.LOST
        if request.is_full:
            if response.session_id != NO_SESSION:
                self._id, self._epoch = response.session_id, next_session_epoch(self._epoch)
                asked = {part.tp: part.topic_id for part in request.partitions}
                answered = {part.tp: part.topic_id for part in response.partitions}
                # An older leader names topics without their ids.
                if asked != {tp: topic_id or asked.get(tp) for tp, topic_id in answered.items()}:
                    self.reset()  # the session has other partitions than we requested
                    return SessionOutcome.BAD
            else:
                self._id = NO_SESSION
            return SessionOutcome.GOOD
        if response.session_id == NO_SESSION:  # closed, because its last partition is forgotten
            self._id = NO_SESSION
            self.reset()
        elif response.session_id == self._id:
            self._epoch = next_session_epoch(self._epoch)
        else:
            self.reset()
            return SessionOutcome.BAD
        return SessionOutcome.GOOD

    def doubt(self, tp: TopicPartition) -> None:
        """Name a partition again whose answer was not applied, so that it is answered again."""
        self._doubted.add(tp)

    def reset(self) -> None:
        """Begin with a full request, which ends the session: the leader's view may differ."""
        self._epoch = INITIAL_SESSION_EPOCH
        self._sent = {}


def _is_of_topic(part: FetchPartition, topic_id: uuid.UUID | None) -> bool:
    # Looked at first: an id that is equal takes two calls of Python.
    return part.topic_id is topic_id or part.topic_id == topic_id


def _names(partitions: Wanted) -> dict[uuid.UUID | None, str]:
    return {part.topic_id: tp.topic for tp, part in partitions.items()}
