"""What the controller reads from and writes to the coordinator's tree.

Every write is a transaction which demands that ``/controller_epoch`` is still ours: a controller
that was replaced, and has not yet heard of it, changes nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from checkpoints.loggers import get_logger
from logstore.common.config import LogConfig
from replication.common.state import (
    LiveBroker,
    PartitionRegistration,
    TopicAssignment,
    TopicPartition,
)
from replication.controller.context import Changes, ControllerContext
from replication.coordination import (
    BadVersionError,
    Check,
    Coordinator,
    CorruptNodeError,
    Create,
    Delete,
    Node,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Op,
    Set,
    nodes,
)

logger = get_logger(__name__)

CHUNK = 400  # nodes in a transaction: about 100 kB, a tenth of ZooKeeper's limit

OnRead: TypeAlias = Callable[[TopicPartition, PartitionRegistration | None], None]

LOST_EPOCH = -2  # differs from every epoch, the unknown one included


class DeposedError(Exception):
    """Another controller has begun its term: nothing was written."""


class ConflictError(Exception):
    """A node differs from the context. Nothing was written; read it again."""


class Term(NamedTuple):
    """The time of one controller; ``version`` is that of the epoch's node."""

    epoch: int
    version: int


class ControllerStore:
    """Access to the tree in one session. All methods raise as those of `Coordinator`."""

    def __init__(self, coordinator: Coordinator, defaults: LogConfig | None = None) -> None:
        """``defaults`` are those of `ControllerContext`."""
        self._coordinator = coordinator
        self._defaults = defaults
        self.term = Term(-1, -1)

    # -- election ------------------------------------------------------------------------

    def try_become_controller(self, broker_id: int, timestamp_ms: int) -> bool:
        """Become the controller unless there is one. True if this session is the controller.

        That holds also after a first try whose answer was lost, because the node has an owner. The
        epoch is read before the node: if the node is ours then, no other term has begun since, and
        the epoch is ours or an older one, with which every write is refused.
        """
        coordinator = self._coordinator
        self._create_missing([*nodes.PERSISTENT_PATHS])
        while True:
            node = coordinator.get(nodes.CONTROLLER_EPOCH)
            if node is None:
                self._create_missing([nodes.CONTROLLER_EPOCH], nodes.encode_controller_epoch(0))
                continue
            epoch = nodes.decode_controller_epoch(node.data)
            held = coordinator.get(nodes.CONTROLLER)
            if held is not None:
                self.term = Term(epoch, node.version)
                return held.ephemeral_owner == coordinator.session_id
            ops: list[Op] = [
                Create(
                    nodes.CONTROLLER,
                    nodes.encode_controller(broker_id, timestamp_ms),
                    ephemeral=True,
                ),
                Set(nodes.CONTROLLER_EPOCH, nodes.encode_controller_epoch(epoch + 1), node.version),
            ]
            try:
                coordinator.transact(ops)
            except (NodeExistsError, BadVersionError):
                continue  # another broker was faster; read again
            self.term = Term(epoch + 1, node.version + 1)
            return True

    def is_deposed(self) -> bool:
        held = self._coordinator.get(nodes.CONTROLLER)
        node = self._coordinator.get(nodes.CONTROLLER_EPOCH)
        ours = held is not None and held.ephemeral_owner == self._coordinator.session_id
        return not ours or node is None or node.version != self.term.version

    def _create_missing(self, paths: Iterable[str], data: bytes = b"") -> None:
        for path in paths:
            if self._coordinator.get(path) is None:
                try:
                    self._coordinator.create(path, data, parents=True)
                except NodeExistsError:
                    continue

    # -- reading ---------------------------------------------------------------------------------

    def brokers(self) -> dict[int, LiveBroker]:
        """The registered incarnations (R-63)."""
        found = {}
        for name, node in self._children(nodes.BROKER_IDS):
            broker = int(name)
            try:
                found[broker] = LiveBroker(nodes.decode_broker(broker, node.data), node.czxid)
            except CorruptNodeError as error:
                logger.error("broker %s counts as dead: %s", broker, error)
        return dict(sorted(found.items()))

    def begin(self) -> ControllerContext:
        """A context with the remembered broker epochs and all topics unread."""
        context = ControllerContext(self._defaults)
        for name, node in self._children(nodes.BROKER_EPOCHS):
            broker = int(name)
            try:
                context.remembered[broker] = nodes.decode_broker_epoch(broker, node.data)
            except CorruptNodeError as error:
                logger.error("broker %s counts as stopped uncleanly: %s", broker, error)
                context.remembered[broker] = LOST_EPOCH
        context.deleted = self._deleted()[0]
        context.unread_topics = dict.fromkeys(self._coordinator.children(nodes.TOPICS))
        return context

    def read(self, context: ControllerContext, on_read: OnRead = lambda tp, before: None) -> None:
        """Read what is unread. After a lost answer only the rest is read again.

        Nodes that are gone leave the context. So do nodes that cannot be read, which are then
        ignored.

        Args:
            on_read: called with each partition and its previous registration.
        """
        for name in [*context.unread_topics]:
            self._read_topic(context, name)
            del context.unread_topics[name]
        for tp in [*context.unread]:
            before = context.partitions.get(tp)
            if tp.topic in context.topics:
                self._read_partition(context, tp)
                on_read(tp, before)
            del context.unread[tp]

    def _read_topic(self, context: ControllerContext, name: str) -> None:
        before = context.topics.get(name)
        known = before.assignment.partitions if before is not None else {}
        try:
            found = self.topic(name)
        except CorruptNodeError as error:
            logger.error("topic %s is left alone: %s", name, error)
            if before is not None:
                context.remove_topic(name)
            context.unreadable[name] = None
            return
        if found is None:
            context.unreadable.pop(name, None)
            if before is not None:
                context.remove_topic(name)
            return
        context.put_topic(name, *found)
        # A changed configuration is sent like any change of a partition.
        same = before is not None and before.assignment.config == found[0].config
        new = (number for number in found[0].partitions if not same or number not in known)
        context.unread.update((TopicPartition(name, number), None) for number in new)

    def _read_partition(self, context: ControllerContext, tp: TopicPartition) -> None:
        replicas = context.topics[tp.topic].assignment.partitions.get(tp.partition, ())
        try:
            state = self.registration(tp, replicas)
        except CorruptNodeError as error:
            logger.error("%s is left alone: %s", tp, error)
            context.leave_out(tp)
            return
        if state is not None:
            context.put(tp, state)
        elif tp in context.partitions:
            context.leave_out(tp)

    def read_deletions(self, context: ControllerContext) -> None:
        """Read which topics are to be deleted. All topics must be read before."""
        for name in self._coordinator.children(nodes.DELETE_TOPICS):
            if name in context.topics:
                context.start_deletion(name)
            elif name not in context.unreadable:
                self.remove([nodes.delete_topic_path(name)])

    def topic(self, name: str) -> tuple[TopicAssignment, int] | None:
        """A topic and its node's version."""
        node = self._coordinator.get(nodes.topic_path(name))
        if node is None:
            return None
        found = self._coordinator.get(nodes.topic_config_path(name))
        config = {} if found is None else nodes.decode_topic_config(name, found.data)
        return nodes.decode_topic(name, node.data, config), node.version

    def registration(
        self, tp: TopicPartition, replicas: tuple[int, ...]
    ) -> PartitionRegistration | None:
        node = self._coordinator.get(nodes.partition_state_path(tp))
        if node is None:
            return None
        return nodes.decode_partition(tp, node.data, node.version, replicas)

    def _children(self, path: str) -> Iterator[tuple[str, Node]]:
        for name in self._coordinator.children(path):
            node = self._coordinator.get(f"{path}/{name}")
            if node is None:
                continue  # gone since
            if not (name.isascii() and name.isdigit()):
                logger.error("%s/%s is no node of a broker", path, name)
                continue
            yield name, node

    # -- writing ---------------------------------------------------------------------------------

    def write(
        self, context: ControllerContext, changes: Changes, topics: Mapping[str, TopicAssignment]
    ) -> None:
        """Write registrations, first ones and successors, and topic nodes in one step.

        Raises:
            DeposedError, ConflictError
        """
        ops: list[Op] = [
            Set(nodes.topic_path(name), nodes.encode_topic(topic), context.topics[name].version)
            for name, topic in topics.items()
        ]
        first = [tp for tp in changes if tp not in context.partitions]
        for topic_name in dict.fromkeys(tp.topic for tp in first):
            parent = _partitions_path(topic_name)
            if self._coordinator.get(parent) is None:
                ops.append(Create(parent))
        ops += [Create(nodes.partition_path(tp)) for tp in first]
        for tp, registration in changes.items():
            data = nodes.encode_partition(registration)
            path, known = nodes.partition_state_path(tp), context.partitions.get(tp)
            ops.append(
                Create(path, data) if known is None else Set(path, data, known.partition_epoch)
            )
        self._transact(ops)

    def remember(self, epochs: Mapping[int, int]) -> None:
        """Store processed broker epochs for every later controller."""
        ops: list[Op] = []
        for broker, epoch in epochs.items():
            path = nodes.broker_epoch_path(broker)
            data = nodes.encode_broker_epoch(epoch)
            known = self._coordinator.get(path) is not None
            ops.append(Set(path, data) if known else Create(path, data))
        self._transact(ops)

    def create_topic(self, name: str, topic: TopicAssignment) -> None:
        """Create a topic's node and configuration. Partitions get their states with ``write``."""
        config_path = nodes.topic_config_path(name)
        config = nodes.encode_topic_config(topic.config)
        left_over = self._coordinator.get(config_path) is not None
        self._transact(
            [
                Create(nodes.topic_path(name), nodes.encode_topic(topic)),
                Create(_partitions_path(name)),
                Set(config_path, config) if left_over else Create(config_path, config),
            ]
        )

    def alter_topic(self, name: str, config: Mapping[str, str], version: int) -> None:
        """Change the configuration.

        ``version`` of the topic's node excludes a later topic of that name.
        """
        path, data = nodes.topic_config_path(name), nodes.encode_topic_config(config)
        known = self._coordinator.get(path) is not None
        self._transact(
            [
                Check(nodes.topic_path(name), version),
                Set(path, data) if known else Create(path, data),
            ]
        )

    def mark_deleted(self, name: str) -> None:
        """Mark a topic for deletion by this controller or a later one."""
        path = nodes.delete_topic_path(name)
        if self._coordinator.get(path) is None:
            self._transact([Create(path)])

    def delete_topic(self, name: str, topic_id: uuid.UUID) -> list[uuid.UUID]:
        """Delete all nodes of a topic, the mark last. Continues an earlier try.

        Its id is noted with that step: a log that comes back later has no place any more. Returns
        all such ids.
        """
        parent = _partitions_path(name)
        paths: list[str] = []
        for partition in self._coordinator.children(parent):
            below = f"{parent}/{partition}"
            paths += [f"{below}/{child}" for child in self._coordinator.children(below)]
            paths.append(below)
            if len(paths) >= CHUNK:  # now, so that a lost answer does not discard what was read
                self._delete(paths)
                paths = []
        last = (
            parent,
            nodes.topic_path(name),
            nodes.topic_config_path(name),
            nodes.delete_topic_path(name),
        )
        paths += [path for path in last if self._coordinator.get(path) is not None]
        deleted, node = self._deleted()
        deleted = [*(each for each in deleted if each != topic_id), topic_id]
        data = nodes.encode_deleted_topics(deleted)
        note: Op = (
            Create(nodes.DELETED_TOPICS, data)
            if node is None
            else Set(nodes.DELETED_TOPICS, data, node.version)
        )
        self._transact([*(Delete(path) for path in paths), note])
        return deleted

    def _deleted(self) -> tuple[list[uuid.UUID], Node | None]:
        node = self._coordinator.get(nodes.DELETED_TOPICS)
        try:
            return [] if node is None else nodes.decode_deleted_topics(node.data), node
        except CorruptNodeError as error:
            logger.error("deleted topics are not known any more: %s", error)
            return [], node

    def _delete(self, paths: Sequence[str]) -> None:
        if paths:
            self._transact([Delete(path) for path in paths])

    # -- notifications ---------------------------------------------------------------------------

    def isr_changes(self) -> tuple[list[str], list[TopicPartition]]:
        """Paths of the notification nodes, and the partitions that brokers have changed."""
        paths, found = [], []
        for path, data in self._notes(nodes.ISR_CHANGES):
            paths.append(path)
            try:
                found += nodes.decode_isr_changes(path, data)
            except CorruptNodeError as error:
                logger.error("dropped: %s", error)
        return paths, found

    def log_dir_events(self) -> tuple[list[str], list[int]]:
        """Paths of the notification nodes, and the brokers that lost a log directory (R-66)."""
        paths, found = [], []
        for path, data in self._notes(nodes.LOG_DIR_EVENTS):
            paths.append(path)
            try:
                found.append(nodes.decode_log_dir_event(path, data))
            except CorruptNodeError as error:
                logger.error("dropped: %s", error)
        return paths, found

    def remove(self, paths: Sequence[str]) -> None:
        """Remove processed notifications."""
        for path in paths:
            try:
                self._coordinator.delete(path)
            except NoNodeError:
                continue

    def _notes(self, parent: str) -> Iterator[tuple[str, bytes]]:
        for name in self._coordinator.children(parent):
            node = self._coordinator.get(f"{parent}/{name}")
            if node is not None:
                yield f"{parent}/{name}", node.data

    def _transact(self, ops: Sequence[Op]) -> None:
        try:
            self._coordinator.transact([Check(nodes.CONTROLLER_EPOCH, self.term.version), *ops])
        except (BadVersionError, NoNodeError, NodeExistsError, NotEmptyError) as error:
            if self.is_deposed():
                raise DeposedError(str(error)) from error
            raise ConflictError(str(error)) from error


def _partitions_path(topic: str) -> str:
    return f"{nodes.topic_path(topic)}/partitions"
