"""The schema files inside Kafka's jars, and one message of them in one version as plain values."""

from __future__ import annotations

import functools
import json
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import kafka_jars

FOLDERS = ("common/message/", "common/metadata/")


class Field(NamedTuple):
    """A field that a version has; ``fields`` of a structure, in order."""

    name: str
    type: str  # with [] in front of an array's; "struct" for a structure
    nullable: bool
    tag: int | None
    default: object
    fields: tuple[Field, ...]


class Schemas(NamedTuple):
    """Schema files of one release, by message name."""

    by_name: dict[str, dict[str, Any]]

    def valid_versions(self, name: str) -> tuple[int, int]:
        found = _range(self.by_name[name]["validVersions"])
        assert found is not None
        return found

    def is_flexible(self, name: str, version: int) -> bool:
        return _has(self.by_name[name]["flexibleVersions"], version)

    def fields(self, name: str, version: int) -> tuple[Field, ...]:
        """The fields that ``version`` has, in their order on the wire; tagged ones by tag."""
        schema = self.by_name[name]
        structs = {each["name"]: each["fields"] for each in schema.get("commonStructs", [])}
        return _fields(schema["fields"], version, structs)

    def may_not_be_lost(self, name: str) -> set[str]:
        """Paths of fields that some valid version lacks, and that are not ignorable."""
        schema = self.by_name[name]
        structs = {each["name"]: each["fields"] for each in schema.get("commonStructs", [])}
        return set(_needed(schema["fields"], self.valid_versions(name), structs, ""))


@functools.cache
def schemas(pom: Path) -> Schemas:
    """All schema files of the jars that ``pom`` resolves to."""
    by_name: dict[str, dict[str, Any]] = {}
    for jar in kafka_jars.classpath(pom=pom).split(os.pathsep):
        if Path(jar).name.startswith("kafka") and jar.endswith(".jar"):
            by_name.update({schema["name"]: schema for schema in _read(jar)})
    return Schemas(by_name)


def _read(jar: str) -> Iterator[dict[str, Any]]:
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if name.startswith(FOLDERS) and name.endswith(".json"):
                text = archive.read(name).decode()
                yield json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))


def _range(text: str | None) -> tuple[int, int] | None:
    if text is None or text == "none":
        return None
    first, dash, last = text.rstrip("+").partition("-")
    if dash:
        return int(first), int(last)
    return int(first), 32_767 if text.endswith("+") else int(first)


def _has(text: str | None, version: int) -> bool:
    found = _range(text)
    return found is not None and found[0] <= version <= found[1]


def _versions(field: dict[str, Any]) -> str:
    text: str = field.get("versions") or field["taggedVersions"]
    return text


def snake_case(name: str) -> str:
    """Kafka's ``ThrottleTimeMs`` as ``throttle_time_ms``."""
    name = name.replace("KRaft", "Kraft").replace("2Pc", "_2pc")
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


def _fields(
    fields: list[dict[str, Any]], version: int, structs: dict[str, list[dict[str, Any]]]
) -> tuple[Field, ...]:
    present = [_field(f, version, structs) for f in fields if _has(_versions(f), version)]
    plain = [field for field in present if field.tag is None]
    tagged = [field for field in present if field.tag is not None]
    return (*plain, *sorted(tagged, key=lambda field: field.tag or 0))


def _field(field: dict[str, Any], version: int, structs: dict[str, list[dict[str, Any]]]) -> Field:
    is_array, kind = field["type"].startswith("[]"), field["type"].removeprefix("[]")
    inner = field.get("fields") or structs.get(kind)
    nullable = _has(field.get("nullableVersions"), version)
    return Field(
        snake_case(field["name"]),
        ("[]" if is_array else "") + ("struct" if inner else kind),
        nullable,
        field["tag"] if _has(field.get("taggedVersions"), version) else None,
        _default(field.get("default"), kind, is_array, inner is not None),
        _fields(inner, version, structs) if inner else (),
    )


def _default(value: object, kind: str, is_array: bool, is_struct: bool) -> object:
    """As the classes have it; "struct" for a structure of defaults."""
    if value == "null":
        return None
    if is_array:
        return ()
    if is_struct:
        return "struct"
    if kind == "bool":
        return str(value).lower() == "true"
    if kind in ("string", "bytes", "records", "uuid"):
        return {"string": value or "", "bytes": b"", "records": None, "uuid": "zero"}[kind]
    return int(str(value or 0), 0)


def _needed(
    fields: list[dict[str, Any]],
    within: tuple[int, int],
    structs: dict[str, list[dict[str, Any]]],
    path: str,
) -> Iterator[str]:
    for field in fields:
        has = _range(_versions(field))
        assert has is not None
        first, last = max(has[0], within[0]), min(has[1], within[1])
        if first > last:
            continue  # of versions that no release speaks any more
        name = path + snake_case(field["name"])
        if (first, last) != within and not field.get("ignorable", False):
            yield name
        kind = field["type"].removeprefix("[]")
        inner = field.get("fields") or structs.get(kind)
        if inner:
            # A shared structure is written down once, for all the versions of the message.
            shared = within if kind in structs else (first, last)
            yield from _needed(inner, shared, structs, name + ".")
