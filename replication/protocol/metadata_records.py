"""Records of ``__cluster_metadata``, which the controllers of KRaft write (W-173).

A value is a frame of three variable-length numbers, which are the frame's version, the record's
type and its version, and then the fields. There is no key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logstore.common.types import Buffer
from replication.protocol.codecs import decoder, encoder
from replication.protocol.compiler import joined, read_uvarint, uvarint
from replication.protocol.errors import MalformedMessageError, UnsupportedVersionError

_FRAME = "metadata record"
_FRAME_VERSION = 1  # 0 was that of a preview, from which no release upgrades

BEGIN_TRANSACTION, END_TRANSACTION, ABORT_TRANSACTION = 23, 24, 25  # KIP-868

DECODED: Mapping[int, str] = {
    2: "TopicRecord",
    3: "PartitionRecord",
    4: "ConfigRecord",
    5: "PartitionChangeRecord",
    9: "RemoveTopicRecord",
    15: "ProducerIdsRecord",
    28: "ClearElrRecord",
}
"""The types whose fields are read."""

FEATURE_LEVEL = 12  # written, and nothing that is read depends on it
_KINDS = {"FeatureLevelRecord": FEATURE_LEVEL} | {name: kind for kind, name in DECODED.items()}


def decode(value: Buffer | None) -> tuple[int, Any | None]:
    """The type of the record in ``value``, and the message if the type is one of ``DECODED``.

    Raises:
        MalformedMessageError: the bytes are no such record.
        UnsupportedVersionError: one of ``DECODED`` in a version that no Kafka known here writes.
    """
    view = memoryview(value or b"")
    try:
        frame, position = read_uvarint(view, 0)
        kind, position = read_uvarint(view, position)
        version, position = read_uvarint(view, position)
    except (IndexError, ValueError) as error:
        raise MalformedMessageError(_FRAME, -1, 0, f"no frame: {error}") from None
    if frame != _FRAME_VERSION:
        raise UnsupportedVersionError(_FRAME, frame)
    name = DECODED.get(kind)
    return kind, None if name is None else decoder(name, version)(view, position)


def encode(message: Any, version: int = 0) -> bytes:
    """The value of the record that is ``message``.

    Raises:
        UnencodableMessageError: the version lacks a field that may not be lost.
    """
    name = type(message).__name__
    frame = b"".join(map(uvarint, (_FRAME_VERSION, _KINDS[name], version)))
    return frame + joined(encoder(name, version)(message))
