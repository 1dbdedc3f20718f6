"""Requests answered with codes alone, in their own schema: with one for the whole, which stands in
every place that the response has for one (Kafka's ``getErrorResponse``), or with one by partition.

The answer follows from the schema. A structure takes what it shares with the request by name. One
of its arrays whose elements have a code gets an element for each of the request's array.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from typing import Any

from replication.common.error_codes import ErrorCode
from replication.network import CLOSE
from replication.protocol import ApiKey, schema
from replication.protocol import messages as wire
from replication.protocol.schema import Element, Field, Struct

# Versions of responses that have no place for a code of the whole begin with this one.
_FIRST_WITH_CODE = {ApiKey.ELECT_LEADERS: 1, ApiKey.DESCRIBE_LOG_DIRS: 3}

# These repeat the code of the whole for each topic or partition up to a version, as Kafka does:
# some clients look there only. In others, what is below a code has none.
_REPEATED = {
    ApiKey.FETCH: 12,  # later ones name topics by id only
    ApiKey.METADATA: 99,
    ApiKey.OFFSET_FETCH: 99,
    ApiKey.ELECT_LEADERS: 99,
}

_CODES = ("error_code", "partition_error_code")
_NO_NAMES = (*_CODES, "error_message")

# What names a thing in a request names it in the response, in one of these spellings.
_NAMES = (
    ("name", "topic", "topic_name"),
    ("partition_index", "partition", "index", "partition_id"),
    ("topic_id",),
    ("group_id",),
    ("producer_id",),
    ("transactional_id",),
    ("resource_type",),
    ("resource_name",),
)

_NOTHING_KNOWN: dict[str, object] = {
    "base_offset": -1,
    "committed_leader_epoch": -1,
    "committed_offset": -1,
    "high_watermark": -1,
    "low_watermark": -1,
    "node_id": -1,
    "port": -1,
    "producer_epoch": -1,
    "producer_id": -1,
    "error_message": None,
    "entries": None,
    "records": b"",
}
"""Values of a failed answer in place of the schema's defaults."""


def refusal(key: ApiKey, version: int, request: Any, code: ErrorCode) -> Any:
    """The answer to ``request`` in which all failed with ``code``; ``CLOSE`` where there is none.

    Args:
        request: the decoded message.
    """
    if version < _FIRST_WITH_CODE.get(key, 0):
        return CLOSE
    if key is ApiKey.PRODUCE and request.acks == 0:
        return CLOSE  # nobody reads an answer, so this is how the producer notices
    if key is ApiKey.ALTER_REPLICA_LOG_DIRS:  # its topics stand below their directories
        topics = tuple(topic for each in request.dirs for topic in each.topics)
        request = wire.AlterReplicaLogDirsRequest.AlterReplicaLogDir(topics=topics)
    return _mirror(key, version, version <= _REPEATED.get(key, -1))(request, code, repeat(code))


def answered(
    key: ApiKey,
    version: int,
    request: Any,
    codes: Iterable[ErrorCode],
    whole: ErrorCode = ErrorCode.NONE,
) -> Any:
    """The answer to ``request`` with a code for each of its partitions.

    Args:
        request: the decoded message.
        codes: of its partitions, in their order.
    """
    return _mirror(key, version, True)(request, whole, iter(codes))


_Make = Callable[[Any, Iterator[ErrorCode]], Any]
"""Makes a structure of a response for one of the request, with the next codes."""


@functools.cache
def _mirror(
    key: ApiKey, version: int, repeated: bool
) -> Callable[[Any, ErrorCode, Iterator[ErrorCode]], Any]:
    """A function that makes responses: of a request, the code of the whole, those of its parts.

    Args:
        repeated: whether there are codes below one of the whole.
    """
    name = schema.APIS[key].name
    asked, answer = (schema.message(name + kind).body for kind in ("Request", "Response"))
    if key is ApiKey.ALTER_REPLICA_LOG_DIRS:
        (asked,) = (each.type for each in asked.fields if isinstance(each.type, Struct))
    mirror = _Mirror(wire.structures(f"{name}Response").by_name, version)
    make = mirror.maker(answer, asked, repeated, is_named=False)
    has_code = mirror.has_code(answer)

    def whole(request: Any, code: ErrorCode, codes: Iterator[ErrorCode]) -> Any:
        return make(request, chain((code,), codes) if has_code else codes)

    return whole


class _Mirror:
    """Makes structures of a response after those of a request, in one version."""

    def __init__(self, classes: dict[str, Any], version: int) -> None:
        self._classes, self._version = classes, version

    def maker(
        self, struct: Struct, asked: Element, repeated: bool = False, *, is_named: bool = True
    ) -> _Make:
        fields, kind = self._present(struct), self._classes[struct.name]
        known = {f.name: _NOTHING_KNOWN[f.name] for f in fields if f.name in _NOTHING_KNOWN}
        places = [field.name for field in fields if field.name in _CODES]
        names = self._names(struct, asked) if is_named else lambda element: {}
        arrays = self._arrays(struct, asked, repeated)

        def make(element: Any, codes: Iterator[ErrorCode]) -> Any:
            values = known | names(element)
            if places:
                values |= dict.fromkeys(places, next(codes))
            for field, source, inner in arrays:
                elements = getattr(element, source) or ()
                values[field] = tuple([inner(each, codes) for each in elements])
            return kind(**values)

        return make

    def _names(self, struct: Struct, asked: Element) -> Callable[[Any], dict[str, Any]]:
        """The fields that name an element in the answer. A name or an index is an element, too."""
        fields = self._present(struct)
        if not isinstance(asked, Struct):
            (name, *_) = (f.name for f in fields if f.type == asked and f.name not in _NO_NAMES)
            return lambda element: {name: element}
        pairs = [
            # The name may be null where the topic is asked for by its id alone.
            (field.name, each.name, None if self._version in field.nullable else "")
            for field in fields
            for spellings in _NAMES
            if field.name in spellings
            for each in self._present(asked)
            if each.name in spellings
        ]

        def names(element: Any) -> dict[str, Any]:
            found = ((to, getattr(element, name), missing) for to, name, missing in pairs)
            return {to: missing if value is None else value for to, value, missing in found}

        return names

    def _arrays(
        self, struct: Struct, asked: Element, repeated: bool
    ) -> list[tuple[str, str, _Make]]:
        """Arrays whose elements have codes, each with the request's array that it is for."""
        sources: list[Field] = []
        if isinstance(asked, Struct):
            sources = [each for each in self._present(asked) if each.is_array]
        if not sources or (not repeated and self.has_code(struct)):
            return []
        found = []
        for field in self._present(struct):
            if self._holds_codes(field) and isinstance(field.type, Struct):
                source = next((each for each in sources if each.name == field.name), sources[0])
                found.append((field.name, source.name, self.maker(field.type, source.type)))
        return found

    def has_code(self, struct: Struct) -> bool:
        return any(field.name in _CODES for field in self._present(struct))

    def _holds_codes(self, field: Field) -> bool:
        """Whether elements of the array have a code, or arrays in them have elements with one."""
        if not field.is_array or not isinstance(field.type, Struct):
            return False
        return self.has_code(field.type) or any(map(self._holds_codes, self._present(field.type)))

    def _present(self, struct: Struct) -> list[Field]:
        return [field for field in struct.fields if self._version in field.versions]
