"""A topic that is deleted and created again under its name during the schedule.

Each such topic is a *life* of the name. Nothing of one life may appear in another, which is checked
when everything has healed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial

from checkpoints.types import TopicPartition
from logstore.format.reader import read_records
from logstore.log import PartitionLog
from replication.client import Outcome as Sent
from replication.client import SendResult
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    AlterableConfig,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    IncrementalAlterConfigsRequest,
    Request,
    Response,
    TopicResponse,
)
from replication.simulator.oracle.replicas import not_in_sync
from replication.simulator.workload.clients import ClientWorld
from replication.simulator.world.plan import Operation
from replication.simulator.world.scheduler import US_PER_MS

NAME = "again"
AGAIN_MS = 60
SEGMENT_BYTES = (300, 900, 4000)


class Lives:
    """The load on this topic, with acks=all and at least two in-sync replicas, so that a leader
    that does not know about a deletion cannot acknowledge anything alone.

    Attributes:
        number: the number of the present life, from 1; 0 before the first.
        exists: whether its creation was confirmed and its deletion not yet requested.
    """

    def __init__(self, world: ClientWorld) -> None:
        self.number = 0
        self.exists = False
        self._world = world
        self._there = False  # or its deletion was not confirmed
        self._topic_id: uuid.UUID | None = None  # the id of the present life, once it is known
        self._wanted = 0  # lives that were requested
        self._busy = False
        self._written = 0
        self._settled: dict[bytes, int] = {}  # value → the life in which its write ended
        self._acknowledged: dict[tuple[TopicPartition, int], bytes] = {}  # in the present life
        self._partitions = 0  # at least so many partitions, as the controller said
        # How often it was configured, whether all changes were confirmed, and the last
        # configuration of the present life.
        self._configured, self._is_configured, self._segment_bytes = 0, True, ""

    def make_anew(self, step: Operation) -> None:
        """Delete the topic if it exists and create it, with retries until both are done."""
        self._wanted += 1
        if not self._busy:
            self._busy = True
            self._go_on(step)

    def _go_on(self, step: Operation) -> None:
        if self._there:
            self.exists, self._partitions, self._segment_bytes = False, 0, ""
            self._acknowledged.clear()
            known = self._world.controllers_topic(NAME)
            if self._topic_id is None and known is not None:
                self._topic_id = known.topic_id
            if self._topic_id is None:  # the id to delete is not known
                self._later(partial(self._go_on, step))
                return
            self._world.counters["topics deleted"] += 1
            self._ask(DeleteTopicRequest(None, self._topic_id), partial(self._deleted, step))
        else:
            self._create(step)

    def _ask(self, request: Request, then: Callable[[ErrorCode | None], None]) -> None:
        def answered(response: Response | None) -> None:
            then(response.error_code if isinstance(response, TopicResponse) else None)

        self._world.admin.ask_controller(request, answered)

    def _later(self, task: Callable[[], None]) -> None:
        admin = self._world.admin
        self._world.scheduler.after(AGAIN_MS * US_PER_MS, admin.process, "admin", task)

    def _deleted(self, step: Operation, code: ErrorCode | None) -> None:
        if code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID):
            self._there, self._topic_id = False, None
            self._later(partial(self._create, step))
        else:
            self._later(partial(self._go_on, step))

    def _create(self, step: Operation) -> None:
        world = self._world
        brokers, replicas = len(world.cluster.machines), min(3, len(world.cluster.machines))
        first = step.client + self.number
        assignment = tuple(
            tuple((first + number + r) % brokers for r in range(replicas))
            for number in range(1 + step.size % 2)
        )
        config = {
            "min.insync.replicas": str(min(2, replicas)),
            "segment.bytes": str(SEGMENT_BYTES[(step.size + self.number) % len(SEGMENT_BYTES)]),
        }
        request = CreateTopicRequest(NAME, len(assignment), replicas, assignment, config)
        self._ask(request, partial(self._created, step))

    def _created(self, step: Operation, code: ErrorCode | None) -> None:
        """Note the creation.

        TOPIC_ALREADY_EXISTS: an answer was lost, or the name is still taken.
        """
        topic = self._world.controllers_topic(NAME)
        if code is ErrorCode.NONE or (
            code is ErrorCode.TOPIC_ALREADY_EXISTS and topic is not None and not topic.deleting
        ):
            self.exists, self._there, self.number = True, True, self.number + 1
            self._topic_id = None if topic is None else topic.topic_id
            self._world.counters["topics made"] += 1
            self._world.scheduler.note(f"{NAME} begins its life {self.number}")
            if self.number < self._wanted:
                self._go_on(step)
            else:
                self._busy = False
        else:
            self._later(partial(self._create, step))

    # -- changes -------------------------------------------------------------------------------

    def grow(self, step: Operation) -> None:
        """Add one or two partitions to the known ones."""
        topic = self._world.controllers_topic(NAME)
        if not self.exists or topic is None:
            return
        count, life = len(topic.replicas) + 1 + step.size % 2, self.number

        def answered(code: ErrorCode | None) -> None:
            if code is ErrorCode.NONE and self.exists and life == self.number:
                self._world.counters["topics grown"] += 1
                self._partitions = max(self._partitions, count)

        self._ask(CreatePartitionsRequest(NAME, count), answered)

    def reconfigure(self, step: Operation) -> None:
        """Change the configuration. Only the latest change counts, if all were confirmed."""
        if not self.exists:
            return
        self._configured += 1
        number, life, before = self._configured, self.number, self._is_configured
        self._is_configured = False
        value = str(SEGMENT_BYTES[step.size % len(SEGMENT_BYTES)])

        def answered(code: ErrorCode | None) -> None:
            if not self.exists or life != self.number or number != self._configured:
                return
            # A controller that stops half-way refuses, but may have done it.
            self._is_configured = before and code is ErrorCode.NONE
            if self._is_configured:
                self._world.counters["topics reconfigured"] += 1
                self._segment_bytes = value

        config = AlterableConfig("segment.bytes", value)
        self._ask(IncrementalAlterConfigsRequest(NAME, (config,)), answered)

    # -- load ----------------------------------------------------------------------------------

    def produce(self, step: Operation) -> None:
        if not self.exists:
            return
        tp, life = TopicPartition(NAME, 0), self.number
        producer = self._world.producers[step.client % len(self._world.producers)]
        values = [f"{life}/{self._written}.{n}".encode() for n in range(step.records)]
        self._written += 1
        producer.core(-1).send(
            tp, [(None, value) for value in values], partial(self._sent, tp, life, values)
        )

    def _sent(self, tp: TopicPartition, life: int, values: list[bytes], result: SendResult) -> None:
        if not self.exists or life != self.number:
            return
        self._settled.update(dict.fromkeys(values, life))
        if result.outcome is Sent.ACKNOWLEDGED and result.base_offset >= 0:
            self._world.counters["writes to a topic made anew"] += 1
            for number, value in enumerate(values):
                self._acknowledged[tp, result.base_offset + number] = value

    # -- the end -------------------------------------------------------------------------------

    def pending_reason(self) -> str:
        """Say why its replicas are not all in sync; empty when they are, or it never was."""
        if not self._wanted:
            return ""
        world = self._world
        if self._busy or not self.exists:
            return f"{NAME} is not made"
        topic = world.controllers_topic(NAME)
        if topic is None:
            return f"{NAME} is not in the tree"
        return not_in_sync(world.cluster, topic.topic_id, topic.replicas)

    def violations(self, *, late_copies: bool) -> list[str]:
        """Violations in a quiescent cluster.

        Everything acknowledged in this life is on all replicas (I-1, I-22), and nothing of an
        earlier life.

        Args:
            late_copies: whether a request for an earlier life may have arrived late. As in Kafka up
                to 4.0, a produce request has no topic id.
        """
        topic = self._world.controllers_topic(NAME)
        if topic is None:
            return []
        if len(topic.replicas) < self._partitions:
            return [
                f"I-28 {NAME}: {self._partitions} partitions were made, {topic.replicas} are left"
            ]
        for tp, replicas in topic.replicas.items():
            if self._segment_bytes and self._is_configured and not late_copies:
                for broker_id in replicas:
                    used = self._log(broker_id, tp).config.segment_bytes
                    if str(used) != self._segment_bytes:
                        return [
                            f"I-28 {tp}: b{broker_id} rolls at {used} bytes, configured are "
                            f"{self._segment_bytes}"
                        ]
            logs = {b: self._values(b, tp) for b in replicas}
            first = logs[replicas[0]]
            for broker_id, values in logs.items():
                if values != first:
                    return [f"I-22 {tp}: b{broker_id} and b{replicas[0]} differ"]
            for (of, offset), value in self._acknowledged.items():
                if of == tp and first.get(offset) != value:
                    return [
                        f"I-1 {tp}: {value!r} was acknowledged at {offset} in life {self.number}, "
                        f"where {first.get(offset)!r} is"
                    ]
            if not late_copies:
                for offset, value in first.items():
                    life = self._settled.get(value, self.number)
                    if life != self.number:
                        return [f"I-28 {tp}: {value!r} was written to life {life}, at {offset} now"]
        return []

    def _log(self, broker_id: int, tp: TopicPartition) -> PartitionLog:
        machine = self._world.cluster.machines[broker_id]
        assert machine.broker is not None
        return machine.broker.log_manager.get(*tp)

    def _values(self, broker_id: int, tp: TopicPartition) -> dict[int, bytes]:
        machine = self._world.cluster.machines[broker_id]
        data = b""
        for segment in self._log(broker_id, tp).segments:
            node = machine.disk.peek(segment.log_path)
            data += b"" if node is None else bytes(node.data[: segment.size])
        return {record.offset: bytes(record.value or b"") for record in read_records(data)}
