"""A broker's membership in its cluster: its session with the coordinator, its registration there,
and who is controller.

All calls to the coordinator are made on an actor of their own, for any of them may be without an
answer for long: nothing that serves ever waits for one. Each is made again, after a pause, until
it was answered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from checkpoints.loggers import get_logger
from replication.common.errors import DuplicateBrokerRegistrationError
from replication.common.retrying import Backoff, Reaction, RetryingCall, Settle
from replication.common.runtime import Runtime
from replication.common.state import BrokerRegistration
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
FAREWELL_MS = 2000  # how long the end of a session may keep a broker from its own


class Stage(Enum):
    """How far this broker has come."""

    OUT = "out"  # no session
    CONNECTED = "connected"
    WATCHING = "watching"  # hears of other controllers and of the end of its session
    MEMBER = "member"
    LEFT = "left"  # for good


class Owner(Protocol):
    """Who is told; on the membership's actor, so it must not wait for anything."""

    def on_joined(self, session: Coordinator, broker_epoch: int) -> None:
        """Registered, by this session, under this epoch."""
        ...

    def on_lost(self) -> None:
        """The session is over, and the registration with it; another is on its way."""
        ...

    def on_controller(self, controller_id: int | None) -> None:
        """Another broker is controller, or none."""
        ...

    def on_refused(self, error: DuplicateBrokerRegistrationError) -> None:
        """Somebody else has this broker's id, and keeps it. Nothing more is tried."""
        ...


class Membership:
    """See the module. Methods may be called from any thread; none waits.

    Args:
        registration: what the broker says of itself, asked for at each try.
        registration_timeout_ms: how long a registration of this id by another session may stand
            in the way: that of an earlier life of this broker ends by its timeout.
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
        self.controller_id: int | None = None  # as far as this broker knows
        self._broker_id = broker_id
        self._runtime = runtime
        self._connect = connect
        self._registration = registration
        self._owner = owner
        self._registration_timeout_ms = registration_timeout_ms
        self._actor = runtime.actor(f"membership-{broker_id}", may_hang=True)
        self._stage = Stage.OUT
        self._session: Coordinator | None = None
        self._refused_since_ms: int | None = None
        self._leaving = False
        self._connecting = False
        self._lock = threading.Lock()  # of these two
        self._join = RetryingCall(runtime, self._actor, BACKOFF, self._try_to_join, self._settled)
        self._search = RetryingCall(runtime, self._actor, BACKOFF, self._look_for_controller)
        self._report = RetryingCall(runtime, self._actor, BACKOFF, self._try_to_report)

    @property
    def session(self) -> Coordinator | None:
        """The present one, registered or not."""
        return self._session

    def start(self) -> None:
        """Join the cluster, and again whenever a session is over."""
        self._actor.post(self._join.start)

    def join_no_more(self) -> None:
        """Begin no session and register no more; what is under way ends as it does."""
        with self._lock:
            self._leaving = True

    def find_controller(self) -> None:
        """Look who is controller."""
        self._actor.post(self._search.renew)

    def report_directory_failure(self) -> None:
        """Tell the controller that a log directory failed (R-153)."""
        self._actor.post(self._report.renew)

    # -- joining ---------------------------------------------------------------------------------

    def _try_to_join(self, settle: Settle) -> None:
        """As far as the coordinator answers; the next try goes on from there."""
        if self._leaving:
            settle(Reaction.DONE)
            return
        try:
            match self._stage:
                case Stage.OUT:
                    self._begin_session()
                case Stage.CONNECTED:
                    self._watch()
                case Stage.WATCHING:
                    self._register()
                case Stage.MEMBER | Stage.LEFT:
                    settle(Reaction.DONE)
                    return
        except SessionExpiredError:
            self._forget_session()
            settle(Reaction.AGAIN)
        except NodeExistsError as error:
            settle(self._on_refusal(error))
        except CoordinationError as error:
            logger.warning("broker %s: not registered yet: %s", self._broker_id, error)
            self._refused_since_ms = None  # nor could a session end while nobody answers
            settle(Reaction.AGAIN)
        else:
            self._try_to_join(settle)

    def _begin_session(self) -> None:
        with self._lock:
            if self._leaving:
                self._stage = Stage.LEFT
                return
            self._connecting = True
        try:
            session = self._connect()
        finally:
            with self._lock:
                self._connecting = False
                left = self._leaving
        if left:  # while the coordinator thought it over
            self._stage = Stage.LEFT
            _close(session)
            return
        session.on_state(lambda state: self._actor.post(lambda: self._on_state(session, state)))
        self._session, self._stage = session, Stage.CONNECTED

    def _watch(self) -> None:
        session = self._living()
        session.watch(nodes.CONTROLLER, lambda event: self.find_controller())
        self._stage = Stage.WATCHING

    def _register(self) -> None:
        """Register this broker: the coordinator gives it its epoch (R-63)."""
        session = self._living()
        path = nodes.broker_path(self._broker_id)
        try:
            _, epoch = session.create(
                path, nodes.encode_broker(self._registration()), ephemeral=True, parents=True
            )
        except NodeExistsError:
            node = session.get(path)
            if node is None or node.ephemeral_owner != session.session_id:
                raise
            epoch = node.czxid  # created by a try whose answer was lost
        self._refused_since_ms = None
        self._stage = Stage.MEMBER
        self._owner.on_joined(session, epoch)
        self._search.renew()  # which may find that the session is over

    def _living(self) -> Coordinator:
        """The session; one that is over is known by its state before anything is asked of it."""
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
            self._broker_id, refused_ms,
        )  # fmt: skip
        return Reaction.FATAL if refused_ms >= self._registration_timeout_ms else Reaction.AGAIN

    def _settled(self, reaction: Reaction) -> None:
        if reaction is Reaction.FATAL:
            self._owner.on_refused(DuplicateBrokerRegistrationError(self._broker_id))

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
                pass  # what is asked meanwhile is refused, and asked again

    def _forget_session(self) -> None:
        """It is over: everything begins anew."""
        session, stage = self._session, self._stage
        self._session = None
        if stage is Stage.LEFT:
            return
        self._stage = Stage.OUT
        if session is not None:
            _close(session)  # lets go of its threads and sockets
        if stage is Stage.MEMBER:
            logger.warning("broker %s: its session is over", self._broker_id)
            self._owner.on_lost()
        self._join.renew()  # the try that is under way may have ended well just before

    def _look_for_controller(self, settle: Settle) -> None:
        try:
            node = self._living().get(nodes.CONTROLLER)
            found = None if node is None else nodes.decode_controller(node.data)
        except SessionExpiredError:
            self._on_silence(settle)
        except CoordinationError as error:
            logger.warning("broker %s: who is controller? %s", self._broker_id, error)
            settle(Reaction.AGAIN)
        else:
            if found != self.controller_id:
                self.controller_id = found
                self._owner.on_controller(found)
            settle(Reaction.DONE)

    def _try_to_report(self, settle: Settle) -> None:
        """A registration makes the controller look at all replicas of a broker: without one there
        is nothing to tell."""
        try:
            if self._stage is Stage.MEMBER:
                self._living().create(
                    nodes.log_dir_event_path(), nodes.encode_log_dir_event(self._broker_id),
                    sequential=True, parents=True,
                )  # fmt: skip
        except SessionExpiredError:
            self._on_silence(settle)
        except CoordinationError as error:
            logger.warning("broker %s: log directory event: %s", self._broker_id, error)
            settle(Reaction.AGAIN)
        else:
            settle(Reaction.DONE)

    def _on_silence(self, settle: Settle) -> None:
        """The session was found to be over before it said so. Whoever joins again does the rest."""
        settle(Reaction.DONE)
        if self._session is not None:
            self._forget_session()

    # -- the end ---------------------------------------------------------------------------------

    def leave(self, on_left: Callable[[], None]) -> None:
        """End the session and join no more.

        ``on_left`` is called once, from any thread: when the session was closed, and after
        ``FAREWELL_MS`` at the latest, if the coordinator does not answer. A session that is just
        being begun is not waited for; it is closed as soon as it is there.
        """
        farewell = _Once(on_left)
        if self._is_connecting_while_leaving():
            farewell()
            return
        self._runtime.call_later(FAREWELL_MS, farewell)
        self._actor.post(lambda: self._leave(farewell))

    def abandon(self) -> None:
        """Fall silent, as the end of the process does: the session ends by its timeout."""
        self._is_connecting_while_leaving()
        self._actor.close()

    def _is_connecting_while_leaving(self) -> bool:
        with self._lock:
            self._leaving = True
            return self._connecting

    def _leave(self, then: Callable[[], None]) -> None:
        session, self._session, self._stage = self._session, None, Stage.LEFT
        for call in (self._join, self._search, self._report):
            call.cancel()
        if session is not None:
            _close(session)
        then()


class _Once:
    """A callback that two may call, and which is called once."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callbacks = [callback]

    def __call__(self) -> None:
        try:
            callback = self._callbacks.pop()
        except IndexError:
            return
        callback()


def _close(session: Coordinator) -> None:
    try:
        session.close()
    except CoordinationError as error:
        logger.warning("the end of a session: %s", error)
