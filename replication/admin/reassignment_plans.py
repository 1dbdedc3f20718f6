"""Where replicas should be: the JSON of ``kafka-reassign-partitions.sh``, and proposals.

Nothing here asks a cluster. ``reassignments`` does, and carries plans out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from checkpoints.types import TopicPartition
from logstore.common.config import MAX_INT
from logstore.common.errors import ConfigError

ANY = "any"  # in place of a log directory
VERSION = 1

Assignment = Mapping[TopicPartition, tuple[int, ...]]
Racks = Mapping[int, str | None]
"""The live brokers, each with its rack."""


class Plan(NamedTuple):
    """
    Attributes:
        directories: the wanted path by partition and broker, of those that have one.
    """

    replicas: dict[TopicPartition, tuple[int, ...]]
    directories: dict[tuple[TopicPartition, int], str]


# -- the files -------------------------------------------------------------------------------------


def read_plan(text: str) -> Plan:
    """
    Raises:
        ConfigError: it is not what the tools write, or it names a partition, or a replica of one,
            twice.
    """
    plan = Plan({}, {})
    for each in _entries(text, "partitions"):
        topic, number = _field(each, "topic", str), _field(each, "partition", int)
        tp, replicas = TopicPartition(topic, number), tuple(_field(each, "replicas", list))
        if tp in plan.replicas:
            raise ConfigError(f"the plan names {tp} twice")
        if not replicas:
            raise ConfigError(f"the plan gives {tp} no replicas")
        if not all(map(_is_id, (number, *replicas))):
            raise ConfigError(f"{tp}: partition and replicas have to be numbers of 31 bits")
        if len(set(replicas)) < len(replicas):
            raise ConfigError(f"{tp}: a broker twice in {list(replicas)}")
        paths = _field(each, "log_dirs", list) if "log_dirs" in each else [ANY] * len(replicas)
        if len(paths) != len(replicas) or not all(isinstance(path, str) for path in paths):
            raise ConfigError(f"{tp}: log_dirs has to name a path, or any, for each replica")
        plan.replicas[tp] = replicas
        for broker, path in zip(replicas, paths, strict=True):
            if path != ANY:
                plan.directories[tp, broker] = path
    if not plan.replicas:
        raise ConfigError("the plan names no partition")
    return plan


def plan_json(replicas: Assignment) -> dict[str, Any]:
    """What ``read_plan`` and Kafka's tool read."""
    partitions = [
        {**tp._asdict(), "replicas": list(each), "log_dirs": [ANY] * len(each)}
        for tp, each in sorted(replicas.items())
    ]
    return {"version": VERSION, "partitions": partitions}


def read_topics(text: str) -> list[str]:
    """The topics to move.

    Raises:
        ConfigError: it is not what Kafka's tool reads, or it names a topic twice.
    """
    topics: list[str] = [_field(each, "topic", str) for each in _entries(text, "topics")]
    if not topics:
        raise ConfigError("the file names no topic")
    for topic, count in Counter(topics).items():
        if count > 1:
            raise ConfigError(f"the file names topic {topic!r} twice")
    return topics


def _entries(text: str, key: str) -> list[Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError("the JSON is no object")
    version = found.get("version", VERSION)
    if version != VERSION or isinstance(version, bool):
        raise ConfigError(f"version {str(version)[:40]}, only {VERSION} is known")
    entries: list[Any] = _field(found, key, list)
    return entries


def _field(entry: Any, key: str, kind: type) -> Any:
    value = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(value, kind):
        raise ConfigError(f"{key!r} is missing or has another type in {str(entry)[:80]}")
    return value


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_INT


# -- proposals -------------------------------------------------------------------------------------


def check_racks(racks: Racks) -> None:
    """
    Raises:
        ConfigError: some brokers have a rack and others none.
    """
    if None in racks.values() and any(racks.values()):
        raise ConfigError("not all brokers have a rack: give --disable-rack-aware")


def propose(present: Assignment, racks: Racks) -> dict[TopicPartition, tuple[int, ...]]:
    """Spread topics over brokers: leaders in turn, the replicas of a partition over as many racks
    as there are. Each topic keeps its number of replicas, that of its first partition.

    Raises:
        ConfigError: there are fewer brokers than replicas.
    """
    order = _alternating(racks)
    proposed: dict[TopicPartition, tuple[int, ...]] = {}
    factors: dict[str, int] = {}
    for turn, (tp, replicas) in enumerate(sorted(present.items())):
        factor = factors.setdefault(tp.topic, len(replicas))
        if factor > len(order):
            raise ConfigError(f"{tp.topic}: {factor} replicas for {len(order)} brokers")
        first = turn % len(order)
        # Followers begin further away with each round, so that each broker leads for all others.
        rest = [*order[first + 1 :], *order[:first]]
        away = turn // len(order) % max(1, len(rest))
        chosen = [order[first]]
        rest = [*rest[away:], *rest[:away]]
        while len(chosen) < factor:
            taken = {racks[broker] for broker in chosen}
            fresh = (broker for broker in rest if racks[broker] not in taken)
            broker = next(fresh, rest[0])
            rest.remove(broker)
            chosen.append(broker)
        proposed[tp] = tuple(chosen)
    return proposed


def _alternating(racks: Racks) -> list[int]:
    """The brokers so that neighbours have different racks, as far as possible."""
    groups: dict[str, list[int]] = {}
    for broker, rack in sorted(racks.items()):
        groups.setdefault(rack or "", []).append(broker)
    rounds = zip_longest(*(groups[rack] for rack in sorted(groups)))
    return [broker for each in rounds for broker in each if broker is not None]


def without(
    present: Assignment, racks: Racks, excluded: Collection[int]
) -> dict[TopicPartition, tuple[int, ...]]:
    """The partitions that have a replica on an excluded broker, without it.

    Its place goes to a broker of a rack that has no other replica of the partition, as far as there
    is one, with the fewest replicas. Where the excluded one was preferred as leader, the one with
    the fewest leaderships comes first.

    Raises:
        ConfigError: a partition has as many replicas as brokers are left.
    """
    kept = [broker for broker in racks if broker not in excluded]
    load = Counter(broker for replicas in present.values() for broker in replicas)
    leads = Counter(replicas[0] for replicas in present.values() if replicas)
    proposed = {}
    for tp, replicas in sorted(present.items()):
        if not set(replicas).intersection(excluded):
            continue
        stay = [broker for broker in replicas if broker not in excluded]
        while len(stay) < len(replicas):
            free = [broker for broker in kept if broker not in stay]
            if not free:
                raise ConfigError(
                    f"{tp} has {len(replicas)} replicas, and without "
                    f"{_listed(excluded)} only {len(kept)} brokers are left"
                )
            taken = {racks[broker] for broker in stay if broker in racks} - {None}
            best = min(free, key=lambda each: (racks[each] in taken, load[each], each))
            load[best] += 1
            stay.append(best)
        if replicas[0] in excluded:
            first = min(stay, key=lambda each: (leads[each], stay.index(each)))
            leads[first] += 1
            stay.remove(first)
            stay.insert(0, first)
        proposed[tp] = tuple(stay)
    return proposed


def _listed(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(brokers)))


def throttled_replicas(moves: Iterable[tuple[TopicPartition, Sequence[int], Sequence[int]]]) -> Any:
    """By topic what leaders and followers are to throttle, as ``partition:broker`` pairs.

    Args:
        moves: each with the replicas before it, which send, and after it.
    """
    found: dict[str, tuple[list[str], list[str]]] = {}
    for tp, before, after in moves:
        leaders, followers = found.setdefault(tp.topic, ([], []))
        leaders += (f"{tp.partition}:{broker}" for broker in before)
        followers += (f"{tp.partition}:{broker}" for broker in after if broker not in before)
    return {
        topic: (",".join(leaders), ",".join(followers))
        for topic, (leaders, followers) in found.items()
    }


__all__ = [
    "Assignment",
    "Plan",
    "Racks",
    "check_racks",
    "plan_json",
    "propose",
    "read_plan",
    "read_topics",
    "throttled_replicas",
    "without",
]
