"""Which of several replicas is wrong where they differ, and how the finding says it.

A log has no holes, so the replica that lacks a batch has lost it, however many others have lost it
as well: damage is no testimony. One that cannot read its batch there is told of that already.

Two replicas that have different batches cannot show which one is right. A third one can: the
replica that disagrees with the two others is the odd one, even if it is the reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from logstore.verify.common.report import UNKNOWN, Finding, Severity
from logstore.verify.replicas.compared_replica import ComparedReplica
from logstore.verify.replicas.range_diff import Difference, DiffRange


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A difference of ``side`` from the reference."""

    side: ComparedReplica
    severity: Severity
    difference: Difference


def judge(
    disagreements: Iterable[Disagreement],
    reference: ComparedReplica,
    others: Sequence[ComparedReplica],
) -> Iterator[Finding]:
    """One finding for each difference of each odd replica."""
    told = list(disagreements)
    alike: dict[object, list[Disagreement]] = {}
    for found in told:
        mine = found.difference.mine
        key = found.difference.offset, mine.text if mine else found.difference.note
        alike.setdefault(key, []).append(found)
    for group in alike.values():
        at = group[0].difference.offset
        apart = {d.side for d in told if d.difference.offset <= at < d.difference.end_offset}
        agreeing = [side for side in others if side not in apart and side.compared_at(at)]
        yield from _report(group, [reference, *agreeing])


def _report(group: Sequence[Disagreement], beside: Sequence[ComparedReplica]) -> Iterator[Finding]:
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


def _worst(group: Sequence[Disagreement]) -> Severity:
    return min((found.severity for found in group), key=list(Severity).index)


def _names(sides: Iterable[ComparedReplica]) -> str:
    return ", ".join(side.name for side in sides)


def _finding(
    found: Disagreement,
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
