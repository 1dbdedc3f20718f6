"""Records of ``__consumer_offsets`` and ``__transaction_state`` that no coordinator writes.

The clean directories have none of these topics: a partition of one is added to the broker that
crashed, whose directory then is of another cluster, as other faults add the same partition.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from checkpoints.meta_properties import META_PROPERTIES
from checkpoints.types import TopicPartition
from logstore.format import filenames
from logstore.format.batch import encode_batch
from replication.common.internal_topics import java_hash, partition_for
from replication.coordinators.groups import records as groups
from replication.protocol import messages as wire
from replication.protocol.coordinator_records import encode_key, encode_value
from tests.faults.planter import Fault, choose, register
from tests.faults.site import Site, replace

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
PARTITION, PARTITIONS = 7, 50
_Pair = tuple[bytes | None, bytes | None]


def _keys(prefix: str) -> Iterator[str]:
    """Groups or transactional ids of the partition."""
    number = 0
    while True:
        number += 1
        if partition_for(f"{prefix}-{number}", PARTITIONS) == PARTITION:
            yield f"{prefix}-{number}"


def _stray(prefix: str) -> str:
    """One of the partition behind, with a hash that both ways to choose a partition agree on."""
    names = (f"{prefix}-{number}" for number in range(10**6))
    others = (name for name in names if partition_for(name, PARTITIONS) == PARTITION + 1)
    return next(name for name in others if java_hash(name) >= 0)


def offset_record(group: str, **fields: Any) -> _Pair:
    key = wire.OffsetCommitKey(group, "orders", 0)
    value = wire.OffsetCommitValue(offset=5, leader_epoch=1, metadata="", commit_timestamp=10**12)
    return encode_key(key), encode_value(value._replace(**fields))


def group_record(group: str, generation: int = 3, **fields: Any) -> _Pair:
    member = wire.GroupMetadataValue.MemberMetadata(
        member_id="m-1",
        group_instance_id=None,
        client_id="c",
        client_host="/127.0.0.1",
        rebalance_timeout=60_000,
        session_timeout=10_000,
        subscription=b"",
        assignment=b"",
    )
    value = wire.GroupMetadataValue(
        protocol_type="consumer",
        generation=generation,
        protocol="range",
        leader="m-1",
        current_state_timestamp=10**12,
        members=(member,),
    )
    if "twice" in fields:
        fields = {"members": (member, member)}
    return encode_key(wire.GroupMetadataKey(group)), encode_value(value._replace(**fields))


def transaction_record(name: str, state: int = 1, partition: int = 0, **fields: Any) -> _Pair:
    topics = (wire.TransactionLogValue.PartitionsSchema("orders", (partition,)),)
    value = wire.TransactionLogValue(
        producer_id=4000,
        previous_producer_id=-1,
        next_producer_id=-1,
        producer_epoch=3,
        transaction_timeout_ms=60_000,
        transaction_status=state,
        transaction_partitions=topics if state in (1, 2, 3) else None,
        transaction_last_update_timestamp_ms=10**12,
        transaction_start_timestamp_ms=10**12,
        client_transaction_version=0,
    )
    if "partitions" in fields:
        fields = {"transaction_partitions": topics}
    return encode_key(wire.TransactionLogKey(name)), encode_value(value._replace(**fields))


def _cut(pair: _Pair, at: int) -> _Pair:
    key, value = pair
    assert key is not None
    assert value is not None
    return (key, value[:-1]) if at else (key[:-1], value)


def _longer(pair: _Pair) -> _Pair:
    key, value = pair
    assert value is not None
    return key, value + b"\0"


def _versioned(pair: _Pair, version: int) -> _Pair:
    key, value = pair
    assert value is not None
    return key, version.to_bytes(2, "big", signed=True) + value[2:]


Make = Callable[[str], "list[_Pair]"]
_RECORD, _PLACE = "coordinator-record", "coordinator-partition"
KINDS: dict[str, tuple[str, Make, str]] = {
    "offset_key_cut": (OFFSETS, lambda g: [_cut(offset_record(g), 0)], _RECORD),
    "offset_value_cut": (OFFSETS, lambda g: [_cut(offset_record(g), 1)], _RECORD),
    "offset_value_longer": (OFFSETS, lambda g: [_longer(offset_record(g))], _RECORD),
    "offset_of_no_version": (OFFSETS, lambda g: [_versioned(offset_record(g), -1)], _RECORD),
    "offset_without_a_key": (OFFSETS, lambda g: [(None, offset_record(g)[1])], _RECORD),
    "offset_of_no_type": (OFFSETS, lambda g: [(b"\xff\xf0", offset_record(g)[1])], _RECORD),
    "offset_below_none": (OFFSETS, lambda g: [offset_record(g, offset=-7)], _RECORD),
    "offset_of_no_epoch": (OFFSETS, lambda g: [offset_record(g, leader_epoch=-2)], _RECORD),
    "offset_of_no_partition": (
        OFFSETS,
        lambda g: [(encode_key(wire.OffsetCommitKey(g, "orders", -3)), None)],
        _RECORD,
    ),
    "offset_of_no_topic": (
        OFFSETS,
        lambda g: [(encode_key(wire.OffsetCommitKey(g, "a/b", 0)), None)],
        _RECORD,
    ),
    "offset_elsewhere": (OFFSETS, lambda g: [offset_record(_stray("group"))], _PLACE),
    "group_elsewhere": (OFFSETS, lambda g: [group_record(_stray("group"))], _PLACE),
    "group_cut": (OFFSETS, lambda g: [_cut(group_record(g), 1)], _RECORD),
    "group_generation_falls": (
        OFFSETS,
        lambda g: [group_record(g, 9), group_record(g, 8)],
        _RECORD,
    ),
    "group_of_no_generation": (OFFSETS, lambda g: [group_record(g, -1)], _RECORD),
    "group_with_a_member_twice": (OFFSETS, lambda g: [group_record(g, twice=True)], _RECORD),
    "group_led_by_nobody": (OFFSETS, lambda g: [group_record(g, leader="m-9")], _RECORD),
    "transaction_cut": (TRANSACTIONS, lambda t: [_cut(transaction_record(t), 1)], _RECORD),
    "transaction_of_no_state": (TRANSACTIONS, lambda t: [transaction_record(t, 9)], _RECORD),
    "transaction_dead": (TRANSACTIONS, lambda t: [transaction_record(t, 6)], _RECORD),
    "transaction_of_nobody": (
        TRANSACTIONS,
        lambda t: [transaction_record(t, producer_id=-1)],
        _RECORD,
    ),
    "transaction_of_no_time": (
        TRANSACTIONS,
        lambda t: [transaction_record(t, transaction_timeout_ms=-1)],
        _RECORD,
    ),
    "transaction_of_no_partition": (
        TRANSACTIONS,
        lambda t: [transaction_record(t, partition=-2)],
        _RECORD,
    ),
    "empty_transaction_with_partitions": (
        TRANSACTIONS,
        lambda t: [transaction_record(t, 0, partitions=True)],
        _RECORD,
    ),
    "transaction_skips_a_state": (
        TRANSACTIONS,
        lambda t: [transaction_record(t, 0), transaction_record(t, 4)],
        _RECORD,
    ),
    "transaction_changes_its_mind": (
        TRANSACTIONS,
        lambda t: [transaction_record(t, state) for state in (2, 4, 5)],
        _RECORD,
    ),
    "transaction_epoch_falls": (
        TRANSACTIONS,
        lambda t: [transaction_record(t), transaction_record(t, producer_epoch=2)],
        _RECORD,
    ),
    "transaction_elsewhere": (
        TRANSACTIONS,
        lambda t: [transaction_record(_stray("txn"))],
        _PLACE,
    ),
}


def honest(topic: str) -> list[list[_Pair]]:
    """Records as a coordinator writes them, a list for a batch."""
    names = _keys("group" if topic == OFFSETS else "txn")
    out: list[list[_Pair]] = []
    for name in (next(names) for _ in range(8)):
        if topic == OFFSETS:
            out += [[offset_record(name), offset_record(name, offset=-1)], [group_record(name, 4)]]
            out += [[groups.encode_group_tombstone(name)], [group_record(name, 1)]]
        else:
            out += [[transaction_record(name, state)] for state in (0, 1, 1, 2, 4, 1, 3, 5)]
            out += [[(transaction_record(name)[0], None)], [transaction_record(name, 0)]]
    return out


def log_of(batches: list[list[_Pair]]) -> bytes:
    out, offset = b"", 0
    for pairs in batches:
        records = [(key, value, 10**12) for key, value in pairs]
        out += bytes(encode_batch(records, base_offset=offset, leader_epoch=0))
        offset += len(pairs)
    return out


def _plant(row: tuple[str, Make, str], site: Site, rng: random.Random) -> Fault:
    topic, make, rules = row
    log_dir = choose(rng, [one for one in site.log_dirs if not one.clean])
    names = _keys("group" if topic == OFFSETS else "txn")
    wrong = make([next(names) for _ in range(20)][-1])
    batches = honest(topic)
    at = rng.randrange(len(batches) // 2, len(batches))
    batches[at:at] = [[pair] for pair in wrong]
    directory = log_dir.file(str(TopicPartition(topic, PARTITION)))
    log_dir.storage.make_dir(directory)
    path = f"{directory}/{filenames.segment_file_name(0, filenames.LOG_SUFFIX)}"
    log_dir.storage.write_file(path, log_of(batches))
    cluster_id = base64.urlsafe_b64encode(rng.randbytes(16)).decode().rstrip("=")
    meta = log_dir.storage.read_file(log_dir.file(META_PROPERTIES)).decode().splitlines()
    lines = [f"cluster.id={cluster_id}" if "cluster.id" in line else line for line in meta]
    replace(log_dir.storage, log_dir.file(META_PROPERTIES), "\n".join([*lines, ""]).encode())
    told = f"{wrong} in {path}"
    return Fault(told, directory, frozenset((path,)), frozenset(rules.split()))


for _name, _row in KINDS.items():
    register(_name, partial(_plant, _row))
