"""Records on their way from a segment's file through the socket to a consumer."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoints.types import TopicPartition
from logstore.format.reader import read_records
from logstore.storage.file_slice import FileSlice, live_slices
from replication.protocol import ApiKey, encode_request, request_header
from replication.server.serving import ServedCluster, serve
from tests.support.served import batch, connect, fetch, fetch_request, new_name, produce
from tests.support.until import until

BATCHES, VALUE = 60, bytes(range(250)) * 400  # 6 MB: more than a socket takes at once


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCluster]:
    with serve(tmp_path_factory.mktemp("served")) as cluster:
        yield cluster
    assert not live_slices()


@pytest.fixture
def tp(kafka: ServedCluster) -> TopicPartition:
    tp = TopicPartition(new_name(), 0)
    kafka.create_topic(tp.topic)
    kafka.wait_for_leader(tp)
    with connect(kafka) as client:
        for number in range(BATCHES):
            assert not produce(client, tp, batch(VALUE + b"%d" % number)).error_code
    return tp


def log_file(kafka: ServedCluster, tp: TopicPartition) -> Path:
    log = kafka.broker(0).replica_manager.partition(tp).local_log()
    return Path(log.segments[0].log_path)


@pytest.mark.parametrize("version", [4, 10, 12])
def test_the_bytes_are_those_of_the_file(
    kafka: ServedCluster, tp: TopicPartition, version: int
) -> None:
    with connect(kafka) as client:
        part = fetch(client, tp, version=version, partition_max_bytes=50 << 20)
        assert part.records == log_file(kafka, tp).read_bytes()
        assert part.high_watermark == BATCHES
        small = fetch(client, tp, BATCHES - 1, version=version, partition_max_bytes=50 << 20)
        assert [record.offset for record in read_records(small.records or b"")] == [BATCHES - 1]
    until(lambda: not live_slices())


def test_two_partitions_in_one_answer(kafka: ServedCluster, tp: TopicPartition) -> None:
    """Fields, a file, fields, a file."""
    asked = fetch_request(
        (tp, {"fetch_offset": 0, "partition_max_bytes": 300_000}),
        (tp, {"fetch_offset": 30, "partition_max_bytes": 300_000}),
    )
    with connect(kafka) as client:
        ((first, second),) = (
            topic.partitions for topic in client.ask(ApiKey.FETCH, 11, asked).responses
        )
    whole = log_file(kafka, tp).read_bytes()
    assert len(first.records) == len(second.records) == 300_000
    assert whole.startswith(first.records)
    begin = read_records(second.records)[0]
    assert begin.offset == 30
    assert second.records in whole


def test_a_topic_that_is_deleted_while_it_is_sent(kafka: ServedCluster, tp: TopicPartition) -> None:
    """The reader gets what it was promised."""
    expected = log_file(kafka, tp).read_bytes()
    endpoint = kafka.broker(0).endpoints[0]
    asked = fetch_request((tp, {"partition_max_bytes": 50 << 20}))
    body = request_header(ApiKey.FETCH, 11, 1, "slow") + encode_request(asked, 11)
    with socket.create_connection((endpoint.host, endpoint.port), 30) as slow:
        slow.sendall(len(body).to_bytes(4) + body)
        until(lambda: live_slices() == 1)
        kafka.delete_topic(tp.topic)
        with slow.makefile("rb") as stream:
            answer = stream.read(int.from_bytes(stream.read(4)))
    assert answer.endswith(expected)
    until(lambda: not live_slices())


def test_a_reader_that_goes_away_gives_the_file_back(
    kafka: ServedCluster, tp: TopicPartition
) -> None:
    endpoint = kafka.broker(0).endpoints[0]
    asked = fetch_request((tp, {"partition_max_bytes": 50 << 20}))
    body = request_header(ApiKey.FETCH, 11, 1, "gone") + encode_request(asked, 11)
    with socket.create_connection((endpoint.host, endpoint.port), 30) as gone:
        gone.sendall(len(body).to_bytes(4) + body)
        until(lambda: live_slices() == 1)
    until(lambda: not live_slices())


def test_clients_in_the_process_get_bytes(
    kafka: ServedCluster, tp: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("a slice was made")

    monkeypatch.setattr(FileSlice, "__init__", refuse)
    found = kafka.read_all(tp.topic)[0]
    assert [record.offset for record in found] == list(range(BATCHES))
