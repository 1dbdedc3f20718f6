"""Read splits as Arrow record batches.

It works on a window of the ``.log`` at a time: first the headers as a table, which shows what can
be left out, then the rest as rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from types import MappingProxyType
from typing import Protocol, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from checkpoints.loggers import get_logger
from logstore.common.errors import CorruptBatchError
from logstore.directory.columns import ArrowTable
from logstore.directory.offset_order import AscendingOffsets
from logstore.directory.rows import BatchRows, Extreme, RecordRows, RowSummaries, RowSummary
from logstore.directory.splits import ReadSettings, Split, opened
from logstore.directory.tiered import in_tier
from logstore.directory.transactions import MarkerCheck
from logstore.directory.windows import Windows
from logstore.format import attributes as bits
from logstore.format.header import MAGIC
from logstore.format.reader import MAX_OFFSET
from logstore.storage.base import File

logger = get_logger(__name__)


@dataclass(slots=True)
class BatchFilter:
    """The filter of one split. A batch that is left out is not decoded or checked."""

    split: Split
    settings: ReadSettings
    _aborted: dict[int, list[tuple[int, int]]] = field(init=False)

    def __post_init__(self) -> None:
        self._aborted = {}
        for producer_id, first, marker in sorted(self.split.aborted):
            self._aborted.setdefault(producer_id, []).append((first, marker))

    def runs(self, table: ArrowTable, fitting: pa.Array | None) -> Iterator[tuple[int, int]]:
        """Ranges ``[first, end)`` of wanted neighbouring rows of ``table``.

        ``fitting``: whether each has a place in the order of offsets.
        """
        if not table.rows:
            return
        masks = list(self._masks(table))
        if fitting is not None:
            masks.append(fitting)
        if masks:
            yield from table.runs(reduce(pc.and_, masks))
        else:
            yield 0, table.rows

    def _masks(self, table: ArrowTable) -> Iterator[pa.Array]:
        split, settings = self.split, self.settings
        of_records = settings.granularity == "record"
        if of_records and settings.drop_malformed:
            yield self._valid(table)
        if split.from_offset > 0:
            yield pc.greater_equal(table.column("last_offset"), split.from_offset)
        if split.end_offset < MAX_OFFSET:
            # A legacy wrapper carries its last offset, and may have smaller ones inside (F-101).
            bases, legacy = table.column("base_offset"), pc.less(table.column("magic"), MAGIC)
            inside = pc.or_(pc.less(bases, split.end_offset), legacy)
            # As a batch is shown, so is an offset that cannot be.
            yield inside if of_records else pc.or_(inside, pc.greater_equal(bases, split.below))
        if settings.start_timestamp is not None:
            yield pc.greater_equal(table.column("max_timestamp"), settings.start_timestamp)
        if of_records and not settings.include_control and table.has_any(bits.CONTROL):
            yield pc.invert(table.has_bit(bits.CONTROL))
        if self._aborted and table.has_any(bits.TRANSACTIONAL):
            yield self._not_aborted(table)

    def _valid(self, table: ArrowTable) -> pa.Array:
        valid = pc.equal(table.column("valid"), 1)
        for index, good in enumerate(valid.to_pylist()):
            if not good:
                size, offset = table.cells("size")[index], table.cells("base_offset")[index]
                text = "%s: dropped a malformed batch of %d bytes at offset %d"
                logger.warning(text, self.split.path, size, offset)
        return valid

    def _not_aborted(self, table: ArrowTable) -> pa.Array:
        columns = (table.cells(name) for name in ("attributes", "producer_id", "base_offset"))
        return pa.array(
            [
                not (
                    attributes & bits.TRANSACTIONAL
                    and not attributes & bits.CONTROL
                    and self._is_aborted(producer_id, offset)
                )
                for attributes, producer_id, offset in zip(*columns, strict=True)
            ]
        )

    def _is_aborted(self, producer_id: int, offset: int) -> bool:
        transactions = self._aborted.get(producer_id, ())
        index = bisect_right(transactions, offset, key=lambda transaction: transaction[0]) - 1
        return index >= 0 and offset < transactions[index][1]


_T_co = TypeVar("_T_co", covariant=True)
_T = TypeVar("_T")


class _Maker(Protocol[_T_co]):
    """The maker of rows from the wanted batches of a split."""

    @property
    def scan_options(self) -> dict[str, bool]: ...
    def read(
        self, window: memoryview, position: int, table: ArrowTable, first: int, end: int
    ) -> Iterator[_T_co]: ...


Checks: TypeAlias = Mapping[str, MarkerCheck]
"""Those of partitions that were read before, by their directory."""


def read_splits(
    splits: Iterable[Split],
    settings: ReadSettings,
    schema: pa.Schema,
    checks: Checks = MappingProxyType({}),
) -> Iterator[pa.RecordBatch]:
    """Read splits in the order of their logs, as ``read_split``."""
    markers = defaultdict(MarkerCheck, checks)
    for split in splits:
        yield from read_split(split, settings, schema, markers[split.log_uri])


def count_splits(
    splits: Iterable[Split], settings: ReadSettings, checks: Checks = MappingProxyType({})
) -> Iterator[tuple[Split, int]]:
    """Count the rows that ``read_splits`` would give, in parts, as ``summarize_splits``."""
    for split, summary in summarize_splits(splits, settings, checks=checks):
        yield split, summary.rows


def summarize_splits(
    splits: Iterable[Split],
    settings: ReadSettings,
    extremes: tuple[Extreme, ...] = (),
    checks: Checks = MappingProxyType({}),
) -> Iterator[tuple[Split, RowSummary]]:
    """Summarize the rows that ``read_splits`` would give, in parts, from batch headers.

    Raises:
        Exception: as ``read_split``. Records that headers speak for are not decoded; only the
            checksum of their batch is checked.
    """
    markers = defaultdict(MarkerCheck, checks)
    for split in splits:

        def maker(part: Split) -> RowSummaries:
            return RowSummaries(part, settings, extremes)

        for summary in _read(split, settings, maker, markers[split.log_uri]):
            yield split, summary


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
    kind = BatchRows if settings.granularity == "batch" else RecordRows

    def maker(part: Split) -> BatchRows | RecordRows:
        return kind(part, settings, schema)

    yield from _read(split, settings, maker, markers or MarkerCheck())


def _read(
    split: Split,
    settings: ReadSettings,
    maker: Callable[[Split], _Maker[_T]],
    markers: MarkerCheck,
) -> Iterator[_T]:
    with opened(split, settings) as segment:
        if segment is not None:
            try:
                yield from _made(segment.file, split, settings, maker(split), markers)
            except CorruptBatchError:
                if segment.check():  # one that was cut or replaced may have other batches
                    raise
                return
            segment.check()
    if segment is None and split.spare is not None:
        for part in in_tier(split, split.spare, settings):
            yield from _read(part, settings, maker, markers)


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
    order = AscendingOffsets(split)
    for window, position, table in windows.tables(ArrowTable, **maker.scan_options):
        # An offset may be wrong, so the end is believed when all batches up to there ascend.
        is_past = order.last >= split.end_offset - 1
        fitting = None
        if settings.granularity == "record":
            if settings.drop_malformed:
                fitting = order.fitting(
                    table, _base_offset(file, position + table.end, windows.end)
                )
            else:
                order.check(table, position)
        if is_past:
            continue
        if settings.read_committed and table.has_any(bits.TRANSACTIONAL):
            markers.check(split, window, table)
        for first, end in wanted.runs(table, fitting):
            yield from maker.read(window, position, table, first, end)


def _base_offset(file: File, position: int, end: int) -> int | None:
    """Of the batch at ``position``, if there is one before ``end``."""
    return int.from_bytes(file.read_at(position, 8), "big") if position + 8 <= end else None
