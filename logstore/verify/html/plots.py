"""From replicas to marks on a line: plots as numbers, which the template draws as SVG.

Places and lengths are percentages of the plot's width, so that a plot fits a wide screen, a
telephone and a sheet of paper while its text keeps its size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from logstore.verify.common.report import UNKNOWN, Finding, Severity
from logstore.verify.html.page import Page, ReplicaRow, copies_of, place_of
from logstore.verify.html.text import count, plural, size

PLACES = 120
"""How many places of a line can show marks of one severity. Nearer marks become one."""

TONES = 6
_NARROWEST = 0.5
"""Neighbouring epochs that are narrower than this percentage of the width are drawn as one."""

_LANE_PIXELS = 240
"""The width of a line on the narrowest screen: a label must fit its span there too."""

_EXAMPLE = 120
_BARS: tuple[tuple[str, str, Callable[[ReplicaRow], int], Callable[[int], str], str], ...] = (
    ("Bytes", "size of the segments", lambda r: r.partition.bytes, size, ""),
    ("Records", "by the batch headers", lambda r: r.partition.records, count, ""),
    (
        "Lag",
        "offsets behind the longest replica of the partition",
        lambda r: r.lag,
        count,
        "only copy",
    ),
    (
        "Not committed",
        "offsets between high watermark and log end",
        lambda r: r.uncommitted,
        count,
        "not known",
    ),
)
"""Title, note, value, its text, and the text of a value that a replica may lack."""


class Axis(NamedTuple):
    """Offsets of a partition, over all its replicas: ``start`` inclusive, ``end`` exclusive."""

    start: int
    end: int

    def place(self, offset: int) -> float:
        """The place in percent of the width. An offset beyond the axis stands at its edge."""
        inside = min(max(offset, self.start), self.end) - self.start
        return 100 * inside / max(self.end - self.start, 1)


class Bar(NamedTuple):
    replica: ReplicaRow
    length: float
    text: str


class BarPlot(NamedTuple):
    title: str
    note: str
    bars: list[Bar]


def bar_plots(page: Page) -> Iterator[BarPlot]:
    """Bytes, records, and how far each replica is behind, with one bar for each replica."""
    for title, note, value_of, text_of, missing in _BARS:
        values = [value_of(replica) for replica in page.plotted]
        if missing and all(value == UNKNOWN for value in values):
            continue
        longest = max([1, *values])
        bars = [
            Bar(replica, 100 * max(n, 0) / longest, missing if n == UNKNOWN else text_of(n))
            for replica, n in zip(page.plotted, values, strict=True)
        ]
        yield BarPlot(title, note, bars)


class PlotMark(NamedTuple):
    x: float
    severity: Severity
    text: str


class Span(NamedTuple):
    """Batches of one leader epoch, or of several that are too short to be seen apart.

    A narrow span is drawn wider than it is, so each span must lie above the one that follows.
    """

    x: float
    width: float
    tone: int
    label: str
    text: str


@dataclass(frozen=True)
class Lane:
    """The line of one replica, with marks for findings and spans for leader epochs."""

    replica: ReplicaRow
    axis: Axis

    @property
    def x(self) -> float:
        return self.axis.place(self.replica.partition.log_start_offset)

    @property
    def width(self) -> float:
        return self.axis.place(self.replica.partition.log_end_offset) - self.x

    @property
    def segments(self) -> Iterator[float]:
        """The places where segments begin, as far as the eye can tell apart: a thousand need not be
        a thousand marks.
        """
        last = -100.0
        for base, _, _ in self.replica.partition.segment_sizes[1:]:
            place = self.axis.place(base)
            if place - last >= 100 / PLACES:
                last = place
                yield place

    @cached_property
    def marks(self) -> list[PlotMark]:
        """The findings that have an offset; the worst come last, to lie on top."""
        together: defaultdict[tuple[Severity, int], list[tuple[int, Finding]]] = defaultdict(list)
        for finding in self.replica.findings:
            offset = place_of(finding)
            if offset >= 0:
                place = min(int(self.axis.place(offset) * PLACES / 100), PLACES - 1)
                together[finding.severity, place].append((offset, finding))
        marks = [self._mark(severity, found) for (severity, _), found in together.items()]
        ranks = list(Severity)
        return sorted(marks, key=lambda mark: (-ranks.index(mark.severity), mark.x))

    def _mark(self, severity: Severity, found: list[tuple[int, Finding]]) -> PlotMark:
        offsets = sorted(offset for offset, _ in found)
        if len(found) > 1:
            text = f"{plural(len(found), severity)}, offsets {offsets[0]:,} to {offsets[-1]:,}"
        else:
            finding = found[0][1]
            text = f"{finding.rule} at offset {offsets[0]:,}: {finding.message}"
            text = text if len(text) <= _EXAMPLE else text[: _EXAMPLE - 1] + "…"
        return PlotMark(self.axis.place(offsets[0]), severity, text)

    @cached_property
    def spans(self) -> list[Span]:
        """The offsets of each leader epoch. Neighbours too narrow to be seen are joined."""
        spans: list[Span] = []
        narrow: list[tuple[int, int, int]] = []
        for run in self.replica.partition.epochs:
            if narrow and self._extent([run]) >= _NARROWEST:
                spans.append(self._span(narrow))
                narrow = []
            narrow.append(run)
            if self._extent(narrow) >= _NARROWEST:
                spans.append(self._span(narrow))
                narrow = []
        return [*spans, self._span(narrow)] if narrow else spans

    def _extent(self, runs: list[tuple[int, int, int]]) -> float:
        return self.axis.place(runs[-1][2] + 1) - self.axis.place(runs[0][1])

    def _span(self, runs: list[tuple[int, int, int]]) -> Span:
        epoch, first, _ = runs[0]
        final, _, last = runs[-1]
        width = max(self._extent(runs), _NARROWEST)
        name = f"epoch {epoch}" if len(runs) == 1 else f"epochs {epoch} to {final}"
        label = str(epoch) if len(runs) == 1 else "…"
        fits = width * _LANE_PIXELS / 100 >= 8 * len(label) + 8
        text = f"{name}: offsets {first:,} to {last:,}"
        return Span(self.axis.place(first), width, epoch % TONES, label if fits else "", text)


class Lanes(NamedTuple):
    """All replicas of one partition, on one axis."""

    name: str
    axis: Axis
    lanes: list[Lane]


def finding_lanes(page: Page) -> list[Lanes]:
    """The partitions with findings that have an offset."""
    return [held for held in _lanes(page.plotted) if any(lane.marks for lane in held.lanes)]


def epoch_lanes(page: Page) -> list[Lanes]:
    """The partitions whose batches have a leader epoch."""
    return [held for held in _lanes(page.plotted) if any(lane.spans for lane in held.lanes)]


def _lanes(replicas: Iterable[ReplicaRow]) -> Iterator[Lanes]:
    for copies in copies_of(replicas):
        start = min(replica.partition.log_start_offset for replica in copies)
        end = max(replica.partition.log_end_offset for replica in copies)
        axis = Axis(start, end)
        yield Lanes(copies[0].name, axis, [Lane(replica, axis) for replica in copies])
