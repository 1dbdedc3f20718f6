"""What real Kafka brokers and their tools write into the tree, for a controller of ours (X-96).

Kafka's controllers hear of it by watches, and so does ours while a real Kafka broker is registered:
topics that were made by hand, marks of deletion, elections and moves that old tools ask for, and
configurations, which each Kafka broker writes by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from checkpoints.loggers import get_logger
from replication.common.limited_log import LimitedLogger
from replication.common.messages import (
    AlterPartitionReassignmentsRequest,
    ElectionType,
    ElectLeadersRequest,
)
from replication.common.runtime import Task
from replication.controller.term import ControllerTerm
from replication.coordination import (
    Coordinator,
    CorruptNodeError,
    EventKind,
    WatchEvent,
    nodes,
)

logger = get_logger(__name__)

_T = TypeVar("_T")
Signal = Callable[[str, WatchEvent], None]


class BesideKafka:
    """The watches of one session, and what its controller does about each.

    Args:
        signal: schedules the task of a path. Any thread calls it.
    """

    def __init__(self, session: Coordinator, signal: Signal, log: LimitedLogger) -> None:
        self.is_watching = False
        self._session = session
        self._signal = signal
        self._log = log
        self._changed_topics: dict[str, None] | None = None  # None: any of them
        self._changes_read = ""  # the latest notification of a changed configuration

    def watch(self) -> None:
        """Watch, and have everything read that is there. It may be called again after a failure."""
        self._session.watch(nodes.TOPICS, self._topic_changed)
        for path in _TASKS:
            if path != nodes.TOPICS:
                self._session.watch(path, partial(self._signal, path))
        self.is_watching = True
        for path in _TASKS:
            self._signal(path, WatchEvent(EventKind.MISSED, path))

    def _topic_changed(self, event: WatchEvent) -> None:
        """Have a topic read again. The states below it are written by controllers alone."""
        parent, _, name = event.path.rpartition("/")
        if event.kind is EventKind.MISSED:
            self._changed_topics = None
        elif parent != nodes.TOPICS:
            return
        elif self._changed_topics is not None:
            self._changed_topics[name] = None
        self._signal(nodes.TOPICS, event)

    def task(self, term: ControllerTerm, path: str) -> Task | None:
        """The task for what has changed at a path; None if that is not Kafka's."""
        read = _TASKS.get(path)
        return None if read is None else partial(read, self, term)

    # -- the tasks, which are run again after a conflict -----------------------------------------

    def _read_topics(self, term: ControllerTerm) -> None:
        changed, self._changed_topics = self._changed_topics, {}
        if changed is None:
            there = self._session.children(nodes.TOPICS)
            changed = dict.fromkeys([*term.context.topics, *there])
        term.context.unread_topics.update(changed)
        term.resolve_doubts()
        term.retry_elections()

    def _read_configs(self, term: ControllerTerm) -> None:
        names = [e for e in self._session.children(nodes.CONFIG_CHANGES) if e > self._changes_read]
        for name in names:
            path = f"{nodes.CONFIG_CHANGES}/{name}"
            topic = self._read(path, partial(nodes.decode_config_change, path))
            if topic is not None:
                term.context.unread_topics[topic] = None
        self._changes_read = max(names, default=self._changes_read)
        term.resolve_doubts()

    def _read_deletions(self, term: ControllerTerm) -> None:
        term.context.unread_deletions = True
        term.resolve_doubts()

    def _read_elections(self, term: ControllerTerm) -> None:
        asked = self._read(nodes.PREFERRED_ELECTIONS, nodes.decode_preferred_elections)
        if asked is not None:
            request = ElectLeadersRequest(ElectionType.PREFERRED, tuple(asked))
            term.election_task(request, _no_reply)()
            term.store.remove([nodes.PREFERRED_ELECTIONS])

    def _read_reassignments(self, term: ControllerTerm) -> None:
        asked = self._read(nodes.REASSIGNMENTS, nodes.decode_reassignments)
        if asked is not None:
            request = AlterPartitionReassignmentsRequest(tuple(asked.items()))
            term.reassignment_task(request, _no_reply)()
            term.store.remove([nodes.REASSIGNMENTS])

    def _read(self, path: str, decode: Callable[[bytes], _T]) -> _T | None:
        """What a node says; None if it is not there, or cannot be read."""
        node = self._session.get(path)
        try:
            return None if node is None else decode(node.data)
        except CorruptNodeError as error:
            self._log.error("what somebody has written is ignored: %s", error, about=path)
            return None


_TASKS: dict[str, Callable[[BesideKafka, ControllerTerm], None]] = {
    nodes.TOPICS: BesideKafka._read_topics,
    nodes.CONFIG_CHANGES: BesideKafka._read_configs,
    nodes.DELETE_TOPICS: BesideKafka._read_deletions,
    nodes.PREFERRED_ELECTIONS: BesideKafka._read_elections,
    nodes.REASSIGNMENTS: BesideKafka._read_reassignments,
}


def _no_reply(response: object) -> None:
    """Nobody waits: the node was the request."""
