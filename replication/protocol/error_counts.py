"""The errors that a response carries (Kafka's ``AbstractResponse.errorCounts``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from replication.protocol import schema
from replication.protocol.schema import Struct

_NAMES = ("error_code", "partition_error_code")

Finder = Callable[[Any], list[int]]
_finders: dict[type, Finder] = {}


def error_codes(message: Any) -> list[int]:
    """Every code in ``message`` that is not 0, once for each place that has it."""
    kind = type(message)
    find = _finders.get(kind)
    if find is None:
        find = _finders[kind] = _make_finder(kind.__name__)
    return find(message)


def _make_finder(name: str) -> Finder:
    """Straight-line Python, as the codecs are: it runs for every answer."""
    lines = ["def find(m0):", " found = []", *_lines(schema.message(name).body, 0), " return found"]
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)
    find: Finder = scope["find"]
    return find


def _lines(struct: Struct, depth: int) -> Iterator[str]:
    indent = " " * (depth + 1)
    for at, field in enumerate(struct.fields):
        value = f"m{depth}[{at}]"
        if field.name in _NAMES:
            yield f"{indent}if {value}: found.append({value})"
        elif isinstance(field.type, Struct):
            inner = list(_lines(field.type, depth + 1))
            if inner:
                each = f"{value} or ()" if field.is_array else f"({value},) if {value} else ()"
                yield f"{indent}for m{depth + 1} in {each}:"
                yield from inner
