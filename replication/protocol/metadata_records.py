"""Records of ``__cluster_metadata``, which the controllers of KRaft write (W-173).

A value is a frame of three variable-length numbers, which are the frame's version, the record's
type and its version, and then the fields. There is no key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from logstore.common.types import Buffer
from replication.protocol.codecs import decoder
from replication.protocol.compiler import read_uvarint
from replication.protocol.errors import MalformedMessageError, UnsupportedVersionError

_FRAME = "metadata record"
_FRAME_VERSION = 1  # 0 was that of a preview, from which no release upgrades
_VOTERS = "VotersRecord"

BEGIN_TRANSACTION, END_TRANSACTION, ABORT_TRANSACTION = 23, 24, 25  # KIP-868

NAMES: Mapping[int, str] = {
    0: "RegisterBrokerRecord",
    1: "UnregisterBrokerRecord",
    2: "TopicRecord",
    3: "PartitionRecord",
    4: "ConfigRecord",
    5: "PartitionChangeRecord",
    9: "RemoveTopicRecord",
    10: "DelegationTokenRecord",
    11: "UserScramCredentialRecord",
    12: "FeatureLevelRecord",
    14: "ClientQuotaRecord",
    15: "ProducerIdsRecord",
    17: "BrokerRegistrationChangeRecord",
    18: "AccessControlEntryRecord",
    19: "RemoveAccessControlEntryRecord",
    22: "RemoveUserScramCredentialRecord",
    26: "RemoveDelegationTokenRecord",
    28: "ClearElrRecord",
}
"""The types that are decoded."""

PASSING: Mapping[int, str] = {
    7: "FenceBrokerRecord",
    8: "UnfenceBrokerRecord",
    20: "NoOpRecord",
    21: "ZkMigrationStateRecord",
    BEGIN_TRANSACTION: "BeginTransactionRecord",
    END_TRANSACTION: "EndTransactionRecord",
    ABORT_TRANSACTION: "AbortTransactionRecord",
    27: "RegisterControllerRecord",
}
"""The types that speak of running processes or of the log itself; nothing but the type is read."""


class MetadataRecord(NamedTuple):
    """``message`` is None where ``NAMES`` lacks the ``type``."""

    type: int
    version: int
    message: Any | None


def decode(value: Buffer | None) -> MetadataRecord:
    """The record in ``value``.

    Raises:
        MalformedMessageError: the bytes are no such record.
        UnsupportedVersionError: a type of ``NAMES`` in a version that no Kafka known here writes.
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
    name = NAMES.get(kind)
    message = None if name is None else decoder(name, version)(view, position)
    return MetadataRecord(kind, version, message)


def decode_voters(value: Buffer | None) -> Any:
    """The ``VotersRecord`` in a control record of type ``KRAFT_VOTERS``.

    Raises:
        MalformedMessageError: the bytes are none.
        UnsupportedVersionError: a version that no Kafka known here writes.
    """
    view = memoryview(value or b"")
    if len(view) < 2:
        raise MalformedMessageError(_VOTERS, -1, 0, "the message is cut short")
    version = int.from_bytes(view[:2], "big", signed=True)
    return decoder(_VOTERS, version)(view, 0)
