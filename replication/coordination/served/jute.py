"""Jute, the encoding of ZooKeeper's protocol, from layouts.

A layout is ``i`` (int), ``l`` (long), ``z`` (bool), ``b`` (buffer), ``s`` (string), a tuple of
layouts (a record), or a list of one (a vector). A missing buffer, string or vector is read as an
empty one.
"""

from __future__ import annotations

import struct
from typing import Any, TypeAlias

Layout: TypeAlias = "str | tuple[Layout, ...] | list[Layout]"

_FIXED = {"i": struct.Struct(">i"), "l": struct.Struct(">q"), "z": struct.Struct(">?")}
_INT = _FIXED["i"]


class JuteError(ValueError):
    """The bytes are not what the layout says."""


def read(layout: Layout, data: bytes, position: int = 0) -> tuple[Any, int]:
    """The value at ``position``, and where it ends.

    Raises:
        JuteError: the bytes are too few, a length is wrong, or text is not UTF-8.
    """
    if isinstance(layout, tuple | list):
        if isinstance(layout, list):
            count, position = read("i", data, position)
            if count > len(data) - position:  # each element has a byte at least
                raise JuteError(f"a vector of {count} in {len(data)} bytes")
            each = layout * count
        else:
            each = [*layout]
        values = []
        for part in each:
            value, position = read(part, data, position)
            values.append(value)
        return (values if isinstance(layout, list) else tuple(values)), position
    fixed = _FIXED.get(layout, _INT)
    end = position + fixed.size
    if end > len(data):
        raise JuteError(f"{len(data)} bytes are too few")
    (number,) = fixed.unpack_from(data, position)
    if layout in _FIXED:
        return number, end
    size = max(number, 0)
    if size > len(data) - end:
        raise JuteError(f"{size} bytes of {layout} in {len(data)} bytes")
    found = data[end : end + size]
    try:
        return (found if layout == "b" else found.decode()), end + size
    except UnicodeDecodeError as error:
        raise JuteError(str(error)) from None


def write(layout: Layout, value: Any) -> bytes:
    if isinstance(layout, tuple):
        return b"".join(map(write, layout, value))
    if isinstance(layout, list):
        return b"".join((_INT.pack(len(value)), *(write(layout[0], each) for each in value)))
    if layout in _FIXED:
        return _FIXED[layout].pack(value)
    found = value.encode() if layout == "s" else value
    return _INT.pack(len(found)) + bytes(found)
