"""Files and windows stay as they are while somebody reads them (S-60)."""

from __future__ import annotations

import threading
from pathlib import Path

from logstore import LogConfig, PartitionLog
from logstore.gate import ReaderGate
from logstore.storage.local import LocalStorage

BATCH = [(b"k", bytes(1000))] * 300


def filled(tmp_path: Path) -> PartitionLog:
    log = PartitionLog.open(tmp_path / "t-0", LogConfig(segment_bytes=100 << 20))
    for _ in range(20):
        log.append(BATCH)
    return log


def test_a_file_is_closed_when_the_last_reader_leaves(tmp_path: Path) -> None:
    gate = ReaderGate()
    file = LocalStorage().open(str(tmp_path / "f"), create=True)
    with gate.reading():
        with gate.reading():
            gate.retire(file)
            assert file.fileno() >= 0
        assert file.fileno() >= 0
    assert file.fileno() == -1


def test_a_truncation_leaves_a_window_as_it_is(tmp_path: Path) -> None:
    """The bytes neither change nor fault, and the log goes on in another file."""
    with filled(tmp_path) as log:
        fetched = log.read(0, 5 << 20)
        with fetched.view() as window:
            before = bytes(window)
            assert len(before) > 4 << 20
            log.truncate_to(300)
            log.append([(b"other", b"data")] * 5000)
            assert bytes(window) == before
        assert [r.key for r in log.records(300, 302)] == [b"other", b"other"]
        log.check_invariants()


def test_a_deletion_leaves_a_window_as_it_is(tmp_path: Path) -> None:
    with filled(tmp_path) as log:
        with log.read(0, 5 << 20).view() as window:
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
