"""From what was found to a cluster of its own: which topics it has, who leads what, and above which
epochs it has to begin. Pure.

Nothing is taken for whole that may be a part: a partition without a log here, or whose in-sync
replicas are elsewhere, is offline (R-184). What the metadata does not know is not served.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from checkpoints.topic_properties import OVERRIDES_ALONE, TopicProperties
from checkpoints.types import TopicPartition
from logstore.common.config import LogConfig
from logstore.common.errors import ConfigError
from replication.adopt.cluster_metadata import ClusterImage, TopicImage, electable
from replication.adopt.found import CONSUMER_GROUPS, CoordinatorState, FoundBroker, FoundLog
from replication.adopt.report import NOT_CARRIED, Adoption, Kind, Remark
from replication.apis.configs import BROKER_NAMES
from replication.common.errors import ResponseError
from replication.common.internal_topics import (
    GROUP_METADATA,
    INTERNAL_TOPICS,
    TRANSACTION_STATE,
    masked_partition_for,
    partition_for,
)
from replication.common.state import (
    MAX_EPOCH,
    MAX_EPOCH_OF_A_LOG,
    NO_LEADER,
    PartitionRegistration,
    TopicAssignment,
)
from replication.common.topic_configs import check_topic_config

MAX_GAPS, GAPS_PER_LOG = 10_000, 10
"""A folder may claim any number, and partitions that nobody has cost time and memory, too: at most
so many in all, and for each log that is here."""

KAFKAS_COUNT, MAX_COUNT = 50, 1000  # of partitions of the topics of coordinators
FOR_EVER = {"retention.ms": "-1", "retention.bytes": "-1"}
RETENTION = "retention.ms"
_UNKNOWN = TopicProperties({}, OVERRIDES_ALONE)

_OTHER_GROUPS = {
    CONSUMER_GROUPS: "have their offsets; their members join again, by the classic protocol",
    "share groups": "are not served",
    "streams groups": "have their offsets; their members are gone",
}


class AdoptedCluster(NamedTuple):
    """All that the tree of the new cluster needs.

    Attributes:
        states: of every partition of ``topics``.
        masked: internal topics whose keys have the places of our earlier versions (W-100).
        broker_epoch: no broker was registered in a later one.
        producer_id: the largest that anybody had; −1 without any.
    """

    cluster_id: str
    brokers: Mapping[int, tuple[str, ...]]
    topics: Mapping[str, TopicAssignment]
    states: Mapping[TopicPartition, PartitionRegistration]
    masked: frozenset[str]
    broker_epoch: int
    producer_id: int
    report: Adoption


class AdoptionRules(NamedTuple):
    """
    Attributes:
        now_ms: of the wall clock.
        read_only: nothing is deleted, and nothing copied from one broker to another.
        pins_retention: a topic whose retention is not known keeps everything.
    """

    now_ms: int
    read_only: bool = False
    pins_retention: bool = True


class _Identity(NamedTuple):
    """A topic as far as it is known before its logs are looked at."""

    topic_id: uuid.UUID
    config: Mapping[str, str]
    partitions: Mapping[int, PartitionRegistration | None]


def plan(
    cluster_id: str,
    brokers: Mapping[int, FoundBroker],
    image: ClusterImage | None,
    rules: AdoptionRules,
    notes: Sequence[Remark] = (),
) -> AdoptedCluster:
    """The cluster that these log directories are.

    Args:
        image: what the controllers of the cluster decided, if that is among the directories.
        notes: of the search, before those of the plan.
    Raises:
        ConfigError: the metadata gives a broker none of the logs that it has.
    """
    if image is not None:
        _check_owners(brokers, image)
    planner = _Planner(cluster_id, brokers, image, rules)
    topics: dict[str, TopicAssignment] = {}
    states: dict[TopicPartition, PartitionRegistration] = {}
    for name, identity in planner.identities().items():
        own = planner.states(name, identity)
        states |= own
        replicas = {tp.partition: state.replicas for tp, state in own.items()}
        topics[name] = TopicAssignment(identity.topic_id, replicas, identity.config)
    masked = frozenset(
        name for name in sorted(INTERNAL_TOPICS & topics.keys()) if planner.is_masked(name, topics)
    )
    report = planner.report(topics, states, notes)
    largest = [found.producer_id for found in brokers.values()]
    if image is not None:
        largest.append(image.next_producer_id - 1)
    return AdoptedCluster(
        cluster_id,
        {broker_id: found.directories for broker_id, found in brokers.items()},
        topics,
        states,
        masked,
        max((found.broker_epoch for found in brokers.values()), default=-1),
        max(largest),
        report,
    )


def _check_owners(brokers: Mapping[int, FoundBroker], image: ClusterImage) -> None:
    """All logs of a broker would become strays if it had the id of another one."""
    for broker_id, found in brokers.items():
        if found.logs and not any(
            known is not None and broker_id in known.replicas
            for known in map(image.partition, found.logs)
        ):
            raise ConfigError(
                f"{', '.join(found.directories)}: the metadata of the cluster gives broker "
                f"{broker_id} none of the logs there, so that it is that of another cluster or of "
                "another time, or they are another broker's"
            )


class _Planner:
    def __init__(
        self,
        cluster_id: str,
        brokers: Mapping[int, FoundBroker],
        image: ClusterImage | None,
        rules: AdoptionRules,
    ) -> None:
        self._rules = rules
        self._cluster_id = cluster_id
        self._brokers = brokers
        self._image = image
        self._notes: dict[Kind, list[str]] = {}
        self._defaults = {} if image is None or rules.read_only else self._broker_defaults(image)
        self._leading: dict[TopicPartition, FoundLog] = {}  # the logs that lead
        self._logs: dict[TopicPartition, dict[int, FoundLog]] = {}
        self._numbers: dict[str, set[int]] = {}  # of partitions with a log, of each topic
        for broker_id, found in brokers.items():
            for tp, log in found.logs.items():
                self._logs.setdefault(tp, {})[broker_id] = log
            for tp in (*found.logs, *found.unavailable):
                self._numbers.setdefault(tp.topic, set()).add(tp.partition)
        self._gaps_left = MAX_GAPS + GAPS_PER_LOG * len(self._logs)
        # It stands for whoever has what is not here and of which no metadata tells.
        self._absent = next(each for each in range(len(brokers) + 1) if each not in brokers)

    def _note(self, kind: Kind, *names: object) -> None:
        if names:
            self._notes.setdefault(kind, []).extend(map(str, names))

    # -- topics --------------------------------------------------------------------------------

    def identities(self) -> dict[str, _Identity]:
        if self._image is None:
            found = {name: self._from_logs(name) for name in sorted(self._numbers)}
            return {name: identity for name, identity in found.items() if identity is not None}
        self._note(Kind.UNKNOWN_TOPIC, *sorted(self._numbers.keys() - self._image.topics))
        return {name: self._from_image(name, self._image) for name in sorted(self._image.topics)}

    def _from_logs(self, name: str) -> _Identity | None:
        numbers = self._numbers[name]
        ids = {log.topic_id for n in numbers for log in self._here(name, n).values()} - {None}
        if len(ids) > 1:
            self._note(Kind.TWO_IDS, name)
            return None
        count = max(numbers) + 1
        if not self._has_room(count - len(numbers)):
            self._note(Kind.FEW_PARTITIONS, name)
            return None
        if name in INTERNAL_TOPICS and len(numbers) < count:
            count = self._count_by_keys(name, count)
        topic_id = next(iter(ids), None)
        if topic_id is None:
            # Without an id the next reader has to come to the same one.
            topic_id = uuid.uuid5(uuid.NAMESPACE_OID, f"{self._cluster_id}/{name}")
            self._note(Kind.WITHOUT_ID, name)
        stored = [found.configs[name] for found in self._brokers.values() if name in found.configs]
        known = max(stored, key=lambda each: each.revision, default=_UNKNOWN)
        config = dict(known.values)
        if known.revision == OVERRIDES_ALONE:
            usual = {"cleanup.policy": "compact"} if name in INTERNAL_TOPICS else {}
            config = self._pinned(name, usual | config)
        return _Identity(topic_id, self._known(name, config), dict.fromkeys(range(count)))

    def _here(self, name: str, number: int) -> Mapping[int, FoundLog]:
        return self._logs.get(TopicPartition(name, number), {})

    def _has_room(self, gaps: int) -> bool:
        has_room = gaps <= self._gaps_left
        self._gaps_left -= gaps * has_room
        return has_room

    def _count_by_keys(self, name: str, least: int) -> int:
        """The number of partitions of a topic of coordinators, whose last one may not be here: with
        another number nobody would find his group."""
        logs = {tp: log for tp, own in self._logs.items() for log in own.values()}
        placed = self._placed(logs, name)
        counts: list[int] = [max(KAFKAS_COUNT, least), *range(least, MAX_COUNT)]
        fitting = (n for n in counts if all(partition_for(key, n) == at for key, at in placed))
        return next(fitting, least)

    @staticmethod
    def _placed(logs: Mapping[TopicPartition, FoundLog], name: str) -> list[tuple[str, int]]:
        """The keys of a topic of coordinators, and in which partition they are."""
        found = ((tp, log.state) for tp, log in logs.items() if tp.topic == name)
        return [(key, tp.partition) for tp, state in found if state for key in state.keys]

    def _from_image(self, name: str, image: ClusterImage) -> _Identity:
        topic = image.topics[name]
        config = {**self._defaults, **image.topic_configs(name)}
        if config.get("remote.storage.enable") == "true":
            self._note(Kind.TIERED, name)
        known = self._known(name, self._pinned(name, config))
        partitions = {**topic.partitions, **self._later(topic)}
        return _Identity(topic.id, known, dict(sorted(partitions.items())))

    def _later(self, topic: TopicImage) -> dict[int, PartitionRegistration]:
        """Partitions that were made after what the metadata says. Who was in sync is not known."""
        name, known = topic.name, topic.partitions
        later = [
            number
            for number in self._numbers.get(name, set()) - known.keys()
            if any(log.topic_id == topic.id for log in self._here(name, number).values())
        ]
        count = max(later, default=-1) + 1
        if not self._has_room(count - len(later) - sum(number < count for number in known)):
            self._note(Kind.UNKNOWN_TOPIC, *(f"{name}-{number}" for number in sorted(later)))
            return {}
        return {
            number: PartitionRegistration(tuple(self._here(name, number)), (), NO_LEADER, 0, 0)
            for number in range(count)
            if number not in known
        }

    def _broker_defaults(self, image: ClusterImage) -> dict[str, str]:
        """The configuration that all brokers were given for topics, by the keys of topics, where it
        differs from the usual one. No other configuration of brokers is carried."""
        usual = LogConfig().to_properties()
        names = {BROKER_NAMES.get(key, key): key for key in usual}
        by_broker = dict(image.broker_configs())
        given = by_broker.pop("", {})
        others = [key for key in given if key not in names]
        others += [f"{key} of broker {name}" for name, own in by_broker.items() for key in own]
        if others:
            self._note(Kind.BROKER_CONFIG, *others)
        found = {names[key]: value for key, value in given.items() if key in names}
        return {k: value for k, value in found.items() if k == RETENTION or value != usual[k]}

    def _pinned(self, name: str, config: dict[str, str]) -> dict[str, str]:
        """A retention that is not known must not delete anything: that of a broker was in its
        ``server.properties``."""
        keeps = RETENTION in config or config.get("cleanup.policy") == "compact"
        if keeps or self._rules.read_only or not self._rules.pins_retention:
            return config
        self._note(Kind.KEEP_ALL, name)
        return FOR_EVER | config

    def _known(self, name: str, config: Mapping[str, str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for key, value in config.items():
            try:
                check_topic_config({key: value})
            except ResponseError:
                self._note(Kind.UNKNOWN_CONFIG, f"{name}: {key}")
            else:
                found[key] = value
        return found

    # -- partitions ----------------------------------------------------------------------------

    def states(self, name: str, identity: _Identity) -> dict[TopicPartition, PartitionRegistration]:
        numbers = (TopicPartition(name, number) for number in identity.partitions)
        return {tp: self._state(tp, identity) for tp in numbers}

    def _state(self, tp: TopicPartition, identity: _Identity) -> PartitionRegistration:
        everywhere = self._logs.get(tp, {})
        ids = (None, identity.topic_id)
        logs = {broker: log for broker, log in everywhere.items() if log.topic_id in ids}
        if len(logs) < len(everywhere):
            self._note(Kind.OTHER_ID, tp_text(tp))
        damaged = [broker for broker, found in self._brokers.items() if tp in found.unavailable]
        for broker in damaged:
            self._note(Kind.DAMAGED, f"{tp_text(tp)} of broker {broker}")
        known = identity.partitions[tp.partition]
        if known is None:
            ranked = sorted(logs, key=lambda broker: (*(-n for n in logs[broker].rank), broker))
            replicas, in_sync, epoch = (*ranked, *damaged), tuple(logs), 0
        else:
            replicas, in_sync, epoch = known.replicas, electable(known), known.leader_epoch
            for broker in logs.keys() - replicas:
                self._note(Kind.MOVED, f"{tp_text(tp)} of broker {broker}")
                del logs[broker]
        epoch = self._epoch(tp, epoch, logs.values())
        if not logs:
            # A broker that is here and has lost its log must never serve an empty one.
            self._note(Kind.WITHOUT_LOG, tp_text(tp))
            may_have = [b for b in replicas if b not in self._brokers or b in damaged]
            replicas = tuple(may_have) or (self._absent,)
        led = {
            broker: log
            for broker, log in logs.items()
            if broker in in_sync and tp not in self._brokers[broker].unproven
        }
        if not led:
            if logs:
                self._note(Kind.OUT_OF_SYNC, tp_text(tp))
            isr = tuple(b for b in in_sync if b in replicas and b not in self._brokers)
            return PartitionRegistration(replicas, isr, NO_LEADER, epoch, 0)
        best = max(log.rank for log in led.values())
        isr = tuple(b for b in replicas if b in led and led[b].rank == best)
        self._leading[tp] = led[isr[0]]
        if self._leading[tp].is_short:
            self._note(Kind.CUT_SHORT, tp_text(tp))
        behind = logs.keys() - isr
        if behind and self._rules.read_only:  # they would copy all that they lack into memory
            self._note(Kind.BEHIND, tp_text(tp))
            replicas = tuple(broker for broker in replicas if broker not in behind)
        return PartitionRegistration(replicas, isr, isr[0], epoch, 0)

    def _epoch(self, tp: TopicPartition, known: int, logs: Iterable[FoundLog]) -> int:
        """The controller elects above it. What no cluster reaches is left to the broker (R-181)."""
        epochs = [log.leader_epoch for log in logs]
        if tp.topic == TRANSACTION_STATE:  # markers carry it into all logs
            epochs += [found.coordinator_epoch for found in self._brokers.values()]
        possible = (epoch for epoch in epochs if epoch <= MAX_EPOCH_OF_A_LOG)
        return min(max(known, 0, *possible), MAX_EPOCH)

    # -- coordinators --------------------------------------------------------------------------

    def is_masked(self, name: str, topics: Mapping[str, TopicAssignment]) -> bool:
        """Whether all keys have the places of our earlier versions, and some not those of Kafka."""
        count = len(topics[name].partitions)
        placed = self._placed(self._leading, name)
        if all(partition_for(key, count) == at for key, at in placed):
            return False
        is_masked = all(masked_partition_for(key, count) == at for key, at in placed)
        if not is_masked:
            self._note(Kind.MISPLACED, name)
        return is_masked

    # -- the report ----------------------------------------------------------------------------

    def report(
        self,
        topics: Mapping[str, TopicAssignment],
        states: Mapping[TopicPartition, PartitionRegistration],
        notes: Sequence[Remark],
    ) -> Adoption:
        absent = {b for state in states.values() for b in state.replicas} - self._brokers.keys()
        for broker in sorted(absent):
            self._note(Kind.ABSENT, f"broker {broker}")
        configs = {name: LogConfig.from_properties(t.config) for name, t in topics.items()}
        for tp, state in states.items():
            here = sum(tp in self._brokers[b].logs for b in state.replicas if b in self._brokers)
            config = configs[tp.topic]
            log = self._leading.get(tp)
            is_old = (
                log is not None and 0 <= log.oldest_ms < self._rules.now_ms - config.retention_ms
            )
            if is_old and config.delete and config.retention_ms >= 0 and not self._rules.read_only:
                self._note(Kind.EXPIRED, tp_text(tp))
            least = config.min_insync_replicas
            if state.leader != NO_LEADER and here < min(least, len(state.replicas)):
                self._note(Kind.TOO_FEW, tp_text(tp))
        others: dict[str, frozenset[str]] = {}
        coordinated = [
            (tp, log.state) for tp, log in self._leading.items() if log.state is not None
        ]
        ended = {each for _, state in coordinated for each in state.open}
        for tp, log in self._leading.items():
            known = [each for each in log.open_producers if each in ended]
            if known:
                self._note(Kind.OPEN, tp_text(tp))
            if len(known) < len(log.open_producers):
                self._note(Kind.HANGING, tp_text(tp))
        for tp, found in coordinated:
            for kind, group_ids in found.others.items():
                others[kind] = others.get(kind, frozenset()) | group_ids
            if found.unreadable:
                self._note(Kind.UNREADABLE, tp_text(tp))
            self._note(Kind.AHEAD, *self._ahead(found))
        left_out = {} if self._image is None else self._image.left_out
        not_carried = [Remark(f"{NOT_CARRIED}{kind}", "", (), n) for kind, n in left_out.items()]
        for kind, group_ids in others.items():
            names = tuple(sorted(group_ids))
            not_carried.append(
                Remark(f"{NOT_CARRIED}{kind}", _OTHER_GROUPS[kind], names, len(names))
            )
        groups = [s for tp, s in coordinated if tp.topic == GROUP_METADATA]
        transactions = [s for tp, s in coordinated if tp.topic == TRANSACTION_STATE]
        return Adoption(
            self._cluster_id,
            tuple(self._brokers),
            len(topics),
            len(states),
            sum(state.leader != NO_LEADER for state in states.values()),
            len({key for state in groups for key in state.keys}),
            sum(len(state.committed) for state in groups),
            len({key for state in transactions for key in state.keys}),
            (*notes, *(kind.note(names) for kind, names in self._notes.items()), *not_carried),
        )

    def _ahead(self, found: CoordinatorState) -> Iterator[str]:
        """Groups that have read what no log here has. Their logs are of different moments."""
        for (group, tp), offset in found.committed.items():
            log = self._leading.get(tp)
            if log is not None and offset > log.log_end_offset:
                yield f"{group} of {tp_text(tp)}: {offset} above {log.log_end_offset}"


def tp_text(tp: TopicPartition) -> str:
    return f"{tp.topic}-{tp.partition}"
