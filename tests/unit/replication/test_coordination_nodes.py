"""Kafka's nodes: texts as ``kafka.zk.ZkData`` of Kafka 3.x writes them, and hostile ones."""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints.types import TopicPartition
from replication.common.state import (
    BrokerRegistration,
    Endpoint,
    PartitionRegistration,
    RecoveryState,
    TopicAssignment,
)
from replication.coordination import CorruptNodeError, nodes
from tests.support.cases import for_each

TP = TopicPartition("orders", 3)
REPLICAS = (1, 2, 3)
ID = uuid.UUID("5a2d0e4e-9f5c-4b52-9c0b-6a63a0a7f1c2")

DECODERS: dict[str, Callable[[bytes], object]] = {
    "/brokers/ids/7": lambda data: nodes.decode_broker(7, data),
    "/controller": nodes.decode_controller,
    "/controller_epoch": lambda data: nodes.decode_number("/controller_epoch", data),
    "/logstore/broker_epochs/7": lambda data: nodes.decode_number(
        "/logstore/broker_epochs/7", data
    ),
    "/brokers/topics/orders": lambda data: nodes.decode_topic("orders", data),
    "/brokers/topics/orders/partitions/3/state": lambda data: nodes.decode_partition(
        TP, data, 0, REPLICAS
    ),
    "/config/topics/orders": lambda data: nodes.decode_topic_config("orders", data),
    "/log_dir_event_notification/log_dir_event_0000000000": lambda data: nodes.decode_log_dir_event(
        "/log_dir_event_notification/log_dir_event_0000000000", data
    ),
    "/config/changes/config_change_0000000000": lambda data: nodes.decode_config_change(
        "/config/changes/config_change_0000000000", data
    ),
    "/admin/preferred_replica_election": nodes.decode_preferred_elections,
    "/admin/reassign_partitions": nodes.decode_reassignments,
    "/latest_producer_id_block": nodes.decode_producer_id_block,
}

i32 = st.integers(0, 2**31 - 1)
brokers = st.lists(i32, unique=True, max_size=5).map(tuple)
replicas = st.lists(st.integers(0, 7), unique=True, max_size=5).map(tuple)
epochs = st.integers(0, 2**30)
names = st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True)


@st.composite
def topics(draw: st.DrawFn) -> TopicAssignment:
    count = draw(st.integers(1, 5))
    replicas = {p: draw(brokers) for p in range(count)}
    adding = {p: r[-1:] for p, r in replicas.items() if r and draw(st.booleans())}
    removing = {p: r[:1] for p, r in replicas.items() if r and draw(st.booleans())}
    config = draw(st.dictionaries(names, names, max_size=3))
    return TopicAssignment(
        uuid.UUID(int=draw(st.integers(100, 2**128 - 1))), replicas, config, adding, removing
    )


# --- there and back


@given(
    st.builds(
        BrokerRegistration,
        broker_id=i32,
        host=st.sampled_from(["localhost", "10.0.0.1", "::1", "naïve.example"]),
        port=st.integers(-1, 65535),
        rack=st.none() | names,
        previous_broker_epoch=st.integers(-1, 2**63 - 1),
        timestamp_ms=st.integers(0, 2**53),
        earlier_epochs=st.lists(st.integers(0, 2**63 - 1), max_size=3).map(tuple),
        endpoints=st.just(()),
        unproven=st.none()
        | st.frozensets(st.builds(TopicPartition, st.sampled_from(["t", "a.b"]), i32), max_size=3),
        proves_logs=st.booleans(),
        coordinator_epoch=st.integers(-1, 2**29),
    )
)
def test_brokers(broker: BrokerRegistration) -> None:
    found = nodes.decode_broker(broker.broker_id, nodes.encode_broker(broker))
    if broker.port >= 0:  # Kafka wants an endpoint, so there is one
        broker = broker._replace(endpoints=(Endpoint("PLAINTEXT", broker.host, broker.port),))
    assert found == broker


@given(topics())
def test_topics(topic: TopicAssignment) -> None:
    assert nodes.decode_topic("t", nodes.encode_topic(topic), topic.config) == topic
    assert nodes.decode_topic_config("t", nodes.encode_topic_config(topic.config)) == topic.config


@given(
    st.builds(
        PartitionRegistration,
        replicas=st.just((*range(8),)),
        isr=replicas,
        leader=st.integers(-1, 7),
        leader_epoch=epochs,
        partition_epoch=i32,
        recovery_state=st.sampled_from(RecoveryState),
        elr=replicas,
        last_known_leader=st.integers(-1, 2**31 - 1),
        controller_epoch=epochs,
    )
)
def test_partitions(state: PartitionRegistration) -> None:
    data = nodes.encode_partition(state)
    decoded = nodes.decode_partition(TP, data, state.partition_epoch, state.replicas)
    assert decoded == state
    assert type(decoded.recovery_state) is RecoveryState


@given(i32, epochs, st.integers(0, 2**53))
def test_small_nodes(number: int, term: int, epoch: int) -> None:
    assert nodes.decode_controller(nodes.encode_controller(number, epoch)) == number
    assert nodes.decode_number("/controller_epoch", nodes.encode_number(term)) == term
    assert nodes.decode_number("/x", nodes.encode_number(epoch)) == epoch
    assert nodes.decode_log_dir_event("/x", nodes.encode_log_dir_event(number)) == number


# --- as Kafka has them


def test_kafkas_own_texts_are_read() -> None:
    """The samples of ``ZkData.scala`` and of KIP-584, 516, 455 and 704."""
    broker = b"""{"version":5,"host":"localhost","port":9092,"jmx_port":9999,
        "timestamp":"2233345666","endpoints":["CLIENT://host1:9092","REPLICATION://host1:9093"],
        "listener_security_protocol_map":{"CLIENT":"SSL","REPLICATION":"PLAINTEXT"},"rack":"dc1",
        "features":{"feature":{"min_version":1,"first_active_version":2,"max_version":3}}}"""
    assert nodes.decode_broker(7, broker) == BrokerRegistration(
        7,
        "localhost",
        9092,
        "dc1",
        -1,
        2233345666,
        endpoints=(
            Endpoint("CLIENT", "host1", 9092, "SSL"),
            Endpoint("REPLICATION", "host1", 9093, "PLAINTEXT"),
        ),
        is_foreign=True,
    )
    no_plaintext = b"""{"features":{},"listener_security_protocol_map":{"SSL":"SSL"},"version":5,
        "endpoints":["SSL://host1:9093"],"jmx_port":-1,"port":-1,"host":null,"timestamp":"5"}"""
    assert nodes.decode_broker(7, no_plaintext)[:3] == (7, "host1", 9093)
    topic = b"""{"removing_replicas":{"1":[2]},"partitions":{"0":[1,2],"1":[3,2]},
        "topic_id":"Wi0OTp9cS1KcC2pjoKfxwg","adding_replicas":{"1":[3]},"version":3}"""
    assert nodes.decode_topic("t", topic) == TopicAssignment(
        ID, {0: (1, 2), 1: (3, 2)}, {}, {1: (3,)}, {1: (2,)}
    )
    old = b'{"controller_epoch":1,"leader":2,"version":1,"leader_epoch":4,"isr":[2,1]}'
    assert nodes.decode_partition(TP, old, 9, (1, 2)) == PartitionRegistration(
        (1, 2), (2, 1), 2, 4, 9, controller_epoch=1
    )
    controller = b'{"version":2,"brokerid":3,"timestamp":"1600000000000","kraftControllerEpoch":-1}'
    assert nodes.decode_controller(controller) == 3
    assert nodes.decode_producer_id_block(b"") == -1
    change = b'{"version":2,"entity_path":"topics/orders"}'
    assert nodes.decode_config_change("/x", change) == "orders"
    quota = b'{"version":2,"entity_path":"users/me/clients/<default>"}'
    assert nodes.decode_config_change("/x", quota) is None
    election = b'{"version":1,"partitions":[{"topic":"orders","partition":3}]}'
    assert nodes.decode_preferred_elections(election) == [TP]
    moves = b'{"version":1,"partitions":[{"topic":"orders","partition":3,"replicas":[2,1]}]}'
    assert nodes.decode_reassignments(moves) == {TP: (2, 1)}


@pytest.mark.parametrize(
    "endpoints",
    [
        (),
        (Endpoint("PLAINTEXT", "127.0.0.1", 9092),),
        (
            Endpoint("INSIDE", "::1", 19092),
            Endpoint("OUT-SIDE.2", "kafka.org", 9093, "SASL_SSL"),
        ),
    ],
)
def test_the_listeners_of_a_broker_come_back(endpoints: tuple[Endpoint, ...]) -> None:
    broker = BrokerRegistration(7, "::1", 19092, endpoints=endpoints)
    found = nodes.decode_broker(7, nodes.encode_broker(broker))
    if endpoints:
        assert found == broker
    else:  # one who has no socket names its address, for Kafka's sake
        assert found == broker._replace(endpoints=(Endpoint("PLAINTEXT", "::1", 19092),))
    assert nodes.decode_broker(7, nodes.encode_broker(BrokerRegistration(7))).endpoints == ()


@for_each(
    "endpoints, protocols",
    [
        (["PLAINTEXT:/host:1"], {"PLAINTEXT": "PLAINTEXT"}),
        (["PLAINTEXT://host"], {"PLAINTEXT": "PLAINTEXT"}),
        (["PLAINTEXT://host:65536"], {"PLAINTEXT": "PLAINTEXT"}),
        (["PLAINTEXT://ho\nst:1"], {"PLAINTEXT": "PLAINTEXT"}),
        ([7], {"PLAINTEXT": "PLAINTEXT"}),
        (["A://host:1"], {"B": "PLAINTEXT"}),
        (["A://host:1"], {"A": 3}),
        ("A://host:1", {"A": "SSL"}),
    ],
)
def test_endpoints_that_nobody_could_use_are_refused(endpoints: object, protocols: object) -> None:
    fields = json.loads(nodes.encode_broker(BrokerRegistration(7)))
    fields |= {"endpoints": endpoints, "listener_security_protocol_map": protocols}
    with pytest.raises(CorruptNodeError, match="/brokers/ids/7"):
        nodes.decode_broker(7, json.dumps(fields).encode())


@for_each(
    "fields",
    [
        {"unproven": []},
        {"unproven": {"t": 0}},
        {"unproven": {"t": [-1]}},
        {"unproven": {"t": [True]}},
        {"unproven": {"t\n": [0]}},
        {"all_unproven": 1},
        {"proves_logs": "yes"},
    ],
)
def test_proofs_that_nobody_writes_are_refused(fields: dict[str, object]) -> None:
    known = json.loads(nodes.encode_broker(BrokerRegistration(7)))
    with pytest.raises(CorruptNodeError, match="/brokers/ids/7"):
        nodes.decode_broker(7, json.dumps({**known, **fields}).encode())


def test_topic_ids() -> None:
    ids = [uuid.UUID(int=(number + 1) << 64) for number in range(5)]
    assert nodes.decode_topic_ids(nodes.DELETED_TOPICS, nodes.encode_topic_ids(ids)) == ids
    for data in (b"", b"{}", b'{"version":1,"topic_ids":[1]}', b'{"version":1,"topic_ids":["x"]}'):
        with pytest.raises(CorruptNodeError, match="/logstore/deleted_topics"):
            nodes.decode_topic_ids(nodes.DELETED_TOPICS, data)


def test_what_kafka_reads_is_written() -> None:
    """The keys and types that Kafka's decoders demand; further keys are no matter to them."""
    broker = json.loads(nodes.encode_broker(BrokerRegistration(7, "::1", 9092, "r", 5, 1)))
    assert broker["endpoints"] == ["PLAINTEXT://[::1]:9092"]
    assert broker["listener_security_protocol_map"] == {"PLAINTEXT": "PLAINTEXT"}
    assert (broker["version"], broker["jmx_port"], broker["timestamp"]) == (5, -1, "1")
    assert broker["features"] == {}
    office = json.loads(nodes.encode_controller(3, 5))
    assert office == {
        "version": 2,
        "brokerid": 3,
        "timestamp": "5",
        "kraftControllerEpoch": -1,
    }
    assert json.loads(nodes.encode_config_change("t")) == {"version": 2, "entity_path": "topics/t"}
    assert "rack" not in json.loads(nodes.encode_broker(BrokerRegistration(7)))
    topic = TopicAssignment(ID, {0: (1, 2), 10: (2,), 2: (3,)})
    assert json.loads(nodes.encode_topic(topic)) == {
        "version": 3,
        "topic_id": "Wi0OTp9cS1KcC2pjoKfxwg",
        "partitions": {"0": [1, 2], "2": [3], "10": [2]},
        "adding_replicas": {},
        "removing_replicas": {},
    }
    state = PartitionRegistration(REPLICAS, (2,), 2, 4, 9, RecoveryState.RECOVERING, (3,), 1, 6)
    assert json.loads(nodes.encode_partition(state)) == {
        "version": 1,
        "leader": 2,
        "leader_epoch": 4,
        "controller_epoch": 6,
        "isr": [2],
        "leader_recovery_state": 1,
        "elr": [3],
        "last_known_leader": 1,
    }


def test_paths() -> None:
    assert nodes.partition_state_path(TP) == "/brokers/topics/orders/partitions/3/state"
    assert nodes.broker_path(1) == "/brokers/ids/1"
    assert nodes.topic_config_path("t") == "/config/topics/t"
    assert nodes.delete_topic_path("t") == "/admin/delete_topics/t"
    assert nodes.broker_epoch_path(1) == "/logstore/broker_epochs/1"
    assert nodes.log_dir_event_path() == "/log_dir_event_notification/log_dir_event_"


# --- hostile


@pytest.mark.parametrize("path", DECODERS)
@given(data=st.binary(max_size=40) | st.text(max_size=20).map(lambda text: text.encode()))
def test_any_bytes_are_a_value_or_a_typed_error(path: str, data: bytes) -> None:
    _decode_or_refuse(path, data)


def _decode_or_refuse(path: str, data: bytes) -> None:
    refusal = None
    try:
        DECODERS[path](data)
    except CorruptNodeError as error:
        refusal = error
    if refusal is not None:
        assert refusal.path == path
        assert str(refusal).startswith(path)
        assert str(pickle.loads(pickle.dumps(refusal))) == str(refusal)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
VALID = {
    "/brokers/ids/7": nodes.encode_broker(BrokerRegistration(7, rack="r")),
    "/controller": nodes.encode_controller(1, 1),
    "/brokers/topics/orders": nodes.encode_topic(
        TopicAssignment(ID, {0: (1, 2)}, {}, {0: (1,)}, {0: (2,)})
    ),
    "/brokers/topics/orders/partitions/3/state": nodes.encode_partition(
        PartitionRegistration(REPLICAS, (2,), 2, 4, 9)
    ),
    "/config/topics/orders": nodes.encode_topic_config({"a": "b"}),
    "/log_dir_event_notification/log_dir_event_0000000000": nodes.encode_log_dir_event(1),
}


@pytest.mark.slow
@pytest.mark.parametrize("path", VALID)
@given(data=st.data())
def test_any_value_in_any_field_is_a_value_or_a_typed_error(path: str, data: st.DataObject) -> None:
    fields = json.loads(VALID[path])
    key = data.draw(st.sampled_from(sorted(fields)))
    fields[key] = data.draw(_json)
    _decode_or_refuse(path, json.dumps(fields).encode())


STATE = '{"version":1,"leader":1,"leader_epoch":0,"controller_epoch":0,"isr":[1]}'
TOPIC = '{"version":3,"topic_id":"Wi0OTp9cS1KcC2pjoKfxwg","partitions":{"0":[1]},\
"adding_replicas":{},"removing_replicas":{}}'


@for_each(
    "path, old, new",
    [
        ("state", "{", "["),
        ("state", STATE, "[]"),
        ("state", STATE, "[" * 100_000),
        ("state", STATE, "{}" + "\0"),
        ("state", '"leader":1,', ""),
        ("state", '"leader":1,', '"leader":1,"leader":2,'),
        ("state", '"leader":1', '"leader":true'),
        ("state", '"leader":1', '"leader":1.0'),
        ("state", '"leader":1', '"leader":-2'),
        ("state", '"leader":1', '"leader":2147483648'),
        ("state", '"leader":1', '"leader":' + "9" * 5000),
        ("state", '"leader":1', '"leader":NaN'),
        ("state", '"leader_epoch":0', '"leader_epoch":-1'),
        ("state", '"version":1', '"version":2'),
        ("state", "[1]", "[1,1]"),
        ("state", "[1]", '["1"]'),
        ("state", "[1]", "[-1]"),
        ("state", "[1]", '[1],"leader_recovery_state":2'),
        ("topic", '"version":3', '"version":2'),
        ("topic", "Wi0OTp9cS1KcC2pjoKfxwg", "Wi0OTp9cS1KcC2pjoKfxwh"),
        ("topic", '{"0":[1]}', '{"1":[1]}'),
        ("topic", '{"0":[1]}', '{"00":[1]}'),
        ("topic", '{"0":[1]}', '{"-0":[1]}'),
        ("topic", '{"0":[1]}', '{"٠":[1]}'),
        ("topic", '{"0":[1]}', '{"0":1}'),
        ("topic", '"adding_replicas":{}', '"adding_replicas":{"0":[2]}'),
        ("topic", '"removing_replicas":{}', '"removing_replicas":{"1":[1]}'),
        ("topic", '"removing_replicas":{}', '"removing_replicas":[]'),
    ],
)
def test_what_is_nearly_right_is_refused(path: str, old: str, new: str) -> None:
    text = STATE if path == "state" else TOPIC
    decode = {
        "state": lambda data: nodes.decode_partition(TP, data, 0, (1,)),
        "topic": lambda data: nodes.decode_topic("t", data),
    }[path]
    assert decode(text.encode()) is not None
    damaged = text.replace(old, new, 1)
    assert damaged != text
    with pytest.raises(CorruptNodeError):
        decode(damaged.encode())


@for_each("text", [b"", b"-1", b"+1", b" 1", b"1\n", b"1.0", b"9" * 30, b"2147483648"])
def test_epochs_are_plain_numbers(text: bytes) -> None:
    with pytest.raises(CorruptNodeError, match="/controller_epoch"):
        nodes.decode_number(nodes.CONTROLLER_EPOCH, text)
