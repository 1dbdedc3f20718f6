"""The schema table as values: messages, structures, fields and the versions that have them.

The first line of each API is read when the module is loaded, its fields when first asked for.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from replication.protocol.api_keys import ApiKey
from replication.protocol.schema_table import RECORDS, TABLE


class VersionRange(NamedTuple):
    """Versions ``first`` to ``last``, both included; empty if ``last`` is the smaller."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    def each(self) -> range:
        """The versions in order."""
        return range(self.first, self.last + 1)


NO_VERSIONS = VersionRange(0, -1)
FIRST_OWN_TAG = 100  # fields from here on are ours: a real broker skips them
FIXED_SIZES = {"bool": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "f64": 8, "uuid": 16}  # in bytes
SCALARS = (*FIXED_SIZES, "str", "bytes", "records")


class Struct(NamedTuple):
    """A structure; ``name`` is Kafka's, the attribute of the message that holds the class."""

    name: str
    fields: tuple[Field, ...]


Element: TypeAlias = str | Struct


class Field(NamedTuple):
    """One field; ``type`` is a scalar's name or a structure, of the elements if ``is_array``."""

    name: str
    type: Element
    is_array: bool
    versions: VersionRange
    nullable: VersionRange
    tag: int | None
    default: object  # of a structure that may not be null: "", which stands for one of defaults
    is_needed: bool  # may not be lost in a version without it


class Message(NamedTuple):
    """A request, a response or what a record holds."""

    name: str
    versions: VersionRange
    flexible: VersionRange
    body: Struct

    @property
    def may_be_longer(self) -> bool:
        """Whether bytes may follow. Kafka takes such a request, and librdkafka 2.12 sends one: all
        topics of Metadata 12, with a count of four bytes where one is right. What members of a
        group say to each other has more fields at the end in later versions."""
        return self.name.endswith("Request") or self.name.startswith("ConsumerProtocol")


class Api(NamedTuple):
    """The first line of an API's entry."""

    key: ApiKey
    name: str
    versions: VersionRange
    flexible: VersionRange


def _range(text: str, within: VersionRange) -> VersionRange:
    first, dash, last = text.partition("-")
    if dash:
        return VersionRange(int(first), int(last))
    if text.endswith("+"):
        return VersionRange(int(text[:-1]), within.last)
    return VersionRange(int(text), int(text))


def parse_head(line: str) -> tuple[str, VersionRange, VersionRange]:
    """``Name versions [flexible versions]`` as (name, versions, flexible versions)."""
    name, versions, *flexible = line.split()
    whole = _range(versions, NO_VERSIONS)
    return name, whole, _range(flexible[1], whole) if flexible else NO_VERSIONS


_TOKEN = re.compile(
    r"\s*(?:(?P<tag>#\d+)|(?P<name>[A-Za-z]\w*)|(?P<null>\?(?:\d+(?:-\d+|\+)?)?)"
    r"|(?P<versions>\d+(?:-\d+|\+)?)|=(?P<default>[\w-]+)|(?P<sign>[][{},!]))"
)


class _Parser:
    """Recursive descent over the tokens of one message; structures are known by name once seen."""

    def __init__(self, text: str, versions: VersionRange) -> None:
        self._tokens = self._split(text)
        self._next = next(self._tokens)
        self._versions = versions
        self._structs: dict[str, Struct] = {}

    @staticmethod
    def _split(text: str) -> Iterator[tuple[str, str]]:
        position, text = 0, text.strip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None:
                raise ValueError(f"schema table: {text[position : position + 40]!r}")
            yield match.lastgroup, match[match.lastgroup]
            position = match.end()
        while True:
            yield "end", ""

    def _accept(self, kind: str, value: str | None = None) -> str | None:
        found, text = self._next
        if found != kind or (value is not None and text != value):
            return None
        self._next = next(self._tokens)
        return text

    def _need(self, kind: str, value: str | None = None) -> str:
        text = self._accept(kind, value)
        if text is None:
            raise ValueError(f"schema table: {value or kind} expected, not {self._next}")
        return text

    def fields(self, end: tuple[str, str]) -> tuple[Field, ...]:
        """Fields up to the token ``end``, which is taken."""
        found: list[Field] = []
        while self._accept(*end) is None:
            if found:
                self._need("sign", ",")
            found.append(self._field())
        return tuple(found)

    def _field(self) -> Field:
        tag = self._accept("tag")
        name = self._need("name")
        is_array = self._accept("sign", "[") is not None
        element = self._element()
        if is_array:
            self._need("sign", "]")
        null = self._accept("null")
        own = self._accept("versions")
        versions = _range(own, self._versions) if own else self._versions
        nullable = NO_VERSIONS
        if null is not None:
            nullable = _range(null[1:], versions) if len(null) > 1 else versions
        return Field(
            name,
            element,
            is_array,
            versions,
            nullable,
            int(tag[1:]) if tag else None,
            _default(self._accept("default"), element, is_array),
            self._accept("sign", "!") is not None,
        )

    def _element(self) -> Element:
        name = self._need("name")
        if name in SCALARS:
            return name
        if self._accept("sign", "{"):
            self._structs[name] = Struct(name, self.fields(("sign", "}")))
        return self._structs[name]


_EMPTY: Mapping[str, object] = {"bool": False, "str": "", "bytes": b"", "records": None}


def _default(text: str | None, element: Element, is_array: bool) -> object:
    if text == "null":
        return None
    if is_array:
        return ()
    if isinstance(element, Struct):
        return ""
    if text is None:
        return _EMPTY.get(element, 0)
    return text == "true" if element == "bool" else int(text)


def parse_message(name: str, versions: VersionRange, flexible: VersionRange, text: str) -> Message:
    """The message whose fields ``text`` lists."""
    fields = _Parser(text, versions).fields(("end", ""))
    return Message(name, versions, flexible, Struct(name, fields))


def _heads() -> Iterator[tuple[Api, str]]:
    for entry in TABLE.strip().split("\n\n"):
        line, _, bodies = entry.partition("\n")
        key, _, head = line.partition(" ")
        yield Api(ApiKey(int(key)), *parse_head(head)), bodies


_ENTRIES = {api.key: (api, bodies) for api, bodies in _heads()}
APIS: Mapping[ApiKey, Api] = {key: api for key, (api, _) in _ENTRIES.items()}


def _record_entries() -> Iterator[tuple[str, str]]:
    for entry in RECORDS.strip().split("\n\n"):
        head, _, fields = entry.partition("\n")
        yield head, fields


_API_OF = {api.name + kind: api.key for api in APIS.values() for kind in ("Request", "Response")}
_RECORD_OF = {head.partition(" ")[0]: (head, fields) for head, fields in _record_entries()}
RECORD_NAMES = tuple(_RECORD_OF)
MESSAGE_NAMES = (*_API_OF, *RECORD_NAMES)


@functools.cache
def message(name: str) -> Message:
    """The schema of ``name``, such as ``FetchRequest``; KeyError if the tables have none."""
    if name in _RECORD_OF:
        head, fields = _RECORD_OF[name]
        return parse_message(*parse_head(head), fields)
    api, bodies = _ENTRIES[_API_OF[name]]
    request, _, response = bodies.removeprefix(">").partition("\n<")
    text = request if name.endswith("Request") else response
    return parse_message(name, api.versions, api.flexible, text)
