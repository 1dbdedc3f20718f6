"""A few seeded rounds of every kernel fuzzer; ``python -m tests.fuzz.kernels`` runs more."""

from __future__ import annotations

import pytest

pytest.importorskip("logstore.kernels._scan")

from tests.fuzz.kernels.rounds import FUZZERS, run, seeds


@pytest.mark.parametrize("name", FUZZERS)
def test_rounds(name: str) -> None:
    for seed in seeds(name, 1, 60):
        run(name, seed)
