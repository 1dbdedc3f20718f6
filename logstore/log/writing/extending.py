"""Append any number of records, divided into batches that the topic allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from logstore.common.config import LogConfig
from logstore.common.errors import ConfigError, PartialAppendError, RecordRejectedError
from logstore.kernels import AppendInfo

BATCH_RECORDS = 1000
BATCH_BYTES = 128 << 10
_FIRST = 16  # records in the first batch; its size decides how many the next one gets

AppendBatch = Callable[[list[Any]], AppendInfo]


class ExtendInfo(NamedTuple):
    """The range that ``extend`` appended. Offsets are inclusive, −1 if there were no records.

    Other threads may have appended between the batches, so the range may hold their records too.
    """

    first_offset: int
    last_offset: int
    batch_count: int
    record_count: int
    size: int  # the batches in bytes

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
            batch, failure = _next_items(iterator, wanted)
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


def _next_items(iterator: Iterator[Any], count: int) -> tuple[list[Any], Exception | None]:
    """Up to ``count`` items, and the exception if the iterator failed."""
    batch: list[Any] = []
    try:
        for record in islice(iterator, count):
            batch.append(record)
    except Exception as error:
        return batch, error
    return batch, None


def _append_fitting(batch: list[Any], append: AppendBatch) -> Iterator[tuple[AppendInfo, int]]:
    """Append the batch, or its parts if it is refused, up to the record at fault.

    So a batch that turns out too large is no error.
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
