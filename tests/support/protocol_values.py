"""Messages of the protocol with values drawn by a seed: for each field something other than its
default about half the time, at the edges of its type more often than within."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any

from replication.protocol import messages as wire
from replication.protocol import schema
from replication.protocol.structures import default_of

TEXTS = ("", "a", "topic-1", "é日本", "x" * 127, "y" * 128, "z" * 300)
BYTES = (b"", b"\0", b"\xff" * 5, bytes(range(256)))
BITS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64}

EVERY_VERSION = [
    (name, version)
    for name in schema.MESSAGE_NAMES
    for version in schema.message(name).versions.each()
]

Scalars = Callable[[random.Random, str, str], Any]
"""Draws a value for a field that is no structure, from its name and its type."""


def any_scalar(rng: random.Random, name: str, kind: str) -> Any:
    """Any value of the type."""
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "str":
        return rng.choice(TEXTS)
    if kind in ("bytes", "records"):
        return rng.choice(BYTES)
    if kind == "uuid":
        return uuid.UUID(int=rng.choice((0, 1, rng.getrandbits(128))))
    if kind == "f64":
        return rng.choice((0.0, -1.5, 1e300, float("inf")))
    half = 1 << BITS[kind] - 1
    return rng.choice((0, 1, -1, half - 1, -half, rng.randrange(-half, half)))


def draw(name: str, version: int, rng: random.Random, scalars: Scalars = any_scalar) -> Any:
    """A message that ``version`` can carry: fields that it lacks have their defaults."""
    return _struct(schema.message(name).body, version, rng, scalars, wire.structures(name).by_name)


def _struct(
    layout: schema.Struct,
    version: int,
    rng: random.Random,
    scalars: Scalars,
    classes: dict[str, Any],
) -> Any:
    values = {
        field.name: _value(field, version, rng, scalars, classes)
        for field in layout.fields
        if version in field.versions
    }
    return classes[layout.name](**values)


def _value(
    field: schema.Field,
    version: int,
    rng: random.Random,
    scalars: Scalars,
    classes: dict[str, Any],
) -> Any:
    if rng.random() < 0.2:
        default = default_of(field, classes)
        if default is not None or version in field.nullable:
            return default
    if version in field.nullable and rng.random() < 0.2:
        return None

    def one() -> Any:
        if isinstance(field.type, schema.Struct):
            return _struct(field.type, version, rng, scalars, classes)
        return scalars(rng, field.name, field.type)

    if field.is_array:
        return tuple(one() for _ in range(rng.choice((0, 1, 1, 2, 3))))
    return one()
