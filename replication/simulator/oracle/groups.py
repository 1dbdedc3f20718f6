"""The promises to clients of a group, whoever coordinates it, whatever messages are lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from checkpoints.types import TopicPartition

NOTHING = -1


class SentCommit(NamedTuple):
    """The knowledge of a client when it sent a commit.

    Attributes:
        latest: the latest generation with an assignment.
        fenced_by: the member that has the sender's instance id since; empty if there is none.
    """

    generation: int
    latest: int
    fenced_by: str


class Holding(NamedTuple):
    """A member that has an assignment under an instance id. Times are µs."""

    asked_us: int  # for its member id
    since_us: int


class GroupOracle:
    """Checks one group. Each commit has an offset above all before it, so an offset names its
    commit.

    Args:
        found: takes a violation.
    """

    def __init__(self, found: Callable[[str], None]) -> None:
        self._found = found
        self._shares: dict[int, dict[str, frozenset[int]]] = {}  # by generation and member
        self._holders: dict[str, dict[str, Holding]] = {}  # by instance id and member id
        self._latest = 0  # the latest generation with an assignment
        self._confirmed: dict[TopicPartition, int] = {}
        self._uncertain: dict[TopicPartition, set[int]] = {}
        self._seen: dict[TopicPartition, int] = {}

    def synced(self, generation: int, member: str, share: frozenset[int]) -> None:
        """A member has its assignment. Nobody else has a part of it, and no later generation has an
        assignment (W-109). ``member`` is the instance id of a static member: after a restart it has
        the same assignment in the same generation (W-104)."""
        shares = self._shares.setdefault(generation, {})
        for other, known in shares.items():
            both = known & share
            if (other == member and known != share) or (other != member and both):
                self._found(f"W-109 generation {generation}: {other} has {known}, {member} {share}")
        shares[member] = share
        if generation < self._latest:
            self._found(f"W-109 {member}: generation {generation} is assigned after {self._latest}")
        self._latest = max(self._latest, generation)

    def holds(self, instance: str, member: str, asked_us: int, now_us: int) -> None:
        """A static member has its assignment: from now on earlier ones are fenced."""
        self._holders.setdefault(instance, {}).setdefault(member, Holding(asked_us, now_us))

    def sends(self, generation: int, instance: str | None, member: str) -> SentCommit:
        """A member is about to send a commit."""
        holders = self._holders.get(instance or "", {})
        own = holders.get(member)
        later = (m for m, h in holders.items() if own is not None and h.asked_us > own.since_us)
        return SentCommit(generation, self._latest, next(later, ""))

    def commits(self, tp: TopicPartition, offset: int) -> None:
        """It is sent; whether it counts, nobody knows yet."""
        self._uncertain.setdefault(tp, set()).add(offset)

    def refused(self, tp: TopicPartition, offset: int) -> None:
        self._uncertain[tp].discard(offset)

    def confirmed(self, tp: TopicPartition, offset: int, sent: SentCommit) -> None:
        """Nobody of an earlier generation commits (W-112), and no fenced member (W-104)."""
        generation, latest, fenced_by = sent
        if generation < latest:
            self._found(f"W-112 {tp}: generation {generation} commits {offset} after {latest}")
        if fenced_by:
            self._found(f"W-104 {tp}: {offset} is committed by a member fenced by {fenced_by}")
        self._confirmed[tp] = max(offset, self._confirmed.get(tp, NOTHING))

    def read(self, tp: TopicPartition, offset: int, confirmed: int) -> None:
        """``confirmed``: what was confirmed when the question was asked (W-113, W-116)."""
        if offset < max(confirmed, self._seen.get(tp, NOTHING)):
            seen = self._seen.get(tp, NOTHING)
            self._found(f"W-116 {tp}: {offset} is read, {confirmed} was confirmed, {seen} seen")
        may_be = offset in (NOTHING, *self._uncertain.get(tp, ()))
        if not may_be:
            self._found(f"W-113 {tp}: {offset} is read, which was refused or never committed")
        self._seen[tp] = max(offset, self._seen.get(tp, NOTHING))

    def confirmed_of(self, tp: TopicPartition) -> int:
        return self._confirmed.get(tp, NOTHING)
