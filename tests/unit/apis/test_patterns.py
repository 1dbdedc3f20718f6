"""Patterns of clients: what they match, and that no pattern takes long."""

from __future__ import annotations

import random
import re

import pytest

from replication.apis.common.patterns import InvalidPatternError, Pattern

PARTS = ("a", "b", ".", "[ab]", "[^a]", "[a-c_]", r"\d", r"\W", r"\.", "(a|b)", "(?:ab)", "x?", "")
COUNTS = ("", "", "*", "+", "?", "{2}", "{1,2}", "{0,1}?", "{2,}", "*?")


def _drawn(rng: random.Random, depth: int = 2) -> str:
    found = ""
    for _ in range(rng.randrange(4)):
        part = rng.choice(PARTS)
        if depth and rng.random() < 0.3:
            part = f"({_drawn(rng, depth - 1)})"
        if part and not part.endswith("?"):
            part += rng.choice(COUNTS)
        found += part
    return found + ("|" + _drawn(rng, depth - 1) if depth and rng.random() < 0.2 else "")


def test_a_text_matches_as_a_whole_where_pythons_own_says_so() -> None:
    rng = random.Random(1)
    for _ in range(400):
        text = _drawn(rng)
        pattern = Pattern(text)
        for _ in range(6):
            given = "".join(rng.choices("abc1._x\n", k=rng.randrange(6)))
            found = re.fullmatch(text, given, re.ASCII)
            assert pattern.matches(given) == bool(found), (text, given)


@pytest.mark.parametrize("text", ["^app-.*$", "app-[0-9]+", r"app\-\d{1,3}", "(x|app-)1+2?"])
def test_ids(text: str) -> None:
    assert Pattern(text).matches("app-1")
    assert not Pattern(text).matches("my-app-1")


@pytest.mark.parametrize(
    "text",
    [
        *("(", ")", "a)", "[a", "[b-a]", "*", "a**", "a{", "a{x}", "a{2,1}", "a{1001}", "\\"),
        *(r"\b", "(?=a)", "(?P<n>a)", r"(a)\1", "a^b", "a$b", "[[:alpha:]]"),
        *(
            "(" * 51 + ")" * 51,
            "a{201}",
            "((a{9}){9}){9}",
            "(){1000}",
            "[" + "a" * 201 + "]",
            "|" * 2001,
        ),
    ],
)
def test_what_is_no_pattern_or_too_large(text: str) -> None:
    with pytest.raises(InvalidPatternError):
        Pattern(text)


@pytest.mark.parametrize("text", ["(a*)*b", "(a|a)*b", "(a|aa)+b", "(.*)*x" * 3])
def test_what_takes_other_engines_for_ever(text: str) -> None:
    """Each character is met by each position at most once."""
    assert not Pattern(text).matches("a" * 200)
