"""Many faults, each in a copy of its own, verified together: one Spark job for all of them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from logstore.verify import VerifyReport
from tests.faults.planter import Fault, NotHere, complaints, plant
from tests.faults.site import Site, copied


class Planted(NamedTuple):
    """Copies of log directories below ``home``, with one fault among them."""

    home: str
    paths: list[str]
    fault: Fault

    def part_of(self, report: VerifyReport) -> VerifyReport:
        """What a report on many of them has about this one."""
        part = VerifyReport()
        below = self.home + "/"
        part.extend(finding for finding in report.findings if finding.file.startswith(below))
        part.unusable.extend(line for line in report.unusable if below in line)
        return part


def plant_each(
    clean: Sequence[str], directory: Path, kinds: Iterable[str], seed: str
) -> list[Planted]:
    """One copy of ``clean`` for each of ``kinds``; a kind that fits nowhere is left out.

    Topics are renamed in each copy, so that these are no replicas of each other.
    """
    found = []
    for number, kind in enumerate(kinds):
        home = str(directory / f"{number:05d}")
        paths = copied(clean, home, lambda topic, number=number: f"{topic}-{number}")
        try:
            fault = plant(Site(paths), kind, random.Random(f"{seed} {number}"))
        except NotHere:
            continue
        found.append(Planted(home, paths, fault))
    return found


def all_complaints(planted: Iterable[Planted], report: VerifyReport) -> list[str]:
    """About one report on all of them; what it says of none of them is one, too."""
    planted = list(planted)
    wrong = [line for one in planted for line in complaints(one.fault, one.part_of(report))]
    homes = tuple(one.home + "/" for one in planted)
    wrong += [f"elsewhere: {f}" for f in report.findings if not f.file.startswith(homes)]
    return wrong
