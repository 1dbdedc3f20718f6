"""``Cluster``: several brokers in one process, on real files and real threads.

For services that embed a replicated log, and for tests of code that talks to one: brokers can be
stopped, crashed, cut off and started again while others serve.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from logstore.log.reading import LATEST
from logstore.types import Record
from replication.broker import Broker
from replication.client import Consumer, Producer, RecordMetadata
from replication.controller_channel import REACTIONS
from replication.coordination import (
    CoordinationError,
    nodes,
)
from replication.error_codes import ErrorCode
from replication.errors import (
    BrokerUnavailableError,
    NotControllerError,
    UnknownPartitionError,
    error_for,
)
from replication.local_brokers import LocalBrokers
from replication.messages import (
    AlterableConfig,
    AlterConfigOp,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    IncrementalAlterConfigsRequest,
    Request,
    TopicResponse,
)
from replication.partition import Partition
from replication.retrying import Reaction

logger = get_logger(__name__)

DONE = TopicResponse(ErrorCode.NONE)


class Cluster(LocalBrokers):
    """Brokers 0, 1, 2, … in one process, and what a service or a test asks of all of them.

    Use as a context manager, or call ``close``. Arguments and errors: ``LocalBrokers``.
    """

    # -- topics --------------------------------------------------------------------------------

    def _controller_id(self) -> int:
        controller = self.client.controller_id()
        if controller < 0:
            raise NotControllerError("there is no controller now")
        return controller

    def _ask(self, controller: int, request: Request) -> Any:
        response: Any = self.client.call(controller, request, 30.0)
        if REACTIONS[response.error_code] is Reaction.FIND_CONTROLLER:
            raise NotControllerError(f"broker {controller} is not controller any more")
        return response

    def _ask_controller(self, request: Request) -> Any:
        return self.client.retry(lambda: self._ask(self._controller_id(), request), 30.0)

    def _ask_again(self, request: Request, done: ErrorCode) -> TopicResponse:
        """``done`` is how the controller answers what is carried out already: after a try without
        a verdict it means success."""
        in_doubt = False  # also after NOT_CONTROLLER, of one that stopped half-way

        def attempt() -> TopicResponse:
            nonlocal in_doubt
            controller = self._controller_id()
            before, in_doubt = in_doubt, True
            response = self._ask(controller, request)
            assert isinstance(response, TopicResponse)
            if response.error_code is ErrorCode.REQUEST_TIMED_OUT:
                raise error_for(response.error_code, response.error_message)
            return response if not (before and response.error_code is done) else DONE

        return self.client.retry(attempt, 30.0)

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        config: Mapping[str, object] | None = None,
    ) -> list[TopicPartition]:
        """Create a topic and wait until each partition has a leader that all brokers know.

        Args:
            replication_factor: three, or as many as there are brokers, by default.
            assignment: the replicas of each partition, the preferred leader first.
            config: topic keys, such as ``{"min.insync.replicas": 2}``.
        Raises:
            ReplicationError: the controller refuses; ``code`` says why.
        """
        factor = replication_factor or min(3, len(self.broker_ids))
        request = CreateTopicRequest(
            topic,
            partitions if assignment is None else len(assignment),
            factor,
            None if assignment is None else tuple(tuple(replicas) for replicas in assignment),
            {key: str(value) for key, value in (config or {}).items()},
        )
        self._check(self._ask_controller(request))
        tps = [TopicPartition(topic, p) for p in range(request.partitions)]
        self._wait_for_leaders(topic, tps)
        return tps

    def _wait_for_leaders(self, topic: str, tps: Sequence[TopicPartition]) -> None:
        self.wait_until(
            lambda: all(self._is_led(broker, tp) for broker in self._running() for tp in tps),
            f"topic {topic} has leaders",
        )
        self.client.refresh()

    def _check(self, response: TopicResponse) -> None:
        if response.error_code is not ErrorCode.NONE:
            raise error_for(response.error_code, response.error_message)

    def _is_led(self, broker: Broker, tp: TopicPartition) -> bool:
        known = broker.metadata.registration(tp)
        if known is None or known.leader < 0:
            return False
        if broker.broker_id != known.leader:
            return True
        partition = broker.replica_manager.partitions.get(tp)
        return partition is not None and partition.is_leader

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and wait until no live broker holds a replica of it, or knows it.

        Its name is free then, if no broker with a replica of it is down. The topic that has the
        name now is deleted, by its id: never one that gets the name meanwhile.

        Raises:
            UnknownPartitionError: there is no such topic.
            ReplicationError: the controller refuses.
        """
        topic_id = self._topic_id(topic)
        request = DeleteTopicRequest(topic_id=topic_id)
        self._check(self._ask_again(request, ErrorCode.UNKNOWN_TOPIC_ID))
        self.wait_until(lambda: self._is_gone(topic, topic_id), f"topic {topic} is gone")
        self.client.refresh()

    def _topic_id(self, topic: str) -> uuid.UUID:
        for _ in self.broker_ids:  # one that was cut off may have old news
            self.client.refresh()
            topic_id = self.client.metadata.view.topic_ids.get(topic)
            if topic_id is not None:
                return topic_id
        raise UnknownPartitionError(f"there is no topic {topic!r}")

    def _is_gone(self, topic: str, topic_id: uuid.UUID) -> bool:
        brokers = self._running()
        held = (p.log for b in brokers for p in list(b.replica_manager.partitions.values()))
        if any(log is not None and log.topic_id == topic_id for log in held):
            return False
        if any(b.metadata.topic_id(topic) == topic_id for b in brokers):
            return False
        if len(brokers) < len(self.broker_ids):
            return True  # the controller may wait for the others
        try:
            node = self.session(brokers[0].broker_id).get(nodes.topic_path(topic))
        except (BrokerUnavailableError, CoordinationError):
            return False
        return node is None or nodes.decode_topic(topic, node.data).topic_id != topic_id

    def create_partitions(
        self, topic: str, total: int, *, assignment: Sequence[Sequence[int]] | None = None
    ) -> list[TopicPartition]:
        """Give a topic more partitions, ``total`` in the end, and wait until they are led; the new
        ones.

        Producers spread over them from their next look at the metadata on, so a key may go to
        another partition than before. A consumer reads the partitions that it was given, and no
        others.

        Args:
            assignment: the replicas of each new partition, the preferred leader first.
        Raises:
            ReplicationError: the controller refuses; ``code`` says why.
        """
        self.client.refresh()
        known = sum(tp.topic == topic for tp in self.client.metadata.view.partitions)
        request = CreatePartitionsRequest(
            topic, total, None if assignment is None else tuple(map(tuple, assignment))
        )
        done = ErrorCode.INVALID_PARTITIONS if known < total else ErrorCode.NONE
        self._check(self._ask_again(request, done))
        tps = [TopicPartition(topic, p) for p in range(known, total)]
        self._wait_for_leaders(topic, tps)
        return tps

    def alter_topic(self, topic: str, config: Mapping[str, object]) -> None:
        """Change keys of a topic, and wait until every live replica goes by them.

        Args:
            config: the keys that change; None for the default again.
        Raises:
            ReplicationError: the controller refuses, INVALID_CONFIG for one; nothing is changed.
        """
        changes = tuple(
            AlterableConfig(key, None, AlterConfigOp.DELETE)
            if value is None
            else AlterableConfig(key, str(value))
            for key, value in config.items()
        )
        self._check(self._ask_controller(IncrementalAlterConfigsRequest(topic, changes)))
        wanted = {key: str(value) for key, value in config.items() if value is not None}

        def is_applied() -> bool:
            for broker in self._running():
                manager = broker.log_manager
                properties = manager.config.with_properties(wanted).to_properties()
                for tp, partition in list(broker.replica_manager.partitions.items()):
                    log = partition.log
                    if tp.topic != topic or log is None:
                        continue
                    present = log.config.to_properties()
                    if any(present[key] != properties[key] for key in config):
                        return False
            return True

        self.wait_until(is_applied, f"topic {topic} is configured")

    def elect_preferred(self, *tps: TopicPartition) -> dict[TopicPartition, ErrorCode]:
        """Move leadership back to the first replica of each assignment; all, when none given."""
        request = ElectLeadersRequest(ElectionType.PREFERRED, tps or None)
        response: ElectLeadersResponse = self._ask_controller(request)
        return dict(response.partitions)

    # -- reading and writing -------------------------------------------------------------------

    def producer(self, **options: Any) -> Producer:
        """A ``Producer``, such as ``producer(idempotent=True)``."""
        return Producer(self.client, **options)

    def consumer(self, *tps: TopicPartition, **options: Any) -> Consumer:
        """A ``Consumer`` of the given partitions."""
        return Consumer(self.client, tps, **options)

    def produce(
        self, topic: str, value: bytes | None, key: bytes | None = None, **options: Any
    ) -> RecordMetadata:
        """Send one record with acks=all; see ``Producer.send``."""
        return Producer(self.client).send(topic, value, key, **options)

    def read_all(self, topic: str, **options: Any) -> dict[int, list[Record]]:
        """All committed records of a topic, by partition."""
        tps = self.client.partitions(topic)
        found: dict[int, list[Record]] = {tp.partition: [] for tp in tps}
        for tp, record in self.consumer(*tps, **options).read_to_end():
            found[tp.partition].append(record)
        return found

    def end_offset(self, tp: TopicPartition) -> int:
        """The high watermark, as a consumer learns it."""
        return self.consumer(tp).offset_for(tp, LATEST)

    # -- looking inside ------------------------------------------------------------------------

    def leader(self, tp: TopicPartition) -> int | None:
        """The live broker that leads a partition now, None when there is none."""
        leaders = [
            (p.leader_epoch, b.broker_id)
            for b in self._running()
            if (p := b.replica_manager.partitions.get(tp)) is not None and p.is_leader
        ]
        return max(leaders)[1] if leaders else None

    def replica(self, tp: TopicPartition, broker_id: int) -> Partition:
        """The partition as one broker has it.

        Raises:
            BrokerUnavailableError, UnknownPartitionError
        """
        return self.broker(broker_id).replica_manager.partition(tp)

    def isr(self, tp: TopicPartition) -> tuple[int, ...]:
        """The committed ISR in the eyes of the leader; empty when nobody leads."""
        leader = self.leader(tp)
        return () if leader is None else tuple(sorted(self.replica(tp, leader).isr.committed))

    def wait_for_isr(
        self, tp: TopicPartition, members: Iterable[int], timeout_s: float = 30.0
    ) -> None:
        """Until the leader's committed ISR has exactly these members."""
        wanted = tuple(sorted(members))
        self.wait_until(lambda: self.isr(tp) == wanted, f"ISR of {tp} is {wanted}", timeout_s)

    def wait_for_leader(
        self, tp: TopicPartition, not_broker: int | None = None, timeout_s: float = 30.0
    ) -> int:
        """The id of the leader as soon as there is one (other than ``not_broker``)."""
        found: list[int] = []

        def led() -> bool:
            leader = self.leader(tp)
            if leader is not None and leader != not_broker:
                found.append(leader)
            return bool(found)

        self.wait_until(led, f"{tp} has a leader", timeout_s)
        return found[0]
