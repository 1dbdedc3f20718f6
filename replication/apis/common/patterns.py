"""Patterns that a client sends, matched in time that is linear in the text: Python's own can take
for ever, and a client could stop a broker with one.

A pattern is compiled to positions, one for each character that it can consume (Glushkov's
automaton). To match is to keep the set of positions that the text may have reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

MAX_ATOMS = 200
"""Characters, classes with their members, and groups of a pattern, counted as often as a repetition
has them. A text is matched with at most so many tests for each of its characters."""
MAX_SIZE = 2000  # characters of a pattern, of which many may be no atoms
MAX_DEPTH = 50
MAX_STEPS = 10_000  # that are remembered
MAX_COUNT = 1000  # of a repetition, as in RE2, which Kafka uses

_Test = Callable[[str], bool]


class InvalidPatternError(ValueError):
    """No pattern, or one with what is not served: looks around, boundaries, references."""


class _Part(NamedTuple):
    """A part of a pattern; ``first`` and ``last`` are sets of positions, a bit each."""

    may_be_empty: bool
    first: int
    last: int


_EMPTY = _Part(True, 0, 0)
_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_DIGITS, _SPACES = frozenset("0123456789"), frozenset(" \t\n\r\f")
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _SPACES}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_COUNTS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class Pattern:
    """A compiled pattern: characters, ``.``, classes, groups, alternatives and repetitions.

    Raises:
        InvalidPatternError: see there.
    """

    def __init__(self, text: str) -> None:
        self._text, self._at, self._left = text, 0, MAX_ATOMS
        self._depth = 0
        if len(text) > MAX_SIZE:
            raise InvalidPatternError(f"a pattern of more than {MAX_SIZE} characters")
        self._tests: list[_Test] = []
        self._follow: list[int] = []
        self._steps: dict[tuple[int, str], tuple[int, int]] = {}
        self._whole = self._either()
        if self._at < len(text):
            raise InvalidPatternError(f"{text!r}: a bracket is closed that was not opened")

    def matches(self, text: str) -> bool:
        """Whether the whole of ``text`` is as the pattern says."""
        if not text:
            return self._whole.may_be_empty
        reached, met = self._whole.first, 0
        for char in text:
            met, reached = self._steps.get((reached, char)) or self._step(reached, char)
        return bool(met & self._whole.last)

    def _step(self, reached: int, char: str) -> tuple[int, int]:
        """Which of the positions that are reached take the character, and where it leads."""
        met = sum(1 << each for each in _bits(reached) if self._tests[each](char))
        after = 0
        for each in _bits(met):
            after |= self._follow[each]
        if len(self._steps) < MAX_STEPS:
            self._steps[reached, char] = met, after
        return met, after

    # -- compiling -----------------------------------------------------------------------------

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        if self._at == len(self._text):
            raise InvalidPatternError(f"{self._text!r} ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _accept(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def _either(self) -> _Part:
        found = self._sequence()
        while self._accept("|"):
            other = self._sequence()
            found = _Part(
                found.may_be_empty or other.may_be_empty,
                found.first | other.first,
                found.last | other.last,
            )
        return found

    def _sequence(self) -> _Part:
        found = _EMPTY
        while self._peek() not in ("", "|", ")"):
            found = self._then(found, self._repeated())
        return found

    def _then(self, one: _Part, other: _Part) -> _Part:
        self._link(one.last, other.first)
        return _Part(
            one.may_be_empty and other.may_be_empty,
            one.first | (other.first if one.may_be_empty else 0),
            other.last | (one.last if other.may_be_empty else 0),
        )

    def _link(self, last: int, first: int) -> None:
        for each in _bits(last):
            self._follow[each] |= first

    def _repeated(self) -> _Part:
        """An atom, as often as what follows it says; each time it has positions of its own."""
        start = self._at
        atom = self._atom()
        low, high = self._count()
        end, found = self._at, _EMPTY
        copies = max(low, 1) if high is None else high
        for number in range(copies):
            if number:
                self._at = start
                atom = self._atom()
            if high is None and number == copies - 1:
                self._link(atom.last, atom.first)
            if number >= low:
                atom = atom._replace(may_be_empty=True)
            found = self._then(found, atom)
        self._at = end
        return found

    def _count(self) -> tuple[int, int | None]:
        low: int
        high: int | None
        low, high = 1, 1
        if self._peek() in _COUNTS:
            low, high = _COUNTS[self._next()]
        elif self._accept("{"):
            least, comma, most = self._up_to("}").partition(",")
            low = self._number(least)
            high = (self._number(most) if most else None) if comma else low
            if high is not None and high < low:
                raise InvalidPatternError(f"{self._text!r}: a count that falls")
        else:
            return low, high
        self._accept("?")  # which match is found first does not matter: only whole ones count
        return low, high

    def _number(self, text: str) -> int:
        if not (text.isascii() and text.isdigit()) or len(text) > 4 or int(text) > MAX_COUNT:
            raise InvalidPatternError(f"{self._text!r}: {text!r} is no count")
        return int(text)

    def _up_to(self, end: str) -> str:
        found = ""
        while (char := self._next()) != end:
            found += char
        return found

    def _atom(self) -> _Part:
        self._count_part()
        at, char = self._at, self._next()
        if char == "(":
            return self._group()
        if (char, at) in (("^", 0), ("$", len(self._text) - 1)):
            return _EMPTY
        if char in "*+?{^$":
            raise InvalidPatternError(f"{self._text!r}: {char!r} has no meaning there")
        if char == ".":
            return self._consuming(lambda one: one != "\n")
        if char == "[":
            return self._consuming(self._class())
        if char == "\\":
            return self._consuming(self._escaped())
        return self._consuming(char.__eq__)

    def _count_part(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise InvalidPatternError(f"a pattern of more than {MAX_ATOMS} parts")

    def _group(self) -> _Part:
        if self._peek() == "?" and not self._accept("?:"):
            raise InvalidPatternError(f"{self._text!r}: a group that is not served")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise InvalidPatternError(f"groups deeper than {MAX_DEPTH}")
        found = self._either()
        if not self._accept(")"):
            raise InvalidPatternError(f"{self._text!r}: a bracket is not closed")
        self._depth -= 1
        return found

    def _consuming(self, test: _Test) -> _Part:
        bit = 1 << len(self._tests)
        self._tests.append(test)
        self._follow.append(0)
        return _Part(False, bit, bit)

    def _escaped(self) -> _Test:
        char = self._next()
        if char.lower() in _CLASSES:
            members, is_in = _CLASSES[char.lower()], char.islower()
            return lambda one: (one in members) is is_in
        if char.isalnum() and char not in _CONTROLS:
            raise InvalidPatternError(f"{self._text!r}: \\{char} is not served")
        return _CONTROLS.get(char, char).__eq__

    def _class(self) -> _Test:
        is_in = not self._accept("^")
        tests: list[_Test] = []
        while not tests or self._peek() != "]":
            self._count_part()
            low = self._next()
            if low == "[" and self._peek() == ":":
                raise InvalidPatternError(f"{self._text!r}: a class by name is not served")
            if low == "\\" and self._peek().lower() in _CLASSES:
                tests.append(self._escaped())
                continue
            low = high = self._member(low)
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("", "]"):
                self._next()
                high = self._member(self._next())
            if high < low:
                raise InvalidPatternError(f"{self._text!r}: a range that falls")
            tests.append(lambda one, low=low, high=high: low <= one <= high)  # type: ignore[misc]
        self._next()
        return lambda one: any(test(one) for test in tests) is is_in

    def _member(self, char: str) -> str:
        if char != "\\":
            return char
        char = self._next()
        if char.isalnum() and char not in _CONTROLS:
            raise InvalidPatternError(f"{self._text!r}: \\{char} is not served")
        return _CONTROLS.get(char, char)


def _bits(positions: int) -> Iterator[int]:
    while positions:
        low = positions & -positions
        yield low.bit_length() - 1
        positions ^= low
