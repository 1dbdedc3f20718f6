"""Result codes, column names and errors that both implementations of the kernels share.

The numbers are those of ``batch_layout.h``; a test compares them.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from logstore.common.bounds import BATCH_MAX
from logstore.common.errors import CorruptBatchError, InvalidRecordError

HEADER_SIZE: Final = 61
"""Bytes before the records of a magic-2 batch (F-61)."""

RECORD_SIZE_MIN: Final = 7
"""One byte for each field of an empty record (F-71): what bounds a claimed record count."""

RECORDS_SIZE_MAX: Final = BATCH_MAX - HEADER_SIZE

SCAN_COLUMNS: Final = (
    "position",
    "size",
    "base_offset",
    "last_offset",
    "base_timestamp",
    "max_timestamp",
    "leader_epoch",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "attributes",
    "record_count",
    "magic",
    "crc",
    "valid",
)

SCAN_END: Final = 0
"""The data ends at a batch boundary."""
SCAN_TAIL: Final = 1
"""1 to 16 bytes are left: less than a header."""
SCAN_INCOMPLETE: Final = 2
"""The framed size of the next batch runs past the data."""
SCAN_FULL: Final = 3
"""The room for results is used up."""
SCAN_BAD_SIZE: Final = 4
SCAN_BAD_CRC: Final = 5
SCAN_BAD_MAGIC: Final = 6
SCAN_BAD_HEADER: Final = 7
SCAN_BAD_OFFSET: Final = 8

SCAN_REASONS: Final = {
    SCAN_END: "end of the log",
    SCAN_TAIL: "fewer bytes than a batch header",
    SCAN_INCOMPLETE: "a batch runs past the end of the file",
    SCAN_FULL: "more batches follow",
    SCAN_BAD_SIZE: "a batch size below the minimum",
    SCAN_BAD_CRC: "a checksum that does not match",
    SCAN_BAD_MAGIC: "an unknown magic",
    SCAN_BAD_HEADER: "header fields that contradict each other",
    SCAN_BAD_OFFSET: "an offset that does not follow the one before or does not fit the segment",
}
"""Why a scan stopped, in words."""

RUN_END: Final = 0  # of the cleaner's kernels: no whole batch is left
RUN_SPECIAL: Final = 1  # the batch must be unpacked, or its transaction judged
RUN_FULL: Final = 2

DECODE_END: Final = 0
"""No whole batch is left."""
DECODE_FULL: Final = 1
"""As much as was asked for, at a batch boundary."""
DECODE_SPECIAL: Final = 2
"""The batch at ``next_position`` is compressed, a control batch or of an older format."""
DECODE_LIMIT: Final = 3
"""``end_offset`` is reached."""

PRODUCER_ROWS_MAX: Final = 65_536


class BatchSurvey(NamedTuple):
    """A summary of a table of batch headers. Rows are numbered from 0.

    Timestamps go by the headers, in ms: the smallest that is not negative, −1 if there is none,
    and the largest. Only batches of magic 2 count for holes, producers and control batches.
    """

    records: int
    holes: bool
    """Compaction took records out of a batch (F-92)."""
    horizons: bool
    """A batch has a delete horizon (F-95), or the bit of one."""
    odd: list[int]
    """Rows with header fields that contradict each other."""
    gaps: list[int] | None
    """Rows before which offsets are missing. None when offsets do not ascend, from the one that
    is due, inside the range of the segment."""
    epochs: list[int]
    """Rows at which a run of equal leader epochs begins, 0 among them."""
    controls: list[int]
    producers: bool
    transactional: bool
    min_timestamp: int
    max_timestamp: int


RECORD_LENGTH: Final = 1
RECORD_FIELD: Final = 2
RECORD_EXCESS: Final = 3
RECORD_OFFSET: Final = 4
RECORD_COUNT: Final = 5
RECORD_TRAILING: Final = 6

_RECORD_REASONS: Final = {
    RECORD_LENGTH: "record length is malformed or runs past the batch",
    RECORD_FIELD: "record field is malformed or runs past the record",
    RECORD_EXCESS: "bytes remain inside the record",
    RECORD_OFFSET: "offset deltas do not ascend",
    RECORD_COUNT: "the batch is too short for its record count",
    RECORD_TRAILING: "bytes remain after the last record",
}


def record_error(code: int, position: int) -> CorruptBatchError:
    """The error for a violation of F-73; ``position`` is where the record starts."""
    return CorruptBatchError("", position, _RECORD_REASONS[code])


def batch_error(status: int, data: memoryview, position: int) -> CorruptBatchError:
    """The error for the batch at ``position`` of ``data``, with the values that are wrong."""
    header = bytes(data[position : position + HEADER_SIZE])
    size, magic = _integer(header, 8, 4), _integer(header, 16, 1)
    if status == SCAN_BAD_SIZE:
        reason = f"batch size {size} is below 14"
    elif status == SCAN_BAD_MAGIC:
        reason = f"magic {magic} is not 0, 1 or 2"
    elif status == SCAN_BAD_CRC:
        stored = _integer(header, 17 if magic == 2 else 12, 4) & 0xFFFF_FFFF
        reason = f"checksum does not match the stored 0x{stored:08x}"
    elif status == SCAN_BAD_OFFSET:
        reason = f"offsets that start at {_integer(header, 0, 8)} leave the range of offsets"
    elif magic == 2 and size + 12 >= HEADER_SIZE:
        count, delta = _integer(header, 57, 4), _integer(header, 23, 4)
        reason = f"record count {count} or last offset delta {delta} is negative"
    else:
        reason = f"batch size {size} is too small for magic {magic}"
    return CorruptBatchError("", position, reason)


def _integer(data: bytes, position: int, size: int) -> int:
    return int.from_bytes(data[position : position + size], "big", signed=True)


# ---- what both twins say about records that cannot be encoded ----

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

TIMESTAMPS_KIND: Final = (
    "timestamps must be None, an int in ms, an aware datetime, a list or tuple of these, "
    "or a buffer of int64, not %s"
)


def take_sequence(items: Iterable[Any], name: str) -> tuple[Any, ...]:
    """All of ``items`` as a tuple, iterated once, so that a generator works like a list.

    Raises:
        InvalidRecordError: it is not iterable. Errors of its iterator are not changed.
    """
    if isinstance(items, (list, tuple)):
        return tuple(items)
    try:
        iterator = iter(items)
    except TypeError:
        kind = type(items).__name__
        raise InvalidRecordError(f"{name} must be an iterable, not {kind}") from None
    return tuple(iterator)


def timestamp_ms(timestamp: Any) -> int:
    """An aware datetime in ms since the epoch, rounded down, or an integer as it is.

    Raises:
        TypeError: neither of the two.
        ValueError: a datetime without a time zone, or before 1970 (−1 would mean "none").
    """
    if isinstance(timestamp, datetime):
        if timestamp.utcoffset() is None:
            raise ValueError(f"timestamp {timestamp} has no time zone")
        milliseconds = (timestamp - _EPOCH) // _MILLISECOND
        if milliseconds < 0:
            raise ValueError(f"timestamp {timestamp} is before 1970")
        return milliseconds
    try:
        return operator.index(timestamp)
    except TypeError:
        kind = type(timestamp).__name__
        hint = "; headers are the fourth" if isinstance(timestamp, (list, tuple, dict)) else ""
        raise TypeError(
            f"a timestamp must be an int in ms or an aware datetime, not {kind}{hint}"
        ) from None


def record_refused(index: int, error: Exception) -> InvalidRecordError:
    """The error for the record at ``index``; ``error`` says what is wrong with it."""
    return InvalidRecordError("the records cannot be encoded", ((index, str(error)),))


def records_lack_keys(indexes: Iterable[int]) -> InvalidRecordError:
    why = "a compacted topic needs a key"
    return InvalidRecordError("records without key", tuple((i, why) for i in indexes))


def lengths_differ(keys: int, values: int, timestamps: int, headers: int) -> InvalidRecordError:
    return InvalidRecordError(
        f"{keys} keys, {values} values, {timestamps} timestamps and {headers} headers: "
        "the lists differ in length"
    )
