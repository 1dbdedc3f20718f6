"""What brokers ask each other over sockets, on their own listener and on no other (X-27)."""

from __future__ import annotations

import ipaddress
import ssl
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from logstore.common.errors import ConfigError
from replication.apis import Handlers, KafkaApis
from replication.apis.brokers import BrokersApi
from replication.apis.common.broker_requests import SOME_BROKER, BrokerPeers
from replication.broker.producer_ids import BLOCK_SIZE
from replication.common import messages as house
from replication.common.error_codes import ErrorCode
from replication.common.messages import CONSUMER
from replication.common.state import PartitionRegistration
from replication.network import (
    CLOSE,
    Answer,
    ClientQuotas,
    ConnectionInfo,
    Listener,
    NetworkConfig,
    ReceivedRequest,
    SecurityProtocol,
    Send,
)
from replication.network.server import is_served
from replication.protocol import (
    ADVERTISED,
    ADVERTISED_TO_BROKERS,
    FOR_BROKERS,
    SERVED,
    SERVED_TO_BROKERS,
    ApiKey,
    decode_response,
    encode_request,
    parse_response_header,
    request_header,
    schema,
)
from replication.protocol import messages as wire
from replication.protocol.codecs import encoder
from replication.protocol.compiler import joined
from replication.protocol.principals import decode_principal
from replication.server.serving import LOOPBACK, ServedCluster
from replication.wire import control
from tests.support.cases import for_each
from tests.support.certificates import make_certificates, needs_openssl
from tests.support.served import BROKERS, WITH_BROKERS, connect, new_name, served
from tests.support.wire_client import WireClient

E = ErrorCode
OF_CLIENTS = Listener()
OF_BROKERS = Listener(is_inter_broker=True)
ALICE = "User:alice"


@pytest.fixture(scope="module")
def kafka() -> Iterator[ServedCluster]:
    with served(3, **WITH_BROKERS) as brokers:
        yield brokers


@pytest.fixture
def controller(kafka: ServedCluster) -> Iterator[WireClient]:
    with connect(kafka, controller_of(kafka), listener=BROKERS) as client:
        yield client


@pytest.fixture
def other(kafka: ServedCluster) -> Iterator[WireClient]:
    """Of a broker that is not the controller."""
    controller_id = controller_of(kafka)
    broker_id = next(each for each in kafka.broker_ids if each != controller_id)
    with connect(kafka, broker_id, listener=BROKERS) as client:
        yield client


def controller_of(kafka: ServedCluster) -> int:
    kafka.wait_until(lambda: kafka.controller_id is not None, "there is a controller")
    assert kafka.controller_id is not None
    return kafka.controller_id


def last(key: ApiKey) -> int:
    return schema.APIS[key].versions.last


def ask(client: WireClient, request: Any) -> Any:
    name = type(request).__name__.removesuffix("Request")
    key = next(key for key, api in schema.APIS.items() if api.name == name)
    return client.ask(key, last(key), request)


# -- which listener serves what ---------------------------------------------------------------


def request_of(key: ApiKey, version: int, listener: Listener) -> ReceivedRequest:
    request = getattr(wire, f"{schema.APIS[key].name}Request")()
    info = ConnectionInfo(1, "127.0.0.1", 5, listener)
    body = memoryview(encode_request(request, version))
    return ReceivedRequest(key, version, 77, "me", body, info, 0)


class Recorded:
    """Handlers of all APIs, which note what comes and do not answer."""

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.handlers: Handlers = dict.fromkeys(ApiKey, self._note)

    def _note(self, received: ReceivedRequest, request: Any, reply: Any) -> None:
        self.keys.append(received.api_key)


@for_each("key", schema.APIS)
def test_each_listener_has_its_table(key: ApiKey) -> None:
    """X-27. No handler of a request between brokers runs on a listener of clients, in any version;
    all else is served to both."""
    for listener, table in ((OF_CLIENTS, SERVED), (OF_BROKERS, SERVED_TO_BROKERS)):
        for version in schema.APIS[key].versions.each():
            is_in_table = key in table and version in table[key]
            assert is_served(key, version, listener) is is_in_table  # before it takes memory
            recorded, answers = Recorded(), list[Answer]()
            received = request_of(key, version, listener)
            KafkaApis(recorded.handlers).handle(received, answers.append)
            if key is ApiKey.API_VERSIONS:
                assert isinstance(answers[0], Send)
            elif is_in_table:
                is_refused = answers and answers != [CLOSE]  # in the schema of the API
                assert recorded.keys == ([] if is_refused else [key])
                assert not (is_refused and listener.is_inter_broker)
            else:
                assert (answers, recorded.keys) == ([CLOSE], [])


@for_each("key", sorted(FOR_BROKERS))
def test_a_client_finds_no_such_api(kafka: ServedCluster, key: ApiKey) -> None:
    request = getattr(wire, f"{schema.APIS[key].name}Request")()
    with connect(kafka) as client:
        client.send(key, last(key), request)
        assert client.is_closed()


@for_each("version", SERVED[ApiKey.API_VERSIONS].each())
def test_only_brokers_are_offered_them(kafka: ServedCluster, version: int) -> None:
    """X-27. Kafka asks first, on its way to a controller."""
    for listener, table in ((None, ADVERTISED), (BROKERS, ADVERTISED_TO_BROKERS)):
        with connect(kafka, listener=listener) as client:
            response = client.ask(
                ApiKey.API_VERSIONS, version, wire.ApiVersionsRequest("test", "1")
            )
        found = {ApiKey(each.api_key): each for each in response.api_keys}
        assert found.keys() & FOR_BROKERS == table.keys() & FOR_BROKERS
        for key in found.keys() & FOR_BROKERS:
            assert (found[key].min_version, found[key].max_version) == table[key]


def test_before_metadata_come_only_brokers_are_served() -> None:
    """Otherwise the request that brings them would be refused."""
    recorded, answers = Recorded(), list[Answer]()
    apis = KafkaApis(recorded.handlers, is_ready=lambda: False)
    apis.handle(request_of(ApiKey.FETCH, last(ApiKey.FETCH), OF_BROKERS), answers.append)
    assert (answers, recorded.keys) == ([CLOSE], [])
    follower = request_of(ApiKey.FETCH, 12, OF_BROKERS)
    body = memoryview(encode_request(wire.FetchRequest(replica_id=1), 12))
    apis.handle(request_of(ApiKey.FETCH, 12, OF_CLIENTS)._replace(body=body), answers.append)
    assert (answers[1:], recorded.keys) == ([CLOSE], [])
    apis.handle(request_of(ApiKey.API_VERSIONS, 0, OF_CLIENTS), answers.append)
    assert isinstance(answers[-1], Send)
    for key in FOR_BROKERS:
        apis.handle(request_of(key, last(key), OF_BROKERS), answers.append)
    apis.handle(follower._replace(body=body), answers.append)
    assert recorded.keys == [*FOR_BROKERS, ApiKey.FETCH]


# -- who is a broker --------------------------------------------------------------------------


def connection(
    listener: Listener = OF_BROKERS, principal: str = ALICE, *uris: str
) -> ConnectionInfo:
    return ConnectionInfo(1, "h", 1, listener, principal, certificate_uris=uris)


def test_the_listener_decides_where_nothing_else_is_said() -> None:
    peers = BrokerPeers()
    assert peers.admits(connection(), 5)
    assert not peers.admits(connection(OF_CLIENTS), 5)


def test_principals_of_brokers() -> None:
    """X-62."""
    peers = BrokerPeers(frozenset({ALICE}))
    assert peers.admits(connection(), 5)
    assert not peers.admits(connection(principal="User:bob"), 5)
    assert not peers.admits(connection(OF_CLIENTS), 5)


def test_a_certificate_names_one_broker() -> None:
    """X-63."""
    peers = BrokerPeers(by_certificate=True)
    five = connection(OF_BROKERS, ALICE, "kafka:broker:5", "spiffe://else")
    assert [peers.admits(five, broker_id) for broker_id in (5, 6, 55, SOME_BROKER)] == [
        True,
        False,
        False,
        True,
    ]
    for uris in ((), ("spiffe://else",), ("kafka:broker:-1",)):
        stranger = connection(OF_BROKERS, ALICE, *uris)
        assert not peers.admits(stranger, 5)
    assert not peers.admits(connection(OF_BROKERS, ALICE, "spiffe://else"), SOME_BROKER)
    named = BrokerPeers(frozenset({"User:bob"}), by_certificate=True)
    assert not named.admits(five, 5)


def test_the_configuration_says_who_is_a_broker() -> None:
    internal = Listener("IN", "h", 1, SecurityProtocol.SASL_SSL, is_inter_broker=True)
    keys = {"broker.principals": "User:admin,User:b", "broker.identity": "none"}
    config = NetworkConfig.from_properties(keys)
    assert BrokerPeers.of(config, [internal]) == BrokerPeers(frozenset({"User:admin", "User:b"}))
    assert BrokerPeers.of(NetworkConfig(), [OF_BROKERS, Listener()]) == BrokerPeers()
    clients = internal._replace(is_inter_broker=False)
    assert BrokerPeers.of(NetworkConfig(), [clients]) == BrokerPeers()
    with pytest.raises(ConfigError, match=r"broker\.principals"):
        BrokerPeers.of(NetworkConfig(), [internal])
    own = BrokerPeers(frozenset({"User:kafka"}))
    assert BrokerPeers.of(NetworkConfig(), [internal], "kafka") == own
    assert BrokerPeers.of(config, [internal], "kafka").principals == {"User:admin", "User:b"}
    assert BrokerPeers.of(NetworkConfig(), [OF_BROKERS], "kafka") == BrokerPeers()
    config = NetworkConfig(broker_identity="certificate")
    assert BrokerPeers.of(config, [internal]) == BrokerPeers(None, True)
    with pytest.raises(ConfigError, match="PLAINTEXT, where nobody shows one"):
        BrokerPeers.of(config, [OF_BROKERS])
    with pytest.raises(ConfigError, match=r"broker\.identity"):
        NetworkConfig(broker_identity="face")


CLAIMS: dict[ApiKey, tuple[int, Any]] = {
    ApiKey.LEADER_AND_ISR: (7, wire.LeaderAndIsrRequest(3)),
    ApiKey.STOP_REPLICA: (4, wire.StopReplicaRequest(3)),
    ApiKey.UPDATE_METADATA: (8, wire.UpdateMetadataRequest(3)),
    ApiKey.CONTROLLED_SHUTDOWN: (3, wire.ControlledShutdownRequest(3)),
    ApiKey.ALTER_PARTITION: (3, wire.AlterPartitionRequest(3)),
    ApiKey.ALLOCATE_PRODUCER_IDS: (0, wire.AllocateProducerIdsRequest(3)),
    ApiKey.FETCH: (12, wire.FetchRequest(replica_id=3)),
    ApiKey.LIST_OFFSETS: (
        6,
        wire.ListOffsetsRequest(
            3,
            topics=(
                wire.ListOffsetsRequest.ListOffsetsTopic(
                    "t", (wire.ListOffsetsRequest.ListOffsetsPartition(),)
                ),
            ),
        ),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        4,
        wire.OffsetForLeaderEpochRequest(
            3,
            (
                wire.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
                    "t", (wire.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(),)
                ),
            ),
        ),
    ),
}
UNNAMED: dict[ApiKey, tuple[int, Any]] = {
    ApiKey.ENVELOPE: (0, wire.EnvelopeRequest()),
    ApiKey.ADD_PARTITIONS_TO_TXN: (5, wire.AddPartitionsToTxnRequest()),
    ApiKey.WRITE_TXN_MARKERS: (
        1,
        wire.WriteTxnMarkersRequest(
            (
                wire.WriteTxnMarkersRequest.WritableTxnMarker(
                    1,
                    1,
                    True,
                    (wire.WriteTxnMarkersRequest.WritableTxnMarkerTopic("t", (0,)),),
                ),
            )
        ),
    ),
}


@for_each("key", [*CLAIMS, *UNNAMED])
def test_a_request_in_the_name_of_another_broker_is_refused(key: ApiKey) -> None:
    """X-63. Each request that says who sends it, with the certificate of broker 3 and of another;
    what names no broker is taken from any."""
    version, request = (CLAIMS | UNNAMED)[key]
    body = memoryview(encode_request(request, version))
    for uri, is_believed in (
        ("kafka:broker:3", True),
        ("kafka:broker:4", key in UNNAMED),
        ("kafka:client:3", False),
    ):
        recorded, answers = Recorded(), list[Answer]()
        apis = KafkaApis(recorded.handlers, peers=BrokerPeers(by_certificate=True))
        info = connection(OF_BROKERS, ALICE, uri)
        received = ReceivedRequest(key, version, 77, "me", body, info, 0)
        apis.handle(received, answers.append)
        assert recorded.keys == ([key] if is_believed else [])
        if not is_believed:
            (answer,) = answers
            assert isinstance(answer, Send)
            assert {*answer.errors} == {E.CLUSTER_AUTHORIZATION_FAILED}


def test_quotas_of_clients_do_not_count_between_brokers() -> None:
    """X-64. Those who read by the listener of brokers, and are none, pay as elsewhere."""
    config = NetworkConfig(quota_consumer_default=1)
    quotas = ClientQuotas(config, lambda: 0)
    answer = wire.FetchResponse(
        responses=(
            wire.FetchResponse.FetchableTopicResponse(
                "t", partitions=(wire.FetchResponse.PartitionData(records=memoryview(bytes(100))),)
            ),
        )
    )
    for replica_id, throttled in ((3, False), (CONSUMER, True)):
        answers: list[Answer] = []
        handler = lambda received, request, reply: reply(answer)  # noqa: E731
        apis = KafkaApis({ApiKey.FETCH: handler}, quotas=quotas)
        body = memoryview(encode_request(wire.FetchRequest(replica_id=replica_id), 12))
        info = connection(OF_BROKERS, ALICE)
        apis.handle(ReceivedRequest(ApiKey.FETCH, 12, 77, "me", body, info, 0), answers.append)
        (sent,) = answers
        assert isinstance(sent, Send)
        assert (sent.throttle_ms > 0) == throttled


# -- from a controller ------------------------------------------------------------------------


def test_orders_of_a_deposed_controller_are_refused(
    kafka: ServedCluster, other: WireClient
) -> None:
    stale = E.STALE_CONTROLLER_EPOCH
    for kind in (wire.LeaderAndIsrRequest, wire.UpdateMetadataRequest, wire.StopReplicaRequest):
        assert ask(other, kind(9, controller_epoch=-5)).error_code == stale


def test_orders_to_an_earlier_life_are_refused(kafka: ServedCluster, other: WireClient) -> None:
    epoch = kafka.broker(controller_of(kafka)).controller.epoch
    for kind in (wire.LeaderAndIsrRequest, wire.UpdateMetadataRequest, wire.StopReplicaRequest):
        request = kind(9, controller_epoch=epoch, broker_epoch=0)
        assert ask(other, request).error_code == E.STALE_BROKER_EPOCH


def test_orders_are_carried_out() -> None:
    """A role, metadata, and the end of a replica."""
    with served(1, **WITH_BROKERS) as kafka:
        broker = kafka.broker(0)
        epoch = broker.controller.epoch
        name, topic_id = new_name(), uuid.uuid4()
        tp = TopicPartition(name, 0)
        state = PartitionRegistration((0,), (0,), 0, 4, 6, controller_epoch=epoch)
        change = house.PartitionChange(tp, state, topic_id, {"segment.bytes": "4096"}, 3)
        header = 0, epoch, broker.broker_epoch
        live = tuple(broker.metadata.live_brokers.values())
        with connect(kafka, 0, listener=BROKERS) as client:
            roles = house.LeaderAndIsrRequest(*header, (change,), live, LATER)
            response = ask(client, control.leader_and_isr_request_to(roles, 7))
            assert response.error_code == E.NONE
            assert [part.error_code for part in response.topics[0].partition_errors] == [E.NONE]
            assert broker.replica_manager.partitions[tp].is_leader
            metadata = house.UpdateMetadataRequest(*header, (change,), live, sequence=LATER + 1)
            assert ask(client, control.update_metadata_request_to(metadata, 8)).error_code == E.NONE
            assert broker.metadata.registration(tp) == state
            assert broker.metadata.topic_config(name) == {"segment.bytes": "4096"}
            assert broker.metadata.partition_count(name) == 3
            stop = house.StopReplicaPartition(tp, -2, True, topic_id)
            stops = house.StopReplicaRequest(*header, (stop,), LATER + 2)
            response = ask(client, control.stop_replica_request_to(stops, 4))
            assert [part.error_code for part in response.partition_errors] == [E.NONE]
            assert broker.replica_manager.partitions.get(tp) is None


LATER = 1 << 40  # than what the controller has sent
NAMES = ("../x", "a/b", "", ".", "..", "a\0b", "x" * 250)


@pytest.mark.parametrize("leader", [0, 1])
def test_a_role_of_a_topic_that_cannot_be_makes_no_log(leader: int) -> None:
    with served(1, **WITH_BROKERS) as kafka, connect(kafka, 0, listener=BROKERS) as client:
        broker = kafka.broker(0)
        state = PartitionRegistration((0, 1), (0, 1), leader, 0, 0)
        header = 0, broker.controller.epoch, broker.broker_epoch
        before = set(broker.log_manager.logs)
        for tp in (*[TopicPartition(name, 0) for name in NAMES], TopicPartition("t", -1)):
            change = house.PartitionChange(tp, state, uuid.uuid4())
            roles = house.LeaderAndIsrRequest(*header, (change,), ())
            response = ask(client, control.leader_and_isr_request_to(roles, 7))
            codes = [part.error_code for each in response.topics for part in each.partition_errors]
            assert response.error_code or any(codes), tp
        assert set(broker.log_manager.logs) == before


# -- to the controller ------------------------------------------------------------------------


def test_who_is_not_controller_says_so(kafka: ServedCluster, other: WireClient) -> None:
    epoch = kafka.broker(0).broker_epoch
    for kind in (
        wire.AlterPartitionRequest,
        wire.ControlledShutdownRequest,
        wire.AllocateProducerIdsRequest,
    ):
        assert ask(other, kind(0, epoch)).error_code == E.NOT_CONTROLLER
    assert ask(other, wire.EnvelopeRequest()).error_code == E.NOT_CONTROLLER


def test_requests_of_an_earlier_life_are_refused(
    kafka: ServedCluster, controller: WireClient
) -> None:
    for kind in (
        wire.AlterPartitionRequest,
        wire.ControlledShutdownRequest,
        wire.AllocateProducerIdsRequest,
    ):
        assert ask(controller, kind(0, 0)).error_code == E.STALE_BROKER_EPOCH
    unknown = ask(controller, wire.AllocateProducerIdsRequest(99, 0))
    assert unknown.error_code == E.BROKER_ID_NOT_REGISTERED


@for_each("version", [2, 3])
def test_an_isr_is_changed(kafka: ServedCluster, controller: WireClient, version: int) -> None:
    """By topic id. The answer says by which minimum it goes; a copy gets the same answer."""
    config = {"min.insync.replicas": 2}
    (tp,) = kafka.create_topic(new_name(), assignment=[(0, 1, 2)], config=config)
    kafka.wait_for_isr(tp, (0, 1, 2))
    broker = kafka.broker(0)
    known = broker.metadata.registration(tp)
    topic_id = broker.metadata.topic_id(tp.topic)
    assert known is not None
    assert topic_id is not None
    kind = wire.AlterPartitionRequest
    part = kind.PartitionData(0, known.leader_epoch, partition_epoch=known.partition_epoch)
    if version == 2:
        part = part._replace(new_isr=(0, 1))
    else:
        own = kind.BrokerState(0, broker.broker_epoch)
        part = part._replace(new_isr_with_epochs=(own, kind.BrokerState(1)))
    request = kind(0, broker.broker_epoch, (kind.TopicData(topic_id, (part,)),))
    for _ in range(2):
        response = controller.ask(ApiKey.ALTER_PARTITION, version, request)
        assert response.error_code == E.NONE
        ((found,),) = (topic.partitions for topic in response.topics)
        assert (found.error_code, found.leader_id, found.isr) == (E.NONE, 0, (0, 1))
        assert found.partition_epoch == known.partition_epoch + 1
        assert found.min_isr == 2


def test_an_isr_of_a_topic_that_is_not_there(kafka: ServedCluster, controller: WireClient) -> None:
    kind = wire.AlterPartitionRequest
    topic = kind.TopicData(uuid.UUID(int=99), (kind.PartitionData(),))
    response = ask(controller, kind(0, kafka.broker(0).broker_epoch, (topic,)))
    ((found,),) = (topic.partitions for topic in response.topics)
    assert found.error_code == E.UNKNOWN_TOPIC_ID
    assert response.topics[0].topic_id == uuid.UUID(int=99)


def test_blocks_of_producer_ids(kafka: ServedCluster, controller: WireClient) -> None:
    """X-74. A copy takes another block, and no broker assigns an id of either."""
    blocks = []
    for _ in range(2):
        response = ask(controller, wire.AllocateProducerIdsRequest(1, kafka.broker(1).broker_epoch))
        assert (response.error_code, response.producer_id_len) == (E.NONE, BLOCK_SIZE)
        blocks.append(range(response.producer_id_start, response.producer_id_start + BLOCK_SIZE))
    assert not set(blocks[0]) & set(blocks[1])
    with connect(kafka, 1) as client:
        own = client.ask(ApiKey.INIT_PRODUCER_ID, 4, wire.InitProducerIdRequest(None, 60_000))
    assert own.error_code == E.NONE
    assert not any(own.producer_id in block for block in blocks)


def test_a_broker_that_stops_hands_its_leaderships_over() -> None:
    with served(2, **WITH_BROKERS) as kafka:
        controller_id = controller_of(kafka)
        leaving = next(each for each in kafka.broker_ids if each != controller_id)
        (tp,) = kafka.create_topic(new_name(), assignment=[(leaving, controller_id)])
        kafka.wait_for_isr(tp, (0, 1))
        with connect(kafka, controller_id, listener=BROKERS) as client:
            request = wire.ControlledShutdownRequest(leaving, kafka.broker(leaving).broker_epoch)
            response = ask(client, request)
        assert response.error_code == E.NONE
        assert not response.remaining_partitions
        kafka.wait_until(lambda: kafka.leader(tp) == controller_id, "the leadership moves")


# -- forwarded requests -----------------------------------------------------------------------


def encode_principal(principal: str) -> bytes:
    """As a broker of Kafka sends it: the version, and the value in it."""
    kind, _, name = principal.partition(":")
    data = wire.DefaultPrincipalData(kind, name)
    return bytes(2) + joined(encoder("DefaultPrincipalData", 0)(data))


def envelope(key: ApiKey, request: Any, version: int | None = None, **fields: Any) -> Any:
    version = last(key) if version is None else version
    data = request_header(key, version, 31, "client") + bytes(encode_request(request, version))
    values: dict[str, Any] = {
        "request_data": data,
        "request_principal": encode_principal(ALICE),
        "client_host_address": ipaddress.ip_address("10.1.2.3").packed,
    }
    return wire.EnvelopeRequest(**values | fields)


def creation(name: str) -> Any:
    return wire.CreateTopicsRequest((wire.CreateTopicsRequest.CreatableTopic(name, 1, 1),))


def test_a_forwarded_request_is_carried_out(kafka: ServedCluster, controller: WireClient) -> None:
    """X-70. The answer inside has the header of the request inside."""
    name, key = new_name(), ApiKey.CREATE_TOPICS
    for expected in (E.NONE, E.TOPIC_ALREADY_EXISTS):  # a copy is harmless
        response = ask(controller, envelope(key, creation(name)))
        assert response.error_code == E.NONE
        frame = memoryview(response.response_data)
        number, position = parse_response_header(frame, key, last(key))
        assert number == 31
        (topic,) = decode_response(key, last(key), frame[position:]).topics
        assert (topic.name, topic.error_code) == (name, expected)


class Inside:
    """A ``BrokersApi`` whose requests inside envelopes are looked at."""

    def __init__(self, *answers: Answer) -> None:
        self.received: list[ReceivedRequest] = []
        self._answers = [*answers]
        broker: Any = type("B", (), {"controller": type("C", (), {"active": True})})
        self._apis = KafkaApis(BrokersApi(broker, self._serve).handlers)

    def _serve(self, received: ReceivedRequest, respond: Any) -> None:
        self.received.append(received)
        respond(self._answers.pop(0))

    def ask(self, request: Any) -> Any:
        found: list[Answer] = []
        body = memoryview(encode_request(request, 0))
        info = ConnectionInfo(1, "127.0.0.1", 5, OF_BROKERS, "User:broker")
        self._apis.handle(ReceivedRequest(ApiKey.ENVELOPE, 0, 7, "b", body, info, 0), found.append)
        (answer,) = found
        if not isinstance(answer, Send):
            return answer
        frame: Any = memoryview(b"".join(answer.buffers))  # type: ignore[arg-type]
        _, position = parse_response_header(frame, ApiKey.ENVELOPE, 0)
        return decode_response(ApiKey.ENVELOPE, 0, frame[position:])


def test_it_is_the_clients_and_has_no_rights_of_a_broker() -> None:
    inside = Inside(Send([b"ab", b"c"]))
    for host in ("10.1.2.3", "2001:db8::1"):
        inside._answers = [Send([b"ab", b"c"])]
        packed = ipaddress.ip_address(host).packed
        request = envelope(ApiKey.CREATE_TOPICS, creation("t"), client_host_address=packed)
        assert inside.ask(request) == wire.EnvelopeResponse(b"abc", E.NONE)
        received = inside.received.pop()
        assert (received.client_id, received.correlation_id) == ("client", 31)
        assert (received.connection.peer_host, received.connection.principal) == (host, ALICE)
        assert not received.connection.listener.is_inter_broker


def test_who_is_controller_no_longer_says_so_outside() -> None:
    """The broker that forwarded it finds the next controller, and its client knows nothing."""
    inside = Inside(Send([b"x"], errors=(E.NOT_CONTROLLER,)), CLOSE)
    request = envelope(ApiKey.CREATE_TOPICS, creation("t"))
    assert inside.ask(request) == wire.EnvelopeResponse(None, E.NOT_CONTROLLER)
    assert inside.ask(request) is CLOSE


REFUSED_ENVELOPES = {
    "for brokers": (envelope(ApiKey.UPDATE_METADATA, wire.UpdateMetadataRequest()), 42),
    "another envelope": (envelope(ApiKey.ENVELOPE, wire.EnvelopeRequest()), 42),
    "not forwarded": (envelope(ApiKey.METADATA, wire.MetadataRequest()), 42),
    "no request": (envelope(ApiKey.CREATE_TOPICS, creation("t"), request_data=b"x"), 42),
    "unknown api": (
        envelope(ApiKey.CREATE_TOPICS, creation("t"), request_data=b"\x7f\xff" + bytes(20)),
        42,
    ),
    "no address": (envelope(ApiKey.CREATE_TOPICS, creation("t"), client_host_address=b"abc"), 42),
    "a later version": (
        envelope(
            ApiKey.CREATE_TOPICS,
            creation("t"),
            request_data=request_header(ApiKey.CREATE_TOPICS, 99, 1, "c") + bytes(20),
        ),
        35,
    ),
    "no principal": (envelope(ApiKey.CREATE_TOPICS, creation("t"), request_principal=None), 97),
    "another principal": (
        envelope(ApiKey.CREATE_TOPICS, creation("t"), request_principal=b"\0\1\5User\2a\0\0"),
        97,
    ),
    "half a principal": (
        envelope(ApiKey.CREATE_TOPICS, creation("t"), request_principal=b"\0\0\5Us"),
        97,
    ),
}


@for_each("case", REFUSED_ENVELOPES)
def test_what_cannot_be_forwarded(case: str) -> None:
    request, code = REFUSED_ENVELOPES[case]
    inside = Inside()
    assert inside.ask(request) == wire.EnvelopeResponse(None, code)
    assert not inside.received


def test_principals_come_back() -> None:
    for name in ("User:alice", "User:CN=x,O=y:z", "Group:", "User:é"):
        assert decode_principal(encode_principal(name)) == name


@needs_openssl
def test_by_certificate_at_the_front_door(tmp_path: Path) -> None:
    """X-63. The certificate is that of broker 1."""
    folder = make_certificates(tmp_path)
    config = {
        **WITH_BROKERS["config"],
        "broker.identity": "certificate",
        "ssl.keystore.location": str(folder / "server.pem"),
        "ssl.truststore.location": str(folder / "ca.pem"),
    }
    listeners = LOOPBACK, Listener(BROKERS, "127.0.0.1", 0, SecurityProtocol.SSL)
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.load_cert_chain(folder / "client.pem")
    with served(2, config, listeners=listeners) as kafka:
        controller_id = controller_of(kafka)
        with connect(kafka, controller_id, listener=BROKERS) as client:
            client._socket = context.wrap_socket(client._socket, server_hostname="localhost")
            for broker_id, code in ((0, E.CLUSTER_AUTHORIZATION_FAILED), (1, E.NONE)):
                epoch = kafka.broker(broker_id).broker_epoch
                request = wire.AllocateProducerIdsRequest(broker_id, epoch)
                assert ask(client, request).error_code == code
