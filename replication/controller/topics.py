"""New topics and assignments: check them, and choose brokers for the replicas."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from logstore.common.config import LogConfig
from logstore.common.errors import InvalidTopicError
from logstore.common.random_id import new_uuid
from logstore.format.filenames import CLUSTER_METADATA, validate_topic
from replication.common.config import ReplicationConfig
from replication.common.error_codes import ErrorCode
from replication.common.errors import ResponseError
from replication.common.messages import (
    BROKER_DEFAULT,
    AlterConfigOp,
    CreatePartitionsRequest,
    CreateTopicRequest,
    IncrementalAlterConfigsRequest,
)
from replication.common.state import TopicAssignment, TopicPartition
from replication.common.topic_configs import THROTTLED, check_topic_config
from replication.controller.context import ControllerContext

MAX_PARTITIONS = 10_000  # the most partitions of a topic, which are all in its node
LISTS = ("cleanup.policy", *THROTTLED)


def new_topic(
    request: CreateTopicRequest, context: ControllerContext, config: ReplicationConfig, rng: Random
) -> TopicAssignment:
    """The topic that a request creates.

    Raises:
        InvalidTopicError: the name is invalid or collides with another (F-2).
        ResponseError: with Kafka's code.
    """
    name = request.topic
    validate_topic(name)
    if name == CLUSTER_METADATA:
        raise ResponseError(ErrorCode.INVALID_REQUEST, f"{name} is the log of a KRaft quorum")
    if name in context.topics:
        raise ResponseError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists")
    other = context.names.get(name.replace(".", "_"))
    if other is not None:
        raise InvalidTopicError(f"topic {name!r} collides with {other!r}")
    check_topic_config(request.config)
    if request.assignment is None:
        partitions = (
            config.num_partitions if request.partitions == BROKER_DEFAULT else request.partitions
        )
        factor = request.replication_factor
        if factor == BROKER_DEFAULT:
            factor = config.default_replication_factor
        _check_count(partitions)
        replicas = spread(partitions, factor, _fit(context), rng)
    else:
        _check_count(len(request.assignment))
        replicas = [tuple(each) for each in request.assignment]
        check_assignment(replicas, context)
    topic_id = new_uuid(lambda: f"{rng.getrandbits(128):032x}")
    return TopicAssignment(topic_id, dict(enumerate(replicas)), dict(request.config))


def new_partitions(
    request: CreatePartitionsRequest, context: ControllerContext, rng: Random
) -> dict[int, tuple[int, ...]]:
    """The new partitions of a topic, by number, with their replicas.

    Raises:
        ResponseError: UNKNOWN_TOPIC_OR_PARTITION; INVALID_TOPIC_EXCEPTION: it is being deleted;
            REASSIGNMENT_IN_PROGRESS for any of its partitions; INVALID_PARTITIONS: the number does
            not grow; and as ``spread`` and ``check_assignment``.
    """
    name, count = request.topic, request.total_count
    if name not in context.topics:
        raise ResponseError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
    if name in context.deleting:
        raise ResponseError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name!r} is being deleted")
    topic = context.topics[name].assignment
    if topic.adding or topic.removing:
        raise ResponseError(ErrorCode.REASSIGNMENT_IN_PROGRESS, f"of topic {name!r}")
    known = len(topic.partitions)
    if count <= known:
        message = f"topic {name!r} has {known} partitions, {count} are asked for"
        raise ResponseError(ErrorCode.INVALID_PARTITIONS, message)
    _check_count(count)
    first = topic.partitions[0]
    if request.assignment is None:
        fit = _fit(context)
        start = fit.index(first[0]) if first[0] in fit else 0
        replicas = spread(count - known, len(first), fit, rng, known, start)
    else:
        replicas = [tuple(each) for each in request.assignment]
        if len(replicas) != count - known:
            raise _invalid(f"{len(replicas)} assignments for {count - known} new partitions")
        check_assignment(replicas, context)
        if len(replicas[0]) != len(first):
            raise _invalid(f"{len(replicas[0])} replicas, where the topic has {len(first)}")
    return dict(enumerate(replicas, known))


def altered_config(
    request: IncrementalAlterConfigsRequest, context: ControllerContext
) -> dict[str, str]:
    """The new configuration of a topic.

    Raises:
        InvalidTopicError: no topic can have that name.
        ResponseError: INVALID_REQUEST: a key twice, or without a value; INVALID_CONFIG: an unknown
            key, a bad value, or a key that is no list; UNKNOWN_TOPIC_OR_PARTITION.
    """
    name = request.topic
    if len({each.name for each in request.configs}) < len(request.configs):
        raise ResponseError(ErrorCode.INVALID_REQUEST, "a configuration key twice")
    is_known = name in context.topics and name not in context.deleting
    present, config = LogConfig().to_properties(), dict[str, str]()
    if is_known:
        topic = context.topics[name]
        present, config = topic.config.to_properties(), dict(topic.assignment.config)
    for key, value, operation in request.configs:
        if operation is AlterConfigOp.DELETE:
            config.pop(key, None)
        elif value is None:
            raise ResponseError(ErrorCode.INVALID_REQUEST, f"{key} without a value")
        elif not isinstance(value, str) or operation is AlterConfigOp.SET:
            config[key] = value  # checked below with the others
        elif key not in LISTS:
            raise ResponseError(ErrorCode.INVALID_CONFIG, f"{key} is not a list")
        else:
            config[key] = _changed_list(present[key], value, operation)
    validate_topic(name)
    check_topic_config(config)
    if not is_known:  # Kafka says what is wrong with the values first
        raise ResponseError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
    return config


def _changed_list(present: str, value: str, operation: AlterConfigOp) -> str:
    old, parts = _parts(present), _parts(value)
    if operation is AlterConfigOp.APPEND:
        return ",".join(dict.fromkeys([*old, *parts]))
    return ",".join(part for part in old if part not in parts)


def _parts(text: str) -> list[str]:
    return [part for part in map(str.strip, text.split(",")) if part]


def _check_count(partitions: int) -> None:
    """
    Raises:
        ResponseError: POLICY_VIOLATION, as Kafka's controller.
    """
    if partitions > MAX_PARTITIONS:
        message = f"{partitions} partitions, more than {MAX_PARTITIONS}"
        raise ResponseError(ErrorCode.POLICY_VIOLATION, message)


def _fit(context: ControllerContext) -> list[int]:
    """The brokers that may get new replicas, sorted."""
    return [broker for broker in context.live if broker not in context.shutting_down]


def spread(
    partitions: int,
    replication_factor: int,
    brokers: Sequence[int],
    rng: Random,
    number: int = 0,
    start: int | None = None,
) -> list[tuple[int, ...]]:
    """Kafka's rack-unaware assignment (``AdminUtils``): leaders in turn from a random start, the
    other replicas at a distance that grows with each turn.

    Args:
        number: the number of the first of these partitions.
        start: the place in ``brokers`` of the leader of partition 0, and the first distance less
            one; random by default.
    Raises:
        ResponseError: INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR.
    """
    factor = ResponseError(
        ErrorCode.INVALID_REPLICATION_FACTOR,
        f"replication factor {replication_factor} with {len(brokers)} live brokers",
    )
    if replication_factor < 1:
        raise factor
    if partitions < 1:
        raise ResponseError(ErrorCode.INVALID_PARTITIONS, f"{partitions} partitions")
    if replication_factor > len(brokers):
        raise factor
    count = len(brokers)
    shift = start
    if start is None or shift is None:
        start, shift = rng.randrange(count), rng.randrange(count)
    assigned = []
    for partition in range(number, number + partitions):
        if partition and partition % count == 0:
            shift += 1
        first = (partition + start) % count
        distances = (1 + (shift + turn) % (count - 1) for turn in range(replication_factor - 1))
        others = (brokers[(first + distance) % count] for distance in distances)
        assigned.append((brokers[first], *others))
    return assigned


def check_assignment(assignment: Sequence[tuple[int, ...]], context: ControllerContext) -> None:
    """
    Raises:
        ResponseError: INVALID_PARTITIONS, or INVALID_REPLICA_ASSIGNMENT: no replicas, a replica
            twice, different numbers of replicas, an unknown broker, or no live broker.
    """
    if not assignment:
        raise ResponseError(ErrorCode.INVALID_PARTITIONS, "an assignment of no partition")
    for replicas in assignment:
        check_replicas(replicas, context)
        if len(replicas) != len(assignment[0]):
            raise _invalid("partitions differ in their number of replicas")
        if not any(r in context.live and r not in context.shutting_down for r in replicas):
            raise _invalid(f"none of {list(replicas)} is alive")


def check_replicas(replicas: tuple[int, ...], context: ControllerContext) -> None:
    """Raises as ``check_assignment``."""
    if not replicas:
        raise _invalid("a partition without replicas")
    if len(set(replicas)) != len(replicas):
        raise _invalid(f"a replica twice in {list(replicas)}")
    unknown = [r for r in replicas if r not in context.live and r not in context.remembered]
    if unknown:
        raise _invalid(f"brokers {unknown} are not known")


class Reassignment(NamedTuple):
    """A reassignment. ``replicas`` are the targets, followed by the replicas to remove (R-62)."""

    target: tuple[int, ...]
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


def move_to(
    tp: TopicPartition,
    target: tuple[int, ...] | None,
    context: ControllerContext,
    may_change_factor: bool = True,
) -> Reassignment:
    """The move from the present replicas to ``target``; None cancels the present move.

    A new move replaces the present one, whose new replicas leave unless they are targets again.

    Raises:
        ResponseError: UNKNOWN_TOPIC_OR_PARTITION, NO_REASSIGNMENT_IN_PROGRESS;
            INVALID_REPLICA_ASSIGNMENT: as ``check_replicas``, or all replicas with the committed
            records would leave; INVALID_REPLICATION_FACTOR: more or fewer replicas, which the
            request forbids.
    """
    if not context.is_active(tp):
        raise ResponseError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    topic = context.topics[tp.topic].assignment
    adding = topic.adding.get(tp.partition, ())
    under_way = bool(adding or topic.removing.get(tp.partition))
    original = tuple(r for r in topic.partitions[tp.partition] if r not in adding)
    if target is None:
        if not under_way:
            raise ResponseError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        target = original
    check_replicas(target, context)
    if not may_change_factor and len(target) != len(original):
        message = f"{len(target)} replicas in place of {len(original)}"
        raise ResponseError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    removing = tuple(r for r in original if r not in target)
    replicas = target + removing
    now = context.partitions[tp]
    trusted = now.isr or now.elr or now.replicas
    if not any(replica in replicas for replica in trusted):
        raise _invalid(f"nobody of {list(trusted)}, who alone have everything, would stay")
    return Reassignment(target, replicas, tuple(r for r in target if r not in original), removing)


def _invalid(message: str) -> ResponseError:
    return ResponseError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
