"""Rates and times as people write them: ``50MB``, ``10m``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import click

from checkpoints.printable import printable
from logstore.cli.common.exits import fail

_WRITTEN = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?([A-Za-z]*)")
_SIZES: Mapping[str, float] = {
    **dict.fromkeys(("", "B"), 1),
    **dict.fromkeys(("k", "K", "kB", "KB"), 1000),
    **dict.fromkeys(("M", "MB"), 1000**2),
    **dict.fromkeys(("G", "GB"), 1000**3),
    **{name: 1024**n for n, name in enumerate(("KiB", "MiB", "GiB"), 1)},
}
_TIMES: Mapping[str, float] = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "ms": 0.001}


class Quantity(click.ParamType):  # type: ignore[type-arg]  # of newer click only
    """A number above zero with a unit."""

    name = "quantity"

    def __init__(self, units: Mapping[str, float], example: str) -> None:
        self._units, self._example = units, example

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        option = param.opts[0] if param is not None else "a quantity"
        found = _WRITTEN.fullmatch(str(value).strip())
        unit = None if found is None else self._units.get(found[2])
        if found is None or unit is None or not float(found[1]):
            fail(f"{option} {printable(str(value))}: give a number with a unit, as {self._example}")
        return float(found[1]) * unit


RATE = Quantity(_SIZES, "50MB")
"""Bytes a second."""
SECONDS = Quantity(_TIMES, "10m")
