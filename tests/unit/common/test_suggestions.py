"""What an unknown name may have been meant for."""

from __future__ import annotations

from logstore.common.suggestions import or_meant, unknown


def test_the_name_that_is_like_it() -> None:
    known = ["subscribe", "startingOffsets"]
    assert or_meant("None", "subscirbe", known) == "None. Did you mean 'subscribe'?"
    assert or_meant("None.", "startingofsets", known) == "None. Did you mean 'startingOffsets'?"
    assert or_meant("None.", "quorum", known) == "None."


def test_all_names_where_they_are_few() -> None:
    assert str(unknown("storage", "s3", ["memory", "Local"])) == (
        "unknown storage 's3'; known are: Local, memory"
    )
    many = [f"key.number.{number}" for number in range(30)]
    assert str(unknown("key", "x", many)) == "unknown key 'x'"


def test_a_name_without_end_is_compared_with_none() -> None:
    assert or_meant("None", "memory" * 100_000, ["memory" * 100_000]) == "None"
