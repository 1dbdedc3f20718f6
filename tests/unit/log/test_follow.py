"""Following a log: in its own process, from an event loop, and from another process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import logstore
from checkpoints.offset_checkpoint import LOG_START, OffsetCheckpoint
from logstore.common.config import LogConfig
from logstore.common.errors import (
    CorruptBatchError,
    LogClosedError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from logstore.common.types import TopicPartition
from logstore.log import EARLIEST, LATEST, LogOwner, PartitionLog
from logstore.log.reading.directory_reader import DirectoryReader
from logstore.log.reading.following import Follower
from logstore.storage.local import LocalStorage
from logstore.storage.memory import MemoryStorage
from tests.support.builders import batch, marker, produced
from tests.support.until import patience, until
from tests.support.waiting import race

SMALL = LogConfig(segment_bytes=300)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    opened = PartitionLog.open(tmp_path / "orders-0", SMALL)
    yield opened
    opened.close()


def fill(log: PartitionLog, count: int) -> None:
    for _ in range(count):
        log.append([(None, b"%d" % log.log_end_offset)])


def values(follower: Follower) -> list[int]:
    return [int(record.value or b"-1") for record in follower]


def both(log: PartitionLog, **options: float) -> list[Follower]:
    """A follower inside and one of the files."""
    reader = PartitionLog.open_reader(log.directory)
    return [log.follow(timeout=0, **options), reader.follow(timeout=0, **options)]  # type: ignore[arg-type]


# -- both ways of following ------------------------------------------------------------------------


def test_what_is_there_and_what_comes(log: PartitionLog) -> None:
    fill(log, 20)
    followers = both(log)
    assert [values(f) for f in followers] == [list(range(20))] * 2
    fill(log, 15)
    log.roll()
    fill(log, 1)
    assert [values(f) for f in followers] == [list(range(20, 36))] * 2
    assert [f.position for f in followers] == [36, 36]
    assert [values(f) for f in followers] == [[], []]


def test_where_to_begin(log: PartitionLog) -> None:
    fill(log, 20)
    for start, first in ((None, 0), (EARLIEST, 0), (LATEST, 20), (0, 0), (13, 13), (20, 20)):
        for follower in both(log, start=start):  # type: ignore[arg-type]
            assert values(follower) == list(range(first, 20))
    for start in (21, 1000):
        with pytest.raises(OffsetOutOfRangeError):
            log.follow(start)
        with pytest.raises(OffsetOutOfRangeError):
            next(PartitionLog.open_reader(log.directory).follow(start, timeout=0))


def test_polling_by_number(log: PartitionLog) -> None:
    fill(log, 10)
    for follower in both(log):
        assert [r.offset for r in follower.poll(3)] == [0, 1, 2]
        assert follower.position == 3
        assert next(follower).offset == 3
        follower.seek(8)
        assert [[r.offset for r in chunk] for chunk in follower.chunks()] == [[8, 9]]
        assert follower.poll(timeout=0.01) == []


def test_deleted_before_it_was_read(log: PartitionLog) -> None:
    fill(log, 30)
    followers = both(log)
    assert [len(f.poll(1)) for f in followers] == [1, 1]
    for follower in followers:
        follower.poll()
    log.delete_records(20)
    log.maintenance.delete_old_segments()
    for follower in followers:
        with pytest.raises(OffsetOutOfRangeError) as caught:
            list(follower)
        assert not isinstance(caught.value, LogTruncatedError)
        assert caught.value.start >= 15
    for follower in both(log):
        assert values(follower)[-1] == 29


def test_deleted_behind_the_reader(log: PartitionLog) -> None:
    fill(log, 30)
    followers = both(log)
    for follower in followers:
        list(follower)
    log.roll()
    fill(log, 1)
    log.delete_records(30)
    log.maintenance.delete_old_segments()
    assert [values(f) for f in followers] == [[30], [30]]


@pytest.mark.parametrize(("to", "again"), [(28, 0), (28, 40), (11, 5), (0, 40)])
def test_cut_below_the_reader(log: PartitionLog, to: int, again: int) -> None:
    """Also where the log has grown beyond it since, with other records."""
    fill(log, 30)
    followers = both(log)
    for follower in followers:
        list(follower)
    log.truncate_to(to)
    for _ in range(again):
        log.append([(None, b"other")])
    for follower in followers:
        with pytest.raises(LogTruncatedError, match="was cut"):
            list(follower)


def test_cut_above_the_reader(log: PartitionLog) -> None:
    fill(log, 30)
    followers = both(log, start=28)
    for follower in followers:
        follower.poll(1)
    log.truncate_to(29)
    fill(log, 3)
    assert next(followers[0]).timestamp >= log.read(29).records()[0].timestamp
    assert values(followers[0]) == [30, 31]
    for follower in both(log, start=29):
        assert values(follower) == [29, 30, 31]


def test_markers_and_aborted_transactions(log: PartitionLog) -> None:
    log.append_as_leader(produced(1, 0, 2, transactional=True), 0)
    log.append_as_leader(produced(2, 0, 1, transactional=True), 0)
    committed = log.follow(timeout=0, committed=True)
    assert list(committed) == []
    from logstore.segments.producer_state import AppendOrigin

    log.append_as_leader(marker(commit=False, producer_id=1), 0, AppendOrigin.COORDINATOR)
    assert list(committed) == []
    log.append_as_leader(marker(commit=True, producer_id=2), 0, AppendOrigin.COORDINATOR)
    assert [r.offset for r in committed] == [2]
    assert committed.position == 5
    assert [r.offset for r in log.follow(timeout=0)] == [0, 1, 2]
    for follower in both(log):
        assert [r.offset for r in follower] == [0, 1, 2]
        assert follower.position == 5


# -- waiting in the same process -------------------------------------------------------------------


def test_an_append_wakes(log: PartitionLog) -> None:
    """Nothing else does: the follower would wait for longer than this test may take."""
    seen: list[int] = []

    def follow() -> None:
        for record in log.follow(timeout=600):
            seen.append(record.offset)
            if len(seen) == 20:
                return

    def append() -> None:
        for number in range(20):
            until(lambda before=number: len(seen) == before and log.core.listeners.waiting)
            log.append([(None, b"v")])

    race(follow, append)
    assert seen == list(range(20))


def test_only_up_to_the_high_watermark(tmp_path: Path) -> None:
    with PartitionLog.open(tmp_path / "orders-0", owner=LogOwner(replicated=True)) as log:
        log.append_as_leader(batch(count=5), 0)
        follower = log.follow(timeout=0.01)
        assert list(follower) == []
        log.replica.update_high_watermark(3)
        assert [r.offset for r in follower] == [0, 1, 2]
        threading.Timer(0.05, log.replica.update_high_watermark, (5,)).start()
        assert [r.offset for r in follower.poll(timeout=patience())] == [3, 4]


@pytest.mark.parametrize("end", ["close", "crash"])
def test_closed_while_it_waits(tmp_path: Path, end: str) -> None:
    log = PartitionLog.open(tmp_path / "orders-0")
    follower = log.follow()
    threading.Timer(0.05, getattr(log, end)).start()
    with pytest.raises(LogClosedError):
        next(follower)
    with pytest.raises(LogClosedError):
        log.follow()


def test_nobody_is_kept_waiting_or_remembered(log: PartitionLog) -> None:
    follower = log.follow(timeout=0.001)
    for _ in range(10):
        assert list(follower) == []
    assert log.core.listeners.waiting == ()


@pytest.mark.slow
def test_writers_truncation_and_followers_at_once(log: PartitionLog) -> None:
    """What a follower gives is always a part of one history."""
    done = threading.Event()

    def append() -> None:
        try:
            for _ in range(300):
                fill(log, 1)
        finally:
            done.set()

    def follow() -> None:
        follower, expected = log.follow(timeout=0.01), 0
        while not done.is_set() or expected < log.log_end_offset:
            for record in follower:
                assert record.offset == expected
                assert record.value == b"%d" % expected
                expected += 1

    race(append, follow, follow)
    assert log.log_end_offset == 300


def test_in_an_event_loop(log: PartitionLog) -> None:
    fill(log, 3)

    async def follow() -> list[int]:
        found = []
        async for record in log.follow_async(timeout=patience()):
            found.append(record.offset)
            if record.offset == 2:
                asyncio.get_running_loop().call_later(0.02, fill, log, 2)
            if record.offset == 4:
                break
        return found

    async def both_ways() -> tuple[list[int], list[int]]:
        reader = PartitionLog.open_reader(log.directory)
        found = await follow()
        return found, [r.offset async for r in reader.follow_async(timeout=0.1)]

    assert asyncio.run(both_ways()) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])


def test_an_event_loop_hears_of_the_end(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "orders-0")

    async def follow(timeout: float | None) -> list[int]:
        return [r.offset async for r in log.follow_async(timeout=timeout)]

    assert asyncio.run(follow(0.02)) == []
    threading.Timer(0.05, log.close).start()
    with pytest.raises(LogClosedError):
        asyncio.run(follow(None))


# -- the files of another process ------------------------------------------------------------------

WRITER = """
import sys
from logstore import LogConfig, PartitionLog
from logstore.log import LogOwner
owner = LogOwner(background=lambda task: None)
log = PartitionLog.open(sys.argv[1], LogConfig(segment_bytes=2000), owner=owner)
print("open", flush=True)
for line in sys.stdin:
    command, number = line.split()
    number = int(number)
    if command == "append":
        for _ in range(number):
            log.append([(None, b"%d" % log.log_end_offset)])
    elif command == "delete":
        log.delete_records(number)
        log.maintenance.delete_old_segments()
    elif command == "truncate":
        log.truncate_to(number)
    print(log.log_end_offset, flush=True)
"""


class Writer:
    """A process that writes a log."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        answer = self.process.stdout.readline()
        assert answer
        return answer

    def begin(self, command: str, number: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command} {number}\n")
        self.process.stdin.flush()

    def do(self, command: str, number: int) -> int:
        self.begin(command, number)
        return int(self._answer())


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    process = Writer(tmp_path / "orders-0")
    yield process
    process.process.kill()
    process.process.communicate()


def test_follow_another_process(writer: Writer, tmp_path: Path) -> None:
    """While it appends and rolls, with segments that still have the name of a roll; then deletes,
    and is killed."""
    follower = logstore.follow_directory(tmp_path, "orders", 0, timeout=patience(), poll=0.005)
    writer.begin("append", 500)
    found = [int(next(follower).value or b"") for _ in range(500)]
    assert found == list(range(500))
    assert writer._answer() == "500\n"
    assert any(name.endswith(".log.swap") for name in os.listdir(tmp_path / "orders-0"))
    assert writer.do("append", 300) == 800
    writer.do("delete", 700)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        next(follower)
    assert 500 < caught.value.start <= 700
    follower.seek(790)
    assert [r.offset for r in follower.poll()] == list(range(790, 800))
    writer.process.kill()
    assert follower.poll(timeout=0.02) == []


def test_another_process_cuts_its_log(writer: Writer, tmp_path: Path) -> None:
    writer.do("append", 100)
    reader = PartitionLog.open_reader(tmp_path / "orders-0")
    followers = [reader.follow(timeout=0, poll=0.001) for _ in range(3)]
    for follower in followers:
        assert len(list(follower)) == 100
    writer.do("truncate", 95)
    with pytest.raises(LogTruncatedError):
        list(followers[0])
    writer.do("append", 5)  # the same offsets; the timestamps are others
    with pytest.raises(LogTruncatedError):
        list(followers[1])
    writer.do("append", 100)
    with pytest.raises(LogTruncatedError):
        list(followers[2])


def test_only_whole_batches_count(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    directory.mkdir()
    follower = PartitionLog.open_reader(directory).follow(timeout=0.003, poll=0.001)
    assert list(follower) == []  # there is no segment yet
    file = directory / "00000000000000000000.log"
    first, second = batch(0, 2), batch(2, 1)
    for end in range(0, len(first), 7):
        file.write_bytes(first[:end])
        assert list(follower) == []
    file.write_bytes(first + second[:30])
    assert [r.offset for r in follower] == [0, 1]
    torn = bytearray(second)
    torn[-1] ^= 1
    file.write_bytes(first + torn)
    assert list(follower) == []  # may be half written
    file.write_bytes(first + second)
    assert [r.offset for r in follower] == [2]
    file.write_bytes(first + second + bytes(500))  # room that a broker has made before
    assert list(follower) == []
    assert PartitionLog.open_reader(directory).log_end_offset == 3


@pytest.mark.parametrize("sealed", [False, True])
def test_damage_that_stays_is_an_error(tmp_path: Path, sealed: bool) -> None:
    directory = tmp_path / "orders-0"
    directory.mkdir()
    bad = bytearray(batch(1, 1))
    bad[-1] ^= 1
    file = directory / "00000000000000000000.log"
    file.write_bytes(batch(0, 1) + bad + (b"" if sealed else batch(2, 1)))
    if sealed:
        (directory / "00000000000000000002.log").write_bytes(batch(2, 1))
    follower = PartitionLog.open_reader(directory).follow(0, timeout=1, poll=0.001)
    assert next(follower).offset == 0
    with pytest.raises(CorruptBatchError, match=file.name):
        next(follower)


def test_a_large_batch_and_a_misleading_index(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    directory.mkdir()
    data = batch(0, 1, value=bytes(3 << 20)) + b"".join(batch(n, 1) for n in range(1, 2000))
    (directory / "00000000000000000000.log").write_bytes(data)
    (directory / "00000000000000000000.index").write_bytes(b"\0\0\0\5\0\0\0\7" * 3 + bytes(80))
    reader = DirectoryReader(directory)
    assert [r.offset for r in reader.follow(timeout=0)] == list(range(2000))
    assert [r.offset for r in reader.follow(1998, timeout=0)] == [1998, 1999]


def test_what_is_on_file_of_the_log_start(log: PartitionLog) -> None:
    fill(log, 5)
    parent = Path(log.directory).parent
    OffsetCheckpoint(str(parent / LOG_START), LocalStorage()).write(
        {TopicPartition("orders", 0): 2}
    )
    assert values(PartitionLog.open_reader(log.directory).follow(timeout=0)) == [2, 3, 4]


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UnknownTopicOrPartitionError):
        logstore.follow_directory(tmp_path, "orders", 0)
    directory = tmp_path / "orders-0"
    directory.mkdir()
    follower = logstore.follow_directory(tmp_path, "orders", 0, timeout=1, poll=0.001)
    directory.rmdir()
    with pytest.raises(LogClosedError, match="gone"):
        next(follower)


def test_a_path_of_another_storage_is_no_uri() -> None:
    """Nothing in it is a query, a fragment or an escape."""
    storage = MemoryStorage()
    directory = "/a://b?c#d%20/orders-0"
    storage.make_dir(directory)
    storage.write_file(f"{directory}/{0:020}.log", batch(0, 3))
    reader = DirectoryReader(directory, storage=storage)
    assert (reader.log_end_offset, len(list(reader.follow(timeout=0)))) == (3, 3)


def test_names_of_rolls_and_of_replacements(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    directory.mkdir()
    reader = DirectoryReader(directory)

    def bases(*names: tuple[int, str]) -> list[int]:
        for offset, suffix in names:
            (directory / f"{offset:020}{suffix}").touch()
        return reader.bases()

    assert bases((0, ".log.deleted")) == []
    (directory / "x.log").touch()
    final, waiting = [(0, ".log"), (5, ".log")], [(9, ".log.swap"), (12, ".log.swap")]
    assert bases(*final, *waiting) == [0, 5, 9, 12]
    assert bases((3, ".log.swap"), (12, ".index.swap"), (20, ".log.cleaned")) == [0, 5, 9]
