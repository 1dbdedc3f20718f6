"""An index that is damaged while its log is open: no reader and no truncation relies on it."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from logstore.common.config import LogConfig
from logstore.format import filenames
from logstore.log import PartitionLog
from logstore.segments.producer_state import AppendOrigin
from logstore.testing import FaultyStorage
from tests.support.builders import marker, produced
from tests.support.logs import check_invariants

CONFIG = LogConfig(index_interval_bytes=100)


def _change(storage: FaultyStorage, suffix: str, change: Callable[[bytes], bytes]) -> None:
    path = f"/d/t-0/{filenames.segment_file_name(0, suffix)}"
    file = storage.open(path)
    data = change(file.read_at(0, file.size()))
    file.truncate(0)
    file.write_at(0, data)
    file.close()


def _far_away(index: bytes) -> bytes:
    """Every entry leads behind the end of the log."""
    return b"".join(
        struct.pack(">ii", offset, 1 << 30) for offset, _ in struct.iter_unpack(">ii", index)
    )


def _first_entry(index: bytes) -> bytes:
    return index[:8]


@pytest.mark.parametrize("change", [_far_away, _first_entry])
def test_aborted_records_are_not_served_because_an_index_misleads(
    change: Callable[[bytes], bytes],
) -> None:
    storage = FaultyStorage()
    log = PartitionLog.open("/d/t-0", CONFIG, storage=storage)
    for sequence in range(10):
        log.append_as_leader(produced(sequence=sequence, transactional=True), 0)
        log.append_as_leader(marker(commit=False), 0, AppendOrigin.COORDINATOR)
    log.roll()
    _change(storage, ".index", change)

    data = log.read(0, log.size - 1, committed=True)

    assert data.records() == []
    assert len(data.aborted) == 10


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_truncation_rebuilds_an_index_that_is_cut_short(suffix: str) -> None:
    storage = FaultyStorage()
    log = PartitionLog.open("/d/t-0", CONFIG, storage=storage)
    for offset in range(50):
        log.append([(None, bytes(200), 1000 + offset)])
    log.roll()
    _change(storage, suffix, lambda index: index[:24])

    assert log.truncate_to(30)

    assert [r.offset for r in log.records()] == list(range(30))
    found = log.offset_for_timestamp(1020)
    assert found is not None
    assert found.offset == 20
    check_invariants(log)
    log.close()
