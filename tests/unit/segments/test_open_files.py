"""Files and windows stay as they are while somebody reads them (S-60)."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from logstore import LogConfig
from logstore.common.errors import OffsetOutOfRangeError
from logstore.log import ReplicaLog
from logstore.segments import open_files
from logstore.segments.open_files import LogFile, close_idle
from logstore.storage.local import LocalStorage

BATCH = [(b"k", bytes(1000))] * 300


def filled(tmp_path: Path) -> ReplicaLog:
    log = ReplicaLog.open(tmp_path / "t-0", LogConfig(segment_bytes=100 << 20))
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
        before = psutil.Process().num_fds()
        for file in files[1:]:
            with file.held() as opened:
                assert opened.read_at(0, 5) == b"bytes"
        assert psutil.Process().num_fds() <= before + open_files._IDLE_MAX
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
        log.check_invariants()


def test_a_deletion_leaves_a_window_as_it_is(tmp_path: Path) -> None:
    with filled(tmp_path) as log:
        with log.segments[0].file.window(0, 5 << 20) as window:
            before = bytes(window)
            log.truncate_fully_and_start_at(9000)
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

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(30):
        log.truncate_to(600)
        log.append([(b"k", b"new")] * 400)
        log.append(BATCH)
    stop.set()
    for reader in readers:
        reader.join()
    log.close()
    assert wrong == []
