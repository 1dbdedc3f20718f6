"""A broker's membership in its cluster: its session with the coordinator, its registration, and the
present controller.

All calls to the coordinator run on an actor of their own, because any of them may take long:
nothing that serves waits for one. Each is retried after a pause until it is answered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from checkpoints.loggers import get_logger
from replication.common.errors import (
    DuplicateBrokerRegistrationError,
    InconsistentClusterIdError,
    ReplicationError,
    TopicsWithoutIdsError,
)
from replication.common.retrying import Backoff, Reaction, RetryingCall, Settle
from replication.common.runtime import Runtime
from replication.common.state import BrokerRegistration, LiveBroker
from replication.coordination import (
    CoordinationError,
    Coordinator,
    CoordinatorFactory,
    NodeExistsError,
    SessionExpiredError,
    SessionState,
    nodes,
)

logger = get_logger(__name__)

BACKOFF = Backoff(50, 1000)
LEAVE_MS = 2000  # how long the end of a session may delay the end of the broker


class JoinStage(Enum):
    """The stages of joining."""

    OUT = "out"  # no session
    CONNECTED = "connected"
    WATCHING = "watching"  # notified of other controllers and of the end of its session
    MEMBER = "member"
    LEFT = "left"  # for good


class Owner(Protocol):
    """Callbacks to the broker, on the membership's actor. They must not wait."""

    def on_joining(self, session: Coordinator) -> None:
        """The broker is about to be registered by this session, with which it may talk.

        Raises:
            CoordinationError: it is tried again.
            InconsistentClusterIdError, TopicsWithoutIdsError: the broker is not registered, now or
                later.
        """
        ...

    def on_joined(self, session: Coordinator, broker_epoch: int) -> None:
        """The broker is registered by this session under this epoch."""
        ...

    def on_lost(self) -> None:
        """The session and the registration have ended. A new session is being made."""
        ...

    def on_controller(self, controller_id: int | None) -> None:
        """The controller has changed; None if there is none."""
        ...

    def on_refused(self, error: ReplicationError) -> None:
        """Another process has this broker's id and keeps it, or the tree is that of another
        cluster. There are no more tries.
        """
        ...


class Membership:
    """The membership of one broker. Thread-safe; no method waits.

    Attributes:
        actor: where all calls to the coordinator run, also those of others that belong to it.

    Args:
        registration: returns the broker's registration, called at each try.
        registration_timeout_ms: how long another session may hold this id. The session of an
            earlier life of this broker ends by its timeout.
    """

    def __init__(
        self,
        broker_id: int,
        runtime: Runtime,
        connect: CoordinatorFactory,
        registration: Callable[[], BrokerRegistration],
        owner: Owner,
        registration_timeout_ms: int,
    ) -> None:
        self.controller_id: int | None = None  # the known controller
        self.controller: LiveBroker | None = None  # its registration, if that is there
        self._broker_id = broker_id
        self._runtime = runtime
        self._connect = connect
        self._registration = registration
        self._owner = owner
        self._registration_timeout_ms = registration_timeout_ms
        self.actor = self._actor = runtime.actor(f"membership-{broker_id}", may_hang=True)
        self._stage = JoinStage.OUT
        self._session: Coordinator | None = None
        self._refused_since_ms: int | None = None
        self._refusal: ReplicationError = DuplicateBrokerRegistrationError(broker_id)
        self._leaving = False
        self._connecting = False
        self._lock = threading.Lock()  # guards these two
        self._unanswered: set[int] = set()  # sessions since the last join that may have registered
        self._join = RetryingCall(runtime, self._actor, BACKOFF, self._try_to_join, self._settled)
        self._search = RetryingCall(runtime, self._actor, BACKOFF, self._look_for_controller)
        self._report = RetryingCall(runtime, self._actor, BACKOFF, self._try_to_report)

    @property
    def session(self) -> Coordinator | None:
        """The present session, registered or not."""
        return self._session

    @property
    def has_unknown_epoch(self) -> bool:
        """Whether a session since the last join may have registered without an answer. A controller
        may know the epoch that it got.
        """
        return bool(self._unanswered)

    def start(self) -> None:
        """Join the cluster, and join again whenever a session ends."""
        self._actor.post(self._join.start)

    def join_no_more(self) -> None:
        """Begin no session and no registration any more. A call under way may still succeed."""
        with self._lock:
            self._leaving = True

    def find_controller(self) -> None:
        """Read who is controller."""
        self._actor.post(self._search.renew)

    def report_directory_failure(self) -> None:
        """Tell the controller that a log directory failed (R-153)."""
        self._actor.post(self._report.renew)

    # -- joining ---------------------------------------------------------------------------------

    def _try_to_join(self, settle: Settle) -> None:
        """Join as far as the coordinator answers. The next try continues there."""
        if self._leaving:
            settle(Reaction.DONE)
            return
        try:
            match self._stage:
                case JoinStage.OUT:
                    self._begin_session()
                case JoinStage.CONNECTED:
                    self._watch()
                case JoinStage.WATCHING:
                    self._register()
                case JoinStage.MEMBER | JoinStage.LEFT:
                    settle(Reaction.DONE)
                    return
        except SessionExpiredError:
            self._forget_session()
            settle(Reaction.AGAIN)
        except NodeExistsError as error:
            settle(self._on_refusal(error))
        except (InconsistentClusterIdError, TopicsWithoutIdsError) as error:
            self._refusal = error
            settle(Reaction.FATAL)
        except CoordinationError as error:
            logger.warning("broker %s: not registered yet: %s", self._broker_id, error)
            self._refused_since_ms = None  # a session could not end while the coordinator is silent
            settle(Reaction.AGAIN)
        else:
            self._try_to_join(settle)

    def _begin_session(self) -> None:
        with self._lock:
            if self._leaving:
                self._stage = JoinStage.LEFT
                return
            self._connecting = True
        try:
            session = self._connect()
        finally:
            with self._lock:
                self._connecting = False
                left = self._leaving
        if left:  # while the coordinator was answering
            self._stage = JoinStage.LEFT
            _close(session)
            return
        session.on_state(lambda state: self._actor.post(lambda: self._on_state(session, state)))
        self._session, self._stage = session, JoinStage.CONNECTED

    def _watch(self) -> None:
        session = self._living()
        session.watch(nodes.CONTROLLER, lambda event: self.find_controller())
        self._stage = JoinStage.WATCHING

    def _register(self) -> None:
        """Register this broker: the coordinator gives it its epoch (R-63)."""
        session = self._living()
        self._owner.on_joining(session)
        path = nodes.broker_path(self._broker_id)
        with self._lock:
            if self._leaving:
                return
            self._unanswered.add(session.session_id)
        try:
            _, epoch = session.create(
                path, nodes.encode_broker(self._registration()), ephemeral=True, parents=True
            )
        except NodeExistsError:
            node = session.get(path)
            if node is None or node.ephemeral_owner != session.session_id:
                if node is not None:
                    self._unanswered.discard(session.session_id)
                raise
            epoch = node.czxid  # created by a try whose answer was lost
        self._refused_since_ms = None
        self._stage = JoinStage.MEMBER
        self._unanswered.discard(session.session_id)
        self._owner.on_joined(session, epoch)
        self._unanswered.clear()
        self._search.renew()  # which may find that the session has ended

    def _living(self) -> Coordinator:
        """The live session. A session that has ended shows that in its state before any call."""
        session = self._session
        if session is None or session.state is SessionState.EXPIRED:
            raise SessionExpiredError(f"broker {self._broker_id} has no session")
        return session

    def _on_refusal(self, error: NodeExistsError) -> Reaction:
        now_ms = self._runtime.now_ms()
        if self._refused_since_ms is None:
            self._refused_since_ms = now_ms
        refused_ms = now_ms - self._refused_since_ms
        logger.warning(
            "broker %s is registered by another session for %s ms now: an earlier life of it "
            "whose session is not over yet, or another process with this id",
            self._broker_id,
            refused_ms,
        )
        return Reaction.FATAL if refused_ms >= self._registration_timeout_ms else Reaction.AGAIN

    def _settled(self, reaction: Reaction) -> None:
        if reaction is Reaction.FATAL:
            self._owner.on_refused(self._refusal)

    # -- the life of a session -------------------------------------------------------------------

    def _on_state(self, session: Coordinator, state: SessionState) -> None:
        if session is not self._session:
            return
        match state:
            case SessionState.EXPIRED:
                self._forget_session()
            case SessionState.CONNECTED:
                self._join.hurry()
                self._search.renew()
                self._report.hurry()
            case SessionState.SUSPENDED:
                pass  # requests until then are refused, and retried

    def _forget_session(self) -> None:
        """Forget a session that has ended, and begin again."""
        session, stage = self._session, self._stage
        self._session = None
        if stage is JoinStage.LEFT:
            return
        self._stage = JoinStage.OUT
        if session is not None:
            _close(session)  # releases its threads and sockets
        if stage is JoinStage.MEMBER:
            logger.warning("broker %s: its session is over", self._broker_id)
            self._owner.on_lost()
        self._join.renew()  # the present try may have just succeeded

    def _look_for_controller(self, settle: Settle) -> None:
        try:
            session = self._living()
            node = session.get(nodes.CONTROLLER)
            found = None if node is None else nodes.decode_controller(node.data)
            # Another broker is asked before any controller has sent where it is.
            self.controller = None if found is None else _registered(session, found)
        except SessionExpiredError:
            self._on_ended_session(settle)
        except CoordinationError as error:
            logger.warning("broker %s: who is controller? %s", self._broker_id, error)
            settle(Reaction.AGAIN)
        else:
            if found != self.controller_id:
                self.controller_id = found
                self._owner.on_controller(found)
            settle(Reaction.DONE)

    def _try_to_report(self, settle: Settle) -> None:
        """Report a failure.

        A registration makes the controller check all replicas of a broker, so without one there is
        nothing to report.
        """
        try:
            if self._stage is JoinStage.MEMBER:
                self._living().create(
                    nodes.log_dir_event_path(),
                    nodes.encode_log_dir_event(self._broker_id),
                    sequential=True,
                    parents=True,
                )
        except SessionExpiredError:
            self._on_ended_session(settle)
        except CoordinationError as error:
            logger.warning("broker %s: log directory event: %s", self._broker_id, error)
            settle(Reaction.AGAIN)
        else:
            settle(Reaction.DONE)

    def _on_ended_session(self, settle: Settle) -> None:
        """Handle a session that was found to have ended before its notification.

        Joining again does the rest.
        """
        settle(Reaction.DONE)
        if self._session is not None:
            self._forget_session()

    # -- the end ---------------------------------------------------------------------------------

    def leave(self, on_left: Callable[[], None]) -> None:
        """End the session and join no more.

        ``on_left`` is called once, on any thread, when the session is closed, or after
        ``LEAVE_MS`` if the coordinator does not answer. A session that is just being made is not
        waited for; it is closed as soon as it exists.
        """
        on_end = _Once(on_left)
        if self._is_connecting_while_leaving():
            on_end()
            return
        self._runtime.call_later(LEAVE_MS, on_end)
        self._actor.post(lambda: self._leave(on_end))

    def abandon(self) -> None:
        """Go silent as the end of the process does. The session ends by its timeout."""
        self._is_connecting_while_leaving()
        self._actor.close()

    def _is_connecting_while_leaving(self) -> bool:
        with self._lock:
            self._leaving = True
            return self._connecting

    def _leave(self, then: Callable[[], None]) -> None:
        session, self._session, self._stage = self._session, None, JoinStage.LEFT
        for call in (self._join, self._search, self._report):
            call.cancel()
        if session is not None:
            _close(session)
        then()


class _Once:
    """A callback that two callers may call, and that runs once."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callbacks = [callback]

    def __call__(self) -> None:
        try:
            callback = self._callbacks.pop()
        except IndexError:
            return
        callback()


def _registered(session: Coordinator, broker_id: int) -> LiveBroker | None:
    node = session.get(nodes.broker_path(broker_id))
    if node is None:
        return None
    return LiveBroker(nodes.decode_broker(broker_id, node.data), node.czxid)


def _close(session: Coordinator) -> None:
    try:
        session.close()
    except CoordinationError as error:
        logger.warning("the end of a session: %s", error)
