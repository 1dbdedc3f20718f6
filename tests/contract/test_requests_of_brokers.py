"""What brokers ask of the controller, of leaders and of coordinators gets the same answers in the
process and over TCP, errors included."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from replication import Client, Producer, ServedCluster, connect
from replication.common.error_codes import ErrorCode
from replication.common.internal_topics import TRANSACTION_STATE
from replication.common.messages import (
    AddPartitionsToTxnRequest,
    AlterableConfig,
    AlterConfigOp,
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteRecordsRequest,
    DeleteTopicRequest,
    ElectionType,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    ListPartitionReassignmentsRequest,
    Request,
    TxnMarker,
    WriteTxnMarkersRequest,
)
from tests.support.served import BROKERS, WITH_BROKERS, new_name, served
from tests.support.served import connect as wire_client
from tests.support.until import patience
from tests.support.wire_producer import WireProducer

E = ErrorCode
BOTH = ("local", "tcp")
Ask = Callable[[Request], Any]
"""The controller, or the broker that is asked."""


@pytest.fixture(scope="module")
def kafka() -> Iterator[ServedCluster]:
    with served(3, **WITH_BROKERS) as brokers:
        yield brokers


@pytest.fixture(scope="module")
def clients(kafka: ServedCluster) -> Iterator[dict[str, Client]]:
    servers = [
        f"{each.host}:{each.port}"
        for broker_id in kafka.broker_ids
        for each in kafka.broker(broker_id).endpoints
        if each.listener == BROKERS
    ]
    with connect(",".join(servers)) as over_tcp:
        over_tcp.refresh()
        yield {"local": kafka.client, "tcp": over_tcp}


@pytest.fixture
def asks(kafka: ServedCluster, clients: dict[str, Client]) -> dict[str, Ask]:
    """The controller, over each transport."""
    kafka.wait_until(lambda: kafka.controller_id is not None, "a controller")
    controller = kafka.controller_id
    assert controller is not None
    return {kind: asking(client, controller) for kind, client in clients.items()}


def asking(client: Client, broker_id: int) -> Ask:
    return lambda request: client.call(broker_id, request, patience())


def same(
    asks: dict[str, Ask], requests: Callable[[str], Sequence[Request]], prepare: Any = None
) -> list[Any]:
    """Ask for each of the requests, about a topic of its own over each transport. Returns the
    answers about ``T``, which are the same."""
    told = {}
    for kind, ask in asks.items():
        name = new_name("same")
        if prepare is not None:
            prepare(name)
        told[kind] = [str(ask(request)).replace(name, "T") for request in requests(name)]
    assert told["tcp"] == told["local"]
    return told["tcp"]


def codes(told: Sequence[str]) -> list[str]:
    """The name of the first code in each."""
    return [text.partition("<ErrorCode.")[2].partition(":")[0] for text in told]


def test_topics_are_created(asks: dict[str, Ask]) -> None:
    told = same(
        asks,
        lambda name: [
            CreateTopicRequest(name, 2, 2, config={"retention.ms": "1000"}, validate_only=True),
            CreateTopicRequest(name, 50, 2, config={"retention.ms": "1000"}),
            CreateTopicRequest(name, 2, 2),
            CreateTopicRequest(name + "-default", -1, -1),
            CreateTopicRequest(name + "-small", config={"segment.bytes": "1024"}),
            CreateTopicRequest(name + "-bad", config={"retention.ms": "long"}),
            CreateTopicRequest(name + "-bad", config={"nobody.knows": "1"}),
            CreateTopicRequest(name + "-assigned", assignment=((0, 1), (1, 2))),
            CreateTopicRequest(name + "-bad", assignment=((0, 0),)),
            CreateTopicRequest(name + "-bad", assignment=((0, 9),)),
            CreateTopicRequest(name + "-bad", 0, 1),
            CreateTopicRequest(name + "-bad", 1_000_000, 1),
            CreateTopicRequest(name + "-bad", 1, 4),
            CreateTopicRequest(name + "/", 1, 1),
            CreateTopicRequest("", 1, 1),
            CreateTopicRequest(f"{name}_a", 1, 1),
            CreateTopicRequest(f"{name}.a", 1, 1),
        ],
    )
    assert codes(told[:5]) == ["NONE", "NONE", "TOPIC_ALREADY_EXISTS", "NONE", "NONE"]
    assert "nobody.knows" in told[6]
    # A wire cannot tell no partitions from no assignment, so only the text differs.
    empty = [ask(CreateTopicRequest("empty", assignment=())) for ask in asks.values()]
    assert {answer.error_code for answer in empty} == {E.INVALID_PARTITIONS}


def test_topics_are_deleted(kafka: ServedCluster, asks: dict[str, Ask]) -> None:
    def requests(name: str) -> Iterator[Request]:
        yield DeleteTopicRequest(name)
        yield DeleteTopicRequest(topic_id=kafka.broker(0).metadata.topic_id(name + "-id"))
        yield DeleteTopicRequest(name + "-nobody")
        yield DeleteTopicRequest(topic_id=uuid.UUID(int=77))
        yield DeleteTopicRequest()
        yield DeleteTopicRequest(name + "-nobody", uuid.UUID(int=77))

    def prepare(name: str) -> None:
        for each in (name, name + "-id"):
            kafka.create_topic(each, 3, 3)
        known = kafka.broker(0).metadata.topic_id
        kafka.wait_until(lambda: known(name + "-id") is not None, "the topic is known")

    told = same(asks, requests, prepare)  # type: ignore[arg-type]
    assert codes(told[:1]) == ["NONE"]
    assert codes(told[1:4]) == ["NONE", "UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID"]


def test_topics_grow(kafka: ServedCluster, asks: dict[str, Ask]) -> None:
    told = same(
        asks,
        lambda name: [
            CreatePartitionsRequest(name, 4, validate_only=True),
            CreatePartitionsRequest(name, 4),
            CreatePartitionsRequest(name, 4),
            CreatePartitionsRequest(name, 5, ((2,),)),
            CreatePartitionsRequest(name, 6, ()),
            CreatePartitionsRequest(name, 6, ((9,),)),
            CreatePartitionsRequest(name + "-nobody", 4),
            CreatePartitionsRequest(name, 100_000),
        ],
        lambda name: kafka.create_topic(name, 2, 1),
    )
    assert codes(told[:4]) == ["NONE", "NONE", "INVALID_PARTITIONS", "NONE"]


def test_configurations_are_altered(kafka: ServedCluster, asks: dict[str, Ask]) -> None:
    retention = AlterableConfig("retention.ms", "1000")
    policy = AlterableConfig("cleanup.policy", "compact", AlterConfigOp.APPEND)

    def requests(name: str) -> Iterator[Request]:
        for configs in (
            (retention, policy),
            (policy._replace(operation=AlterConfigOp.SUBTRACT),),
            (AlterableConfig("retention.ms", None, AlterConfigOp.DELETE),),
            (retention, retention),
            (retention._replace(value=None),),
            (retention._replace(value="long"),),
            (AlterableConfig("nobody.knows", "1"),),
            (retention._replace(operation=AlterConfigOp.APPEND),),
            (AlterableConfig("segment.bytes", "1024"),),
            (),
        ):
            yield IncrementalAlterConfigsRequest(name, configs, validate_only=True)
            yield IncrementalAlterConfigsRequest(name, configs)
        yield IncrementalAlterConfigsRequest(name + "-nobody", (retention,))
        yield IncrementalAlterConfigsRequest("a/b", (retention,))

    told = same(asks, requests, lambda name: kafka.create_topic(name, 2, 1))  # type: ignore[arg-type]
    assert codes(told[:6]) == ["NONE"] * 6
    assert codes(told[6:8]) == ["INVALID_REQUEST"] * 2


def test_leaders_are_elected(kafka: ServedCluster, asks: dict[str, Ask]) -> None:
    preferred, unclean = ElectionType
    (name,) = {tp.topic for tp in kafka.create_topic(new_name("elected"), 3, 3)}
    tps = tuple(TopicPartition(name, number) for number in range(4))
    for tp in tps[:3]:
        kafka.wait_for_isr(tp, kafka.broker_ids)
    told = same(
        asks,
        lambda _: [
            ElectLeadersRequest(preferred, tps),
            ElectLeadersRequest(unclean, tps[1:3]),
            ElectLeadersRequest(preferred, (tps[0], TopicPartition("nobody", 0), tps[1])),
            ElectLeadersRequest(preferred, ()),
            ElectLeadersRequest(preferred, None),
        ],
    )
    assert "UNKNOWN_TOPIC_OR_PARTITION" in told[0]


def test_partitions_are_reassigned(kafka: ServedCluster, asks: dict[str, Ask]) -> None:
    def requests(name: str) -> list[Request]:
        first, second, missing = (TopicPartition(name, number) for number in range(3))
        return [
            AlterPartitionReassignmentsRequest(((first, (0, 9)), (missing, (0,)))),
            AlterPartitionReassignmentsRequest(((first, ()), (second, (1, 1)))),
            AlterPartitionReassignmentsRequest(((first, None),)),
            AlterPartitionReassignmentsRequest(((second, (0, 1, 2)),), may_change_factor=False),
            AlterPartitionReassignmentsRequest(((first, (0, 1)), (second, (1, 2)))),
            AlterPartitionReassignmentsRequest(()),
            ListPartitionReassignmentsRequest((missing,)),
            ListPartitionReassignmentsRequest(()),
        ]

    told = same(asks, requests, lambda name: kafka.create_topic(name, 2, 2))
    assert "NO_REASSIGNMENT_IN_PROGRESS" in told[2]
    assert codes(told[4:5]) == ["NONE"]


def test_who_is_not_controller_says_so(kafka: ServedCluster, clients: dict[str, Client]) -> None:
    other = next(each for each in kafka.broker_ids if each != kafka.controller_id)
    asks = {kind: asking(client, other) for kind, client in clients.items()}
    tp = TopicPartition("nobody", 0)
    told = same(
        asks,
        lambda name: [
            CreateTopicRequest(name),
            DeleteTopicRequest(name),
            DeleteTopicRequest(topic_id=uuid.UUID(int=7)),
            CreatePartitionsRequest(name, 4),
            IncrementalAlterConfigsRequest(name, (AlterableConfig("retention.ms", "1"),)),
            ElectLeadersRequest(ElectionType.PREFERRED, (tp,)),
            ElectLeadersRequest(ElectionType.PREFERRED, None),
            AlterPartitionReassignmentsRequest(((tp, (0,)),)),
            ListPartitionReassignmentsRequest(),
        ],
    )
    assert set(codes(told)) == {"NOT_CONTROLLER"}


def test_old_records_are_deleted(kafka: ServedCluster, clients: dict[str, Client]) -> None:
    producer, leaders = Producer(kafka.client), {}

    def prepare(name: str) -> None:
        for tp in kafka.create_topic(name, 2, 3):
            leaders[tp] = kafka.wait_for_leader(tp)
            producer.send_batch(name, tp.partition, [(None, b"x")] * 9)

    def requests(name: str) -> list[Request]:
        first, second, missing = (TopicPartition(name, number) for number in range(3))
        return [
            DeleteRecordsRequest(((first, 3),), 9000),
            DeleteRecordsRequest(((first, 99), (missing, 1)), 9000),
            DeleteRecordsRequest(((missing, 1), (first, -1)), 9000),
            DeleteRecordsRequest(((first, -2), (second, 0)), 9000),
            DeleteRecordsRequest((), 9000),
        ]

    def asking_leader(client: Client) -> Ask:
        return lambda request: client.call(leaders[newest()], request, patience())

    def newest() -> TopicPartition:
        return [tp for tp in leaders if tp.partition == 0][-1]

    told = same(
        {kind: asking_leader(client) for kind, client in clients.items()}, requests, prepare
    )
    assert codes(told[:2]) == ["NONE", "OFFSET_OUT_OF_RANGE"]
    assert "low_watermark=3" in told[0]
    assert "low_watermark=9" in told[2]


def test_partitions_are_added_to_transactions(
    kafka: ServedCluster, clients: dict[str, Client]
) -> None:
    first, second = kafka.create_topic(new_name(), 2, 1)
    kafka.wait_for_leader(second)
    with wire_client(kafka) as connected:
        name = WireProducer(kafka, connected).name
    coordinator = kafka.broker(0).metadata.coordinator_partition(TRANSACTION_STATE, name)
    assert coordinator is not None
    leader = kafka.wait_for_leader(coordinator)
    with wire_client(kafka, leader) as connected:
        writer = WireProducer(kafka, connected, name)
        told = {}
        for kind, client in clients.items():
            assert writer.init() == E.NONE
            producer = name, writer.producer_id, writer.epoch
            ask, elsewhere = asking(client, leader), asking(client, (leader + 1) % 3)
            answers = [
                ask(AddPartitionsToTxnRequest(*producer, (first,))),
                ask(AddPartitionsToTxnRequest(*producer, (second, first), verify_only=False)),
                ask(AddPartitionsToTxnRequest(*producer, (first, second))),
                ask(AddPartitionsToTxnRequest(*producer[:2], 99, (first,))),
                ask(AddPartitionsToTxnRequest("nobody", 1, 1, (first,))),
                ask(AddPartitionsToTxnRequest(*producer, (TopicPartition("nobody", 1),))),
                elsewhere(AddPartitionsToTxnRequest(*producer, (first,))),
            ]
            told[kind] = [answer.partitions for answer in answers]
    assert told["tcp"] == told["local"]
    assert told["tcp"][1] == ((second, E.NONE), (first, E.NONE))
    assert told["tcp"][2] == ((first, E.NONE), (second, E.NONE))


def test_transactions_are_ended(kafka: ServedCluster, clients: dict[str, Client]) -> None:
    def ends(kind: str) -> list[Any]:
        first, second = kafka.create_topic(new_name(), 2, 1)
        missing = TopicPartition("nobody", 0)
        places = {tp: n for n, tp in enumerate((first, second, missing))}
        leader = kafka.wait_for_leader(first)
        kafka.wait_for_leader(second)
        ask = asking(clients[kind], leader)
        markers = (
            TxnMarker(7, 1, True, 5, (first, missing)),
            TxnMarker(8, 1, False, 5, ()),
            TxnMarker(7, 1, False, 5, (missing, first)),
            TxnMarker(9, 1, True, 5, (first,), transaction_version=2),
        )
        answers = [
            ask(WriteTxnMarkersRequest(markers)),
            ask(WriteTxnMarkersRequest((markers[0]._replace(coordinator_epoch=4),))),
            ask(WriteTxnMarkersRequest((markers[3],))),
            ask(WriteTxnMarkersRequest(())),
        ]
        return [
            [[(places[tp], code) for tp, code in marker] for marker in answer.markers]
            for answer in answers
        ]

    told = {kind: ends(kind) for kind in BOTH}
    assert told["tcp"] == told["local"]
    unknown = (2, E.UNKNOWN_TOPIC_OR_PARTITION)
    assert told["tcp"][0] == [[(0, E.NONE), unknown], [], [unknown, (0, E.NONE)], [(0, E.NONE)]]
    assert told["tcp"][1] == [[(0, E.TRANSACTION_COORDINATOR_FENCED), unknown]]
    assert told["tcp"][3] == []
