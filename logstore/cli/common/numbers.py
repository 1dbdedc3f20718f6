"""Numbers on the command line, refused in one sentence if invalid or out of range."""

from __future__ import annotations

from typing import Any

import click

from logstore.cli.common.exits import fail

_DIGITS_MAX = 40


class Number(click.ParamType):  # type: ignore[type-arg]  # of newer click only
    """An integer in ``[low, high]``."""

    name = "number"

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        option = param.opts[0] if param is not None else "a number"
        text = str(value)
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX):
            fail(f"{option} {text[:_DIGITS_MAX]}: not a whole number")
        if not self.low <= int(text) <= self.high:
            fail(f"{option} {text}: give a number from {self.low} to {self.high}")
        return int(text)


PARTITION = Number(0, 2**31 - 1)
PARTITIONS = Number(1, 10_000)
COUNT = Number(1, 2**63 - 1)
OFFSET = Number(0, 2**63 - 1)
WHOLE = Number(-(2**63), 2**63 - 1)


def counted(count: int) -> str:
    return f"{count} record" if count == 1 else f"{count} records"
