"""Control records: keys and the values of end-transaction markers (F-78…F-81)."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from logstore.common.errors import CorruptBatchError
from logstore.common.types import Buffer
from logstore.format.header import HEADER_SIZE, parse_header
from logstore.kernels import decode_records

_KEY = struct.Struct(">hh")
_MARKER = struct.Struct(">hi")
_VERSION = struct.Struct(">h")

assert (_KEY.size, _MARKER.size) == (4, 6)


class ControlType(IntEnum):
    """The second number of a control key. ``UNKNOWN`` stands for types of later releases.

    Types from ``LEADER_CHANGE`` on occur only in the Raft metadata log; a partition log never
    needs to parse their values (F-79).
    """

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6
    UNKNOWN = -1


class EndTransactionMarker(NamedTuple):
    control_type: ControlType
    coordinator_epoch: int

    @property
    def is_commit(self) -> bool:
        return self.control_type is ControlType.COMMIT


def encode_control_key(control_type: ControlType) -> bytes:
    return _KEY.pack(0, control_type)


def encode_marker_value(coordinator_epoch: int) -> bytes:
    return _MARKER.pack(0, coordinator_epoch)


def parse_control_key(key: Buffer | None) -> ControlType:
    """A newer key version is read as long as it starts the same.

    Raises:
        CorruptBatchError: no key, fewer than 4 bytes, or a negative version.
    """
    if key is None or len(key) < _KEY.size:
        raise CorruptBatchError("", 0, "control record key shorter than 4 bytes")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptBatchError("", 0, f"control record key version {version}")
    return ControlType(number) if 0 <= number <= ControlType.KRAFT_VOTERS else ControlType.UNKNOWN


def parse_marker(key: Buffer | None, value: Buffer | None) -> EndTransactionMarker | None:
    """The transaction marker in a control record; ``None`` when it is of another type (F-80).

    Raises:
        CorruptBatchError: a malformed key or value.
    """
    control_type = parse_control_key(key)
    if control_type not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    if value is None or len(value) < _VERSION.size or _VERSION.unpack_from(value)[0] < 0:
        raise CorruptBatchError("", 0, "transaction marker without a valid version")
    if len(value) < _MARKER.size:
        raise CorruptBatchError("", 0, f"transaction marker of {len(value)} bytes")
    return EndTransactionMarker(control_type, _MARKER.unpack_from(value)[1])


def parse_end_transaction_marker(batch: Buffer) -> tuple[bool, int] | None:
    """``(is commit, coordinator epoch)`` of a whole control batch; ``None`` for other types.

    Raises:
        CorruptBatchError: the batch, or the control record in it, is malformed.
    """
    header = parse_header(batch)
    records = decode_records(
        memoryview(batch)[HEADER_SIZE : header.size],
        header.base_offset,
        header.base_timestamp,
        header.record_count,
        None,
        0,
    )
    if not records:
        return None  # the marker was compacted away, the batch kept for its producer (F-305)
    marker = parse_marker(records[0].key, records[0].value)
    return None if marker is None else (marker.is_commit, marker.coordinator_epoch)
