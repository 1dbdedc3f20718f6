"""Our own producers, consumers and commands against a real Kafka, beside its own tools."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafka_jars
import kafka_tools
import pytest
from broker import KafkaBroker
from click.testing import CliRunner
from kafka_tools import CreateTopic, ProduceRecords

from checkpoints.types import TopicPartition
from logstore.common.errors import OffsetOutOfRangeError
from logstore.format.codecs.compression import Compression
from replication import Client, Consumer, Producer, connect
from replication.cli.consume import consume
from replication.cli.produce import produce
from replication.common.error_codes import ErrorCode
from replication.common.errors import UnknownPartitionError
from replication.common.messages import (
    AddPartitionsToTxnRequest,
    AlterableConfig,
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteRecordsPartitionResponse,
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
from tests.support.until import patience, until

pytestmark = pytest.mark.slow

E = ErrorCode
KEYED, TXN, LINES, CONSOLE = "keyed", "txn", "lines", "console"
CREATING = {"auto.create.topics.enable": "true", "num.partitions": 3}


@pytest.fixture(scope="module")
def broker(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(
        tmp_path_factory.mktemp("our-clients"), overrides=CREATING, heap="256m"
    ) as running:
        kafka_tools.produce(
            running.bootstrap,
            CreateTopic(KEYED, 5),
            CreateTopic(TXN, 1),
            CreateTopic(LINES, 5),
            CreateTopic(CONSOLE, 5),
            ProduceRecords(TXN, 60, idempotent=True, transactional_id="t", outcomes="CACAAC"),
        )
        yield running


@pytest.fixture(scope="module")
def client(broker: KafkaBroker) -> Iterator[Client]:
    with connect(f"127.0.0.1:1,{broker.bootstrap}") as connected:
        yield connected


def run_console(broker: KafkaBroker, tool: str, *words: str, stdin: str = "") -> str:
    return kafka_jars.run_java(
        tool, "--bootstrap-server", broker.bootstrap, *words, stdin=stdin
    ).stdout


def test_what_we_write_a_real_consumer_reads(broker: KafkaBroker, client: Client) -> None:
    wanted = []
    for codec in Compression:
        producer = Producer(client, idempotent=True, compression=codec)
        for n in range(10):
            key, value = b"%s-%d" % (codec.name.encode(), n), b"x" * n if n % 5 else None
            place = producer.send(KEYED, value, key, headers=[("h", b"v"), ("null", None)])
            wanted.append((place.tp.partition, place.base_offset, key, value))
    read = kafka_tools.consume(broker.bootstrap, KEYED)
    assert sorted((r["partition"], r["offset"], r["key"], r["value"]) for r in read) == sorted(
        wanted
    )
    assert all(r["headers"] == [("h", b"v"), ("null", None)] for r in read)
    tps = client.partitions(KEYED)
    ours = Consumer(client, tps).read_to_end(patience())
    assert sorted((tp.partition, r.offset, r.key, r.value) for tp, r in ours) == sorted(wanted)


@pytest.mark.parametrize("committed", [False, True])
def test_transactions(broker: KafkaBroker, client: Client, committed: bool) -> None:
    """A broker names an aborted transaction by its beginning alone: its end is a marker."""
    level = "read_committed" if committed else "read_uncommitted"
    ours = Consumer(client, client.partitions(TXN), isolation=level).read_to_end(patience())
    theirs = kafka_tools.consume(broker.bootstrap, TXN, read_committed=committed)
    assert [(r.offset, r.key, r.value) for _, r in ours] == [
        (r["offset"], r["key"], r["value"]) for r in theirs
    ]
    assert len(ours) == (30 if committed else 60)


def test_questions(client: Client) -> None:
    tp = TopicPartition(TXN, 0)
    consumer = Consumer(client, [tp], reset=None)
    end = consumer.offset_for(tp, -1)
    assert consumer.offset_for(tp, -2) == 0
    assert 0 < consumer.offset_for(tp, 1_700_000_000_000 + 200) < end
    consumer.seek(tp, end + 5)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        consumer.poll(0)
    assert (caught.value.start, caught.value.end) == (0, end)
    with pytest.raises(UnknownPartitionError):
        client.partitions("nobody-made-this")
    assert {KEYED, TXN} <= set(client.topics())


@pytest.mark.parametrize("acks", [0, 1])
def test_without_idempotence(broker: KafkaBroker, acks: int) -> None:
    topic = f"acks-{acks}"
    with connect(broker.bootstrap, {"allow.auto.create.topics": "true"}) as creating:
        tp, *_ = creating.retry(lambda: creating.partitions(topic), patience())
        producer = Producer(creating, acks=acks)
        until(lambda: not isinstance(creating.metadata.leader(tp), Exception) or creating.refresh())
        for n in range(5):
            producer.send_batch(topic, 0, [(None, b"%d" % n)])
        consumer = Consumer(creating, [tp])
        found: list[bytes | None] = []

        def all_there() -> bool:
            found.extend(record.value for _, record in consumer.poll())
            return len(found) == 5

        until(all_there, "five records")
        assert found == [b"%d" % n for n in range(5)]


def test_the_same_lines_give_the_same_records(broker: KafkaBroker) -> None:
    """Keys to the same partitions, too."""
    text = "".join(f"key-{n}:value {n}\n" for n in range(50)) + ":empty key\nempty value:\n"
    words = ("--property", "parse.key=true", "--property", "key.separator=:")
    run_console(
        broker, "org.apache.kafka.tools.ConsoleProducer", "--topic", CONSOLE, *words, stdin=text
    )
    options = ["--bootstrap-server", broker.bootstrap]
    done = CliRunner().invoke(produce, [LINES, *options, "-K", ":", "--json"], input=text)
    assert done.exit_code == 0, done.output
    assert sum(row["records"] for row in json.loads(done.output)) == 52

    def records(topic: str) -> list[tuple[object, ...]]:
        read = kafka_tools.consume(broker.bootstrap, topic)
        return sorted((r["partition"], r["key"], r["value"], r["headers"]) for r in read)

    assert records(LINES) == records(CONSOLE)


def test_consume_prints_what_the_console_consumer_prints(broker: KafkaBroker) -> None:
    options = ["--bootstrap-server", broker.bootstrap, "-e", "-q"]
    printed = CliRunner().invoke(
        consume, [TXN, *options, "-f", "%o\\n", "--isolation", "read_committed"]
    )
    theirs = run_console(
        broker,
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--topic", TXN, "--from-beginning", "--timeout-ms", "5000"),
        *("--isolation-level", "read_committed"),
        *("--formatter-property", "print.offset=true"),
        *("--formatter-property", "print.value=false"),
    )
    offsets = [line.split(":")[-1] for line in theirs.split("\n") if line]
    assert printed.output.split("\n")[:-1] == offsets


def test_json_goes_there_and_back(broker: KafkaBroker, tmp_path: Path) -> None:
    options = ["--bootstrap-server", broker.bootstrap]
    read = CliRunner().invoke(consume, [CONSOLE, *options, "-e", "-q", "-J"])
    done = CliRunner().invoke(
        produce, ["copy", *options, "--format", "json", "-q"], input=read.output
    )
    assert done.exit_code == 0, done.output
    copied = CliRunner().invoke(consume, ["copy", *options, "-e", "-q", "-J"])

    def told(text: str) -> list[tuple[object, ...]]:
        rows = [json.loads(line) for line in text.splitlines()]
        return sorted((r["key"] or "", r["value"], r["timestamp"]) for r in rows)

    assert told(copied.output) == told(read.output)
    assert len(told(read.output)) == 52


def test_what_brokers_ask_of_a_controller(client: Client) -> None:
    name = "asked"
    tp, missing = TopicPartition(name, 0), TopicPartition("nobody", 0)
    retention = AlterableConfig("retention.ms", "1000")

    def code(request: Request) -> ErrorCode:
        answer: Any = client.call(client.controller_id(), request, patience())
        return ErrorCode(answer.error_code)

    def codes(request: Request) -> list[ErrorCode]:
        answer: Any = client.call(client.controller_id(), request, patience())
        assert answer.error_code == E.NONE
        assert len(answer.partitions) == 2
        return [each for _, each in answer.partitions]

    assert code(CreateTopicRequest(name, -1, -1, validate_only=True)) == E.NONE
    assert code(CreateTopicRequest(name, -1, -1)) == E.NONE
    assert code(CreateTopicRequest(name, 2, 1)) == E.TOPIC_ALREADY_EXISTS
    assert code(CreateTopicRequest("placed", assignment=((1,), (1,)))) == E.NONE
    assert code(CreateTopicRequest("no", 1, 3)) == E.INVALID_REPLICATION_FACTOR
    assert code(CreateTopicRequest("no", assignment=())) == E.INVALID_PARTITIONS
    assert code(CreatePartitionsRequest("placed", 3)) == E.NONE
    assert code(CreatePartitionsRequest("placed", 4, ((1,),))) == E.NONE
    assert code(CreatePartitionsRequest("placed", 2)) == E.INVALID_PARTITIONS
    assert code(IncrementalAlterConfigsRequest(name, (retention,))) == E.NONE
    unknown = IncrementalAlterConfigsRequest("nobody", (retention,))
    assert code(unknown) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert codes(ElectLeadersRequest(ElectionType.PREFERRED, (missing, tp))) == [
        E.UNKNOWN_TOPIC_OR_PARTITION,
        E.ELECTION_NOT_NEEDED,
    ]
    assert code(ElectLeadersRequest(ElectionType.PREFERRED, None)) == E.NONE
    assert codes(AlterPartitionReassignmentsRequest(((tp, (1,)), (missing, (1,))))) == [
        E.NONE,
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert code(ListPartitionReassignmentsRequest((tp,))) == E.NONE
    assert code(ListPartitionReassignmentsRequest()) == E.NONE
    assert code(DeleteTopicRequest(name)) == E.NONE
    assert code(DeleteTopicRequest(name)) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert code(DeleteTopicRequest(topic_id=uuid.UUID(int=7))) == E.UNKNOWN_TOPIC_ID


def test_what_brokers_ask_of_leaders_and_coordinators(client: Client) -> None:
    tp, other = (TopicPartition(KEYED, number) for number in range(2))
    missing = TopicPartition("nobody", 0)

    def ask(request: Request) -> Any:
        return client.call(1, request, patience())

    Producer(client).send_batch(KEYED, 0, [(None, b"x")] * 9)
    deleted = ask(DeleteRecordsRequest(((tp, 3), (missing, 1)), 9000))
    assert deleted.partitions == (
        DeleteRecordsPartitionResponse(tp, E.NONE, 3),
        DeleteRecordsPartitionResponse(missing, E.UNKNOWN_TOPIC_OR_PARTITION, -1),
    )
    markers = WriteTxnMarkersRequest(
        (
            TxnMarker(70, 1, True, 5, (tp, missing)),
            TxnMarker(71, 1, False, 5, (tp,), transaction_version=2),
            TxnMarker(70, 1, False, 5, (other,)),
        )
    )
    ended = ask(markers)
    assert ended.markers == (
        ((tp, E.NONE), (missing, E.UNKNOWN_TOPIC_OR_PARTITION)),
        ((tp, E.NONE),),
        ((other, E.NONE),),
    )
    added = ask(AddPartitionsToTxnRequest("nobody", 70, 1, (tp,)))
    assert added.partitions == ((tp, E.INVALID_PRODUCER_ID_MAPPING),)
