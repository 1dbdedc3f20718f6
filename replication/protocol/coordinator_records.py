"""Records of ``__consumer_offsets`` and ``__transaction_state``, in the bytes Kafka has for them,
and what the members of a consumer group say to each other (Kafka's ``ConsumerProtocol``).

A key is ``type i16`` and fields, a value ``version i16`` and fields (W-170). Every version that a
Kafka wrote is read; the one written is that of Kafka 4.3. Types that are not listed belong to
other kinds of groups; a reader skips them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from logstore.common.types import Buffer
from replication.protocol.codecs import decoder, encoder
from replication.protocol.compiler import joined
from replication.protocol.errors import MalformedMessageError

_TYPE = struct.Struct(">h")


class RecordType(NamedTuple):
    """One kind of record: the names of its messages, and what is written."""

    key_name: str
    value_name: str
    key_type: int
    value_version: int


OFFSET_COMMIT = RecordType("OffsetCommitKey", "OffsetCommitValue", 1, 4)
GROUP_METADATA = RecordType("GroupMetadataKey", "GroupMetadataValue", 2, 3)
TRANSACTION_LOG = RecordType("TransactionLogKey", "TransactionLogValue", 0, 1)

CONSUMER_OFFSETS: Mapping[int, RecordType] = {
    0: OFFSET_COMMIT,  # of brokers that kept offsets before groups; the fields are those of type 1
    1: OFFSET_COMMIT,
    2: GROUP_METADATA,
}
TRANSACTION_STATE: Mapping[int, RecordType] = {0: TRANSACTION_LOG}

SUBSCRIPTION, ASSIGNMENT = "ConsumerProtocolSubscription", "ConsumerProtocolAssignment"

_BY_KEY_NAME = {kind.key_name: kind for kind in (OFFSET_COMMIT, GROUP_METADATA, TRANSACTION_LOG)}


def encode_key(key: Any) -> bytes:
    """``key``, one of the ``…Key`` messages, with its type in front."""
    name = type(key).__name__
    return _TYPE.pack(_BY_KEY_NAME[name].key_type) + joined(encoder(name, 0)(key))


def encode_value(value: Any, version: int | None = None) -> bytes:
    """``value``, one of the ``…Value`` messages, with ``version`` (that of Kafka 4.3) in front.

    Raises:
        UnencodableMessageError: the version lacks a field that may not be lost.
    """
    name = type(value).__name__
    if version is None:
        version = _BY_KEY_NAME[name.removesuffix("Value") + "Key"].value_version
    return _TYPE.pack(version) + joined(encoder(name, version)(value))


def decode_key(topic: Mapping[int, RecordType], key: Buffer) -> Any | None:
    """The key's message, or None for a type that ``topic`` does not list: skip the record.

    Raises:
        MalformedMessageError: the bytes are no key.
    """
    kind = topic.get(_leading(key, "key"))
    return None if kind is None else decoder(kind.key_name, 0)(memoryview(key), _TYPE.size)


def decode_value(key: Any, value: Buffer) -> Any:
    """The message in the value of the record with ``key``, of whatever version it is.

    Raises:
        MalformedMessageError: the bytes are no value.
        UnsupportedVersionError: a version that no Kafka known here writes.
    """
    name = _BY_KEY_NAME[type(key).__name__].value_name
    return decoder(name, _leading(value, name))(memoryview(value), _TYPE.size)


def encode_of_member(value: Any) -> bytes:
    """A subscription or an assignment, in the version that all read."""
    return encode_value(value, 0)


def decode_of_member(name: str, data: Buffer) -> Any:
    """Decode a client's ``SUBSCRIPTION`` or ``ASSIGNMENT``, of any version: later ones have
    more at the end, which is left out.

    Raises:
        MalformedMessageError: the bytes are no such message.
    """
    if _leading(data, name) < 0:
        raise MalformedMessageError(name, -1, 0, "a negative version")
    return decoder(name, 0)(memoryview(data), _TYPE.size)


def _leading(data: Buffer, what: str) -> int:
    if len(data) < _TYPE.size:
        raise MalformedMessageError(what, -1, 0, "the message is cut short")
    number: int = _TYPE.unpack_from(data)[0]
    return number
