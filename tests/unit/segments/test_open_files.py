"""Files and windows stay as they are while somebody reads them (S-60)."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest

from logstore import LogConfig, LogManager, PartitionLog
from logstore.common.errors import OffsetOutOfRangeError
from logstore.segments import open_files
from logstore.segments.open_files import LogFile, close_idle
from logstore.storage.local import LocalStorage
from logstore.verify import verify
from tests.support.leftovers import descriptors
from tests.support.logs import check_invariants

ROOT = Path(__file__).resolve().parents[3]

BATCH = [(b"k", bytes(1000))] * 300


def filled(tmp_path: Path) -> PartitionLog:
    log = PartitionLog.open(tmp_path / "t-0", LogConfig(segment_bytes=100 << 20))
    for _ in range(20):
        log.append(BATCH)
    return log


def test_a_file_is_closed_when_the_last_reader_leaves(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"bytes")
    log_file = LogFile(LocalStorage(), lambda: str(tmp_path / "f"))
    with log_file.held() as file:
        with log_file.held() as again:
            assert again is file
            log_file.retire()
            assert file.read_at(0, 5) == b"bytes"
        assert file.read_at(0, 5) == b"bytes"
        with pytest.raises(OSError, match="closed or removed"):
            log_file.hold()
    assert file.fileno() == -1


def test_files_that_nobody_reads_are_closed_when_there_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One log of many segments does not take all descriptors of the process."""
    monkeypatch.setattr(open_files, "_IDLE_MAX", 32)
    files = []
    for number in range(100):
        (tmp_path / str(number)).write_bytes(b"bytes")
        files.append(LogFile(LocalStorage(), lambda number=number: str(tmp_path / str(number))))
    with files[0].held() as kept:
        before = descriptors(tmp_path).total()
        for file in files[1:]:
            with file.held() as opened:
                assert opened.read_at(0, 5) == b"bytes"
        assert descriptors(tmp_path).total() <= before + open_files._IDLE_MAX
        assert kept.read_at(0, 5) == b"bytes"
    for file in files:
        file.retire()
    close_idle()


def test_a_truncation_leaves_a_window_as_it_is(tmp_path: Path) -> None:
    """The bytes neither change nor fault, and the log goes on in another file."""
    with filled(tmp_path) as log:
        with log.segments[0].file.window(0, 5 << 20) as window:
            before = bytes(window)
            assert len(before) > 4 << 20
            log.truncate_to(300)
            log.append([(b"other", b"data")] * 5000)
            assert bytes(window) == before
        assert [r.key for r in log.records(300, 302)] == [b"other", b"other"]
        check_invariants(log)


def test_a_deletion_leaves_a_window_as_it_is(tmp_path: Path) -> None:
    with filled(tmp_path) as log:
        with log.segments[0].file.window(0, 5 << 20) as window:
            before = bytes(window)
            log.maintenance.truncate_fully_and_start_at(9000)
            assert bytes(window) == before
        assert list(log.records()) == []


def test_readers_beside_truncations_see_only_what_was_written(tmp_path: Path) -> None:
    """Records of an older lineage may be seen, but whole and at their own offset."""
    log = filled(tmp_path)
    wrong: list[object] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            start = log.log_start_offset
            with suppress(OffsetOutOfRangeError):  # cut off below the place of the reader
                for record in log.records(start, start + 2000):
                    if record.value not in (bytes(1000), b"new"):
                        wrong.append(record)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(10):
        log.truncate_to(600)
        log.append([(b"k", b"new")] * 400)
        log.append(BATCH)
    stop.set()
    for reader in readers:
        reader.join()
    log.close()
    assert wrong == []


PARTITIONS = """
import resource, sys
from logstore import LogConfig, LogManager
hard, count, directory = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 128), hard))
for life in range(2):
    with LogManager([directory], LogConfig(segment_bytes=2000), background=False) as manager:
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        logs = [manager.get_or_create("t", number) for number in range(count)]
        for turn in range(3):
            for number, log in enumerate(logs):
                log.append([(None, b"%d" % number)] * 20)
        for log in logs[::7]:
            log.roll()
            log.append([(None, b"%d" % log.topic_partition.partition)] * 20)
        for log in logs[::5]:
            log.flush()
        for log in logs[::3]:
            log.truncate_to(log.log_end_offset - 5)
        for number, log in enumerate(logs):
            assert [r.value for r in log.records(0)] == [b"%d" % number] * log.log_end_offset
        assert not manager.offline_directories
    with LogManager([directory], background=False) as manager:
        assert not manager.unavailable_logs
        assert sum(report.bytes_scanned for report in manager.recovery_reports) == 0
        assert len(manager.topics()["t"]) == count
"""


@pytest.mark.slow
def test_more_logs_than_descriptors(tmp_path: Path) -> None:
    """All are appended to in turn, rolled, cut and closed; the soft limit is raised first."""
    directory = tmp_path / "logs"
    done = subprocess.run(
        [sys.executable, "-c", PARTITIONS, "256", "120", str(directory)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    report = verify([directory])
    assert report.clean, report.findings
    assert not report.findings


def test_an_append_gets_the_descriptors_of_files_that_nobody_reads(tmp_path: Path) -> None:
    """Otherwise logs that were once read keep those that rest from ever being written again."""
    config = LogConfig(segment_bytes=2000)
    with (
        PartitionLog.open(tmp_path / "read-0", config) as read,
        PartitionLog.open(tmp_path / "rests-0", config) as rests,
    ):
        rests.append([(None, b"first")])
        assert rests.writer.try_idle()
        for number in range(20):
            read.append([(None, b"%d" % number * 500)])
        assert len(list(read.records(0))) == 20
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
        try:
            rests.append([(None, b"second")])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert [record.value for record in rests.records(0)] == [b"first", b"second"]


def contents(directory: Path) -> dict[str, bytes]:
    """All but ``clean-stop``, which has the times of files."""
    files = [path for path in directory.iterdir() if path.name != "clean-stop"]
    return {path.name: path.read_bytes() for path in files if path.is_file()}


@pytest.mark.parametrize("preallocate", [False, True])
def test_a_log_that_rests_becomes_what_it_would_have_become(
    tmp_path: Path, preallocate: bool
) -> None:
    """Byte by byte, after appends, a roll, a cut and a clean stop, wherever it rests."""
    config = LogConfig(segment_bytes=20_000, index_interval_bytes=500, preallocate=preallocate)
    found = []
    for name, rests in (("a", False), ("b", True)):
        directory = tmp_path / name / "t-0"
        directory.mkdir(parents=True)
        with PartitionLog.open(directory, config) as log:

            def rest(log: PartitionLog = log, rests: bool = rests) -> None:
                if rests:
                    assert log.writer.try_idle()
                    assert not log.state.segments.active.state.attached

            for number in range(40):
                log.append([(b"k", b"x" * 900, 1_000_000 + number)])
                rest()
            assert log.log_end_offset == 40
            log.truncate_to(35)
            log.append([(b"k", b"y", 2_000_000)])
            rest()
            log.roll()
            rest()
            log.append([(b"k", b"z", 3_000_000)] * 3)
            log.flush()
            rest()
            assert [r.offset for r in log.records(0)] == list(range(39))
            assert log.offset_for_timestamp(2_000_000).offset == 35
            rest()
        found.append(contents(directory))
    assert found[0].keys() == found[1].keys()
    for file, data in found[0].items():
        assert found[1][file] == data, file


def test_who_works_on_a_log_keeps_its_descriptors(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    with PartitionLog.open(tmp_path / "t-0") as log:
        log.append([(None, b"v")])
        with log.state.lock:
            assert not log.writer.try_idle()
        state = log.state.segments.active.state
        state.cut_pending = True
        assert not log.writer.try_idle()
        state.cut_pending = False
        assert state.attached
        assert log.writer.try_idle()
    assert not log.writer.try_idle()


def test_the_oldest_rest_where_too_many_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    class Log:
        def __init__(self, busy: bool = False) -> None:
            self.busy, self.rested = busy, 0

        def try_idle(self) -> bool:
            self.rested += not self.busy
            return not self.busy

    monkeypatch.setattr(open_files, "_active", WeakKeyDictionary())
    monkeypatch.setattr(open_files, "_ACTIVE_MAX", 3)
    logs = [Log(busy=number == 1) for number in range(6)]
    for log in logs[:3]:
        open_files.opened_for_appends(log)
    open_files.opened_for_appends(logs[0])  # again: now the youngest
    assert [log.rested for log in logs] == [0] * 6
    open_files.opened_for_appends(logs[3])  # the oldest is busy
    assert [log.rested for log in logs] == [0] * 6
    open_files.opened_for_appends(logs[4])
    assert [log.rested for log in logs] == [0, 0, 1, 0, 0, 0]
    open_files.closed_for_appends(logs[1])
    open_files.opened_for_appends(logs[5])
    assert [log.rested for log in logs] == [1, 0, 1, 0, 0, 0]
    assert list(open_files._active) == logs[3:]


@pytest.mark.slow
def test_logs_rest_under_each_other_s_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two may be open for appends, and four threads work on six: nothing is lost or swapped."""
    monkeypatch.setattr(open_files, "_shares", lambda: (16, 2, 16))
    monkeypatch.setattr(open_files, "_active", WeakKeyDictionary())
    config = LogConfig(segment_bytes=4000, index_interval_bytes=200)
    model: list[list[bytes]] = [[] for _ in range(6)]
    failures: list[BaseException] = []
    with LogManager([tmp_path], config, background=False) as manager:
        logs = [manager.get_or_create("t", number) for number in range(len(model))]
        turns = [threading.Lock() for _ in logs]

        def work(seed: int) -> None:
            chance = random.Random(seed)
            try:
                for step in range(150):
                    number = chance.randrange(len(logs))
                    log = logs[number]
                    with turns[number]:
                        values = [b"%d %d" % (seed, step)] * chance.randrange(1, 9)
                        log.append([(None, value) for value in values])
                        model[number] += values
                        if chance.random() < 0.1:
                            log.truncate_to(chance.randrange(log.log_end_offset + 1))
                            del model[number][log.log_end_offset :]
                        if chance.random() < 0.1:
                            log.roll()
                        start = max(0, len(model[number]) - 20)
                        assert [r.value for r in log.records(start)] == model[number][start:]
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert sum(log.state.segments.active.state.attached for log in logs) <= 3
    report = verify([tmp_path])
    assert report.clean, report.findings
    with LogManager([tmp_path], background=False) as manager:
        for number, values in enumerate(model):
            assert [r.value for r in manager.get("t", number).records(0)] == values
