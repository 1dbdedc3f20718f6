"""A mirror follows brokers behind sockets, byte for byte."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from logstore.common.errors import LogDirLockedError
from logstore.storage.memory import MemoryStorage
from replication.common.error_codes import ErrorCode
from replication.fetcher.fetcher import Fetcher
from replication.mirror import (
    MirrorFile,
    MirrorRefusedError,
    MirrorState,
    PartitionState,
    SourceUnreachableError,
)
from replication.mirror.following import Following
from replication.mirror.identity import MirrorIdentity, settle
from replication.protocol import ApiKey
from replication.server.serving import ServedCluster
from tests.support.mirrors import (
    DIRECTORY,
    FOREVER_MS,
    caught_up,
    copy_directory,
    kinds,
    mirror_of,
    mirrored_bytes,
    reported,
    source_bytes,
    write,
)
from tests.support.served import new_name, served
from tests.support.until import patience, until


def topic(kafka: ServedCluster, partitions: int = 1, **config: str) -> TopicPartition:
    name = new_name("mirrored")
    kafka.create_topic(name, partitions, config={k.replace("_", "."): v for k, v in config.items()})
    return TopicPartition(name, 0)


def test_batches_are_equal(kafka: ServedCluster) -> None:
    tp = topic(kafka, 2)
    write(kafka, tp, b"first", b"second")
    with mirror_of(kafka, topics=(tp.topic,)) as mirror:
        mirror.start()
        caught_up(mirror)
        write(kafka, tp, b"third")
        caught_up(mirror)
        assert mirrored_bytes(mirror, tp) == source_bytes(kafka, tp) != b""
        status = mirror.status
        assert status.partitions[tp].state is PartitionState.CAUGHT_UP
        assert status.partitions[tp].source_high_watermark == 3
        assert not mirror.report.findings


def test_who_waits_for_an_end_is_told_that_the_mirror_was_closed(kafka: ServedCluster) -> None:
    tp = topic(kafka)
    write(kafka, tp, *(b"v" * 400_000 for _ in range(4)))
    answers: list[bool] = []
    with mirror_of(kafka, topics=(tp.topic,), rate_bytes_per_s=1.0) as mirror:  # years
        mirror.start()
        waiting = threading.Thread(target=lambda: answers.append(mirror.catch_up(FOREVER_MS)))
        waiting.start()
        until(lambda: tp in mirror.status.partitions)
        mirror.close()
        waiting.join(patience())
    assert answers == [False]


def test_a_topic_brings_its_id_partitions_and_configuration(kafka: ServedCluster) -> None:
    tp = topic(kafka, 3, retention_ms="1000", segment_bytes="4096")
    with mirror_of(kafka, topics=(tp.topic,)) as mirror:
        mirror.start()
        caught_up(mirror)
        assert mirror.log_manager is not None
        logs = mirror.log_manager.logs
        assert sorted(logs) == [TopicPartition(tp.topic, number) for number in range(3)]
        source = kafka.broker(0).replica_manager.partition(tp).local_log()
        assert logs[tp].topic_id == source.topic_id
        assert (logs[tp].config.retention_ms, logs[tp].config.segment_bytes) == (1000, 4096)


def test_it_goes_on_where_it_was(kafka: ServedCluster) -> None:
    tp, storage = topic(kafka), MemoryStorage()
    write(kafka, tp, b"first")
    with mirror_of(kafka, storage, topics=(tp.topic,)) as mirror:
        mirror.start()
        caught_up(mirror)
    write(kafka, tp, b"second")
    with mirror_of(kafka, storage, topics=(tp.topic,)) as mirror:
        mirror.start()
        caught_up(mirror)
        assert mirror.status.partitions[tp].bytes < len(source_bytes(kafka, tp))
        assert mirrored_bytes(mirror, tp) == source_bytes(kafka, tp)


def test_a_new_topic_is_found(kafka: ServedCluster) -> None:
    prefix = new_name("later")
    with mirror_of(kafka, topics=(f"{prefix}.*",), internal=False) as mirror:
        mirror.start()
        caught_up(mirror)
        tp = TopicPartition(f"{prefix}-a", 0)
        kafka.create_topic(tp.topic)
        write(kafka, tp, b"first")
        caught_up(mirror)
        assert set(mirror.status.partitions) == {tp}
        assert mirrored_bytes(mirror, tp) == source_bytes(kafka, tp)


def test_a_later_topic_of_the_same_name_sets_the_log_aside(kafka: ServedCluster) -> None:
    """The logs of the former topic stay, and nothing is appended to them (X-173)."""
    tp, storage = topic(kafka), MemoryStorage()
    write(kafka, tp, b"former", b"former")
    with mirror_of(kafka, storage, topics=(tp.topic,)) as mirror:
        mirror.start()
        caught_up(mirror)
        former = mirrored_bytes(mirror, tp)
        kafka.delete_topic(tp.topic)
        kafka.create_topic(tp.topic)
        write(kafka, tp, b"later")
        event = reported(mirror, "set-aside")
        assert (event.first_offset, event.end_offset) == (0, 2)
        until(
            lambda: mirrored_bytes(mirror, tp) == source_bytes(kafka, tp), "it follows the new one"
        )
        assert mirror.status.bytes > len(former)  # a counter does not fall
    (aside,) = [each for each in storage.scan_dir(DIRECTORY) if each.name.endswith("-stray")]
    path = f"{DIRECTORY}/{aside.name}/00000000000000000000.log"
    assert storage.read_file(path, 1 << 20) == former


def test_a_deleted_topic_stays(kafka: ServedCluster) -> None:
    tp = topic(kafka)
    write(kafka, tp, b"kept")
    with mirror_of(kafka, topics=(tp.topic,)) as mirror:
        mirror.start()
        caught_up(mirror)
        kept = mirrored_bytes(mirror, tp)
        kafka.delete_topic(tp.topic)
        reported(mirror, "gone")
        assert mirror.status.partitions[tp].state is PartitionState.GONE
        assert mirrored_bytes(mirror, tp) == kept
        assert not mirror.report.findings


@pytest.mark.parametrize("keep", [False, True])
def test_the_log_start_follows_the_source_or_stays(kafka: ServedCluster, keep: bool) -> None:
    tp = topic(kafka)
    write(kafka, tp, b"a", b"b", b"c")
    with mirror_of(kafka, topics=(tp.topic,), keep_deleted=keep) as mirror:
        mirror.start()
        caught_up(mirror)
        kafka.broker(0).replica_manager.partition(tp).local_log().delete_records(2)
        write(kafka, tp, b"d")
        caught_up(mirror)
        assert mirror.log_manager is not None
        log = mirror.log_manager.get(*tp)
        until(lambda: log.log_start_offset == (0 if keep else 2), "the log start is the source's")


@pytest.mark.parametrize("keep", [False, True])
def test_what_the_source_deleted_before_is_reported(kafka: ServedCluster, keep: bool) -> None:
    """The range that nobody can mirror any more is named; what is here goes or stays (X-175)."""
    tp, storage = topic(kafka), MemoryStorage()
    write(kafka, tp, b"a", b"b")
    options: dict[str, Any] = {"topics": (tp.topic,), "keep_deleted": keep}
    with mirror_of(kafka, storage, **options) as mirror:
        mirror.start()
        caught_up(mirror)
    write(kafka, tp, b"c", b"d", b"e")
    kafka.broker(0).replica_manager.partition(tp).local_log().delete_records(4)
    with mirror_of(kafka, storage, **options) as mirror:
        mirror.start()
        caught_up(mirror)
        (event,) = mirror.report.events
        assert (event.kind.word, event.first_offset, event.end_offset) == ("lost", 2, 4)
        assert mirror.log_manager is not None
        log = mirror.log_manager.get(*tp)
        offsets = [record.offset for record in log.records()]
        assert offsets == ([0, 1, 4] if keep else [4])
        write(kafka, tp, b"f")
        caught_up(mirror)
        assert log.log_end_offset == 6


def test_a_new_directory_needs_its_source() -> None:
    with mirror_of("127.0.0.1:1") as mirror, pytest.raises(SourceUnreachableError, match="127"):
        mirror.start()


def test_a_directory_has_one_mirror(kafka: ServedCluster) -> None:
    tp, storage = topic(kafka), MemoryStorage()
    with mirror_of(kafka, storage, topics=(tp.topic,)) as mirror:
        mirror.start()
        other = mirror_of(kafka, storage, topics=(tp.topic,))
        with other, pytest.raises(LogDirLockedError):
            other.start()
        caught_up(mirror)


def test_the_mirror_of_another_cluster_is_refused(kafka: ServedCluster) -> None:
    tp, storage = topic(kafka), MemoryStorage()
    with mirror_of(kafka, storage, topics=(tp.topic,)) as mirror:
        mirror.start()
        caught_up(mirror)
    with served() as another:
        mirror = mirror_of(another, storage)
        with mirror, pytest.raises(MirrorRefusedError, match="mirrors the cluster"):
            mirror.start()


def test_a_promoted_mirror_does_not_follow(kafka: ServedCluster) -> None:
    tp, storage = topic(kafka), MemoryStorage()
    with mirror_of(kafka, storage, topics=(tp.topic,)) as mirror:
        mirror.start()
    file = MirrorFile.of(DIRECTORY, storage)
    known = file.read()
    assert known is not None
    file.write(dataclasses.replace(known, state=MirrorState.PROMOTED))
    with mirror_of(kafka, storage) as mirror, pytest.raises(MirrorRefusedError, match="promoted"):
        mirror.start()


def test_a_promotion_between_the_look_and_the_lock_is_seen(
    kafka: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    tp, storage = topic(kafka), MemoryStorage()
    with mirror_of(kafka, storage, topics=(tp.topic,)) as mirror:
        mirror.start()
    file = MirrorFile.of(DIRECTORY, storage)

    def late(*arguments: Any) -> MirrorIdentity:
        found = settle(*arguments)
        file.write(dataclasses.replace(found, state=MirrorState.PROMOTED))
        return found

    monkeypatch.setattr("replication.mirror.mirror.settle", late)
    with mirror_of(kafka, storage) as mirror, pytest.raises(MirrorRefusedError, match="promoted"):
        mirror.start()
    known = file.read()
    assert known is not None
    assert known.state is MirrorState.PROMOTED


def test_what_was_kept_is_not_deleted_for_a_forgotten_option(kafka: ServedCluster) -> None:
    tp, storage = topic(kafka), MemoryStorage()
    options: dict[str, Any] = {"topics": (tp.topic,)}
    with mirror_of(kafka, storage, keep_deleted=True, **options) as mirror:
        mirror.start()
    forgotten = mirror_of(kafka, storage, **options)
    with forgotten, pytest.raises(MirrorRefusedError, match="--keep-deleted is missing"):
        forgotten.start()
    with mirror_of(kafka, storage, keep_deleted=True, **options) as mirror:
        mirror.start()
        caught_up(mirror)


def test_a_report_that_cannot_be_written_is_the_end(
    kafka: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    tp, storage = topic(kafka), MemoryStorage()
    storage.make_dir(DIRECTORY)
    storage.make_dir(f"{DIRECTORY}/mirror-report.jsonl")
    with mirror_of(kafka, storage) as mirror, pytest.raises(OSError, match="mirror-report"):
        mirror.start()
    with mirror_of(kafka, topics=(tp.topic,)) as mirror:
        mirror.start()
        caught_up(mirror)

        def refuse(*arguments: object, **details: object) -> None:
            raise OSError(28, "no space")

        monkeypatch.setattr(mirror.report, "add", refuse)
        kafka.faults.fail(ApiKey.FETCH, error=ErrorCode.KAFKA_STORAGE_ERROR, times=None)
        try:
            failure = until(lambda: mirror.failure, "it ends")
        finally:
            kafka.faults.clear()
        assert "no space" in str(failure)


def test_who_waits_for_the_end_does_not_outlive_it(kafka: ServedCluster) -> None:
    """A source that gives no records, and a mirror that is closed meanwhile."""
    tp = topic(kafka)
    answer: list[bool] = []
    write(kafka, tp, b"never read")
    kafka.faults.drop(ApiKey.FETCH, times=None)
    try:
        with mirror_of(kafka, topics=(tp.topic,), internal=False) as mirror:
            mirror.start()
            thread = threading.Thread(target=lambda: answer.append(mirror.catch_up(FOREVER_MS)))
            thread.start()
            until(lambda: mirror._ends, "it waits")
        thread.join(patience())
        assert answer == [False]
    finally:
        kafka.faults.clear()


def test_internal_topics_come_along(kafka: ServedCluster) -> None:
    tp = topic(kafka)
    kafka.create_topic("__consumer_offsets", 2)
    with mirror_of(kafka, topics=(tp.topic,)) as mirror:
        mirror.start()
        caught_up(mirror)
        assert {each.topic for each in mirror.status.partitions} == {tp.topic, "__consumer_offsets"}
    with mirror_of(kafka, topics=(tp.topic,), internal=False) as mirror:
        mirror.start()
        caught_up(mirror)
        assert {each.topic for each in mirror.status.partitions} == {tp.topic}
        assert kinds(mirror.report) == []


def test_a_copied_directory_is_gone_on_with(kafka: ServedCluster) -> None:
    """Only what came after the copy goes over the wire (X-174)."""
    tp, storage = topic(kafka), MemoryStorage()
    write(kafka, tp, *[b"copied" * 100] * 50)
    source = kafka.broker(0).replica_manager.log_manager
    source.housekeeper.checkpoint_high_watermarks()
    copy_directory(kafka, source.live_directories[0], storage, tp)
    copied = len(source_bytes(kafka, tp))
    write(kafka, tp, b"later")
    with mirror_of(kafka, storage, topics=(tp.topic,), internal=False) as mirror:
        mirror.start()
        caught_up(mirror)
        assert mirrored_bytes(mirror, tp) == source_bytes(kafka, tp)
        assert mirror.status.partitions[tp].bytes == len(source_bytes(kafka, tp)) - copied
        assert kinds(mirror.report) == []


def test_a_copy_of_another_topic_is_refused(kafka: ServedCluster) -> None:
    """Its logs belong to a topic of the same name that is deleted: nothing is changed."""
    tp, storage = topic(kafka), MemoryStorage()
    write(kafka, tp, b"former")
    source = kafka.broker(0).replica_manager.log_manager
    copy_directory(kafka, source.live_directories[0], storage, tp)
    kafka.delete_topic(tp.topic)
    kafka.create_topic(tp.topic)
    mirror = mirror_of(kafka, storage, topics=(tp.topic,))
    with mirror, pytest.raises(MirrorRefusedError, match="their ids differ"):
        mirror.start()
    assert MirrorFile.of(DIRECTORY, storage).read() is None


def test_a_copy_from_another_cluster_is_refused(kafka: ServedCluster) -> None:
    storage = MemoryStorage()
    with served() as another:
        tp = topic(another)
        write(another, tp, b"of another")
        source = another.broker(0).replica_manager.log_manager
        copy_directory(another, source.live_directories[0], storage, tp)
    mirror = mirror_of(kafka, storage)
    with mirror, pytest.raises(MirrorRefusedError, match="belongs to the cluster"):
        mirror.start()


def test_logs_of_nobody_are_refused(kafka: ServedCluster) -> None:
    tp, storage = topic(kafka), MemoryStorage()
    source = kafka.broker(0).replica_manager.log_manager
    copy_directory(kafka, source.live_directories[0], storage, tp)
    storage.remove(f"{DIRECTORY}/meta.properties")
    with mirror_of(kafka, storage) as mirror, pytest.raises(MirrorRefusedError, match="no meta"):
        mirror.start()


def test_an_error_of_ours_ends_it(kafka: ServedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that nobody follows any more must not look as if it were up to date."""
    tp = topic(kafka)
    with mirror_of(kafka, topics=(tp.topic,), metadata_interval_ms=100) as mirror:
        mirror.start()
        caught_up(mirror)

        def broken(*_: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(Fetcher, "_on_fetched", broken)
        write(kafka, tp, b"lost on the way")
        until(lambda: mirror.failure is not None, "it fails")
        monkeypatch.undo()
        assert "error" in mirror.status.failure


def test_an_error_over_a_view_is_not_the_last_view(
    kafka: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    tp = topic(kafka)
    with mirror_of(kafka, topics=(tp.topic,), metadata_interval_ms=100) as mirror:
        seen = []

        def broken(self: Following, **_: object) -> None:
            seen.append(self)
            raise ZeroDivisionError

        monkeypatch.setattr(Following, "local", broken)
        mirror.start()
        until(lambda: len(seen) > 1, "it looks at the source again")
        monkeypatch.undo()
        caught_up(mirror)
