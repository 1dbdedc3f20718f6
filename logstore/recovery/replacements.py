"""Segments that replace others, or wait for their own place: ``.cleaned`` and ``.swap`` files.

Three kinds of leftovers carry these names after a crash (F-238 … F-240, F-309 … F-311):

* a compaction, which replaces segments by one;
* a split of a segment whose offsets span more than 2³¹−1 (F-243), which replaces one by several;
* a roll: the new segment is ``<base>.log.swap``, with indexes under their final names, until the
* segment before it is on the disk. It replaces nothing, and counts only if it follows that segment.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import NamedTuple

from logstore.common.clock import Clock
from logstore.common.config import MAX_INT, LogConfig
from logstore.format import filenames
from logstore.format.filenames import CLEANED_SUFFIX, LOG_SUFFIX, SWAP_SUFFIX, SegmentFile
from logstore.kernels import SCAN_BAD_OFFSET, SCAN_COLUMNS, RecoveryScan
from logstore.recovery.provenance import ComparedHeader, headers_of, stems_from
from logstore.recovery.replaced_list import ReplacedList
from logstore.recovery.set_aside import Remover
from logstore.segments.producer_state import ProducerStateManager
from logstore.segments.rebuild import scan_segment
from logstore.segments.segment import BatchSpan, Segment
from logstore.segments.segment_view import WINDOW
from logstore.storage.base import Storage

_LAST, _SIZE = SCAN_COLUMNS.index("last_offset"), SCAN_COLUMNS.index("size")
_LEGACY_SPAN = 1 << 30  # how many offsets a compressed batch of magic 0 or 1 may span
_PIECES_MAX = 64  # compacted to one segment, but of 2³⁷ offsets: 16 days of 100,000 a second


class SplitPiece(NamedTuple):
    """Part of a segment: from ``position`` of its ``.log`` on, with a base offset of its own."""

    base_offset: int
    position: int


class SegmentSplit(NamedTuple):
    """How to split a segment. ``end`` is where the last piece ends, ``status`` why none follows."""

    pieces: list[SplitPiece]
    end: int
    status: int


def plan_split(segment: Segment, scan: RecoveryScan, limit: int, flushed: int = 0) -> SegmentSplit:
    """How to split a segment whose batches ``scan`` has read; one piece if it stays whole.

    A batch whose offset jumps out of the segment's range starts a new piece. No checksum covers
    base offsets (F-62), so a jump does not count if a later batch, or the next segment with the
    base ``limit``, continues from before the jump. A single batch at the end of the log, with
    nothing after it (``limit`` is 2⁶³), counts only below ``flushed``. If there are more jumps than
    any compaction leaves, none counts: each would cost four files.
    """
    pieces, ends = [SplitPiece(segment.base_offset, 0)], [scan.next_offset]
    batches = 0  # the end of the last piece
    end, status = scan.valid_bytes, scan.status
    while (span := _stopped_at(segment, scan)) is not None:
        if span.base_offset < ends[-1] or span.last_offset - pieces[-1].base_offset <= MAX_INT:
            while len(pieces) > 1 and ends[-2] <= span.base_offset < pieces[-1].base_offset:
                end, batches = pieces.pop().position, 0
                ends.pop()
            break
        base = span.base_offset
        if span.magic < 2:  # the header has the last offset only (F-103)
            base = max(ends[-1], span.last_offset - _LEGACY_SPAN)
        scan = scan_segment(segment, base_offset=base, start=end)
        if not scan.batch_count:
            break
        if len(pieces) == _PIECES_MAX:
            return SegmentSplit(pieces[:1], pieces[1].position, SCAN_BAD_OFFSET)
        pieces.append(SplitPiece(base, end))
        ends.append(scan.next_offset)
        batches = scan.batch_count
        end, status = scan.valid_bytes, scan.status
    if limit == 2**63 and batches == 1 and ends[-1] > flushed and len(pieces) > 1:
        end, status = pieces.pop().position, SCAN_BAD_OFFSET
        ends.pop()
    while len(pieces) > 1 and ends[-1] > limit:
        end, status = pieces.pop().position, SCAN_BAD_OFFSET
        ends.pop()
    return SegmentSplit(pieces, end, status)


def _is_log(file: SegmentFile, transition: str) -> bool:
    return file.suffix == LOG_SUFFIX and file.transition == transition


def _stopped_at(segment: Segment, scan: RecoveryScan) -> BatchSpan | None:
    """The batch whose offset ended the scan, although its checksum matches."""
    if scan.status != SCAN_BAD_OFFSET:
        return None
    return next(segment.walk(scan.valid_bytes), None)


class _Ranges:
    """Whether an offset lies in any of some half-open ranges."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        ascending = sorted(ranges)
        self._lows = [low for low, _ in ascending]
        self._highs = list(accumulate((high for _, high in ascending), max))

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._lows, offset)
        return at > 0 and offset < self._highs[at - 1]


class CleanedSegment(Segment):
    """All of its files are ``.cleaned``."""

    def path(self, suffix: str) -> str:
        return super().path(suffix) + CLEANED_SUFFIX

    def set_modified_ms(self, modified_ms: int) -> None:
        """Set the age of the file, which counts if records have no timestamps (F-148)."""
        self._storage.set_mtime(self.log_path, modified_ms)


class Replacements:
    """Works on one directory before its segments are in use.

    Every change is reported to ``act``.
    """

    def __init__(
        self,
        storage: Storage,
        directory: str,
        config: LogConfig,
        clock: Clock,
        act: Callable[[str], None],
        remover: Remover,
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._config = config
        self._clock = clock
        self._act = act
        self._remover = remover
        self._believed: ReplacedList | None = None  # the list of a replacement that is whole
        self.damaged: list[int] = []  # bases of replacements that alone have their records
        # For one pass: each file is read once, however many others are compared with it.
        self._ends: dict[tuple[int, str], int] = {}
        self._sound: dict[int, int] = {}

    def finish(self, names: Sequence[str], listed: ReplacedList | None = None) -> bool:
        """Passes 1 to 3: finish deletions and replacements that a crash interrupted.

        ``names`` are file names without the rolls, which are judged later. ``listed`` is the list
        of the replacement that was under way, if it wrote one. True if the directory must be listed
        again.
        """
        if not any(name.endswith(filenames.TRANSITIONAL_SUFFIXES) for name in names):
            return False
        self._ends, self._sound = {}, {}
        parsed = {
            name: p
            for name in names
            if (p := filenames.parse_segment_file(name)) is not None
            and name == filenames.segment_file_name(*p)  # any other spelling is not a log's file
        }
        cleaned = [p.offset for p in parsed.values() if p.transition == CLEANED_SUFFIX]
        smallest = min(cleaned, default=2**63)
        originals = sorted(p.offset for p in parsed.values() if _is_log(p, ""))
        alone = {
            p.offset
            for p in parsed.values()
            if _is_log(p, SWAP_SUFFIX)
            and p.offset >= smallest
            and self._has_no_original(p.offset, originals)
        }
        unfinished: dict[str, SegmentFile] = {}
        kept: dict[str, SegmentFile] = {}
        for name, p in parsed.items():
            if p.transition == filenames.DELETED_SUFFIX:
                self._remove(name, "deletion was under way")
            elif p.transition == CLEANED_SUFFIX or (
                p.transition == SWAP_SUFFIX and p.offset >= smallest and p.offset not in alone
            ):
                unfinished[name] = p
            else:
                kept[name] = p
        # While the lowest .cleaned exists, a load removes all of them (F-238).
        for transition in (SWAP_SUFFIX, CLEANED_SUFFIX):
            self._drop_unfinished(
                {n: p for n, p in unfinished.items() if p.transition == transition}, originals
            )
        self._believed = self._listed_swap(kept, listed)
        self._refuse(kept, self._unbelievable(kept, originals))
        self._replace_swapped(kept)
        return True

    def _listed_swap(
        self, files: dict[str, SegmentFile], listed: ReplacedList | None
    ) -> ReplacedList | None:
        """The list, if its replacement is here and whole, so that it is known what to remove."""
        if listed is None:
            return None
        name = filenames.segment_file_name(listed.base, LOG_SUFFIX, SWAP_SUFFIX)
        if name not in files or not listed.vouches_for(self._storage, self._path(name)):
            return None
        return listed

    def _drop_unfinished(self, files: dict[str, SegmentFile], originals: list[int]) -> None:
        """Remove unfinished files whose originals are all here.

        A file without originals is set aside.
        """
        why = "its replacement was never complete"
        for name, p in sorted(files.items()):
            if p.suffix == LOG_SUFFIX and not self._is_covered(p, originals):
                self._remover.discard(self._open(p.offset, p.transition), why)
            else:
                self._remove(name, why)
        if files:
            self._storage.sync_dir(self._directory)

    def _has_no_original(self, base: int, originals: list[int]) -> bool:
        """Whether nothing else can have the records of a replacement.

        Originals go only after the last ``.cleaned`` has another name. So a ``.cleaned`` beside
        such a replacement comes from elsewhere, and is no word against it.
        """
        below = originals[: bisect_right(originals, base)]
        before = next((b for b in reversed(below) if self._end(b, "") > b), None)
        return before is None or (
            self._end(before, "") <= base and self._sound_end(before) == 2**63
        )

    def _is_covered(self, p: SegmentFile, originals: list[int]) -> bool:
        """Whether originals span the offsets of an unfinished ``.log``, and are sound up to there.

        If one is damaged, the unfinished file may have the only whole copy of a batch.
        """
        floor = bisect_right(originals, p.offset) - 1
        if floor < 0:
            return False
        end = self._end(p.offset, p.transition)
        spans = originals[floor] == p.offset or self._end(originals[floor], "") > p.offset
        if not spans or end > max(self._end(originals[-1], ""), p.offset):
            return False
        sources = originals[floor : bisect_left(originals, end)]
        if end > p.offset and self._are_hollow(sources):
            return False
        return all(self._sound_end(base) >= end for base in sources)

    def _are_hollow(self, originals: Iterable[int]) -> bool:
        """Whether these originals have no batch: then they are no word against one that has."""
        return all(self._end(base, "") == base for base in originals)

    def _unbelievable(self, files: dict[str, SegmentFile], originals: list[int]) -> dict[int, str]:
        """Replacements that must not take the place of their originals, and why not.

        The original of the same base is removed first, so while it is here all originals are. Then
        a replacement, or the pieces of a split together, must end where the originals end: a
        shorter one may have lost records, and a longer one has offsets that were never written. It
        must have their batches and no others, and its checksums must match. If that original is
        gone, the replacement stays and is recovered.
        """
        known = -1 if self._believed is None else self._believed.base
        bases = sorted(
            p.offset for p in files.values() if _is_log(p, SWAP_SUFFIX) and p.offset != known
        )
        ends: list[int] = []
        damaged: set[int] = set()
        for base in bases:
            with self._opened(base, SWAP_SUFFIX) as segment:
                scan = scan_segment(segment)
                ends.append(max(scan.next_offset, base))
                if scan.valid_bytes < segment.size:
                    damaged.add(base)
        refused: dict[int, str] = {}
        for first, base in enumerate(bases):
            at = bisect_left(originals, base)
            if originals[at : at + 1] != [base] or base in refused:
                continue
            # The pieces of a split lie in one original, below the base of the next.
            piece_limit = min(self._end(base, ""), *originals[at + 1 : at + 2], 2**63)
            last = max(bisect_left(bases, piece_limit), first + 1)
            group, end = bases[first:last], max(ends[first:last])
            behind = max(bisect_left(originals, end), at + 1)
            if self._are_hollow(originals[at:behind]):
                continue
            replaced = originals[behind - 1]
            original_end = self._end(replaced, "")
            if damaged.intersection(group):
                refused.update(dict.fromkeys(group, "it is damaged, and the original is there"))
            elif end != original_end:
                why = f"it ends at offset {end}, what it replaces at {original_end}"
                refused.update(dict.fromkeys(group, why))
            elif not stems_from(
                self._headers(group, SWAP_SUFFIX),
                self._headers(originals[at : bisect_right(originals, replaced)], ""),
            ):
                why = "it has batches that what it replaces has not"
                refused.update(dict.fromkeys(group, why))
        self.damaged = sorted(damaged - refused.keys())
        return refused

    def _refuse(self, files: dict[str, SegmentFile], refused: dict[int, str]) -> None:
        """Remove replacements from the directory and from ``files``; the originals stay."""
        names = [n for n, p in files.items() if p.transition == SWAP_SUFFIX and p.offset in refused]
        for name in sorted(names):
            p = files.pop(name)
            if p.suffix == LOG_SUFFIX:
                self._remover.discard(self._open(p.offset, SWAP_SUFFIX), refused[p.offset])
            else:
                self._remove(name, refused[p.offset])
        if names:
            self._storage.sync_dir(self._directory)

    def _replace_swapped(self, files: dict[str, SegmentFile]) -> None:
        """Drop what the complete ``.swap`` files replace (F-239), then rename them (F-240)."""
        swaps = {name: p for name, p in files.items() if p.transition == SWAP_SUFFIX}
        logs = [name for name, p in swaps.items() if p.suffix == LOG_SUFFIX]
        if logs:
            damaged = set(self.damaged)
            known = -1 if self._believed is None else self._believed.base
            ranges = {
                base: base + 1
                if base in damaged or base == known
                else max(self._end(base, SWAP_SUFFIX), base + 1)
                for base in (swaps[name].offset for name in logs)
            }
            # Range by range: a file between two of them may have its final name already.
            if self._believed is not None:
                for base in self._believed.replaced:
                    ranges.setdefault(base, base + 1)
            covered = _Ranges(ranges.items())
            replaced = {n: p for n, p in files.items() if n not in swaps and p.offset in covered}
            found = {p.offset for p in replaced.values()}
            believed = () if self._believed is None else self._believed.replaced
            compared = _Ranges(
                (low, high) for low, high in ranges.items() if low in found or low in believed
            )
            if replaced:  # a killed process may have left the names of the .swap in the cache only
                self._storage.sync_dir(self._directory)
            for first in (True, False):  # while the first original exists, all the others do
                group = sorted(n for n, p in replaced.items() if (p.offset in ranges) == first)
                for name in group:
                    self._remove_replaced(name, replaced[name], compared)
                if group:  # no original comes back beside its replacement
                    self._storage.sync_dir(self._directory)
        # The .log first: a .log.swap without its indexes would be taken for a roll.
        for names in (logs, [name for name in swaps if name not in logs]):
            for name in sorted(names):
                self._rename(name, name.removesuffix(SWAP_SUFFIX))
            if names:
                self._storage.sync_dir(self._directory)

    def _remove_replaced(self, name: str, p: SegmentFile, compared: _Ranges) -> None:
        """Remove an original, or set it aside unless its replacement was ``compared`` with all of
        them.
        """
        if p.suffix != LOG_SUFFIX or p.offset in compared:
            self._remove(name, "it was replaced")
        else:
            self._remover.discard(self._open(p.offset, ""), "it was replaced")

    def settle_roll(self, base_offset: int) -> None:
        """Give a rolled segment its final name, durably.

        The segment before it must be on the disk.
        """
        final = filenames.segment_file_name(base_offset, LOG_SUFFIX)
        self._storage.sync_dir(self._directory)  # also the names of the indexes
        self._rename(final + SWAP_SUFFIX, final)
        self._storage.sync_dir(self._directory)

    def split(
        self, segment: Segment, pieces: Sequence[SplitPiece], producers: ProducerStateManager
    ) -> None:
        """Replace a segment by its ``pieces``; the first has the segment's base (F-243, F-309).

        A crash leaves the segment or all pieces. ``producers`` is the state at its base, for the
        transaction indexes. Afterwards it is the state at the end of the pieces.
        """
        ends = [*(piece.position for piece in pieces[1:]), segment.size]
        for piece, end in zip(pieces, ends, strict=True):
            self._write_piece(segment, piece, end, producers)
        segment.close()
        suffixes = [s for s in filenames.SEGMENT_SUFFIXES if s != LOG_SUFFIX]
        names = [(p.base_offset, s) for p in reversed(pieces) for s in (LOG_SUFFIX, *suffixes)]
        last = names.pop(names.index((segment.base_offset, LOG_SUFFIX)))
        # While the lowest .cleaned exists, a load removes all of them (F-238).
        for group in (names, [last]):
            self._storage.sync_dir(self._directory)
            for base, suffix in group:
                cleaned = filenames.segment_file_name(base, suffix, CLEANED_SUFFIX)
                if self._storage.info(self._path(cleaned)) is not None:
                    self._rename(cleaned, filenames.segment_file_name(base, suffix, SWAP_SUFFIX))
        self._storage.sync_dir(self._directory)
        self._ends, self._sound = {}, {}
        bases = {piece.base_offset for piece in pieces}
        found: dict[str, SegmentFile] = {}
        for entry in self._storage.scan_dir(self._directory):
            p = filenames.parse_segment_file(entry.name)
            if p is not None and (p.transition != SWAP_SUFFIX or p.offset in bases):
                found[entry.name] = p
        self._replace_swapped(found)

    def _write_piece(
        self, source: Segment, piece: SplitPiece, end: int, producers: ProducerStateManager
    ) -> None:
        """Write the ``.cleaned`` files of a piece, durable except for their names."""
        size = end - piece.position
        copy = CleanedSegment(
            self._storage,
            self._directory,
            piece.base_offset,
            self._config,
            self._clock,
            {LOG_SUFFIX: size},
        )
        file = self._storage.open(copy.log_path, create=True)
        try:
            file.truncate(0)
            for at in range(0, size, WINDOW):
                file.write_at(at, source.log.read_at(piece.position + at, min(WINDOW, size - at)))
        finally:
            file.close()
        try:
            copy.txn_index.reset()
            scan = scan_segment(copy, producers=producers)
            copy.install_indexes(scan.offset_index, scan.time_index + scan.final_time_entry())
            copy.flush(indexes=True)
        finally:
            copy.close()
        info = self._storage.info(source.log_path)
        if info is not None:  # the age of the file counts if records have no timestamps (F-148)
            copy.set_modified_ms(info.mtime_ms)

    def _open(self, base_offset: int, transition: str) -> Segment:
        """Open a segment by its name in the directory, without its indexes."""
        name = filenames.segment_file_name(base_offset, LOG_SUFFIX, transition)
        info = self._storage.info(self._path(name))
        return Segment(
            self._storage,
            self._directory,
            base_offset,
            self._config,
            self._clock,
            {LOG_SUFFIX: info.size if info else 0},
            transition,
        )

    @contextmanager
    def _opened(self, base_offset: int, transition: str) -> Iterator[Segment]:
        segment = self._open(base_offset, transition)
        try:
            yield segment
        finally:
            segment.close()

    def _headers(self, bases: Iterable[int], transition: str) -> Iterator[ComparedHeader]:
        for base in bases:
            with self._opened(base, transition) as segment:
                yield from headers_of(segment)

    def _end(self, base_offset: int, transition: str) -> int:
        """The offset after the last whole batch by headers; the base if there is none."""
        end = self._ends.get((base_offset, transition))
        if end is None:
            end = base_offset
            with self._opened(base_offset, transition) as segment:
                for rows, columns, capacity in segment.scan(0, check_crc=False):
                    end = columns[_LAST * capacity + rows - 1] + 1
            self._ends[base_offset, transition] = end
        return end

    def _sound_end(self, base_offset: int) -> int:
        """The offset up to which the checksums of an original match; 2⁶³ if they all do."""
        sound = self._sound.get(base_offset)
        if sound is None:
            sound, size = base_offset, 0
            with self._opened(base_offset, "") as segment:
                for rows, columns, capacity in segment.scan(0, check_crc=True):
                    sound = columns[_LAST * capacity + rows - 1] + 1
                    size += sum(columns[_SIZE * capacity : _SIZE * capacity + rows])
                if size == segment.size:
                    sound = 2**63
            self._sound[base_offset] = sound
        return sound

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _rename(self, name: str, target: str) -> None:
        self._act(f"renamed {name} to {target}")
        self._storage.rename(self._path(name), self._path(target))

    def _remove(self, name: str, why: str) -> None:
        self._act(f"removed {name}: {why}")
        self._storage.remove(self._path(name))
