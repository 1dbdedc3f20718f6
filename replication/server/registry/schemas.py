"""Schemas: whether a text is one, its canonical text, and whether it may follow another.

The libraries of the extra ``registry`` decide that. Two schemas are the same if their canonical
texts are: white space never matters, the order of properties not in Avro.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from logstore.common.extras import Extra, load

References: TypeAlias = tuple[tuple[str, str], ...]
"""The schemas that one refers to, as (name, text); those that others of them need come first."""


COMPARE_S = 2.0
"""Of a processor's time, to compare two schemas of Avro: unions are compared branch by branch."""


class SchemaType(StrEnum):
    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"


class Level(StrEnum):
    """With which versions a new one is compared, and who must be able to read whose data."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"


class SchemaError(ValueError):
    """The text is no schema of its type, or nobody here can compare schemas of this type."""


class ParsedSchema(NamedTuple):
    type: SchemaType
    text: str
    """Canonical."""
    schema: Any
    """The object of Avro's library; None of other types."""


def library(module: str) -> Any:
    """Raises ConfigError."""
    return load(module, Extra.REGISTRY, "a schema registry")


@lru_cache(maxsize=256)
def parse(
    kind: SchemaType,
    text: str,
    references: References,
    normalize: bool = False,
    known: bool = False,
) -> ParsedSchema:
    """
    Args:
        normalize: the order of properties does not matter, in JSON Schema either.
        known: it is a schema, and only its canonical text is wanted.
    Raises:
        SchemaError
    """
    try:
        text.encode()  # no half of a surrogate pair
        if kind is SchemaType.PROTOBUF:
            return ParsedSchema(kind, _protobuf(text, references), None)
        value, schema = json.loads(text), None
        if kind is SchemaType.AVRO:
            names = library("avro.schema").Names()
            for _, each in references:
                library("avro.schema").make_avsc_object(json.loads(each), names)
            referred = library("avro.schema").Names()
            referred.names = dict(names.names)
            schema = library("avro.schema").make_avsc_object(value, names)
            value = schema.to_json(referred)
        elif not known:
            library("jsonschema").validators.validator_for(value).check_schema(value)
        if normalize or kind is SchemaType.AVRO:
            value = _ordered(value)
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return ParsedSchema(kind, text, schema)
    except _refusals() as error:
        reason = str(error).partition("\n")[0]
        raise SchemaError(f"Invalid schema of type {kind}, details: {reason}") from None


def _ordered(value: Any) -> Any:
    """Properties in one order, those first that a reader looks for."""
    if isinstance(value, list):
        return [_ordered(each) for each in value]
    if not isinstance(value, dict):
        return value
    keys = sorted(value, key=lambda key: (_FIRST.get(key, len(_FIRST)), key))
    return {key: _ordered(value[key]) for key in keys}


_FIRST = {"type": 0, "name": 1, "namespace": 2, "doc": 3, "fields": 4}


def _refusals() -> tuple[type[Exception], ...]:
    """Exceptions by which the libraries say that a text is no schema, or stumble over it."""
    said = library("avro.errors").AvroException, library("jsonschema").SchemaError
    return *said, ValueError, TypeError, AttributeError, LookupError, RecursionError


def _protobuf(text: str, references: References) -> str:
    """A ``FileDescriptorProto`` in base64, as librdkafka's clients send it. Its ``.proto`` text
    would need a compiler."""
    descriptors, errors = library("google.protobuf.descriptor_pb2"), library("google.protobuf")
    try:
        if not text:
            raise ValueError
        file = descriptors.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, errors.message.DecodeError):
        raise SchemaError("not a FileDescriptorProto in base64; text is not parsed") from None
    known = {name for name, _ in references}
    for each in file.dependency:
        if each not in known and not each.startswith(("google/", "confluent/")):
            raise SchemaError(f"there is no reference to {each}")
    return text


def _checker() -> Any:
    """The checker of Avro's library, with an end to what it does."""
    checker = library("avro.compatibility").ReaderWriterCompatibilityChecker()
    compare, end = checker.get_compatibility, time.thread_time() + COMPARE_S

    def in_time(*arguments: Any) -> Any:
        if time.thread_time() > end:
            raise SchemaError("the schemas are too large to be compared")
        return compare(*arguments)

    checker.get_compatibility = in_time
    return checker


def incompatibilities(
    new: ParsedSchema, earlier: Iterable[ParsedSchema], level: Level
) -> list[str]:
    """The reasons that keep ``new`` from coming after ``earlier``, the latest first; empty without.

    Raises:
        SchemaError: the schemas differ, and no library compares such.
    """
    direction, _, is_transitive = level.partition("_")
    for old in () if level is Level.NONE else earlier:
        if new.type is not old.type:
            return ["Incompatible because of different schema type"]
        if new.text != old.text and new.type is not SchemaType.AVRO:
            raise SchemaError(f"compatibility of {new.type} is not checked: set it to NONE")
        pairs = [(new, old)] * (direction != Level.FORWARD)
        pairs += [(old, new)] * (direction != Level.BACKWARD)
        for reader, writer in pairs if new.text != old.text else ():
            found = _checker().get_compatibility(reader.schema, writer.schema)
            if found.compatibility.name != "compatible":
                places = zip(sorted(found.locations), sorted(found.messages), strict=False)
                return [f"{place}: {message}" for place, message in places]
        if not is_transitive:
            break
    return []
