"""Messages of the protocol byte by byte as kio, which others wrote from Kafka's schema files.

Both ways: our bytes are what kio writes for the same values, and kio reads from them what we wrote.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import random
from typing import Any

import pytest

from replication.protocol import schema
from replication.protocol.codecs import decoder, encoder
from replication.protocol.structures import ZERO_UUID
from tests.support.protocol_values import any_scalar, draw

kio = pytest.importorskip("kio", reason="kio, another codec for Kafka's messages, is missing")

from kio.index import load_payload_module  # noqa: E402
from kio.schema.errors import ErrorCode  # noqa: E402
from kio.serial import entity_reader, entity_writer  # noqa: E402
from kio.static.constants import EntityType  # noqa: E402

from tests.support.cases import for_each  # noqa: E402

CODES = tuple(int(code) for code in ErrorCode)
TIMES = (0, 1, 1_000, 86_400_000)  # in ms; kio turns them into timedelta and datetime
ROUNDS = 8


def _versions() -> list[tuple[schema.ApiKey, str, int]]:
    found = []
    for key, api in schema.APIS.items():
        for version in api.versions.each():
            for kind in ("Request", "Response"):
                try:
                    load_payload_module(key, version, EntityType[kind.lower()])
                except Exception:
                    continue
                found.append((key, kind, version))
    return found


COMMON = _versions() if kio else []


def _scalars(rng: random.Random, name: str, kind: str) -> Any:
    """Values that kio's types can hold: known error codes, times in range, and nothing in fields of
    our own."""
    if name in ("min_isr", "forwarded"):
        return 0
    if name.endswith("error_code"):
        return rng.choice(CODES)
    if kind in ("i32", "i64") and (name.endswith("_ms") or "time" in name):
        return rng.choice(TIMES)
    return any_scalar(rng, name, kind)


def _entity(kind: Any, layout: schema.Struct, version: int, ours: Any) -> Any:
    """``ours`` as an instance of kio's class ``kind``, which lists the same fields in order."""
    present = [
        field
        for field in layout.fields
        if version in field.versions and (field.tag or 0) < schema.FIRST_OWN_TAG
    ]
    values = {}
    for field, theirs in zip(present, dataclasses.fields(kind), strict=True):
        value = getattr(ours, field.name)
        values[theirs.name] = _value(field, theirs, version, value)
    return kind(**values)


def _value(field: schema.Field, theirs: Any, version: int, value: Any) -> Any:
    if isinstance(field.type, schema.Struct):
        if value is None:
            return None
        inner = _inner_class(theirs.type)
        if field.is_array:
            return tuple(_entity(inner, field.type, version, each) for each in value)
        return _entity(inner, field.type, version, value)
    convert = _CONVERSIONS.get(theirs.metadata["kafka_type"], lambda each: each)
    if field.is_array:
        return None if value is None else tuple(map(convert, value))
    return convert(value)


def _inner_class(annotation: Any) -> Any:
    """The entity's class in ``X``, ``X | None``, ``tuple[X, ...]`` or both."""
    if dataclasses.is_dataclass(annotation):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _inner_class(argument)
        if found is not None:
            return found
    return None


def _moment(value: int) -> datetime.datetime | None:
    if value == -1:
        return None
    return datetime.datetime.fromtimestamp(value / 1000, datetime.UTC)


_CONVERSIONS: dict[str, Any] = {
    "error_code": ErrorCode,
    "timedelta_i32": lambda value: datetime.timedelta(milliseconds=value),
    "timedelta_i64": lambda value: datetime.timedelta(milliseconds=value),
    "datetime_i64": _moment,
    "uuid": lambda value: None if value == ZERO_UUID else value,
}


def test_kio_has_nearly_all_that_we_have():
    ours = {
        (key, kind, version)
        for key, api in schema.APIS.items()
        for version in api.versions.each()
        for kind in ("Request", "Response")
    }
    missing = {schema.APIS[key].name for key, _, _ in ours - set(COMMON)}
    assert missing <= {"LeaderAndIsr", "StopReplica", "UpdateMetadata", "ControlledShutdown"}
    assert len(COMMON) > 400


@for_each("key", sorted({key for key, _, _ in COMMON}), at_once=9)
def test_bytes_are_those_of_kio(key: schema.ApiKey):
    for _, kind, version in (each for each in COMMON if each[0] == key):
        name = schema.APIS[key].name + kind
        module = load_payload_module(key, version, EntityType[kind.lower()])
        theirs = getattr(module, name)
        read, write = entity_reader(theirs), entity_writer(theirs)
        body = schema.message(name).body
        rng = random.Random(f"{name} {version}")
        for _ in range(ROUNDS):
            message = draw(name, version, rng, _scalars)
            expected = _entity(theirs, body, version, message)
            ours = b"".join(encoder(name, version)(message))
            stream = io.BytesIO()
            write(stream, expected)
            assert ours == stream.getvalue(), (name, version, message)
            found, size = read(ours, 0)
            assert (found, size) == (expected, len(ours)), (name, version, message)
            assert decoder(name, version)(memoryview(ours), 0) == message
