"""A length that reaches past the end of a segment ends no read in silence."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logstore import LogConfig, LogManager, PartitionLog
from logstore.common.errors import CorruptBatchError

BATCHES, DAMAGED = 60, 30
CONFIG = LogConfig(index_interval_bytes=256)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A cleanly closed log; the length of one batch in the middle reaches past the file."""
    with LogManager([tmp_path], CONFIG) as manager:
        log = manager.get_or_create("orders", 0)
        for number in range(BATCHES):
            log.append([(b"%d" % number, bytes(50))])
    path = tmp_path / "orders-0" / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    position = 0
    for _ in range(DAMAGED):
        position += 12 + struct.unpack_from(">i", data, position + 8)[0]
    data[position + 8] = 0x10
    path.write_bytes(data)
    return tmp_path


READS: dict[str, Callable[[PartitionLog], Any]] = {
    "records": lambda log: list(log.records()),
    "chunks": lambda log: list(log.record_chunks()),
    "arrow": lambda log: list(log.to_arrow()),
    "read": lambda log: log.read(DAMAGED),
    "follow": lambda log: list(log.follow(timeout=0)),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_every_read_tells(root: Path, read: Callable[[PartitionLog], Any]) -> None:
    with LogManager([root], CONFIG) as manager:
        log = manager.get("orders", 0)
        assert log.recovery_report.clean
        assert log.log_end_offset == BATCHES
        with pytest.raises(CorruptBatchError):
            read(log)
        assert [r.offset for r in log.records(end_offset=DAMAGED)] == list(range(DAMAGED))
