"""The offsets of a shard: those that are committed, and those that wait for their transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TypeVar

from checkpoints.types import TopicPartition
from replication.protocol import messages as wire

CommittedOffset = wire.OffsetCommitValue
"""As the log has it. Without an expiry of its own an offset has ``NO_EXPIRY`` in its place."""

NO_EXPIRY = -1
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
        # By group: the producers whose transactions have an offset for a partition, and how many
        # are on their way to the log.
        self._producers: dict[str, dict[TopicPartition, set[int]]] = {}
        self._in_flight: dict[str, Counter[TopicPartition]] = {}
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
        return iter(dict.fromkeys([*self._committed, *self._producers, *self._in_flight]))

    def is_unstable(self, group_id: str, tp: TopicPartition) -> bool:
        """Whether a transaction under way may change the offset."""
        pending = self._producers.get(group_id)
        return (pending is not None and tp in pending) or (group_id, tp) in self._in_transaction

    def has(self, group_id: str) -> bool:
        return group_id in self._committed

    def expects(self, group_id: str) -> bool:
        """Whether the group may have another offset soon."""
        return group_id in self._in_flight or group_id in self._producers

    def all_of(self, group_id: str) -> list[TopicPartition]:
        """The partitions of a group with an offset, or with one that waits for a transaction or for
        the log."""
        kinds = self._committed, self._producers, self._in_flight
        return list(dict.fromkeys(tp for each in kinds for tp in each.get(group_id, ())))

    def is_in_flight(self, group_id: str, tp: TopicPartition) -> bool:
        return tp in self._in_flight.get(group_id, ())

    # -- on the way to the log -----------------------------------------------------------------

    def begin_write(self, group_id: str, tp: TopicPartition, *, in_transaction: bool) -> None:
        """Note that an offset is being written."""
        self._in_flight.setdefault(group_id, Counter())[tp] += 1
        if in_transaction:
            self._in_transaction[group_id, tp] += 1

    def end_write(self, group_id: str, tp: TopicPartition, *, in_transaction: bool) -> None:
        """Note that the offset is in the log, or never will be."""
        in_flight = self._in_flight[group_id]
        _decrement(in_flight, tp)
        if not in_flight:
            del self._in_flight[group_id]
        if in_transaction:
            _decrement(self._in_transaction, (group_id, tp))

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
        for producer_id in list(self._producers.get(group_id, {}).get(tp, ())):
            if self._pending[producer_id][group_id, tp][0] < number:
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
        self._pending.setdefault(producer_id, {})[group_id, tp] = number, offset
        self._producers.setdefault(group_id, {}).setdefault(tp, set()).add(producer_id)

    def _drop(self, producer_id: int, key: Key) -> None:
        pending = self._pending[producer_id]
        del pending[key]
        if not pending:
            del self._pending[producer_id]
        group_id, tp = key
        of_group = self._producers[group_id]
        of_group[tp].discard(producer_id)
        if not of_group[tp]:
            del of_group[tp]
        if not of_group:
            del self._producers[group_id]

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


def _decrement(counter: Counter[K], key: K) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
