"""What must hold of groups whatever happens, by what clients see alone.

The model knows nothing of the coordinator: it is told of requests and answers. Offsets are numbers
that rise with each commit, so an offset says which commit it is.
"""

from __future__ import annotations

from typing import NamedTuple

from checkpoints.types import TopicPartition

NONE_COMMITTED = -1
Key = tuple[str, TopicPartition]


class Violation(AssertionError):
    """The coordinator broke a promise."""


class Share(NamedTuple):
    """What one member was given in one generation."""

    identity: str  # the instance, or the member id
    partitions: frozenset[int]


class Model:
    """
    Attributes:
        generations: of each group, what was handed out in which generation, and by whose decision.
        latest: of each group, the latest generation that anybody is known to have an assignment of.
        gone: member ids that cannot act: they left, or another one has their instance.
    """

    def __init__(self) -> None:
        self.generations: dict[tuple[str, int], dict[str, frozenset[int]]] = {}
        self.latest: dict[str, int] = {}
        self.gone: set[tuple[str, str]] = set()
        self.acknowledged: dict[Key, int] = {}  # the last commit that was confirmed
        self.uncertain: dict[Key, set[int]] = {}  # later ones that may count or not
        self.seen: dict[Key, int] = {}  # the latest that anybody has read
        self.deletions: dict[Key, int] = {}  # the last commit that one may have hit
        self.forgetful: set[Key] = set()  # such a deletion may have been, and nobody saw it

    # -- members -------------------------------------------------------------------------------

    def synced(self, group: str, generation: int, share: Share, others: frozenset[int]) -> None:
        """A member has its assignment. ``others``: all partitions that exist."""
        known = self.generations.setdefault((group, generation), {})
        before = known.get(share.identity)
        if before is not None and before != share.partitions:
            raise Violation(f"{group} {generation}: {share.identity} has {before} and {share}")
        for identity, partitions in known.items():
            if identity != share.identity and partitions & share.partitions:
                both = sorted(partitions & share.partitions)
                raise Violation(f"{group} {generation}: {identity} and {share} both have {both}")
        if not share.partitions <= others:
            raise Violation(f"{group} {generation}: {share} is of no topic")
        known[share.identity] = share.partitions
        if generation < self.latest.get(group, 0):
            latest = self.latest[group]
            raise Violation(f"{group}: generation {generation} is given out after {latest}")
        self.latest[group] = generation

    def left(self, group: str, member_id: str) -> None:
        """It is out."""
        self.gone.add((group, member_id))

    def leader_changes(self) -> None:
        """Who left is in the log only with the next generation."""
        self.gone.clear()

    def forgotten(self, group: str) -> None:
        """The group may have been deleted: another one may begin under its name."""
        self.latest.pop(group, None)
        for known in [each for each in self.generations if each[0] == group]:
            del self.generations[known]

    # -- offsets -------------------------------------------------------------------------------

    def may_commit(self, group: str, member_id: str, generation: int) -> bool:
        """Whether a member that says so now may be heard. Without a generation anybody may be,
        where there are no members."""
        if generation < 0:
            return True
        return (group, member_id) not in self.gone and generation >= self.latest.get(group, 0)

    def counts(self, key: Key, offset: int) -> None:
        self.acknowledged[key] = max(offset, self.acknowledged.get(key, NONE_COMMITTED))
        if self.is_after_deletions(key, offset):
            self.forgetful.discard(key)

    def may_count(self, key: Key, offset: int) -> None:
        """Nobody knows, or not yet."""
        self.uncertain.setdefault(key, set()).add(offset)

    def never_counts(self, key: Key, offset: int) -> None:
        self.uncertain.get(key, set()).discard(offset)

    def deletes(self, key: Key, offset: int) -> None:
        """A deletion has begun; ``offset`` is the last that it may hit, in transactions too."""
        self.forgetful.add(key)
        self.deletions[key] = offset

    def is_after_deletions(self, key: Key, offset: int) -> bool:
        return offset > self.deletions.get(key, NONE_COMMITTED)

    def _deleted(self, key: Key) -> None:
        """Somebody saw that it is gone; what was not certain before is not certain now."""
        self.acknowledged.pop(key, None)
        self.seen.pop(key, None)
        self.forgetful.discard(key)

    def read(self, key: Key, offset: int) -> None:
        """A client was told an offset."""
        acknowledged = self.acknowledged.get(key, NONE_COMMITTED)
        if offset == NONE_COMMITTED and key in self.forgetful:
            self._deleted(key)
            return
        later = {each for each in self.uncertain.get(key, ()) if each > acknowledged}
        if offset != acknowledged and offset not in later:
            may = sorted({acknowledged, *later})
            raise Violation(f"{key}: {offset} was read, and only {may} can be")
        if offset < self.seen.get(key, NONE_COMMITTED):
            raise Violation(f"{key}: {offset} was read after {self.seen[key]}")
        self.seen[key] = offset
        if offset > acknowledged:  # it is in the log, so it stays
            self.counts(key, offset)
