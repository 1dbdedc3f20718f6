"""Segments that replace others, or wait for their own place: ``.cleaned`` and ``.swap`` files.

Three kinds of leftovers carry these names after a crash (F-238 … F-240, F-309 … F-311):

* a compaction, which replaces segments by one;
* a split of a segment whose offsets span more than 2³¹−1 (F-243), which replaces one by several;
* a roll: the new segment is ``<base>.log.swap``, with indexes under their final names, until the
* segment before it is on the disk. It replaces nothing, and counts only if it follows that segment.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from checkpoints.files import UnusableFileError
from logstore.common.config import MAX_INT
from logstore.common.errors import CorruptDataError
from logstore.format import filenames
from logstore.format.filenames import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    SegmentFile,
    roll_marks,
)
from logstore.kernels import SCAN_BAD_OFFSET, SCAN_COLUMNS, RecoveryScan
from logstore.recovery.log_files import LogFiles, rolled_name
from logstore.recovery.replaced_list import (
    NONE_REPLACED,
    REPLACED_SEGMENTS,
    ReplacedList,
    read_replaced_list,
)
from logstore.recovery.set_aside import Remover
from logstore.segments.producer_state import ProducerStateManager
from logstore.segments.rebuild import scan_segment
from logstore.segments.segment import BatchSpan, Segment
from logstore.segments.segment_view import copy_range

_PLAIN_SUFFIXES = tuple(filenames.PLAIN_SUFFIXES)
_LAST, _SIZE = SCAN_COLUMNS.index("last_offset"), SCAN_COLUMNS.index("size")
_LEGACY_SPAN = 1 << 30  # how many offsets a compressed batch of magic 0 or 1 may span
_PIECES_MAX = 64  # compacted to one segment, but of 2³⁷ offsets: 16 days of 100,000 a second


class SplitPiece(NamedTuple):
    """Part of a segment: from ``position`` of its ``.log`` on, with a base offset of its own."""

    base_offset: int
    position: int


class SegmentSplit(NamedTuple):
    """The pieces of a segment. ``end`` is the end of the last one, ``status`` why none follows."""

    pieces: list[SplitPiece]
    end: int
    status: int


def plan_split(segment: Segment, scan: RecoveryScan, limit: int, flushed: int = 0) -> SegmentSplit:
    """Plan the split of a segment whose batches ``scan`` has read; one piece if it stays whole.

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
    return next(segment.live().walk(scan.valid_bytes), None)


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


class _ComparedHeader(NamedTuple):
    """The fields that identify a batch. A compaction does not change the first six."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    crc: int
    base_timestamp: int
    max_timestamp: int


_COMPARED = [SCAN_COLUMNS.index(name) for name in _ComparedHeader._fields]
_KEPT = _ComparedHeader._fields.index("record_count")


def _headers_of(segment: Segment) -> Iterator[_ComparedHeader]:
    """The headers of all batches, up to the first that is not valid."""
    for rows, columns, capacity in segment.live().scan(0, check_crc=False):
        fields = (columns[at * capacity : at * capacity + rows] for at in _COMPARED)
        yield from map(_ComparedHeader._make, zip(*fields, strict=True))


def _stems_from(copies: Iterable[_ComparedHeader], originals: Iterable[_ComparedHeader]) -> bool:
    """Whether each batch of the copies is one of the originals, whole or with fewer records.

    The last one must be whole, because it shows how far the copies reach. No checksum covers base
    offsets, and a flipped bit may give the offset of another original.
    """
    source = iter(originals)
    whole = True
    for copy in copies:
        original = next((o for o in source if o.base_offset >= copy.base_offset), None)
        if original is None:
            return False
        whole = copy == original
        if not whole and not _is_compacted(copy, original):
            return False
    return whole


def _is_compacted(copy: _ComparedHeader, original: _ComparedHeader) -> bool:
    return (
        copy[:_KEPT] == original[:_KEPT]
        and copy.record_count < original.record_count
        and original.base_timestamp <= copy.max_timestamp <= original.max_timestamp
    )


class Replacements:
    """Works on one directory before its segments are in use."""

    def __init__(self, files: LogFiles, remover: Remover) -> None:
        self.files = files
        self.remover = remover
        self._believed = NONE_REPLACED  # the list of a replacement that is whole
        self.damaged: list[int] = []  # bases of replacements that alone have their records
        # For one pass: each file is read once, however many others are compared with it.
        self._ends: dict[tuple[int, str], int] = {}
        self._sound: dict[int, int] = {}

    def finish_interrupted(self, recovery_point: int) -> None:
        """List the directory, and finish what a crash interrupted, except rolls (F-238 … F-241).

        The directory is created when missing.

        Raises:
            CorruptDataError: as ``LogFiles.check``.
        """
        files = self.files
        try:
            files.read()
        except FileNotFoundError:
            files.storage.make_dir(files.directory)
            files.read()
        files.check()
        files.clear_irregular()
        if files.unsettled:
            names = files.all_names()
            files.rolled = deque(roll_marks(names, recovery_point))
            waiting = {rolled_name(base) for base in files.rolled}
            listed = self._read_list()
            if self._finish([name for name in names if name not in waiting], listed):
                files.read()
        if REPLACED_SEGMENTS in files.others:
            files.remove(REPLACED_SEGMENTS, "its replacement is finished, or was never begun")
            files.others.discard(REPLACED_SEGMENTS)
        for name in [n for n in files.others if n.endswith(filenames.UNFINISHED_SUFFIX)]:
            files.remove(name, "what it was to keep is still in the log")
        for name in (*files.others, *files.unsettled):
            stem = name.removesuffix(SWAP_SUFFIX)
            if stem.endswith(_PLAIN_SUFFIXES) and filenames.parse_segment_file(name) is None:
                files.report.warnings.append(f"{name!r}: not the name of a segment, ignored")

    def _finish(self, names: Sequence[str], listed: ReplacedList | None) -> bool:
        """Passes 1 to 3: finish deletions and replacements that a crash interrupted.

        ``names`` are file names without the rolls, which are judged later. True if the directory
        must be listed again.
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
                self.files.remove(name, "deletion was under way")
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

    def _read_list(self) -> ReplacedList | None:
        """The list of the replacement that was under way, if it wrote one."""
        if REPLACED_SEGMENTS not in self.files.others:
            return None
        try:
            return read_replaced_list(self.files.storage, self.files.directory)
        except (CorruptDataError, UnusableFileError) as error:
            self.files.report.warnings.append(str(error))
            return None

    def _listed_swap(
        self, files: dict[str, SegmentFile], listed: ReplacedList | None
    ) -> ReplacedList:
        """The list, if its replacement is here and whole, so that it is known what to remove."""
        if listed is None or rolled_name(listed.base) not in files:
            return NONE_REPLACED
        path = self.files.path(rolled_name(listed.base))
        return listed if listed.vouches_for(self.files.storage, path) else NONE_REPLACED

    def _drop_unfinished(self, files: dict[str, SegmentFile], originals: list[int]) -> None:
        """Remove unfinished files whose originals are all here.

        A file without originals is set aside.
        """
        why = "its replacement was never complete"
        for name, p in sorted(files.items()):
            if p.suffix == LOG_SUFFIX and not self._is_covered(p, originals):
                self.remover.discard(self.files.by_name(p.offset, p.transition), why)
            else:
                self.files.remove(name, why)
        if files:
            self.files.sync()

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
        known = self._believed.base
        bases = sorted(
            p.offset for p in files.values() if _is_log(p, SWAP_SUFFIX) and p.offset != known
        )
        ends: list[int] = []
        damaged: set[int] = set()
        for base in bases:
            with self.files.opened_by_name(base, SWAP_SUFFIX) as segment:
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
            elif not _stems_from(
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
                self.remover.discard(self.files.by_name(p.offset, SWAP_SUFFIX), refused[p.offset])
            else:
                self.files.remove(name, refused[p.offset])
        if names:
            self.files.sync()

    def _replace_swapped(self, files: dict[str, SegmentFile]) -> None:
        """Drop what the complete ``.swap`` files replace (F-239), then rename them (F-240)."""
        swaps = {name: p for name, p in files.items() if p.transition == SWAP_SUFFIX}
        logs = [name for name, p in swaps.items() if p.suffix == LOG_SUFFIX]
        if logs:
            damaged = set(self.damaged)
            known, believed = self._believed.base, self._believed.replaced
            ranges = {
                base: base + 1
                if base in damaged or base == known
                else max(self._end(base, SWAP_SUFFIX), base + 1)
                for base in (swaps[name].offset for name in logs)
            }
            # Range by range: a file between two of them may have its final name already.
            for base in believed:
                ranges.setdefault(base, base + 1)
            covered = _Ranges(ranges.items())
            replaced = {n: p for n, p in files.items() if n not in swaps and p.offset in covered}
            found = {p.offset for p in replaced.values()}
            compared = _Ranges(
                (low, high) for low, high in ranges.items() if low in found or low in believed
            )
            if replaced:  # a killed process may have left the names of the .swap in the cache only
                self.files.sync()
            for first in (True, False):  # while the first original exists, all the others do
                group = sorted(n for n, p in replaced.items() if (p.offset in ranges) == first)
                for name in group:
                    self._remove_replaced(name, replaced[name], compared)
                if group:  # no original comes back beside its replacement
                    self.files.sync()
        # The .log first: a .log.swap without its indexes would be taken for a roll.
        for names in (logs, [name for name in swaps if name not in logs]):
            for name in sorted(names):
                self.files.rename(name, name.removesuffix(SWAP_SUFFIX))
            if names:
                self.files.sync()

    def _remove_replaced(self, name: str, p: SegmentFile, compared: _Ranges) -> None:
        """Remove an original, or set it aside unless its replacement was ``compared`` with all of
        them.
        """
        if p.suffix != LOG_SUFFIX or p.offset in compared:
            self.files.remove(name, "it was replaced")
        else:
            self.remover.discard(self.files.by_name(p.offset, ""), "it was replaced")

    def settle_roll(self, base_offset: int) -> None:
        """Give a rolled segment its final name, durably.

        The segment before it must be on the disk.
        """
        final = filenames.segment_file_name(base_offset, LOG_SUFFIX)
        self.files.sync()  # also the names of the indexes
        self.files.rename(final + SWAP_SUFFIX, final)
        self.files.sync()

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
            self.files.sync()
            for base, suffix in group:
                cleaned = filenames.segment_file_name(base, suffix, CLEANED_SUFFIX)
                if self.files.storage.info(self.files.path(cleaned)) is not None:
                    self.files.rename(
                        cleaned, filenames.segment_file_name(base, suffix, SWAP_SUFFIX)
                    )
        self.files.sync()
        self._ends, self._sound = {}, {}
        bases = {piece.base_offset for piece in pieces}
        found: dict[str, SegmentFile] = {}
        for entry in self.files.storage.scan_dir(self.files.directory):
            p = filenames.parse_segment_file(entry.name)
            if p is not None and (p.transition != SWAP_SUFFIX or p.offset in bases):
                found[entry.name] = p
        self._replace_swapped(found)

    def _write_piece(
        self, source: Segment, piece: SplitPiece, end: int, producers: ProducerStateManager
    ) -> None:
        """Write the ``.cleaned`` files of a piece, durable except for their names."""
        files, sizes = self.files, {LOG_SUFFIX: end - piece.position}
        copy = CleanedSegment(
            files.storage, files.directory, piece.base_offset, files.config, files.clock, sizes
        )
        copy_range(source.log, piece.position, end, files.storage, copy.log_path, sync=False)
        try:
            copy.txn_index.reset()
            scan = scan_segment(copy, producers=producers)
            copy.install_indexes(scan.offset_index, scan.time_index + scan.final_time_entry())
            copy.flush(indexes=True)
        finally:
            copy.close()
        info = self.files.storage.info(source.log_path)
        if info is not None:  # the age of the file counts if records have no timestamps (F-148)
            copy.set_modified_ms(info.mtime_ms)

    def _headers(self, bases: Iterable[int], transition: str) -> Iterator[_ComparedHeader]:
        for base in bases:
            with self.files.opened_by_name(base, transition) as segment:
                yield from _headers_of(segment)

    def _end(self, base_offset: int, transition: str) -> int:
        """The offset after the last whole batch by headers; the base if there is none."""
        end = self._ends.get((base_offset, transition))
        if end is None:
            end = base_offset
            with self.files.opened_by_name(base_offset, transition) as segment:
                for rows, columns, capacity in segment.live().scan(0, check_crc=False):
                    end = columns[_LAST * capacity + rows - 1] + 1
            self._ends[base_offset, transition] = end
        return end

    def _sound_end(self, base_offset: int) -> int:
        """The offset up to which the checksums of an original match; 2⁶³ if they all do."""
        sound = self._sound.get(base_offset)
        if sound is None:
            sound, size = base_offset, 0
            with self.files.opened_by_name(base_offset, "") as segment:
                for rows, columns, capacity in segment.live().scan(0, check_crc=True):
                    sound = columns[_LAST * capacity + rows - 1] + 1
                    size += sum(columns[_SIZE * capacity : _SIZE * capacity + rows])
                if size == segment.size:
                    sound = 2**63
            self._sound[base_offset] = sound
        return sound
