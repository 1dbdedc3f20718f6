"""Who fetches through a session of a ``Host``, and what it believes by what it was told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    CONSUMER,
    FetchPartition,
    FetchPartitionResponse,
    FetchResponse,
)
from replication.fetcher.fetch_session_handler import (
    FetchSessionHandler,
    SessionOutcome,
    SessionRequest,
)
from tests.support.replica_managers import EPOCH, Answers, Host

Wanted = Mapping[TopicPartition, FetchPartition]


class Member:
    """A follower, or a consumer. ``view``: the latest answer for each partition, without records.

    Args:
        sessions: False: each request is complete, as of somebody who knows no sessions.
    """

    def __init__(self, host: Host, replica: int = CONSUMER, *, sessions: bool = True) -> None:
        self.host, self.replica, self.sessions = host, replica, sessions
        self.epoch = EPOCH + replica
        self.handler = FetchSessionHandler()
        self.view: dict[TopicPartition, FetchPartitionResponse] = {}
        self.asked: SessionRequest | None = None
        self.outcomes: list[SessionOutcome] = []

    def request(self, wanted: Wanted) -> SessionRequest:
        if self.sessions:
            return self.handler.next_request(wanted, None)
        return SessionRequest(tuple(wanted.values()), 0, -1)

    def send(self, asked: SessionRequest, **more: Any) -> Answers:
        if self.replica >= 0:
            more.setdefault("replica_epoch", self.epoch)
        return self.host.fetch(
            *asked.partitions,
            replica=self.replica,
            session_id=asked.session_id,
            session_epoch=asked.session_epoch,
            forgotten=asked.forgotten,
            **more,
        )

    def receive(self, asked: SessionRequest, response: FetchResponse) -> FetchResponse:
        if self.sessions:
            self.outcomes.append(self.handler.on_answer(asked, response))
        for part in response.partitions:
            self.view[part.tp] = part._replace(records=b"")
        return response

    def fetch(self, wanted: Wanted, **more: Any) -> FetchResponse:
        """One request and its answer, begun anew where the session is lost."""
        for _ in range(3):
            asked = self.request(wanted)
            (response,) = self.send(asked, **more)
            self.receive(asked, response)
            if not response.error_code:
                for tp in list(self.view):
                    if tp not in wanted:
                        del self.view[tp]
                return response
            assert not asked.is_full, response
        raise AssertionError(f"no session: {response}")

    def ask(self, wanted: Wanted, **more: Any) -> Answers:
        """A request that may wait; its answer is for ``take``."""
        self.asked = self.request(wanted)
        return self.send(self.asked, wait_ms=500, **more)

    def take(self, answers: Answers) -> list[TopicPartition]:
        """What the answer names."""
        (response,) = answers
        assert self.asked is not None
        self.receive(self.asked, response)
        assert response.error_code is ErrorCode.NONE
        return [part.tp for part in response.partitions]
