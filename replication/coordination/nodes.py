"""Kafka's nodes: the path of each value of the control plane, and its JSON (``kafka.zk.ZkData``).

They are those of Kafka 3.x in ZooKeeper mode, with additions: ``key_placement`` beside the cluster
id; ``logstore`` (the release), ``previous_broker_epoch``, ``earlier_epochs``, ``proves_logs``,
``unproven``, ``all_unproven`` and ``coordinator_epoch`` in a broker's registration; ``elr`` and
``last_known_leader`` in a partition's state (KIP-966); and below ``/logstore``: ``broker_epochs``,
the last processed epoch of each broker; ``left_out``, the brokers that came back uncleanly while a
partition could not be read;
``deleted_topics``, the ids of the topics that were deleted last; ``reserved_producer_ids``, the
largest producer id that was found in a log; ``controller_epoch``, the last one of ours, where
Kafka's controllers come between; and ``masked_topics``, the ids of the internal topics that an
earlier version filled (W-100).
Decoding is strict in the keys that we use, and ignores keys that a later Kafka may add.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, TypeVar
from urllib.parse import quote

from checkpoints.partition_metadata import topic_id_from_text, topic_id_to_text
from logstore.common.version import __version__
from replication.common.addresses import address_of
from replication.common.state import (
    MAX_EPOCH,
    MAX_EPOCH_OF_A_LOG,
    NO_LEADER,
    UNKNOWN_EPOCH,
    BrokerRegistration,
    Endpoint,
    PartitionRegistration,
    RecoveryState,
    TopicAssignment,
    TopicPartition,
)
from replication.coordination.errors import CorruptNodeError

CLUSTER_ID = "/cluster/id"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"
LOG_DIR_EVENTS = "/log_dir_event_notification"
DELETE_TOPICS = "/admin/delete_topics"
PREFERRED_ELECTIONS = "/admin/preferred_replica_election"
REASSIGNMENTS = "/admin/reassign_partitions"
TOPIC_CONFIGS = "/config/topics"
USER_CONFIGS = "/config/users"
CONFIG_CHANGES = "/config/changes"
PRODUCER_IDS = "/latest_producer_id_block"
BROKER_EPOCHS = "/logstore/broker_epochs"
LEFT_OUT = "/logstore/left_out"
RESERVED_PRODUCER_IDS = "/logstore/reserved_producer_ids"
DELETED_TOPICS = "/logstore/deleted_topics"  # ids, of the latest ``DELETED_TOPICS_KEPT``
STARTING = "/logstore/starting"  # brokers by id, before they have directories
MASKED_TOPICS = "/logstore/masked_topics"
LAST_TERM = "/logstore/controller_epoch"  # of ours, in a tree that Kafka's controllers wrote too
KAFKAS_PLACEMENT = "kafka"

PERSISTENT_PATHS = (
    BROKER_IDS,
    TOPICS,
    LOG_DIR_EVENTS,
    DELETE_TOPICS,
    TOPIC_CONFIGS,
    CONFIG_CHANGES,
    BROKER_EPOCHS,
    LEFT_OUT,
)
"""Paths that a controller creates, with parents, in an empty tree."""

LOG_DIR_FAILURE = 1
DELETED_TOPICS_KEPT = 1000
CLUSTER_ID_MAX = 200
_I32_MAX, _I64_MAX = 2**31 - 1, 2**63 - 1
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
_ENDPOINT = re.compile(
    r"(?P<listener>[A-Za-z0-9_.-]+)://(?P<host>\[[^\[\]]*\]|[^\[\]:/]*):(?P<port>-1|[0-9]{1,5})"
)
_T = TypeVar("_T")


# --- paths


def broker_path(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def broker_of(name: str) -> int | None:
    """The broker whose id is the name of a node."""
    return int(name) if _PARTITION.fullmatch(name) and int(name) <= _I32_MAX else None


def topic_of(path: str) -> tuple[str, int | None] | None:
    """The topic and the partition to which a node belongs. None if it belongs to no topic."""
    for parent in (TOPICS, TOPIC_CONFIGS):
        if path.startswith(f"{parent}/"):
            name, *below = path.removeprefix(f"{parent}/").split("/")
            is_partition = len(below) > 1 and _PARTITION.fullmatch(below[1]) is not None
            return name, int(below[1]) if is_partition else None
    return None


def broker_epoch_path(broker_id: int) -> str:
    return f"{BROKER_EPOCHS}/{broker_id}"


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def partition_path(partition: TopicPartition) -> str:
    return f"{TOPICS}/{partition.topic}/partitions/{partition.partition}"


def partition_state_path(partition: TopicPartition) -> str:
    return f"{partition_path(partition)}/state"


def left_out_path(topic: str, partition: int | None = None) -> str:
    """For a partition, or for a whole topic."""
    return f"{LEFT_OUT}/{topic}" if partition is None else f"{LEFT_OUT}/{topic}:{partition}"


def left_out_of(name: str) -> tuple[str, int | None]:
    """The topic and the partition of a node's name; every name has them."""
    topic, colon, number = name.rpartition(":")
    is_partition = bool(colon) and _PARTITION.fullmatch(number) is not None
    return (topic, int(number)) if is_partition else (name, None)


def topic_config_path(topic: str) -> str:
    return f"{TOPIC_CONFIGS}/{topic}"


def delete_topic_path(topic: str) -> str:
    return f"{DELETE_TOPICS}/{topic}"


def config_change_path() -> str:
    """The path prefix of a sequential node."""
    return f"{CONFIG_CHANGES}/config_change_"


def log_dir_event_path() -> str:
    """The path prefix of a sequential node."""
    return f"{LOG_DIR_EVENTS}/log_dir_event_"


# --- the cluster


def encode_cluster_id(cluster_id: str, has_kafkas_placement: bool = True) -> bytes:
    """Encode the id of a new tree, which places groups and transactional ids as Kafka does
    (W-100)."""
    placement = {"key_placement": KAFKAS_PLACEMENT} if has_kafkas_placement else {}
    return _encode({"version": "1", "id": cluster_id, **placement})


def has_kafkas_placement(data: bytes) -> bool:
    """Whether the tree was made with it. Trees of Kafka and of earlier versions do not say."""
    fields = _Fields(CLUSTER_ID, data)
    return fields.has("key_placement") and fields.text("key_placement") == KAFKAS_PLACEMENT


def decode_cluster_id(data: bytes) -> str:
    fields = _Fields(CLUSTER_ID, data)
    cluster_id = fields.text("id")
    if not cluster_id or len(cluster_id) > CLUSTER_ID_MAX:
        fields.fail("id", f"has {len(cluster_id)} characters, not 1 to {CLUSTER_ID_MAX}")
    return cluster_id


# --- brokers and the controller


def encode_broker(broker: BrokerRegistration) -> bytes:
    """Version 5, as Kafka writes it from 2.7 on. What we add is ignored there.

    Kafka's readers need an endpoint, so a broker without sockets has a host and a port too.
    """
    endpoints = broker.endpoints or (Endpoint("PLAINTEXT", broker.host, broker.port),)
    fields: dict[str, object] = {
        "version": 5,
        "host": broker.host,
        "port": broker.port,
        "jmx_port": -1,
        "timestamp": str(broker.timestamp_ms),
        "endpoints": [f"{e.listener}://{address_of(e.host, e.port)}" for e in endpoints],
        "listener_security_protocol_map": {e.listener: e.security_protocol for e in endpoints},
        "features": {},
        "previous_broker_epoch": broker.previous_broker_epoch,
        "earlier_epochs": list(broker.earlier_epochs),
    }
    if not broker.is_foreign:
        fields["logstore"] = __version__
    if broker.proves_logs:
        fields["proves_logs"] = True
    if broker.coordinator_epoch != UNKNOWN_EPOCH:
        fields["coordinator_epoch"] = broker.coordinator_epoch
    if broker.unproven is None:
        fields["all_unproven"] = True
    elif broker.unproven:
        fields["unproven"] = _partitions_by_topic(broker.unproven)
    if broker.rack is not None:
        fields["rack"] = broker.rack
    return _encode(fields)


def decode_broker(broker_id: int, data: bytes) -> BrokerRegistration:
    """
    Raises:
        CorruptNodeError: the data is malformed, as in every decoding function here.
    """
    fields = _Fields(broker_path(broker_id), data, version=1, last_version=5)
    endpoints = fields.endpoints() if fields.has("endpoints") else ()
    if all(each.port < 0 for each in endpoints):
        endpoints = ()
    # A Kafka broker without a PLAINTEXT listener has no host outside of its endpoints.
    first = endpoints[0] if endpoints and not fields.has("host") else None
    return BrokerRegistration(
        broker_id=broker_id,
        host=fields.text("host") if first is None else first.host,
        port=fields.number("port", -1, 65_535) if first is None else first.port,
        rack=fields.text("rack") if fields.has("rack") else None,
        previous_broker_epoch=fields.number(
            "previous_broker_epoch", -1, _I64_MAX, default=UNKNOWN_EPOCH
        ),
        timestamp_ms=fields.number_text("timestamp"),
        earlier_epochs=fields.epochs("earlier_epochs") if fields.has("earlier_epochs") else (),
        endpoints=endpoints,
        unproven=fields.unproven(),
        proves_logs=fields.flag("proves_logs"),
        coordinator_epoch=fields.number(
            "coordinator_epoch", -1, MAX_EPOCH_OF_A_LOG, default=UNKNOWN_EPOCH
        ),
        is_foreign=not fields.has("logstore"),
    )


def encode_controller(broker_id: int, timestamp_ms: int) -> bytes:
    return _encode(
        {
            "version": 2,
            "brokerid": broker_id,
            "timestamp": str(timestamp_ms),
            "kraftControllerEpoch": -1,  # it is no node of a quorum (KIP-866)
        }
    )


def decode_controller(data: bytes) -> int:
    """The broker id of the controller."""
    fields = _Fields(CONTROLLER, data, version=1, last_version=2)
    return fields.number("brokerid", 0, _I32_MAX)


# --- plain numbers: epochs, of the controller and of brokers, and producer ids


def encode_number(number: int) -> bytes:
    return str(number).encode("ascii")


def decode_number(path: str, data: bytes) -> int:
    high = MAX_EPOCH if path == CONTROLLER_EPOCH else _I64_MAX
    if not data.isdigit() or len(data) > 19 or int(data) > high:
        raise CorruptNodeError(path, f"{data[:40]!r} is not a number from 0 to {high}")
    return int(data)


# --- topics and partitions


def encode_topic(topic: TopicAssignment) -> bytes:
    """Everything except the config, which has its own node."""
    return _encode(
        {
            "version": 3,
            "topic_id": topic_id_to_text(topic.topic_id),
            "partitions": _by_partition(topic.partitions),
            "adding_replicas": _by_partition(topic.adding),
            "removing_replicas": _by_partition(topic.removing),
        }
    )


def decode_topic(
    topic: str, data: bytes, config: Mapping[str, str] | None = None
) -> TopicAssignment:
    # Version 3 added topic ids, which are required here.
    fields = _Fields(topic_path(topic), data, version=3)
    partitions = fields.replicas("partitions")
    if not partitions:
        fields.fail("partitions", "are none")
    if sorted(partitions) != list(range(len(partitions))):
        fields.fail("partitions", "are not numbered from 0 on")
    adding, removing = fields.replicas("adding_replicas"), fields.replicas("removing_replicas")
    for key, moved in (("adding_replicas", adding), ("removing_replicas", removing)):
        for partition, replicas in moved.items():
            if not set(replicas) <= set(partitions.get(partition, ())):
                fields.fail(key, f"has brokers that are no replicas of partition {partition}")
    return TopicAssignment(fields.topic_id(), partitions, dict(config or {}), adding, removing)


def lacks_topic_id(topic: str, data: bytes) -> bool:
    """Whether a topic was made by a Kafka below 2.8, and not touched by a later controller."""
    try:
        return not _Fields(topic_path(topic), data).has("topic_id")
    except CorruptNodeError:
        return False


def encode_topic_ids(topic_ids: Iterable[uuid.UUID]) -> bytes:
    return _encode({"version": 1, "topic_ids": [topic_id_to_text(each) for each in topic_ids]})


def decode_topic_ids(path: str, data: bytes) -> list[uuid.UUID]:
    fields = _Fields(path, data, version=1)
    found = []
    for text in fields.get("topic_ids", list):
        try:
            found.append(topic_id_from_text(text))
        except (ValueError, TypeError, AttributeError):
            fields.fail("topic_ids", "holds something else than topic ids")
    return found


def encode_partition(state: PartitionRegistration) -> bytes:
    """The state without replicas, which the topic's node has, and without the partition epoch,
    which is the node's version.
    """
    return _encode(
        {
            "version": 1,
            "leader": state.leader,
            "leader_epoch": state.leader_epoch,
            "controller_epoch": state.controller_epoch,
            "isr": list(state.isr),
            "leader_recovery_state": int(state.recovery_state),
            "elr": list(state.elr),
            "last_known_leader": state.last_known_leader,
        }
    )


def decode_partition(
    partition: TopicPartition, data: bytes, node_version: int, replicas: tuple[int, ...]
) -> PartitionRegistration:
    """``replicas`` are those of the topic's node. Nobody else can lead or be in the ISR."""
    fields = _Fields(partition_state_path(partition), data, version=1)
    state = PartitionRegistration(
        replicas=replicas,
        isr=fields.brokers("isr"),
        leader=fields.number("leader", NO_LEADER, _I32_MAX),
        leader_epoch=fields.number("leader_epoch", 0, MAX_EPOCH),
        partition_epoch=node_version,
        recovery_state=RecoveryState(fields.number("leader_recovery_state", 0, 1, default=0)),
        elr=fields.brokers("elr") if fields.has("elr") else (),
        last_known_leader=fields.number(
            "last_known_leader", NO_LEADER, _I32_MAX, default=NO_LEADER
        ),
        controller_epoch=fields.number("controller_epoch", 0, MAX_EPOCH),
    )
    named = {"leader": {state.leader} - {NO_LEADER}, "isr": {*state.isr}, "elr": {*state.elr}}
    for key, brokers in named.items():
        if not brokers <= {*replicas}:
            others = sorted(brokers - {*replicas})
            fields.fail(key, f"has {others}, not among the replicas {list(replicas)}")
    if not replicas:
        fields.fail("replicas", "are none in the topic's node")
    return state


def is_by_kafka(data: bytes) -> bool:
    """Whether a state was written last by a controller of Kafka, which has no ELR in it."""
    return b'"elr"' not in data


def encode_left_out(unclean: Iterable[int]) -> bytes:
    return _encode({"version": 1, "unclean": sorted(unclean)})


def decode_left_out(path: str, data: bytes) -> tuple[int, ...]:
    """The brokers that came back uncleanly meanwhile."""
    fields = _Fields(path, data, version=1)
    return fields.brokers("unclean")


def encode_topic_config(config: Mapping[str, str]) -> bytes:
    return _encode({"version": 1, "config": dict(config)})


def decode_topic_config(topic: str, data: bytes) -> dict[str, str]:
    return _decode_config(topic_config_path(topic), data)


def user_config_path(user: str) -> str:
    return f"{USER_CONFIGS}/{quote(user, safe='').replace('~', '%7E')}"


def encode_user_config(config: Mapping[str, str]) -> bytes:
    return encode_topic_config(config)


def decode_user_config(user: str, data: bytes) -> dict[str, str]:
    return _decode_config(user_config_path(user), data)


def _decode_config(path: str, data: bytes) -> dict[str, str]:
    fields = _Fields(path, data, version=1)
    config = fields.get("config", dict)
    for key, value in config.items():
        if not isinstance(value, str):
            fields.fail("config", f"{key[:80]} is not text")
    return config


# --- requests that Kafka's tools write into the tree, and notifications


def decode_preferred_elections(data: bytes) -> list[TopicPartition]:
    """The partitions whose preferred replicas are to be elected."""
    fields = _Fields(PREFERRED_ELECTIONS, data, version=1)
    return [tp for tp, _ in fields.partitions()]


def decode_reassignments(data: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    """The replicas that partitions are to have."""
    fields = _Fields(REASSIGNMENTS, data, version=1)
    return {tp: fields.brokers_in("replicas", each) for tp, each in fields.partitions()}


def encode_config_change(topic: str) -> bytes:
    return _encode({"version": 2, "entity_path": f"topics/{topic}"})


def encode_user_change(user: str) -> bytes:
    path = user_config_path(user).removeprefix("/config/")
    return _encode({"version": 2, "entity_path": path})


def decode_config_change(path: str, data: bytes) -> str | None:
    """The topic whose configuration has changed; None if it is not one of a topic."""
    kind, _, name = _Fields(path, data, version=2).text("entity_path").partition("/")
    return name if kind == "topics" else None


def encode_log_dir_event(broker_id: int) -> bytes:
    return _encode({"version": 1, "broker": broker_id, "event": LOG_DIR_FAILURE})


def decode_log_dir_event(path: str, data: bytes) -> int:
    """The broker with a failed log directory."""
    fields = _Fields(path, data, version=1)
    fields.number("event", LOG_DIR_FAILURE, LOG_DIR_FAILURE)
    return fields.number("broker", 0, _I32_MAX)


# --- producer ids


def encode_producer_id_block(broker_id: int, start: int, end: int) -> bytes:
    """Assign the ids ``start`` … ``end`` to a broker."""
    return _encode(
        {"version": 1, "broker": broker_id, "block_start": str(start), "block_end": str(end)}
    )


def decode_producer_id_block(data: bytes) -> int:
    """The last id of the latest block; −1 without one: Kafka makes the node empty. A plain number,
    our earlier form, is one above it."""
    if not data:
        return -1
    if data.isdigit():
        return decode_number(PRODUCER_IDS, data) - 1
    fields = _Fields(PRODUCER_IDS, data, version=1)
    start, end = fields.number_text("block_start"), fields.number_text("block_end")
    if end < start:
        fields.fail("block_end", f"is {end}, before the start {start}")
    return end


# --- parts


class _Fields:
    """A JSON object of one node. Any unexpected value is a ``CorruptNodeError``."""

    def __init__(
        self, path: str, data: bytes, *, version: int | None = None, last_version: int | None = None
    ) -> None:
        self._path = path
        self._values = _decode(path, data)
        if version is not None:
            self.number("version", version, last_version or version)

    def fail(self, key: str, reason: str) -> NoReturn:
        raise CorruptNodeError(self._path, f"{key} {reason}")

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def get(self, key: str, kind: type[_T]) -> _T:
        value = self._values.get(key)
        if type(value) is not kind:  # a bool does not count as an int
            what = "missing" if value is None else f"of type {type(value).__name__}"
            self.fail(key, f"is {what}, not {kind.__name__}")
        return value

    def text(self, key: str) -> str:
        value = self.get(key, str)
        if not value.isprintable():  # also false for half a surrogate pair
            self.fail(key, "is not printable text")
        return value

    def number(self, key: str, low: int, high: int, default: int | None = None) -> int:
        if default is not None and not self.has(key):
            return default
        value = self.get(key, int)
        if not low <= value <= high:
            self.fail(key, f"is {value}, outside {low} to {high}")
        return value

    def number_text(self, key: str) -> int:
        text = self.text(key)
        is_number = text.isascii() and text.isdigit() and len(text) <= 19
        if not is_number or int(text) > _I64_MAX:
            self.fail(key, f"is not a number from 0 to {_I64_MAX}")
        return int(text)

    def topic_id(self) -> uuid.UUID:
        try:
            return topic_id_from_text(self.text("topic_id"))
        except ValueError as error:
            self.fail("topic_id", str(error))

    def epochs(self, key: str) -> tuple[int, ...]:
        return self._numbers(key, self.get(key, list), _I64_MAX, "epochs")

    def flag(self, key: str) -> bool:
        return self.has(key) and self.get(key, bool)

    def unproven(self) -> frozenset[TopicPartition] | None:
        if self.flag("all_unproven"):
            return None
        if not self.has("unproven"):
            return frozenset()
        found: set[TopicPartition] = set()
        for topic, listed in self.get("unproven", dict).items():
            numbers = self._numbers("unproven", listed, _I32_MAX, "partitions")
            if not topic.isprintable():
                self.fail("unproven", "holds something else than partitions")
            found.update(TopicPartition(topic, number) for number in numbers)
        return frozenset(found)

    def endpoints(self) -> tuple[Endpoint, ...]:
        protocols = self.get("listener_security_protocol_map", dict)
        found = []
        for text in self.get("endpoints", list):
            match = _ENDPOINT.fullmatch(text) if isinstance(text, str) else None
            if match is None or int(match["port"]) > 65_535 or not text.isprintable():
                self.fail("endpoints", "holds something else than listener://host:port")
            listener = match["listener"]
            protocol = protocols.get(listener)
            if not isinstance(protocol, str) or not protocol.isprintable():
                self.fail("listener_security_protocol_map", f"lacks {listener[:80]}")
            host = match["host"].removeprefix("[").removesuffix("]")
            found.append(Endpoint(listener, host, int(match["port"]), protocol))
        return tuple(found)

    def brokers(self, key: str) -> tuple[int, ...]:
        return self._brokers(key, self.get(key, list))

    def brokers_in(self, key: str, each: Mapping[str, object]) -> tuple[int, ...]:
        return self._brokers(key, each.get(key))

    def partitions(self) -> list[tuple[TopicPartition, dict[str, object]]]:
        """Partitions, each an object with its topic and its number."""
        found = []
        for each in self.get("partitions", list):
            if type(each) is not dict:
                self.fail("partitions", "holds something else than objects")
            topic = each.get("topic")
            if not isinstance(topic, str) or not topic.isprintable():
                self.fail("partitions", "holds something else than partitions")
            (number,) = self._numbers("partitions", [each.get("partition")], _I32_MAX, "partitions")
            found.append((TopicPartition(topic, number), each))
        return found

    def replicas(self, key: str) -> dict[int, tuple[int, ...]]:
        found = {}
        for name, brokers in self.get(key, dict).items():
            if _PARTITION.fullmatch(name) is None or int(name) > _I32_MAX:
                self.fail(key, f"{name[:80]!r} is not a partition")
            found[int(name)] = self._brokers(key, brokers)
        return found

    def _brokers(self, key: str, values: object) -> tuple[int, ...]:
        found = self._numbers(key, values, _I32_MAX, "broker ids")
        if len(set(found)) != len(found):
            self.fail(key, "holds a broker twice")
        return found

    def _numbers(self, key: str, values: object, high: int, what: str) -> tuple[int, ...]:
        if type(values) is not list or any(
            type(value) is not int or not 0 <= value <= high for value in values
        ):
            self.fail(key, f"holds something else than {what}")
        return tuple(values)


def _encode(fields: Mapping[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode("ascii")


def _decode(path: str, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise CorruptNodeError(path, "is nested too deeply") from None
    except ValueError as error:
        raise CorruptNodeError(path, f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise CorruptNodeError(path, "is not a JSON object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key twice")
    return fields


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _by_partition(replicas: Mapping[int, tuple[int, ...]]) -> dict[str, list[int]]:
    return {str(partition): list(brokers) for partition, brokers in sorted(replicas.items())}


def _partitions_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        found.setdefault(topic, []).append(number)
    return found
