"""The offsets of a shard: those that are committed, and those that wait for their transaction."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeVar

from checkpoints.types import TopicPartition
from replication.protocol import ZERO_UUID


class CommittedOffset(NamedTuple):
    """
    Attributes:
        offset: the next that is to be read.
        leader_epoch: of the last record that was consumed, or −1.
        commit_ms: ms since 1970.
        expire_ms: when it is forgotten, where the client said so.
        topic_id: of the topic when it was committed; zero where that is not known.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int | None = None
    topic_id: uuid.UUID = ZERO_UUID


K = TypeVar("K")
Key = tuple[str, TopicPartition]
"""A group and a partition."""


class OffsetStore:
    """All offsets of a shard.

    Every change has a number that says where it is in the log. An offset whose transaction is
    committed late does not replace one that was written after it.
    """

    def __init__(self) -> None:
        self._committed: dict[str, dict[TopicPartition, tuple[int, CommittedOffset]]] = {}
        self._pending: dict[int, dict[Key, tuple[int, CommittedOffset]]] = {}  # by producer id
        self._pending_keys: Counter[Key] = Counter()  # of how many producers
        self._in_flight: Counter[Key] = Counter()  # on their way to the log
        self._in_flight_groups: Counter[str] = Counter()
        self._in_transaction: Counter[Key] = Counter()  # of those, with a transaction

    # -- questions -----------------------------------------------------------------------------

    def get(self, group_id: str, tp: TopicPartition) -> CommittedOffset | None:
        found = self._committed.get(group_id, {}).get(tp)
        return None if found is None else found[1]

    def of(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """A copy."""
        return {tp: each for tp, (_, each) in self._committed.get(group_id, {}).items()}

    def groups(self) -> Iterator[str]:
        """The groups that have an offset, or may have one soon."""
        pending = (group_id for group_id, _ in self._pending_keys)
        return iter(dict.fromkeys([*self._committed, *pending, *self._in_flight_groups]))

    def is_unstable(self, group_id: str, tp: TopicPartition) -> bool:
        """Whether a transaction under way may change the offset."""
        key = group_id, tp
        return self._pending_keys[key] > 0 or self._in_transaction[key] > 0

    def has(self, group_id: str) -> bool:
        return group_id in self._committed

    def expects(self, group_id: str) -> bool:
        """Whether the group may have another offset soon."""
        return self._in_flight_groups[group_id] > 0 or bool(self.pending_of(group_id))

    def pending_of(self, group_id: str) -> list[TopicPartition]:
        """The offsets of a group that wait for a transaction."""
        return [tp for group, tp in self._pending_keys if group == group_id]

    def all_of(self, group_id: str) -> list[TopicPartition]:
        """The partitions of a group with an offset, or with one that waits for a transaction or for
        the log."""
        in_flight = [tp for group, tp in self._in_flight if group == group_id]
        found = [*self._committed.get(group_id, ()), *self.pending_of(group_id), *in_flight]
        return list(dict.fromkeys(found))

    def is_in_flight(self, group_id: str, tp: TopicPartition) -> bool:
        return self._in_flight[group_id, tp] > 0

    # -- on the way to the log -----------------------------------------------------------------

    def begin(self, group_id: str, tp: TopicPartition, *, in_transaction: bool) -> None:
        """Note that an offset is being written."""
        self._in_flight[group_id, tp] += 1
        self._in_flight_groups[group_id] += 1
        if in_transaction:
            self._in_transaction[group_id, tp] += 1

    def end(self, group_id: str, tp: TopicPartition, *, in_transaction: bool) -> None:
        """Note that the offset is in the log, or never will be."""
        _take(self._in_flight, (group_id, tp))
        _take(self._in_flight_groups, group_id)
        if in_transaction:
            _take(self._in_transaction, (group_id, tp))

    # -- what the log says ---------------------------------------------------------------------

    def commit(
        self, group_id: str, tp: TopicPartition, offset: CommittedOffset, number: int
    ) -> None:
        known = self._committed.setdefault(group_id, {})
        if tp not in known or known[tp][0] < number:
            known[tp] = number, offset

    def delete(self, group_id: str, tp: TopicPartition, number: int) -> None:
        """Forget what was written before, also in transactions that are not over."""
        known = self._committed.get(group_id, {})
        if tp in known and known[tp][0] < number:
            del known[tp]
            if not known:
                del self._committed[group_id]
        for producer_id, pending in list(self._pending.items()):
            found = pending.get((group_id, tp))
            if found is not None and found[0] < number:
                self._drop(producer_id, (group_id, tp))

    def add_pending(
        self,
        producer_id: int,
        group_id: str,
        tp: TopicPartition,
        offset: CommittedOffset,
        number: int,
    ) -> None:
        """Add an offset that counts once the transaction of ``producer_id`` is committed."""
        pending = self._pending.setdefault(producer_id, {})
        key = group_id, tp
        if key not in pending:
            self._pending_keys[key] += 1
        pending[key] = number, offset

    def _drop(self, producer_id: int, key: Key) -> None:
        pending = self._pending[producer_id]
        del pending[key]
        if not pending:
            del self._pending[producer_id]
        _take(self._pending_keys, key)

    def end_transaction(self, producer_id: int, is_commit: bool) -> list[str]:
        """End a transaction. Returns the groups that had offsets in it."""
        groups = []
        for key, (number, offset) in list(self._pending.get(producer_id, {}).items()):
            self._drop(producer_id, key)
            group_id, tp = key
            groups.append(group_id)
            if is_commit:
                self.commit(group_id, tp, offset, number)
        return list(dict.fromkeys(groups))


def _take(counter: Counter[K], key: K) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
