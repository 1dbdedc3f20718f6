"""Threads that meet at one log, or at the checkpoints of one directory."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from logstore.common.errors import LogstoreError
from logstore.manager import LogManager
from logstore.storage.base import File
from logstore.storage.local import LocalStorage


@pytest.mark.slow
def test_checkpoints_are_written_one_after_the_other(tmp_path: Path) -> None:
    """F-11, F-26: fetchers that truncate, and the periodic work, write the same files."""
    with LogManager([tmp_path]) as manager:
        manager.get_or_create("orders", 0).append([(None, b"v")])

        def write() -> None:
            for _ in range(15):
                manager.housekeeper.checkpoint_recovery_points()
                manager.housekeeper.checkpoint_log_start_offsets()

        threads = [threading.Thread(target=write) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert manager.offline_directories == {}


class _Opened(LocalStorage):
    """Keeps what was opened."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[File] = []

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        file = super().open(path, create=create, writable=writable)
        self.files.append(file)
        return file


def test_a_reader_opens_nothing_of_a_log_that_was_closed(tmp_path: Path) -> None:
    """It hears that the log is closed; no descriptor stays behind."""
    with LogManager([tmp_path]) as manager:
        manager.get_or_create("orders", 0).append([(None, b"v")])
    storage = _Opened()
    manager = LogManager([tmp_path], storage=storage)
    log = manager.get("orders", 0)
    segment = log.segments[-1]
    manager.crash()
    opened = len(storage.files)
    with pytest.raises(OSError, match="closed"):
        segment.file.hold()
    with pytest.raises(LogstoreError, match="closed"):
        log.read(0)
    assert len(storage.files) == opened
    assert manager.offline_directories == {}
