"""A request that fails as a whole, answered in its own schema: the code stands in every place that
the response has for one (Kafka's ``getErrorResponse``).

The answer follows from the schema. A structure takes what it shares with the request by name. One
of its arrays whose elements have a code gets an element for each of the request's array.
"""

from __future__ import annotations

from typing import Any

from replication.common.error_codes import ErrorCode
from replication.network import CLOSE
from replication.protocol import ApiKey, schema
from replication.protocol import messages as wire
from replication.protocol.schema import Element, Field, Struct

# Versions of responses that have no place for a code of the whole begin with this one.
_FIRST_WITH_CODE = {ApiKey.ELECT_LEADERS: 1, ApiKey.DESCRIBE_LOG_DIRS: 3}

# Between brokers: the other side takes a lost connection for an unknown outcome, as it is.
_CLOSED = (
    ApiKey.LEADER_AND_ISR,
    ApiKey.STOP_REPLICA,
    ApiKey.UPDATE_METADATA,
    ApiKey.CONTROLLED_SHUTDOWN,
)

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
    ("name", "topic"),
    ("partition_index", "partition", "index", "partition_id"),
    ("topic_id",),
    ("group_id",),
    ("producer_id",),
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
"""What a failed answer has in place of the schema's defaults."""


def refusal(key: ApiKey, version: int, request: Any, code: ErrorCode) -> Any:
    """The answer to ``request`` in which all failed with ``code``; ``CLOSE`` where there is none.

    Args:
        request: the decoded message.
    """
    if key in _CLOSED or version < _FIRST_WITH_CODE.get(key, 0):
        return CLOSE
    if key is ApiKey.PRODUCE and request.acks == 0:
        return CLOSE  # nobody reads an answer, so this is how the producer hears of it
    name = schema.APIS[key].name
    asked, answered = (schema.message(name + kind).body for kind in ("Request", "Response"))
    mirror = _Mirror(wire.structures(f"{name}Response").by_name, version, code)
    return mirror.whole(answered, asked, request, version <= _REPEATED.get(key, -1))


class _Mirror:
    """Makes structures of a response after those of a request."""

    def __init__(self, classes: dict[str, Any], version: int, code: ErrorCode) -> None:
        self._classes, self._version, self._code = classes, version, code

    def whole(self, struct: Struct, asked: Struct, request: Any, repeated: bool) -> Any:
        return self._made(struct, self._arrays(struct, asked, request, repeated))

    def _element(self, struct: Struct, asked: Element, element: Any) -> Any:
        """The structure for one element of an array; a name or an index is one, too."""
        fields = self._present(struct)
        if not isinstance(asked, Struct):
            (name, *_) = (f.name for f in fields if f.type == asked and f.name not in _NO_NAMES)
            return self._made(struct, {name: element})
        names = {}
        for field in fields:
            spellings = next((each for each in _NAMES if field.name in each), ())
            for each in self._present(asked):
                if each.name in spellings:
                    names[field.name] = getattr(element, each.name)
                    if names[field.name] is None and self._version not in field.nullable:
                        names[field.name] = ""  # the topic is asked for by its id alone
        return self._made(struct, {**names, **self._arrays(struct, asked, element)})

    def _made(self, struct: Struct, values: dict[str, object]) -> Any:
        known = {**dict.fromkeys(_CODES, self._code), **_NOTHING_KNOWN}
        own = {f.name: known[f.name] for f in self._present(struct) if f.name in known}
        return self._classes[struct.name](**{**own, **values})

    def _arrays(
        self, struct: Struct, asked: Struct, request: Any, repeated: bool = False
    ) -> dict[str, object]:
        """Arrays whose elements have codes: an element for each one of the request's array."""
        fields = self._present(struct)
        sources = [each for each in self._present(asked) if each.is_array]
        if not sources or (not repeated and any(field.name in _CODES for field in fields)):
            return {}
        found: dict[str, object] = {}
        for field in fields:
            if self._has_code(field) and isinstance(field.type, Struct):
                source = next((each for each in sources if each.name == field.name), sources[0])
                found[field.name] = tuple(
                    self._element(field.type, source.type, each)
                    for each in getattr(request, source.name) or ()
                )
        return found

    def _has_code(self, field: Field) -> bool:
        """Whether elements of the array have a code, or arrays in them have elements with one."""
        inner = self._present(field.type) if isinstance(field.type, Struct) else []
        return field.is_array and any(f.name in _CODES or self._has_code(f) for f in inner)

    def _present(self, struct: Struct) -> list[Field]:
        return [field for field in struct.fields if self._version in field.versions]
