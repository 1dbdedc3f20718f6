"""New topics and other assignments: what is legal, and which brokers get the replicas."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from logstore.config import LogConfig
from logstore.errors import ConfigError, InvalidTopicError
from logstore.format.filenames import validate_topic
from logstore.random_id import new_uuid
from replication.config import ReplicationConfig
from replication.controller.context import ControllerContext
from replication.error_codes import ErrorCode
from replication.errors import ResponseError
from replication.messages import CreateTopicRequest
from replication.state import TopicAssignment, TopicPartition

DEFAULT = -1  # in a request: the broker's default


def new_topic(
    request: CreateTopicRequest, context: ControllerContext, config: ReplicationConfig, rng: Random
) -> TopicAssignment:
    """The topic that a request asks for.

    Raises:
        InvalidTopicError: the name breaks F-2, or collides with another by ``.`` and ``_``.
        ResponseError: with Kafka's code.
    """
    name = request.topic
    validate_topic(name)
    if name in context.topics:
        raise ResponseError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists")
    other = context.names.get(name.replace(".", "_"))
    if other is not None:
        raise InvalidTopicError(f"topic {name!r} collides with {other!r}")
    try:
        LogConfig.from_properties(request.config)
    except ConfigError as error:
        raise ResponseError(ErrorCode.INVALID_CONFIG, str(error)) from error
    if request.assignment is None:
        partitions = config.num_partitions if request.partitions == DEFAULT else request.partitions
        factor = request.replication_factor
        if factor == DEFAULT:
            factor = config.default_replication_factor
        fit = [broker for broker in context.live if broker not in context.shutting_down]
        replicas = spread(partitions, factor, fit, rng)
    else:
        replicas = [tuple(each) for each in request.assignment]
        check_assignment(replicas, context)
    topic_id = new_uuid(lambda: f"{rng.getrandbits(128):032x}")
    return TopicAssignment(topic_id, dict(enumerate(replicas)), dict(request.config))


def spread(
    partitions: int, replication_factor: int, brokers: Sequence[int], rng: Random
) -> list[tuple[int, ...]]:
    """Kafka's rack-unaware assignment (``AdminUtils``): leaders in turn from a random start, the
    other replicas at a distance that grows with each turn.

    Raises:
        ResponseError: INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR.
    """
    if partitions < 1:
        raise ResponseError(ErrorCode.INVALID_PARTITIONS, f"{partitions} partitions")
    if not 1 <= replication_factor <= len(brokers):
        raise ResponseError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {replication_factor} with {len(brokers)} live brokers",
        )
    count = len(brokers)
    start, shift = rng.randrange(count), rng.randrange(count)
    assigned = []
    for partition in range(partitions):
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
        ResponseError: INVALID_PARTITIONS, or INVALID_REPLICA_ASSIGNMENT: no replicas, one twice,
            not the same number everywhere, an unknown broker, or nobody alive to lead.
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


class Move(NamedTuple):
    """A reassignment: ``replicas`` are the targets followed by those to remove (R-62)."""

    target: tuple[int, ...]
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


def move_to(tp: TopicPartition, target: tuple[int, ...] | None, context: ControllerContext) -> Move:
    """The way from the present replicas to ``target``; None cancels the one that is under way.

    One that is under way is given up: its new replicas leave, unless they are wanted again.

    Raises:
        ResponseError: UNKNOWN_TOPIC_OR_PARTITION, INVALID_REPLICA_ASSIGNMENT,
            NO_REASSIGNMENT_IN_PROGRESS.
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
    removing = tuple(r for r in original if r not in target)
    return Move(target, target + removing, tuple(r for r in target if r not in original), removing)


def _invalid(message: str) -> ResponseError:
    return ResponseError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
