"""Appending any number of records: divided into batches that the topic allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from logstore.config import LogConfig
from logstore.errors import ConfigError, PartialAppendError, RecordRejectedError
from logstore.format.batch import HEADER_SIZE
from logstore.kernels import AppendInfo
from logstore.types import Record

BATCH_BYTES = 128 << 10
_RECORD_OVERHEAD = 14  # mostly less, beside key, value and headers (F-71)
_HEADER_OVERHEAD = 4

AppendBatch = Callable[[list[Any]], AppendInfo]


class ExtendInfo(NamedTuple):
    """What ``extend`` appended; offsets are inclusive, −1 if there were no records.

    Others may have appended between the batches: not all offsets from first to last need be ours.
    """

    first_offset: int
    last_offset: int
    batch_count: int
    record_count: int
    size: int  # bytes of the batches

    def plus(self, info: AppendInfo, record_count: int) -> ExtendInfo:
        return ExtendInfo(
            self.first_offset if self.batch_count else info.first_offset,
            info.last_offset,
            self.batch_count + 1,
            self.record_count + record_count,
            self.size + info.size,
        )


NOTHING = ExtendInfo(-1, -1, 0, 0, 0)


def largest_batch(config: LogConfig) -> int:
    return min(config.max_message_bytes, config.segment_bytes)


def extend(
    name: str,
    records: Iterable[Any],
    append_batch: AppendBatch,
    config: LogConfig,
    batch_records: int | None,
    batch_bytes: int | None,
) -> ExtendInfo:
    """See ``PartitionLog.extend``."""
    if batch_records is not None and batch_records < 1:
        raise ConfigError(f"batch_records is {batch_records}, at least 1 is needed")
    if batch_bytes is not None and batch_bytes < 1:
        raise ConfigError(f"batch_bytes is {batch_bytes}, at least 1 is needed")
    largest = min(batch_bytes or BATCH_BYTES, largest_batch(config))
    done = NOTHING
    try:
        for batch in batches(records, batch_records or 2**31 - 1, largest):
            for info, count in _append_fitting(batch, append_batch):
                done = done.plus(info, count)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise PartialAppendError(name, done.record_count, done.last_offset, reason) from error
    return done


def batches(records: Iterable[Any], most_records: int, most_bytes: int) -> Iterator[list[Any]]:
    """``records`` in lists that are about as large as the limits allow, once encoded.

    A record that is too large stands alone. If ``records`` fails, what it gave comes first.
    """
    batch: list[Any] = []
    size = HEADER_SIZE
    failure: Exception | None = None
    iterator = iter(records)
    while True:
        try:
            record = next(iterator)
        except StopIteration:
            break
        except Exception as error:
            failure = error
            break
        needed = about_size(record)
        if batch and (len(batch) >= most_records or size + needed > most_bytes):
            yield batch
            batch, size = [], HEADER_SIZE
        batch.append(record)
        size += needed
    if batch:
        yield batch
    if failure is not None:
        raise failure


def about_size(record: Any) -> int:
    """Bytes that the record takes; of one that cannot be encoded, anything."""
    headers: Any
    try:
        if isinstance(record, Record):
            key, value, headers = record.key, record.value, record.headers
        else:
            key, value = record[0], record[1]
            headers = record[3] if len(record) > 3 else None
        size = _RECORD_OVERHEAD
        if key is not None:
            size += len(key)
        if value is not None:
            size += len(value)
        for header, content in headers or ():
            size += _HEADER_OVERHEAD + len(header) + (0 if content is None else len(content))
    except (TypeError, ValueError, IndexError):
        return _RECORD_OVERHEAD
    return size


def _append_fitting(batch: list[Any], append: AppendBatch) -> Iterator[tuple[AppendInfo, int]]:
    """Append the batch, or, where it is refused, its parts: all before a record at fault go in.

    So the size of a batch may be a guess.
    """
    try:
        info = append(batch)
    except RecordRejectedError:
        if len(batch) == 1:
            raise
    else:
        yield info, len(batch)
        return
    middle = len(batch) // 2
    yield from _append_fitting(batch[:middle], append)
    yield from _append_fitting(batch[middle:], append)
