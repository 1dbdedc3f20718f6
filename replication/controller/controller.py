"""Standing for controller, and running the events of a term on one actor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random

from checkpoints.loggers import get_logger
from logstore.config import LogConfig
from replication.config import ReplicationConfig
from replication.controller.channels import Channel, OnResponse
from replication.controller.context import ControllerContext, ControllerStats
from replication.controller.store import ConflictError, ControllerStore, DeposedError
from replication.controller.term import ControllerTerm, Reassigned
from replication.coordination import (
    CoordinationError,
    Coordinator,
    CoordinatorUnavailableError,
    SessionExpiredError,
    WatchEvent,
    nodes,
)
from replication.error_codes import ErrorCode, error_code_of
from replication.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    CreateTopicRequest,
    DeleteTopicRequest,
    ElectLeadersRequest,
    ElectLeadersResponse,
    Request,
    TopicResponse,
)
from replication.runtime import Cancellable, Runtime, Task
from replication.state import LiveBroker, TopicPartition
from replication.transport import OnReply, Transport

logger = get_logger(__name__)

RETRY_MS = 100  # after the coordinator gave no answer
MAX_CONFLICTS = 10  # at once; then the event waits like one without an answer

Fail = Callable[[ErrorCode], None]
Event = Callable[[ControllerTerm], Task]


class Controller:
    """A broker's candidate for controller, and the controller while it is elected.

    ``start`` and ``stop`` follow each other any number of times, one pair for a session. All
    methods return at once and may be called from any thread; ``active``, ``epoch`` and ``stats``
    are for any thread to read.

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
        self.active = False
        self.epoch = -1  # of the last term this broker was elected for
        self.stats = ControllerStats()
        self._broker_id = broker_id
        self._runtime = runtime
        self._transport = transport
        self._config = config
        self._rng = rng
        self._defaults = defaults  # of topics
        self._actor = runtime.actor(f"controller-{broker_id}")
        self._signalled: set[tuple[int, str]] = set()
        self._session: Coordinator | None = None
        self._store: ControllerStore | None = None  # while this broker is elected
        self._term: ControllerTerm | None = None  # from the moment all was read
        self._timers: list[Cancellable] = []

    def start(self, coordinator: Coordinator, broker_epoch: int) -> None:
        """Stand for controller, now and whenever there is none, until ``stop``.

        Args:
            broker_epoch: of the registration that this session made.
        """
        self._actor.post(partial(self._start, coordinator, broker_epoch))

    def stop(self) -> None:
        """Resign and stand no more: the session is over, or the broker stops."""
        self._actor.post(self._stop)

    def handle(self, request: Request, reply: OnReply) -> None:
        """Serve one of the requests that go to the controller; the response may come later.

        AlterPartition, ControlledShutdown, ElectLeaders, CreateTopic, DeleteTopic: NOT_CONTROLLER
        where this broker is not.
        """
        if isinstance(request, AlterPartitionRequest):
            self._serve(
                lambda term: partial(term.alter_partition, request, reply),
                lambda error: reply(AlterPartitionResponse(error)),
            )
        elif isinstance(request, ControlledShutdownRequest):
            self._serve(
                lambda term: partial(term.controlled_shutdown, request, reply),
                lambda error: reply(ControlledShutdownResponse(error)),
            )
        elif isinstance(request, ElectLeadersRequest):
            self._serve(
                lambda term: partial(term.elect_leaders, request, reply),
                lambda error: reply(ElectLeadersResponse(error)),
            )
        elif isinstance(request, CreateTopicRequest):
            self._serve(
                lambda term: term.creation(request, reply),
                lambda error: reply(TopicResponse(error)),
            )
        elif isinstance(request, DeleteTopicRequest):
            self._serve(
                lambda term: partial(term.delete_topic, request, reply),
                lambda error: reply(TopicResponse(error)),
            )
        else:
            raise TypeError(f"{type(request).__name__} is not for a controller")

    def reassign(
        self, targets: Mapping[TopicPartition, tuple[int, ...] | None], reply: Reassigned
    ) -> None:
        """Move partitions to other replicas; None gives up the move that is under way (R-62).

        ``reply`` gets Kafka's code for each, once the moves have begun.
        """
        wanted = dict(targets)
        self._serve(
            lambda term: partial(term.reassign, wanted, reply),
            lambda error: reply(dict.fromkeys(wanted, error)),
        )

    # -- sessions --------------------------------------------------------------------------------

    def _start(self, session: Coordinator, broker_epoch: int) -> None:
        logger.debug("broker %s, epoch %s, stands for controller", self._broker_id, broker_epoch)
        self._resign()
        self._session = session
        self._watch(session)

    def _stop(self) -> None:
        self._session = None
        self._resign()

    def _watch(self, session: Coordinator) -> None:
        if session is not self._session:
            return
        events: dict[str, Task] = {
            nodes.CONTROLLER: self._on_controller,
            nodes.BROKER_IDS: partial(self._event, lambda term: term.on_brokers),
            nodes.ISR_CHANGES: partial(self._event, lambda term: term.on_isr_changes),
            nodes.LOG_DIR_EVENTS: partial(self._event, lambda term: term.on_log_dir_events),
        }
        try:
            for path, task in events.items():
                session.watch(path, partial(self._signal, session, path, task))
        except SessionExpiredError:
            return  # whoever began the session hears of it too
        except CoordinationError as error:
            logger.warning("controller %s: cannot watch: %s", self._broker_id, error)
            self._later(partial(self._watch, session))
            return
        self._stand()

    def _signal(self, session: Coordinator, path: str, task: Task, event: WatchEvent) -> None:
        """Any number of changes at or below ``path`` while a look is due make one look."""
        key = session.session_id, path
        if key in self._signalled:
            return
        self._signalled.add(key)

        def look() -> None:
            self._signalled.discard(key)  # first: what changes from now on needs another look
            if session is self._session:
                task()

        self._actor.post(look)

    # -- terms -----------------------------------------------------------------------------------

    def _on_controller(self) -> None:
        """The controller's node is another one, or gone."""
        if self._store is None:
            self._stand()
        else:
            self._event(lambda term: term.check)

    def _stand(self) -> None:
        if self._session is None or self._store is not None:
            return
        store = ControllerStore(self._session, self._defaults)
        try:
            elected = store.stand(self._broker_id, self._runtime.clock.wall_ms())
        except SessionExpiredError:
            return
        except CoordinationError as error:
            logger.warning("controller %s: cannot stand: %s", self._broker_id, error)
            self._later(self._stand)
            return
        if elected:
            self._store = store
            self.epoch = store.term.epoch
            logger.info("broker %s is the controller of epoch %s", self._broker_id, self.epoch)
            self._take_over(store)

    def _take_over(self, store: ControllerStore) -> None:
        """The first event of a term. Whatever goes wrong, it is tried again: to do it is nobody
        else's as long as this broker is elected."""
        if self._store is not store:
            return

        def begin() -> None:
            self._end_term()
            term = ControllerTerm(
                store, self._open_channel, self._run, self._config, self._rng, self.stats
            )
            self._term = term
            term.take_over()
            self.active = True
            config = self._config
            self._every(config.unclean_election_interval_ms, term.retry_elections)
            if config.auto_leader_rebalance:
                self._every(config.leader_imbalance_check_interval_s * 1000, term.rebalance)

        self._run(begin, lambda error: self._later(partial(self._take_over, store)))

    def _resign(self) -> None:
        if self._store is not None:
            logger.info("broker %s is not the controller any more", self._broker_id)
        self._store = None
        self.active = False
        self._end_term()
        self._count()

    def _end_term(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers = []
        if self._term is not None:
            self._term.close()
            self._term = None

    def _open_channel(
        self, broker: LiveBroker, context: ControllerContext, on_response: OnResponse
    ) -> Channel:
        return Channel(
            broker, self._actor, self._runtime, self._transport, (self._broker_id, self.epoch),
            context, on_response,
        )  # fmt: skip

    # -- how an event is run ---------------------------------------------------------------------

    def _serve(self, event: Event, fail: Fail) -> None:
        def serve() -> None:
            if self._term is None or not self.active:
                fail(ErrorCode.NOT_CONTROLLER)
            else:
                self._run(event(self._term), fail)

        self._actor.post(serve)

    def _event(self, event: Event) -> None:
        if self._term is not None:
            self._run(event(self._term))

    def _run(self, task: Task, fail: Fail = lambda error: None) -> None:
        """Do ``task``, again where needed, for as long as the term lasts; on the actor.

        A task answers its requester with its last step; ``fail`` answers when it cannot.
        """
        store, term = self._store, self._term

        def attempt() -> None:
            is_over = store is None or self._store is not store
            if is_over or (term is not None and self._term is not term):
                fail(ErrorCode.NOT_CONTROLLER)
                return
            try:
                for _ in range(MAX_CONFLICTS):
                    try:
                        task()
                        return
                    except ConflictError as conflict:
                        logger.warning("controller %s: again: %s", self._broker_id, conflict)
                self._later(attempt)
            except CoordinatorUnavailableError as error:
                logger.warning("controller %s: again, later: %s", self._broker_id, error)
                self._later(attempt)
            except SessionExpiredError:
                self._resign()
                fail(ErrorCode.NOT_CONTROLLER)
            except DeposedError:
                self._resign()
                fail(ErrorCode.NOT_CONTROLLER)
                self._stand()
            except Exception as error:
                logger.exception("controller %s: an event failed", self._broker_id)
                fail(error_code_of(error))
            finally:
                if self._term is not None:
                    self._term.flush()
                self._count()

        attempt()

    def _later(self, task: Task) -> None:
        self._runtime.call_later(RETRY_MS, partial(self._actor.post, task))

    def _every(self, interval_ms: int, task: Task) -> None:
        run = partial(self._actor.post, partial(self._run, task))
        self._timers.append(self._runtime.every(interval_ms, run))

    def _count(self) -> None:
        context = ControllerContext() if self._term is None else self._term.context
        self.stats.active_controller_count = int(self.active)
        context.update(self.stats)
