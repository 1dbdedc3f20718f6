"""JSON of strangers, read field by field: each has a type and bounds, and an error names it."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn, TypeVar

from checkpoints.partition_metadata import topic_id_from_text
from checkpoints.printable import printable
from checkpoints.types import TopicPartition
from logstore.common.errors import InvalidTopicError
from logstore.format import filenames
from logstore.tiers.errors import MalformedManifestError

I32_MAX: Final = 2**31 - 1
I64_MAX: Final = 2**63 - 1
U32_MAX: Final = 2**32 - 1
_TEXT_MAX: Final = 64 << 10

_T = TypeVar("_T")


class JsonObject:
    """One object of a document: ``key`` is the document's, ``place`` the way to this object."""

    def __init__(self, key: str, value: Any, place: str = "") -> None:
        self.key, self.place = key, place
        if not isinstance(value, dict):
            self.refuse("", f"is {_kind(value)}, not an object")
        self._fields: dict[str, Any] = value

    def refuse(self, name: str, reason: str) -> NoReturn:
        place = printable(self._at(name), 200)
        raise MalformedManifestError(self.key, f"{place} {reason}" if place else f"it {reason}")

    def _at(self, name: str) -> str:
        return f"{self.place}.{name}" if self.place and name else self.place or name

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._fields.get(name) is not None

    def _get(self, name: str) -> Any:
        if name not in self._fields:
            self.refuse(name, "is missing")
        return self._fields[name]

    def number(self, name: str, low: int = 0, high: int = I64_MAX) -> int:
        return self._number(name, self._get(name), low, high)

    def _number(self, name: str, value: Any, low: int, high: int) -> int:
        if type(value) is not int:
            self.refuse(name, f"is {_kind(value)}, not a whole number")
        if not low <= value <= high:
            self.refuse(name, f"is outside {low} to {high}")
        return value

    def flag(self, name: str) -> bool:
        value = self._get(name)
        if type(value) is not bool:
            self.refuse(name, f"is {_kind(value)}, not true or false")
        return value

    def text(self, name: str, limit: int = _TEXT_MAX) -> str:
        return self._text(name, self._get(name), limit)

    def _text(self, name: str, value: Any, limit: int = _TEXT_MAX) -> str:
        if not isinstance(value, str):
            self.refuse(name, f"is {_kind(value)}, not text")
        if len(value) > limit:
            self.refuse(name, f"has {len(value)} characters, more than {limit}")
        return value

    def topic(self, name: str) -> str:
        value = self.text(name)
        try:
            filenames.validate_topic(value)
        except InvalidTopicError as error:
            self.refuse(name, str(error))
        return value

    def uuid(self, name: str) -> uuid.UUID:
        try:
            found = topic_id_from_text(self.text(name))
        except ValueError as error:
            self.refuse(name, str(error))
        if not found.int:  # stands for "none" in Kafka
            self.refuse(name, "is the zero id, which names nothing")
        return found

    def child(self, name: str) -> JsonObject:
        return JsonObject(self.key, self._get(name), self._at(name))

    def list_of(self, name: str, read: Callable[[JsonObject], _T], limit: int) -> tuple[_T, ...]:
        """A list of objects, each by ``read``."""
        return tuple(
            read(JsonObject(self.key, each, f"{self._at(name)}[{number}]"))
            for number, each in enumerate(self._items(name, limit))
        )

    def _items(self, name: str, limit: int) -> list[Any]:
        value = self._get(name)
        if not isinstance(value, list):
            self.refuse(name, f"is {_kind(value)}, not a list")
        if len(value) > limit:
            self.refuse(name, f"has {len(value)} entries, more than {limit}")
        return value

    def numbers(self, name: str, count: int, high: int) -> list[int]:
        """A list of ``count`` numbers from 0 to ``high``."""
        found = self._items(name, count)
        if len(found) != count:
            self.refuse(name, f"has {len(found)} numbers, not {count}")
        return [self._number(name, value, 0, high) for value in found]

    def texts(self, name: str) -> dict[str, str]:
        """An object whose values are all text."""
        child = self.child(name)
        return {each: child._text(each, value) for each, value in child._fields.items()}

    def epochs(self, name: str, limit: int = 1 << 20) -> tuple[tuple[int, int], ...]:
        """Leader epochs with their start offsets, ascending: pairs ``[[0, 0], [3, 1000]]``, or an
        object as Kafka's tools write it."""
        value = self._get(name)
        pairs: list[Any]
        if isinstance(value, dict):
            pairs = [[self._epoch(name, epoch), start] for epoch, start in value.items()]
            pairs.sort(key=lambda pair: pair[0])
        else:
            pairs = self._items(name, limit)
        found = tuple(self._pairs(name, pairs))
        for (epoch, start), (later, later_start) in itertools.pairwise(found):
            if epoch >= later or start > later_start:
                self.refuse(name, f"does not ascend at epoch {later}")
        return found

    def _epoch(self, name: str, text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) <= 10):
            self.refuse(name, "has a key that is no epoch")
        return int(text)

    def _pairs(self, name: str, pairs: list[Any]) -> Iterator[tuple[int, int]]:
        for pair in pairs:
            if not isinstance(pair, list) or len(pair) != 2:
                self.refuse(name, "has an entry that is no pair")
            yield self._number(name, pair[0], 0, I32_MAX), self._number(name, pair[1], 0, I64_MAX)

    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic("topic"), self.number("partition", 0, I32_MAX))


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value", int: "a number"}
    return "null" if value is None else names.get(type(value), "a fraction")


def read_json(key: str, data: bytes, limit: int) -> JsonObject:
    """The object that ``data`` is.

    Raises:
        MalformedManifestError: it is larger than ``limit`` bytes, is not UTF-8 or JSON, names a
            field twice, or is no object.
    """
    if len(data) > limit:
        raise MalformedManifestError(key, f"it has {len(data)} bytes, more than {limit}")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a field is there twice")
        return found

    def refuse(text: str) -> NoReturn:
        raise ValueError(f"{text} is no number")

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else printable(str(error))
        raise MalformedManifestError(key, f"it is no JSON: {reason[:200]}") from None
    return JsonObject(key, value)


__all__ = ["I32_MAX", "I64_MAX", "U32_MAX", "JsonObject", "read_json"]
