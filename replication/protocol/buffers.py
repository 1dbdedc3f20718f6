"""The ``records`` of a message: bytes, or a part of a file that is sent without a read."""

from __future__ import annotations

from typing import Protocol, TypeAlias

from logstore.common.types import Buffer


class SizedSlice(Protocol):
    """Bytes that lie elsewhere; their sender knows how to get them. ``size`` is in bytes."""

    @property
    def size(self) -> int: ...


Records: TypeAlias = Buffer | SizedSlice
Gathered: TypeAlias = list[Buffer | SizedSlice]


def size_of(records: Records) -> int:
    """Bytes that ``records`` has on the wire."""
    if isinstance(records, (bytes, bytearray, memoryview)):
        return len(records)
    return records.size
