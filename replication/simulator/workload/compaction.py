"""A compacted topic, whose logs each broker cleans at its own times during the schedule.

Replicas then differ in what was removed. What must not differ is checked when everything has
healed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial

from checkpoints.types import TopicPartition
from logstore.format.reader import read_records
from logstore.manager.duties import LOG_CLEANER
from replication.client import Outcome as Sent
from replication.client import SendResult
from replication.simulator.oracle.replicas import not_in_sync
from replication.simulator.workload.clients import ClientWorld
from replication.simulator.workload.shared_topic import SharedTopic
from replication.simulator.world.plan import Operation, PlannedFault

NAME = "latest"
WHERE = TopicPartition(NAME, 0)
KEYS = 5
SOON_US = 1000  # by then a cleaner that was hurried has run, unless its machine is busy
CONFIG = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.0",
    "segment.bytes": "150",
}

KeyedRecord = tuple[bytes, bytes | None]
"""Key and value."""


class Compaction:
    """The load on the compacted topic, with acks=all and at least two in-sync replicas if possible.

    Tombstones stay for a day (``delete.retention.ms``), longer than any schedule.
    """

    def __init__(self, world: ClientWorld) -> None:
        self._world = world
        self._topic = SharedTopic(world, NAME, CONFIG)
        self._written = 0
        self._acknowledged: dict[int, KeyedRecord] = {}

    # -- load ----------------------------------------------------------------------------------

    def produce(self, step: Operation) -> None:
        """Write new states of some keys. The first call creates the topic."""
        self._topic.want()
        if not self._topic.exists:
            return
        producer = self._world.producers[step.client % len(self._world.producers)]
        self._written += 1
        states: list[KeyedRecord] = []
        for number in range(step.records):
            key = b"k%d" % ((step.size + number) % KEYS)
            gone = (step.size + self._written) % 7 == 0
            states.append((key, None if gone else b"%d.%d" % (self._written, number)))
        producer.core(-1).send(WHERE, states, partial(self._sent, states))

    def _sent(self, states: list[KeyedRecord], result: SendResult) -> None:
        if result.outcome is Sent.ACKNOWLEDGED and result.base_offset >= 0:
            self._world.counters["writes to a compacted topic"] += 1
            for offset, state in enumerate(states, result.base_offset):
                self._acknowledged[offset] = state

    # -- the cleaner ---------------------------------------------------------------------------

    def clean(self, fault: PlannedFault, struck: Counter[str]) -> None:
        """Let the cleaner of a broker look for work now, and not only when its back-off is over.

        A pass is an event of the broker, so that a disk crash in the middle is the broker's crash.
        """
        machine = self._world.cluster.machines[fault.broker]
        if machine.broker is None or machine.process is None:
            return
        manager = machine.broker.log_manager
        if manager.duties is None:
            return
        before = manager.cleaner.metrics
        manager.duties.hurry(LOG_CLEANER)

        def count() -> None:
            after = manager.cleaner.metrics
            if after.passes > before.passes:
                struck[fault.kind] += 1
                read = after.records_read - before.records_read
                kept = after.records_kept - before.records_kept
                self._world.counters["records compacted away"] += read - kept

        self._world.scheduler.after(SOON_US, machine.process, "cleaner", count)

    # -- the end -------------------------------------------------------------------------------

    def pending_reason(self) -> str:
        """Say why a replica is not in sync; empty if all are, or if there never was a topic."""
        if not self._topic.wanted:
            return ""
        if not self._topic.exists:
            return f"{NAME} is not made"
        topic = self._world.controllers_topic(NAME)
        if topic is None:
            return f"{NAME} is not in the tree"
        return not_in_sync(self._world.cluster, topic.topic_id, topic.replicas)

    def violations(self) -> list[str]:
        """Violations in a quiescent cluster.

        At an offset a replica holds what others hold and what was acknowledged there (I-1, I-22).
        All have the same newest state of each key, which is that of the newest acknowledged write
        or of a later one.
        """
        topic = self._world.controllers_topic(NAME)
        if not self._topic.exists or topic is None:
            return []
        newest_acknowledged: dict[bytes, int] = {}
        for offset, (key, _) in sorted(self._acknowledged.items()):
            newest_acknowledged[key] = offset
        at_offset: dict[int, tuple[str, KeyedRecord]] = {
            offset: ("a producer", state) for offset, state in self._acknowledged.items()
        }
        newest_of_first: Mapping[bytes, int] | None = None
        for broker_id in topic.replicas[WHERE]:
            states = self._states(broker_id)
            for offset, state in states.items():
                whose, known = at_offset.setdefault(offset, (f"b{broker_id}", state))
                if known != state:
                    return [
                        f"I-22 {WHERE}: b{broker_id} has {state!r} at {offset}, {whose} {known!r}"
                    ]
            newest = {key: offset for offset, (key, _) in sorted(states.items())}
            for key, offset in newest_acknowledged.items():
                if newest.get(key, -1) < offset:
                    return [
                        f"I-1 {WHERE}: the newest {key!r} of b{broker_id} is at {newest.get(key)}, "
                        f"one at {offset} was acknowledged"
                    ]
            if newest_of_first is None:
                newest_of_first = newest
            elif newest != newest_of_first:
                return [f"I-22 {WHERE}: b{broker_id} has {newest}, the first {newest_of_first}"]
        return []

    def _states(self, broker_id: int) -> dict[int, KeyedRecord]:
        machine = self._world.cluster.machines[broker_id]
        assert machine.broker is not None
        data = b""
        for segment in machine.broker.log_manager.get(*WHERE).segments:
            node = machine.disk.peek(segment.log_path)
            data += b"" if node is None else bytes(node.data[: segment.size])
        return {
            record.offset: (bytes(record.key or b""), record.value and bytes(record.value))
            for record in read_records(data)
        }
