"""The helper that runs a table of cases inside one test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cases import differences, for_each


def test_every_case_that_differs_is_told() -> None:
    def check(number: int) -> None:
        if number == 4:
            pytest.fail("four")
        assert number % 2, "even"

    with pytest.raises(AssertionError) as found:
        differences([1, 2, 3, 4], check)
    text = str(found.value)
    assert "2 of 4 cases differ" in text
    assert "\n2: test_cases.py:" in text
    assert "even" in text
    assert "\n4: " in text
    assert "four" in text


def test_a_table_without_cases_is_no_proof() -> None:
    with pytest.raises(AssertionError, match="no case"):
        differences([], print)


@for_each("left, right", [(1, 2), (3, 4)])
@for_each("middle", ["a", pytest.param("b", id="second")])
def test_each_case_has_its_own_directory(
    tmp_path: Path, left: int, middle: str, right: int
) -> None:
    assert left + 1 == right
    assert middle in "ab"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()


def test_the_names_of_the_arguments_are_checked() -> None:
    with pytest.raises(AssertionError, match="other"):
        for_each("other", [1])(test_each_case_has_its_own_directory)


SEEN: list[int] = []


@for_each("number", range(5), at_once=2)
def test_some_cases_at_once(number: int) -> None:
    SEEN.append(number)


def test_the_blocks_have_every_case_once() -> None:
    (mark,) = test_some_cases_at_once.pytestmark  # type: ignore[attr-defined]
    assert [block.values for block in mark.args[1]] == [([0, 1],), ([2, 3],), ([4],)]
    SEEN.clear()
    for block in mark.args[1]:
        test_some_cases_at_once(block=block.values[0])
    assert SEEN == [0, 1, 2, 3, 4]
