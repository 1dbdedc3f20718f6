"""One log out of the pieces of all replicas, batch by batch, in the order of their offsets.

Each piece has a reader that passes its headers a window at a time. Replicas with the same batches
are compared a whole table at once; of different batches for the same offsets one is chosen.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from logstore.format.header import HEADER_SIZE
from logstore.kernels import SCAN_COLUMNS, scan_batches
from logstore.rescue.placing import RescuedRange, mended_head
from logstore.rescue.survey import PatchyFile, place_legacy
from logstore.verify.common.batch_rules import MAGIC
from logstore.verify.common.header_table import BASE, COUNT, LAST, POSITION, ROWS, SIZE, HeaderTable


class Candidate(NamedTuple):
    """The batch at which the reader of one piece stands.

    ``fits``: its epoch is the epoch of the committed history there. ``leader``: the rank of its
    replica, 0 for the one closest to that history. ``doubtful``: its header was mended, or nothing
    confirms its offsets.
    """

    reader: int
    replica: int
    leader: int
    first: int
    last: int
    size: int
    crc: int
    records: int
    fits: bool
    doubtful: bool

    @property
    def content(self) -> tuple[int, int, int]:
        return self.first, self.size, self.crc


class BatchFate(Enum):
    TAKEN = "taken"
    COPY = "copy"
    """The same batch was taken from another place."""
    DIVERGENT = "divergent"
    COMPACTED = "compacted"
    """The same batches, compacted further."""
    OUTVOTED = "outvoted"
    """More replicas have other content at the same offsets."""
    CONTRADICTS = "contradicts"


def choose(candidates: Sequence[Candidate]) -> Candidate:
    """The batch to take among those that overlap.

    In this order: a batch of the committed epoch; the batch that most replicas have; a batch that
    was not mended; of two copies the less compacted one; the batch of the replica closest to the
    committed history.
    """
    replicas = {
        c.content: {o.replica for o in candidates if o.content == c.content} for c in candidates
    }

    def rank(one: Candidate) -> tuple[bool, int, bool, int, int, int]:
        support = max(
            len(replicas[other.content]) for other in candidates if not_less_compacted(one, other)
        )
        return one.fits, support, not one.doubtful, one.records, -one.leader, -one.reader

    return max(candidates, key=rank)


def not_less_compacted(one: Candidate, other: Candidate) -> bool:
    """Whether ``other`` is the same batch as ``one``, or a compacted copy of it.

    Then a replica that has ``other`` supports ``one`` as well.
    """
    same_range = (one.first, one.last) == (other.first, other.last)
    return one.content == other.content or (same_range and one.records > other.records)


def fate_of(candidate: Candidate, taken: Candidate, candidates: Sequence[Candidate]) -> BatchFate:
    """The fate of a candidate that is not taken."""
    if candidate.content == taken.content:
        return BatchFate.COPY
    if not_less_compacted(taken, candidate):
        return BatchFate.COMPACTED
    support = [
        len({c.replica for c in candidates if c.content == one.content})
        for one in (candidate, taken)
    ]
    outvoted = support[0] < support[1] or not candidate.fits
    return BatchFate.OUTVOTED if outvoted else BatchFate.CONTRADICTS


_WINDOW = 1 << 20
_CRC = SCAN_COLUMNS.index("crc")
_COMPARED = (BASE, LAST, SIZE, _CRC)
_END = 2**63


class MergeSource(NamedTuple):
    """A piece of one replica. ``limit``: the offset up to which it is committed history."""

    replica: int
    leader: int
    piece: RescuedRange
    limit: int
    fits: bool


class MergedRange(NamedTuple):
    """Consecutive batches of one file and their fate: bytes ``[start, end)``, offsets ``[first,
    next)``.
    """

    fate: BatchFate
    source: MergeSource
    start: int
    end: int
    first: int
    next: int
    batches: int
    records: int


class Missing(NamedTuple):
    """Offsets ``[first, next)`` that no replica has.

    ``history``: a replica shows that they were missing before any damage.
    """

    first: int
    next: int
    history: bool


class _Reader:
    """Reads a piece batch by batch, and stands at one of them."""

    def __init__(self, number: int, source: MergeSource, file: PatchyFile) -> None:
        self.number, self.source, self._file = number, source, file
        self._table = HeaderTable()
        self._at = source.piece.start
        self.row = 0
        self.behind = source.piece.behind
        self._fill()

    def _fill(self) -> None:
        """The next table; ``row`` is at its beginning."""
        self.row = self._table.count = 0
        piece = self.source.piece
        if self._at >= piece.end:
            return
        if piece.mended or piece.batches == 1:
            self._at = self._single(piece)
            return
        size = min(_WINDOW, piece.end - self._at)
        while True:
            view = memoryview(self._file.read_at(self._at, size))
            rows, done, _ = scan_batches(view, 0, self._table.columns, False)
            if rows or size >= piece.end - self._at:
                break
            size = min(2 * size, piece.end - self._at)  # a batch larger than the window
        self._table.start, self._table.count = self._at, rows
        if rows and piece.magic < MAGIC:
            place_legacy(view, self._table)
        self._at = self._at + done if rows else piece.end

    def _single(self, piece: RescuedRange) -> int:
        head = mended_head(piece, self._file.read_at(piece.start, HEADER_SIZE))
        if piece.magic == MAGIC:
            self._table.fill_large(head, piece.end - piece.start, piece.start)
        else:
            data = head + self._file.read_at(piece.start + len(head), piece.end - piece.start)
            data = data[: piece.end - piece.start]
            self._table.start = piece.start
            self._table.count, _, _ = scan_batches(data, 0, self._table.columns, False)
            if self._table.count:
                place_legacy(memoryview(data), self._table)
        return piece.end

    @property
    def done(self) -> bool:
        return self._table.count == 0

    @property
    def rows_left(self) -> int:
        return self._table.count - self.row

    def _cell(self, column: int) -> int:
        return self._table.columns[column * ROWS + self.row]

    @property
    def first(self) -> int:
        return self._cell(BASE)

    @property
    def last(self) -> int:
        return self._cell(LAST)

    @property
    def content(self) -> tuple[int, int]:
        return self._cell(SIZE), self._cell(_CRC)

    def candidate(self) -> Candidate:
        source = self.source
        doubtful = source.piece.mended or source.piece.alone
        return Candidate(
            self.number,
            source.replica,
            source.leader,
            self.first,
            self.last,
            self._cell(SIZE),
            self._cell(_CRC),
            self._cell(COUNT),
            source.fits,
            doubtful,
        )

    def column(self, number: int, rows: int) -> memoryview:
        at = number * ROWS + self.row
        return self._table.columns[at : at + rows]

    def rows_below(self, offset: int) -> int:
        """Count the batches from here on that end below ``offset``."""
        return bisect_left(self.column(LAST, self.rows_left), offset)

    def pass_batches(self, rows: int, fate: BatchFate) -> MergedRange:
        """Go on behind ``rows`` batches; they are what is returned."""
        start = self._table.start + self._cell(POSITION)
        first = self.first
        records = sum(self.column(COUNT, rows))
        last_row = self.row + rows - 1
        columns = self._table.columns
        end = (
            self._table.start
            + columns[POSITION * ROWS + last_row]
            + columns[SIZE * ROWS + last_row]
        )
        self.behind = columns[LAST * ROWS + last_row] + 1
        stretch = MergedRange(
            fate, self.source, start, end, first, self.behind, rows, max(records, rows)
        )
        self.row += rows
        if self.row == self._table.count:
            self._fill()
        return stretch

    def gaps(self, rows: int) -> Iterator[Missing]:
        """Yield what is missing between the next batches, without damage between them."""
        bases, lasts = self.column(BASE, rows), self.column(LAST, rows)
        if sum(lasts) - sum(bases) + rows == lasts[-1] + 1 - bases[0]:
            return
        for row in range(1, rows):
            if bases[row] != lasts[row - 1] + 1:
                yield Missing(lasts[row - 1] + 1, bases[row], True)


def read_batches(piece: RescuedRange, file: PatchyFile) -> Iterator[tuple[int, int, int, int]]:
    """First offset, last offset, size and checksum of each batch of a piece."""
    reader = _Reader(0, MergeSource(0, 0, piece, piece.next, True), file)
    while not reader.done:
        rows = reader.rows_left
        yield from zip(*(reader.column(c, rows) for c in _COMPARED), strict=True)
        reader.pass_batches(rows, BatchFate.TAKEN)


@dataclass(slots=True)
class Merge:
    """Merges pieces. ``open_file`` opens a file by the numbers of replica and file.

    ``copies`` counts the batches that were found more than once.
    """

    sources: list[MergeSource]
    open_file: Callable[[int, int], PatchyFile]
    copies: int = 0
    _queue: list[MergeSource] = field(default_factory=list)
    _readers: list[_Reader] = field(default_factory=list)
    _opened: int = 0
    _next: int = -1
    _last: tuple[int, int] = (0, 0)  # size and checksum of the last batch taken
    agreed: bool = False
    """Whether several replicas had the batch that was taken last."""

    def run(self) -> Iterator[MergedRange | Missing]:
        """All batches with their fates, and what is missing after the first one.

        The stretches that are taken ascend and never overlap.
        """
        self._queue = sorted(self.sources, key=lambda s: (s.piece.first, s.leader, s.piece.file))
        while True:
            yield from self._drop_stale()
            head = min([reader.first for reader in self._readers], default=_END)
            if self._open_until(head):
                continue
            if not self._readers:
                return
            if self._next < 0:
                self._next = head
            yield from self._step(head)

    # -- readers ---------------------------------------------------------------------------------

    def _open_until(self, offset: int) -> bool:
        """Open the pieces that begin at ``offset`` or before it; at least one if there is none."""
        opened = self._opened
        while self._opened < len(self._queue) and (self._queue[self._opened].piece.first <= offset):
            self._open(self._queue[self._opened])
            if offset == _END:
                break
        return self._opened > opened

    def _open(self, source: MergeSource) -> None:
        file = self.open_file(source.replica, source.piece.file)
        self._readers.append(_Reader(self._opened, source, file))
        self._opened += 1

    def _next_to_open(self) -> int:
        return self._queue[self._opened].piece.first if self._opened < len(self._queue) else _END

    def _drop_stale(self) -> Iterator[MergedRange]:
        """Skip batches below the end of the merged log or outside the committed history."""
        for reader in list(self._readers):
            while not reader.done:
                if reader.last >= reader.source.limit:
                    yield reader.pass_batches(reader.rows_left, BatchFate.DIVERGENT)
                elif self._repeats(reader):
                    reader.pass_batches(1, BatchFate.TAKEN)
                    self.copies += 1
                elif reader.first < self._next:
                    outvoted = self.agreed or not reader.source.fits
                    yield reader.pass_batches(
                        1, BatchFate.OUTVOTED if outvoted else BatchFate.CONTRADICTS
                    )
                else:
                    break
            if reader.done:
                self._readers.remove(reader)

    def _repeats(self, reader: _Reader) -> bool:
        """Whether a batch was mended to follow its own copy."""
        mended = reader.source.piece.mended and reader.first == self._next
        return mended and reader.content == self._last

    # -- one step ----------------------------------------------------------------------------------

    def _step(self, head: int) -> Iterator[MergedRange | Missing]:
        here = [reader for reader in self._readers if reader.first == head]
        around, end = here, head
        while end < max(reader.last for reader in around):
            end = max(reader.last for reader in around)
            if self._open_until(end):
                return  # they may overlap with what is here
            around = [reader for reader in self._readers if reader.first <= end]
        rows = self._unanimous(here) if len(around) == len(here) else 0
        self.agreed = rows > 0 and len({reader.source.replica for reader in here}) > 1
        if rows:
            yield from self._take_batches(here[0], rows)
            for reader in here[1:]:
                reader.pass_batches(rows, BatchFate.TAKEN)
                self.copies += rows
            return
        yield from self._contested(around)

    def _unanimous(self, here: Sequence[_Reader]) -> int:
        """Count the batches that all readers at this offset share, before another reader begins."""
        rest = [reader.first for reader in self._readers if reader not in here]
        limit = min([self._next_to_open(), *rest, *(reader.source.limit for reader in here)])
        leader = here[0]
        rows = min(min(reader.rows_left for reader in here), leader.rows_below(limit))
        return min([rows, *(common_rows(leader, other, rows) for other in here[1:])])

    def _contested(self, around: Sequence[_Reader]) -> Iterator[MergedRange | Missing]:
        """Take one of the different batches at the same offsets, and drop those that overlap with
        it.
        """
        candidates = {reader.number: reader.candidate() for reader in around}
        taken = choose(list(candidates.values()))
        for reader in around:
            other = candidates[reader.number]
            overlaps = other.first <= taken.last and taken.first <= other.last
            if reader.number == taken.reader or not overlaps:
                continue
            lost = reader.pass_batches(1, fate_of(other, taken, list(candidates.values())))
            if lost.fate is BatchFate.COPY:
                self.copies += 1
            else:
                yield lost
        winner = next(reader for reader in around if reader.number == taken.reader)
        if taken.first == min(other.first for other in candidates.values()):
            yield from self._take_batches(winner, 1)

    def _take_batches(self, reader: _Reader, rows: int) -> Iterator[MergedRange | Missing]:
        first = reader.first
        if first > self._next:
            yield Missing(self._next, first, self._was_missing(first))
        yield from reader.gaps(rows)
        self._last = reader.column(SIZE, rows)[-1], reader.column(_CRC, rows)[-1]
        self._next = reader.column(LAST, rows)[-1] + 1
        yield reader.pass_batches(rows, BatchFate.TAKEN)

    def _was_missing(self, until: int) -> bool:
        """Whether a replica skips from the end of the merged log to ``until`` without damage
        between.
        """
        readers = (reader for reader in self._readers if not reader.done)
        return any(0 <= r.behind <= self._next and r.first >= until for r in readers)


def common_rows(one: _Reader, other: _Reader, rows: int) -> int:
    """Count the batches, of the next ``rows``, that are the same in both."""
    low, high = 0, rows + 1  # equal up to low, not up to high
    while low + 1 < high:
        middle = rows if low == 0 and high == rows + 1 else (low + high) // 2
        if all(one.column(c, middle)[low:] == other.column(c, middle)[low:] for c in _COMPARED):
            low = middle
        else:
            high = middle
    return low
