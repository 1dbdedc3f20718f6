"""Sequences by seed on two brokers, and what of their answers differs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from tests.differential import internal_topics
from tests.differential.broker import Broker
from tests.differential.comparison import Difference, Run, compare
from tests.differential.rules import comparable
from tests.differential.sequences import admin, features, groups, produce, transactions, waits
from tests.differential.shrinking import Shrinker
from tests.differential.steps import Step, Tree, dump

KINDS = {
    "admin": admin.sequence,
    "features": features.sequence,
    "groups": groups.sequence,
    "produce": produce.sequence,
    "transactions": transactions.sequence,
    "waits": waits.sequence,
}
NOTHING = "nothing"
DIFFERENCES_MAX = 3  # of one sequence: later ones mostly follow from the first


class Roots(NamedTuple):
    """Log directories of both brokers."""

    kafka: Path
    ours: Path


class Search:
    """Carries out sequences, one after the other. Each shape of a difference is told once.

    Args:
        roots: to compare what is written to the internal topics, too.
    Attributes:
        asked: requests, by API.
        seen: differences, by shape.
        once: those that did not come again when their sequence was repeated.
        records: records of internal topics that were compared.
    """

    def __init__(self, kafka: Broker, ours: Broker, roots: Roots | None = None) -> None:
        self._brokers = kafka, ours
        self._roots = roots
        self._stamp = f"{int(time.time()) % 100000}"
        self.asked: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        self.once: Counter[str] = Counter()
        self.records = 0

    def run(self, kind: str, seed: int) -> tuple[Run, list[str]]:
        """One sequence, and what is new of its differences, as texts."""
        name = f"s{self._stamp}-{seed}"
        roots = self._roots or ()
        sizes = [internal_topics.size_of(each) for each in roots]
        run = compare(KINDS[kind](seed, name), *self._brokers)
        self.asked.update(step.key.name for step in run.steps)
        command = f"python -m tests.differential --kind {kind} --seed {seed} --seeds 1"
        told = []
        if self._roots and not run.differences:
            told += [f"{command}\n{each}" for each in self._unequal_records(name, sizes)]
        for each in run.differences[:DIFFERENCES_MAX]:
            told += self._told(command, name, run, each)
        return run, told

    def _told(self, command: str, name: str, run: Run, difference: Difference) -> list[str]:
        shape = _shape(difference)
        if self.seen[shape]:
            self.seen[shape] += 1
            return []
        shrinker = Shrinker(*self._brokers, name, difference, _shape)
        smallest = shrinker.smallest(run.steps[: difference.number + 1])
        if smallest is None:
            self.once[shape] += 1
            return [_text(f"{command}\n  it did not come again:", [difference.step], difference)]
        self.seen[shape] += 1
        return [_text(command, *smallest)]

    def _unequal_records(self, name: str, sizes: list[dict[str, int]]) -> Iterator[str]:
        assert self._roots is not None
        found = [
            internal_topics.written_since(root, before, f"{name}-", broker.names)
            for root, before, broker in zip(self._roots, sizes, self._brokers, strict=True)
        ]
        for partition in sorted({*found[0], *found[1]}):
            theirs, own = (each.get(partition, []) for each in found)
            self.records += len(theirs)
            for at, (one, other) in enumerate(zip_longest(theirs, own)):
                if one != other:
                    where = f"{partition} record {at}"
                    self.seen[where] += 1
                    yield f"    {where}\n      Kafka {dump(one)}\n      ours  {dump(other)}"
                    break


def _text(head: str, steps: list[Step], difference: Difference) -> str:
    """The steps that it takes, and where the answers to the last one part."""
    lines = [head]
    lines += [f"  {e.client} {e.key.name} v{e.version} {dump(e.request)[:900]}" for e in steps]
    kafka, ours = (comparable(difference.step, each) for each in difference[2:])
    for place, one, other in _parted(kafka, ours, ""):
        lines.append(f"    {place or 'the answer'}")
        lines += [f"      Kafka {one[:600]}", f"      ours  {other[:600]}"]
    return "\n".join(lines)


def _parted(one: Tree, other: Tree, place: str) -> Iterator[tuple[str, str, str]]:
    """Places where two trees differ, with what is there."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            yield from _parted(one.get(key, NOTHING), other.get(key, NOTHING), f"{place}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for at, pair in enumerate(zip(one, other, strict=True)):
            yield from _parted(*pair, f"{place}[{at}]")
    elif one != other:
        yield place, dump(one), dump(other)


def _shape(difference: Difference) -> str:
    """What differs, without values: the fields and the errors of both answers."""
    return dump([difference.step.key.name, *map(_fields, difference[2:])])


def _fields(tree: Tree) -> Tree:
    if isinstance(tree, dict):
        return {key: value if "error" in key else _fields(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return sorted({dump(_fields(each)) for each in tree})
    return type(tree).__name__
