"""A start after an unclean stop makes the names in all partition directories durable."""

from __future__ import annotations

import errno

import pytest

from logstore import LogConfig, LogManager
from logstore.common.config import BrokerConfig
from logstore.common.errors import StorageFailedError
from logstore.testing import FaultyStorage

RECORD = [(b"k", b"v")]


def start(storage: FaultyStorage, threads: int = 1) -> LogManager:
    config = BrokerConfig(num_recovery_threads_per_data_dir=threads)
    return LogManager(["/d"], LogConfig(), storage=storage, background=False, broker_config=config)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_file_that_the_dead_process_removed_does_not_come_back(threads: int) -> None:
    """It had not made that durable; only then the machine fails."""
    storage = FaultyStorage()
    with start(storage) as manager:
        for number in range(9):
            manager.get_or_create("t", number).append(RECORD)
    for number in range(9):
        storage.write_file(f"/d/t-{number}/00000000000000000007.log", b"")
        storage.sync_dir(f"/d/t-{number}")
        storage.remove(f"/d/t-{number}/00000000000000000007.log")
    storage.remove("/d/.kafka_cleanshutdown")
    storage.sync_dir("/d")
    start(storage, threads).crash()
    storage.crash(mode="all_lost")
    for number in range(9):
        names = [name for name, *_ in storage.scan_dir(f"/d/t-{number}")]
        assert "00000000000000000007.log" not in names


@pytest.mark.parametrize("threads", [1, 2])
def test_a_directory_whose_names_cannot_be_made_durable(threads: int) -> None:
    """As one whose log cannot be opened."""
    storage = FaultyStorage()
    manager = start(storage)
    for number in range(3):
        manager.get_or_create("t", number).append(RECORD)
    manager.crash()
    storage.fail("sync_dir", "/d/t-1", error=errno.EIO)
    with pytest.raises(StorageFailedError, match="t-1"):
        start(storage, threads)
