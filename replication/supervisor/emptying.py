"""A broker's replicas move to the others, by reassignments as any admin tool makes them."""

from __future__ import annotations

from typing import Self

from checkpoints.types import TopicPartition
from replication.admin import AdminClient, WireError
from replication.admin.reassignment_plans import without
from replication.admin.reassignments import (
    Ongoing,
    alter_reassignments,
    list_reassignments,
    look,
    throttle,
    unthrottle,
)
from replication.security.config import client_properties


class Emptying:
    """Use it as a context manager, and call ``step`` until the broker has no replica.

    It keeps nothing: another one goes on where this one ended.

    Args:
        bootstrap_servers: the other brokers.
        rate: bytes a second that each broker may send, if there is a limit.
    """

    def __init__(self, bootstrap_servers: str, broker_id: int, rate: int | None) -> None:
        config = client_properties({"bootstrap.servers": bootstrap_servers}).config
        self._admin = AdminClient(config)
        self._broker_id, self._rate = broker_id, rate
        self._topics: set[str] = set()

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
        found = look(admin)
        there = {tp: replicas for tp, replicas in found.present.items() if own in replicas}
        if not there:
            if self._rate is not None:
                unthrottle(admin, found.racks, sorted(self._topics))
            return ""
        ongoing = list_reassignments(admin)
        waiting = {tp for tp, move in ongoing.items() if own in move.removing}
        targets = {
            tp: replicas
            for tp, replicas in without(found.present, found.racks, [own]).items()
            if tp not in waiting
        }
        self._topics |= {tp.topic for tp in there}
        if targets:
            self._begin(found.present, targets, ongoing)
        return f"{len(there)} partitions have a replica on broker {own}"

    def _begin(
        self,
        present: dict[TopicPartition, tuple[int, ...]],
        targets: dict[TopicPartition, tuple[int, ...]],
        ongoing: dict[TopicPartition, Ongoing],
    ) -> None:
        if self._rate is not None:
            throttle(self._admin, present, targets, ongoing, self._rate)
        for tp, answer in alter_reassignments(self._admin, targets).items():
            if answer.code:
                raise WireError(f"{tp}: {answer}")


__all__ = ["Emptying"]
