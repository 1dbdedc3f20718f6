"""Log directories as a backup sees them: read beside the broker that writes them.

Files are read as ``directory`` reads them: by names that two listings agree on, and without a lock.
"""

from __future__ import annotations

import os
import posixpath
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from checkpoints import (
    META_PROPERTIES,
    OVERRIDES_ALONE,
    TOPIC_PROPERTIES,
    MalformedCheckpointError,
    MetaPropertiesFile,
    TopicPartition,
    TopicProperties,
    TopicPropertiesFile,
    topic_id_from_text,
)
from checkpoints.printable import printable
from logstore.common.config import LogConfig
from logstore.common.errors import ConfigError, ResourceBusyError
from logstore.directory.errors import NotALogDirectoryError
from logstore.directory.layout import TopicFilter, list_partitions
from logstore.directory.listing import UNKNOWN, PartitionLayout
from logstore.directory.positions import with_rolls
from logstore.format import filenames
from logstore.format.reader import MAX_OFFSET
from logstore.storage.uri import join_uri, open_storage, shown

_NO_ID = uuid.UUID("5f3ec9d6-7c5b-5c0e-9f0a-4c2b4a0c7d11")
"""The namespace of ids for topics that have none, as those of a Kafka before 2.8."""

_LOOKS = 4  # at a partition that changes while it is listed

Note = Callable[[str], None]


class SourceOwner(NamedTuple):
    """Whose directories they are: ``cluster_id`` "" and ``node_id`` −1 where no file says it."""

    cluster_id: str
    node_id: int


@dataclass(slots=True)
class BackedTopic:
    topic: str
    topic_id: uuid.UUID
    properties: TopicProperties = field(default_factory=lambda: TopicProperties({}, 0))
    layouts: list[PartitionLayout] = field(default_factory=list)

    @property
    def partition_count(self) -> int:
        return max((layout.partition for layout in self.layouts), default=-1) + 1


class BackupSource:
    """The partitions below some log directories of one broker.

    Args:
        paths: log directories or their URIs.
        wanted: which topics count; all by default.
        broker: as for ``list_partitions``.
        topic_configs: configurations that are kept elsewhere, by topic; they go before
            ``topic.properties``.
        note: is told what is passed over.
    """

    def __init__(
        self,
        paths: Sequence[str],
        wanted: Callable[[str], bool] | None = None,
        *,
        broker: str = "",
        topic_configs: Mapping[str, Mapping[str, str]] | None = None,
        note: Note,
    ) -> None:
        self.paths, self._wanted, self._broker = list(paths), wanted, broker
        self._given, self._note = dict(topic_configs or {}), note
        self.busy: dict[TopicPartition, ResourceBusyError] = {}
        """Those that change faster than they can be listed."""

    def look(self) -> tuple[SourceOwner, list[BackedTopic]]:
        """Whose directories they are, and all topics with their partitions as listed now.

        Raises:
            NotALogDirectoryError, DuplicatePartitionError, ResourceBusyError, OSError: as
                ``list_partitions``.
            ConfigError: the directories are of several clusters or brokers, or a topic has two ids.
        """
        layouts = self._listed()
        owner = self._owner(layouts)
        found: dict[str, BackedTopic] = {}
        for layout in layouts:
            topic_id = _id_of(layout, owner.cluster_id)
            topic = found.setdefault(layout.topic, BackedTopic(layout.topic, topic_id))
            if topic.topic_id != topic_id:
                raise ConfigError(
                    f"{printable(layout.name)}: its topic id is another than that of the "
                    "topic's other partitions"
                )
            topic.layouts.append(layout)
            topic.properties = max(
                topic.properties,
                self._properties(layout),
                key=lambda each: (each.revision, bool(each.values)),
            )
        for name, topic in found.items():
            if name in self._given:
                topic.properties = TopicProperties(dict(self._given[name]), OVERRIDES_ALONE)
        return owner, list(found.values())

    def _listed(self) -> list[PartitionLayout]:
        """All partitions but those that are busy in each of a few looks."""
        looks = Counter[str]()
        while True:
            try:
                layouts = list_partitions(self.paths, self._filter(), broker=self._broker)
                return [with_rolls(layout, self._note) for layout in layouts]
            except ResourceBusyError as error:
                name = posixpath.basename(error.path.rstrip("/"))
                looks[name] += 1
                found = filenames.partition_dir(name)
                if found is None or looks[name] > _LOOKS:
                    raise
                if looks[name] == _LOOKS:
                    self.busy[found.topic_partition] = error

    def again(self, layout: PartitionLayout) -> PartitionLayout | None:
        """A partition as it is now; None if it is gone, or belongs to another topic."""
        tp = TopicPartition(layout.topic, layout.partition)

        def same(topic: str, partition: int, _: bool) -> bool:
            return (topic, partition) == tp

        try:
            found = list_partitions(self.paths, same, broker=self._broker)
        except NotALogDirectoryError:
            return None
        if not found or found[0].topic_id != layout.topic_id:
            return None
        return with_rolls(found[0], self._note)

    def _owner(self, layouts: Iterable[PartitionLayout]) -> SourceOwner:
        """Whose they are, by ``meta.properties``."""
        places = dict.fromkeys([*(os.path.dirname(each.uri) for each in layouts), *self.paths])
        found = {owner for owner in map(_owner, places) if owner is not None}
        for what, values in (
            ("clusters", {owner.cluster_id for owner in found} - {""}),
            ("brokers", {str(owner.node_id) for owner in found} - {"-1"}),
        ):
            if len(values) > 1:
                names = ", ".join(printable(value, 200) for value in sorted(values))
                raise ConfigError(f"the directories belong to several {what}: {names}")
        cluster = max((owner.cluster_id for owner in found), default="")
        return SourceOwner(cluster, max((owner.node_id for owner in found), default=UNKNOWN))

    def _filter(self) -> TopicFilter:
        def wanted(topic: str, partition: int, _: bool) -> bool:
            if (topic, partition) in self.busy:
                return False
            # The log of a KRaft node says what its cluster is, and is no topic of it.
            if topic == filenames.CLUSTER_METADATA:
                return False
            return self._wanted is None or self._wanted(topic)

        return wanted

    def _properties(self, layout: PartitionLayout) -> TopicProperties:
        storage, path = open_storage(join_uri(layout.uri, TOPIC_PROPERTIES))
        try:
            found = TopicPropertiesFile(path, storage).read()
        except MalformedCheckpointError as error:
            self._note(f"taken as missing: {error}")
            found = None
        return found or TopicProperties({}, 0)


def _id_of(layout: PartitionLayout, cluster_id: str) -> uuid.UUID:
    if layout.topic_id:
        return topic_id_from_text(layout.topic_id)
    return uuid.uuid5(_NO_ID, f"{cluster_id}/{layout.topic}")


def _owner(log_dir: str) -> SourceOwner | None:
    storage, path = open_storage(join_uri(log_dir, META_PROPERTIES))
    try:
        meta = MetaPropertiesFile(path, storage).read()
    except MalformedCheckpointError as error:
        raise ConfigError(f"{shown(log_dir)}: {error}") from error
    if meta is None:
        return None
    return SourceOwner(meta.cluster_id or "", UNKNOWN if meta.node_id is None else meta.node_id)


def log_config(properties: TopicProperties) -> LogConfig:
    """What of a topic's configuration indexes depend on; the defaults where it is not valid."""
    interval = properties.values.get("index.interval.bytes")
    try:
        return LogConfig.from_properties({"index.interval.bytes": interval} if interval else {})
    except ConfigError:
        return LogConfig()


def committed_end(layout: PartitionLayout) -> int:
    """The offset up to which a backup reads: the high watermark on file, if there is one."""
    return MAX_OFFSET if layout.high_watermark == UNKNOWN else layout.high_watermark


__all__ = [
    "BackedTopic",
    "BackupSource",
    "SourceOwner",
    "committed_end",
    "log_config",
]
