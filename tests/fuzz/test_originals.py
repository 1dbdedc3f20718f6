"""The directories that the fuzzer damages are sound, and damage that is handled well is no failure;
``tests/mutants/commands.py`` has commands that handle it badly."""

from __future__ import annotations

import pytest

from tests.fuzz import originals
from tests.fuzz.children import preload
from tests.fuzz.originals import original
from tests.fuzz.search import run_case, scratch_directory


@pytest.fixture(autouse=True, scope="module")
def _preloaded() -> None:
    preload()


def test_an_original_is_the_same_each_time() -> None:
    first = original(3)
    originals.original.cache_clear()
    again = original(3)
    assert {path: entry.data for path, entry in first.tree.items()} == {
        path: entry.data for path, entry in again.tree.items()
    }
    assert first.batches == again.batches


@pytest.mark.slow
@pytest.mark.parametrize("number", range(0, originals.COUNT, 5))
def test_an_original_has_no_failure(number: int) -> None:
    with scratch_directory() as scratch:
        judged = run_case(1, number, [], scratch, quick=True)
    assert judged.failures == []
