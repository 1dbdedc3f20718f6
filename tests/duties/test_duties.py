"""Each duty of a broker, through the front door. ``test_proofs`` has the list."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from checkpoints.offset_checkpoint import HIGH_WATERMARK, LOG_START, RECOVERY_POINT
from checkpoints.types import TopicPartition
from logstore.verify import verify
from replication.common.error_codes import ErrorCode
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from tests.duties.server import BIG, SEGMENT, Server
from tests.support.until import until

pytestmark = pytest.mark.slow
OFFSETS = "__consumer_offsets"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """For duties that do not disturb each other. The defaults are a broker's, but for periods."""
    with Server(tmp_path_factory.mktemp("duties"), transactional_id_expiration_ms=500) as server:
        yield server


def test_retention_by_time(server: Server) -> None:
    tp = server.create("by-time", retention_ms=100)
    server.produce(tp, b"k", b"v")
    until(lambda: server.bounds(tp) == (1, 1))
    until(lambda: server.size(tp) == 0)


def test_retention_by_size(server: Server) -> None:
    tp = server.create("by-size", retention_bytes=1 << 20, **SEGMENT)
    for _ in range(10):
        server.produce(tp, b"k", BIG)
    until(lambda: server.bounds(tp)[0] > 0)
    until(lambda: not server.names("by-size-0/*.deleted"))
    assert (1 << 20) <= server.size(tp) <= (3 << 20)


def test_a_compacted_topic_stays_small(server: Server) -> None:
    tp = server.create("latest", cleanup_policy="compact", **SEGMENT)
    for number in range(12):
        server.produce(tp, b"key", b"%d" % number + BIG)
    until(lambda: server.size(tp) < 4 * len(BIG))
    assert server.fetched(tp)[-1].offset == 11


def test_a_deletion_of_a_key_goes_at_last(server: Server) -> None:
    tp = server.create(
        "gone",
        cleanup_policy="compact",
        delete_retention_ms=100,
        min_cleanable_dirty_ratio=0,
        **SEGMENT,
    )
    server.produce(tp, b"gone", b"v")
    server.produce(tp, b"gone", None)

    def is_gone() -> bool:
        server.produce(tp, b"other", BIG)
        return all(record.key != b"gone" for record in server.on_disk(tp))

    until(is_gone)


def test_flush_and_the_recovery_point(server: Server) -> None:
    tp = server.create("flushed", flush_ms=50)
    server.produce(tp, b"k", b"v")
    until(lambda: server.checkpoint(RECOVERY_POINT).get(tp) == 1)


def test_a_silent_producer_is_forgotten(tmp_path: Path) -> None:
    """Its time runs on over a restart."""
    with Server(tmp_path, producer_id_expiration_ms=400) as server:
        tp = server.create("produced")
        for is_killed in (False, True):
            producer_id, epoch = server.begin(None)
            server.produce(
                tp, b"k", b"v", producer_id=producer_id, producer_epoch=epoch, base_sequence=0
            )
            if is_killed:
                server.kill()
                server.start()
                until(lambda: server.bounds(tp) == (0, 2))
            until(lambda: server.producers(tp) == [])


def test_an_overdue_transaction_is_aborted(server: Server) -> None:
    tp = server.create("overdue")
    server.find_coordinator("late", 1)
    producer_id, epoch = server.begin("late", 300)
    kind = wire.AddPartitionsToTxnRequest
    topic = kind.AddPartitionsToTxnTopic(tp.topic, (tp.partition,))
    request = kind((), "late", producer_id, epoch, (topic,))
    answer = server.client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, request)
    assert "error_code=0" in str(answer)
    server.produce(
        tp,
        b"k",
        b"v",
        "late",
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=0,
    )
    until(lambda: server.bounds(tp)[1] == 2)  # the marker


def test_a_transactional_id_expires(server: Server) -> None:
    server.find_coordinator("idle", 1)
    server.begin("idle")
    gone = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    until(lambda: server.transaction("idle")[0] == gone)


def test_offsets_expire_and_their_group(server: Server) -> None:
    tp = server.create("read")
    server.find_coordinator("short", 0)
    server.commit("kept", tp, 3)
    server.commit("short", tp, 3, keep_ms=1)
    until(lambda: server.committed("short", tp) == -1)
    until(lambda: server.groups & {"kept", "short"} == {"kept"})
    assert server.committed("kept", tp) == 3


def test_a_deleted_topic_leaves_the_disk(server: Server) -> None:
    server.create("doomed", 3)
    assert server.names("doomed-*") == ["doomed-0", "doomed-1", "doomed-2"]
    request = wire.DeleteTopicsRequest(topic_names=("doomed",), timeout_ms=30_000)
    answer = server.client.ask(ApiKey.DELETE_TOPICS, 4, request)
    assert [topic.error_code for topic in answer.responses] == [0]
    until(lambda: not server.names("doomed-*"))


def test_killed_before_a_deletion_is_done(tmp_path: Path) -> None:
    """Also what was set aside stays: nobody removes a ``-stray`` directory but an operator."""
    aside = f"t-0.{'0' * 32}-stray"
    with Server(tmp_path, log_segment_delete_delay_ms=3_600_000) as server:
        tp = server.create("doomed")
        request = wire.DeleteTopicsRequest(topic_names=("doomed",), timeout_ms=30_000)
        server.client.ask(ApiKey.DELETE_TOPICS, 4, request)
        (name,) = until(lambda: server.names("doomed-*-delete"))
        for checkpoint in (HIGH_WATERMARK, RECOVERY_POINT):  # otherwise the next start tells of it
            until(lambda of=checkpoint: tp not in server.checkpoint(of))
        server.kill()
        assert server.names("doomed-*") == [name]
        (server.data / aside).mkdir()
        server.start()
        until(lambda: not server.names("doomed-*"))
        assert server.names("t-0*") == [aside]


def test_the_log_start_outlives_a_kill(tmp_path: Path) -> None:
    never = 3_600_000  # recovery points are written with log starts
    with Server(tmp_path, log_flush_offset_checkpoint_interval_ms=never) as server:
        tp = server.create("cut")
        for _ in range(4):
            server.produce(tp, b"k", b"v")
        kind = wire.DeleteRecordsRequest
        topic = kind.DeleteRecordsTopic("cut", (kind.DeleteRecordsPartition(0, 3),))
        server.client.ask(ApiKey.DELETE_RECORDS, 1, kind((topic,), 30_000))
        until(lambda: server.checkpoint(LOG_START).get(tp) == 3)
        server.kill()
        server.start()
        until(lambda: server.bounds(tp) == (3, 4))


def test_high_watermarks_outlive_a_kill(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        tp = server.create("seen")
        server.produce(tp, b"k", b"v")
        until(lambda: server.checkpoint(HIGH_WATERMARK).get(tp) == 1)
        server.kill()
        server.start()
        until(lambda: server.bounds(tp) == (0, 1))
        assert server.checkpoint(HIGH_WATERMARK)[tp] == 1


def test_committed_offsets_stay_small_and_are_loaded_from_what_is_left(tmp_path: Path) -> None:
    """Fifty partitions, as by default. The start after a kill reads what compaction left."""
    commits = 300
    with Server(tmp_path) as server:
        tp = server.create("read")
        server.find_coordinator("g", 0)
        for offset in range(commits):
            server.commit("g", tp, offset)
        assert len(server.names(f"{OFFSETS}-*")) == 50
        (home,) = (
            TopicPartition(OFFSETS, number)
            for number in range(50)
            if server.size(TopicPartition(OFFSETS, number))
        )
        until(lambda: len(server.on_disk(home)) < commits / 5)
        server.kill()  # perhaps while one segment takes the place of others
        server.start()
        assert server.committed("g", tp) == commits - 1
        until(lambda: len(server.on_disk(home)) < commits / 5)


def test_killed_in_the_middle_of_compaction(tmp_path: Path) -> None:
    """Whenever it happens, the newest value of each key is there, and the files are sound."""
    with Server(tmp_path, log_cleaner_backoff_ms=1) as server:
        tp = server.create(
            "latest", cleanup_policy="compact", min_cleanable_dirty_ratio=0, **SEGMENT
        )
        newest = {}
        for number in range(18):
            key = b"k%d" % (number % 2)
            newest[key] = b"%d" % number + BIG
            server.produce(tp, key, newest[key])
            if number % 6 == 5:
                server.kill()
                server.start()
                until(partial(_ends_at, server, tp, number + 1))
        until(lambda: server.size(tp) < 7 * len(BIG))
        found = {record.key: bytes(record.value or b"") for record in server.on_disk(tp)}
        assert found == newest
        server.stop()
        assert verify([server.data]).clean


def _ends_at(server: Server, tp: TopicPartition, offset: int) -> bool:
    return server.bounds(tp)[1] == offset


def test_idle_files_are_closed(tmp_path: Path) -> None:
    """More partitions than descriptors: those that nobody uses give theirs back."""
    limit = 150
    with Server(tmp_path, descriptors=limit) as server:
        server.create("many", limit // 2)
        for number in range(limit // 2):
            server.produce(TopicPartition("many", number), b"k", b"v")
        assert len(os.listdir(f"/proc/{server.process.pid}/fd")) < limit
        assert server.fetched(TopicPartition("many", 0))[0].offset == 0
