"""Create, grow, configure and delete topics of a ``Cluster``, and wait until all brokers apply it.

A request may be carried out although no answer comes. Then it is repeated, and after a refusal the
present state is compared with the request: only an equal state is a success.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from checkpoints.types import TopicPartition
from replication.broker.broker import Broker
from replication.broker.controller_channel import REACTIONS
from replication.common.error_codes import ErrorCode
from replication.common.errors import (
    BrokerUnavailableError,
    NotControllerError,
    ReplicationError,
    TopicNotReadyError,
    UnknownPartitionError,
    error_for,
)
from replication.common.messages import (
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
from replication.common.retrying import Reaction
from replication.common.state import TopicAssignment
from replication.coordination import CoordinationError, nodes
from replication.decisions.isr import effective_min_isr
from replication.embedded.local_brokers import LocalBrokers

TIMEOUT_S = 30.0
DONE = TopicResponse(ErrorCode.NONE)


class TopicAdmin:
    """The topic operations of a cluster, which has the documentation of the public ones."""

    def __init__(self, brokers: LocalBrokers) -> None:
        self._brokers = brokers
        self._client = brokers.client
        # What was read last, and its meaning: who waits for a topic reads it hundreds of times, and
        # it has a line for each partition.
        self._read: tuple[tuple[str, bytes, bytes | None], TopicAssignment] | None = None

    def _controller_id(self) -> int:
        controller = self._client.controller_id()
        if controller < 0:
            raise NotControllerError("there is no controller now")
        return controller

    def _send(self, controller: int, request: Request) -> Any:
        response: Any = self._client.call(controller, request, TIMEOUT_S)
        if REACTIONS[response.error_code] is Reaction.FIND_CONTROLLER:
            raise NotControllerError(f"broker {controller} is not controller any more")
        return response

    def _ask_controller(self, request: Request) -> Any:
        return self._client.retry(lambda: self._send(self._controller_id(), request), TIMEOUT_S)

    def _ask_for_topic(
        self,
        request: Request,
        done: ErrorCode | None = None,
        is_as_asked: Callable[[], bool] = lambda: True,
        still: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Args:
            done: the controller's error for a request that is carried out already.
            is_as_asked: called at that error after a try without an answer.
            still: whether the topic that the request means still exists, since the request only has
                its name; called before another try.
        Raises:
            ReplicationError: the controller refuses.
        """
        in_doubt = False  # also after NOT_CONTROLLER from a controller that stopped half-way

        def attempt() -> TopicResponse:
            nonlocal in_doubt
            controller = self._controller_id()
            before, in_doubt = in_doubt, True
            if before and not still():
                return TopicResponse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "not any more")
            response = self._send(controller, request)
            assert isinstance(response, TopicResponse)
            if response.error_code is ErrorCode.REQUEST_TIMED_OUT:
                raise error_for(response.error_code, response.error_message)
            if not before or response.error_code is not done:
                return response
            if is_as_asked():
                return DONE
            doubt = "whether an earlier try of this request was carried out is not known"
            return TopicResponse(done, f"{response.error_message}; {doubt}")

        response = self._client.retry(attempt, TIMEOUT_S)
        if response.error_code is not ErrorCode.NONE:
            raise error_for(response.error_code, response.error_message)

    # -- present state -------------------------------------------------------------------------

    def _topic(self, name: str) -> TopicAssignment | None:
        """The topic in the coordinator. Brokers may have old metadata.

        Raises:
            BrokerUnavailableError: no broker has a working session with the coordinator.
        """
        failure = "no broker is running"
        for broker in sorted(
            self._brokers.running(), key=lambda broker: not broker.controller.active
        ):
            session = self._brokers.session(broker.broker_id)
            try:
                node = session.get(nodes.topic_path(name))
                found = session.get(nodes.topic_config_path(name))
            except CoordinationError as error:  # it may be cut off
                failure = str(error)
                continue
            if node is None:
                return None
            return self._decoded(name, node.data, None if found is None else found.data)
        raise BrokerUnavailableError(f"topic {name!r}: {failure}")

    def _decoded(self, name: str, topic: bytes, config: bytes | None) -> TopicAssignment:
        source, read = (name, topic, config), self._read
        if read is not None and read[0] == source:
            return read[1]
        settings = {} if config is None else nodes.decode_topic_config(name, config)
        decoded = nodes.decode_topic(name, topic, settings)
        self._read = source, decoded
        return decoded

    def _is_there(self, name: str, topic_id: uuid.UUID) -> bool:
        """Raises as ``_topic``."""
        found = self._topic(name)
        return found is not None and found.topic_id == topic_id

    def _present(self, name: str, topic_id: uuid.UUID | None = None) -> TopicAssignment:
        """The topic of that name, and with ``topic_id`` only that one.

        Raises:
            UnknownPartitionError: it does not exist, or no longer.
            BrokerUnavailableError: as ``_topic``, at the end of the time.
        """
        found = self._client.retry(lambda: self._topic(name), TIMEOUT_S)
        if found is None or topic_id not in (None, found.topic_id):
            gone = "" if topic_id is None else " any more"
            raise UnknownPartitionError(f"there is no topic {name!r}{gone}")
        return found

    def _wait_for_leaders(
        self, topic: str, topic_id: uuid.UUID, tps: Sequence[TopicPartition]
    ) -> None:
        def is_led(tp: TopicPartition) -> bool:
            running = self._brokers.running()
            if all(broker.knows_leader(tp) for broker in running):
                return True
            if not any(broker.metadata.topic_id(topic) == topic_id for broker in running):
                self._present(topic, topic_id)  # not known yet, or no longer
            return False

        what = f"partitions of topic {topic!r} have a leader that all brokers know"
        self._wait_for(topic_id, tps, is_led, what)

    def _wait_for(
        self,
        topic_id: uuid.UUID,
        tps: Sequence[TopicPartition],
        is_done: Callable[[TopicPartition], bool],
        what: str,
        is_over: Callable[[], bool] = lambda: True,
    ) -> None:
        """Wait until all partitions are done, and what comes after them is over.

        Raises:
            TopicNotReadyError: nothing happens any more.
        """
        waiting = [*reversed(tps)]  # each is looked at until it is done, and once more in the end

        def are_done() -> bool:
            while waiting and is_done(waiting[-1]):
                waiting.pop()
            return not waiting and is_over() and all(map(is_done, tps))

        def progress() -> tuple[int, int]:
            return len(waiting), self._replicas_of(topic_id)

        try:
            self._brokers.wait_until(are_done, what, TIMEOUT_S, progress)
        except TimeoutError as error:
            done = sum(map(is_done, tps))
            reason = (
                f"{done} of {len(tps)} {what}, which have {self._replicas_of(topic_id)} replicas; "
                f"nothing has changed for {TIMEOUT_S:.0f} s"
            )
            raise TopicNotReadyError(reason, done, len(tps)) from error
        self._client.refresh()

    # -- operations ---------------------------------------------------------------------

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        config: Mapping[str, object] | None = None,
        if_not_exists: bool = False,
    ) -> list[TopicPartition]:
        factor = replication_factor or min(3, len(self._brokers.broker_ids))
        request = CreateTopicRequest(
            topic,
            partitions if assignment is None else len(assignment),
            factor,
            None if assignment is None else tuple(tuple(replicas) for replicas in assignment),
            {key: str(value) for key, value in (config or {}).items()},
        )

        def is_as_asked() -> bool:
            found = self._topic(topic)
            return found is not None and _is_made_by(found, request)

        try:
            self._ask_for_topic(request, ErrorCode.TOPIC_ALREADY_EXISTS, is_as_asked)
        except ReplicationError as error:
            if not if_not_exists or error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        found = self._present(topic)
        tps = [TopicPartition(topic, p) for p in sorted(found.partitions)]
        self._wait_for_leaders(topic, found.topic_id, tps)
        return tps

    def delete_topic(self, topic: str) -> None:
        found = self._present(topic)
        topic_id = found.topic_id
        request = DeleteTopicRequest(topic_id=topic_id)
        self._ask_for_topic(request, ErrorCode.UNKNOWN_TOPIC_ID)

        def has_none(tp: TopicPartition) -> bool:
            return not any(_has_replica(b, tp, topic_id) for b in self._brokers.running())

        tps = [TopicPartition(topic, number) for number in found.partitions]
        what = f"partitions of topic {topic!r} are on no broker"
        self._wait_for(topic_id, tps, has_none, what, lambda: self._is_gone(topic, topic_id))

    def _replicas_of(self, topic_id: uuid.UUID) -> int:
        """Count the replicas of a topic that the running brokers have."""
        held = (
            p.log for b in self._brokers.running() for p in [*b.replica_manager.partitions.values()]
        )
        return sum(log is not None and log.topic_id == topic_id for log in held)

    def _is_gone(self, topic: str, topic_id: uuid.UUID) -> bool:
        """Whether neither the running brokers nor the coordinator know a topic."""
        brokers = self._brokers.running()
        if any(b.metadata.topic_id(topic) == topic_id for b in brokers):
            return False
        try:
            # The controller may wait for those that are down.
            if len(brokers) == len(self._brokers.broker_ids) and self._is_there(topic, topic_id):
                return False
        except BrokerUnavailableError:
            return False
        return not self._replicas_of(topic_id)

    def create_partitions(
        self, topic: str, total: int, *, assignment: Sequence[Sequence[int]] | None = None
    ) -> list[TopicPartition]:
        before = self._present(topic)
        known, topic_id = len(before.partitions), before.topic_id
        replicas = None if assignment is None else tuple(map(tuple, assignment))

        def is_as_asked() -> bool:
            """Whether the number is reached, by any client.

            Without an assignment only the number was requested.
            """
            found = self._topic(topic)
            if found is None or found.topic_id != topic_id:
                return False
            now = found.partitions
            new = tuple(now.get(number, ()) for number in range(known, total))
            return known < total == len(now) and replicas in (None, new)

        request = CreatePartitionsRequest(topic, total, replicas)
        self._ask_for_topic(
            request,
            ErrorCode.INVALID_PARTITIONS,
            is_as_asked,
            lambda: self._is_there(topic, topic_id),
        )
        tps = [TopicPartition(topic, p) for p in range(known, total)]
        self._wait_for_leaders(topic, topic_id, tps)
        return tps

    def alter_topic(self, topic: str, config: Mapping[str, object]) -> None:
        topic_id = self._present(topic).topic_id
        changes = tuple(
            AlterableConfig(key, None, AlterConfigOp.DELETE)
            if value is None
            else AlterableConfig(key, str(value))
            for key, value in config.items()
        )
        self._ask_for_topic(
            IncrementalAlterConfigsRequest(topic, changes),
            still=lambda: self._is_there(topic, topic_id),
        )

        def is_applied() -> bool:
            wanted = self._present(topic, topic_id).config
            return all(
                _goes_by(broker, topic, topic_id, wanted, config)
                for broker in self._brokers.running()
            )

        self._brokers.wait_until(is_applied, f"topic {topic} is configured")

    def elect_preferred(self, *tps: TopicPartition) -> dict[TopicPartition, ErrorCode]:
        request = ElectLeadersRequest(ElectionType.PREFERRED, tps or None)
        response: ElectLeadersResponse = self._ask_controller(request)
        return dict(response.partitions)


def _has_replica(broker: Broker, tp: TopicPartition, topic_id: uuid.UUID) -> bool:
    partition = broker.replica_manager.partitions.get(tp)
    log = None if partition is None else partition.log
    return log is not None and log.topic_id == topic_id


def _is_made_by(found: TopicAssignment, request: CreateTopicRequest) -> bool:
    """Whether a topic equals the request."""
    replicas = [found.partitions.get(number) for number in range(request.partitions)]
    if len(found.partitions) != request.partitions or dict(found.config) != dict(request.config):
        return False
    if request.assignment is not None:
        return replicas == list(request.assignment)
    return all(each is not None and len(each) == request.replication_factor for each in replicas)


def _goes_by(
    broker: Broker,
    topic: str,
    topic_id: uuid.UUID,
    wanted: Mapping[str, str],
    keys: Iterable[str],
) -> bool:
    """Whether the replicas of a broker have the topic's values of these keys."""
    properties = broker.log_manager.config.with_properties(dict(wanted)).to_properties()
    for tp, partition in list(broker.replica_manager.partitions.items()):
        log = partition.log
        if tp.topic != topic or log is None or log.topic_id != topic_id:
            continue
        present = log.config.to_properties()
        if any(present[key] != properties[key] for key in keys):
            return False
        replicas = max(1, len(partition.role.replicas))
        if partition.min_isr != effective_min_isr(log.config.min_insync_replicas, replicas):
            return False  # a leader takes it over after its log has
    return True
