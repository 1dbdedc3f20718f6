"""Plants one random fault in clean log directories, and says what a verification must make of it.

A *kind* is a function that takes a `Site` and a random generator, changes a few files, and returns
a `Fault`: which rules a finding may name, in which files, and what may be told besides. Where the
format cannot show a fault of its kind (docs/verify.md), it raises `NotHere` and plants nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from checkpoints.types import TopicPartition
from logstore.verify import Finding, Severity, VerifyReport
from tests.faults.site import Replica, Site

T = TypeVar("T")
DIVERGED = "replicas-differ"
"""The rule of replicas that differ below their high watermarks."""


class NotHere(Exception):
    """There is no place in these directories where a fault of this kind would show."""


@dataclass(frozen=True)
class Fault:
    """What was done and what follows from it.

    ``rules`` and ``files``: a finding must name one of each. ``along``: rules that may be named
    besides, by a finding inside ``directory``, the only place that the fault concerns; and replicas
    of ``tp``, if it is set, may be told to differ. ``offset``: where they do first, if known.
    """

    told: str
    directory: str
    files: frozenset[str]
    rules: frozenset[str]
    along: frozenset[str] = frozenset()
    tp: TopicPartition | None = None
    offset: int = -1
    kind: str = ""

    def is_told_by(self, finding: Finding) -> bool:
        return (
            finding.rule in self.rules
            and finding.file in self.files
            and (self.offset < 0 or finding.offset == self.offset)
        )

    def explains(self, finding: Finding) -> bool:
        if finding.rule == DIVERGED:
            return self.tp == (finding.topic, finding.partition)
        inside = finding.file.startswith((self.directory + "/", self.directory))
        return (finding.rule in self.rules | self.along and inside) or self.is_told_by(finding)


Kind = Callable[[Site, random.Random], Fault]
KINDS: dict[str, Kind] = {}
ALONE: list[str] = []
"""Kinds that one replica shows by itself; the others take a comparison."""


def kind(*, compared: bool = False) -> Callable[[Kind], Kind]:
    """Register a kind under its name. ``compared``: only the other replicas give it away."""

    def register(plant: Kind) -> Kind:
        KINDS[plant.__name__] = plant
        if not compared:
            ALONE.append(plant.__name__)
        return plant

    return register


def register(name: str, plant: Kind) -> None:
    """Register a kind that a row of a table makes."""
    plant.__name__ = name
    kind()(plant)


def fault(
    where: Replica,
    told: str,
    files: Iterable[str],
    rules: str,
    along: str = "",
    *,
    differs: bool = True,
    offset: int = -1,
) -> Fault:
    """A fault of one replica; ``rules`` and ``along`` are words. ``differs``: from its peers."""
    return Fault(
        told,
        where.path,
        frozenset(files),
        frozenset(rules.split()),
        frozenset(along.split()),
        where.tp if differs else None,
        offset,
    )


def choose(rng: random.Random, candidates: Sequence[T]) -> T:
    """
    Raises:
        NotHere: there are none.
    """
    if not candidates:
        raise NotHere
    return rng.choice(candidates)


def plant(site: Site, name: str, rng: random.Random) -> Fault:
    """Plant a fault of the kind ``name``, one of `KINDS`.

    Raises:
        NotHere: nothing was planted.
    """
    return replace(KINDS[name](site, rng), kind=name)


def complaints(fault: Fault, report: VerifyReport, known: Iterable[Finding] = ()) -> list[str]:
    """What is wrong with a verification after ``fault``: it was missed, or something was invented.

    ``known`` are findings of the same directories without the fault.
    """
    before = {(finding.rule, finding.file, finding.position) for finding in known}
    found = [
        finding
        for finding in report.findings
        if finding.severity is not Severity.INFO
        and (finding.rule, finding.file, finding.position) not in before
    ]
    out = [f"could not be read: {line}" for line in report.unusable]
    if not any(fault.is_told_by(finding) for finding in found):
        wanted = f"{'/'.join(sorted(fault.rules))} in {' or '.join(sorted(fault.files))}"
        out.append(f"missed: wanted {wanted}, found {[str(finding) for finding in found]}")
    out += [f"invented: {finding}" for finding in found if not fault.explains(finding)]
    return [f"{fault.kind} ({fault.told}): {line}" for line in out]
