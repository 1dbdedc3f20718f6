"""Write changes to the tree, then to the context, then to the brokers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from replication.common.state import (
    NO_LEADER,
    PartitionRegistration,
    TopicAssignment,
    TopicPartition,
)
from replication.controller.context import Changes, ControllerContext, ControllerStats
from replication.controller.outbox import Outbox
from replication.controller.store import CHUNK, ControllerStore
from replication.controller.topics import Reassignment


class TermWriter:
    def __init__(
        self,
        store: ControllerStore,
        context: ControllerContext,
        outbox: Outbox,
        stats: ControllerStats,
    ) -> None:
        self._store, self._context, self._outbox = store, context, outbox
        self._stats = stats

    def commit(
        self, changes: Changes, moves: Mapping[TopicPartition, Reassignment] | None = None
    ) -> None:
        """Write registrations, some hundred in a transaction.

        Written ones are known and sent even if the rest fails. Those that may have been written are
        in doubt, and ``resolve_doubts`` reads them before the next decision.

        Args:
            moves: the reassignments that begin with these changes.
        Raises:
            ConflictError: another writer came first; the rest was not written.
            DeposedError
        """
        listed = list(changes)
        for start in range(0, len(listed), CHUNK):
            chunk = {
                tp: changes[tp]._replace(controller_epoch=self._store.term.epoch)
                for tp in listed[start : start + CHUNK]
            }
            topics = self._topics_after(chunk, moves or {})
            try:
                self._store.write(self._context, chunk, topics)
            except Exception:
                self._context.unread.update(dict.fromkeys(chunk))
                self._context.unread_topics.update(dict.fromkeys(tp.topic for tp in chunk))
                raise
            for name, topic in topics.items():
                self._context.put_topic(name, topic, self._context.topics[name].version + 1)
            for tp, after in chunk.items():
                before = self._context.partitions.get(tp)
                self._context.put(tp, after)
                self._note(tp, before)
            self._outbox.changed(*chunk)

    def create_topic(self, name: str, topic: TopicAssignment) -> None:
        """Create a topic's nodes. Partitions get their states with ``commit``.

        Raises as ``commit``.
        """
        with self._in_doubt(name):
            self._store.create_topic(name, topic)
        self._context.put_topic(name, topic, 0)

    def delete_topic(self, name: str) -> None:
        """Mark a topic, and inform the brokers. Raises as ``commit``."""
        try:
            self._store.mark_deleted(name)
        except Exception:
            self._context.unread_deletions = True
            raise
        self._context.start_deletion(name)
        self._outbox.delete_topic(name)

    def add_partitions(self, name: str, new: Mapping[int, tuple[int, ...]]) -> None:
        """Add partitions to a topic's node. They get their states with ``commit``.

        Raises as ``commit``.
        """
        known = self._context.topics[name]
        partitions = {**known.assignment.partitions, **new}
        topic = known.assignment._replace(partitions=partitions)
        with self._in_doubt(name):
            self._store.write(self._context, {}, {name: topic})
        self._context.put_topic(name, topic, known.version + 1)

    def alter_topic(self, name: str, config: Mapping[str, str]) -> None:
        """Change a configuration, and send it to all brokers with replicas.

        Raises as ``commit``.
        """
        known = self._context.topics[name]
        with self._in_doubt(name):
            notifies = self._context.beside_kafka
            self._store.alter_topic(name, config, known.version, notifies=notifies)
        topic = known.assignment._replace(config=config)
        self._context.put_topic(name, topic, known.version)
        self._outbox.changed(*(TopicPartition(name, number) for number in topic.partitions))

    @contextmanager
    def _in_doubt(self, name: str) -> Iterator[None]:
        """Have a topic read again if what is written within is not confirmed."""
        try:
            yield
        except Exception:
            self._context.unread_topics[name] = None
            raise

    def resolve_doubts(self) -> None:
        """Read what is in doubt.

        No partition may be decided before: one that seems to have no leader may by now have one
        that is dead.
        """
        context = self._context

        def on_read(tp: TopicPartition, before: PartitionRegistration | None) -> None:
            self._note(tp, before)
            self._outbox.changed(tp)

        self._store.read(context, on_read)
        if not context.unread_deletions:
            return
        known = [*context.deleting]
        self._store.read_deletions(context)
        for name in context.deleting:
            if name not in known:
                self._outbox.delete_topic(name)
        context.unread_deletions = False

    def _note(self, tp: TopicPartition, before: PartitionRegistration | None) -> None:
        """Count an unclean election, and stop the replicas of brokers that have lost theirs."""
        after = self._context.partitions.get(tp)
        if before is None or after is None:
            return
        for broker in before.replicas:
            if broker not in after.replicas:
                self._outbox.stop_replica(broker, tp, after.leader_epoch)
        if after.leader not in (NO_LEADER, before.leader, *before.isr, *before.elr):
            self._stats.unclean_leader_elections += 1

    def _topics_after(
        self, changes: Changes, moves: Mapping[TopicPartition, Reassignment]
    ) -> dict[str, TopicAssignment]:
        """The new nodes of topics in which a reassignment begins or completes (R-62)."""
        topics: dict[str, TopicAssignment] = {}
        parts: dict[str, tuple[dict[int, tuple[int, ...]], ...]] = {}
        for tp, after in changes.items():
            name, number = tp
            known = self._context.topics[name].assignment
            adding, removing = known.adding.get(number, ()), known.removing.get(number, ())
            if tp in moves:
                adding, removing = moves[tp].adding, moves[tp].removing
            elif not adding and not removing:
                continue
            if name not in topics:
                copies = dict(known.partitions), dict(known.adding), dict(known.removing)
                parts[name] = copies
                topics[name] = TopicAssignment(
                    known.topic_id, copies[0], known.config, copies[1], copies[2]
                )
            replicas = set(after.replicas)
            done = replicas <= set(after.isr) and not replicas & set(removing)
            new = after.replicas, () if done else adding, () if done else removing
            for part, brokers in zip(parts[name], new, strict=True):
                part[number] = brokers
                if not brokers:
                    del part[number]
        return topics
