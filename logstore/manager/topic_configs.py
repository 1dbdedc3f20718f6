"""The configuration of each topic: given at the start, stored with the topic, or the default."""

from __future__ import annotations

import posixpath
import weakref
from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

from checkpoints.errors import MalformedCheckpointError
from checkpoints.loggers import get_logger
from checkpoints.topic_properties import TOPIC_PROPERTIES, TopicProperties, TopicPropertiesFile
from logstore.common.config import LogConfig
from logstore.common.errors import ConfigError
from logstore.common.locks import Rank, make_lock
from logstore.log import PartitionLog
from logstore.storage.base import Storage

logger = get_logger(__name__)

TopicConfig: TypeAlias = LogConfig | Mapping[str, object]
"""A whole configuration, or the Kafka keys that differ from the manager's."""


class TopicConfigs:
    """The configurations of all topics.

    They are stored in ``topic.properties`` of each partition. A change needs a claim on the topic.

    Args:
        given: configurations that replace the stored ones, by topic.
        replicated: a controller keeps them, and gives them with each role. The files are copies
            for whoever opens the directory without it.
    """

    def __init__(
        self, default: LogConfig, given: Mapping[str, LogConfig], storage: Storage, replicated: bool
    ) -> None:
        self._default = default
        self._given = frozenset(given)
        self._configs = dict(given)
        self._stored: dict[str, TopicProperties] = {}
        self._storage = storage
        self._replicated = replicated
        self._copied: weakref.WeakSet[PartitionLog] = weakref.WeakSet()
        self._lock = make_lock(Rank.MANAGER)

    def of(self, topic: str) -> LogConfig:
        return self._configs.get(topic, self._default)

    def resolve(self, config: TopicConfig) -> LogConfig:
        """
        Raises:
            ConfigError: an unknown key, or a value outside its bounds.
        """
        if isinstance(config, LogConfig):
            return config
        return _resolved(self._default, tuple(config.items()))

    def stored(self, topic: str) -> TopicProperties | None:
        """The properties that a new partition of the topic has to store."""
        return self._stored.get(topic)

    def next(self, topic: str, config: TopicConfig) -> TopicProperties | None:
        """The properties that partitions have to store for a change; None if none are stored."""
        before = self._stored.get(topic)
        if self._replicated:
            # Also what a broker sets for all topics: who opens the directory alone cannot know it.
            properties = _differences(self.resolve(config))
        elif isinstance(config, LogConfig):
            properties = config.to_properties()
        else:
            properties = {key: _text(value) for key, value in config.items()}
        if before is not None and before.values == properties:
            return before
        return TopicProperties(properties, 1 if before is None else before.revision + 1)

    def set(self, topic: str, config: LogConfig, stored: TopicProperties | None) -> None:
        self._configs[topic] = config
        if stored is not None:
            self._stored[topic] = stored

    def forget(self, topic: str) -> None:
        """Forget a topic whose last partition is gone."""
        self._configs.pop(topic, None)
        self._stored.pop(topic, None)

    # -- copies of what a controller keeps -----------------------------------------------------

    def is_copied(self, log: PartitionLog) -> bool:
        """Whether the file of a replica has its configuration."""
        return log in self._copied

    def copy(self, log: PartitionLog, config: TopicConfig) -> None:
        """Write the file of a replica, if it does not say ``config`` already.

        Raises:
            CheckpointFailedError: the medium refused.
        """
        topic = log.topic_partition.topic
        wanted = self.next(topic, config)
        self.set(topic, self.resolve(config), wanted)
        self._copied.discard(log)
        if wanted is not None:
            file = self.file(log.directory)
            try:
                known = file.read()
            except MalformedCheckpointError:
                known = None
            if known != wanted:
                file.write(wanted)
        self._copied.add(log)

    # -- files ---------------------------------------------------------------------------------

    def file(self, directory: str) -> TopicPropertiesFile:
        return TopicPropertiesFile(posixpath.join(directory, TOPIC_PROPERTIES), self._storage)

    def load(self, topic: str, directory: str) -> LogConfig:
        """The configuration with which to load one partition (F-237). Call ``settle`` at the end.

        Raises:
            MalformedCheckpointError: the stored configuration is malformed. The default might
                delete what the topic keeps, so nothing is guessed, unless a controller has it.
            CheckpointFailedError: the medium refused.
        """
        given = self._configs[topic] if topic in self._given else None
        file = self.file(directory)
        try:
            stored = file.read()
            if stored is None:
                return given or self._default
            config = self._default.with_properties(stored.values)
        except (MalformedCheckpointError, ConfigError) as error:
            if given is not None:
                return given
            if self._replicated:
                logger.warning("%s; the controller has the configuration", error)
                return self._default
            if isinstance(error, MalformedCheckpointError):
                raise
            raise MalformedCheckpointError(file.path, 0, "", str(error)) from None
        with self._lock:
            known = self._stored.get(topic)
            if known is None or stored.revision > known.revision:
                self.set(topic, given or config, stored)
        return given or config


@lru_cache(256)
def _resolved(default: LogConfig, own: tuple[tuple[str, object], ...]) -> LogConfig:
    """One value for all partitions of a topic, however often they change roles."""
    return default.with_properties(dict(own))


@lru_cache(256)
def _differences(config: LogConfig) -> dict[str, str]:
    """Return what differs from the defaults that everybody knows; not to be changed."""
    usual = LogConfig().to_properties()
    return {key: value for key, value in config.to_properties().items() if value != usual[key]}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return str(value)
