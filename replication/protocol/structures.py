"""NamedTuple classes of a schema: one for the message, one for each structure inside it."""

from __future__ import annotations

import uuid
from collections import namedtuple
from typing import Any, NamedTuple

from replication.protocol.schema import Field, Message, Struct

_namedtuple: Any = namedtuple  # type checkers want literals, these are of the table

ZERO_UUID = uuid.UUID(int=0)


class Structures(NamedTuple):
    """The classes of one message, by the names of their structures."""

    message: type[tuple[Any, ...]]
    by_name: dict[str, type[tuple[Any, ...]]]


def make_structures(message: Message, module: str) -> Structures:
    """Classes for ``message``; inner ones are attributes of the message's class."""
    by_name: dict[str, type[tuple[Any, ...]]] = {}
    whole = _make(message.body, module, by_name)
    for name, inner in by_name.items():
        if inner is not whole:
            inner.__qualname__ = f"{message.name}.{name}"
            setattr(whole, name, inner)
    return Structures(whole, by_name)


def _make(
    struct: Struct, module: str, by_name: dict[str, type[tuple[Any, ...]]]
) -> type[tuple[Any, ...]]:
    for field in struct.fields:
        if isinstance(field.type, Struct) and field.type.name not in by_name:
            _make(field.type, module, by_name)
    names = [field.name for field in struct.fields]
    defaults = [default_of(field, by_name) for field in struct.fields]
    made = _namedtuple(struct.name, names, defaults=defaults, module=module)
    by_name[struct.name] = made
    return by_name[struct.name]


def default_of(field: Field, by_name: dict[str, type[tuple[Any, ...]]]) -> object:
    """The value of a field that is not given."""
    if field.type == "uuid" and not field.is_array:
        return ZERO_UUID
    if isinstance(field.type, Struct) and not field.is_array and field.default is not None:
        return by_name[field.type.name]()
    return field.default
