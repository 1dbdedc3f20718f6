"""One case after the other: draw, run, judge; and shrink what fails."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz import explanations, originals
from tests.fuzz.mutations import Mutation, apply
from tests.fuzz.mutators import draw
from tests.fuzz.oracle import Case, Failure, findings_of, judge
from tests.fuzz.runs import Runner
from tests.fuzz.tree import Tree

CORPUS = Path(__file__).parent / "corpus"


@dataclass(slots=True)
class Judged:
    """One directory: what was done to it, and what broke."""

    number: int
    original: int
    mutations: list[Mutation]
    failures: list[Failure] = field(default_factory=list)
    codes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> dict[str, Any]:
        return {"original": self.original, "mutations": [m.to_json() for m in self.mutations]}


@contextmanager
def scratch_directory() -> Iterator[str]:
    """In memory where the machine has such a place: nothing here is about the disk's speed."""
    memory = "/dev/shm"
    where = memory if os.access(memory, os.W_OK) else None
    path = tempfile.mkdtemp(prefix="fuzz-", dir=where)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def mutated(original: originals.Original, mutations: list[Mutation]) -> Tree:
    tree = original.tree
    for mutation in mutations:
        tree = apply(tree, mutation)
    return tree


def drawn(number: int) -> tuple[int, list[Mutation]]:
    """The original and the mutations of a case."""
    rng = random.Random(f"case {number}")
    which = rng.randrange(originals.COUNT)
    return which, draw(rng, originals.original(which).tree)


def run_drawn(number: int, scratch: str, *, quick: bool = False) -> Judged:
    return run_case(number, *drawn(number), scratch, quick=quick)


def run_case(
    number: int, which: int, mutations: list[Mutation], scratch: str, *, quick: bool = False
) -> Judged:
    original = originals.original(which)
    if not original.baseline:
        _find_baseline(original, scratch)
    tree = mutated(original, mutations)
    results = Runner(tree, mutations, scratch, f"{number}", quick=quick).all()
    explanations.used.clear()
    judged = Judged(number, which, mutations)
    judged.failures = list(judge(Case(original, mutations, tree), results))
    judged.codes.update(f"{run.name}: {run.outcome.code}" for run in results.runs)
    judged.reasons.update(explanations.used)
    return judged


def _find_baseline(original: originals.Original, scratch: str) -> None:
    runs = Runner(original.tree, [], scratch, "baseline", quick=True).all()
    found = findings_of(runs.run("verify json"))
    assert found is not None, f"verify of original {original.number} failed"
    original.baseline = found | {"looked at"}


def shrunk(judged: Judged, signature: str, scratch: str) -> Judged:
    """The same failure with as few mutations as show it."""
    small = judged
    for mutation in judged.mutations:
        fewer = [m for m in small.mutations if m != mutation]
        if not fewer:
            break
        tried = run_case(judged.number, judged.original, fewer, scratch)
        if any(failure.signature == signature for failure in tried.failures):
            small = tried
    return small


def stored(path: Path, scratch: str) -> Judged:
    """Run a case of the corpus."""
    told = json.loads(path.read_text())
    mutations = [Mutation.from_json(m) for m in told["mutations"]]
    return run_case(0, told["original"], mutations, scratch)
