"""Decide which messages of the cluster pass, and which wait for the script."""

from __future__ import annotations

from collections.abc import Callable

from replication.common.messages import (
    FetchRequest,
    FetchResponse,
    LeaderAndIsrRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochResponse,
    Request,
    Response,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from replication.simulator.world.network import SimMessage

CONTROL = (LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest)
FETCHES = (FetchRequest, ListOffsetsRequest)


class Gate:
    """A ``Network.gate``. Everything passes except the fetches of followers.

    Attributes:
        free: followers whose fetches pass.
        rounds: follower → how many more of its fetches pass.
        unanswered: followers whose fetches reach the leader, but whose answers are lost.
        deaf: brokers that the controller's requests do not reach.
        answers_without_epoch: answers to OffsetForLeaderEpoch are those of version 0 (KIP-101).
    """

    def __init__(self, *, answers_without_epoch: bool) -> None:
        self.free: set[int] = set()
        self.rounds: dict[int, int] = {}
        self.unanswered: set[int] = set()
        self.deaf: set[int] = set()
        self.answers_without_epoch = answers_without_epoch
        self._held: list[SimMessage] = []

    def __call__(self, message: SimMessage) -> None:
        if self._passes(message):
            message.go(self._as_sent(message.content))
        else:
            self._held.append(message)

    def _passes(self, message: SimMessage) -> bool:
        content, source = message.content, message.source
        if isinstance(content, CONTROL):
            return message.target not in self.deaf
        if isinstance(content, FetchResponse):
            return message.target not in self.unanswered
        if not isinstance(content, FETCHES) or source < 0 or source in self.free:
            return True
        left = self.rounds.get(source, 0)
        self.rounds[source] = max(0, left - 1)
        return left > 0

    def _as_sent(self, content: Request | Response | None) -> Request | Response | None:
        if self.answers_without_epoch and isinstance(content, OffsetForLeaderEpochResponse):
            parts = tuple(part._replace(leader_epoch=-1) for part in content.partitions)
            return OffsetForLeaderEpochResponse(parts)
        return content

    def look_again(self) -> None:
        """Let waiting messages pass that a changed policy allows, in their order of arrival."""
        held, self._held = self._held, []
        for message in held:
            self(message)

    def lose(self, meant: Callable[[SimMessage], bool]) -> None:
        """Break the connections of messages that wait here."""
        lost = [message for message in self._held if meant(message)]
        self._held = [message for message in self._held if not meant(message)]
        for message in lost:
            message.lose()

    def lose_all_of(self, broker: int) -> None:
        """Lose all messages of a broker that went down."""
        self.lose(lambda message: broker in (message.source, message.target))

    def open(self) -> None:
        """Let everything pass from now on. Waiting messages are lost, and sent again."""
        self.deaf.clear()
        self.unanswered.clear()
        self.free.update(range(64))
        self.lose(lambda message: True)
