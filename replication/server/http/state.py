"""A picture of some brokers of this process, as plain values that JSON can carry.

It reads what each broker shows without waiting. No lock is held over more than one value, so two
numbers may be an instant apart, as in any monitoring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from checkpoints.types import TopicPartition
from replication.broker.broker import Broker
from replication.common.state import PartitionRegistration
from replication.partition import Partition

STATE_VERSION = 2  # of the JSON; it rises when a field changes its meaning
TRUNCATIONS_MAX = 20  # in a selection

T = TypeVar("T")


class GroupSnapshot(NamedTuple):
    """A consumer group as its coordinator has it."""

    group_id: str
    state: str
    protocol_type: str
    members: int
    offsets: Mapping[TopicPartition, int]  # committed


class Selection(NamedTuple):
    """Which rows are wanted: ``limit`` of the partitions, and of the offsets of groups.

    ``text`` is a part of the name of a topic or a group, in any case. ``unwell`` leaves out
    partitions that are well and offsets without a lag; otherwise these come last.
    """

    text: str = ""
    internal: bool = False
    unwell: bool = False
    start: int = 0
    group_start: int = 0
    limit: int = 50


def cluster_state(
    brokers: Iterable[Broker], groups: Iterable[GroupSnapshot] = ()
) -> dict[str, Any]:
    """
    Returns:
        ``version``, ``counts``, ``brokers``, ``partitions``, ``groups`` and ``truncations``; ids
        ascending, truncations latest first. Offsets are −1 where they are not known.
    """
    here = sorted(brokers, key=lambda broker: broker.broker_id)
    return assembled(
        [_broker(broker) for broker in here], _partitions(here), groups, _truncations(here)
    )


def assembled(
    brokers: Sequence[Mapping[str, Any]],
    partitions: Mapping[TopicPartition, dict[str, Any]],
    groups: Iterable[GroupSnapshot],
    truncations: Iterable[Mapping[str, Any]],
) -> dict[str, Any]:
    """A state of its parts; brokers and partitions are in order."""
    unwell = [found for found in partitions.values() if not _is_well(found)]
    leaderless = sum(found["leader"] < 0 for found in unwell)
    short = len(unwell) - leaderless
    return {
        "version": STATE_VERSION,
        "counts": {
            "partitions": len(partitions),
            "leaderless": leaderless,
            "under_replicated": short,
        },
        "brokers": list(brokers),
        "partitions": list(partitions.values()),
        "groups": [_group(each, partitions) for each in sorted(groups, key=lambda g: g.group_id)],
        "truncations": sorted(truncations, key=lambda event: event["ago_ms"]),
    }


def select(state: Mapping[str, Any], wanted: Selection) -> dict[str, Any]:
    """The state with some rows only. ``counts`` has how many there are to choose from."""
    text = wanted.text.lower()

    def is_meant(topic: str) -> bool:
        return (wanted.internal or not topic.startswith("__")) and text in topic.lower()

    def worst_first(rows: Iterable[T], is_well: Callable[[T], bool]) -> list[T]:
        return sorted((r for r in rows if not (wanted.unwell and is_well(r))), key=is_well)

    partitions = worst_first((p for p in state["partitions"] if is_meant(p["topic"])), _is_well)
    lines = [
        (group, offset)
        for group in state["groups"]
        for offset in group["offsets"] or [None]
        if text in group["group"].lower() or (offset and is_meant(offset["topic"]))
    ]
    lines = worst_first(lines, lambda line: not line[1] or line[1]["lag"] == 0)
    truncations = [cut for cut in state["truncations"] if is_meant(cut["topic"])]
    counts = {"selected_partitions": len(partitions), "selected_offsets": len(lines)}
    groups: list[dict[str, Any]] = []
    for group, offset in lines[wanted.group_start :][: wanted.limit]:
        if not groups or groups[-1]["group"] != group["group"]:
            groups.append(group | {"offsets": []})
        groups[-1]["offsets"] += [offset] if offset else []
    return {
        **state,
        "counts": state["counts"] | counts,
        "partitions": partitions[wanted.start :][: wanted.limit],
        "groups": groups,
        "truncations": truncations[:TRUNCATIONS_MAX],
    }


def _is_well(partition: Mapping[str, Any]) -> bool:
    return partition["leader"] >= 0 and len(partition["isr"]) >= len(partition["replicas"])


def _broker(broker: Broker) -> dict[str, Any]:
    manager = broker.replica_manager
    partitions = list(manager.partitions.values())
    stats = manager.stats
    return {
        "id": broker.broker_id,
        "state": broker.state.value,
        "epoch": broker.broker_epoch,
        "is_controller": broker.controller.active,
        "partitions": len(partitions),
        "leaders": sum(partition.is_leader for partition in partitions),
        "under_replicated": sum(partition.under_replicated for partition in partitions),
        "bytes_in": stats.bytes_in,
        "bytes_out": stats.bytes_out,
        "messages_in": stats.messages_in,
        "offline_directories": sorted(broker.log_manager.offline_directories),
    }


def _partitions(brokers: Sequence[Broker]) -> dict[TopicPartition, dict[str, Any]]:
    """The partitions, ascending. The leader is the replica that leads in the latest epoch, not one
    that was replaced and does not know it yet; or one of another process."""
    replicas: dict[TopicPartition, dict[int, Partition]] = {}
    for broker in brokers:
        for tp, partition in list(broker.replica_manager.partitions.items()):
            replicas.setdefault(tp, {})[broker.broker_id] = partition
    here = {broker.broker_id: broker for broker in brokers}
    return {tp: _partition(tp, replicas[tp], here) for tp in sorted(replicas)}


def _partition(
    tp: TopicPartition, replicas: Mapping[int, Partition], here: Mapping[int, Broker]
) -> dict[str, Any]:
    epoch = max(partition.leader_epoch for partition in replicas.values())
    leader = next(
        (p for p in replicas.values() if p.is_leader and p.leader_epoch == epoch),
        None,
    )
    led = _led_elsewhere(tp, here) if leader is None else None
    assigned = max((p.replicas for p in replicas.values()), key=len)
    shown = sorted({*assigned, *replicas})
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "leader": led.leader if led else -1 if leader is None else leader.leader_id,
        "leader_epoch": epoch,
        "isr": sorted(led.isr if led else () if leader is None else leader.isr.committed),
        "min_isr": 0 if leader is None else leader.min_isr,
        "high_watermark": -1 if leader is None else _offsets(leader)[2],
        "replicas": [_replica(one, replicas.get(one), one in here) for one in shown],
    }


def _led_elsewhere(tp: TopicPartition, here: Mapping[int, Broker]) -> PartitionRegistration | None:
    """The controller's word on a partition that a live broker of another process leads."""
    for metadata in (broker.metadata for broker in here.values()):
        known = metadata.registration(tp)
        if known is not None and known.leader not in here and metadata.is_alive(known.leader):
            return known
    return None


def _replica(broker_id: int, partition: Partition | None, is_here: bool) -> dict[str, Any]:
    """``state``: its broker may not have it yet (``absent``), or be none of these (``unknown``)."""
    start, end, high = (-1, -1, -1) if partition is None else _offsets(partition)
    state = "absent" if is_here else "unknown"
    if partition is not None:
        state = "offline" if partition.offline else "online"
    return {
        "broker": broker_id,
        "is_online": state == "online",
        "state": state,
        "log_start_offset": start,
        "log_end_offset": end,
        "high_watermark": high,
    }


def _offsets(partition: Partition) -> tuple[int, int, int]:
    log = partition.log
    if log is None or partition.offline:
        return -1, -1, -1
    return log.log_start_offset, log.log_end_offset, log.high_watermark


def _group(
    group: GroupSnapshot, partitions: Mapping[TopicPartition, dict[str, Any]]
) -> dict[str, Any]:
    """``lag`` counts offsets, not records: a compacted log has fewer. Below zero if the group has
    committed what the partition does not have; None where the end of that is not known here."""
    offsets = []
    for tp in sorted(group.offsets):
        committed = group.offsets[tp]
        known = partitions.get(tp)
        end = -1 if known is None else known["high_watermark"]
        offsets.append(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "committed": committed,
                "high_watermark": end,
                "lag": end - committed if end >= 0 else None,
            }
        )
    return {
        "group": group.group_id,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "members": group.members,
        "offsets": offsets,
    }


def _truncations(brokers: Iterable[Broker]) -> list[dict[str, Any]]:
    found = []
    for broker in brokers:
        now_ms = broker.runtime.now_ms()
        for event in broker.replica_manager.truncations:
            found.append(
                {
                    "broker": broker.broker_id,
                    "topic": event.tp.topic,
                    "partition": event.tp.partition,
                    "leader_epoch": event.leader_epoch,
                    "from_offset": event.log_end_offset,
                    "to_offset": event.offset,
                    "ago_ms": now_ms - event.at_ms,
                }
            )
    return found
