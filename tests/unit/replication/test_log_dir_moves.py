"""Replicas move between the directories of a broker (X-156, KIP-113)."""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Iterator
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from logstore.common.locks import replace_factory
from logstore.testing.faulty import FOREVER
from replication.common.error_codes import ErrorCode
from tests.support.builders import batch
from tests.support.cases import for_each
from tests.support.checked_locks import CheckedLock
from tests.support.replica_managers import TOPIC_ID, TP, Host, part

NONE = ErrorCode.NONE
RECORD = len(batch())


@pytest.fixture(autouse=True)
def checked_locks() -> Iterator[None]:
    with replace_factory(CheckedLock):
        yield


def make(**options: Any) -> Host:
    return Host(directories=("/a", "/b", "/c"), **options)


def home(host: Host, tp: TopicPartition = TP) -> str:
    log = host.partition(tp).local_log()
    assert host.log_manager.get(*tp) is log
    return posixpath.dirname(log.directory)


def other(host: Host) -> str:
    return next(path for path in ("/a", "/b") if path != home(host))


def ask(host: Host, path: str, tp: TopicPartition = TP) -> ErrorCode:
    """Ask for a move, and let nothing happen after the answer."""
    codes: list[ErrorCode] = []
    host.manager.moves.alter({tp: path}, lambda found: codes.append(found[tp]))
    queue = host.runtime._queue
    while not codes:
        each = next(each for each in queue if each[0].name.startswith("log-dirs-"))
        queue.remove(each)
        each[1]()
    return codes[0]


def move(host: Host, path: str) -> None:
    assert ask(host, path) is NONE
    host.runtime.run_actor("log-dirs-")
    assert home(host) == path


class TestRoles:
    def test_a_leader_goes_on(self) -> None:
        """Its clients see nothing of it; requests that wait are answered."""
        host = make(replica_fetch_max_bytes=300)
        host.lead(config={"segment.bytes": "1000"})
        for _ in range(50):
            host.append()
        host.replicate(20)
        waiting = host.fetch(part(50), replica=2, wait_ms=60_000)
        path = other(host)
        assert ask(host, path) is NONE
        for _ in range(5):
            host.append()
        assert waiting
        produced, consumed = host.produce(timeout_ms=60_000), host.fetch(part(50), wait_ms=60_000)
        host.runtime.advance(2000)
        assert home(host) == path
        partition = host.partition()
        assert (partition.log_end_offset, partition.high_watermark) == (56, 50)
        assert not produced
        assert not consumed
        host.replicate(56)
        assert (produced.only.error_code, consumed.only.error_code) == (NONE, NONE)
        assert len(consumed.only.records) >= 6 * RECORD
        assert (partition.high_watermark, host.append().base_offset) == (56, 56)
        data = b"".join(bytes(host.fetch(part(offset)).only.records) for offset in range(56))
        assert len(data) >= 56 * RECORD
        assert host.partition().leader_epoch == 0

    def test_an_append_that_meets_the_move_is_for_the_new_log(self) -> None:
        """It has the old log in its hands when that is closed."""
        host = make()
        partition = host.lead()
        host.append()
        log = partition.local_log()
        append, moved = log.append_as_leader, []

        def late(*arguments: Any) -> Any:
            if not moved:
                moved.append(True)
                move(host, other(host))
            return append(*arguments)

        log.append_as_leader = late  # type: ignore[method-assign]
        assert host.append().base_offset == 1
        assert partition.local_log() is not log
        assert partition.log_end_offset == 2

    def test_a_follower_goes_on(self) -> None:
        host = make()
        partition = host.follow(epoch=5)
        partition.follower.append(batch(count=3, epoch=5), 5)
        partition.follower.follow(2, 0, 5)
        log = partition.local_log()
        append, moved = log.replica.append_as_follower, []

        def late(*arguments: Any) -> Any:
            if not moved:
                moved.append(True)
                move(host, other(host))
            return append(*arguments)

        log.replica.append_as_follower = late  # type: ignore[method-assign]
        partition.follower.append(batch(3, count=2, epoch=5), 5)
        assert (partition.log_end_offset, partition.high_watermark) == (5, 2)
        partition.follower.truncate_to(4, 5)
        assert partition.local_log() is not log
        assert partition.log_end_offset == 3

    def test_the_role_changes_in_the_middle(self) -> None:
        host = make(replica_fetch_max_bytes=100)
        host.lead()
        for _ in range(10):
            host.append()
        path = other(host)
        assert ask(host, path) is NONE
        partition = host.follow(epoch=1)
        partition.follower.truncate_to(4, 1)
        partition.follower.append(batch(4, count=9, epoch=1), 1)
        host.runtime.advance(2000)
        assert home(host) == path
        assert partition.log_end_offset == 13
        assert partition.local_log().epochs.entries == ((0, 0), (1, 4))
        host.lead(epoch=2)
        assert host.append().base_offset == 13

    def test_the_topic_is_deleted_and_comes_again(self) -> None:
        host = make(replica_fetch_max_bytes=100)
        host.lead()
        for _ in range(10):
            host.append()
        assert ask(host, other(host)) is NONE
        host.stop()
        assert host.log_manager.futures.partitions() == set()
        again = type(TOPIC_ID)(int=8)
        host.lead(epoch=1, topic_id=again)
        host.runtime.advance(2000)
        assert host.partition().log_end_offset == 0
        assert host.log_manager.futures.partitions() == set()

    def test_a_move_goes_on_after_a_start(self) -> None:
        host = make(replica_fetch_max_bytes=100)
        host.lead()
        for _ in range(10):
            host.append()
        path = other(host)
        assert ask(host, path) is NONE
        host.manager.abandon()
        host.log_manager.crash()
        host.storage.crash(mode="all_kept")
        again = make(storage=host.storage)
        again.runtime.advance(2000)
        again.lead(epoch=1)
        again.runtime.advance(2000)
        assert home(again) == path
        assert again.partition().log_end_offset == 10


class TestPlaces:
    def test_there_and_back(self) -> None:
        host = make()
        host.lead()
        host.append()
        first = home(host)
        for path in ("/b", "/c", "/a", first):
            move(host, path)
            host.append()
        assert host.partition().log_end_offset == 5

    def test_the_same_directory(self) -> None:
        host = make()
        host.lead()
        assert ask(host, home(host) + "/") is NONE
        assert host.log_manager.futures.partitions() == set()

    def test_another_place_before_the_first_is_reached(self) -> None:
        """Back to where it is ends the move."""
        host = make(replica_fetch_max_bytes=100)
        host.lead()
        for _ in range(10):
            host.append()
        here = home(host)
        assert ask(host, other(host)) is NONE
        assert ask(host, "/c") is NONE
        assert host.log_manager.futures.place_of(TP) == "/c"
        assert ask(host, here) is NONE
        assert host.log_manager.futures.place_of(TP) is None
        host.runtime.advance(2000)
        assert home(host) == here

    @for_each(
        "path, code",
        [("/nowhere", ErrorCode.LOG_DIR_NOT_FOUND), ("/c", ErrorCode.KAFKA_STORAGE_ERROR)],
    )
    def test_no_such_place(self, path: str, code: ErrorCode) -> None:
        host = make()
        host.lead()
        here = home(host)
        host.storage.fail("sync_dir", "/c*", times=FOREVER)
        host.log_manager._directories.fail("/c", _failure("/c"))
        assert ask(host, path) is code
        # One that may have a copy already is out of sight.
        assert ask(host, other(host)) is ErrorCode.KAFKA_STORAGE_ERROR
        assert home(host) == here

    def test_a_name_that_is_too_long(self) -> None:
        tp = TopicPartition("x" * 240, 0)
        assert ask(make(), "/b", tp) is ErrorCode.INVALID_TOPIC_EXCEPTION

    def test_the_place_of_a_replica_that_is_to_come(self) -> None:
        host = make()
        assert ask(host, "/c") is ErrorCode.REPLICA_NOT_AVAILABLE
        host.lead()
        assert home(host) == "/c"

    def test_the_old_disk_fails(self) -> None:
        host = make(replica_fetch_max_bytes=100)
        host.lead()
        for _ in range(10):
            host.append()
        path = other(host)
        assert ask(host, path) is NONE
        host.log_manager._directories.fail(home(host), _failure(home(host)))
        host.report_failures()
        host.runtime.advance(2000)
        assert host.manager.partitions[TP].offline
        assert host.log_manager.futures.place_of(TP) == path

    def test_the_new_disk_fails(self) -> None:
        host = make(replica_fetch_max_bytes=100)
        host.lead()
        for _ in range(10):
            host.append()
        here, path = home(host), other(host)
        assert ask(host, path) is NONE
        host.log_manager._directories.fail(path, _failure(path))
        host.report_failures()
        host.runtime.advance(2000)
        assert home(host) == here
        assert host.append().base_offset == 10


def test_a_move_waits_for_room_on_the_new_disk() -> None:
    """A full disk would be offline with all its other logs, at each start anew."""
    host = make(replica_fetch_max_bytes=RECORD)
    host.lead()
    for _ in range(100):
        host.append()
    here, path, storage = home(host), other(host), host.storage
    storage.capacity = storage._used + 50 * RECORD
    assert ask(host, path) is NONE
    host.runtime.advance(5000)
    assert (home(host), host.log_manager.futures.place_of(TP)) == (here, path)
    assert not host.log_manager.offline_directories
    host.append()
    storage.capacity = None
    host.runtime.advance(5000)
    assert home(host) == path


def test_moves_are_throttled() -> None:
    """X-64: in any second and more, the rate; a piece more where it is exceeded."""
    host = make(replica_fetch_max_bytes=RECORD, replica_fetch_backoff_ms=10)
    rate = 10 * RECORD
    host.lead()
    for _ in range(100):
        host.append()
    host.manager.quotas["replica.alter.log.dirs.io.max.bytes.per.second"].set_rate(rate)
    path = other(host)
    assert ask(host, path) is NONE
    copied = []
    for second in itertools.count(1):
        host.runtime.advance(1000)
        if (copy := host.log_manager.futures.logs().get(TP)) is None:
            break
        copied.append(copy.size)
        assert copy.size <= rate * second + RECORD, second
    assert len(copied) >= 8
    assert home(host) == path


def _failure(path: str) -> Any:
    from logstore.common.errors import StorageFailedError

    return StorageFailedError(path, "write", "made for a test")
