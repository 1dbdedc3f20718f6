"""Suites whose cases are ours: programs of others, run in a row, must leave what was asked."""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tests.clients.suite import CaseResult, ClientSuite, Outcome

_OWN_WORDS = 1500
Script = Callable[[Any], None]


class ProgramFailed(Exception):
    """A program printed or left something else than it should; the text has both."""


def expect(pattern: str, said: str) -> re.Match[str]:
    """Return where a program's output matches.

    Raises:
        ProgramFailed: nowhere.
    """
    found = re.search(pattern, said, re.M)
    if found is None:
        raise ProgramFailed(f"not /{pattern}/:\n{said[-_OWN_WORDS:]}")
    return found


def equal(expected: object, found: object) -> None:
    """Compare.

    Raises:
        ProgramFailed: they differ.
    """
    if expected != found:
        raise ProgramFailed(f"expected {expected!r:.700}\nfound {found!r:.700}")


class ScriptedSuite(ClientSuite):
    """Each case is a function that is given ``tools(bootstrap, directory)``, and raises."""

    scripts: ClassVar[Mapping[str, Script]]
    tools: ClassVar[type]

    def cases(self) -> list[str]:
        return list(self.scripts)

    def run(self, cases: Sequence[str], bootstrap: str, directory: Path) -> Iterator[CaseResult]:
        tools = type(self).tools(bootstrap, directory)
        for case in cases:
            began = time.monotonic()
            outcome, detail = Outcome.PASSED, ""
            try:
                self.scripts[case](tools)
            except Exception:
                outcome, detail = Outcome.FAILED, traceback.format_exc()[-3000:]
            yield CaseResult(case, outcome, time.monotonic() - began, detail)


def script(scripts: dict[str, Script]) -> Callable[[Script], Script]:
    """Return a decorator that puts a function among ``scripts``, by its name."""

    def add(function: Script) -> Script:
        scripts[function.__name__] = function
        return function

    return add
