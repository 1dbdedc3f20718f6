"""The follower's half of a fetch session: what it told the leader, and what to tell it next
(Kafka's ``FetchSessionHandler``)."""

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


class SessionRequest(NamedTuple):
    """The part of a fetch request that depends on the session."""

    partitions: tuple[FetchPartition, ...]
    session_id: int
    session_epoch: int
    forgotten: tuple[tuple[TopicPartition, uuid.UUID | None], ...] = ()

    @property
    def is_full(self) -> bool:
        return self.session_epoch == INITIAL_SESSION_EPOCH


class SessionOutcome(Enum):
    GOOD = "good"
    LOST = "lost"  # the leader has another view of the session: begin anew, at once
    BAD = "bad"  # the leader does not keep to the protocol


class FetchSessionHandler:
    """One request at a time: ``next_request``, then ``on_answer`` or ``reset``. Not thread-safe."""

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = INITIAL_SESSION_EPOCH
        self._told: dict[TopicPartition, FetchPartition] = {}
        self._doubted: set[TopicPartition] = set()

    def __repr__(self) -> str:
        return f"FetchSessionHandler({self._id}, epoch {self._epoch}, {len(self._told)} told)"

    def next_request(
        self, wanted: Wanted, changed: Iterable[TopicPartition] | None
    ) -> SessionRequest:
        """
        Args:
            wanted: all partitions to fetch, in the order in which they are to be served.
            changed: those that may not be as they were told last; None: any may. Those of ``doubt``
                are among them.
        """
        if self._epoch == INITIAL_SESSION_EPOCH:
            self._told = dict(wanted)
            self._doubted.clear()
            return SessionRequest(tuple(wanted.values()), self._id, self._epoch)
        told, doubted = self._told, self._doubted
        if changed is None:
            changed = [*wanted, *(tp for tp in told if tp not in wanted)]
        parts, forgotten = [], []
        for tp in changed:
            new, old = wanted.get(tp), told.get(tp)
            if (new is old or new == old) and tp not in doubted:
                continue
            doubted.discard(tp)
            if old is not None and (new is None or new.topic_id != old.topic_id):
                forgotten.append((tp, old.topic_id))
            if new is None:
                told.pop(tp, None)
            else:
                parts.append(new)
                told[tp] = new
        return SessionRequest(tuple(parts), self._id, self._epoch, tuple(forgotten))

    def on_answer(self, request: SessionRequest, response: FetchResponse) -> SessionOutcome:
        """What an answer means for the session; the next request is made accordingly (R-143)."""
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
                answered = {(part.tp, part.topic_id) for part in response.partitions}
                if answered != {(part.tp, part.topic_id) for part in request.partitions}:
                    self.reset()  # the session is about others than we asked for
                    return SessionOutcome.BAD
            else:
                self._id = NO_SESSION
            return SessionOutcome.GOOD
        if response.session_id == NO_SESSION:  # closed, for its last partition is forgotten
            self._id = NO_SESSION
            self.reset()
        elif response.session_id == self._id:
            self._epoch = next_session_epoch(self._epoch)
        else:
            self.reset()
            return SessionOutcome.BAD
        return SessionOutcome.GOOD

    def doubt(self, tp: TopicPartition) -> None:
        """What the leader answered of it was not taken over: name it again, so that it is answered
        again."""
        self._doubted.add(tp)

    def reset(self) -> None:
        """The leader may have another view than we: begin with a full request, which ends the
        session that there was."""
        self._epoch = INITIAL_SESSION_EPOCH
        self._told = {}
