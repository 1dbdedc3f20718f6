"""A broker's membership: whatever the coordinator leaves unanswered is asked again."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from logstore.storage.memory import MemoryStorage
from replication.broker.membership import LEAVE_MS, Membership
from replication.common.errors import DuplicateBrokerRegistrationError
from replication.common.runtime import ThreadRuntime
from replication.common.state import BrokerRegistration
from replication.coordination import Coordinator, CoordinatorUnavailableError, nodes
from replication.coordination.embedded import CoordinatorStore
from tests.support.cases import for_each
from tests.support.coordinator_faults import LosingService, once
from tests.support.replication import ManualRuntime
from tests.support.until import patience

SESSION_MS = 6000
REGISTRATION_MS = 20_000


class Stage:
    """Broker 1's membership, and another session that plays the rest of the cluster."""

    def __init__(self, loses: Callable[[str, str], str | None] = lambda method, path: None) -> None:
        self.runtime = ManualRuntime()
        self.store = CoordinatorStore(
            "/coordinator", MemoryStorage(), self.runtime.clock, SESSION_MS
        )
        self.service = LosingService(self.store, loses)
        self.admin = self.store.connect()
        self.told: list[object] = []
        self.epochs: list[int] = []
        self.controllers: list[int | None] = []
        self.membership = self.member()
        self.runtime.every(SESSION_MS / 4, self._keep_sessions)

    def member(self) -> Membership:
        return Membership(
            1,
            self.runtime,
            self.service.connect,
            lambda: BrokerRegistration(1),
            self,
            REGISTRATION_MS,
        )

    def _keep_sessions(self) -> None:
        for session in list(self.store._sessions.values()):
            if session is self.admin or session in (s._session for s in self.sessions()):
                with suppress(CoordinatorUnavailableError):  # it is cut off
                    session.heartbeat()
        self.store.expire_sessions(self.runtime.now_ms())

    def sessions(self) -> list[object]:
        session = self.membership.session
        return [] if session is None else [session]

    # as its owner

    def on_joining(self, session: Coordinator) -> None:
        pass

    def on_joined(self, session: Coordinator, broker_epoch: int) -> None:
        self.told.append("joined")
        self.epochs.append(broker_epoch)

    def on_lost(self) -> None:
        self.told.append("lost")

    def on_controller(self, controller_id: int | None) -> None:
        self.controllers.append(controller_id)

    def on_refused(self, error: DuplicateBrokerRegistrationError) -> None:
        self.told.append(error)

    # the cluster

    def start(self) -> None:
        self.membership.start()
        self.runtime.advance(10_000)

    def elect(self, broker_id: int) -> None:
        if self.admin.get(nodes.CONTROLLER) is not None:
            self.admin.delete(nodes.CONTROLLER)
        self.admin.create(nodes.CONTROLLER, nodes.encode_controller(broker_id, 0))
        self.runtime.advance(5000)

    def expire(self) -> None:
        self.store.expire(self.membership.session._session)  # type: ignore[union-attr]
        self.runtime.advance(10_000)

    def check(self) -> None:
        """It is a member, by the epoch of its own node, and hears of every controller."""
        node = self.admin.get(nodes.broker_path(1))
        assert node is not None
        session = self.membership.session
        assert session is not None
        assert (node.ephemeral_owner, node.czxid) == (session.session_id, self.epochs[-1])
        for controller in (2, 3):
            self.elect(controller)
            assert self.membership.controller_id == controller


def test_a_member_knows_its_epoch_and_the_controller() -> None:
    stage = Stage()
    stage.start()
    stage.check()
    assert stage.told == ["joined"]
    assert stage.controllers == [2, 3]
    assert [method for method, _ in stage.service.made[:4]] == ["connect", "watch", "create", "get"]


def test_after_its_session_it_joins_again_under_another_epoch() -> None:
    stage = Stage()
    stage.start()
    stage.expire()
    assert stage.told == ["joined", "lost", "joined"]
    assert stage.epochs[0] < stage.epochs[1]
    stage.check()


def test_a_session_that_ends_as_the_registration_succeeds() -> None:
    """Before the try that registered is settled."""
    stage = Stage()
    stage.admin.create(nodes.CONTROLLER, nodes.encode_controller(2, 0))
    found: list[int | None] = []

    def on_controller(controller_id: int | None) -> None:
        if not found:
            stage.store.expire(stage.membership.session._session)  # type: ignore[union-attr]
        found.append(controller_id)

    stage.on_controller = on_controller  # type: ignore[method-assign]
    stage.start()
    assert stage.told == ["joined", "lost", "joined"]
    stage.check()


def test_who_is_to_join_no_more_does_not() -> None:
    stage = Stage()
    stage.start()
    stage.membership.join_no_more()
    assert stage.admin.get(nodes.broker_path(1)) is not None  # it stays what it is
    stage.expire()
    stage.runtime.advance(60_000)
    assert stage.told == ["joined", "lost"]
    assert stage.admin.get(nodes.broker_path(1)) is None
    left: list[bool] = []
    stage.membership.leave(lambda: left.append(True))
    stage.runtime.advance(LEAVE_MS)
    assert left == [True]


def test_a_registration_without_an_answer_may_have_an_epoch() -> None:
    """Until the next one is known. One that another session refuses has none."""
    silent = True
    creates = ("create", nodes.broker_path(1))
    stage = Stage(lambda *call: "after" if silent and call == creates else None)
    stage.membership.start()
    stage.runtime.run_until_idle()
    assert stage.membership.has_unknown_epoch
    stage.store.expire(stage.membership.session._session)  # type: ignore[union-attr]
    silent = False
    stage.runtime.advance(10_000)
    assert stage.told == ["joined"]
    assert not stage.membership.has_unknown_epoch
    other = stage.member()
    other.start()
    stage.runtime.run_until_idle()
    assert not other.has_unknown_epoch


@for_each("how", ["before", "after"])
@for_each("number", range(16))
def test_each_lost_answer_is_made_good(number: int, how: str) -> None:
    """Of every call of joining, of looking for controllers, of a failed directory and of joining
    again."""
    stage = Stage(once(number, how))
    stage.start()
    stage.check()
    stage.membership.report_directory_failure()
    stage.runtime.advance(5000)
    assert stage.admin.children(nodes.LOG_DIR_EVENTS)
    stage.expire()
    stage.check()
    assert stage.told == ["joined", "lost", "joined"]
    assert len(stage.service.made) >= 14


@for_each("seed", range(30))
def test_many_lost_answers_are_made_good(seed: int) -> None:
    source = random.Random(seed)
    silent = True

    def loses(method: str, path: str) -> str | None:
        draw = source.random()
        return None if not silent or draw > 0.6 else "before" if draw < 0.3 else "after"

    stage = Stage(loses)
    stage.start()
    for _ in range(3):
        stage.membership.report_directory_failure()
        stage.elect(source.randrange(2, 5))
        stage.store.expire_sessions(stage.runtime.now_ms())
        if stage.membership.session is not None and source.random() < 0.5:
            stage.expire()
    silent = False
    stage.runtime.advance(10_000)
    stage.check()


def test_a_silent_coordinator_is_asked_with_pauses() -> None:
    stage = Stage(lambda method, path: "before")
    stage.membership.start()
    stage.runtime.advance(60_000)
    assert 50 < len(stage.service.made) < 90
    assert stage.told == []


def test_an_answer_that_was_about_another_time_is_asked_for_again() -> None:
    """The controller changes while the read of the one before is on its way to its end."""
    stage = Stage()
    stage.start()
    stage.elect(2)
    stage.membership.find_controller()
    stage.membership.find_controller()
    stage.admin.set(nodes.CONTROLLER, nodes.encode_controller(3, 0))
    stage.runtime.advance(100)
    assert stage.membership.controller_id == 3


def test_a_session_that_ends_without_a_word_is_noticed() -> None:
    stage = Stage()
    stage.start()
    session = stage.membership.session._session  # type: ignore[union-attr]
    session.state_listeners.clear()
    stage.store.expire(session)
    stage.runtime.advance(1000)
    assert stage.told == ["joined"]
    stage.membership.find_controller()
    stage.runtime.advance(1000)
    assert stage.told == ["joined", "lost", "joined"]
    stage.check()


def test_suspended_and_back_it_looks_again() -> None:
    stage = Stage()
    stage.start()
    session = stage.membership.session._session  # type: ignore[union-attr]
    session.suspend()
    stage.runtime.advance(3000)
    stage.admin.create(nodes.CONTROLLER, nodes.encode_controller(4, 0))
    stage.runtime.advance(1000)
    assert stage.membership.controller_id is None
    session.resume()
    stage.runtime.advance(1000)
    assert stage.membership.controller_id == 4
    assert stage.told == ["joined"]


def test_back_it_looks_before_its_watches_are_back() -> None:
    """ZooKeeper may refuse them for as long as it likes."""
    stage = Stage()
    stage.start()
    session = stage.membership.session._session  # type: ignore[union-attr]
    session.suspend()
    stage.admin.create(nodes.CONTROLLER, nodes.encode_controller(4, 0))
    session.watches.clear()
    session.resume()
    stage.runtime.advance(1000)
    assert stage.membership.controller_id == 4


@for_each("number", range(1, 12))
def test_its_session_may_end_before_any_call(number: int) -> None:
    """Whoever joined is told that it is lost before it is told that it joined again."""
    left = [number]

    def loses(method: str, path: str) -> str | None:
        left[0] -= 1
        session = stage.membership.session
        if left[0] == 0 and session is not None:
            stage.store.expire(session._session)  # type: ignore[attr-defined]
        return None

    stage = Stage(loses)
    stage.start()
    stage.elect(2)
    stage.expire()
    stage.check()
    joins = stage.told.count("joined")
    assert joins >= 2
    assert stage.told == ["joined", "lost"] * (joins - 1) + ["joined"]


class TestAnotherWithItsId:
    def stage(self) -> tuple[Stage, Coordinator]:
        stage = Stage()
        other = stage.store.connect()
        other.create(
            nodes.broker_path(1),
            nodes.encode_broker(BrokerRegistration(1)),
            ephemeral=True,
            parents=True,
        )
        return stage, other

    def test_an_earlier_life_ends_by_its_timeout(self) -> None:
        stage, _ = self.stage()
        stage.membership.start()
        stage.runtime.advance(SESSION_MS + 5000)
        assert stage.told == ["joined"]
        stage.check()

    def test_silence_is_no_refusal(self) -> None:
        """A session cannot end while the coordinator is down: its time begins anew after it."""
        stage, other = self.stage()
        beats = stage.runtime.every(1000, other.heartbeat)  # type: ignore[attr-defined]
        stage.membership.start()
        stage.runtime.advance(1000)
        stage.service.loses = lambda method, path: "before"
        stage.runtime.advance(REGISTRATION_MS)
        stage.service.loses = lambda method, path: None
        beats.cancel()
        stage.runtime.advance(SESSION_MS + 5000)
        assert stage.told == ["joined"]
        stage.check()

    def test_one_that_lives_is_told_of_and_refused_in_the_end(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        stage, other = self.stage()
        stage.runtime.every(1000, other.heartbeat)  # type: ignore[attr-defined]
        stage.membership.start()
        stage.runtime.advance(REGISTRATION_MS - 1000)
        assert stage.told == []
        warnings = caplog.text.count("broker 1 is registered by another session")
        assert 15 < warnings < 40
        stage.runtime.advance(3000)
        (error,) = stage.told
        assert isinstance(error, DuplicateBrokerRegistrationError)
        assert "broker 1 is registered already" in str(error)
        made = len(stage.service.made)
        stage.runtime.advance(60_000)
        assert len(stage.service.made) <= made + 1


class TestLeaving:
    def test_the_registration_goes_at_once(self) -> None:
        stage, left = Stage(), []
        stage.start()
        stage.membership.leave(lambda: left.append(True))
        stage.runtime.run_until_idle()
        assert stage.admin.get(nodes.broker_path(1)) is None
        stage.runtime.advance(LEAVE_MS + 10_000)
        assert left == [True]
        assert stage.told == ["joined"]

    def test_before_it_joined(self) -> None:
        stage, left = Stage(), []
        stage.membership.start()
        stage.membership.leave(lambda: left.append(True))
        stage.runtime.advance(10_000)
        assert left == [True]
        assert stage.admin.get(nodes.broker_path(1)) is None

    def test_abandoned_it_is_silent(self) -> None:
        stage = Stage()
        stage.start()
        made = len(stage.service.made)
        stage.membership.abandon()
        stage.membership.find_controller()
        stage.elect(2)
        assert len(stage.service.made) == made

    @pytest.mark.parametrize("stuck", ["connect", "create", "close"])
    def test_who_leaves_does_not_wait_for_a_coordinator_that_hangs(self, stuck: str) -> None:
        """With real threads: the call hangs, and its session is closed when it comes back."""
        goes_on, entered = threading.Event(), threading.Event()
        store = CoordinatorStore("/coordinator", MemoryStorage(), ThreadRuntime("c").clock)
        runtime, closed = ThreadRuntime("test"), threading.Event()

        class Session:
            def __init__(self, real: Coordinator) -> None:
                self._real = real

            def __getattr__(self, name: str) -> object:
                if name == stuck:
                    hang()
                return getattr(self._real, name)

            def close(self) -> None:
                if stuck == "close":
                    hang()
                self._real.close()
                closed.set()

        def hang() -> None:
            entered.set()
            assert goes_on.wait(patience())

        def connect() -> Coordinator:
            session = Session(store.connect())
            if stuck == "connect":
                hang()
            return session  # type: ignore[return-value]

        class Owner:
            def on_joining(self, session: Coordinator) -> None: ...
            def on_joined(self, session: Coordinator, broker_epoch: int) -> None:
                joined.set()

            def on_lost(self) -> None: ...
            def on_controller(self, controller_id: int | None) -> None: ...
            def on_refused(self, error: DuplicateBrokerRegistrationError) -> None: ...

        joined, left = threading.Event(), threading.Event()
        membership = Membership(
            1, runtime, connect, lambda: BrokerRegistration(1), Owner(), REGISTRATION_MS
        )
        membership.start()
        assert (joined if stuck == "close" else entered).wait(patience())
        membership.leave(left.set)
        at_once = stuck == "connect"  # there is no session to take leave of
        assert left.wait(LEAVE_MS / 2000 if at_once else LEAVE_MS / 1000 + 5)
        runtime.close()  # does not wait either
        assert not goes_on.is_set()
        goes_on.set()
        if stuck != "create":
            assert closed.wait(patience())


def test_an_error_that_is_no_refusal_is_not_the_end() -> None:
    failed: list[str] = []

    def loses(method: str, path: str) -> str | None:
        if method == "connect" and not failed:
            failed.append(path)
            raise OSError("no descriptors")
        return None

    stage = Stage(loses)
    stage.membership.start()
    with pytest.raises(OSError):
        stage.runtime.run_until_idle()
    stage.runtime.advance(5000)
    stage.check()
