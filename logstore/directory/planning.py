"""From offsets of partitions to splits: the bytes that hold the wanted offsets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, pairwise

from checkpoints.loggers import get_logger
from logstore.common.parallel import at_once
from logstore.directory.listing import ListedSegment, PartitionLayout
from logstore.directory.segment_index import SegmentIndex
from logstore.directory.splits import HEADER, AbortedRange, FileProof, Spare, Split
from logstore.directory.transactions import overlapping
from logstore.format.header import MAGIC
from logstore.format.reader import MAX_OFFSET
from logstore.storage.base import ShowsFiles
from logstore.storage.uri import open_storage, shown_file

_MAGIC_AT, _LAST_AT = 16, slice(23, 27)
_OPEN_COST = 256 << 10  # the cost of opening a file and a window, in bytes read in that time

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The part of a partition to read: ``[start, end)`` without ``aborted`` transactions."""

    layout: PartitionLayout
    start: int
    end: int = MAX_OFFSET
    aborted: tuple[AbortedRange, ...] = ()


def plan_splits(
    ranges: Iterable[OffsetRange], split_bytes: int, start_timestamp: int | None = None
) -> list[Split]:
    """The splits with all batches of ``ranges``, in the order of offsets within a partition.

    Each is ``split_bytes`` long or a little more, depending on index entries. A segment without a
    usable index is one split. Segments whose time index shows no record from ``start_timestamp``
    (ms) on are left out.

    Raises:
        ListingOutdatedError: a segment has changed since it was listed.
        OSError: the medium refused.
    """
    jobs = [_SegmentJob(r, *job) for r in ranges for job in _segments(r)]
    found = at_once(lambda job: job.splits(split_bytes, start_timestamp), jobs)
    return list(chain.from_iterable(found))


def _segments(wanted: OffsetRange) -> Iterable[tuple[ListedSegment, int]]:
    """The segments that overlap a range, each with the base offset of the next."""
    for segment, next_base in wanted.layout.bounded():
        if segment.size and segment.base_offset < wanted.end and next_base > wanted.start:
            yield segment, next_base


@dataclass(frozen=True, slots=True)
class _SegmentJob:
    wanted: OffsetRange
    segment: ListedSegment
    next_base: int

    def splits(self, split_bytes: int, start_timestamp: int | None) -> list[Split]:
        if start_timestamp is not None and self.segment.is_before(start_timestamp):
            return []
        index = SegmentIndex(self.wanted.layout, self.segment)
        first = max(self.wanted.start, self.segment.base_offset)
        if start_timestamp is not None:
            first = max(first, index.first_offset_from(start_timestamp))
        if first >= self.next_base:
            return []
        start = index.floor(first) if first > self.segment.base_offset else 0
        end = self.segment.size
        if self.wanted.end < self.next_base:
            end = index.ceiling(self.wanted.end)
        cuts = [start, *index.boundaries(start, end, split_bytes), end]
        # What a storage shows of others is whole, and does not grow.
        is_last = self.next_base == MAX_OFFSET and not self._is_shown
        marks = self._marks(index, cuts) if is_last else []
        proof = index.proof(marks, may_grow=is_last)
        splits = [
            self._split(low, high, first, is_last and high == self.segment.size, proof)
            for low, high in pairwise(cuts)
        ]
        if self.wanted.layout.drop_malformed:
            return splits  # one batch with a wrong offset at a cut must not take all before it
        bounded = [
            replace(split, below=index.starts.get(split.end_position, split.below))
            for split in splits
        ]
        return self._with_spares(bounded, marks[-1] if marks else None)

    @property
    def _is_shown(self) -> bool:
        return isinstance(
            open_storage(self.wanted.layout.place_of(self.segment.base_offset))[0], ShowsFiles
        )

    def _marks(self, index: SegmentIndex, cuts: list[int]) -> list[int]:
        """Starts of batches that show whether a growing segment was cut and written again."""
        *starts, end = cuts
        last = index.last_batch() if end == self.segment.size else end
        return sorted({starts[0], end if last is None else last} - {self.segment.size})

    def _with_spares(self, splits: list[Split], last_batch: int | None) -> list[Split]:
        """The splits, each with its place in the tier if the log has one and they are local.

        ``last_batch``: the position of the last batch of a segment that grows.
        """
        tier, base = self.wanted.layout.tier, self.segment.base_offset
        if tier is None or base < tier.end:
            return splits
        with closing(self.wanted.layout.open(base)) as file:
            headers = [file.read_at(split.position, HEADER) for split in splits]
            last = b"" if last_batch is None else file.read_at(last_batch, HEADER)
        ends = [min(split.end_offset, split.below) for split in splits]
        if ends[-1] == MAX_OFFSET:
            ends[-1] = next_offset(last)
        return [
            replace(split, spare=Spare(tier.uri, header, end)) if header and end >= 0 else split
            for split, header, end in zip(splits, headers, ends, strict=True)
        ]

    def _split(
        self, position: int, end_position: int, first: int, open_end: bool, proof: FileProof
    ) -> Split:
        layout, wanted = self.wanted.layout, self.wanted
        end = min(wanted.end, self.next_base)
        return Split(
            layout.place_of(self.segment.base_offset),
            layout.broker,
            layout.topic,
            layout.partition,
            self.segment.base_offset,
            position,
            end_position,
            proof,
            first,
            end,
            open_end,
            overlapping(wanted.aborted, first, end),
            layout.topic_id,
            self.segment.base_offset - 1,
            self.next_base,
            layout.uri,
            file=shown_file(layout.path_of(self.segment.base_offset)),
        )


def next_offset(header: bytes) -> int:
    """One past the last offset of a batch; −1 if it is of an older format, which does not say."""
    if len(header) < HEADER or header[_MAGIC_AT] < MAGIC:
        return -1
    return int.from_bytes(header[:8], "big") + int.from_bytes(header[_LAST_AT], "big") + 1


def pack(splits: Sequence[Split], split_bytes: int) -> list[tuple[Split, ...]]:
    """Join neighbours into tasks of up to ``split_bytes``, so that small segments share one."""
    tasks: list[tuple[Split, ...]] = []
    current: list[Split] = []
    total = 0
    for split in splits:
        if current and total + split.size + _OPEN_COST > split_bytes:
            tasks.append(tuple(current))
            current, total = [], 0
        current.append(split)
        total += split.size + _OPEN_COST
    if current:
        tasks.append(tuple(current))
    return tasks
