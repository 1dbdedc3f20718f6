"""From replicas to marks on a line: plots as numbers, which the template draws as SVG.

Places and lengths are percentages of the plot's width, so that a plot fits a wide screen, a
telephone and a sheet of paper while its text keeps its size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Lane:
    """The line of one replica."""

    replica: ReplicaRow
    x: float
    width: float
    segments: list[float] = field(default_factory=list)
    marks: list[PlotMark] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    high_watermark: float = UNKNOWN


class Lanes(NamedTuple):
    """All replicas of one partition, on one axis."""

    name: str
    axis: Axis
    lanes: list[Lane]


def bar_plots(page: Page) -> list[BarPlot]:
    """Bytes, records, and how far each replica is behind: one bar for each replica."""
    plots = [
        _bars(page, "Bytes", "size of the segments", lambda r: r.partition.bytes, size),
        _bars(page, "Records", "by the batch headers", lambda r: r.partition.records, count),
    ]
    if any(replica.lag != UNKNOWN for replica in page.plotted):
        note = "offsets behind the longest replica of the partition"
        plots.append(_bars(page, "Lag", note, lambda r: r.lag, count, "only copy"))
    if any(replica.uncommitted != UNKNOWN for replica in page.plotted):
        note = "offsets between high watermark and log end"
        plots.append(
            _bars(page, "Not committed", note, lambda r: r.uncommitted, count, "not known")
        )
    return plots


def _bars(
    page: Page,
    title: str,
    note: str,
    value_of: Callable[[ReplicaRow], int],
    text_of: Callable[[int], str],
    missing: str = "",
) -> BarPlot:
    values = [value_of(replica) for replica in page.plotted]
    longest = max(values, default=0)
    bars = [
        Bar(
            replica,
            100 * max(value, 0) / max(longest, 1),
            missing if value == UNKNOWN else text_of(value),
        )
        for replica, value in zip(page.plotted, values, strict=True)
    ]
    return BarPlot(title, note, bars)


def finding_lanes(page: Page) -> list[Lanes]:
    """The findings that have an offset, placed on the lines of their partitions."""
    partitions = [_lanes(copies, _finding_lane) for copies in copies_of(page.plotted)]
    return [held for held in partitions if any(lane.marks for lane in held.lanes)]


def epoch_lanes(page: Page) -> list[Lanes]:
    """The offsets of each leader epoch, for the partitions whose batches have one."""
    return [
        _lanes(copies, _epoch_lane)
        for copies in copies_of(page.plotted)
        if any(replica.partition.epochs for replica in copies)
    ]


def _lanes(copies: list[ReplicaRow], lane_of: Callable[[ReplicaRow, Axis], Lane]) -> Lanes:
    axis = Axis(
        min(replica.partition.log_start_offset for replica in copies),
        max(replica.partition.log_end_offset for replica in copies),
    )
    return Lanes(copies[0].name, axis, [lane_of(replica, axis) for replica in copies])


def _extent(replica: ReplicaRow, axis: Axis) -> tuple[float, float]:
    x = axis.place(replica.partition.log_start_offset)
    return x, axis.place(replica.partition.log_end_offset) - x


def _finding_lane(replica: ReplicaRow, axis: Axis) -> Lane:
    held = replica.partition
    together: defaultdict[tuple[Severity, int], list[tuple[int, Finding]]] = defaultdict(list)
    for finding in replica.findings:
        offset = place_of(finding)
        if offset >= 0:
            place = min(int(axis.place(offset) * PLACES / 100), PLACES - 1)
            together[finding.severity, place].append((offset, finding))
    marks = [_mark(severity, found, axis) for (severity, _), found in together.items()]
    ranks = list(Severity)
    marks.sort(key=lambda mark: (-ranks.index(mark.severity), mark.x))  # the worst lie on top
    return Lane(
        replica,
        *_extent(replica, axis),
        segments=_spread(axis.place(base) for base, _, _ in held.segment_sizes[1:]),
        marks=marks,
        high_watermark=axis.place(held.high_watermark) if held.high_watermark >= 0 else UNKNOWN,
    )


def _mark(severity: Severity, found: list[tuple[int, Finding]], axis: Axis) -> PlotMark:
    offsets = sorted(offset for offset, _ in found)
    where = axis.place(offsets[0])
    if len(found) > 1:
        text = f"{plural(len(found), str(severity))}, offsets {offsets[0]:,} to {offsets[-1]:,}"
        return PlotMark(where, severity, text)
    finding = found[0][1]
    text = f"{finding.rule} at offset {offsets[0]:,}: {finding.message}"
    return PlotMark(where, severity, text if len(text) <= _EXAMPLE else text[: _EXAMPLE - 1] + "…")


def _spread(places: Iterable[float]) -> list[float]:
    """Only the places that the eye can tell apart: a thousand segments need not be a thousand
    marks.
    """
    kept: list[float] = []
    for place in places:
        if not kept or place - kept[-1] >= 100 / PLACES:
            kept.append(place)
    return kept


def _epoch_lane(replica: ReplicaRow, axis: Axis) -> Lane:
    spans = [_span(runs, axis) for runs in _visible_runs(replica.partition.epochs, axis)]
    return Lane(replica, *_extent(replica, axis), spans=spans)


def _visible_runs(
    epochs: Iterable[tuple[int, int, int]], axis: Axis
) -> Iterator[list[tuple[int, int, int]]]:
    """Runs of batches. Neighbours that are too narrow to be seen are joined."""
    narrow: list[tuple[int, int, int]] = []
    for run in epochs:
        if axis.place(run[2] + 1) - axis.place(run[1]) >= _NARROWEST:
            if narrow:
                yield narrow
            yield [run]
            narrow = []
            continue
        narrow.append(run)
        if axis.place(run[2] + 1) - axis.place(narrow[0][1]) >= _NARROWEST:
            yield narrow
            narrow = []
    if narrow:
        yield narrow


def _span(runs: list[tuple[int, int, int]], axis: Axis) -> Span:
    epoch, first, _ = runs[0]
    final, _, last = runs[-1]
    x = axis.place(first)
    width = max(axis.place(last + 1) - x, _NARROWEST)
    name = f"epoch {epoch}" if len(runs) == 1 else f"epochs {epoch} to {final}"
    label = str(epoch) if len(runs) == 1 else "…"
    fits = width * _LANE_PIXELS / 100 >= 8 * len(label) + 8
    text = f"{name}: offsets {first:,} to {last:,}"
    return Span(x, width, epoch % TONES, label if fits else "", text)
