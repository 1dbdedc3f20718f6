"""Tables inside one test: each case is checked, and the failure tells every case that differs.

A parameter of pytest is for what somebody selects: a storage, a kernel, a codec. The rows of a
table are not: they run in one test, which costs what they cost.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import traceback
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
LONGEST_NAME = 100
ROW = type(pytest.param())


def differences(
    cases: Iterable[T], check: Callable[[T], object], name: Callable[[T], object] | None = None
) -> None:
    """Call ``check`` with every case.

    Raises:
        AssertionError: a case failed; it tells each that did, by its name, and where. Or there was
            no case at all.
    """
    told: list[str] = []
    first: BaseException | None = None
    count = 0
    for case in cases:
        count += 1
        try:
            check(case)
        except (Exception, pytest.fail.Exception) as error:
            first = first or error
            at = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(at.filename).name}:{at.lineno}"
            told.append(f"{(name or _name)(case)}: {place}: {type(error).__name__}: {error}")
    assert count, "no case"
    if told:
        raise AssertionError(f"{len(told)} of {count} cases differ:\n" + "\n".join(told)) from first


def for_each(
    arguments: str,
    cases: Iterable[Any],
    name: Callable[[Any], object] | None = None,
    at_once: int | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As ``pytest.mark.parametrize`` is written, with all cases in one test.

    ``pytest.param`` may name a case. Each case has a ``tmp_path`` and a ``monkeypatch`` of its own;
    other fixtures are made once. With ``at_once`` there is a test for every so many cases: for
    those that together would take long.
    """
    names = [one.strip() for one in arguments.split(",")]
    table = list(cases)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*args: Any, **given: Any) -> None:
            numbers = itertools.count()

            def check(case: Any) -> None:
                values = case
                if isinstance(case, ROW):
                    values = case.values
                elif len(names) == 1:
                    values = [case]
                own = {**given, **dict(zip(names, values, strict=True))}
                with ExitStack() as stack:
                    if "tmp_path" in given:
                        own["tmp_path"] = given["tmp_path"] / str(next(numbers))
                        own["tmp_path"].mkdir()
                    if "monkeypatch" in given:
                        own["monkeypatch"] = stack.enter_context(given["monkeypatch"].context())
                    test(*args, **own)

            differences(given.pop("block", table), check, name)

        signature = inspect.signature(test)
        left = [one for key, one in signature.parameters.items() if key not in names]
        assert len(left) + len(names) == len(signature.parameters), f"{test.__name__}: {arguments}"
        if at_once is not None:
            left.append(inspect.Parameter("block", inspect.Parameter.KEYWORD_ONLY))
            starts = range(0, len(table), at_once)
            blocks = [
                pytest.param(table[at : at + at_once], id=str((name or _name)(table[at])))
                for at in starts
            ]
            pytest.mark.parametrize("block", blocks)(run)
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return decorate


def _name(case: object) -> str:
    if isinstance(case, ROW) and case.id:
        return str(case.id)
    if isinstance(case, tuple):
        return "-".join(map(_name, case))
    text: str = getattr(case, "__name__", None) or getattr(case, "name", None) or ""
    text = text or (case if isinstance(case, str) and case.isprintable() else repr(case))
    return text if len(text) <= LONGEST_NAME else f"{text[:60]}…{text[-39:]}"
