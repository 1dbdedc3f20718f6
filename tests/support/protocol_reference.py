"""A second decoder of the protocol's messages: it walks the schema, one field at a time.

It is slow and plain, shares only the schema with the compiled one, and notes where each thing lies
in the bytes, so that a fuzzer can change one field of a real message.
"""

from __future__ import annotations

import struct
import uuid
from typing import Any, NamedTuple

from replication.protocol import messages as wire
from replication.protocol import schema
from replication.protocol.compiler import MAX_ELEMENTS
from replication.protocol.structures import default_of


class Refused(Exception):
    """The bytes are no such message."""


class Place(NamedTuple):
    """Bytes ``start`` to ``stop``. ``kind``: a scalar's name, or ``length``, ``count``, ``mark``,
    ``tags`` (how many), ``tag`` (its number), ``tag size``."""

    kind: str
    start: int
    stop: int


class ReferenceDecoder:
    """Decodes one message; `places` is in the order of the bytes."""

    def __init__(self, name: str, version: int, data: bytes) -> None:
        self.places: list[Place] = []
        self._data, self._at = data, 0
        self._message, self._version = schema.message(name), version
        self._flexible = version in self._message.flexible
        self._classes = wire.structures(name).by_name
        self._elements = 0

    def decode(self) -> Any:
        """The message.

        Raises:
            Refused: a rule is broken somewhere.
        """
        message = self._struct(self._message.body)
        if self._at != len(self._data) and not self._message.may_be_longer:
            raise Refused("bytes are left")
        return message

    def _take(self, size: int, kind: str) -> bytes:
        if size < 0 or self._at + size > len(self._data):
            raise Refused(kind)
        start, self._at = self._at, self._at + size
        self.places.append(Place(kind, start, self._at))
        return self._data[start : self._at]

    def _number(self, size: int, kind: str) -> int:
        return int.from_bytes(self._take(size, kind), "big", signed=True)

    def _uvarint(self, kind: str) -> int:
        size = 1
        while self._data[self._at + size - 1 : self._at + size] >= b"\x80":
            size += 1
        data = self._take(size, kind)
        value = sum((byte & 0x7F) << 7 * number for number, byte in enumerate(data))
        if size > 5 or value >= 1 << 32:
            raise Refused("number too long")
        return value

    def _size(self, fixed: int, kind: str, nullable: bool) -> int | None:
        size = self._uvarint(kind) - 1 if self._flexible else self._number(fixed, kind)
        if size >= 0:
            return size
        if size == -1 and nullable:
            return None
        raise Refused("length")

    def _struct(self, layout: schema.Struct) -> Any:
        fields = [field for field in layout.fields if self._version in field.versions]
        values = {field.name: self._field(field) for field in fields if field.tag is None}
        tagged = {field.tag: field for field in fields if field.tag is not None}
        if self._flexible:
            values |= self._tags(tagged)
        for field in layout.fields:
            values.setdefault(field.name, default_of(field, self._classes))
        return self._classes[layout.name](**values)

    def _tags(self, known: dict[int, schema.Field]) -> dict[str, Any]:
        values, last = {}, -1
        for _ in range(min(self._uvarint("tags"), len(self._data) + 1)):
            tag = self._uvarint("tag")
            size = self._uvarint("tag size")
            stop = self._at + size
            if tag <= last or stop > len(self._data):
                raise Refused("tag")
            last = tag
            if tag in known:
                values[known[tag].name] = self._field(known[tag])
                if self._at != stop:
                    raise Refused("size of a tagged field")
            else:
                self._take(size, "unknown tag")
        return values

    def _field(self, field: schema.Field) -> Any:
        nullable = self._version in field.nullable
        if field.is_array:
            count = self._size(4, "count", nullable)
            return None if count is None else self._array(field.type, count)
        if not isinstance(field.type, schema.Struct):
            return self._scalar(field.type, nullable)
        if nullable and field.tag is None:
            mark = self._number(1, "mark")
            if mark not in (-1, 1):
                raise Refused("mark")
            if mark == -1:
                return None
        return self._struct(field.type)

    def _array(self, element: schema.Element, count: int) -> tuple[Any, ...]:
        self._elements += count
        if count > len(self._data) or self._elements > MAX_ELEMENTS:
            raise Refused("elements")
        if isinstance(element, schema.Struct):
            return tuple(self._struct(element) for _ in range(count))
        return tuple(self._scalar(element, nullable=False) for _ in range(count))

    def _scalar(self, kind: str, nullable: bool) -> Any:
        if kind == "bool":
            return self._take(1, kind) != b"\0"
        if kind == "uuid":
            return uuid.UUID(bytes=self._take(16, kind))
        if kind == "f64":
            return struct.unpack(">d", self._take(8, kind))[0]
        if kind in schema.FIXED_SIZES:
            return self._number(schema.FIXED_SIZES[kind], kind)
        size = self._size(2 if kind == "str" else 4, "length", nullable)
        if size is None:
            return None
        data = self._take(size, kind)
        if kind != "str":
            return data
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise Refused("text") from None
