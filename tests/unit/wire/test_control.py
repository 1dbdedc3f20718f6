"""What controllers and brokers say to each other: the same on both sides of a wire, and without
our tagged fields what a real Kafka says."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints.types import TopicPartition
from replication.common import messages as house
from replication.common.error_codes import ErrorCode
from replication.common.errors import InvalidRequestError
from replication.common.state import (
    BrokerRegistration,
    Endpoint,
    LiveBroker,
    PartitionRegistration,
    RecoveryState,
    TopicAssignment,
)
from replication.protocol import ApiKey, MalformedMessageError, encode_request, schema
from replication.protocol import messages as wire
from replication.wire import control, controller
from replication.wire.calls import TRANSLATIONS
from tests.unit.wire.test_translations import over_the_wire

E = ErrorCode
TOPICS = {"a": uuid.UUID(int=7), "b": uuid.UUID(int=8), "c": uuid.UUID(int=9)}
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)

epochs = st.integers(0, 2**31 - 1)
long_epochs = st.integers(0, 2**63 - 1)
brokers = st.integers(0, 2**31 - 1)
ids = st.lists(brokers, unique=True, max_size=4).map(tuple)
tps = st.builds(TopicPartition, st.sampled_from([*TOPICS]), st.integers(0, 2**31 - 1))
configs = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)
registrations = st.builds(
    PartitionRegistration,
    ids,
    ids,
    st.integers(-2, 9),
    epochs,
    epochs,
    st.sampled_from(RecoveryState),
    ids,
    st.integers(-1, 9),
    epochs,
)
endpoints = st.lists(
    st.builds(
        Endpoint,
        st.text(max_size=4),
        st.text(max_size=4),
        brokers,
        st.sampled_from(control.PROTOCOLS),
    ),
    max_size=2,
).map(tuple)


@st.composite
def live_brokers(draw: st.DrawFn) -> tuple[LiveBroker, ...]:
    found = []
    for broker_id in draw(ids):
        places = draw(endpoints)
        host, port = (places[0].host, places[0].port) if places else ("localhost", -1)
        rack = draw(st.none() | st.text(max_size=3))
        broker = BrokerRegistration(broker_id, host, port, rack, endpoints=places)
        found.append(LiveBroker(broker, draw(long_epochs)))
    return tuple(found)


@st.composite
def changes(draw: st.DrawFn, recovers: bool = True) -> tuple[house.PartitionChange, ...]:
    """Partitions of a topic stand together, and have one configuration and count."""
    found = []
    by_topic = {topic: (draw(configs), draw(st.integers(0, 99))) for topic in TOPICS}
    for tp in sorted(draw(st.lists(tps, unique=True, max_size=5))):
        state = draw(registrations)
        if not recovers:
            state = state._replace(recovery_state=RecoveryState.RECOVERED)
        found.append(house.PartitionChange(tp, state, TOPICS[tp.topic], *by_topic[tp.topic]))
    return tuple(found)


assignments = st.dictionaries(
    st.sampled_from([*TOPICS]),
    st.builds(
        TopicAssignment,
        st.sampled_from([*TOPICS.values()]),
        st.dictionaries(epochs, ids, max_size=3),
        *[st.just({})] * 3,
    ),
)
headers = (brokers, epochs, long_epochs)
sequences = st.integers(0, 2**63 - 1)
leader_and_isr = st.builds(
    house.LeaderAndIsrRequest,
    *headers,
    changes(),
    live_brokers(),
    sequences,
    st.booleans(),
    assignments,
    st.frozensets(st.uuids(), max_size=3),
)
update_metadata = st.builds(
    house.UpdateMetadataRequest,
    *headers,
    changes(recovers=False),
    live_brokers(),
    ids,
    sequences,
    st.booleans(),
)
stop_replica = st.builds(
    house.StopReplicaRequest,
    *headers,
    st.lists(
        st.builds(
            lambda tp, epoch, delete: house.StopReplicaPartition(
                tp, epoch, delete, TOPICS[tp.topic]
            ),
            tps,
            st.integers(-2, 9),
            st.booleans(),
        ),
        unique_by=lambda stop: stop.tp,
        max_size=5,
    ).map(lambda found: tuple(sorted(found))),
    sequences,
)
alter_partition = st.builds(
    house.AlterPartitionRequest,
    brokers,
    long_epochs,
    st.lists(
        st.builds(
            lambda tp, epoch, isr, state: house.AlterPartitionItem(
                tp, epoch, epoch, tuple(isr), state, TOPICS[tp.topic]
            ),
            tps,
            epochs,
            st.lists(st.tuples(brokers, st.integers(-1, 2**63 - 1)), max_size=4),
            st.sampled_from(RecoveryState),
        ),
        unique_by=lambda item: item.tp,
        max_size=5,
    ).map(lambda found: tuple(sorted(found))),
)


def there(key: ApiKey, request: Any, request_from: Callable[..., Any], version: int) -> Any:
    """A request as its receiver has it."""
    message = TRANSLATIONS[type(request)].request_to(request, version)
    return request_from(over_the_wire(key, message, version), version)


def back(
    key: ApiKey, request: Any, response: Any, response_to: Callable[..., Any], version: int
) -> Any:
    """An answer as the sender of the request has it."""
    message = over_the_wire(key, response_to(request, response, version), version, answer=True)
    return TRANSLATIONS[type(request)].response_from(request, message, version)


codes = st.sampled_from([E.NONE, E.STALE_CONTROLLER_EPOCH, E.KAFKA_STORAGE_ERROR])


@given(leader_and_isr, st.data())
def test_leader_and_isr(request: house.LeaderAndIsrRequest, data: st.DataObject) -> None:
    key = ApiKey.LEADER_AND_ISR
    assert there(key, request, control.leader_and_isr_request_from, 7) == request
    answers = tuple((change.tp, data.draw(codes)) for change in request.partitions)
    ahead = {tp: data.draw(epochs) for tp, code in answers if code is not E.NONE}
    response = house.LeaderAndIsrResponse(E.NONE, answers, ahead)
    assert back(key, request, response, control.leader_and_isr_response_to, 7) == response


@given(update_metadata)
def test_update_metadata(request: house.UpdateMetadataRequest) -> None:
    key = ApiKey.UPDATE_METADATA
    assert there(key, request, control.update_metadata_request_from, 8) == request
    response = house.UpdateMetadataResponse(E.STALE_BROKER_EPOCH)
    assert back(key, request, response, control.update_metadata_response_to, 8) == response


@given(stop_replica, st.data())
def test_stop_replica(request: house.StopReplicaRequest, data: st.DataObject) -> None:
    key = ApiKey.STOP_REPLICA
    assert there(key, request, control.stop_replica_request_from, 4) == request
    answers = tuple((stop.tp, data.draw(codes)) for stop in request.partitions)
    response = house.StopReplicaResponse(E.NONE, answers)
    assert back(key, request, response, control.stop_replica_response_to, 4) == response


@given(alter_partition, st.sampled_from([2, 3]), st.data())
def test_alter_partition(
    request: house.AlterPartitionRequest, version: int, data: st.DataObject
) -> None:
    """Topics come with ids alone; version 2 has no epochs of brokers."""
    key = ApiKey.ALTER_PARTITION
    found = there(key, request, controller.alter_partition_request_from, version)
    assert found == request._replace(
        partitions=tuple(
            item._replace(
                tp=TopicPartition(f"?{item.topic_id}", item.tp.partition),
                new_isr=tuple((each, epoch if version > 2 else -1) for each, epoch in item.new_isr),
            )
            for item in request.partitions
        )
    )
    response = house.AlterPartitionResponse(
        E.NONE,
        tuple(
            house.AlterPartitionResult(
                item.tp,
                data.draw(codes),
                3,
                item.leader_epoch,
                data.draw(ids),
                item.partition_epoch,
                item.recovery_state,
                item.topic_id,
                data.draw(st.integers(0, 3)),
            )
            for item in request.partitions
        ),
    )
    assert back(key, request, response, controller.alter_partition_response_to, version) == response


@given(brokers, long_epochs, st.lists(tps, unique=True, max_size=4).map(tuple))
def test_controlled_shutdown(broker: int, epoch: int, left: tuple[TopicPartition, ...]) -> None:
    key, request = ApiKey.CONTROLLED_SHUTDOWN, house.ControlledShutdownRequest(broker, epoch)
    assert there(key, request, controller.controlled_shutdown_request_from, 3) == request
    response = house.ControlledShutdownResponse(E.NONE, left)
    assert back(key, request, response, controller.controlled_shutdown_response_to, 3) == response


@given(brokers, long_epochs, long_epochs)
def test_allocate_producer_ids(broker: int, epoch: int, first: int) -> None:
    key, request = ApiKey.ALLOCATE_PRODUCER_IDS, house.AllocateProducerIdsRequest(broker, epoch)
    assert there(key, request, controller.allocate_ids_request_from, 0) == request
    response = house.AllocateProducerIdsResponse(E.NONE, first, 1000)
    assert back(key, request, response, controller.allocate_ids_response_to, 0) == response


# -- of a real Kafka, without our fields --------------------------------------------------------

KAFKA_ROLES = wire.LeaderAndIsrRequest(
    1,
    controller_epoch=5,
    broker_epoch=77,
    topic_states=(
        wire.LeaderAndIsrRequest.LeaderAndIsrTopicState(
            "a",
            TOPICS["a"],
            (
                wire.LeaderAndIsrRequest.LeaderAndIsrPartitionState(
                    1, 5, 2, 3, (2, 1), 4, (1, 2), (), (), True, 1
                ),
            ),
        ),
    ),
    live_leaders=(wire.LeaderAndIsrRequest.LeaderAndIsrLiveLeader(2, "host", 9092),),
)


def test_roles_of_a_kafka() -> None:
    """X-94. The leaders that it names have no listeners: nothing is said of live brokers."""
    found = control.leader_and_isr_request_from(KAFKA_ROLES, 7)
    state = PartitionRegistration((1, 2), (2, 1), 2, 3, 4, RecoveryState.RECOVERING, (), -1, 5)
    change = house.PartitionChange(A1, state, TOPICS["a"])
    assert found == house.LeaderAndIsrRequest(1, 5, 77, (change,), ())


def test_full_roles_of_a_kafka_are_all_that_is_known() -> None:
    """What it names is here; a log of another partition, or of another id, has its place elsewhere
    ."""
    found = control.leader_and_isr_request_from(KAFKA_ROLES._replace(type=control.FULL), 7)
    assert found.is_full
    assert found.topics == {"a": TopicAssignment(TOPICS["a"], {1: (1, 2)})}
    assert not control.leader_and_isr_request_from(KAFKA_ROLES._replace(type=1), 7).is_full


def test_metadata_of_a_kafka() -> None:
    kind = wire.UpdateMetadataRequest
    internal = kind.UpdateMetadataEndpoint(9093, "in", "INTERNAL", 3)
    message = kind(
        1,
        controller_epoch=5,
        broker_epoch=77,
        topic_states=(
            kind.UpdateMetadataTopicState(
                "a", uuid.UUID(int=0), (kind.UpdateMetadataPartitionState(0, 5, -2, 3),)
            ),
        ),
        live_brokers=(kind.UpdateMetadataBroker(2, (internal,), None),),
    )
    place = Endpoint("INTERNAL", "in", 9093, "SASL_SSL")
    broker = BrokerRegistration(2, "in", 9093, endpoints=(place,))
    state = PartitionRegistration((), (), -2, 3, 0, controller_epoch=5)
    assert control.update_metadata_request_from(message, 8) == house.UpdateMetadataRequest(
        1, 5, 77, (house.PartitionChange(A0, state),), (LiveBroker(broker, -1),)
    )


def test_stops_of_a_kafka() -> None:
    kind = wire.StopReplicaRequest
    part = kind.StopReplicaPartitionState(0, -2, True)
    message = kind(1, controller_epoch=5, topic_states=(kind.StopReplicaTopicState("b", (part,)),))
    found = control.stop_replica_request_from(message, 4)
    assert found == house.StopReplicaRequest(1, 5, -1, (house.StopReplicaPartition(B0, -2, True),))


def test_what_there_is_not_is_refused() -> None:
    kind = wire.UpdateMetadataRequest
    for protocol in (-1, 4):
        place = kind.UpdateMetadataEndpoint(1, "h", "L", protocol)
        broker = kind.UpdateMetadataBroker(2, (place,))
        with pytest.raises(InvalidRequestError):
            control.update_metadata_request_from(kind(live_brokers=(broker,)), 8)
    roles = wire.LeaderAndIsrRequest
    part = roles.LeaderAndIsrPartitionState(leader_recovery_state=9)
    topic = roles.LeaderAndIsrTopicState("a", partition_states=(part,))
    with pytest.raises(InvalidRequestError):
        control.leader_and_isr_request_from(roles(topic_states=(topic,)), 7)


# -- answers ----------------------------------------------------------------------------------

ONE = house.PartitionChange(A0, PartitionRegistration((1,), (1,), 1, 0, 0), TOPICS["a"])
ROLES = house.LeaderAndIsrRequest(1, 5, 77, (ONE,), ())
STOPS = house.StopReplicaRequest(1, 5, 77, (house.StopReplicaPartition(A0, 1, False),))


def test_an_answer_without_a_partition_is_none() -> None:
    for request, message in (
        (ROLES, wire.LeaderAndIsrResponse()),
        (STOPS, wire.StopReplicaResponse()),
    ):
        with pytest.raises(MalformedMessageError, match="a-0"):
            TRANSLATIONS[type(request)].response_from(request, message, 0)


def test_a_whole_refusal_has_no_partitions() -> None:
    code = E.STALE_BROKER_EPOCH
    roles, stops = house.LeaderAndIsrResponse(code), house.StopReplicaResponse(code)
    key = ApiKey.LEADER_AND_ISR
    assert back(key, ROLES, roles, control.leader_and_isr_response_to, 7) == roles
    key = ApiKey.STOP_REPLICA
    assert back(key, STOPS, stops, control.stop_replica_response_to, 4) == stops


def test_topics_that_nobody_asked_for_are_left_out() -> None:
    kind = wire.AlterPartitionResponse
    message = kind(topics=(kind.TopicData(uuid.UUID(int=99), (kind.PartitionData(),)),))
    asked = house.AlterPartitionRequest(1, 5, ())
    assert controller.alter_partition_response_from(asked, message, 3).partitions == ()


# -- sizes ------------------------------------------------------------------------------------


def test_each_topic_stands_once_however_its_partitions_lie() -> None:
    """Kafka's own classes fail over a topic that comes twice. A configuration is written once."""
    state = PartitionRegistration((1, 2, 3), (1, 2, 3), 1, 9, 9)
    parts = tuple(
        house.PartitionChange(TopicPartition(topic, number), state, topic_id, {"k": "v" * 200}, 50)
        for number in range(50)
        for topic, topic_id in TOPICS.items()
    )
    for request in (
        house.LeaderAndIsrRequest(1, 5, 77, parts, ()),
        house.UpdateMetadataRequest(1, 5, 77, parts, ()),
    ):
        translation = TRANSLATIONS[type(request)]
        version = schema.APIS[translation.api_key].versions.last
        message = translation.request_to(request, version)
        assert [topic.topic_name for topic in message.topic_states] == [*TOPICS]
        assert len(encode_request(message, version)) < len(parts) * 60 + len(TOPICS) * 300
