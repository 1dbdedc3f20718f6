"""A stored segment shown up to an offset, where the next one begins.

The cut is at the border of a batch, found by the offset index. Both segments have the batch behind
it, and it must be the same one: else they are of two histories, whatever their epochs say.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

from logstore.common.errors import CorruptBatchError, CorruptIndexError
from logstore.format.header import HEADER_SIZE, BatchHeader, parse_header
from logstore.format.index_entry import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    TXN_ENTRY,
    decode_aborted,
    used_offset_entries,
)
from logstore.storage.base import File
from logstore.tiers.errors import broken


def headers_from(file: File, position: int) -> Iterator[BatchHeader]:
    """The batches of a ``.log`` from one that begins at ``position`` on.

    Raises:
        BrokenTierError: there is none, as in a segment of magic 0 or 1, or the log ends inside it.
    """
    size = file.size()
    while position < size:
        data = file.read_at(position, HEADER_SIZE)
        try:
            header = parse_header(data)
        except CorruptBatchError as error:
            raise broken(file.path, f"at byte {position}: {error.reason}") from None
        if header.size > size - position:
            raise broken(file.path, f"at byte {position}: the log ends inside a batch")
        yield replace(header, position=position)
        position += header.size


def position_before(index: bytes, base_offset: int, offset: int) -> int:
    """Where in the log a search for ``offset`` begins: the entry of the index below it, or 0."""
    low, high = 0, used_offset_entries(index)
    while low < high:
        middle = (low + high) // 2
        if base_offset + OFFSET_ENTRY.unpack_from(index, middle * OFFSET_ENTRY.size)[0] <= offset:
            low = middle + 1
        else:
            high = middle
    if not low:
        return 0
    position: int = OFFSET_ENTRY.unpack_from(index, (low - 1) * OFFSET_ENTRY.size)[1]
    return position


def end_of(log: File, index: bytes, base_offset: int) -> int:
    """The offset after the last batch of a log."""
    end = base_offset
    for header in headers_from(log, position_before(index, base_offset, 2**63 - 1)):
        end = header.next_offset
    return end


def border_at(log: File, index: bytes, base_offset: int, offset: int, following: File) -> int:
    """The position in ``log`` of the batch with which ``following`` begins, at ``offset``.

    Raises:
        BrokenTierError: no batch ends before that offset, or another one follows.
    """
    for header in headers_from(log, position_before(index, base_offset, offset - 1)):
        if header.next_offset <= offset:
            continue
        if header.base_offset < offset:
            break
        own = log.read_at(header.position, HEADER_SIZE)
        if following.size() and following.read_at(0, HEADER_SIZE) != own:
            raise broken(
                log.path,
                f"the batch at offset {header.base_offset} is another one in {following.path}: "
                "the segments are of two histories",
            )
        return header.position
    raise broken(log.path, f"no batch begins at offset {offset}, where {following.path} begins")


def cut_offset_index(data: bytes, position: int) -> bytes:
    """The entries of batches that begin below ``position`` of the log."""
    entries = OFFSET_ENTRY.iter_unpack(data[: used_offset_entries(data) * OFFSET_ENTRY.size])
    count = sum(1 for _, at in entries if at < position)
    return data[: count * OFFSET_ENTRY.size]


def cut_time_index(data: bytes, base_offset: int, offset: int) -> bytes:
    """The entries of records below ``offset``."""
    whole = len(data) // TIME_ENTRY.size * TIME_ENTRY.size
    count = 0
    for timestamp, relative in TIME_ENTRY.iter_unpack(data[:whole]):
        if base_offset + relative >= offset or (not timestamp and count):
            break
        count += 1
    return data[: count * TIME_ENTRY.size]


def cut_txn_index(data: bytes, offset: int, path: str) -> bytes:
    """The transactions whose markers lie below ``offset``."""
    try:
        aborted = decode_aborted(data, path)
    except CorruptIndexError as error:
        raise broken(path, error.reason) from None
    count = sum(1 for each in aborted if each.last_offset < offset)
    return data[: count * TXN_ENTRY.size]


def read_all(file: File) -> bytes:
    """The content of a small file, which is closed."""
    with closing(file):
        return file.read_at(0, file.size())


__all__ = [
    "border_at",
    "cut_offset_index",
    "cut_time_index",
    "cut_txn_index",
    "end_of",
    "headers_from",
    "position_before",
    "read_all",
]
