"""Appending any number of records: divided into batches that the topic allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from logstore.common.config import LogConfig
from logstore.common.errors import ConfigError, PartialAppendError, RecordRejectedError
from logstore.kernels import AppendInfo

BATCH_RECORDS = 1000
BATCH_BYTES = 128 << 10
_FIRST = 16  # records in the first batch, whose size says how many are in the next

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


def extend(
    name: str,
    records: Iterable[Any],
    append_batch: AppendBatch,
    config: LogConfig,
    batch_records: int,
    batch_bytes: int,
) -> ExtendInfo:
    """See ``PartitionLog.extend``."""
    if batch_records < 1:
        raise ConfigError(f"batch_records is {batch_records}, at least 1 is needed")
    if batch_bytes < 1:
        raise ConfigError(f"batch_bytes is {batch_bytes}, at least 1 is needed")
    largest = min(batch_bytes, config.max_message_bytes, config.segment_bytes)
    done = NOTHING
    try:
        iterator = iter(records)
        wanted = min(batch_records, _FIRST)
        while True:
            batch, failure = _take(iterator, wanted)
            if batch:
                before = done
                for info, count in _append_fitting(batch, append_batch):
                    done = done.plus(info, count)
                size = max(done.size - before.size, 1)
                fitting = largest * len(batch) // size  # if the next records are like these
            if failure is not None:
                raise failure
            if len(batch) < wanted:
                return done
            wanted = max(1, min(batch_records, fitting))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise PartialAppendError(name, done.record_count, done.last_offset, reason) from error


def _take(iterator: Iterator[Any], count: int) -> tuple[list[Any], Exception | None]:
    """Up to ``count`` of what it gives, and why there are no more if it failed."""
    batch: list[Any] = []
    try:
        for record in islice(iterator, count):
            batch.append(record)
    except Exception as error:
        return batch, error
    return batch, None


def _append_fitting(batch: list[Any], append: AppendBatch) -> Iterator[tuple[AppendInfo, int]]:
    """Append the batch, or, where it is refused, its parts: all before a record at fault go in.

    So a batch that turns out too large is no fault.
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
