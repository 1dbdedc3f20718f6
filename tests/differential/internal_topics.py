"""What a sequence left in the internal topics of a broker, read from its log directory.

Records are decoded and encoded again, which must give their bytes. So equal trees mean equal bytes,
but for what a broker names and dates itself. A batch of groups has the base sequence 0 in Kafka and
-1 here; without a producer id it says nothing, so it is not compared.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from logstore.format.reader import batch_records, iter_batches
from replication.common.internal_topics import GROUP_METADATA, TRANSACTION_STATE
from replication.protocol import coordinator_records as records
from tests.differential.steps import MEMBER, Names, Tree, dump

KINDS = {
    GROUP_METADATA: records.CONSUMER_OFFSETS,
    TRANSACTION_STATE: records.TRANSACTION_STATE,
}
OWN_TIMES = (
    "commit_timestamp",
    "expire_timestamp",
    "current_state_timestamp",
    "transaction_start_timestamp_ms",
    "transaction_last_update_timestamp_ms",
)
PRODUCERS = ("producer_id", "previous_producer_id", "next_producer_id")
MEMBERS = ("member_id", "leader")
IN_ANY_ORDER = ("members", "transaction_partitions", "partition_ids")
"""Kafka writes these in the order of a hash."""


def size_of(root: Path) -> dict[str, int]:
    """Bytes that each partition has now, by the name of its directory."""
    return {each.name: len(_data(each)) for topic in KINDS for each in root.glob(f"{topic}-*")}


def written_since(
    root: Path, sizes: dict[str, int], sequence: str, names: Names
) -> dict[str, list[Tree]]:
    """The records of ``sequence``, by partition, in the order of the log: so a record that is in
    another partition than Kafka's is a difference, too.

    Args:
        root: a log directory; each partition has one segment.
        sizes: what ``size_of`` said before the sequence.
        names: symbols of what the broker gave out in the sequence.
    """
    return {
        name: records
        for name, size in sizes.items()
        if (records := _records(root / name, size, sequence, names))
    }


def _data(partition: Path) -> bytes:
    return b"".join(each.read_bytes() for each in sorted(partition.glob("*.log")))


def _records(partition: Path, begin: int, sequence: str, names: Names) -> list[Tree]:
    found: list[Tree] = []
    topic = partition.name.rpartition("-")[0]
    data = _data(partition)[begin:]
    for batch in iter_batches(data):
        producer = names.symbol("producer", batch.producer_id)
        head = {
            "attributes": batch.attributes,
            "producer": producer,
            "epoch": batch.producer_epoch,
        }
        start = len(found)
        for each in batch_records(data, batch):
            if batch.is_control:
                if isinstance(producer, str):  # of this sequence
                    key, value = bytes(each.key or b"").hex(), bytes(each.value or b"").hex()
                    found.append({**head, "key": key, "value": value})
                continue
            key_message = records.decode_key(KINDS[topic], each.key or b"")
            if key_message is not None and str(key_message[0]).startswith(sequence):
                record = _record(key_message, each.key, each.value, names)
                if not _is_unused(record["value"]):
                    found.append({**head, **record})
        if all(each.get("value") is None for each in found[start:]):
            found[start:] = sorted(found[start:], key=dump)  # Kafka deletes in the order of a hash
    return found


def _is_unused(value: Tree) -> bool:
    """Kafka writes a group as soon as somebody asks to join it. Here that is no reason to write."""
    return value is not None and value.get("generation") == 0 and not value.get("members")


def _record(key: Any, key_bytes: Any, value: Any, names: Names) -> Tree:
    assert records.encode_key(key) == key_bytes, "a key has other bytes"
    tree: Tree = {"type": type(key).__name__, "key": _tree(key, names)}
    if value is None:
        return {**tree, "value": None}
    version = int.from_bytes(value[:2], "big")
    message = records.decode_value(key, value)
    assert records.encode_value(message, version) == value, "a value has other bytes"
    return {**tree, "version": version, "value": _tree(message, names)}


def _tree(message: Any, names: Names) -> Tree:
    return {
        name: _value(name, value, names)
        for name, value in zip(message._fields, message, strict=True)
    }


def _value(name: str, value: Any, names: Names) -> Tree:
    if name in OWN_TIMES:
        return "time" if value > 0 else value
    if name in PRODUCERS:
        return names.symbol("producer", value)
    if name in MEMBERS and value:
        made = MEMBER.fullmatch(value)
        return value if made is None else names.learn(f"member-{made[1]}", value)
    if isinstance(value, uuid.UUID):
        return names.symbol("topic", value) if value.int else "none"
    if isinstance(value, (bytes, memoryview)):
        return bytes(value).hex()
    if hasattr(value, "_fields"):
        return _tree(value, names)
    if isinstance(value, tuple):
        found = [_value("", each, names) for each in value]
        return sorted(found, key=dump) if name in IN_ANY_ORDER else found
    return value
