"""Reads and writes of the controller in the coordinator's tree.

Every write is a transaction which demands that ``/controller_epoch`` is still ours: a controller
that was replaced, and does not know it yet, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias
from uuid import UUID

from checkpoints.loggers import get_logger
from logstore.common.config import LogConfig
from logstore.common.errors import InvalidTopicError
from logstore.format.filenames import validate_topic
from replication.common.limited_log import LimitedLogger
from replication.common.state import (
    LiveBroker,
    PartitionRegistration,
    TopicAssignment,
    TopicPartition,
)
from replication.controller.context import Changes, ControllerContext, LeftOut
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
    NotPermittedError,
    Op,
    Set,
    nodes,
)

logger = get_logger(__name__)

CHUNK = 400  # nodes in a transaction: about 100 kB, a tenth of ZooKeeper's limit
NOTES = 400  # notifications that are read in a turn, so that other work comes between

OnRead: TypeAlias = Callable[[TopicPartition, PartitionRegistration | None], None]

LOST_EPOCH = -2  # differs from every epoch, the unknown one included


class DeposedError(Exception):
    """Another controller has begun its term: nothing was written."""


class ConflictError(Exception):
    """The node at ``path`` differs from the context. Nothing was written; read it again."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(reason)
        self.path = path


class Term(NamedTuple):
    """The time of one controller; ``version`` is that of the epoch's node."""

    epoch: int
    version: int


class ControllerStore:
    """Access to the tree in one session. All methods raise as those of `Coordinator`."""

    def __init__(
        self,
        coordinator: Coordinator,
        defaults: LogConfig | None = None,
        log: LimitedLogger | None = None,
    ) -> None:
        """``defaults`` are those of `ControllerContext`."""
        self._coordinator = coordinator
        self._defaults = defaults
        self._log = log or LimitedLogger(logger)
        self._office = b""  # what our node says
        self._has_written = False  # under this term
        self._last_term: int | None = None  # of a controller of ours, if that was asked
        self.term = Term(-1, -1)

    # -- election ------------------------------------------------------------------------

    def try_become_controller(self, broker_id: int, timestamp_ms: int) -> bool:
        """Become the controller unless there is one. True if this session is the controller.

        That holds also after a first try whose answer was lost, because the node has an owner. The
        epoch is read before the node: if the node is ours then, no other term has begun since, and
        the epoch is ours or an older one, with which every write is refused.
        """
        coordinator = self._coordinator
        self._office = nodes.encode_controller(broker_id, timestamp_ms)
        self._create_missing([*nodes.PERSISTENT_PATHS])
        while True:
            node = coordinator.get(nodes.CONTROLLER_EPOCH)
            if node is None:
                self._create_missing([nodes.CONTROLLER_EPOCH], nodes.encode_number(0))
                continue
            epoch = self._epoch_in(node)
            held = coordinator.get(nodes.CONTROLLER)
            if held is not None and held.ephemeral_owner == 0:
                self._log.error("%s has no owner, and is removed", nodes.CONTROLLER)
                for path in self._with_all_below(nodes.CONTROLLER):
                    with suppress(NoNodeError):
                        coordinator.delete(path)
                continue
            if held is not None:
                self.term = Term(epoch, node.version)
                return held.ephemeral_owner == coordinator.session_id
            ops: list[Op] = [
                Create(nodes.CONTROLLER, self._office, ephemeral=True),
                Set(nodes.CONTROLLER_EPOCH, nodes.encode_number(epoch + 1), node.version),
            ]
            try:
                coordinator.transact(ops)
            except (NodeExistsError, BadVersionError):
                continue  # another broker was faster; read again
            self.term = Term(epoch + 1, node.version + 1)
            return True

    def _epoch_in(self, node: Node) -> int:
        """The last controller epoch. One that is lost becomes 0, and ``outrank`` raises it."""
        try:
            return nodes.decode_number(nodes.CONTROLLER_EPOCH, node.data)
        except CorruptNodeError as error:
            self._log.error("the controller epoch begins again at 0: %s", error)
            return 0

    def outrank(self, epochs: Iterable[int]) -> None:
        """Begin a term above those under which the tree was written, if ours is not.

        Somebody has then removed the epoch, or set it back.

        Raises:
            DeposedError: a higher epoch is in the tree. Stand again.
        """
        highest = max(epochs, default=-1)
        if highest < self.term.epoch or (highest == self.term.epoch and self._has_written):
            return
        self._log.error(
            "%s is %s, but %s was reached", nodes.CONTROLLER_EPOCH, self.term.epoch, highest
        )
        data = nodes.encode_number(highest + 1)
        self._transact([Set(nodes.CONTROLLER_EPOCH, data)])
        raise DeposedError(f"epoch {self.term.epoch} gives way to {highest + 1}")

    def is_deposed(self) -> bool:
        node = self._coordinator.get(nodes.CONTROLLER_EPOCH)
        return self._held() is None or node is None or node.version != self.term.version

    def _held(self) -> Node | None:
        """The controller's node, if it is ours."""
        held = self._coordinator.get(nodes.CONTROLLER)
        is_ours = held is not None and held.ephemeral_owner == self._coordinator.session_id
        return held if is_ours else None

    def sign(self) -> None:
        """Write who we are into our node again, if somebody else has written there."""
        held = self._held()
        if held is not None and held.data != self._office:
            self._log.error("%s was changed, and is written again", nodes.CONTROLLER)
            with suppress(BadVersionError, NoNodeError):
                self._coordinator.set(nodes.CONTROLLER, self._office, held.version)

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
        for broker, node in self._children(nodes.BROKER_IDS):
            try:
                found[broker] = LiveBroker(nodes.decode_broker(broker, node.data), node.czxid)
            except CorruptNodeError as error:
                self._log.error("broker %s counts as dead: %s", broker, error, about=broker)
        return dict(sorted(found.items()))

    def begin(self) -> ControllerContext:
        """A context with the remembered broker epochs and all topics unread."""
        context = ControllerContext(self._defaults, self._log)
        for broker, node in self._children(nodes.BROKER_EPOCHS):
            try:
                context.remembered[broker] = nodes.decode_number(
                    nodes.broker_epoch_path(broker), node.data
                )
            except CorruptNodeError as error:
                self._log.error(
                    "broker %s counts as stopped uncleanly: %s", broker, error, about=broker
                )
                context.remembered[broker] = LOST_EPOCH
        self._read_distrusted(context)
        context.deleted = self._deleted()[0]
        context.unread_topics = dict.fromkeys(self._coordinator.children(nodes.TOPICS))
        return context

    def _read_distrusted(self, context: ControllerContext) -> None:
        for name in self._coordinator.children(nodes.LEFT_OUT):
            path = f"{nodes.LEFT_OUT}/{name}"
            node = self._coordinator.get(path)
            topic, number = nodes.left_out_of(name)
            key = topic if number is None else TopicPartition(topic, number)
            try:
                found = nodes.decode_left_out(path, b"" if node is None else node.data)
            except CorruptNodeError as error:
                self._log.error("all brokers are distrusted: %s", error, about=path)
                found = tuple(context.remembered)
            context.distrusted[key] = frozenset(found)

    def read(self, context: ControllerContext, on_read: OnRead = lambda tp, before: None) -> None:
        """Read what is unread. After a lost answer only the rest is read again.

        Nodes that are gone leave the context. So do nodes that cannot be read, which are then left
        out. A partition that never had a state gets its first one later.

        Args:
            on_read: called with each partition and its previous registration.
        """
        for name in [*context.unread_topics]:
            self._read_topic(context, name)
            context.unread_topics.pop(name, None)
        for tp in [*context.unread]:
            before = context.partitions.get(tp)
            if tp.topic in context.topics:
                self._read_partition(context, tp)
                on_read(tp, before)
            context.unread.pop(tp, None)

    def _read_topic(self, context: ControllerContext, name: str) -> None:
        before = context.topics.get(name)
        known = before.assignment.partitions if before is not None else {}
        try:
            found = self.topic(name)
        except (CorruptNodeError, NotPermittedError) as error:
            self._leave_out_topic(context, name, error)
            return
        if found is None:
            context.unreadable.pop(name, None)
            if before is not None:
                context.remove_topic(name)
            return
        other = self._older_twin(context, name, found[0].topic_id)
        if other is not None:
            twin = CorruptNodeError(nodes.topic_path(name), f"topic_id is that of {other}")
            self._leave_out_topic(context, name, twin)
            return
        context.put_topic(name, *found)
        # A changed configuration is sent like any change of a partition.
        same = before is not None and before.assignment.config == found[0].config
        new = (number for number in found[0].partitions if not same or number not in known)
        context.unread.update((TopicPartition(name, number), None) for number in new)

    def _read_partition(self, context: ControllerContext, tp: TopicPartition) -> None:
        replicas = context.topics[tp.topic].assignment.partitions.get(tp.partition, ())
        try:
            state, is_by_kafka = self._state(tp, replicas)
            if state is None and not self._is_first(context, tp):
                context.leave_out(tp)
                return
        except (CorruptNodeError, NotPermittedError) as error:
            self._log.error("%s is left out, and offline: %s", tp, error, about=tp)
            context.leave_out(tp)
            return
        if state is None:
            context.expect(tp)
        else:
            context.put(tp, state)
            if is_by_kafka and state.controller_epoch > self._epoch_of_ours():
                context.by_kafka[tp] = None

    def _epoch_of_ours(self) -> int:
        """The epoch of the last controller of ours before this one; −1 for none."""
        if self._last_term is None:
            node = self._coordinator.get(nodes.LAST_TERM)
            try:
                self._last_term = (
                    -1 if node is None else nodes.decode_number(nodes.LAST_TERM, node.data)
                )
            except CorruptNodeError as error:
                self._log.error("no controller of Kafka's is taken at its word: %s", error)
                self._last_term = self.term.epoch - 1
        return self._last_term

    def note_term(self) -> None:
        """Store that a controller of ours has dealt with all that Kafka's left, if one did."""
        if self._last_term is not None and self._last_term < self.term.epoch:
            self._transact([self._put(nodes.LAST_TERM, nodes.encode_number(self.term.epoch))])
            self._last_term = self.term.epoch

    def _is_first(self, context: ControllerContext, tp: TopicPartition) -> bool:
        """Whether a partition without a state is to get its first one: it never had a state, so no
        replica has records, and its creation was interrupted.

        False if its deletion was interrupted.

        Raises:
            CorruptNodeError: it had a state. That said who has all committed records, and nothing
                else does.
        """
        if self._coordinator.get(nodes.delete_topic_path(tp.topic)) is not None:
            return False
        above = nodes.partition_path(tp), _partitions_path(tp.topic), nodes.topic_path(tp.topic)
        found = map(self._coordinator.get, above)
        was_there = tp in context.partitions or tp in context.unreadable
        if was_there or any(node is not None and node.removed_children for node in found):
            raise CorruptNodeError(nodes.partition_state_path(tp), "was removed")
        return True

    def _older_twin(self, context: ControllerContext, name: str, topic_id: UUID) -> str | None:
        """The topic that had this id before. A younger one that was read first is left out."""
        other = context.topic_ids.get(topic_id)
        if other is None or other == name:
            return None
        ours, theirs = (self._coordinator.get(nodes.topic_path(each)) for each in (name, other))
        if theirs is not None and ours is not None and theirs.czxid < ours.czxid:
            return other
        error = CorruptNodeError(nodes.topic_path(other), f"topic_id is that of {name}")
        self._leave_out_topic(context, other, error)
        return None

    def _leave_out_topic(self, context: ControllerContext, name: str, error: Exception) -> None:
        self._log.error("topic %s is left out, and offline: %s", name, error, about=name)
        context.leave_out_topic(name)

    def leave_out(self, context: ControllerContext, conflict: ConflictError) -> bool:
        """Leave out the partition or the topic whose node is in conflict again and again.

        A change of its nodes has them looked at again. False if it belongs to no topic of the
        context.
        """
        owner = nodes.topic_of(conflict.path)
        if owner is None or owner[0] not in context.topics:
            return False
        name, number = owner
        if number is None:
            self._leave_out_topic(context, name, conflict)
        else:
            tp = TopicPartition(name, number)
            self._log.error("%s is left out, and offline: %s", tp, conflict, about=tp)
            context.leave_out(tp)
        return True

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
        try:
            validate_topic(name)
        except InvalidTopicError as error:
            raise CorruptNodeError(nodes.topic_path(name), str(error)) from None
        found = self._coordinator.get(nodes.topic_config_path(name))
        config = {} if found is None else nodes.decode_topic_config(name, found.data)
        return nodes.decode_topic(name, node.data, config), node.version

    def _state(
        self, tp: TopicPartition, replicas: tuple[int, ...]
    ) -> tuple[PartitionRegistration | None, bool]:
        """A partition's state, and whether a controller of Kafka's wrote it last."""
        node = self._coordinator.get(nodes.partition_state_path(tp))
        if node is None:
            return None, False
        state = nodes.decode_partition(tp, node.data, node.version, replicas)
        return state, nodes.is_by_kafka(node.data)

    def _children(self, path: str) -> Iterator[tuple[int, Node]]:
        """The nodes that are named by brokers."""
        for name in self._coordinator.children(path):
            broker = nodes.broker_of(name)
            if broker is None:
                self._log.error("%s/%s is no node of a broker", path, name, about=(path, name))
                continue
            node = self._coordinator.get(f"{path}/{name}")
            if node is not None:  # else gone since
                yield broker, node

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
        there: set[str] = set()
        for topic_name in dict.fromkeys(tp.topic for tp in first):
            parent = _partitions_path(topic_name)
            there.update(f"{parent}/{name}" for name in self._coordinator.children(parent))
            if self._coordinator.get(parent) is None:
                ops.append(Create(parent))
        # A creation that was interrupted may have left some.
        ops += [Create(path) for path in map(nodes.partition_path, first) if path not in there]
        for tp, registration in changes.items():
            data = nodes.encode_partition(registration)
            path, known = nodes.partition_state_path(tp), context.partitions.get(tp)
            ops.append(
                Create(path, data) if known is None else Set(path, data, known.partition_epoch)
            )
        self._transact(ops)

    def remember(self, epochs: Mapping[int, int]) -> None:
        """Store processed broker epochs for every later controller."""
        self._transact(
            [
                self._put(nodes.broker_epoch_path(broker), nodes.encode_number(epoch))
                for broker, epoch in epochs.items()
            ]
        )

    def distrust(
        self, context: ControllerContext, distrusted: Mapping[LeftOut, frozenset[int]]
    ) -> None:
        """Store, for every later controller, whom to distrust at what is left out."""
        ops: list[Op] = []
        for key in {**context.distrusted, **distrusted}:
            before, after = context.distrusted.get(key), distrusted.get(key)
            path = nodes.left_out_path(*((key,) if isinstance(key, str) else key))
            if after is None:
                ops.append(Delete(path))
            elif before is None:
                ops.append(Create(path, nodes.encode_left_out(after)))
            elif before != after:
                ops.append(Set(path, nodes.encode_left_out(after)))
        for start in range(0, len(ops), CHUNK):
            self._transact(ops[start : start + CHUNK])
        context.distrusted = dict(distrusted)

    def create_topic(self, name: str, topic: TopicAssignment) -> None:
        """Create a topic's node and configuration. Partitions get their states with ``write``."""
        self._transact(
            [
                Create(nodes.topic_path(name), nodes.encode_topic(topic)),
                Create(_partitions_path(name)),
                self._put(nodes.topic_config_path(name), nodes.encode_topic_config(topic.config)),
            ]
        )

    def alter_topic(
        self, name: str, config: Mapping[str, str], version: int, *, notifies: bool
    ) -> None:
        """Change the configuration.

        ``version`` of the topic's node excludes a later topic of that name. ``notifies``: for real
        Kafka brokers, which read it themselves and remove old notifications.
        """
        ops = [
            Check(nodes.topic_path(name), version),
            self._put(nodes.topic_config_path(name), nodes.encode_topic_config(config)),
        ]
        if notifies:
            data = nodes.encode_config_change(name)
            ops.append(Create(nodes.config_change_path(), data, sequential=True))
        self._transact(ops)

    def mark_deleted(self, name: str) -> None:
        """Mark a topic for deletion by this controller or a later one."""
        path = nodes.delete_topic_path(name)
        if self._coordinator.get(path) is None:
            self._transact([Create(path)])

    def delete_topic(self, name: str, topic_id: UUID) -> list[UUID]:
        """Delete all nodes of a topic, the mark last. Continues an earlier try.

        Its id is noted with that step: a log that comes back later has no place any more. Returns
        all such ids.
        """
        self._remove_all(nodes.topic_path(name), nodes.topic_config_path(name))
        deleted, node = self._deleted()
        deleted = [*(each for each in deleted if each != topic_id), topic_id]
        data = nodes.encode_topic_ids(deleted[-nodes.DELETED_TOPICS_KEPT :])
        note: Op = (
            Create(nodes.DELETED_TOPICS, data)
            if node is None
            else Set(nodes.DELETED_TOPICS, data, node.version)
        )
        mark = self._with_all_below(nodes.delete_topic_path(name))
        self._transact([*(Delete(path) for path in mark), note])
        return deleted

    def _deleted(self) -> tuple[list[UUID], Node | None]:
        node = self._coordinator.get(nodes.DELETED_TOPICS)
        try:
            return [] if node is None else nodes.decode_topic_ids(
                nodes.DELETED_TOPICS, node.data
            ), node
        except CorruptNodeError as error:
            self._log.error("deleted topics are not known any more: %s", error)
            return [], node

    def _remove_all(self, *paths: str) -> None:
        """Remove nodes and all that is below them, whoever put it there."""
        chunk: list[Op] = []
        for path in paths:
            for each in self._with_all_below(path):
                chunk.append(Delete(each))
                if len(chunk) == CHUNK:  # now, so that a lost answer does not discard what was read
                    self._transact(chunk)
                    chunk = []
        if chunk:
            self._transact(chunk)

    def _with_all_below(self, path: str) -> Iterator[str]:
        """``path`` after all nodes below it; nothing if it does not exist."""
        waiting = [(path, False)] if self._coordinator.get(path) is not None else []
        while waiting:
            at, is_last = waiting.pop()
            children = [] if is_last else self._coordinator.children(at)
            if children:
                waiting.append((at, True))
                waiting += [(f"{at}/{name}", False) for name in reversed(children)]
            else:
                yield at

    # -- notifications ---------------------------------------------------------------------------

    def log_dir_events(self) -> tuple[list[str], list[int]]:
        """Brokers that lost a log directory (R-66), and the nodes that say it: the first ones,
        whose removal is a change that brings the controller back.
        """
        paths: list[str] = []
        brokers: list[int] = []
        for name in self._coordinator.children(nodes.LOG_DIR_EVENTS)[:NOTES]:
            path = f"{nodes.LOG_DIR_EVENTS}/{name}"
            node = self._coordinator.get(path)
            if node is None:
                continue
            paths.append(path)
            try:
                brokers.append(nodes.decode_log_dir_event(path, node.data))
            except CorruptNodeError as error:
                self._log.error("a notification is dropped: %s", error, about=nodes.LOG_DIR_EVENTS)
        return paths, brokers

    def remove(self, paths: Sequence[str]) -> None:
        """Remove processed notifications, in one step where they are as they should be."""
        try:
            if paths:
                self._transact([Delete(path) for path in paths])
        except ConflictError:  # one is gone, or has nodes below it
            for path in paths:
                try:
                    self._remove_all(path)
                except ConflictError as error:
                    self._log.error("%s stays: %s", path, error)

    def _put(self, path: str, data: bytes) -> Op:
        """Set a node that is there already, perhaps of an earlier try, or create it."""
        is_there = self._coordinator.get(path) is not None
        return Set(path, data) if is_there else Create(path, data)

    def _transact(self, ops: Sequence[Op]) -> None:
        try:
            self._coordinator.transact([Check(nodes.CONTROLLER_EPOCH, self.term.version), *ops])
        except (
            BadVersionError,
            NoNodeError,
            NodeExistsError,
            NotEmptyError,
            NotPermittedError,
        ) as error:
            if self.is_deposed():
                raise DeposedError(str(error)) from error
            raise ConflictError(error.path, str(error)) from error
        self._has_written = True


def _partitions_path(topic: str) -> str:
    return f"{nodes.topic_path(topic)}/partitions"
