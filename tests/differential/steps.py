"""One request of a sequence in a form that two brokers can be asked and a file can hold.

Requests and answers are trees: a dictionary for a structure, without the fields that have their
defaults; bytes as hexadecimal text. What each broker names for itself (producer ids, member ids,
topic ids, fetch sessions) stands in a tree as a symbol, such as ``@producer:2`` for the second
producer id that a broker gave out in this sequence.
"""

from __future__ import annotations

import json
import re
import struct
import uuid
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from logstore.format.batch import encode_batch
from logstore.format.codecs.compression import Compression
from logstore.format.header import parse_header
from logstore.kernels import crc32c
from replication.protocol import ApiKey, schema
from replication.protocol import messages as wire
from replication.protocol.structures import default_of

Tree = Any  # dict, list, str, int, bool or None
NO_ID = "none"  # of a topic
CRC_POSITION, CRC_FROM, ATTRIBUTES, SEQUENCED = 17, 21, 22, 43
RAW = (
    ("producer_id", -1),
    ("producer_epoch", -1),
    ("base_sequence", -1),
    ("transactional", False),
    ("control", False),
)
"""Written into the header as they are: the encoder refuses some that a client may send."""


class Step(NamedTuple):
    """A request of the client ``client``; each client has a connection of its own.

    ``may_wait``: the answer may come only after later requests of other clients.
    """

    client: str
    key: ApiKey
    version: int
    request: dict[str, Tree]
    may_wait: bool = False

    def to_json(self) -> dict[str, Tree]:
        return {**self._asdict(), "key": self.key.name}

    @classmethod
    def from_json(cls, tree: dict[str, Tree]) -> Step:
        return cls(**{**tree, "key": ApiKey[tree["key"]]})


def creation(topics: list[Tree]) -> Step:
    """The request that makes the topics of a sequence."""
    return Step("c", ApiKey.CREATE_TOPICS, 7, {"topics": topics, "timeout_ms": 10000})


def new_topic(name: str, partitions: int = 2) -> dict[str, Tree]:
    return {"name": name, "num_partitions": partitions, "replication_factor": 1}


@dataclass
class Names:
    """What one broker calls the things that have symbols."""

    _symbols: dict[tuple[str, Any], str] = field(default_factory=dict)
    _values: dict[str, Any] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def learn(self, kind: str, value: Any) -> str:
        """The symbol of ``value``, a new one if it has none yet."""
        if (kind, value) not in self._symbols:
            self._counts[kind] += 1
            self.name(kind, value, f"@{kind}:{self._counts[kind]}")
        return self._symbols[kind, value]

    def name(self, kind: str, value: Any, symbol: str) -> None:
        self._symbols[kind, value] = symbol
        self._values[symbol] = value

    def symbol(self, kind: str, value: Any) -> Any:
        """The symbol, or the value itself if it has none."""
        return self._symbols.get((kind, value), value)

    def value(self, tree: Tree) -> Any:
        """What a symbol stands for here; everything else as it is. KeyError if it is unknown."""
        if isinstance(tree, str) and tree.startswith("@"):
            return self._values[tree]
        return tree

    def text(self, text: str) -> str:
        """``text`` with symbols in the places of what they stand for."""
        for (_, value), symbol in self._symbols.items():
            if isinstance(value, str) and len(value) > 8:
                text = text.replace(value, symbol)
        return text


# -- requests ------------------------------------------------------------------------------------


def to_message(name: str, tree: dict[str, Tree], names: Names) -> Any:
    """The request ``name``, such as ``FetchRequest``, for the broker with these names."""
    return _struct(schema.message(name).body, tree, names, wire.structures(name).by_name)


def _struct(layout: schema.Struct, tree: dict[str, Tree], names: Names, classes: Any) -> Any:
    fields = {each.name: each for each in layout.fields}
    values = {key: _value(fields[key], value, names, classes) for key, value in tree.items()}
    return classes[layout.name](**values)


def _value(field: schema.Field, tree: Tree, names: Names, classes: Any) -> Any:
    if tree is None:
        return None

    def one(each: Tree) -> Any:
        if isinstance(field.type, schema.Struct):
            return _struct(field.type, each, names, classes)
        if field.type == "records":
            return records_of(each, names)
        found = names.value(each)
        if field.type == "bytes" and isinstance(found, str):
            return bytes.fromhex(found)
        if field.type == "uuid" and isinstance(found, str):
            return uuid.UUID(int=0) if found == NO_ID else uuid.UUID(found)
        return found

    return tuple(one(each) for each in tree) if field.is_array else one(tree)


def records_of(tree: Tree, names: Names) -> bytes:
    """Batches as a producer sends them.

    A tree is ``{"hex": …}``, or a list of batches. A batch has ``values`` and further fields of
    ``encode_batch``; ``flip`` changes the byte at that position after the checksum was made,
    ``patch`` bytes before, ``cut`` leaves bytes out at the end.
    """
    if isinstance(tree, dict):
        return bytes.fromhex(tree["hex"])
    return b"".join(_batch(each, names) for each in tree)


def _batch(tree: dict[str, Tree], names: Names) -> bytes:
    fields = {key: names.value(value) for key, value in tree.items()}
    values, time = fields.pop("values"), fields.pop("time", 1_600_000_000_000)
    step, key = fields.pop("time_step", 1), fields.pop("record_key", "k")
    flip, patch, cut = (fields.pop(each, None) for each in ("flip", "patch", "cut"))
    if "compression" in fields:
        fields["compression"] = Compression[fields["compression"]]
    raw = [fields.pop(name, default) for name, default in RAW]
    made = bytearray(
        encode_batch(
            [
                (None if key is None else key.encode(), each.encode(), time + at * step)
                for at, each in enumerate(values)
            ],
            **{"base_offset": 0, **fields},
        )
    )
    producer = struct.pack(">qhi", *raw[:3])
    for position, data in ((SEQUENCED, producer), *_bytes(patch)):
        made[position : position + len(data)] = data
    made[ATTRIBUTES] |= (0x10 if raw[3] else 0) | (0x20 if raw[4] else 0)
    made[CRC_POSITION:CRC_FROM] = crc32c(bytes(made[CRC_FROM:])).to_bytes(4, "big")
    if flip is not None:
        made[flip] ^= 1
    return bytes(made[: -cut if cut else None])


def _bytes(patch: dict[str, str] | None) -> list[tuple[int, bytes]]:
    return [(int(position), bytes.fromhex(text)) for position, text in (patch or {}).items()]


# -- answers -------------------------------------------------------------------------------------

MEMBER = re.compile(r"(.*)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""What a broker calls a member: the name of its client or instance, and an id."""

PRODUCERS_COME_FROM = (ApiKey.INIT_PRODUCER_ID, ApiKey.END_TXN)
KINDS = {
    "topic_id": "topic",
    "session_id": "session",
    "member_id": "member",
    "leader": "member",
    "cluster_id": "cluster",
    "host": "host",
    "port": "port",
    "log_dir": "dir",
    "node_id": "node",
    "broker_id": "node",
    "controller_id": "node",
    "leader_id": "node",
    "replica_nodes": "node",
    "isr_nodes": "node",
    "replicas": "node",
    "resource_name": "broker",
}
RECENT = 1_700_000_000_000  # a time that a sequence does not send
TIMES = (
    "timestamp",
    "log_append_time_ms",
    "transaction_start_time_ms",
    "last_timestamp",
)
LEFT_OUT = (
    "throttle_time_ms",
    "error_message",
    "batch_index_error_message",
    "total_bytes",  # of the disk
    "usable_bytes",
)
PLACES = (
    "name",
    "topic",
    "group_id",
    "transactional_id",
    "key",
    "partition_index",
    "partition",
    "index",
    "resource_name",
)


def to_tree(key: ApiKey, version: int, answer: Any, names: Names) -> dict[str, Tree]:
    """What can be compared of an answer."""
    name = schema.APIS[key].name + "Response"
    classes = wire.structures(name).by_name
    return _tree(schema.message(name).body, answer, _Context(key, version, names, classes))


class _Context(NamedTuple):
    key: ApiKey
    version: int
    names: Names
    classes: Any


def _tree(layout: schema.Struct, value: Any, context: _Context) -> dict[str, Tree]:
    found: dict[str, Tree] = {}
    for each in layout.fields:
        inner = getattr(value, each.name)
        if context.version not in each.versions or each.name in LEFT_OUT:
            continue
        is_default = inner == default_of(each, context.classes)
        if is_default and each.name not in (*KINDS, "producer_id", "error_code"):
            continue
        found[each.name] = _field(each, inner, context)
    return found


def _field(layout: schema.Field, value: Any, context: _Context) -> Tree:
    if value is None:
        return None
    if isinstance(layout.type, schema.Struct):
        if not layout.is_array:
            return _tree(layout.type, value, context)
        struct = layout.type
        if context.key is not ApiKey.FETCH:  # which has the order of the request
            value = sorted(value, key=lambda each: repr(_place(each)))
        found = [_tree(struct, each, context) for each in value]
        if context.key is ApiKey.FETCH:
            return found
        return sorted(found, key=lambda each: [dump([*map(each.get, PLACES)]), dump(each)])
    if layout.type == "records":
        return batches_of(bytes(value), context.names)
    scalars = [_scalar(layout, each, context) for each in (value if layout.is_array else [value])]
    return sorted(scalars, key=repr) if layout.is_array else scalars[0]


def _place(value: Any) -> list[Any]:
    return [getattr(value, each) for each in PLACES if hasattr(value, each)]


def _scalar(layout: schema.Field, value: Any, context: _Context) -> Tree:
    names, name = context.names, layout.name
    if name in TIMES:
        return "time" if value > RECENT else value
    if name == "producer_id":
        if context.key in PRODUCERS_COME_FROM:
            return names.learn("producer", value) if value >= 0 else value
        return names.symbol("producer", value)
    if kind := KINDS.get(name):
        if kind == "member":
            made = MEMBER.fullmatch(value)
            return value if made is None else names.learn(f"member-{made[1]}", value)
        if isinstance(value, uuid.UUID) and not value.int:
            return NO_ID
        if kind in ("node", "broker") or not value:
            return names.symbol(kind, value)
        return names.learn(kind, value)
    if isinstance(value, uuid.UUID):
        return names.symbol("topic", value) if value.int else NO_ID
    if isinstance(value, (bytes, memoryview)):
        return bytes(value).hex()
    return value


def batches_of(data: bytes, names: Names) -> list[Tree]:
    """Batches of an answer or of a log. An incomplete one at the end is left out: a broker may cut
    an answer anywhere."""
    found: list[Tree] = []
    while len(data) > 17 and len(data) >= (size := 12 + int.from_bytes(data[8:12], "big")):
        found.append(_batch_tree(data[:size], names))
        data = data[size:]
    return found


def _batch_tree(data: bytes, names: Names) -> dict[str, Tree]:
    header = parse_header(data)
    assert header.crc == crc32c(data[CRC_FROM:]), "a wrong checksum"
    is_control = bool(header.attributes & 0x20)
    has_log_time = bool(header.attributes & 0x08)
    tree: dict[str, Tree] = {
        "offset": header.base_offset,
        "last": header.last_offset_delta,
        "count": header.record_count,
        "attributes": header.attributes,
        "producer": names.symbol("producer", header.producer_id),
        "epoch": header.producer_epoch,
        "sequence": header.base_sequence,
    }
    payload = data[header.size - (header.batch_length - 49) :]
    if is_control:
        tree["payload"] = payload.hex()
    else:
        tree["time"] = header.base_timestamp
        tree["max_time"] = "time" if has_log_time else header.max_timestamp
        tree["payload"] = f"{len(payload)}:{crc32c(payload):08x}"
    return tree


def dump(tree: Tree) -> str:
    return json.dumps(tree, sort_keys=True)
