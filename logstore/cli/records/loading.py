"""Rows of an export, appended to logs: for ``logstore import``. Imports pyarrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa

from checkpoints.printable import printable
from logstore.cli.common.interrupts import Interrupts
from logstore.cli.records.batching import BATCH_BYTES, RECORD_OVERHEAD, record_size
from logstore.cli.records.files import ExportFileError, Format, read_rows
from logstore.common.errors import LogstoreError
from logstore.log import PartitionLog

_BATCH_RECORDS = 5_000


class ImportFailedError(LogstoreError):
    """A log refused a record of the file, or does not have all of them afterwards."""


@dataclass(slots=True)
class Content:
    """The content of a file: its topics, and the number of rows of each partition."""

    topics: set[str] = field(default_factory=set)
    rows: Counter[int] = field(default_factory=Counter)


def survey(path: str, form: Format, interrupts: Interrupts) -> Content:
    """Read the whole file once, so that damage is found before anything is written.

    Raises:
        ExportFileError: the file is damaged, or a row lacks topic, partition or timestamp.
    """
    found = Content()
    for rows in read_rows(path, form):
        interrupts.check()
        for name in ("topic", "partition", "timestamp"):
            if rows.column(name).null_count:
                raise ExportFileError(f"{printable(path)}: a row has no {name}")
        found.topics.update(rows.column("topic").unique().to_pylist())
        for count in rows.column("partition").value_counts().to_pylist():
            found.rows[count["values"]] += count["counts"]
    if found.rows and min(found.rows) < 0:
        raise ExportFileError(f"{printable(path)}: a row has partition {min(found.rows)}")
    return found


def load_rows(
    path: str,
    form: Format,
    logs: Mapping[int, PartitionLog],
    compression: str,
    interrupts: Interrupts,
) -> None:
    """Append all rows of the file, each to the log of its partition.

    Raises:
        ImportFailedError: a log refused a record. Earlier records were appended.
        KeyboardInterrupt: between two batches.
    """
    for rows in read_rows(path, form):
        for partition, part in _by_partition(rows):
            for batch in _Part.of(part).batches(logs[partition].config.max_message_bytes):
                interrupts.check()
                _append(logs[partition], batch, compression)


def _by_partition(rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Divide rows into consecutive rows of one partition."""
    start = 0
    for partition, same in groupby(rows.column("partition").to_pylist()):
        count = sum(1 for _ in same)
        yield partition, rows.slice(start, count)
        start += count


class _Part(NamedTuple):
    """Columns of consecutive rows of one partition, or of some of them for one batch.

    Keys and values are bytes or None, headers pairs of a name and such a value.
    """

    keys: list[Any]
    values: list[Any]
    timestamps: list[Any]
    headers: list[Any]
    offsets: list[Any]

    @classmethod
    def of(cls, rows: pa.RecordBatch) -> _Part:
        return cls(
            rows.column("key").to_pylist(),
            rows.column("value").to_pylist(),
            rows.column("timestamp").view(pa.int64()).to_pylist(),
            [[_header(each) for each in p or ()] for p in rows.column("headers").to_pylist()],
            rows.column("offset").to_pylist(),
        )

    def batches(self, limit: int) -> Iterator[_Part]:
        """Parts that each fit into a batch below ``limit`` bytes."""
        limit = min(BATCH_BYTES, limit - RECORD_OVERHEAD * 4)
        start = total = 0
        for at, (key, value, headers) in enumerate(
            zip(self.keys, self.values, self.headers, strict=True)
        ):
            size = record_size(key, value, headers)
            if at > start and (total + size > limit or at - start >= _BATCH_RECORDS):
                yield _Part(*(each[start:at] for each in self))
                start, total = at, 0
            total += size
        yield _Part(*(each[start:] for each in self))


def _header(pair: Any) -> tuple[str, bytes | None]:
    if pair is None or pair["key"] is None:
        raise ExportFileError("a row has a header without a name")
    return pair["key"], pair["value"]


def _append(log: PartitionLog, batch: _Part, compression: str) -> None:
    try:
        log.append_columns(
            batch.values,
            batch.keys,
            batch.timestamps,
            batch.headers if any(batch.headers) else None,
            compression=compression,
        )
    except LogstoreError as error:
        span = f"offsets {batch.offsets[0]} to {batch.offsets[-1]} of the file"
        raise ImportFailedError(f"{log.name}: {span}: {type(error).__name__}: {error}") from None
