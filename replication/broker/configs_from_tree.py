"""The configurations of topics while a real Kafka is the controller (X-13).

In ZooKeeper mode Kafka's controller does not send them: each broker reads them from the tree, and
hears of changes by notifications there. So does ours: what the controller of a real Kafka says of a
topic gets its configuration here, before it is carried out. A controller of ours sends it along.

Nor does the first that Kafka's controller says have everything: one that begins names the brokers
first, without partitions. Whether there are any is in the tree.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping

from checkpoints.loggers import get_logger
from replication.common.limited_log import LimitedLogger
from replication.common.messages import (
    LEADER_DURING_DELETE,
    LeaderAndIsrRequest,
    PartitionChange,
    UpdateMetadataRequest,
)
from replication.common.retrying import Backoff, Reaction, RetryingCall, Settle
from replication.common.runtime import Actor, Runtime
from replication.coordination import (
    CoordinationError,
    Coordinator,
    CorruptNodeError,
    EventKind,
    SessionExpiredError,
    WatchEvent,
    nodes,
)
from replication.replica_manager.metadata_cache import MetadataCache

logger = get_logger(__name__)

BACKOFF = Backoff(50, 1000)

Told = LeaderAndIsrRequest | UpdateMetadataRequest
OnChange = Callable[[str, Mapping[str, str]], None]


class ConfigsFromTree:
    """What one session has read. It reads on the actor of the broker's membership.

    Args:
        session: the present one, None without.
        metadata: told whether partitions will follow.
        on_change: called on the actor with a topic and its changed configuration.
    """

    def __init__(
        self,
        runtime: Runtime,
        actor: Actor,
        session: Callable[[], Coordinator | None],
        metadata: MetadataCache,
        on_change: OnChange,
    ) -> None:
        self._actor = actor
        self._session = session
        self._metadata = metadata
        self._on_change = on_change
        self._log = LimitedLogger(logger, runtime.clock)
        self._watched: Coordinator | None = None
        self._known: dict[str, tuple[uuid.UUID | None, Mapping[str, str]]] = {}
        self._read_through = ""  # the latest notification that was read
        self._missed = False  # notifications may be missing
        self._call = RetryingCall(runtime, actor, BACKOFF, self._try_to_read)

    def complete(self, told: Told, then: Callable[[Told | None], None]) -> None:
        """Add the configurations of topics to what a controller says; None if they cannot be read.

        ``then`` is called on the actor.
        """
        self._actor.post(lambda: then(self._completed(told)))

    def _completed(self, told: Told) -> Told | None:
        try:
            self._watch()
            if not told.partitions:
                self._metadata.awaits_partitions = self._has_partitions()
            return told._replace(partitions=tuple(map(self._with_config, told.partitions)))
        except CoordinationError as error:
            self._log.warning("configurations of topics are not read: %s", error)
            return None

    def _watch(self) -> None:
        session = self._session()
        if session is None:
            raise SessionExpiredError("no session with the coordinator")
        if session is not self._watched:
            session.watch(nodes.CONFIG_CHANGES, self._notified)
            self._watched, self._missed = session, True
        if self._missed:
            self._read_all(session)

    def _has_partitions(self) -> bool:
        """Whether a partition has had a leader, so that the controller will name it. One that is
        being deleted is not named."""
        session = self._watched
        assert session is not None
        deleting = {*session.children(nodes.DELETE_TOPICS)}
        return any(
            session.children(f"{nodes.topic_path(topic)}/partitions")
            for topic in session.children(nodes.TOPICS)
            if topic not in deleting
        )

    def _with_config(self, change: PartitionChange) -> PartitionChange:
        topic = change.tp.topic
        if change.registration.leader == LEADER_DURING_DELETE:
            self._known.pop(topic, None)
            return change
        known = self._known.get(topic)
        if known is None or known[0] != change.topic_id:  # a new topic has no notification
            known = self._known[topic] = change.topic_id, self._config(topic)
        return change._replace(config=known[1])

    def _config(self, topic: str) -> Mapping[str, str]:
        assert self._watched is not None
        try:
            node = self._watched.get(nodes.topic_config_path(topic))
        except ValueError:  # no topic has such a name: who carries the order out refuses it
            return {}
        try:
            return {} if node is None else nodes.decode_topic_config(topic, node.data)
        except CorruptNodeError as error:
            self._log.error("topic %s has the defaults: %s", topic, error, about=topic)
            return {}

    # -- changes ---------------------------------------------------------------------------------

    def _notified(self, event: WatchEvent) -> None:
        if event.kind is EventKind.MISSED:
            self._missed = True
        if event.kind is not EventKind.DELETED:
            self._actor.post(self._call.renew)

    def _try_to_read(self, settle: Settle) -> None:
        session = self._session()
        if session is None or session is not self._watched:
            settle(Reaction.DONE)  # the next session reads everything
            return
        try:
            if self._missed:
                self._read_all(session)
            else:
                self._read_notifications(session)
        except SessionExpiredError:
            settle(Reaction.DONE)
        except CoordinationError as error:
            self._log.warning("configurations of topics are not read: %s", error)
            settle(Reaction.AGAIN)
        else:
            settle(Reaction.DONE)

    def _read_notifications(self, session: Coordinator) -> None:
        later = [n for n in session.children(nodes.CONFIG_CHANGES) if n > self._read_through]
        for name in later:
            path = f"{nodes.CONFIG_CHANGES}/{name}"
            node = session.get(path)
            try:
                topic = None if node is None else nodes.decode_config_change(path, node.data)
            except CorruptNodeError as error:
                self._log.error("a notification is ignored: %s", error, about=nodes.CONFIG_CHANGES)
            else:
                if topic is not None:
                    self._read(topic)
            self._read_through = name

    def _read_all(self, session: Coordinator) -> None:
        self._missed = False
        try:
            self._read_through = max(session.children(nodes.CONFIG_CHANGES), default="")
            for topic in [*self._known]:
                self._read(topic)
        except CoordinationError:
            self._missed = True
            raise

    def _read(self, topic: str) -> None:
        if topic not in self._known:
            return
        topic_id, before = self._known[topic]
        config = self._config(topic)
        if config != before:
            self._known[topic] = topic_id, config
            self._on_change(topic, config)
