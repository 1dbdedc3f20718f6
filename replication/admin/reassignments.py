"""Moves of replicas in a running cluster: between brokers, and between directories of a broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from checkpoints.types import TopicPartition
from logstore.common.errors import ConfigError
from replication.admin.admin_client import AGAIN, AdminClient, Answered, WireConnection, by_topic
from replication.admin.reassignment_plans import Plan, throttled_replicas
from replication.admin.topics import BROKER, alter_configs, alter_resources, topic_statuses
from replication.common.error_codes import ErrorCode
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.protocol.partitions import by_partition
from replication.protocol.partitions import by_topic as as_topics

SIDES = ("leader", "follower")
RATES = tuple(f"{side}.replication.throttled.rate" for side in SIDES)
REPLICAS = tuple(f"{side}.replication.throttled.replicas" for side in SIDES)
DIRECTORY_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"

PartitionOnBroker = tuple[TopicPartition, int]


class Ongoing(NamedTuple):
    """A partition that moves. ``replicas`` has all, those that come and go included."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class Places(NamedTuple):
    """The directories of a replica on its broker; None where there is none.

    Attributes:
        future: where it is being moved to.
    """

    current: str | None = None
    future: str | None = None


class Placement(NamedTuple):
    """
    Attributes:
        present: replicas by partition.
    """

    racks: dict[int, str | None]
    present: dict[TopicPartition, tuple[int, ...]]


def look(client: AdminClient, topics: Sequence[str] | None = None) -> Placement:
    """The live brokers, and where the replicas of these topics are, or of all.

    Raises:
        ConfigError: there is no such topic.
        WireError: no broker answers.
    """
    metadata = client.metadata(topics)
    present = {}
    for name, answer in topic_statuses(metadata).items():
        if answer.code:
            raise ConfigError(f"topic {name!r}: {answer}")
        present.update({each.tp: each.replicas for each in answer.value.partitions})
    return Placement({each.node_id: each.rack for each in metadata.brokers}, present)


def present_of(client: AdminClient, plan: Plan) -> Placement:
    """As ``look``, of the partitions of a plan that can be carried out.

    Raises:
        ConfigError: a topic, a partition or a broker is not there.
    """
    found = look(client, sorted({tp.topic for tp in plan.replicas}))
    present = {tp: found.present[tp] for tp in plan.replicas if tp in found.present}
    for tp, replicas in plan.replicas.items():
        if tp not in present:
            raise ConfigError(f"there is no partition {tp}")
        for broker in replicas:
            if broker not in found.racks:
                raise ConfigError(f"{tp}: there is no live broker {broker}")
    return Placement(found.racks, present)


# -- between brokers -------------------------------------------------------------------------------


def settled(
    present: Mapping[TopicPartition, tuple[int, ...]], ongoing: Mapping[TopicPartition, Ongoing]
) -> dict[TopicPartition, tuple[int, ...]]:
    """The replicas without those that go: a partition that moves shows these and those that come.

    ``ongoing`` is the earlier look, so that a move that ends meanwhile is seen as ended.
    """
    going = {tp: move.removing for tp, move in ongoing.items()}
    return {
        tp: tuple(each for each in replicas if each not in going.get(tp, ()))
        for tp, replicas in present.items()
    }


def list_reassignments(client: AdminClient) -> dict[TopicPartition, Ongoing]:
    """The moves under way.

    Raises:
        ConfigError: the controller does not say.
    """
    key, kind = ApiKey.LIST_PARTITION_REASSIGNMENTS, wire.ListPartitionReassignmentsRequest

    def ask(connection: WireConnection, keys: list[None]) -> dict[None, Answered]:
        answer = connection.call(key, kind(client.timeout_ms, None))
        return {None: Answered(answer.error_code, answer.error_message, answer.topics)}

    answer = client.ask_controller([None], ask)[None]
    if answer.code:
        raise ConfigError(f"the moves under way are not known: {answer}")
    return {
        tp: Ongoing(part.replicas, part.adding_replicas, part.removing_replicas)
        for tp, part in by_partition(answer.value)
    }


def alter_reassignments(
    client: AdminClient, targets: Mapping[TopicPartition, tuple[int, ...] | None]
) -> dict[TopicPartition, Answered]:
    """Begin moves, or cancel those whose target is None. Answered once they have begun."""
    key, kind = ApiKey.ALTER_PARTITION_REASSIGNMENTS, wire.AlterPartitionReassignmentsRequest

    def ask(
        connection: WireConnection, tps: list[TopicPartition]
    ) -> dict[TopicPartition, Answered]:
        parts = ((tp, kind.ReassignablePartition(tp.partition, targets[tp])) for tp in sorted(tps))
        topics = as_topics(parts, kind.ReassignableTopic)
        answer = connection.call(key, kind(timeout_ms=client.timeout_ms, topics=topics))
        if answer.error_code:
            return dict.fromkeys(tps, Answered(answer.error_code, answer.error_message))
        return {
            tp: Answered(part.error_code, part.error_message)
            for tp, part in by_partition(answer.responses)
        }

    return client.ask_controller(targets, ask)


# -- throttles (KIP-73) ----------------------------------------------------------------------------


def throttle(
    client: AdminClient,
    present: Mapping[TopicPartition, tuple[int, ...]],
    targets: Mapping[TopicPartition, tuple[int, ...]],
    ongoing: Mapping[TopicPartition, Ongoing],
    rate: int,
) -> dict[object, Answered]:
    """Limit what moves, those under way included, may send: the topics first, then the brokers.

    Args:
        rate: bytes a second of each broker.
    """
    moves = {}
    for tp, (replicas, adding, _) in ongoing.items():
        moves[tp] = [each for each in replicas if each not in adding], list(adding)
    for tp, target in targets.items():
        before = moves[tp][0] if tp in moves else list(present[tp])
        moves[tp] = before, [each for each in target if each not in before]
    answers: dict[object, Answered] = {}
    wanted = throttled_replicas((tp, *each) for tp, each in moves.items())
    for topic, values in wanted.items():
        answers.update(alter_configs(client, [topic], dict(zip(REPLICAS, values, strict=True))))
    brokers = {broker for each in moves.values() for side in each for broker in side}
    return answers | set_rates(client, brokers, dict.fromkeys(RATES, str(rate)))


def set_rates(
    client: AdminClient, brokers: Iterable[int], rates: Mapping[str, str]
) -> dict[object, Answered]:
    """Each broker is asked for its own configuration."""
    return _alter_brokers(client, brokers, rates, ())


def unthrottle(
    client: AdminClient, brokers: Iterable[int], topics: Iterable[str]
) -> dict[object, Answered]:
    """End all throttles of these brokers and topics."""
    answers = _alter_brokers(client, brokers, {}, (*RATES, DIRECTORY_RATE))
    answers.update(alter_configs(client, topics, {}, REPLICAS))
    return answers


def _alter_brokers(
    client: AdminClient, brokers: Iterable[int], set_: Mapping[str, str], removed: Sequence[str]
) -> dict[object, Answered]:
    def ask(connection: WireConnection, names: list[str]) -> dict[str, Answered]:
        return alter_resources(connection, BROKER, names, set_, removed)

    asked = {broker: [str(broker)] for broker in sorted(brokers)}
    found = client.ask_until_settled(
        [name for (name,) in asked.values()],
        lambda pending: client.ask_brokers({int(name): [name] for name in pending}, ask),
    )
    return {f"broker {name}": answer for name, answer in found.items()}


# -- between directories (KIP-113) -----------------------------------------------------------------


def describe_places(
    client: AdminClient, replicas: Iterable[PartitionOnBroker]
) -> dict[PartitionOnBroker, Answered]:
    """By replica its ``Places``."""
    key, kind = ApiKey.DESCRIBE_LOG_DIRS, wire.DescribeLogDirsRequest

    def ask(
        connection: WireConnection, asked: list[PartitionOnBroker]
    ) -> dict[PartitionOnBroker, Answered]:
        names = by_topic(sorted(tp for tp, _ in asked))
        topics = tuple(
            kind.DescribableLogDirTopic(name, tuple(each)) for name, each in names.items()
        )
        found = dict.fromkeys((tp for tp, _ in asked), Places())
        for place in connection.call(key, kind(topics)).results:
            for tp, part in by_partition(place.topics):
                if tp in found and part.is_future_key:
                    found[tp] = found[tp]._replace(future=place.log_dir)
                elif tp in found:
                    found[tp] = found[tp]._replace(current=place.log_dir)
        return {each: Answered(0, value=found[each[0]]) for each in asked}

    return client.ask_brokers(_by_broker(replicas), ask)


def alter_places(
    client: AdminClient, wanted: Mapping[PartitionOnBroker, str]
) -> dict[PartitionOnBroker, Answered]:
    """Begin moves to the directories of these paths.

    A replica that is still on its way to its broker is awaited, for ``default.api.timeout.ms``.
    """
    key, kind = ApiKey.ALTER_REPLICA_LOG_DIRS, wire.AlterReplicaLogDirsRequest

    def ask(
        connection: WireConnection, asked: list[PartitionOnBroker]
    ) -> dict[PartitionOnBroker, Answered]:
        dirs = []
        for path in dict.fromkeys(wanted[each] for each in asked):
            names = by_topic(sorted(each[0] for each in asked if wanted[each] == path))
            topics = (kind.AlterReplicaLogDirTopic(name, tuple(n)) for name, n in names.items())
            dirs.append(kind.AlterReplicaLogDir(path, tuple(topics)))
        found = {
            tp: Answered(part.error_code)
            for tp, part in by_partition(connection.call(key, kind(tuple(dirs))).results)
        }
        return {each: found[each[0]] for each in asked if each[0] in found}

    return client.ask_until_settled(
        wanted,
        lambda pending: client.ask_brokers(_by_broker(pending), ask),
        (*AGAIN, ErrorCode.REPLICA_NOT_AVAILABLE),
    )


def _by_broker(replicas: Iterable[PartitionOnBroker]) -> dict[int, list[PartitionOnBroker]]:
    asked: dict[int, list[PartitionOnBroker]] = {}
    for each in sorted(replicas):
        asked.setdefault(each[1], []).append(each)
    return asked


__all__ = [
    "DIRECTORY_RATE",
    "RATES",
    "Ongoing",
    "Placement",
    "Places",
    "alter_places",
    "alter_reassignments",
    "describe_places",
    "list_reassignments",
    "look",
    "present_of",
    "set_rates",
    "settled",
    "throttle",
    "unthrottle",
]
