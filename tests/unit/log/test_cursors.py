"""Named cursors: places in a log that survive the process and notice when the log is another."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.common.config import LogConfig
from logstore.common.errors import (
    CursorError,
    LogClosedError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    StorageFailedError,
)
from logstore.common.locks import Rank, replace_factory
from logstore.log import EARLIEST, LATEST, LogOwner, PartitionLog
from logstore.manager import LogManager
from logstore.testing import FaultyStorage, SimulatedCrash
from logstore.verify import verify
from tests.support.builders import Disk
from tests.support.until import patience

SMALL = LogConfig(segment_bytes=300)
DAMAGED = (
    b"",
    b"0\n1\n5 -\n",
    b"0\n1\nx - - -\n",
    b"0\n1\n5 - 1 -\n",
    b"x" * 5000,
    b"0\n0\n",
)


def fill(log: PartitionLog, count: int, value: bytes = b"v") -> None:
    for _ in range(count):
        log.append([(None, value)])


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    opened = PartitionLog.open(tmp_path / "orders-0", SMALL)
    fill(opened, 30)
    yield opened
    opened.close()


def test_a_cursor_goes_on_where_it_was_committed(log: PartitionLog) -> None:
    cursor = log.cursor("billing")
    assert (cursor.position, cursor.committed) == (0, None)
    assert [record.offset for record in cursor.poll(4)] == [0, 1, 2, 3]
    assert next(cursor).offset == 4
    cursor.commit()
    cursor.poll(5)
    again = log.cursor("billing")
    assert (again.position, again.committed, cursor.position) == (5, 5, 10)
    again.commit(7)
    assert log.cursor("billing").position == 7
    assert log.cursor("mailing").position == 0


def test_it_survives_a_restart(tmp_path: Path) -> None:
    with PartitionLog.open(tmp_path / "orders-0", SMALL) as log:
        fill(log, 30)
        cursor = log.cursor("billing")
        cursor.poll(12)
        cursor.commit()
    for clean in (None, False):
        with PartitionLog.open(
            tmp_path / "orders-0", SMALL, owner=LogOwner(clean_shutdown=clean)
        ) as log:
            assert [r.offset for r in log.cursor("billing").poll(2)] == [12, 13]


def test_iteration_ends_at_the_log_end_and_goes_on(log: PartitionLog) -> None:
    cursor = log.cursor("billing")
    assert [record.offset for record in cursor] == list(range(30))
    fill(log, 1)
    assert [record.offset for record in cursor] == [30]
    threading.Timer(0.05, fill, (log, 1)).start()
    assert [record.offset for record in cursor.poll(timeout=patience())] == [31]
    assert cursor.poll(timeout=0.01) == []


def test_where_a_new_one_begins(log: PartitionLog) -> None:
    for start, position in ((None, 0), (EARLIEST, 0), (LATEST, 30), (7, 7)):
        assert log.cursor("billing", start=start).position == position


def test_deleted_below_the_position(log: PartitionLog) -> None:
    log.cursor("billing").commit(3)
    log.delete_records(20)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        log.cursor("billing").poll()
    assert not isinstance(caught.value, LogTruncatedError)
    cursor = log.cursor("billing", on_out_of_range="earliest")
    assert cursor.poll(1)[0].offset == 20
    cursor = log.cursor("billing", on_out_of_range="latest")
    assert cursor.poll() == []
    assert cursor.position == 30


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("more", [0, 20])
def test_cut_below_the_position(tmp_path: Path, more: int, restart: bool) -> None:
    """Whether or not other records have taken their place."""
    log = PartitionLog.open(tmp_path / "orders-0", SMALL)
    fill(log, 30)
    cursor = log.cursor("billing", on_out_of_range="earliest")
    cursor.poll(25)
    cursor.commit()
    log.truncate_to(20)
    fill(log, more, b"other")
    if restart:
        log.close()
        log = PartitionLog.open(tmp_path / "orders-0", SMALL)
        cursor = log.cursor("billing", on_out_of_range="earliest")
        assert cursor.position == 25
    for _ in range(2):
        with pytest.raises(LogTruncatedError):
            cursor.poll()
    cursor.seek(18)
    assert cursor.poll(1)[0].offset == 18
    cursor.commit()
    assert log.cursor("billing").poll(1)[0].offset == 19
    log.close()


def test_cut_above_the_position_is_no_concern(log: PartitionLog) -> None:
    log.cursor("billing").commit(10)
    log.truncate_to(10)
    fill(log, 3, b"new")
    assert [r.value for r in log.cursor("billing")] == [b"new"] * 3


def test_positions_that_may_not_be_committed(log: PartitionLog) -> None:
    cursor = log.cursor("billing")
    for position in (31, -1):
        with pytest.raises(LogTruncatedError):
            cursor.commit(position)
    cursor.commit(30)


def test_it_belongs_to_the_life_of_a_topic(tmp_path: Path) -> None:
    with LogManager([tmp_path], SMALL) as manager:
        log = manager.create_topic("orders", 1)[0]
        fill(log, 5)
        cursor = log.cursor("billing")
        cursor.poll()
        cursor.commit()
        data = Path(cursor.path).read_bytes()
        manager.delete("orders", 0)
        with pytest.raises(LogClosedError):
            cursor.poll()
        with pytest.raises(LogClosedError):
            cursor.commit()
        log = manager.get_or_create("orders", 0, topic_id=uuid.uuid4())
        fill(log, 10)
        assert log.cursor("billing").position == 0
        Path(log.cursor("billing").path).write_bytes(data)  # as from a backup
        with pytest.raises(CursorError, match="topic id"):
            log.cursor("billing")


def test_bad_input(log: PartitionLog) -> None:
    for name in ("", "a/b", "x" * 201, "a b", "ü"):
        with pytest.raises(CursorError):
            log.cursor(name)
    with pytest.raises(CursorError, match="earliest"):
        log.cursor("billing", on_out_of_range="first")
    path = Path(log.directory) / "billing.cursor"
    for data in DAMAGED:
        path.write_bytes(data)
        with pytest.raises(CursorError):
            log.cursor("billing")
    path.unlink()
    path.mkdir()
    with pytest.raises(CursorError):
        log.cursor("billing")


def test_a_closed_log(log: PartitionLog) -> None:
    cursor = log.cursor("billing")
    waiting = log.cursor("mailing")
    waiting.seek(30)
    threading.Timer(0.05, log.close).start()
    with pytest.raises(LogClosedError):
        waiting.poll(timeout=None)
    for call in (cursor.poll, cursor.commit, lambda: log.cursor("billing")):
        with pytest.raises(LogClosedError):
            call()


def test_a_commit_never_runs_ahead_of_the_log() -> None:
    """A power cut at any step leaves a position that the log reaches, and no older one than the
    last that was acknowledged."""
    step = 0
    while True:
        step += 1
        for mode in ("all_lost", "all_kept", "random"):
            disk = Disk()
            acknowledged = 0
            disk.storage.crash_after(step)
            try:
                log = disk.open(managed=True)
                for number in range(3):
                    fill(log, 4)
                    cursor = log.cursor("billing")
                    assert len(cursor.poll(3)) == 3
                    cursor.commit()
                    acknowledged = 3 * number + 3
                log.crash()
            except SimulatedCrash:
                disk.storage.crash(random.Random(step), mode)  # type: ignore[arg-type]
            else:
                return
            with disk.open(managed=True) as log:
                cursor = log.cursor("billing")
                assert acknowledged <= cursor.position <= log.log_end_offset
                cursor.poll()


def test_a_full_disk_keeps_the_old_position() -> None:
    disk = Disk()
    log = disk.open()
    fill(log, 5)
    log.cursor("billing").commit(2)
    disk.storage.fail("write", "*billing.cursor*")
    with pytest.raises(StorageFailedError):
        log.cursor("billing").commit(4)
    disk.storage.heal()
    log.crash()
    with disk.open() as log:
        assert log.cursor("billing").position == 2


CONSUMER = """
import sys
from logstore import PartitionLog
log = PartitionLog.open(sys.argv[1])
log.extend([(None, b"%d" % n) for n in range(1000)])
cursor = log.cursor("billing")
while True:
    cursor.poll(1)
    cursor.commit()
    print(cursor.position, flush=True)
"""


def test_kill_9(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    process = subprocess.Popen(
        [sys.executable, "-c", CONSUMER, str(directory)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    told = [int(process.stdout.readline()) for _ in range(40)]
    process.kill()
    rest, _ = process.communicate()
    told += [int(line) for line in rest.splitlines() if line.strip()]
    with PartitionLog.open(directory) as log:
        position = log.cursor("billing").position
        assert told[-1] <= position <= told[-1] + 1
        assert next(log.cursor("billing")).value == b"%d" % position


def test_two_of_one_name_in_two_threads() -> None:
    """They share a temporary file, so one commit waits for the other."""
    waiting = threading.Semaphore(0)
    writing, found = 0, []

    class Watched:
        """Tells who waits for it."""

        def __init__(self, rank: Rank) -> None:
            self._lock, self._rank = threading.Lock(), rank

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            if self._rank is Rank.CURSOR and self._lock.locked():
                waiting.release()
            return self._lock.acquire(blocking, timeout)

        def release(self) -> None:
            self._lock.release()

        def locked(self) -> bool:
            return self._lock.locked()

        def __enter__(self) -> bool:
            return self.acquire()

        def __exit__(self, *_: object) -> None:
            self.release()

    class Slow(FaultyStorage):
        def write_file(self, path: str, data: bytes) -> None:
            nonlocal writing
            if path.endswith(".cursor.tmp"):
                writing += 1
                found.append(writing)
                if len(found) == 1:
                    other.start()
                else:
                    waiting.release()
                assert waiting.acquire(timeout=patience())
                super().write_file(path, data)
                writing -= 1
            else:
                super().write_file(path, data)

    with replace_factory(Watched):
        log = PartitionLog.open("/d/t-0", storage=Slow())
        fill(log, 10)
        cursors = [log.cursor("billing"), log.cursor("billing")]
        other = threading.Thread(target=cursors[1].commit, args=(7,))
        cursors[0].commit(3)
        waiting.release()
        other.join(patience())
        assert found == [1, 1]
        assert log.cursor("billing").committed == 7
        log.append([(None, b"v")])
        log.close()


POLICIES = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


def compacted(manager: LogManager, rows: list[tuple[bytes, bytes | None]]) -> PartitionLog:
    log = manager.create_topic("t", 1, {"segment.bytes": "800"})[0]
    for row in rows:
        log.append([row, (b"other", b"x")])
    return log


@pytest.mark.parametrize("first", ["delete", "compact"])
@pytest.mark.parametrize("value", [b"v", None])
@pytest.mark.parametrize("place", [40, 75, 79])
def test_a_compaction_is_no_truncation(
    tmp_path: Path, place: int, value: bytes | None, first: str
) -> None:
    with LogManager([tmp_path], background=False) as manager:
        log = compacted(manager, [(b"k%d" % (n % 5), value) for n in range(40)])
        if first == "compact":
            manager.alter_topic("t", POLICIES)
        log.cursor("billing").commit(place)
        manager.alter_topic("t", POLICIES)
        log.roll()
        assert manager.cleaner.clean_filthiest() is not None
        manager.alter_topic("t", {"cleanup.policy": "delete"})
        assert manager.get("t", 0).cursor("billing").poll(1)
        findings = verify([str(tmp_path)]).findings
    assert not [finding for finding in findings if finding.rule == "cursor"]


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_cut_of_a_compacted_log_is_noticed(tmp_path: Path, policy: str) -> None:
    """Whatever a compaction leaves as it was tells two lives of a log apart."""
    with LogManager([tmp_path], background=False) as manager:
        log = compacted(manager, [(b"k%d" % (n % 5), b"v") for n in range(40)])
        manager.alter_topic("t", POLICIES)
        manager.cleaner.clean_filthiest()
        manager.alter_topic("t", {"cleanup.policy": policy})
        end = log.log_end_offset
        log.cursor("billing").commit(end)
        log.truncate_to(end - 4)
        for _ in range(2):
            log.append([(b"k", b"anew"), (b"k", b"other")])
        assert log.log_end_offset == end
        with pytest.raises(LogTruncatedError):
            log.cursor("billing").poll(1)
        rules = [finding.rule for finding in verify([str(tmp_path)]).findings]
    assert "cursor" in rules
