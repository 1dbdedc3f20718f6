"""Replicas of one partition against each other: below their high watermarks they are equal (I-4).

The replica that has most of the committed records is the reference. Each other replica is compared
with it, up to that replica's own high watermark. Two replicas that equal the reference equal each
other. While segments are checked, on any machine, their batches are folded into digests of ranges
of offsets (``digests``). Here the digests are compared. Only a range whose digests differ is read
again (``range_diff``).

Replicas may differ below the highest log start, and where compaction has been: each broker compacts
at its own time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from logstore.verify.common.digests import CompareSpec
from logstore.verify.common.report import UNKNOWN, Finding, Severity
from logstore.verify.partition.partition_check import PartitionCheck
from logstore.verify.replicas.compared_replica import ComparedReplica, assign_side_names
from logstore.verify.replicas.range_diff import DiffBounds, Difference, DiffRange, narrow
from logstore.verify.segment.segment_check import VerifyOptions

_SPAN = 65_536
_RANGES_MAX = 4096
"""How many ranges a partition has at most: each costs a small object for every replica."""

_READ_MAX = 8
"""How many ranges of two replicas are read again. Further differences are reported as ranges."""

_NO_END = 2**63 - 1


def plan_ranges(checks: Iterable[PartitionCheck]) -> None:
    """Have the jobs of replicas digest the offsets that all of them should have in common.

    The ranges end at the highest high watermark, so that a replica whose own high watermark lags
    does not hide a difference between the others. On such a replica the last range is only partly
    committed, and ``narrow`` decides which records count.
    """
    checks = [check for check in checks if check.jobs]
    checks = list(filter(_of_topic(checks), checks))
    if len(checks) < 2:
        return
    start = max(check.first_offset for check in checks)
    marks = [c.facts.high_watermark for c in checks if c.facts.high_watermark >= 0]
    end = max(marks, default=_NO_END)
    span = _SPAN
    while max(check.jobs[-1].base for check in checks) - start > span * _RANGES_MAX:
        span *= 2
    spec = CompareSpec(start, end, span)
    for check in checks:
        check.jobs = [
            replace(job, compare=spec)
            if job.base < end and (job.next_base < 0 or start < job.next_base)
            else job
            for job in check.jobs
        ]


def compare(replicas: Sequence[ComparedReplica], options: VerifyOptions) -> list[Finding]:
    """The differences between replicas. Also notes in their reports how far they were compared.

    Raises:
        OSError: the medium refused.
    """
    jobs = (job for replica in replicas for job in replica.check.jobs)
    spec = next((job.compare for job in jobs if job.compare), None)
    of_topic = _of_topic([replica.check for replica in replicas])
    sides = [replica for replica in replicas if replica.ends and of_topic(replica.check)]
    if spec is None or len(sides) < 2:
        return []
    assign_side_names(sides)
    known = [side.mark for side in sides if side.mark >= 0]
    reference = max(sides, key=lambda side: (min(side.mark, side.end), side.end))
    others = [side for side in sides if side is not reference]
    start, notes = _start(spec, [reference, *others])
    disagreements: list[_Disagreement] = []
    for side in others:
        committed = side.mark >= 0
        end = min(side.mark if committed else min(known, default=_NO_END), side.end, reference.end)
        if not committed:
            message = f"no high watermark on file: compared up to offset {end}"
            notes.append(side.finding(Severity.INFO, "replicas-differ", message))
        if end > start:
            pair = _Pair(side, reference, start, end, spec, options, committed)
            disagreements += pair.run()
            side.compared(start, end)
            reference.compared(start, end)
        elif committed and min(side.end, reference.end) > start:
            message = f"not compared: high watermark {side.mark}, what all have begins at {start}"
            notes.append(side.finding(Severity.INFO, "replicas-differ", message))
    return [*notes, *_findings(disagreements, reference, others)]


def _of_topic(checks: Iterable[PartitionCheck]) -> Callable[[PartitionCheck], bool]:
    """Which checks belong to the topic, and not to another one of its name (F-37): those with the
    id that most of them have.
    """
    ids = Counter(check.metadata.topic_id for check in checks if check.metadata)
    usual = {topic_id for topic_id, _ in ids.most_common(1)}
    return lambda check: check.metadata is None or check.metadata.topic_id in usual


def _start(spec: CompareSpec, sides: Sequence[ComparedReplica]) -> tuple[int, list[Finding]]:
    """The offset from which on replicas must be equal, above what was deleted or compacted."""
    start = max(spec.start, *(side.vanished_end for side in sides))
    if not any(side.compacted for side in sides):
        return start, []
    start = max(start, *(side.compacted_end for side in sides))
    message = f"compacted, on each broker in its own time: compared from offset {start} on"
    return start, [sides[0].finding(Severity.INFO, "log-compacted-gap", message)]


class _Disagreement(NamedTuple):
    """A difference of ``side`` from the reference."""

    side: ComparedReplica
    severity: Severity
    difference: Difference


class _Pair(NamedTuple):
    """A replica and its reference, compared over offsets ``[start, end)``."""

    side: ComparedReplica
    reference: ComparedReplica
    start: int
    end: int
    spec: CompareSpec
    options: VerifyOptions
    committed: bool

    def run(self) -> Iterator[_Disagreement]:
        severity = Severity.ERROR if self.committed else Severity.WARNING
        parted = self.end
        for difference in self._content():
            parted = min(parted, difference.offset)
            notes = filter(None, (difference.note, self._parting(difference)))
            difference = replace(difference, note="; ".join(notes))
            yield _Disagreement(self.side, severity, difference)
        epochs = self._epochs()
        if epochs is not None and epochs.offset < parted:
            yield _Disagreement(self.side, severity, epochs)

    # -- content -------------------------------------------------------------------------------

    def _content(self) -> list[Difference]:
        """The differences: exact for the first unequal ranges, by digests for the rest."""
        found: list[Difference] = []
        unequal = list(self._unequal())
        for number, follows in unequal[:_READ_MAX]:
            differences = self._narrow(number)
            if follows and found and found[-1].to_end and differences and differences[0].from_start:
                more = differences.pop(0)
                found[-1] = replace(found[-1], end_offset=more.end_offset, to_end=more.to_end)
            found += differences
        span, rest = self.spec.span, unequal[_READ_MAX:]
        while rest and rest[0][1] and found and found[-1].to_end:
            number, _ = rest.pop(0)
            found[-1] = replace(found[-1], end_offset=min(self.end, (number + 1) * span))
        if rest:
            low, high = max(self.start, rest[0][0] * span), (rest[-1][0] + 1) * span
            note = f"{len(rest)} more ranges of {span} offsets differ"
            found.append(Difference(low, min(self.end, high), None, None, note))
        return found

    def _unequal(self) -> Iterator[tuple[int, bool]]:
        """The numbers of ranges whose digests differ, and whether those of the one before do."""
        mine, theirs, span = self.side.ranges, self.reference.ranges, self.spec.span
        follows = False
        for number in sorted(mine.keys() | theirs.keys()):
            if number * span >= self.end or (number + 1) * span <= self.start:
                continue
            same = number in mine and number in theirs and mine[number].same(theirs[number])
            if not same:
                yield number, follows
            follows = not same

    def _narrow(self, number: int) -> list[Difference]:
        low, high = number * self.spec.span, (number + 1) * self.spec.span
        extent = DiffBounds(self.start, self.end, high)
        mine, theirs = (side.range_starts.get(number, ()) for side in (self.side, self.reference))
        try:
            found = narrow(mine, theirs, extent, self.options.unpacked_max)
        except FileNotFoundError:
            found = []  # deleted since, as retention does: the digests have seen it
        # Digests that go beyond what is compared may well differ there.
        inside = self.start <= max(low, self.spec.start) and min(high, self.spec.end) <= self.end
        is_reported = self.side.reports_unreadable(low, high) or self.reference.reports_unreadable(
            low, high
        )
        if found or is_reported or not inside:
            return found
        note = "so say the digests of this range; when read again, nothing was found"
        return [Difference(max(low, self.start), min(high, self.end), None, None, note)]

    def _parting(self, difference: Difference) -> str:
        """The last epoch up to which both have the same history."""
        mine, theirs = difference.mine, difference.theirs
        if mine is None or theirs is None:
            return ""
        if mine.epoch == theirs.epoch:
            return f"they parted in epoch {mine.epoch}"
        before = [
            {run.epoch for run in side.epochs if run.first_offset < difference.offset}
            for side in (self.side, self.reference)
        ]
        common = max(before[0] & before[1], default=None)
        return "" if common is None else f"they parted after epoch {common}"

    # -- leader epochs -------------------------------------------------------------------------

    def _epochs(self) -> Difference | None:
        """The first offset that the batches of the two sides have in different leader epochs.

        They lie outside the checksum and the digests (F-62).
        """
        mine, theirs = self.side.epochs, self.reference.epochs
        at, there = 0, 0
        while at < len(mine) and there < len(theirs):
            one, other = mine[at], theirs[there]
            low = max(one.first_offset, other.first_offset, self.start)
            high = min(one.last_offset + 1, other.last_offset + 1, self.end)
            differ = low < high and one.epoch != other.epoch
            if differ and not (
                self.side.finds_epoch_wrong(one) or self.reference.finds_epoch_wrong(other)
            ):
                places = self.side.epoch_range(one), self.reference.epoch_range(other)
                return Difference(low, high, *places)
            at, there = (
                at + (one.last_offset <= other.last_offset),
                there + (other.last_offset <= one.last_offset),
            )
        return None


# -- which replica is wrong --------------------------------------------------------------------


def _findings(
    disagreements: Iterable[_Disagreement],
    reference: ComparedReplica,
    others: Sequence[ComparedReplica],
) -> Iterator[Finding]:
    """One finding for each difference of each odd replica.

    A log has no holes, so the replica that lacks a batch has lost it, however many others have lost
    it as well: damage is no testimony. One that cannot read its batch there has a finding there
    already. Two replicas that have different batches cannot show which one is right. A third one
    can: the replica that disagrees with the two others is the odd one, even if it is the reference.
    """
    known = list(disagreements)
    alike: dict[object, list[_Disagreement]] = {}
    for found in known:
        mine = found.difference.mine
        key = found.difference.offset, mine.text if mine else found.difference.note
        alike.setdefault(key, []).append(found)
    for group in alike.values():
        at = group[0].difference.offset
        apart = {d.side for d in known if d.difference.offset <= at < d.difference.end_offset}
        agreeing = [side for side in others if side not in apart and at < side.report.compared_end]
        yield from _report(group, [reference, *agreeing])


def _report(group: Sequence[_Disagreement], beside: Sequence[ComparedReplica]) -> Iterator[Finding]:
    """Report a difference. ``beside`` is the reference and the replicas that equal it there."""
    first = group[0].difference
    names = _names(found.side for found in group)
    if first.mine is not None and first.theirs is None:
        for side in beside:
            severity = Severity.INFO if _is_blind(side, first) else _worst(group)
            yield _finding(group[0], severity, side, names, first.theirs, first.mine)
    elif len(group) > len(beside) and (first.mine or not first.theirs):
        yield _finding(group[0], _worst(group), beside[0], names, first.theirs, first.mine)
    else:
        for found in group:
            places = found.difference.mine, found.difference.theirs
            is_blind = places[0] is None and _is_blind(found.side, found.difference)
            severity = Severity.INFO if is_blind else found.severity
            yield _finding(found, severity, found.side, _names(beside), *places)


def _is_blind(side: ComparedReplica, difference: Difference) -> bool:
    return side.reports_unreadable(difference.offset, difference.end_offset)


def _worst(group: Sequence[_Disagreement]) -> Severity:
    return min((found.severity for found in group), key=list(Severity).index)


def _names(sides: Iterable[ComparedReplica]) -> str:
    return ", ".join(side.name for side in sides)


def _finding(
    found: _Disagreement,
    severity: Severity,
    odd: ComparedReplica,
    names: str,
    here: DiffRange | None,
    there: DiffRange | None,
) -> Finding:
    difference = found.difference
    offset, last = difference.offset, difference.end_offset - 1
    if here and there:
        message = f"not as on {names}: here {here.text}; there {there.text}"
    elif here:
        message = f"not on {names}: {here.text}"
    elif there and _is_blind(odd, difference):
        message = f"unreadable here, whole on {names}: {there.text}"
    elif there:
        message = f"missing here, present on {names}: {there.text}"
    else:
        message = f"not as on {names}"
    if difference.note:
        message += f"; {difference.note}"
    shown = max((place.last_offset for place in (here, there) if place), default=UNKNOWN)
    if last > shown:
        message += f"; they differ up to offset {last}"
    return odd.finding(severity, "replicas-differ", message, offset, here)
