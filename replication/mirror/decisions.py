"""What a mirror does about what its source says: a pure function."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from checkpoints.types import TopicPartition
from replication.common.state import NO_LEADER, UNKNOWN_EPOCH
from replication.mirror.source import SourceTopic, SourceView


class LocalPartition(NamedTuple):
    """A log here.

    Attributes:
        leader_id, leader_epoch: whom it follows; `NO_LEADER` and `UNKNOWN_EPOCH` for nobody.
        may_retry: following failed, long enough ago.
        log_epoch: of its last record.
    """

    topic_id: uuid.UUID | None = None
    leader_id: int = NO_LEADER
    leader_epoch: int = UNKNOWN_EPOCH
    may_retry: bool = False
    log_epoch: int = UNKNOWN_EPOCH


class Replaced(NamedTuple):
    """Another topic has the name: these logs are set aside. A source without ids has none."""

    topic: str
    partitions: tuple[int, ...]
    old_id: uuid.UUID | None = None
    new_id: uuid.UUID | None = None


class WantedPartition(NamedTuple):
    """A log to have, and whom to follow; `NO_LEADER` for nobody at present."""

    tp: TopicPartition
    topic_id: uuid.UUID | None
    leader_id: int
    leader_epoch: int


class MirrorPlan(NamedTuple):
    """In this order: logs are set aside, then made, then followed.

    Attributes:
        gone: topics here that the source does not show; their logs stay.
        pause: logs that nobody leads, or whose topic is gone.
        doubted: topics of which a broker of the source names another id, that may be a former one.
        older: logs of a source without ids that are of later epochs than it names. Epochs of a
            topic never fall: if the leader says the same, it is another topic.
    """

    replaced: tuple[Replaced, ...] = ()
    wanted: tuple[WantedPartition, ...] = ()
    pause: tuple[TopicPartition, ...] = ()
    gone: tuple[str, ...] = ()
    doubted: tuple[str, ...] = ()
    older: tuple[WantedPartition, ...] = ()


def decide(
    view: SourceView,
    local: Mapping[TopicPartition, LocalPartition],
    is_chosen: Callable[[str], bool],
    confirmed: Collection[uuid.UUID] = (),
) -> MirrorPlan:
    """
    Args:
        local: all logs here.
        confirmed: ids that most brokers of the source name. No log is set aside for another one:
            a broker behind the others names the id of a former topic.
    """
    replaced: list[Replaced] = []
    wanted: list[WantedPartition] = []
    pause: list[TopicPartition] = []
    doubted: list[str] = []
    older: list[WantedPartition] = []
    here: dict[str, dict[int, LocalPartition]] = {}
    for tp, own in local.items():
        here.setdefault(tp.topic, {})[tp.partition] = own
    for name, topic in view.topics.items():
        if not is_chosen(name):
            continue
        known = here.get(name, {})
        old = _replaced(name, topic, known)
        if old and topic.topic_id not in confirmed:
            doubted.append(name)
            continue
        replaced += old
        gone = {partition for each in old for partition in each.partitions}
        kept = {number: own for number, own in known.items() if number not in gone}
        for number, leader in sorted(topic.partitions.items()):
            tp, before = TopicPartition(name, number), kept.get(number)
            if leader.leader_id == NO_LEADER:
                if before is None:
                    wanted.append(WantedPartition(tp, topic.topic_id, *leader))
                elif before.leader_id != NO_LEADER:
                    pause.append(tp)
            elif topic.topic_id is None and _is_older(before, leader.leader_epoch):
                older.append(WantedPartition(tp, None, *leader))
            elif before is None or before.may_retry or _is_new(before, leader.leader_epoch):
                wanted.append(WantedPartition(tp, topic.topic_id, *leader))
    shown = {*view.topics, *view.refused}
    lost = [name for name in here if is_chosen(name) and name not in shown]
    for name in lost:
        pause += [
            TopicPartition(name, number)
            for number, lost_one in here[name].items()
            if lost_one.leader_id != NO_LEADER
        ]
    return MirrorPlan(
        tuple(replaced), tuple(wanted), tuple(pause), tuple(lost), tuple(doubted), tuple(older)
    )


def _replaced(name: str, topic: SourceTopic, known: Mapping[int, LocalPartition]) -> list[Replaced]:
    if topic.topic_id is None:
        return []
    old: dict[uuid.UUID, list[int]] = {}
    for number, own in known.items():
        if own.topic_id is not None and own.topic_id != topic.topic_id:
            old.setdefault(own.topic_id, []).append(number)
    return [
        Replaced(name, tuple(sorted(numbers)), old_id, topic.topic_id)
        for old_id, numbers in old.items()
    ]


def _is_older(own: LocalPartition | None, leader_epoch: int) -> bool:
    return own is not None and leader_epoch < max(own.leader_epoch, own.log_epoch)


def _is_new(own: LocalPartition, leader_epoch: int) -> bool:
    """Whether to follow another leadership. An answer of an earlier one is from a broker that is
    behind the others."""
    if own.leader_id == NO_LEADER:
        return True
    return leader_epoch > own.leader_epoch


__all__ = ["LocalPartition", "MirrorPlan", "Replaced", "WantedPartition", "decide"]
