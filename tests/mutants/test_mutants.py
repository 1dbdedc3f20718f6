"""Each mutant is seen, from the place that is named; ``python -m tests.mutants`` tells more."""

from __future__ import annotations

import pytest

from tests.mutants import MUTANTS
from tests.mutants.scenarios import SCENARIOS
from tests.mutants.searches import SEARCHES

CASES = [
    pytest.param(name, mutant, place, id=f"{name}-{mutant}")
    for name, search in SEARCHES.items()
    for mutant, place in search.found
]


@pytest.mark.slow
@pytest.mark.every
@pytest.mark.parametrize(("search", "mutant", "place"), CASES)
def test_is_seen(search: str, mutant: str, place: object) -> None:
    assert SEARCHES[search].see(mutant, place), (
        f"look for another place: python -m tests.mutants {search} {mutant} --find"
    )


def test_every_mutant_has_a_search() -> None:
    assert {*MUTANTS} == {mutant for search in SEARCHES.values() for mutant, _ in search.found}


def test_every_scenario_has_a_mutant() -> None:
    numbers = dict.fromkeys(number for number, _, _ in SCENARIOS)
    assert list(numbers) == [*(f"S-{n}" for n in range(1, 29)), "S-56"]
