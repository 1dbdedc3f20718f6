"""All kernel fuzzers by name, and one round of one of them."""

from __future__ import annotations

import random

from tests.fuzz.kernels import jni, reading, system, writing

FUZZERS = {**reading.FUZZERS, **writing.FUZZERS, **system.FUZZERS, **jni.FUZZERS}
COSTLY = {"racing": 20, "directories": 10, "every_cut": 4}
"""Fuzzers of which one round is as long as many of another."""


def seeds(name: str, first: int, rounds: int) -> range:
    return range(first, first + max(rounds // COSTLY.get(name, 1), 1))


def run(name: str, seed: int) -> None:
    """A round that depends on nothing but the name and the seed."""
    FUZZERS[name](random.Random(f"{name} {seed}"))
