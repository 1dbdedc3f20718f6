"""A Produce of one batch past the messages of the protocol, beside the usual way (W-238).

Both ways serve a broker of their own. Whatever comes, both answer the same bytes and have the same
log afterwards. The usual way is the oracle.
"""

from __future__ import annotations

import random
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import Any, NamedTuple

import pytest

from checkpoints.types import TopicPartition
from logstore.common.errors import LogstoreError
from logstore.format.codecs.compression import Compression
from replication.apis.kafka_apis import INLINE_BYTES, KafkaApis
from replication.apis.produce import ProduceApi
from replication.apis.produce_fast_path import FIRST_VERSION, LAST_VERSION, ProduceFastPath
from replication.common.error_codes import ErrorCode
from replication.network import Answer, ConnectionInfo, Listener, ReceivedRequest, Send
from replication.network.server import is_served
from replication.protocol import SERVED, ApiKey, encode_request, parse_request_header
from replication.protocol.headers import request_header
from replication.server.serving import ServedCluster
from replication.wire.produce import FIRST_WITH_IDS
from tests.support.cases import differences
from tests.support.served import batch, connect, produce, produce_request, served
from tests.support.wire_client import LENGTH

ONE = TopicPartition("one", 0)
SMALL = TopicPartition("small", 0)  # of small messages
IDS = {tp.topic: uuid.UUID(bytes=f"id of {tp.topic:10}".encode()) for tp in (ONE, SMALL)}
"""In their places each broker gets its own."""
LISTENER = Listener("PLAINTEXT", "127.0.0.1", 0)
VERSIONS = range(FIRST_VERSION, LAST_VERSION + 1)


def frame(
    records: bytes | None,
    tp: TopicPartition = ONE,
    version: int = 9,
    client_id: str | None = "me",
    **fields: Any,
) -> bytes:
    """A whole request with its length."""
    if version >= FIRST_WITH_IDS:
        fields.setdefault("topic_id", IDS.get(tp.topic, uuid.UUID(int=99)))
    request = produce_request(tp, records, **{"acks": 1, **fields})
    return framed(request_header(ApiKey.PRODUCE, version, 7, client_id), request, version)


def framed(header: bytes, request: Any, version: int = 9) -> bytes:
    body = header + bytes(encode_request(request, version))
    return LENGTH.pack(len(body)) + body


class Outcome(NamedTuple):
    answer: bytes | None  # None: the connection is closed
    errors: Sequence[int] = ()


class Way:
    """A broker, and one of the two ways to ask it."""

    def __init__(self, kafka: ServedCluster, *, is_fast: bool) -> None:
        self.kafka, broker = kafka, kafka.broker(0)
        kafka.create_topic(ONE.topic, 2)
        kafka.create_topic(SMALL.topic, config={"max.message.bytes": 100})
        api = ProduceApi(broker)
        metadata = broker.metadata
        self._ids = {
            each.bytes: own.bytes
            for name, each in IDS.items()
            if (own := metadata.topic_id(name)) is not None
        }
        self._apis = KafkaApis(api.handlers)
        self._fast = ProduceFastPath(broker, api) if is_fast else None
        self.taken = 0

    def ask(self, asked: bytes) -> Outcome:
        for each, own in self._ids.items():
            asked = asked.replace(each, own)
        answer, errors = self._ask(asked)
        for each, own in self._ids.items():
            answer = None if answer is None else answer.replace(own, each)
        return Outcome(answer, errors)

    def _ask(self, asked: bytes) -> Outcome:
        connection = ConnectionInfo(1, "host", 1, LISTENER)
        version, number = int.from_bytes(asked[6:8], signed=True), int.from_bytes(asked[8:12])
        if self._fast is not None:
            found = self._fast.answer(memoryview(asked), version, number, connection)
            if found is not None:
                self.taken += 1
                if not isinstance(found, bytes):
                    answered: list[Answer] = []
                    found(answered.append)
                    return _outcome(*answered)
                assert int.from_bytes(found[:4]) == len(found) - 4
                return Outcome(found[4:])
        answers: list[Answer] = []
        body = memoryview(asked)[4:]
        try:
            header = parse_request_header(body)
        except LogstoreError:
            return Outcome(None)
        if not is_served(header.api_key, header.api_version, LISTENER):
            return Outcome(None)
        rest = body[header.body_offset :]
        self._apis.handle(ReceivedRequest(*header[:4], rest, connection, 0), answers.append)
        return _outcome(*answers)

    def logs(self) -> list[tuple[bytes, int, int]]:
        """Bytes, log end and high watermark of each partition."""
        found = []
        for tp in (ONE, TopicPartition(ONE.topic, 1), SMALL):
            log = self.kafka.broker(0).replica_manager.partitions[tp].log
            assert log is not None
            data = bytes(log.read(0, 1 << 30).data)
            found.append((data, log.log_end_offset, log.high_watermark))
        return found


def _outcome(answer: Answer) -> Outcome:
    if not isinstance(answer, Send):
        return Outcome(None, (str(answer),))  # type: ignore[arg-type]
    assert not answer.throttle_ms
    return Outcome(b"".join(bytes(part) for part in answer.buffers), tuple(answer.errors))  # type: ignore[arg-type]


class Ways(NamedTuple):
    fast: Way
    plain: Way

    def check(self, asked: bytes) -> Outcome:
        """Ask both, and compare answers and logs."""
        outcome = self.fast.ask(asked)
        assert outcome == self.plain.ask(asked)
        assert self.fast.logs() == self.plain.logs()
        return outcome


@pytest.fixture(scope="module")
def ways() -> Iterator[Ways]:
    with ExitStack() as stack:
        fast, plain = (stack.enter_context(served()) for _ in range(2))
        yield Ways(Way(fast, is_fast=True), Way(plain, is_fast=False))


IDEMPOTENT: dict[str, Any] = {"producer_id": 5, "producer_epoch": 0}
FIRST = batch(b"first", base_sequence=0, **IDEMPOTENT)


def good_frames() -> Iterator[tuple[str, bytes]]:
    """Requests that take the fast path, whatever their answers."""
    for version in VERSIONS:
        yield f"version {version}", frame(batch(b"x"), version=version)
        for index in (1, 2, -1):
            yield (
                f"version {version}, {index}",
                frame(batch(b"x"), ONE._replace(partition=index), version),
            )
        yield f"version {version}, acks=all", frame(batch(b"x"), version=version, acks=-1)
        yield f"version {version}, too large", frame(batch(bytes(200)), SMALL, version)
    yield "an unknown topic", frame(batch(b"x"), TopicPartition("?", 0))
    for name in (None, "", "longer " * 30, "größe"):
        yield f"client id {name!r:.20}", frame(batch(b"x"), client_id=name)
    for size in (0, 1, 50, 51, 52, 60, 100, 10_000, 16_200, 16_300, 16_400, 30_000):
        yield f"{size} bytes", frame(batch(bytes(size)))
    yield "several records", frame(batch(*[b"x"] * 20))
    for codec in Compression:
        yield codec.name, frame(batch(b"x" * 50, compression=codec))
    yield "a name of 126 bytes", frame(batch(b"x"), TopicPartition("n" * 126, 0))
    yield "a name in UTF-8", frame(batch(b"x"), TopicPartition("größe", 0))
    damaged = bytearray(batch(b"damaged"))
    damaged[-1] ^= 1
    yield "damaged", frame(bytes(damaged))
    yield "a first sequence", frame(FIRST)
    yield "a duplicate", frame(FIRST)
    yield "a duplicate, acks=all", frame(FIRST, acks=-1)
    yield "too large, acks=all", frame(batch(bytes(200)), SMALL, acks=-1)
    yield "out of order", frame(batch(b"x", base_sequence=9, **IDEMPOTENT))
    yield "a timeout", frame(batch(b"x"), timeout_ms=-1)


def other_frames() -> Iterator[tuple[str, bytes]]:
    """Requests that do not take it."""
    for version in range(SERVED[ApiKey.PRODUCE].first, FIRST_VERSION):
        yield f"version {version}", frame(batch(b"x"), version=version)
    for acks in (0, 2):
        yield f"acks {acks}", frame(batch(b"x"), acks=acks)
    for name, records in {
        "null": None,
        "empty": b"",
        "two batches": batch(b"x") * 2,
        "cut": batch(b"x")[:-1],
        "no header": batch(b"x")[:20],
        "zeros": bytes(100),
    }.items():
        yield name, frame(records)
    yield "a large one", frame(batch(bytes(INLINE_BYTES)))
    yield "a long name", frame(batch(b"x"), TopicPartition("n" * 127, 0))
    yield "an unknown id", frame(batch(b"x"), TopicPartition("?", 0), FIRST_WITH_IDS)
    yield "an internal topic", frame(batch(b"x"), TopicPartition("__consumer_offsets", 0))
    yield (
        "a transactional batch",
        frame(batch(b"x", transactional=True, base_sequence=0, **IDEMPOTENT)),
    )
    whole = produce_request(ONE, batch(b"x"), acks=1)
    header = request_header(ApiKey.PRODUCE, 9, 7, "me")
    (topic,) = whole.topic_data
    (part,) = topic.partition_data
    two = topic._replace(partition_data=(part, part._replace(index=1)))
    yield "two partitions", framed(header, whole._replace(topic_data=(two,)))
    yield "two topics", framed(header, whole._replace(topic_data=(topic, topic)))
    yield (
        "no partition",
        framed(header, whole._replace(topic_data=(two._replace(partition_data=()),))),
    )
    yield "no topic", framed(header, whole._replace(topic_data=()))
    yield "a tag in the header", framed(header[:-1] + b"\1\0\0", whole)
    body = frame(batch(b"x"))[4:]
    for name, bad in {
        "a byte behind": body + b"\0",
        "a byte less": body[:-1],
        "an unknown tag": body[:-1] + b"\1\0\0",
        "a client id that is no text": body.replace(b"me", b"\xff\xff", 1),
        "a client id of -2": body[:8] + b"\xff\xfe" + body[12:],
        "no name": body.replace(b"\4one", b"\0", 1),
        "an empty name": body.replace(b"\4one", b"\1", 1),
        "a topic that is no text": body.replace(b"one", b"\xff\xff\xff", 1),
    }.items():
        yield name, LENGTH.pack(len(bad)) + bad


def test_what_takes_the_fast_path(ways: Ways) -> None:
    def check(case: tuple[str, bytes]) -> None:
        before = ways.fast.taken
        ways.check(case[1])
        assert ways.fast.taken == before + 1

    differences(good_frames(), check, lambda case: case[0])


def test_what_does_not(ways: Ways) -> None:
    def check(case: tuple[str, bytes]) -> None:
        before = ways.fast.taken
        ways.check(case[1])
        assert ways.fast.taken == before

    differences(other_frames(), check, lambda case: case[0])


@pytest.mark.parametrize("seed", range(4))
def test_hostile_frames(ways: Ways, seed: int) -> None:
    """Bytes changed, cut off and put in, mostly in front of the records."""
    random_source = random.Random(seed)
    originals = [asked for _, asked in (*good_frames(), *other_frames()) if len(asked) < 1000]
    answered = 0
    for _ in range(150):
        changed = bytearray(random_source.choice(originals)[4:])
        for _ in range(random_source.randint(1, 3)):
            at = random_source.randrange(min(len(changed), 60))
            match random_source.randrange(4):
                case 0:
                    changed[at] ^= 1 << random_source.randrange(8)
                case 1:
                    changed[at] = random_source.choice((0, 1, 2, 127, 128, 255))
                case 2:
                    del changed[at : at + random_source.randint(1, 4)]
                case _:
                    changed[at:at] = random_source.randbytes(random_source.randint(1, 4))
        if changed[:2] != bytes(2) or len(changed) < 8:
            continue  # another API
        answered += ways.check(LENGTH.pack(len(changed)) + changed).answer is not None
    assert answered
    assert ways.fast.taken


def test_it_serves_nothing_that_is_not_served() -> None:
    versions = SERVED[ApiKey.PRODUCE]
    assert versions.first <= FIRST_VERSION <= LAST_VERSION <= versions.last


# -- behind a socket -----------------------------------------------------------------------------


class Counted:
    """Calls of Python in threads that were begun while it looked."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and threading.current_thread().name.startswith("kafka-0-network"):
            self.count += 1


@pytest.fixture(scope="module")
def counted() -> Iterator[tuple[ServedCluster, Counted]]:
    counted = Counted()
    threading.setprofile(counted)
    try:
        with served() as kafka:
            kafka.create_topic(ONE.topic)
            yield kafka, counted
    finally:
        threading.setprofile(None)


def calls(kafka: ServedCluster, counted: Counted) -> float:
    """Of the network thread, for one request."""
    records, least = batch(b"x"), sys.maxsize
    with connect(kafka) as client:
        for _ in range(5):
            before = counted.count
            for _ in range(8):
                assert produce(client, ONE, records, acks=1).error_code == 0
            least = min(least, counted.count - before)
    return least / 8


def test_few_calls_whatever_the_broker_has(counted: tuple[ServedCluster, Counted]) -> None:
    """Partitions and connections 1, 4 and 16 times as many (W-237)."""
    kafka, count = counted
    first = calls(kafka, count)
    assert first < 75
    with ExitStack() as stack:
        for times in (4, 16):
            kafka.create_topic(f"more-{times}", times * 4)
            for _ in range(times):
                other = stack.enter_context(connect(kafka))
                produce(other, ONE, batch(b"x"), acks=1)
            assert calls(kafka, count) <= 1.1 * first


def test_faults_meet_requests_as_ever(counted: tuple[ServedCluster, Counted]) -> None:
    kafka, _ = counted
    with connect(kafka) as client:
        produce(client, ONE, batch(b"x"), acks=1)
        kafka.faults.fail(ApiKey.PRODUCE, error=ErrorCode.REQUEST_TIMED_OUT)
        part = produce(client, ONE, batch(b"x"), acks=1)
        assert part.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert produce(client, ONE, batch(b"x"), acks=1).error_code == ErrorCode.NONE


def test_a_quota_holds() -> None:
    """W-234: where the bytes of clients are counted, there is no fast path."""
    with served(1, {"quota.producer.default": 1000}) as kafka, connect(kafka) as client:
        kafka.create_topic(ONE.topic)
        request = produce_request(ONE, batch(bytes(20_000)), acks=1)
        assert client.ask(ApiKey.PRODUCE, 9, request).throttle_time_ms > 0
