"""Segments that recovery had to divide (F-243), judged by Kafka's own tools."""

from __future__ import annotations

from pathlib import Path

import kafka_tools
import pytest
import reading

from logstore import LogConfig
from logstore.format.batch import encode_batch
from logstore.log import PartitionLog

pytestmark = pytest.mark.slow

JUMPS = (0, 2**31 + 7, 2**33)
BATCHES = 40


def test_kafka_accepts_the_pieces_of_a_wide_segment(kafka: str, tmp_path: Path) -> None:
    """Batches, indexes entry by entry and producer snapshots; each piece as long as Kafka's own."""
    directory = tmp_path / "wide-0"
    directory.mkdir()
    data = b"".join(
        encode_batch(
            [(b"k", b"v" * 100, 1_700_000_000_000 + at)],
            base_offset=base + at,
            leader_epoch=0,
            producer_id=7,
            producer_epoch=0,
            base_sequence=jump * BATCHES + at,
        )
        for jump, base in enumerate(JUMPS)
        for at in range(BATCHES)
    )
    (directory / f"{0:020}.log").write_bytes(data)
    config = LogConfig(index_interval_bytes=512, retention_ms=-1)
    with PartitionLog.open(str(directory), config) as log:
        assert log.recovery_report.segments_split == 1
        assert [segment.base_offset for segment in log.segments] == list(JUMPS)
    logs = sorted(directory.glob("*.log"))
    assert [path.stat().st_size for path in logs] == [len(data) // 3] * 3
    assert all(path.with_suffix(".index").stat().st_size for path in logs)
    paths = reading.sorted_files([directory], ".log", ".snapshot")
    assert kafka_tools.index_sanity(paths) == []
