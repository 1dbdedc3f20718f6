"""Plain twin of ``_times``: times of records without decoding them."""

from __future__ import annotations

from typing import Any

from logstore.common.errors import CorruptBatchError
from logstore.common.types import Buffer
from logstore.kernels._constants import HEADER_SIZE, SCAN_COLUMNS
from tests.reference.records import decode_varint, decode_varlong

_LOG_APPEND_TIME, _CODEC = 0x08, 0x07
_MAGIC = 2


def batches_entirely_after(data: Buffer, columns: Any, rows: int, timestamp: int) -> bytearray:
    view = memoryview(data).cast("B")
    cells = memoryview(columns).cast("B").cast("q")
    capacity = len(cells) // len(SCAN_COLUMNS)
    if not 0 <= rows <= capacity:
        raise ValueError(f"{rows} rows of a table with room for {capacity}")

    def is_late(row: int) -> bool:
        at = {name: cells[n * capacity + row] for n, name in enumerate(SCAN_COLUMNS)}
        end = at["position"] + at["size"]
        if at["max_timestamp"] < timestamp or at["magic"] != _MAGIC:
            return False
        if at["position"] < 0 or at["size"] < HEADER_SIZE or end > len(view):
            return False
        if at["attributes"] & _LOG_APPEND_TIME:
            return True
        if at["attributes"] & _CODEC:
            return False
        records = view[at["position"] + HEADER_SIZE : end]
        return _records_are_late(records, at["record_count"], at["base_timestamp"], timestamp)

    return bytearray(is_late(row) for row in range(rows))


def _records_are_late(records: memoryview, count: int, base_timestamp: int, timestamp: int) -> bool:
    position = 0
    try:
        for _ in range(count):
            length, position = decode_varint(records, position)
            record = records[position : position + length]
            if length < 2 or len(record) < length:
                return False
            delta, _ = decode_varlong(record, 1)  # behind the attributes
            time = (base_timestamp + delta + 2**63) % 2**64 - 2**63
            if time < timestamp:
                return False
            position += length
    except CorruptBatchError:
        return False
    return position == len(records)
