"""A short search with a fixed seed, and the stored cases: ``python -m tests.fuzz`` searches on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.children import preload
from tests.fuzz.search import CORPUS, Judged, run_drawn, scratch_directory, stored

STORED = sorted(CORPUS.glob("*.json"))
FIRST = 1_000_000  # the first case of ``--seed 1``


@pytest.fixture
def scratch() -> Iterator[str]:
    preload()
    with scratch_directory() as path:
        yield path


def found(judged: Judged) -> list[str]:
    return [f"{failure.signature}: {failure.detail}" for failure in judged.failures]


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FIRST, FIRST + 60, 3))
def test_drawn_directories(first: int, scratch: str) -> None:
    for number in range(first, first + 3):
        repeat = f"python -m tests.fuzz --one {number}"
        assert found(run_drawn(number, scratch, quick=True)) == [], repeat


@pytest.mark.slow
@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_directories(path: Path, scratch: str) -> None:
    """Each found something once."""
    assert found(stored(path, scratch)) == []
