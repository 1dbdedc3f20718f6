"""Standing for controller, and running the events of a term, on one actor."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, TypeAlias

from checkpoints.loggers import get_logger
from logstore.common.config import LogConfig
from replication.common.config import ReplicationConfig
from replication.common.error_codes import ErrorCode, error_code_of
from replication.common.limited_log import LimitedLogger
from replication.common.messages import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    ElectLeadersRequest,
    ElectLeadersResponse,
    IncrementalAlterConfigsRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    Request,
    Response,
    TopicResponse,
)
from replication.common.retrying import Backoff
from replication.common.runtime import Cancellable, Runtime, Task
from replication.common.state import LiveBroker
from replication.common.transport import OnReply, Transport
from replication.controller.beside_kafka import BesideKafka
from replication.controller.channels import BrokerChannel, Numbers, OnResponse
from replication.controller.context import ControllerContext, ControllerStats
from replication.controller.states import ControllerState, Happened
from replication.controller.store import ConflictError, ControllerStore, DeposedError
from replication.controller.term import ControllerTerm
from replication.coordination import (
    CoordinationError,
    Coordinator,
    CoordinatorUnavailableError,
    SessionExpiredError,
    WatchEvent,
    nodes,
)

logger = get_logger(__name__)

BACKOFF = Backoff(100, 1000)  # pauses after no answer of the coordinator
# Immediate retries. Then what is in conflict is left out; or the event waits like one without an
# answer, if there is not one such thing.
MAX_CONFLICTS = 10
LASTING_REFUSALS = 5  # as a rule one overtaken request is refused once

Fail = Callable[[ErrorCode], None]
Serve: TypeAlias = Callable[[ControllerTerm, Any, OnReply], Task]


@dataclass(slots=True)
class _Event:
    """A task to run under a term.

    Attributes:
        name: what it reads, if one read is enough for any number of signals.
        fail: answers a request if the task cannot. A task without it must not fail, because its
            purpose would be forgotten.
        deadline_ms: when the sender stops waiting for the answer.
    """

    task: Task
    name: str = ""
    fail: Fail | None = None
    deadline_ms: float = math.inf


class Controller:
    """A broker's candidate for controller, and the controller while it is elected.

    ``start`` and ``stop`` follow each other any number of times, one pair for a session. All
    methods return at once and may be called from any thread; ``state``, ``active``, ``epoch`` and
    ``stats`` are for any thread to read.

    A state machine on one actor: ``Happened`` has the transitions, ``_step`` does the work of
    a state. One event runs at a time. While the coordinator is silent none runs, because the writes
    of the last one must be read before the next decision.

    Args:
        rng: for topic ids and the spread of new topics.
    """

    def __init__(
        self,
        broker_id: int,
        runtime: Runtime,
        transport: Transport,
        config: ReplicationConfig,
        rng: Random,
        defaults: LogConfig | None = None,
    ) -> None:
        self.state = ControllerState.OUT
        self.epoch = -1  # the last term to which this broker was elected
        self.stats = ControllerStats()
        self._broker_id = broker_id
        self._runtime = runtime
        self._transport = transport
        self._config = config
        self._rng = rng
        self._defaults = defaults
        self._log = LimitedLogger(logger, runtime.clock)
        self._actor = runtime.actor(f"controller-{broker_id}", may_hang=True)
        self._numbers = Numbers()
        self._signalled: set[tuple[int, str]] = set()
        self._session: Coordinator | None = None
        self._unwatched: list[str] = []
        self._looked_after: set[str] = set()  # left-out topics that this session watches
        self._kafka: BesideKafka | None = None  # of this session
        self._store: ControllerStore | None = None
        self._term: ControllerTerm | None = None
        self._timers: list[Cancellable] = []
        self._events: deque[_Event] = deque()
        self._working = False
        self._failures = 0  # in a row
        self._pause: Cancellable | None = None  # the pause after a failure

    @property
    def active(self) -> bool:
        """Whether this broker is the controller, as far as it knows."""
        return self.state is ControllerState.ACTIVE

    def live_broker(self, broker_id: int) -> LiveBroker | None:
        """A broker that this controller knows as alive. From any thread."""
        term = self._term
        return None if term is None else term.context.live.get(broker_id)

    def start(self, coordinator: Coordinator, broker_epoch: int) -> None:
        """Stand for controller, now and whenever there is none, until ``stop``.

        Args:
            broker_epoch: the epoch of this session's registration.
        """
        self._actor.post(partial(self._start, coordinator, broker_epoch))

    def stop(self) -> None:
        """Resign and stand no more, because the session is over or the broker stops."""
        self._actor.post(partial(self._happens, Happened.SESSION_ENDED))

    def handle(self, request: Request, reply: OnReply) -> None:
        """Serve a request to the controller. The response may come later.

        The requests of ``_SERVED`` get NOT_CONTROLLER if this broker is not the controller.
        """
        served = _SERVED.get(type(request))
        if served is None:
            raise TypeError(f"{type(request).__name__} is not for a controller")
        event, refusal = served
        deadline_ms = self._runtime.now_ms() + self._config.request_timeout_ms

        def fail(error: ErrorCode) -> None:
            reply(refusal(error))

        def serve() -> None:
            if self._term is None or not self.active:
                fail(ErrorCode.NOT_CONTROLLER)
            else:
                task = event(self._term, request, reply)
                self._add(_Event(task, fail=fail, deadline_ms=deadline_ms))

        self._actor.post(serve)

    # -- events ----------------------------------------------------------------------------

    def _start(self, session: Coordinator, broker_epoch: int) -> None:
        logger.debug("broker %s, epoch %s, stands for controller", self._broker_id, broker_epoch)
        self._session = session
        self._looked_after = set()
        self._kafka = BesideKafka(session, partial(self._signal, session), self._log)
        self._happens(Happened.SESSION_BEGAN)
        self._work()

    def _happens(self, happened: Happened) -> None:
        """The only place where the state changes."""
        before, after = self.state, happened.leads_from(self.state)
        if after is None:
            logger.debug(
                "controller %s: %s is not for one that is %s",
                self._broker_id,
                happened.text,
                before.value,
            )
            return
        if before is ControllerState.ACTIVE:
            logger.info("broker %s does not act as controller any more", self._broker_id)
        self.state = after
        self._wait_no_more()
        match after:
            case ControllerState.OUT:
                self._session = None
                self._end_term()
            case ControllerState.WATCHING:
                self._end_term()
                self._unwatched = [*_SIGNALS]
            case ControllerState.STANDING | ControllerState.TAKING_OVER:
                self._end_term()
            case ControllerState.FOLLOWING:
                pass
            case ControllerState.ACTIVE:
                self._begin_timers()
        self._count()

    def _signal(self, session: Coordinator, path: str, event: WatchEvent) -> None:
        """Schedule one read, however many changes at or below ``path`` come before it."""
        key = session.session_id, path
        if key in self._signalled:
            return
        self._signalled.add(key)

        def read_change() -> None:
            self._signalled.discard(key)  # first, because later changes need another read
            if session is self._session:
                self._changed(path)

        self._actor.post(read_change)

    def _changed(self, path: str) -> None:
        """Read changes in two states only. The others still have to read everything."""
        match self.state:
            case ControllerState.FOLLOWING if path == nodes.CONTROLLER:
                self._happens(Happened.OFFICE_CHANGED)
                self._work()
            case ControllerState.ACTIVE:
                assert self._term is not None
                kafkas = None if self._kafka is None else self._kafka.task(self._term, path)
                self._add(_Event(kafkas or _event_of(self._term, path), path))
            case _:
                pass

    # -- work -------------------------------------------------------------------

    def _add(self, event: _Event) -> None:
        if not event.name or all(event.name != waiting.name for waiting in self._events):
            self._events.append(event)
        self._work()

    def _work(self) -> None:
        """Work until nothing is left to do, or the coordinator is silent."""
        if self._working:
            return  # an event caused another one
        self._working = True
        try:
            while self._pause is None and self._step():
                pass
        finally:
            self._working = False

    def _step(self) -> bool:
        """Do one step of work of the present state. False if there is none."""
        match self.state:
            case ControllerState.OUT | ControllerState.FOLLOWING:
                return False
            case ControllerState.WATCHING:
                self._try(_Event(self._set_watches))
            case ControllerState.STANDING:
                self._try(_Event(self._stand))
            case ControllerState.TAKING_OVER:
                self._try(_Event(self._take_over))
            case ControllerState.ACTIVE:
                if not self._events:
                    return False
                self._try(self._events.popleft(), again=self._events.append)
        return True

    def _try(self, event: _Event, again: Callable[[_Event], None] = lambda event: None) -> None:
        """Try an event once. ``again`` keeps it for another try.

        (The work of a state is repeated anyway.) A request that has waited too long is not begun.
        """
        if self._runtime.now_ms() >= event.deadline_ms:
            _refuse(event, ErrorCode.REQUEST_TIMED_OUT)
            return
        error = self._outcome(event.task)
        match error:
            case None:
                self._failures = 0
            case SessionExpiredError():  # the owner of the session notices it too
                self._happens(Happened.SESSION_ENDED)
                _refuse(event, ErrorCode.NOT_CONTROLLER)
            case DeposedError():
                logger.info("controller %s: %s", self._broker_id, error)
                self._happens(Happened.DEPOSED)
                _refuse(event, ErrorCode.NOT_CONTROLLER)
            case ConflictError() | CoordinatorUnavailableError():
                self._log.warning(
                    "controller %s: again, later: %s",
                    self._broker_id,
                    error,
                    about=getattr(error, "path", None),
                )
                if self._runtime.now_ms() < event.deadline_ms:
                    again(event)
                else:
                    _refuse(event, ErrorCode.REQUEST_TIMED_OUT)
                self._wait()
            case _ if event.fail is not None:
                event.fail(error_code_of(error))
            case _:
                self._log.warning(
                    "controller %s reads everything again: %s",
                    self._broker_id,
                    error,
                    about=type(error),
                )
                self._happens(Happened.FAILED)
                self._wait()
        if self._term is not None and self.active:
            self._term.flush()
            self._retry_left_out(self._term)
            kafka = self._kafka
            if self._term.context.beside_kafka and kafka is not None and not kafka.is_watching:
                self._add(_Event(kafka.watch, "watch what a real Kafka writes"))
        self._count()

    def _outcome(self, task: Task) -> Exception | None:
        """Run a task. Returns its exception or None.

        After a conflict it runs again at once, on fresh reads; after the tenth at the same node,
        without what that belongs to.
        """
        conflicts: list[str] = []
        left_out: set[str] = set()
        while True:
            try:
                if self._term is not None:
                    self._term.resolve_doubts()
                task()
            except ConflictError as conflict:
                path = conflict.path
                self._log.warning("controller %s: again: %s", self._broker_id, conflict, about=path)
                conflicts.append(path)
                if len(conflicts) < MAX_CONFLICTS:
                    continue
                is_lasting = conflicts.count(path) == MAX_CONFLICTS and path not in left_out
                term = self._term
                if not (is_lasting and term and term.store.leave_out(term.context, conflict)):
                    return conflict
                left_out.add(path)
                conflicts.clear()
            except (CoordinationError, DeposedError) as error:
                return error
            except Exception as error:
                self._log.exception("controller %s: an event failed", self._broker_id)
                return error
            else:
                return None

    def _retry_left_out(self, term: ControllerTerm) -> None:
        for name in term.context.left_out_topics():
            if name not in self._looked_after:
                self._add(_Event(partial(self._look_after, term, name), f"look after {name}"))

    def _look_after(self, term: ControllerTerm, name: str) -> None:
        """Have each change of a topic's nodes looked at, and those that came before the watches."""
        session = self._session
        assert session is not None
        for path in (nodes.topic_path(name), nodes.topic_config_path(name)):
            session.watch(path, partial(self._signal, session, path))
        self._looked_after.add(name)
        self._later(term.look_again_task(name))

    def _wait(self) -> None:
        self._failures += 1
        delay_ms = BACKOFF.delay_ms(self._failures, self._runtime.random)
        pause: Cancellable

        def go_on() -> None:
            if self._pause is pause:
                self._pause = None
                self._work()

        self._pause = pause = self._runtime.call_later(delay_ms, lambda: self._actor.post(go_on))

    def _wait_no_more(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    # -- states ----------------------------------------------------------------------------------

    def _set_watches(self) -> None:
        session = self._session
        assert session is not None
        while self._unwatched:
            path = self._unwatched[-1]
            session.watch(path, partial(self._signal, session, path))
            self._unwatched.pop()
        self._happens(Happened.WATCHES_SET)

    def _stand(self) -> None:
        assert self._session is not None
        store = ControllerStore(self._session, self._defaults, self._log)
        if not store.try_become_controller(self._broker_id, self._runtime.clock.wall_ms()):
            self._happens(Happened.OTHER_ELECTED)
            return
        self._store, self.epoch = store, store.term.epoch
        logger.info("broker %s is the controller of epoch %s", self._broker_id, self.epoch)
        self._happens(Happened.ELECTED)

    def _take_over(self) -> None:
        """Take over, which only the elected broker does."""
        if self._term is None:
            assert self._store is not None
            self._term = ControllerTerm(
                self._store, self._open_channel, self._later, self._config, self._rng, self.stats
            )
        self._term.take_over()
        self._happens(Happened.TOOK_OVER)

    def _later(self, task: Task) -> None:
        """Queue an event that another event or an answer of a broker causes."""
        self._add(_Event(task))

    def _begin_timers(self) -> None:
        term, config = self._term, self._config
        assert term is not None
        self._every(config.unclean_election_interval_ms, "elections", term.retry_elections)
        if config.auto_leader_rebalance:
            interval_ms = config.leader_imbalance_check_interval_s * 1000
            self._every(interval_ms, "rebalance", term.rebalance)

    def _every(self, interval_ms: int, name: str, task: Task) -> None:
        term = self._term

        def run() -> None:
            if self._term is term and self.active:
                self._add(_Event(task, name))

        self._timers.append(self._runtime.every(interval_ms, partial(self._actor.post, run)))

    def _end_term(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers = []
        if self._term is not None:
            self._term.close()
            self._term = None
        events, self._events = self._events, deque()
        for event in events:
            _refuse(event, ErrorCode.NOT_CONTROLLER)

    def _open_channel(
        self, broker: LiveBroker, context: ControllerContext, on_response: OnResponse
    ) -> BrokerChannel:
        def check() -> None:
            if self._term is not None and self.active:
                look = partial(self._check_refused, self._term, channel, broker)
                self._add(_Event(look, nodes.CONTROLLER))

        channel = BrokerChannel(
            broker,
            self._actor,
            self._runtime,
            self._transport,
            (self._broker_id, self.epoch),
            self._numbers,
            context,
            on_response,
            check,
            self._config.controller_socket_timeout_ms,
        )
        return channel

    def _check_refused(
        self, term: ControllerTerm, channel: BrokerChannel, broker: LiveBroker
    ) -> None:
        """Look whether a broker is right that this term is over."""
        term.check()
        if channel.failures >= LASTING_REFUSALS:
            self._log.error(
                "broker %s obeys a later controller than this one of epoch %s, which the "
                "coordinator has forgotten: an older state was put back there. Restart that broker "
                "to go on with that state",
                broker.registration.broker_id,
                self.epoch,
                about=broker.broker_epoch,
            )

    def _count(self) -> None:
        context = _NO_TERM if self._term is None else self._term.context
        self.stats.active_controller_count = int(self.active)
        context.update(self.stats)


def _refuse(event: _Event, code: ErrorCode) -> None:
    if event.fail is not None:
        event.fail(code)


_NO_TERM = ControllerContext()  # what is counted by whom does not rule

# The events that a controller reads.
_SIGNALS: dict[str, Callable[[ControllerTerm], None]] = {
    nodes.CONTROLLER: ControllerTerm.check,
    nodes.BROKER_IDS: ControllerTerm.on_brokers,
    nodes.LOG_DIR_EVENTS: ControllerTerm.on_log_dir_events,
}


def _event_of(term: ControllerTerm, path: str) -> Task:
    """The task that a change at or below a watched path causes."""
    read = _SIGNALS.get(path)
    if read is not None:
        return partial(read, term)
    return term.look_again_task(path.rpartition("/")[2])


def _at_once(method: Callable[[ControllerTerm, Any, OnReply], None]) -> Serve:
    """An event that keeps no state between retries."""
    return lambda term, request, reply: partial(method, term, request, reply)


# For each request the event that serves it, and the answer if it cannot.
_SERVED: dict[type[Request], tuple[Serve, Callable[[ErrorCode], Response]]] = {
    AlterPartitionRequest: (_at_once(ControllerTerm.alter_partition), AlterPartitionResponse),
    ControlledShutdownRequest: (
        _at_once(ControllerTerm.controlled_shutdown),
        ControlledShutdownResponse,
    ),
    AllocateProducerIdsRequest: (
        _at_once(ControllerTerm.allocate_producer_ids),
        AllocateProducerIdsResponse,
    ),
    ElectLeadersRequest: (ControllerTerm.election_task, ElectLeadersResponse),
    AlterPartitionReassignmentsRequest: (
        ControllerTerm.reassignment_task,
        AlterPartitionReassignmentsResponse,
    ),
    ListPartitionReassignmentsRequest: (
        _at_once(ControllerTerm.list_reassignments),
        ListPartitionReassignmentsResponse,
    ),
    CreateTopicRequest: (ControllerTerm.topic_creation_task, TopicResponse),
    DeleteTopicRequest: (_at_once(ControllerTerm.delete_topic), TopicResponse),
    CreatePartitionsRequest: (ControllerTerm.partition_growth_task, TopicResponse),
    IncrementalAlterConfigsRequest: (_at_once(ControllerTerm.alter_topic), TopicResponse),
}
