"""Plain twin of ``_partition``: the definition of which partition a column of keys goes to."""

from __future__ import annotations

from array import array
from typing import Any

from tests.reference.records import _column


def partition_column(
    partitioner: str, partition_count: int, stop: int, offsets: Any, data: Any, validity: Any
) -> bytearray:
    from logstore.common.partitioner import partitioner as by_name  # not at import: it needs mmh3

    if partitioner not in ("murmur2", "murmur3"):
        raise ValueError(f"unknown partitioner {partitioner!r}")
    if partition_count < 1 or stop < 0:
        raise ValueError(f"{stop} rows on {partition_count} partitions")
    place = by_name(partitioner).partition
    keys = _column(0, stop, offsets, data, validity, 4)
    partitions = array("i", [-1 if k is None else place(k, partition_count) for k in keys])
    return bytearray(partitions.tobytes())
