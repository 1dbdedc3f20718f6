"""Makes a cluster of a mirror, or of a directory that was restored: one on which a Kafka starts.

Nothing is changed before all is looked at. Then a mirror ends being one; the transactions that are
open end; and ``__cluster_metadata-0`` comes with its rename as the last step: a promotion without
it has not happened, and is to be repeated.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from checkpoints.files import replace_file
from checkpoints.meta_properties import META_PROPERTIES, MetaProperties, MetaPropertiesFile
from checkpoints.partition_metadata import topic_id_from_text, topic_id_to_text
from checkpoints.types import TopicPartition
from logstore.common.clock import Clock, SystemClock
from logstore.common.config import MAX_LONG, BrokerConfig
from logstore.common.errors import ConfigError
from logstore.common.random_id import new_uuid, random_id
from logstore.format import filenames
from logstore.manager import LogManager, ManagerOwner
from logstore.manager.log_dir import LOCK
from logstore.storage.base import Storage
from logstore.storage.local import LocalStorage
from logstore.storage.overlay import OverlayStorage
from logstore.storage.paths import absolute_path
from replication.adopt import (
    TOPIC_RESOURCE,
    AdoptedCluster,
    AdoptionRules,
    ClusterImage,
    Kind,
    Remark,
    TopicImage,
    metadata_dir,
    plan_adoption,
    read_cluster_metadata,
    write_metadata_log,
)
from replication.common.state import NO_LEADER, PartitionRegistration
from replication.mirror.ending import EndedTransactions, end_transactions
from replication.mirror.endings import Ending
from replication.mirror.identity import MirrorFile, MirrorState
from replication.mirror.report import troubled
from replication.mirror.server_properties import Listeners, server_properties

SERVER_PROPERTIES = "server.properties"
_LARGEST = 1 << 20  # of a server.properties; a larger one is nobody's
DEFAULT_NODE = 1
UNSEEN_PRODUCERS = 1_000_000
"""Brokers of the source have taken blocks of 1,000 ids, and gave some to producers of which no log
here has a record yet. They may go on with the new cluster."""

UNSEEN_ELECTIONS = 1000
"""Leaders of the source had epochs that no record has. A client that knew one believes no leader of
an earlier epoch, as long as the topic has the same id."""

_TIERED = "remote.storage.enable"
_METADATA_TP = TopicPartition(filenames.CLUSTER_METADATA, 0)

FINDINGS = frozenset(
    kind.value[0]
    for kind in (
        Kind.TWO_IDS,
        Kind.FEW_PARTITIONS,
        Kind.OTHER_ID,
        Kind.DAMAGED,
        Kind.WITHOUT_LOG,
        Kind.OUT_OF_SYNC,
        Kind.CUT_SHORT,
        Kind.MISPLACED,
        Kind.UNREADABLE,
    )
)
"""Remarks that say that something is missing: a part never passes for the whole."""

_SETTLED = frozenset(
    kind.value[0] for kind in (Kind.NO_METADATA, Kind.ABSENT, Kind.OPEN, Kind.HANGING)
)
"""Remarks of an adoption that a promotion answers itself."""

_OF_GROUPS = {
    "not carried: consumer groups": (
        "groups of the new protocol",
        "have their offsets; a Kafka has them as they were, and in logstore serve their members "
        "join again, by the classic protocol",
    ),
    "not carried: share groups": (
        "share groups",
        "are in the logs: a Kafka has them once share.version is 1 (kafka-features.sh upgrade), "
        "and logstore serve does not",
    ),
}
"""A Kafka has groups that our brokers do not carry over when they adopt a directory."""


_UNREAD = (
    "perhaps never read",
    "empty logs: the source once refused them or did not answer, says mirror-report.jsonl, and may "
    "have records",
)


@dataclass(frozen=True, slots=True)
class PromotionRules:
    """
    Attributes:
        cluster_id: of the new cluster; a new one by default.
        node_id: of its only node; that of ``meta.properties`` by default, else 1.
        partial: promote although something is missing, which stays offline.
        dry_run: change nothing, and say what would be.
        listeners: write a ``server.properties`` for a Kafka that listens there.
    Raises:
        ConfigError: an id is none.
    """

    cluster_id: str | None = None
    node_id: int | None = None
    partial: bool = False
    dry_run: bool = False
    listeners: Listeners | None = None

    def __post_init__(self) -> None:
        if self.cluster_id is not None:
            try:
                topic_id_from_text(self.cluster_id)
            except ValueError:
                raise ConfigError(
                    f"{self.cluster_id[:80]!r} is no cluster id: give 22 characters, as "
                    "kafka-storage.sh random-uuid does"
                ) from None
        if self.node_id is not None and not 0 <= self.node_id < 2**31:
            raise ConfigError(f"{self.node_id} is no node id")


class Promotion(NamedTuple):
    """What became of a directory.

    Attributes:
        promoted: False if nothing was changed, because of the findings or by a dry run.
        before: it had been promoted already.
        offline: how many of the partitions have no log here.
        next_producer_id: no producer of the new cluster gets one below it.
        findings: what is missing.
    """

    directory: str
    promoted: bool
    before: bool
    cluster_id: str
    node_id: int
    topics: int = 0
    partitions: int = 0
    offline: int = 0
    groups: int = 0
    offsets: int = 0
    transactional_ids: int = 0
    next_producer_id: int = 0
    ended: EndedTransactions = EndedTransactions((), ())
    findings: tuple[Remark, ...] = ()
    notes: tuple[Remark, ...] = ()
    server_properties: str | None = None

    @property
    def endings(self) -> tuple[Ending, ...]:
        return self.ended.endings


def promote(
    directory: str | os.PathLike[str],
    rules: PromotionRules | None = None,
    *,
    storage: Storage | None = None,
    clock: Clock | None = None,
) -> Promotion:
    """Make a cluster of one log directory.

    Raises:
        ConfigError: it is no log directory, or a cluster's already; nothing was changed.
        LogDirLockedError: a mirror or a broker has it open.
        StorageFailedError, OSError, CheckpointError: the disk refused; repeat it.
    """
    rules = rules or PromotionRules()
    storage, now_ms = storage or LocalStorage(), (clock or SystemClock()).wall_ms()
    path = absolute_path(storage, directory).rstrip("/") or "/"
    if rules.dry_run:
        storage = OverlayStorage(storage)
    return _Promoter(path, rules, storage, now_ms).run()


class _Promoter:
    def __init__(self, path: str, rules: PromotionRules, storage: Storage, now_ms: int) -> None:
        self._path, self._rules = path, rules
        self._storage, self._now_ms = storage, now_ms
        self._mirror = MirrorFile.of(path, storage)

    def run(self) -> Promotion:
        info = self._storage.info(self._path)
        if info is None or not info.is_dir:
            raise ConfigError(f"{self._path}: no such directory")
        self._refuse_what_has_others()
        meta = MetaPropertiesFile(os.path.join(self._path, META_PROPERTIES), self._storage).read()
        mirror = self._mirror.read()
        follows = mirror is not None and mirror.state is not MirrorState.PROMOTED
        if self._storage.info(metadata_dir(self._path)) is not None and not follows:
            return self._already(meta, mirror is not None)
        node_id = self._node_id(meta)
        cluster = plan_adoption(
            [self._path],
            OverlayStorage(self._storage),
            AdoptionRules(self._now_ms),
            node_id,
            by_metadata=False,
        )
        found = self._summary(cluster, node_id)
        if found.findings and not self._rules.partial:
            return found
        counts = {name: len(topic.partitions) for name, topic in cluster.topics.items()}
        properties = self._server_properties(node_id, counts)
        ended = self._carry_out(cluster, found, properties)
        return found._replace(
            promoted=not self._rules.dry_run,
            ended=ended,
            server_properties=None if properties is None else self._properties_path,
        )

    def _refuse_what_has_others(self) -> None:
        """The home of brokers passes for a log directory: that of ``broker-0`` for a partition's,
        while its own lock is below.

        Raises:
            ConfigError: a log directory lies in it.
        """
        for each in self._storage.scan_dir(self._path):
            path = os.path.join(self._path, each.name)
            if each.is_dir and self._storage.info(os.path.join(path, META_PROPERTIES)) is not None:
                raise ConfigError(
                    f"{self._path} is no log directory, but has one: give {path}; nothing was "
                    "changed"
                )

    def _already(self, meta: MetaProperties | None, was_promoted: bool) -> Promotion:
        """
        Raises:
            ConfigError: another promotion is wanted than there was, or it was none of ours.
            CorruptDataError: its metadata cannot be read.
        """
        known = (None, -1) if meta is None else (meta.cluster_id, meta.node_id)
        if not was_promoted:
            raise ConfigError(
                f"{self._path} is the directory of a cluster already ({known[0]}): a Kafka starts "
                "on it, or logstore serve --adopt; nothing was changed"
            )
        wanted = self._rules.cluster_id or known[0], self._rules.node_id
        if wanted[0] != known[0] or wanted[1] not in (None, known[1]):
            raise ConfigError(
                f"{self._path} was promoted already, as node {known[1]} of cluster {known[0]}"
            )
        found = Promotion(
            self._path, False, True, known[0] or "", -1 if known[1] is None else known[1]
        )
        image = read_cluster_metadata(self._path, self._storage)
        topics = {} if image is None else image.topics
        counts = {name: len(topic.partitions) for name, topic in topics.items()}
        properties = self._server_properties(found.node_id, counts)
        if properties is None:
            return found
        replace_file(self._storage, self._properties_path, properties)
        return found._replace(server_properties=self._properties_path)

    def _node_id(self, meta: MetaProperties | None) -> int:
        if self._rules.node_id is not None:
            return self._rules.node_id
        known = None if meta is None else meta.node_id
        return DEFAULT_NODE if known is None or known < 0 else known

    def _summary(self, cluster: AdoptedCluster, node_id: int) -> Promotion:
        report = cluster.report
        remarks = [
            Remark(*_OF_GROUPS.get(each.kind, (each.kind, each.text)), each.names, each.count)
            for each in report.notes
            if each.kind not in _SETTLED
        ]
        tiered = [n for n, t in cluster.topics.items() if t.config.get(_TIERED) == "true"]
        if tiered:
            remarks.append(Kind.TIERED.note(tiered))
        unread = self._unread(cluster)
        if unread:
            remarks.append(Remark(*_UNREAD, tuple(unread), len(unread)))
        return Promotion(
            self._path,
            False,
            False,
            self._rules.cluster_id or topic_id_to_text(new_uuid(random_id)),
            node_id,
            report.topics,
            report.partitions,
            report.partitions - report.led,
            report.groups,
            report.offsets,
            report.transactional_ids,
            cluster.producer_id + 1 + UNSEEN_PRODUCERS,
            findings=tuple(each for each in remarks if each.kind in FINDINGS),
            notes=tuple(each for each in remarks if each.kind not in FINDINGS),
        )

    def _unread(self, cluster: AdoptedCluster) -> list[str]:
        """Empty logs of a mirror that may stand for ones with records."""
        said = troubled(self._path, self._storage)
        return [
            name
            for tp, state in cluster.states.items()
            if state.leader != NO_LEADER and ((tp.topic, None) in said or tp in said)
            for name in [filenames.partition_dir_name(tp)]
            for log in [self._storage.info(os.path.join(self._path, name, f"{0:020}.log"))]
            if log is not None and log.size == 0
        ]

    # -- what is written -------------------------------------------------------------------------

    def _carry_out(
        self, cluster: AdoptedCluster, found: Promotion, properties: bytes | None
    ) -> EndedTransactions:
        """Each step may be the last one of a process that is killed: the next one does all again,
        and finds done what is done."""
        storage, path = self._storage, self._path
        epochs = {tp: state.leader_epoch + UNSEEN_ELECTIONS for tp, state in cluster.states.items()}
        led = {tp for tp, state in cluster.states.items() if state.leader != NO_LEADER}
        if storage.info(metadata_dir(path)) is not None:  # of the source, whose copy this was
            aside = filenames.stray_dir_name(_METADATA_TP, random_id())
            storage.rename(metadata_dir(path), os.path.join(path, aside))
            storage.sync_dir(path)
        mirror = self._mirror.read()
        if mirror is not None:
            self._mirror.write(replace(mirror, state=MirrorState.PROMOTED))
        ended = self._end_transactions(cluster, epochs, led)
        lock = storage.lock(os.path.join(path, LOCK))
        try:
            directory_id = new_uuid(random_id)
            self._write_meta(found, directory_id)
            image = _image(cluster, epochs, led, found)
            self._write_metadata(image, {found.node_id: directory_id})
            if properties is not None:  # a Kafka that starts without metadata sets all logs aside
                replace_file(storage, self._properties_path, properties)
        finally:
            lock.release()
        return ended

    def _end_transactions(
        self,
        cluster: AdoptedCluster,
        epochs: Mapping[TopicPartition, int],
        led: set[TopicPartition],
    ) -> EndedTransactions:
        keeps_all = BrokerConfig(producer_id_expiration_ms=MAX_LONG, log_cleaner_enable=False)
        with LogManager(
            self._path,
            broker_config=keeps_all,
            storage=self._storage,
            background=False,
            owner=ManagerOwner(replicated=True),
        ) as manager:
            logs = {tp: log for tp, log in manager.logs.items() if tp in led}
            later = [log for tp, log in logs.items() if log.epochs.latest >= epochs[tp]]
            if logs.keys() != led or later:
                raise ConfigError(f"{self._path} was changed meanwhile: repeat the promotion")
            coordinator_epoch = max(
                [0, *(log.producers.largest_coordinator_epoch() for log in logs.values())]
            )
            ended = end_transactions(logs, epochs, coordinator_epoch, self._now_ms)
            for log in logs.values():
                log.replica.update_high_watermark(log.log_end_offset)
        return ended

    def _write_meta(self, found: Promotion, directory_id: uuid.UUID) -> None:
        file = MetaPropertiesFile(os.path.join(self._path, META_PROPERTIES), self._storage)
        file.write(MetaProperties(1, found.cluster_id, found.node_id, directory_id), self._now_ms)

    @property
    def _properties_path(self) -> str:
        return os.path.join(self._path, SERVER_PROPERTIES)

    def _server_properties(self, node_id: int, counts: Mapping[str, int]) -> bytes | None:
        """
        Raises:
            ConfigError: the file is there, and is another.
        """
        if self._rules.listeners is None:
            return None
        wanted = server_properties(self._path, node_id, self._rules.listeners, counts)
        is_there = self._storage.info(self._properties_path) is not None
        if is_there and self._storage.read_file(self._properties_path, _LARGEST) != wanted.encode():
            raise ConfigError(
                f"{self._properties_path} is there already, and says something else, such as "
                "another --listener: give that, or move it away; nothing was changed"
            )
        return wanted.encode()

    def _write_metadata(self, image: ClusterImage, directories: Mapping[int, uuid.UUID]) -> None:
        """Under a name that each broker removes, until it is whole."""
        storage = self._storage
        made = filenames.delete_dir_name(_METADATA_TP, random_id())
        unfinished = os.path.join(self._path, made)
        storage.make_dir(unfinished)
        write_metadata_log(storage, unfinished, image, directories, self._now_ms)
        storage.sync_dir(unfinished)
        storage.rename(unfinished, metadata_dir(self._path))
        storage.sync_dir(self._path)


def _image(
    cluster: AdoptedCluster,
    epochs: Mapping[TopicPartition, int],
    led: set[TopicPartition],
    found: Promotion,
) -> ClusterImage:
    """All replicas are on the one node. What has no log here is on another one, which nobody knows:
    an empty log must not stand for it."""
    node, absent = found.node_id, 1 if found.node_id == 0 else 0
    topics: dict[str, TopicImage] = {}
    configs: dict[tuple[int, str], Mapping[str, str]] = {}
    for name, topic in cluster.topics.items():
        partitions = {}
        for number in topic.partitions:
            tp = TopicPartition(name, number)
            replicas = (node if tp in led else absent,)
            # The controller elects the leader, in the epoch above, when the node is there.
            partitions[number] = PartitionRegistration(replicas, replicas, NO_LEADER, epochs[tp], 0)
        topics[name] = TopicImage(name, topic.topic_id, partitions)
        own = {key: value for key, value in topic.config.items() if key != _TIERED}
        if own:
            configs[TOPIC_RESOURCE, name] = own
    records = sum(1 + len(topic.partitions) for topic in topics.values())
    end = 1 + records + sum(map(len, configs.values()))
    producer_id = found.next_producer_id
    return ClusterImage(topics, configs, producer_id, {}, end, end, ())
