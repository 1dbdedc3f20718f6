"""Read a split as Arrow record batches, for the batch source and for streams.

It works on a window of the ``.log`` at a time: first the headers as a table, which shows what can
be left out, then the rest as rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Protocol, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from logstore.spark.common.splits import ReadSettings, ReadTask, Split
from logstore.spark.segments.batch_table import BatchTable
from logstore.spark.segments.opened import opened
from logstore.spark.segments.transactions import MarkerCheck
from logstore.spark.segments.windows import Windows
from logstore.spark.source.batch_filter import BatchFilter
from logstore.spark.source.batch_rows import BatchRows
from logstore.spark.source.record_rows import RecordRows
from logstore.spark.source.row_counts import RowCounts
from logstore.storage.base import File

_T_co = TypeVar("_T_co", covariant=True)
_T = TypeVar("_T")


class _Maker(Protocol[_T_co]):
    """What to make of the wanted batches of a split."""

    @property
    def scan_options(self) -> dict[str, bool]: ...
    def read(
        self, window: memoryview, position: int, table: BatchTable, first: int, end: int
    ) -> Iterator[_T_co]: ...


def read_task(
    task: InputPartition, settings: ReadSettings, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Read all splits of a `ReadTask`, as ``read_split``."""
    assert isinstance(task, ReadTask)
    markers: dict[str, MarkerCheck] = defaultdict(MarkerCheck)
    for split in task.splits:
        yield from read_split(split, settings, schema, markers[split.uri])


def count_task(task: InputPartition, settings: ReadSettings) -> Iterator[tuple[Split, int]]:
    """How many rows ``read_task`` would give, in parts, from batch headers.

    Raises:
        Exception: as ``read_split``. Records that headers count are not decoded; only the checksum
            of their batch is checked.
    """
    assert isinstance(task, ReadTask)
    markers: dict[str, MarkerCheck] = defaultdict(MarkerCheck)
    for split in task.splits:
        for count in _read(split, settings, RowCounts(split, settings), markers[split.uri]):
            yield split, count


def read_split(
    split: Split, settings: ReadSettings, schema: pa.Schema, markers: MarkerCheck | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of ``split`` in the order of offsets, as record batches of ``schema``.

    Memory is bounded by a few windows, or by ``settings.max_batch_bytes`` if that is more.
    ``markers`` has seen the splits before this one, of the same task and partition.

    Raises:
        CorruptBatchError: a batch is damaged; names the file and the byte.
        CorruptIndexError: a transaction index lacks an aborted transaction.
        DataLossError: the segment was deleted, cut or replaced since the split was planned.
        OSError: the medium refused.
    """
    make = BatchRows if settings.granularity == "batch" else RecordRows
    yield from _read(split, settings, make(split, settings, schema), markers or MarkerCheck())


def _read(
    split: Split, settings: ReadSettings, maker: _Maker[_T], markers: MarkerCheck
) -> Iterator[_T]:
    with opened(split, settings) as segment:
        if segment is None:
            return
        yield from _made(segment.file, split, settings, maker, markers)
        segment.check()


def _made(
    file: File, split: Split, settings: ReadSettings, maker: _Maker[_T], markers: MarkerCheck
) -> Iterator[_T]:
    wanted = BatchFilter(split, settings)
    size = file.size()
    windows = Windows(
        file,
        split.path,
        split.position,
        min(split.end_position, size),
        open_end=split.open_end or size < split.end_position,
        max_batch_bytes=settings.max_batch_bytes,
        drop_malformed=settings.drop_malformed,
    )
    for window, position, table in windows.tables(**maker.scan_options):
        if settings.read_committed:
            markers.take(split, window, table)
        for first, end in wanted.runs(table, window):
            yield from maker.read(window, position, table, first, end)
        if table.cells("base_offset")[-1] >= split.end_offset:
            return
