"""What producers and consumers rely on, over each transport: in the process, and over TCP.

The brokers are ours; tests/interop has the same over TCP against a real Kafka.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from checkpoints.types import TopicPartition
from logstore.common.errors import OffsetOutOfRangeError
from logstore.format.codecs.compression import Compression
from replication import Client, Consumer, Producer, ServedCluster, connect
from replication.common.error_codes import ErrorCode
from replication.common.errors import TopicRecreatedError, UnknownPartitionError
from replication.protocol import ApiKey, VersionRange
from replication.wire import lane
from tests.support.served import connect as wire_client
from tests.support.served import new_name, served
from tests.support.until import patience, until
from tests.support.wire_producer import WireProducer

CLIENTS = ("local", "tcp", "tcp-2.1")
KAFKA_2_1 = {
    ApiKey.PRODUCE: VersionRange(0, 7),
    ApiKey.FETCH: VersionRange(0, 10),
    ApiKey.LIST_OFFSETS: VersionRange(0, 4),
    ApiKey.METADATA: VersionRange(0, 7),
    ApiKey.INIT_PRODUCER_ID: VersionRange(0, 1),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: VersionRange(0, 2),
}
"""What a broker of Kafka 2.1 says: topics have no ids, and no fetch names the last epoch."""


@pytest.fixture(scope="module")
def kafka() -> Iterator[ServedCluster]:
    with served(3) as brokers:
        yield brokers


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, kafka: ServedCluster) -> Iterator[Client]:
    with client_of(request.param, kafka) as made:
        yield made


@contextmanager
def client_of(kind: str, kafka: ServedCluster) -> Iterator[Client]:
    if kind == "local":
        yield kafka.client
        return
    with pytest.MonkeyPatch.context() as patch:
        if kind == "tcp-2.1":
            patch.setattr(lane, "_versions_in", lambda body, version: KAFKA_2_1)
        with connect(kafka.bootstrap_servers) as made:
            yield made


@pytest.fixture
def tps(kafka: ServedCluster) -> list[TopicPartition]:
    found = kafka.create_topic(new_name(), 3, 3)
    for tp in found:
        kafka.wait_for_isr(tp, kafka.broker_ids)
    return found


def values(client: Client, *tps: TopicPartition, **options: object) -> list[bytes | None]:
    consumer = Consumer(client, tps, **options)  # type: ignore[arg-type]
    return [record.value for _, record in consumer.read_to_end(patience())]


def test_what_is_written_is_read(client: Client, tps: list[TopicPartition]) -> None:
    producer = Producer(client, idempotent=True)
    sent = {}
    for n in range(9):
        key, headers = b"k%d" % n, (("a", b"b"), ("none", None), ("a", b""))
        where = producer.send(tps[0].topic, b"v%d" % n, key, timestamp_ms=1000 + n, headers=headers)
        assert where.tp.partition == producer.partition_for(tps[0].topic, key)
        sent[where.tp, where.base_offset] = (1000 + n, key, b"v%d" % n, headers)
    producer.send_batch(tps[0].topic, 1, [(None, None), (b"", b"")])
    found = Consumer(client, tps).read_to_end(patience())
    assert len({tp for tp, _ in sent}) == 3
    read = {(tp, r.offset): (r.timestamp, r.key, r.value, tuple(r.headers)) for tp, r in found}
    assert {place: read[place] for place in sent} == sent
    assert sorted(str(r[1:]) for place, r in read.items() if place not in sent) == [
        "(None, None, ())",
        "(b'', b'', ())",
    ]


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_each_acks(client: Client, tps: list[TopicPartition], acks: int) -> None:
    producer = Producer(client, acks=acks)
    offsets = [producer.send_batch(tps[0].topic, 0, [(None, b"x")]).base_offset for _ in range(3)]
    assert offsets == ([-1] * 3 if acks == 0 else [0, 1, 2])
    until(lambda: values(client, tps[0]) == [b"x"] * 3, "all are there")


@pytest.mark.parametrize("codec", list(Compression))
def test_each_codec(client: Client, tps: list[TopicPartition], codec: Compression) -> None:
    producer = Producer(client, compression=codec)
    producer.send_batch(tps[0].topic, 0, [(None, b"x" * 1000)] * 100)
    assert values(client, tps[0]) == [b"x" * 1000] * 100


def test_batches_on_their_way_stay_in_order(client: Client, tps: list[TopicPartition]) -> None:
    producer = Producer(client, idempotent=True)
    waits = [producer.begin_batch(tps[0].topic, 0, [(None, b"%d" % n)]) for n in range(20)]
    assert [wait().base_offset for wait in waits] == list(range(20))
    assert values(client, tps[0]) == [b"%d" % n for n in range(20)]


def test_places_in_a_log(client: Client, tps: list[TopicPartition]) -> None:
    tp = tps[0]
    records = [(None, b"x", 1000), (None, b"y", 2000), (None, b"z", 3000)]
    Producer(client).send_batch(tp.topic, tp.partition, records)
    consumer = Consumer(client, [tp])
    found = [consumer.offset_for(tp, at) for at in (-2, -1, 0, 1001, 3000, 3001)]
    assert found == [0, 3, 0, 1, 2, -1]


def test_out_of_range_names_the_range(client: Client, tps: list[TopicPartition]) -> None:
    """Each bound is asked for in a request of its own: no broker takes a partition twice in one."""
    Producer(client).send_batch(tps[0].topic, 0, [(None, b"x")] * 4)
    consumer = Consumer(client, [tps[0]], reset=None)
    consumer.seek(tps[0], 9)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        consumer.poll(0)
    assert (caught.value.offset, caught.value.start, caught.value.end) == (9, 0, 4)


@pytest.mark.parametrize("kind", CLIENTS)
def test_transactions_are_read_whole_or_not_at_all(kind: str) -> None:
    """Over the wire an aborted transaction is named by its beginning alone."""
    with (
        served(1) as kafka,  # leader and coordinator
        client_of(kind, kafka) as client,
        wire_client(kafka) as connected,
    ):
        (tp,) = kafka.create_topic("orders")
        kafka.wait_for_leader(tp)
        writer = WireProducer(kafka, connected)
        for committed in (True, False, True):
            assert writer.init() == ErrorCode.NONE
            assert writer.add(tp) == [ErrorCode.NONE]
            for sequence in range(2):
                assert writer.send(tp, sequence) == ErrorCode.NONE
            assert writer.end(committed) == ErrorCode.NONE
        kafka.wait_until(lambda: client_end(client, tp) == 9, "three markers")
        read = Consumer(client, [tp], isolation="read_committed").read_to_end(patience())
        assert [record.offset for _, record in read] == [0, 1, 6, 7]
        every = Consumer(client, [tp]).read_to_end(patience())
        assert [record.offset for _, record in every] == [0, 1, 3, 4, 6, 7]


def client_end(client: Client, tp: TopicPartition) -> int:
    return Consumer(client, [tp], isolation="read_committed").offset_for(tp, -1)


def test_no_topic(client: Client) -> None:
    with pytest.raises(UnknownPartitionError):
        client.partitions("nobody-made-this")


def test_a_waiting_fetch_holds_nobody_up(client: Client, tps: list[TopicPartition]) -> None:
    tp = tps[0]
    assert values(client, tp) == []
    consumers = [Consumer(client, [tp]) for _ in range(3)]
    found: list[list[bytes | None]] = []

    def poll(consumer: Consumer) -> None:
        # No wait of a test is as long as this one: only the record ends it.
        found.append([record.value for _, record in consumer.poll(int(patience() * 2000))])

    threads = [threading.Thread(target=poll, args=(each,), daemon=True) for each in consumers]
    for thread in threads:
        thread.start()
    Producer(client).send_batch(tp.topic, tp.partition, [(None, b"x")])
    for thread in threads:
        thread.join(patience())
    assert found == [[b"x"]] * 3


@pytest.mark.parametrize("kind", CLIENTS)
def test_another_leader(kind: str) -> None:
    with served(3) as kafka, client_of(kind, kafka) as client:
        (tp,) = kafka.create_topic("orders", 1, 3)
        kafka.wait_for_isr(tp, kafka.broker_ids)
        producer = Producer(client, idempotent=True)
        consumer = Consumer(client, [tp])
        producer.send_batch(tp.topic, 0, [(None, b"before")])
        assert [r.value for _, r in consumer.read_to_end(patience())] == [b"before"]
        kafka.crash(kafka.wait_for_leader(tp))
        producer.send_batch(tp.topic, 0, [(None, b"after")])
        assert [r.value for _, r in consumer.read_to_end(patience())] == [b"after"]


@pytest.mark.parametrize("kind", CLIENTS[:2])
def test_a_topic_that_was_made_anew(kind: str) -> None:
    with served(1) as kafka, client_of(kind, kafka) as client:
        (tp,) = kafka.create_topic("orders")
        kafka.wait_for_leader(tp)
        Producer(client).send_batch(tp.topic, 0, [(None, b"old")])
        consumer = Consumer(client, [tp], reset=None)
        consumer.seek(tp, 0)
        assert consumer.poll()
        kafka.delete_topic("orders")
        kafka.create_topic("orders")
        kafka.wait_for_leader(tp)
        with pytest.raises(TopicRecreatedError):
            until(lambda: consumer.poll(0), "the consumer hears of it")


def test_brokers_that_fail_now_and_then() -> None:
    """An idempotent producer repeats itself over TCP, and leaves no record twice."""
    with served(1) as kafka, connect(kafka.bootstrap_servers) as client:
        (tp,) = kafka.create_topic("orders")
        kafka.wait_for_leader(tp)
        producer = Producer(client, idempotent=True)
        for n in range(5):
            kafka.faults.lose_answer(ApiKey.PRODUCE)
            producer.send_batch("orders", 0, [(None, b"%d" % n)])
        assert values(client, tp) == [b"%d" % n for n in range(5)]
