"""Every error code that a client can be answered with is produced: here over the wire, where one or
two requests do it, or in the test that is named. The tables are complete over all codes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from logstore.common.clock import SystemClock
from logstore.format.batch import encode_batch
from logstore.format.codecs.compression import Compression
from replication.common.error_codes import ErrorCode as E
from replication.common.messages import ListOffsetsRequest
from replication.network import Listener
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.server.config import ServerConfig
from replication.server.kafka_server import KafkaServer
from replication.server.serving import ServedCluster
from tests.support.cases import for_each
from tests.support.served import (
    batch,
    connect,
    fetch,
    fetch_request,
    new_name,
    produce,
    served,
)
from tests.support.wire_client import WireClient

ROOT = Path(__file__).resolve().parents[3]
DAY_MS = 86_400_000


class Asking:
    """Broker 0 of two, and what is asked of it. Topics have their replicas on broker 0 first."""

    def __init__(self, kafka: ServedCluster, client: WireClient) -> None:
        self.kafka, self.client = kafka, client

    def topic(self, *replicas: int, **config: object) -> TopicPartition:
        keys = {key.replace("_", "."): value for key, value in config.items()}
        (tp,) = self.kafka.create_topic(
            new_name(), assignment=[replicas or (0,)], config=keys or None
        )
        return tp

    def produce(self, tp: TopicPartition, records: bytes | None = None, **options: Any) -> int:
        records = batch(b"x") if records is None else records
        return produce(self.client, tp, records, **options).error_code

    def ask(self, key: ApiKey, version: int, request: Any) -> Any:
        return self.client.ask(key, version, request)

    def fetch(self, tp: TopicPartition, offset: int = 0, **options: Any) -> int:
        return fetch(self.client, tp, offset, **options).error_code

    def session(self, *, epoch: int, known: bool, version: int = 12) -> int:
        tp = self.topic()
        first = self.ask(
            ApiKey.FETCH, 12, fetch_request((tp, {"fetch_offset": 0}), session_epoch=0)
        )
        session = first.session_id if known else first.session_id ^ 1
        request = fetch_request(session_id=session, session_epoch=epoch)
        code: int = self.ask(ApiKey.FETCH, version, request).error_code
        return code

    def create(self, name: str, partitions: int = 1, factor: int = 1, **more: Any) -> int:
        topic = wire.CreateTopicsRequest.CreatableTopic(name, partitions, factor, **more)
        request = wire.CreateTopicsRequest((topic,), 30_000)
        code: int = self.ask(ApiKey.CREATE_TOPICS, 7, request).topics[0].error_code
        return code

    def elect(self, kind: int, tp: TopicPartition) -> int:
        parts = wire.ElectLeadersRequest.TopicPartitions(tp.topic, (tp.partition,))
        request = wire.ElectLeadersRequest(kind, (parts,))
        response = self.ask(ApiKey.ELECT_LEADERS, 2, request)
        code: int = response.replica_election_results[0].partition_result[0].error_code
        return code

    def move(self, tp: TopicPartition, replicas: tuple[int, ...] | None) -> int:
        kind = wire.AlterPartitionReassignmentsRequest
        part = kind.ReassignablePartition(tp.partition, replicas)
        request = kind(topics=(kind.ReassignableTopic(tp.topic, (part,)),))
        response = self.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, request)
        code: int = response.responses[0].partitions[0].error_code
        return code

    def metadata(self, name: str, create: bool = False) -> Any:
        kind = wire.MetadataRequest
        request = kind((kind.MetadataRequestTopic(name=name),), create)
        return self.ask(ApiKey.METADATA, 12, request).topics[0]

    def group(self, key: ApiKey, version: int, request: Any) -> int:
        """Once the coordinator of the group is ready."""
        found: list[int] = []

        def ready() -> bool:
            response = self.ask(key, version, request)
            found.append(response.error_code)
            return response.error_code not in (E.COORDINATOR_LOAD_IN_PROGRESS, E.NOT_COORDINATOR)

        self.coordinator(request.group_id, 0)
        self.kafka.wait_until(ready, "the coordinator is ready")
        return found[-1]

    def coordinator(self, key: str, kind: int) -> None:
        request = wire.FindCoordinatorRequest(key, kind)
        self.kafka.wait_until(
            lambda: not self.ask(ApiKey.FIND_COORDINATOR, 3, request).error_code, "one is found"
        )

    def join(self, group: str, version: int = 5, **fields: Any) -> int:
        kind = wire.JoinGroupRequest
        options = {
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            "protocol_type": "consumer",
            "protocols": (kind.JoinGroupRequestProtocol("range", b""),),
            **fields,
        }
        return self.group(ApiKey.JOIN_GROUP, version, kind(group, **options))

    def commit(self, group: str, **fields: Any) -> int:
        kind = wire.OffsetCommitRequest
        tp = self.topic()
        part = kind.OffsetCommitRequestPartition(tp.partition, 1, -1, fields.pop("metadata", ""))
        topic = kind.OffsetCommitRequestTopic(tp.topic, partitions=(part,))
        request = kind(group, topics=(topic,), **fields)
        self.group(ApiKey.HEARTBEAT, 3, wire.HeartbeatRequest(group, 1, "m"))  # until it is ready
        code: int = self.ask(ApiKey.OFFSET_COMMIT, 7, request).topics[0].partitions[0].error_code
        return code

    def init(self, transactional_id: str | None, timeout_ms: int = 60_000) -> Any:
        request = wire.InitProducerIdRequest(transactional_id, timeout_ms)
        if transactional_id:
            self.coordinator(transactional_id, 1)
        found: list[Any] = []

        def ready() -> bool:
            found.append(self.ask(ApiKey.INIT_PRODUCER_ID, 4, request))
            return found[-1].error_code not in (
                E.COORDINATOR_LOAD_IN_PROGRESS,
                E.NOT_COORDINATOR,  # it has not taken its role yet
                E.COORDINATOR_NOT_AVAILABLE,  # the other replica was stopped, and is not back yet
            )

        self.kafka.wait_until(ready, "the coordinator is ready")
        return found[-1]

    def add(self, transactional_id: str, producer: tuple[int, int], *tps: TopicPartition) -> Any:
        kind = wire.AddPartitionsToTxnRequest
        topics = tuple(kind.AddPartitionsToTxnTopic(tp.topic, (tp.partition,)) for tp in tps)
        request = kind((), transactional_id, *producer, topics)
        response = self.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, request)
        return {
            topic.name: topic.results_by_partition[0].partition_error_code
            for topic in response.results_by_topic_v3_and_below
        }


def _sequence(base: int, epoch: int = 0, producer_id: int = 9000) -> bytes:
    return batch(b"x", producer_id=producer_id, producer_epoch=epoch, base_sequence=base)


def _stored(asking: Asking, first: bytes, second: bytes) -> int:
    tp = asking.topic()
    assert asking.produce(tp, first) == E.NONE
    return asking.produce(tp, second)


def _flipped() -> bytes:
    records = bytearray(batch(b"x" * 50))
    records[-1] ^= 1
    return bytes(records)


def _old_stamp() -> bytes:
    return bytes(encode_batch([(b"k", b"v", SystemClock().wall_ms() + DAY_MS)], base_offset=0))


def _unexpected(asking: Asking) -> int:
    """A handler that fails for a reason that nobody thought of."""
    broker = asking.kafka.broker(0)
    handlers = broker._handlers

    def fail(request: Any, reply: Any) -> None:
        raise RuntimeError("made for a test")

    before = handlers[ListOffsetsRequest]
    broker.serve(ListOffsetsRequest, fail)
    try:
        return _listed(asking, -1)
    finally:
        broker.serve(ListOffsetsRequest, before)


def _listed(asking: Asking, timestamp: int) -> int:
    kind = wire.ListOffsetsRequest
    topic = kind.ListOffsetsTopic(
        asking.topic().topic, (kind.ListOffsetsPartition(0, -1, timestamp),)
    )
    response = asking.ask(ApiKey.LIST_OFFSETS, 8, kind(-1, topics=(topic,)))
    code: int = response.topics[0].partitions[0].error_code
    return code


def _too_late(asking: Asking) -> int:
    """The follower is cut off, and counts as in sync for a while."""
    tp = asking.topic(0, 1)
    asking.kafka.cut_off(1, coordinator=False)
    try:
        return asking.produce(tp, timeout_ms=100)
    finally:
        asking.kafka.heal()


def _leave_one_replica(asking: Asking) -> int:
    tp = asking.topic(0, 1, min_insync_replicas=2)
    asking.kafka.crash(1)
    try:
        asking.kafka.wait_for_isr(tp, [0])
        return asking.produce(tp)
    finally:
        asking.kafka.start(1)


def _after_an_election(asking: Asking) -> int:
    """Of a broker that led before, and leads again."""
    with served(1) as kafka:
        (tp,) = kafka.create_topic("t")
        kafka.restart(0)
        kafka.wait_for_leader(tp)
        with connect(kafka) as client:
            return fetch(client, tp, current_leader_epoch=0).error_code


def _leaderless(asking: Asking) -> int:
    tp = asking.topic(1)
    asking.kafka.crash(1)
    try:

        def code() -> int:
            found: int = asking.metadata(tp.topic).partitions[0].error_code
            return found

        asking.kafka.wait_until(lambda: code() != E.NONE, "nobody leads")
        return code()
    finally:
        asking.kafka.start(1)


def _with_broker_1_down(election: int, *replicas: int) -> Callable[[Asking], int]:
    def ask(asking: Asking) -> int:
        tp = asking.topic(*replicas)
        asking.kafka.crash(1)
        try:
            alive = asking.kafka.broker(0).metadata.is_alive
            asking.kafka.wait_until(lambda: not alive(1), "1 is known to be dead")
            return asking.elect(election, tp)
        finally:
            asking.kafka.start(1)

    return ask


def _while_it_moves(asking: Asking) -> int:
    tp = asking.topic(0)
    asking.kafka.crash(1)
    try:
        assert asking.move(tp, (1,)) == E.NONE
        topic = wire.CreatePartitionsRequest.CreatePartitionsTopic(tp.topic, 2, None)
        request = wire.CreatePartitionsRequest((topic,), 30_000)
        code: int = asking.ask(ApiKey.CREATE_PARTITIONS, 3, request).results[0].error_code
        return code
    finally:
        asking.move(tp, None)
        asking.kafka.start(1)


def _broken_directory(asking: Asking) -> int:
    """Of a broker of its own, which it ends."""
    with served(1, log_dirs_per_broker=2) as kafka, connect(kafka) as client:
        (tp,) = kafka.create_topic("t")
        log = kafka.replica(tp, 0).local_log()
        from logstore.common.errors import StorageFailedError

        path = str(Path(log.directory).parent)
        kafka.broker(0).log_manager._directories.fail(path, StorageFailedError(path, "write", "x"))
        kafka.wait_until(lambda: kafka.broker(0).replica_manager.partitions[tp].offline, "offline")
        return fetch(client, tp).error_code


def _other_listener(asking: Asking) -> int:
    """Broker 0 has a listener that broker 1, which leads, has not."""
    config = ServerConfig()

    def doors(broker_id: int) -> KafkaServer:
        names = ["A", "B"] if broker_id == 0 else ["A"]
        return KafkaServer(broker_id, [Listener(name) for name in names], config)

    from logstore.storage.memory import MemoryStorage
    from replication.embedded.cluster import Cluster

    with Cluster(2, "/two", storage=MemoryStorage(), request_listener=doors) as kafka:
        kafka.create_topic("t", assignment=[[1]])
        at = kafka.broker(0).endpoints[1]
        with WireClient(at.host, at.port) as client:
            kind = wire.MetadataRequest
            request = kind((kind.MetadataRequestTopic(name="t"),))
            response = client.ask(ApiKey.METADATA, 12, request)
        assert [each.port for each in response.brokers] == [at.port]
        (part,) = response.topics[0].partitions
        assert part.leader_id == -1
        code: int = part.error_code
        return code


def _without_deletion(asking: Asking) -> int:
    with served(1, {"delete.topic.enable": "false"}) as kafka, connect(kafka) as client:
        request = wire.DeleteTopicsRequest(topic_names=("t",), timeout_ms=1000)
        code: int = client.ask(ApiKey.DELETE_TOPICS, 5, request).responses[0].error_code
        return code


def _without_controller(asking: Asking) -> int:
    with served(1, {"request.timeout.ms": 100}) as kafka, connect(kafka) as client:
        kafka.broker(0).controller.stop()
        return Asking(kafka, client).create("t")


def _deleted(asking: Asking, offset: int, **config: object) -> int:
    tp = asking.topic(**config)
    kind = wire.DeleteRecordsRequest
    part = kind.DeleteRecordsPartition(0, offset)
    request = kind((kind.DeleteRecordsTopic(tp.topic, (part,)),), 1000)
    code: int = asking.ask(ApiKey.DELETE_RECORDS, 2, request).topics[0].partitions[0].error_code
    return code


def _elsewhere(asking: Asking) -> int:
    """A group of which this broker is not the coordinator."""
    for number in range(50):
        request = wire.HeartbeatRequest(f"group-{number}", 1, "m")
        asking.coordinator(request.group_id, 0)
        response = asking.ask(ApiKey.HEARTBEAT, 3, request)
        if response.error_code == E.NOT_COORDINATOR:
            break
    code: int = response.error_code
    return code


def _of_no_transaction(asking: Asking) -> int:
    """A batch of a transaction without the name of its producer."""
    records = batch(b"x", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    return asking.produce(asking.topic(), records)


def _transactional(version: int) -> Callable[[Asking], int]:
    """A batch of a transaction of which its coordinator knows nothing."""

    def ask(asking: Asking) -> int:
        name = asking_id(asking)
        found = asking.init(name)
        records = batch(
            b"x",
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        return asking.produce(asking.topic(), records, version=version, transactional_id=name)

    return ask


def asking_id(asking: Asking) -> str:
    """A transactional id whose coordinator is broker 0."""
    for _ in range(50):
        name = new_name("transactional-id")
        asking.coordinator(name, 1)
        found = asking.ask(ApiKey.FIND_COORDINATOR, 3, wire.FindCoordinatorRequest(name, 1))
        if found.node_id == 0:
            return name
    raise AssertionError("broker 0 coordinates nothing")


def group_id(asking: Asking) -> str:
    """A group whose coordinator is broker 0."""
    for _ in range(50):
        name = new_name("group")
        asking.coordinator(name, 0)
        found = asking.ask(ApiKey.FIND_COORDINATOR, 3, wire.FindCoordinatorRequest(name, 0))
        if found.node_id == 0:
            return name
    raise AssertionError("broker 0 coordinates nothing")


def _init_again(asking: Asking) -> int:
    """While a transaction is open, which has to be aborted first."""
    name = asking_id(asking)
    found = asking.init(name)
    tp = asking.topic()
    added = asking.add(name, (found.producer_id, found.producer_epoch), tp)
    assert added == {tp.topic: E.NONE}
    code: int = asking.init(name).error_code
    return code


def _end_of_nothing(asking: Asking) -> int:
    name = asking_id(asking)
    found = asking.init(name)
    request = wire.EndTxnRequest(name, found.producer_id, found.producer_epoch, True)
    code: int = asking.ask(ApiKey.END_TXN, 3, request).error_code
    return code


def _added(asking: Asking, other_id: int = 0, other_epoch: int = 0, unknown: bool = False) -> int:
    name = asking_id(asking)
    found = asking.init(name)
    tp = asking.topic()
    tps = [tp, TopicPartition(new_name(), 0)] if unknown else [tp]
    producer = found.producer_id + other_id, found.producer_epoch + other_epoch
    code: int = asking.add(name, producer, *tps)[tp.topic]
    return code


def _groups_deleted(asking: Asking) -> int:
    request = wire.DeleteGroupsRequest((group_id(asking),))
    code: int = asking.ask(ApiKey.DELETE_GROUPS, 2, request).results[0].error_code
    return code


def _described_transaction(asking: Asking) -> int:
    request = wire.DescribeTransactionsRequest((asking_id(asking),))
    response = asking.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, request)
    code: int = response.transaction_states[0].error_code
    return code


def _cluster(kind: int) -> Callable[[Asking], int]:
    request = wire.DescribeClusterRequest(endpoint_type=kind)
    return lambda asking: asking.ask(ApiKey.DESCRIBE_CLUSTER, 1, request).error_code


def _mixed(asking: Asking) -> int:
    """A session of names, continued with ids."""
    return asking.session(epoch=1, known=True, version=13)


def _credentials(*names: str) -> Callable[[Asking], int]:
    kind = wire.DescribeUserScramCredentialsRequest
    request = kind(tuple(map(kind.UserName, names)))

    def ask(asking: Asking) -> int:
        answer = asking.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, request)
        (result,) = answer.results
        code: int = result.error_code
        return code

    return ask


PRODUCED: dict[E, Callable[[Asking], int]] = {
    E.UNKNOWN_SERVER_ERROR: _unexpected,
    E.NONE: lambda asking: asking.produce(asking.topic()),
    E.OFFSET_OUT_OF_RANGE: lambda asking: asking.fetch(asking.topic(), 9),
    E.CORRUPT_MESSAGE: lambda asking: asking.produce(asking.topic(), _flipped()),
    E.UNKNOWN_TOPIC_OR_PARTITION: lambda asking: asking.fetch(TopicPartition(new_name(), 0)),
    E.LEADER_NOT_AVAILABLE: _leaderless,
    E.NOT_LEADER_OR_FOLLOWER: lambda asking: asking.fetch(asking.topic(1)),
    E.REQUEST_TIMED_OUT: _too_late,
    E.MESSAGE_TOO_LARGE: lambda asking: asking.produce(asking.topic(max_message_bytes=20)),
    E.OFFSET_METADATA_TOO_LARGE: lambda asking: asking.commit(
        group_id(asking), metadata="x" * 5000
    ),
    E.NOT_COORDINATOR: _elsewhere,
    E.INVALID_TOPIC_EXCEPTION: lambda asking: asking.create("a/b"),
    E.RECORD_LIST_TOO_LARGE: lambda asking: asking.produce(
        asking.topic(segment_bytes=1000), batch(b"x" * 2000)
    ),
    E.NOT_ENOUGH_REPLICAS: _leave_one_replica,
    E.INVALID_REQUIRED_ACKS: lambda asking: asking.produce(asking.topic(), acks=2),
    E.ILLEGAL_GENERATION: lambda asking: asking.commit(
        group_id(asking), generation_id_or_member_epoch=5, member_id="m"
    ),
    E.INCONSISTENT_GROUP_PROTOCOL: lambda asking: asking.join(group_id(asking), protocols=()),
    E.INVALID_GROUP_ID: lambda asking: (
        asking.ask(
            ApiKey.JOIN_GROUP,
            5,
            wire.JoinGroupRequest("", 10_000, 10_000, protocol_type="consumer"),
        ).error_code
    ),
    E.UNKNOWN_MEMBER_ID: lambda asking: asking.group(
        ApiKey.HEARTBEAT, 3, wire.HeartbeatRequest(group_id(asking), 1, "nobody")
    ),
    E.INVALID_SESSION_TIMEOUT: lambda asking: asking.join(group_id(asking), session_timeout_ms=1),
    E.INVALID_TIMESTAMP: lambda asking: asking.produce(asking.topic(), _old_stamp()),
    E.UNSUPPORTED_VERSION: lambda asking: _listed(asking, -9),
    E.TOPIC_ALREADY_EXISTS: lambda asking: asking.create(asking.topic().topic),
    E.INVALID_PARTITIONS: lambda asking: asking.create(new_name(), 0),
    E.INVALID_REPLICATION_FACTOR: lambda asking: asking.create(new_name(), 1, 9),
    E.INVALID_REPLICA_ASSIGNMENT: lambda asking: asking.move(asking.topic(), (7,)),
    E.INVALID_CONFIG: lambda asking: asking.create(
        new_name(),
        configs=(wire.CreateTopicsRequest.CreatableTopicConfig("no.such.key", "1"),),
    ),
    E.NOT_CONTROLLER: _without_controller,
    E.INVALID_REQUEST: lambda asking: asking.init("").error_code,
    E.POLICY_VIOLATION: lambda asking: _deleted(asking, 0, cleanup_policy="compact"),
    E.OUT_OF_ORDER_SEQUENCE_NUMBER: lambda asking: _stored(asking, _sequence(0), _sequence(7)),
    E.INVALID_PRODUCER_EPOCH: lambda asking: _stored(asking, _sequence(0, 5), _sequence(0, 4)),
    E.INVALID_TXN_STATE: _end_of_nothing,
    E.INVALID_PRODUCER_ID_MAPPING: lambda asking: _added(asking, other_id=1),
    E.INVALID_TRANSACTION_TIMEOUT: lambda asking: asking.init(asking_id(asking), 0).error_code,
    E.CONCURRENT_TRANSACTIONS: _init_again,
    E.OPERATION_NOT_ATTEMPTED: lambda asking: _added(asking, unknown=True),
    E.KAFKA_STORAGE_ERROR: _broken_directory,
    E.REASSIGNMENT_IN_PROGRESS: _while_it_moves,
    E.GROUP_ID_NOT_FOUND: _groups_deleted,
    E.FETCH_SESSION_ID_NOT_FOUND: lambda asking: asking.session(epoch=1, known=False),
    E.INVALID_FETCH_SESSION_EPOCH: lambda asking: asking.session(epoch=7, known=True),
    E.LISTENER_NOT_FOUND: _other_listener,
    E.TOPIC_DELETION_DISABLED: _without_deletion,
    E.FENCED_LEADER_EPOCH: _after_an_election,
    E.UNKNOWN_LEADER_EPOCH: lambda asking: asking.fetch(asking.topic(), current_leader_epoch=9),
    E.UNSUPPORTED_COMPRESSION_TYPE: lambda asking: asking.produce(
        asking.topic(), batch(b"x", compression=Compression.ZSTD), version=6
    ),
    E.MEMBER_ID_REQUIRED: lambda asking: asking.join(group_id(asking)),
    E.PREFERRED_LEADER_NOT_AVAILABLE: _with_broker_1_down(0, 1, 0),
    E.ELIGIBLE_LEADERS_NOT_AVAILABLE: _with_broker_1_down(1, 1),
    E.ELECTION_NOT_NEEDED: lambda asking: asking.elect(0, asking.topic()),
    E.NO_REASSIGNMENT_IN_PROGRESS: lambda asking: asking.move(asking.topic(), None),
    E.INVALID_RECORD: lambda asking: asking.produce(
        asking.topic(cleanup_policy="compact"), batch(b"x", key=None)
    ),
    E.PRODUCER_FENCED: lambda asking: _added(asking, other_epoch=1),
    E.UNKNOWN_TOPIC_ID: lambda asking: asking.produce(
        asking.topic(), version=13, topic_id=uuid.UUID(int=7)
    ),
    E.TRANSACTIONAL_ID_NOT_FOUND: _described_transaction,
    E.FETCH_SESSION_TOPIC_ID_ERROR: _mixed,
    E.MISMATCHED_ENDPOINT_TYPE: _cluster(2),
    E.UNSUPPORTED_ENDPOINT_TYPE: _cluster(9),
    E.TRANSACTION_ABORTABLE: _transactional(11),
    E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _of_no_transaction,
    E.SECURITY_DISABLED: lambda asking: (
        asking.ask(ApiKey.DESCRIBE_ACLS, 3, wire.DescribeAclsRequest()).error_code
    ),
    E.RESOURCE_NOT_FOUND: _credentials("someone"),
    E.DUPLICATE_RESOURCE: _credentials("someone", "someone"),
    E.INVALID_REGULAR_EXPRESSION: lambda asking: (
        asking.ask(
            ApiKey.LIST_TRANSACTIONS, 2, wire.ListTransactionsRequest(transactional_id_pattern="(")
        ).error_code
    ),
}

ELSEWHERE: dict[E, str] = {
    E.COORDINATOR_LOAD_IN_PROGRESS: "tests/unit/coordinators/test_coordinator_runtime.py",
    E.COORDINATOR_NOT_AVAILABLE: "tests/unit/coordinators/test_coordinator_runtime.py",
    E.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "tests/unit/replication/test_delayed.py",
    E.REBALANCE_IN_PROGRESS: "tests/conformance/test_classic_group.py",
    E.INVALID_COMMIT_OFFSET_SIZE: "tests/conformance/test_classic_group.py",
    E.CLUSTER_AUTHORIZATION_FAILED: "tests/unit/apis/test_broker_requests.py",
    E.UNSUPPORTED_SASL_MECHANISM: "tests/unit/network/test_sasl.py",
    E.ILLEGAL_SASL_STATE: "tests/unit/network/test_sasl.py",
    E.SASL_AUTHENTICATION_FAILED: "tests/unit/network/test_sasl.py",
    E.TRANSACTION_COORDINATOR_FENCED: "tests/unit/coordinators/test_coordinator_runtime.py",
    E.NON_EMPTY_GROUP: "tests/conformance/test_classic_group.py",
    E.OFFSET_NOT_AVAILABLE: "tests/unit/replication/test_replica_manager.py",
    E.GROUP_MAX_SIZE_REACHED: "tests/conformance/test_group_metadata_manager.py",
    E.FENCED_INSTANCE_ID: "tests/conformance/test_group_metadata_manager.py",
    E.GROUP_SUBSCRIBED_TO_TOPIC: "tests/conformance/test_classic_group.py",
    E.UNSTABLE_OFFSET_COMMIT: "tests/conformance/test_transaction_requests.py",
    E.INCONSISTENT_TOPIC_ID: "tests/unit/replication/test_replica_manager.py",
}

BETWEEN_BROKERS = {
    E.STALE_CONTROLLER_EPOCH,
    E.STALE_BROKER_EPOCH,
    E.REPLICA_NOT_AVAILABLE,
    E.BROKER_NOT_AVAILABLE,
    E.NETWORK_EXCEPTION,
    E.INVALID_UPDATE_VERSION,
    E.INELIGIBLE_REPLICA,
    E.NEW_LEADER_ELECTED,
    E.PRINCIPAL_DESERIALIZATION_FAILURE,
    E.BROKER_ID_NOT_REGISTERED,
}

NEVER: dict[E, str] = {
    E.UNSUPPORTED_FOR_MESSAGE_FORMAT: "batches older than format 2 are refused at the door",
    E.DUPLICATE_SEQUENCE_NUMBER: "a repeated batch is answered with its first offset",
    E.UNKNOWN_PRODUCER_ID: "of brokers before 2.5",
    E.TOPIC_AUTHORIZATION_FAILED: "there are no access lists",
    E.GROUP_AUTHORIZATION_FAILED: "there are no access lists",
    E.LOG_DIR_NOT_FOUND: "replicas are not moved between directories",
    E.THROTTLING_QUOTA_EXCEEDED: "there are no quotas of changes",
    E.INCONSISTENT_CLUSTER_ID: "of the quorum of KRaft",
    E.FENCED_MEMBER_EPOCH: "of groups of the next generation",
    E.UNRELEASED_INSTANCE_ID: "of groups of the next generation",
    E.UNSUPPORTED_ASSIGNOR: "of groups of the next generation",
    E.STALE_MEMBER_EPOCH: "of groups of the next generation",
}


@pytest.fixture(scope="module")
def two() -> Iterator[ServedCluster]:
    with served(2) as kafka:
        yield kafka


def test_the_tables_have_each_code_once() -> None:
    tables = [set(PRODUCED), set(ELSEWHERE), BETWEEN_BROKERS, set(NEVER)]
    assert set.union(*tables) == set(E)
    assert sum(map(len, tables)) == len(E)


@for_each("code", PRODUCED, at_once=10)
def test_is_answered(two: ServedCluster, code: E) -> None:
    with connect(two, 0) as client:
        assert E(PRODUCED[code](Asking(two, client))) is code


@for_each("code", ELSEWHERE, name=lambda code: code.name)
def test_is_produced_in_the_test_that_is_named(code: E) -> None:
    assert code.name in (ROOT / ELSEWHERE[code]).read_text()
