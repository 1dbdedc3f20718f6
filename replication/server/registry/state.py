"""The registry as the records of its topic make it: applied one by one, in the order of the log.

Keys and values are those that Confluent's registry writes, as JSON. What another registry has
written stays as it is, with fields that are not known here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from logstore.common.errors import LogstoreError
from replication.server.registry.schemas import Level, References, SchemaError, SchemaType, parse

Value: TypeAlias = dict[str, Any]
LATEST = -1


class Code(Enum):
    """Errors as clients know them: an HTTP status and two digits more; and a message."""

    BAD_REQUEST = 400, "{}"
    NOT_FOUND = 404, "HTTP 404 Not Found"
    UNSUPPORTED_MEDIA_TYPE = 415, "HTTP 415 Unsupported Media Type"
    SUBJECT_NOT_FOUND = 40401, "Subject '{}' not found."
    VERSION_NOT_FOUND = 40402, "Version {} not found."
    SCHEMA_NOT_FOUND = 40403, "Schema not found"
    SUBJECT_SOFT_DELETED = (
        40404,
        "Subject '{}' was soft deleted: permanent=true deletes it for good",
    )
    SUBJECT_NOT_SOFT_DELETED = 40405, "Subject '{}' was not deleted before being so permanently"
    VERSION_SOFT_DELETED = 40406, "Subject '{}' Version {} was soft deleted"
    VERSION_NOT_SOFT_DELETED = 40407, "Subject '{}' Version {} was not deleted before"
    CONFIG_NOT_FOUND = 40408, "Subject '{}' does not have subject-level compatibility configured"
    INCOMPATIBLE = 40901, "Schema being registered is incompatible with an earlier schema: {}"
    INVALID_SCHEMA = 42201, "{}"
    INVALID_VERSION = 42202, "The specified version '{}' is not a valid version id"
    INVALID_COMPATIBILITY = 42203, "Invalid compatibility level {}"
    NOT_PERMITTED = 42205, "{}"
    REFERENCE_EXISTS = 42206, "One or more references exist to version {} of subject {}"
    INVALID_SUBJECT = 42208, "The specified subject '{}' is not a valid subject."
    SCHEMA_TOO_LARGE = 42209, "The schema is too large"
    STORE = 50001, "{}"
    TIMEOUT = 50002, "{}"


class RegistryError(LogstoreError):
    """The answer to a request that is refused."""

    def __init__(self, code: Code, *values: object) -> None:
        self.number, message = code.value
        super().__init__(message.format(*values))


class Version(NamedTuple):
    """A place of a schema: the same schema may be in several subjects."""

    subject: str
    number: int


def type_of(value: Mapping[str, Any]) -> SchemaType:
    return SchemaType(value.get("schemaType") or SchemaType.AVRO)


def identity(value: Mapping[str, Any]) -> bytes:
    """Schemas are the same if this is; of a record with the canonical text."""
    kind, more = type_of(value), [value.get(each) for each in ("metadata", "ruleSet")]
    whole = [kind, value["schema"], value.get("references") or [], more]
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).digest()


class RegistryState:
    """Not thread-safe: who applies and who asks holds the same lock."""

    def __init__(self) -> None:
        self.subjects: dict[str, dict[int, Value]] = {}
        self.configs: dict[str | None, Value] = {}
        self.modes: dict[str | None, str] = {}
        self.places: dict[int, set[Version]] = {}
        """The places of the schema of an id; deleted ones too."""
        self._ids: dict[bytes, int] = {}
        self._identities: dict[int, bytes] = {}
        self.max_id = 0
        """The greatest id that was ever given; it is not given again."""
        self.expected = b""
        """The identity of a schema that is being written: its text is canonical."""

    def versions(self, subject: str, *, deleted: bool = False) -> dict[int, Value]:
        """Those of a subject, ascending. Raises RegistryError: there are none."""
        found = self.subjects.get(subject, {})
        found = {n: found[n] for n in sorted(found) if deleted or not found[n]["deleted"]}
        if not found:
            raise RegistryError(Code.SUBJECT_NOT_FOUND, subject)
        return found

    def live(self, subject: str) -> list[Value]:
        """The versions that are not deleted, the latest first."""
        found = self.subjects.get(subject, {})
        return [found[n] for n in sorted(found, reverse=True) if not found[n]["deleted"]]

    def version(self, subject: str, number: int, *, deleted: bool = False) -> Value:
        """``LATEST`` is the latest that is not deleted. Raises RegistryError."""
        found, live = self.versions(subject, deleted=deleted), self.live(subject)
        if number == LATEST and live:
            return live[0]
        if number not in found:
            raise RegistryError(Code.VERSION_NOT_FOUND, number)
        return found[number]

    def of_id(self, schema_id: int) -> list[Value]:
        """The versions that have an id, ascending; deleted ones too."""
        return [self.subjects[s][n] for s, n in sorted(self.places.get(schema_id, ()))]

    def find(self, subject: str, wanted: bytes, *, deleted: bool = False) -> Value | None:
        """The latest version of a subject that has an identity."""
        found = self.subjects.get(subject, {})
        there = {n: v for n, v in found.items() if self._identities[v["id"]] == wanted}
        numbers = [n for n in there if deleted or not found[n]["deleted"]]
        return found[max(numbers)] if numbers else None

    def needed(self, *, deleted: bool, but: str | None = None) -> set[Version]:
        """The versions that others refer to: deleted ones too, or those of all subjects but one."""
        return {
            each
            for subject, versions in self.subjects.items()
            for value in (() if subject == but else versions.values())
            if deleted or not value["deleted"]
            for each in _references(value)
        }

    def texts(self, references: Iterable[Mapping[str, Any]]) -> References:
        """Raises RegistryError: one is not there."""
        found: dict[Version, tuple[str, str]] = {}

        def add(references: Iterable[Mapping[str, Any]], around: tuple[Version, ...]) -> None:
            for each in references:
                place = Version(each["subject"], each["version"])
                if place not in found and place not in around:
                    value = self.version(*place, deleted=True)
                    add(value.get("references") or (), (*around, place))
                    found[place] = each["name"], value["schema"]

        try:
            add(references, ())
        except RegistryError as error:
            raise RegistryError(Code.INVALID_SCHEMA, f"a reference is missing: {error}") from None
        return tuple(found.values())

    def identity(self, value: Mapping[str, Any]) -> bytes:
        """That of a record. Other registries write a text in other ways, and let more pass."""
        found, kind, text = identity(value), type_of(value), value["schema"]
        if found != self.expected and found not in self._ids:
            with suppress(SchemaError, RegistryError):
                text = parse(kind, text, self.texts(value.get("references") or []), known=True).text
        return identity({**value, "schema": text})

    def id_for(self, wanted: bytes) -> int:
        """The id that a schema has, or the next one."""
        found = self._ids.get(wanted, 0)
        return found if self._identities.get(found) == wanted else self.max_id + 1

    def apply(self, key: Value, value: Value | None, wanted: bytes) -> None:
        """
        Args:
            wanted: the identity of a schema.
        Raises:
            ValueError, ArithmeticError, LookupError, TypeError, AttributeError: it is no record of
            a registry, or lies. Nothing was changed.
        """
        subject: Any = key.get("subject")
        settings: dict[str, dict[str | None, Any]] = {"CONFIG": self.configs, "MODE": self.modes}
        match key["keytype"], value:
            case "SCHEMA", None:
                self._remove(Version(subject, key["version"]))
            case "SCHEMA", dict():
                self._put(Version(subject, key["version"]), value, wanted)
            case "DELETE_SUBJECT", dict():
                for number, each in self.subjects.get(subject, {}).items():
                    each["deleted"] = each["deleted"] or number <= value["version"]
            case "CONFIG", dict():
                Level(value.get("compatibilityLevel") or Level.BACKWARD)
                self.configs[subject] = value
            case "MODE", dict():
                self.modes[subject] = str(value["mode"])
            case "CONFIG" | "MODE" as kind, None:
                settings[kind].pop(subject, None)
            case "NOOP", dict():
                self.max_id = max(self.max_id, int(value.get("maxId", 0)))
            # The rest has no effect, or is of what is not served, such as contexts.

    def _put(self, place: Version, value: Value, wanted: bytes) -> None:
        schema_id = value["id"]
        are_text = isinstance(place.subject, str) and isinstance(value["schema"], str)
        are_whole = isinstance(place.number, int) and isinstance(schema_id, int)
        if not (are_text and are_whole) or place.number < 1 or schema_id < 1:
            raise ValueError("no subject, no schema, no version or no id")
        if schema_id in self.places and self._identities[schema_id] != wanted:
            raise ValueError(f"id {schema_id} is that of another schema")
        _references(value)  # before anything is changed
        self._remove(place)
        value.setdefault("deleted", False)
        self.subjects.setdefault(place.subject, {})[place.number] = value
        self.places.setdefault(schema_id, set()).add(place)
        self._ids[wanted], self._identities[schema_id] = schema_id, wanted
        self.max_id = max(self.max_id, schema_id)

    def _remove(self, place: Version) -> None:
        numbers = self.subjects.get(place.subject, {})
        if (value := numbers.pop(place.number, None)) is None:
            return
        if not numbers:
            del self.subjects[place.subject]
        self.places[value["id"]].discard(place)
        if not self.places[value["id"]]:
            del self.places[value["id"]]


def _references(value: Value) -> set[Version]:
    return {Version(each["subject"], each["version"]) for each in value.get("references") or ()}
