"""Topics of a running cluster: who leads them, how far they go, and how they are changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from checkpoints.partition_metadata import topic_id_to_text
from checkpoints.types import TopicPartition
from replication.admin.admin_client import EARLIEST, LATEST, AdminClient, Answered, WireConnection
from replication.common.error_codes import ErrorCode
from replication.common.state import NO_LEADER
from replication.protocol import ZERO_UUID, ApiKey
from replication.protocol import messages as wire

UNKNOWN = -1
BROKERS_DEFAULT = -1
_TOPIC, BROKER = 2, 4  # the kinds of resources with a configuration
_SET, _DELETE = 0, 1
_OF_TOPIC, _DEFAULT = 1, 5  # where the value of a key comes from
_DEFAULTS_SINCE = 4  # of CreateTopics: the brokers know how many partitions and replicas
_BY_ID_SINCE = 6  # of DeleteTopics


class PartitionStatus(NamedTuple):
    """Offsets are −1 where the leader could not be asked."""

    tp: TopicPartition
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]
    log_start_offset: int = UNKNOWN
    high_watermark: int = UNKNOWN


class TopicStatus(NamedTuple):
    name: str
    topic_id: str | None  # None of brokers before Kafka 2.8
    is_internal: bool
    partitions: tuple[PartitionStatus, ...]
    configs: Mapping[str, str | None] = {}  # what is not Kafka's default; None: a secret


def under_replicated(partition: PartitionStatus) -> bool:
    """Whether some replica is not in the ISR, or no broker leads."""
    return partition.leader == NO_LEADER or len(partition.isr) < len(partition.replicas)


def topic_statuses(metadata: wire.MetadataResponse) -> dict[str, Answered]:
    """A ``TopicStatus`` for each topic of the metadata, without what only leaders know."""
    return {
        topic.name or "": Answered(
            topic.error_code,
            value=TopicStatus(
                topic.name or "",
                None if topic.topic_id == ZERO_UUID else topic_id_to_text(topic.topic_id),
                topic.is_internal,
                tuple(
                    PartitionStatus(
                        TopicPartition(topic.name or "", part.partition_index),
                        part.leader_id,
                        part.leader_epoch,
                        part.replica_nodes,
                        part.isr_nodes,
                        part.offline_replicas,
                    )
                    for part in sorted(topic.partitions, key=lambda part: part.partition_index)
                ),
            ),
        )
        for topic in sorted(metadata.topics, key=lambda topic: topic.name or "")
    }


def with_offsets(
    client: AdminClient, partitions: Sequence[PartitionStatus]
) -> tuple[list[PartitionStatus], dict[TopicPartition, Answered]]:
    """The same with their offsets, and why those of some are not known."""
    tps = [each.tp for each in partitions]
    starts, ends = (client.list_offsets(tps, each) for each in (EARLIEST, LATEST))
    failed = {tp: answer for found in (starts, ends) for tp, answer in found.items() if answer.code}
    return [
        each
        if each.tp in failed
        else each._replace(
            log_start_offset=starts[each.tp].value, high_watermark=ends[each.tp].value
        )
        for each in partitions
    ], failed


def describe_configs(client: AdminClient, topics: Sequence[str]) -> dict[str, Answered]:
    """By topic a mapping of each key to its value and where that comes from."""

    def ask(connection: WireConnection, names: list[str]) -> dict[str, Answered]:
        kind = wire.DescribeConfigsRequest
        resources = tuple(kind.DescribeConfigsResource(_TOPIC, name, None) for name in names)
        answer = connection.call(ApiKey.DESCRIBE_CONFIGS, kind(resources))
        return {
            each.resource_name: Answered(
                each.error_code,
                each.error_message,
                {entry.name: (entry.value, entry.config_source) for entry in each.configs},
            )
            for each in answer.results
        }

    return client.ask_controller(topics, ask)


def overrides(configs: Mapping[str, tuple[str | None, int]]) -> dict[str, str | None]:
    """The keys that differ from Kafka's defaults, of a topic or of the brokers."""
    return {key: value for key, (value, source) in configs.items() if source != _DEFAULT}


def create_topics(
    client: AdminClient,
    names: Iterable[str],
    *,
    partitions: int | None = None,
    replication_factor: int | None = None,
    configs: Mapping[str, str] = {},
) -> dict[str, Answered]:
    """None is the default of the brokers; before Kafka 2.4 they had none, so it is 1."""
    key, kind = ApiKey.CREATE_TOPICS, wire.CreateTopicsRequest

    def ask(connection: WireConnection, names: list[str]) -> dict[str, Answered]:
        default = BROKERS_DEFAULT if connection.version(key) >= _DEFAULTS_SINCE else 1
        count, factor = (default if n is None else n for n in (partitions, replication_factor))
        pairs = tuple(kind.CreatableTopicConfig(*pair) for pair in configs.items())
        topics = tuple(kind.CreatableTopic(name, count, factor, (), pairs) for name in names)
        return _answered(connection.call(key, kind(topics, client.timeout_ms)).topics)

    return client.ask_controller(names, ask)


def delete_topics(client: AdminClient, names: Iterable[str]) -> dict[str, Answered]:
    key, kind = ApiKey.DELETE_TOPICS, wire.DeleteTopicsRequest

    def ask(connection: WireConnection, names: list[str]) -> dict[str, Answered]:
        states = tuple(map(kind.DeleteTopicState, names))
        if connection.version(key) >= _BY_ID_SINCE:
            request = kind(topics=states, timeout_ms=client.timeout_ms)
        else:
            request = kind(topic_names=tuple(names), timeout_ms=client.timeout_ms)
        return _answered(connection.call(key, request).responses)

    return client.ask_controller(names, ask)


def create_partitions(client: AdminClient, names: Iterable[str], count: int) -> dict[str, Answered]:
    """
    Args:
        count: of partitions in all, more than each topic has.
    """
    key, kind = ApiKey.CREATE_PARTITIONS, wire.CreatePartitionsRequest

    def ask(connection: WireConnection, names: list[str]) -> dict[str, Answered]:
        topics = tuple(kind.CreatePartitionsTopic(name, count, None) for name in names)
        return _answered(connection.call(key, kind(topics, client.timeout_ms)).results)

    return client.ask_controller(names, ask)


def alter_configs(
    client: AdminClient, names: Iterable[str], set_: Mapping[str, str], removed: Sequence[str] = ()
) -> dict[str, Answered]:
    """Keys that are not named stay as they are. Before Kafka 2.3 brokers could only replace all
    keys of a topic: what another one sets in between is lost.
    """

    def ask(connection: WireConnection, names: list[str]) -> dict[str, Answered]:
        if ApiKey.INCREMENTAL_ALTER_CONFIGS not in connection.versions:
            return _replace_configs(client, connection, names, set_, removed)
        return alter_resources(connection, _TOPIC, names, set_, removed)

    return client.ask_controller(names, ask)


def alter_resources(
    connection: WireConnection,
    resource_type: int,
    names: Iterable[str],
    set_: Mapping[str, str],
    removed: Sequence[str],
) -> dict[str, Answered]:
    """Alter single keys of topics, or of the broker itself. ``BROKER`` is such a type."""
    kind = wire.IncrementalAlterConfigsRequest
    changes = (
        *(kind.AlterableConfig(name, _SET, value) for name, value in set_.items()),
        *(kind.AlterableConfig(name, _DELETE, None) for name in removed),
    )
    resources = tuple(kind.AlterConfigsResource(resource_type, name, changes) for name in names)
    answer = connection.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, kind(resources))
    return _answered(answer.responses)


def _replace_configs(
    client: AdminClient,
    connection: WireConnection,
    names: list[str],
    set_: Mapping[str, str],
    removed: Sequence[str],
) -> dict[str, Answered]:
    kind = wire.AlterConfigsRequest
    before = describe_configs(client, names)
    resources = []
    for name, answer in before.items():
        if answer.code == ErrorCode.NONE:
            own = {
                key: value for key, (value, source) in answer.value.items() if source == _OF_TOPIC
            }
            kept = {key: value for key, value in own.items() if key not in removed} | dict(set_)
            pairs = tuple(kind.AlterableConfig(*pair) for pair in kept.items())
            resources.append(kind.AlterConfigsResource(_TOPIC, name, pairs))
    answer = connection.call(ApiKey.ALTER_CONFIGS, kind(tuple(resources)))
    return before | _answered(answer.responses)


def _answered(results: Iterable[Any]) -> dict[str, Answered]:
    """By the name of the topic, or of the resource."""
    found = {}
    for each in results:
        name = each.name if hasattr(each, "name") else each.resource_name
        found[name] = Answered(each.error_code, each.error_message)
    return found


__all__ = [
    "BROKER",
    "PartitionStatus",
    "TopicStatus",
    "alter_configs",
    "alter_resources",
    "create_partitions",
    "create_topics",
    "delete_topics",
    "describe_configs",
    "overrides",
    "topic_statuses",
    "under_replicated",
    "with_offsets",
]
