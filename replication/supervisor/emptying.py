"""A broker's replicas move to the others, by reassignments as any admin tool makes them."""

from __future__ import annotations

from typing import Self

from checkpoints.types import TopicPartition
from logstore.common.errors import ConfigError
from replication.admin import AdminClient, WireError
from replication.admin.reassignment_plans import without
from replication.admin.reassignments import (
    alter_reassignments,
    list_reassignments,
    look,
    settled,
    throttle,
    unthrottle,
)
from replication.security.config import client_properties

MAX_DOUBTS = 6  # looks at metadata that may be old


class Emptying:
    """Use it as a context manager, and call ``step`` until the broker has no replica.

    It keeps nothing: another one goes on where this one ended, if need be with another rate.

    Args:
        bootstrap_servers: the other brokers.
        rate: bytes a second that each broker may send meanwhile; at the end no broker and no topic
            has a throttle. None leaves throttles as they are.
    """

    def __init__(self, bootstrap_servers: str, broker_id: int, rate: int | None) -> None:
        config = client_properties({"bootstrap.servers": bootstrap_servers}).config
        self._admin = AdminClient(config)
        self._broker_id, self._rate = broker_id, rate
        self._is_throttled = False
        self._begun: set[TopicPartition] = set()
        self._doubts = 0  # how often in a row it could not be done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._admin.close()

    def step(self) -> str:
        """Begin the moves that are still to begin; what is left to be moved, empty at the end.

        Raises:
            ConfigError: a partition has as many replicas as brokers are left.
            WireError: no broker answers.
        """
        admin, own = self._admin, self._broker_id
        ongoing = list_reassignments(admin)
        found = look(admin)
        there = {tp: replicas for tp, replicas in found.present.items() if own in replicas}
        if not there:
            if self._rate is not None:
                unthrottle(admin, found.racks, sorted({tp.topic for tp in found.present}))
            return ""
        # Each move is begun once: for a moment after it a broker's metadata are later than what the
        # controller says.
        self._begun |= {tp for tp, move in ongoing.items() if own in move.removing}
        at_rest = {
            tp: replicas
            for tp, replicas in settled(found.present, ongoing).items()
            if tp not in self._begun
        }
        left = f"{len(there)} partitions have a replica on broker {own}"
        try:
            targets = without(at_rest, found.racks, [own])
        except ConfigError:
            # The end of a move may not be shown yet: until then it has the replicas of both sides.
            self._doubts += 1
            if self._doubts > MAX_DOUBTS:
                raise
            return left
        self._doubts = 0
        self._begun |= targets.keys()
        if self._rate is not None and (targets or not self._is_throttled):
            throttle(admin, found.present, targets, ongoing, self._rate)
            self._is_throttled = True
        if targets:
            self._begin(targets)
        return left

    def _begin(self, targets: dict[TopicPartition, tuple[int, ...]]) -> None:
        for tp, answer in alter_reassignments(self._admin, targets).items():
            if answer.code:
                raise WireError(f"{tp}: {answer}")
