"""The states of a broker, and that its end is told however it comes."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from logstore.common.errors import LogstoreError
from logstore.manager import LogManager
from logstore.storage.memory import MemoryStorage
from logstore.testing import FaultyStorage
from replication.broker.broker import (
    Broker,
    BrokerEvent,
    BrokerSettings,
    BrokerState,
    Surroundings,
    next_state,
)
from replication.common.config import ReplicationConfig
from replication.common.error_codes import ErrorCode
from replication.common.errors import DuplicateBrokerRegistrationError
from replication.common.messages import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    LeaderAndIsrRequest,
    MetadataRequest,
    PartitionChange,
    Response,
    UpdateMetadataRequest,
)
from replication.common.state import BrokerRegistration, LiveBroker, PartitionRegistration
from replication.coordination import CoordinatorWentBackError, nodes
from replication.coordination.embedded import CoordinatorStore, EmbeddedCoordinator
from tests.support.cases import for_each
from tests.support.replication import ManualActor, ManualRuntime, RecordingTransport, Sent

S, E = BrokerState, BrokerEvent
EXPECTED = {
    (S.STARTING, E.JOINED): S.RUNNING,
    (S.RUNNING, E.LOST): S.STARTING,
    (S.STARTING, E.STOP): S.STOPPING,
    (S.RUNNING, E.STOP): S.STOPPING,
    (S.STOPPING, E.JOINED): S.STOPPING,
    (S.STOPPING, E.CLOSE): S.CLOSING,
    (S.CLOSING, E.CLOSED): S.STOPPED,
    **{(state, E.DIED): S.STOPPED for state in S if state is not S.STOPPED},
}


@for_each("state", list(S))
@for_each("event", list(E))
def test_each_event_in_each_state(state: BrokerState, event: BrokerEvent) -> None:
    assert next_state(state, event) is EXPECTED.get((state, event))


class Stage:
    """Broker 1 beside a controller 7 that the test plays."""

    def __init__(self, *directories: str) -> None:
        self.runtime, self.transport = ManualRuntime(), RecordingTransport()
        self.storage = FaultyStorage()
        self.store = CoordinatorStore("/coordinator", MemoryStorage(), self.runtime.clock)
        self.admin = self.store.connect()
        self.admin.create(nodes.CONTROLLER, nodes.encode_controller(7, 0), ephemeral=True)
        self.sessions: list[EmbeddedCoordinator] = []
        self.fatal: list[LogstoreError] = []
        self.stopped: list[str] = []
        self._directories = directories or ("/logs",)
        self.broker = self.again()

    def again(self) -> Broker:
        """The next life of the broker, or its first."""
        broker = Broker(
            BrokerSettings(
                broker_id=1,
                directories=self._directories,
                cluster_id="c",
                config=ReplicationConfig(initial_broker_registration_timeout_ms=10_000),
            ),
            Surroundings(
                connect=self._connect,
                transport=self.transport,
                runtime=self.runtime,
                storage=self.storage,
                run_later=lambda task: task(),
                on_fatal=self.fatal.append,
            ),
        )
        broker.start()
        self.runtime.advance(100)
        return broker

    def _connect(self) -> EmbeddedCoordinator:
        self.sessions.append(self.store.connect())
        return self.sessions[-1]

    def stop(self, name: str = "first", *, controlled: bool = True) -> None:
        self.broker.shutdown(lambda: self.stopped.append(name), controlled=controlled)
        self.runtime.run_until_idle()

    def asked(self) -> Sent:
        sent = self.transport.take()
        assert sent.broker_id == 7
        assert sent.request == ControlledShutdownRequest(1, self.broker.broker_epoch)
        return sent

    def serves(self) -> bool:
        answers: list[Response | None] = []
        self.broker.handle(MetadataRequest(), answers.append)
        return answers[0] is not None


def test_a_stop_waits_until_its_leaderships_have_moved() -> None:
    stage = Stage()
    assert stage.broker.state is S.RUNNING
    stage.stop()
    assert stage.broker.state is S.STOPPING
    assert stage.serves()
    stage.asked().reply(ControlledShutdownResponse(ErrorCode.NONE))
    stage.runtime.run_until_idle()
    assert stage.stopped == ["first"]
    assert stage.broker.state is S.STOPPED
    assert not stage.serves()
    assert stage.admin.get(nodes.broker_path(1)) is None


@for_each(
    "answer",
    [None, *(ControlledShutdownResponse(code) for code in ErrorCode if code is not ErrorCode.NONE)],
)
def test_whatever_the_controller_answers_it_stops_in_the_end(answer: Response | None) -> None:
    stage = Stage()
    stage.stop()
    asked = 0
    while not stage.stopped:
        while stage.transport.sent:
            stage.asked().reply(answer)
            asked += 1
            stage.runtime.run_until_idle()
        stage.runtime.advance(1000)
    assert 1 <= asked <= stage.broker.config.controlled_shutdown_max_retries


def test_a_second_stop_waits_for_the_same_end() -> None:
    stage = Stage()
    stage.stop("first")
    stage.stop("second")
    assert stage.stopped == []
    stage.asked().reply(ControlledShutdownResponse(ErrorCode.NONE))
    stage.runtime.run_until_idle()
    assert stage.stopped == ["first", "second"]
    assert not stage.transport.sent
    stage.stop("third")  # of one that is down
    assert stage.stopped == ["first", "second", "third"]


def test_a_second_stop_may_be_in_a_hurry() -> None:
    stage = Stage()
    stage.stop("first")
    stage.stop("second", controlled=False)
    assert stage.stopped == ["first", "second"]


@pytest.mark.parametrize("when", ["starting", "running", "stopping"])
def test_a_crash_is_an_end_too(when: str) -> None:
    stage = Stage()
    if when == "starting":
        stage.store.expire(stage.sessions[-1])
    if when == "stopping":
        stage.stop()
    else:
        stage.broker.shutdown(lambda: stage.stopped.append("first"))
    stage.broker.crash()
    stage.broker.crash()
    assert stage.stopped == ["first"]
    stage.runtime.advance(60_000)
    assert stage.stopped == ["first"]
    assert stage.broker.state is S.STOPPED
    assert stage.fatal == []


def test_the_last_directory_fails_while_it_stops() -> None:
    stage = Stage()
    stage.stop()
    stage.broker._on_directory_failure("/logs", LogstoreError("no disk"))
    stage.broker.log_manager._directories.fail("/logs", LogstoreError("no disk"))
    stage.runtime.run_until_idle()
    assert stage.stopped == ["first"]
    assert len(stage.fatal) == 1
    assert stage.broker.fatal_error is stage.fatal[0]


def test_a_directory_that_fails_while_it_is_opened_is_told_of_at_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An actor with a thread may run the task at once, when the broker is not whole yet."""
    storage, runtime = MemoryStorage(), ManualRuntime()
    storage.make_dir("/b")
    storage.write_file("/b/meta.properties", b"# lost\n")
    store = CoordinatorStore("/coordinator", MemoryStorage(), runtime.clock)
    with monkeypatch.context() as prompt:
        prompt.setattr(ManualActor, "post", lambda actor, task: task())
        broker = Broker(
            BrokerSettings(broker_id=1, directories=("/a", "/b")),
            Surroundings(
                connect=store.connect,
                transport=RecordingTransport(),
                runtime=runtime,
                storage=storage,
            ),
        )
    assert broker.log_manager.live_directories == ["/a"]
    broker.start()
    runtime.run_until_idle()
    assert "/b failed" in caplog.text


def test_a_part_that_cannot_be_closed_is_not_the_end_of_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()

    def fail(*arguments: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(stage.broker.log_manager, "close", fail)
    stage.broker.shutdown(lambda: stage.stopped.append("first"), controlled=False)
    with pytest.raises(RuntimeError):
        stage.runtime.run_until_idle()
    stage.runtime.run_until_idle()
    assert stage.stopped == ["first"]
    assert stage.admin.get(nodes.broker_path(1)) is None


def test_a_session_that_ends_while_leaderships_move_ends_the_moving() -> None:
    stage = Stage()
    stage.stop()
    stage.store.expire(stage.sessions[-1])
    stage.runtime.run_until_idle()
    assert stage.stopped == ["first"]


def test_a_clean_stop_is_proven_by_the_latest_registration() -> None:
    """A stop that begins between two sessions, of which the second is on its way: the controller
    knows that one, and asks for it when the broker is back."""
    stage = Stage()
    epoch = stage.broker.broker_epoch
    stage.broker.on_lost()
    stage.broker.shutdown(lambda: stage.stopped.append("first"))
    stage.broker.on_joined(stage.sessions[-1], epoch + 5)
    assert stage.broker.state is S.STOPPING
    stage.runtime.run_until_idle()
    assert stage.stopped == ["first"]
    again = LogManager(["/logs"], storage=stage.storage)
    assert again.previous_broker_epoch == epoch + 5
    again.close()


@pytest.mark.parametrize("told", [True, False])
def test_a_life_of_which_no_controller_heard(told: bool) -> None:
    """It started after a clean stop and ends in one: the controller may know the life before it
    only, and whatever that one had is there."""
    stage = Stage()
    first = stage.broker.broker_epoch
    stage.stop(controlled=False)
    second = stage.again()
    assert second.log_manager.previous_broker_epoch == first
    if told:
        request = LeaderAndIsrRequest(7, 1, second.broker_epoch, (), (), 1)
        answers: list[Any] = []
        second.replica_manager.control(request, answers.append)
        stage.runtime.run_until_idle()
        assert answers[0].error_code is ErrorCode.NONE
    stage.broker = second
    stage.stop(controlled=False)
    third = stage.again()
    assert third.log_manager.previous_broker_epoch == second.broker_epoch
    node = stage.admin.get(nodes.broker_path(1))
    assert node is not None
    registration = nodes.decode_broker(1, node.data)
    assert registration.continues(second.broker_epoch)
    assert registration.continues(first) is not told


def test_a_life_that_never_joined_keeps_the_proof() -> None:
    stage = Stage()
    first = stage.broker.broker_epoch
    stage.stop(controlled=False)
    stage.store.crash()
    second = stage.again()
    assert second.state is S.STARTING
    stage.broker = second
    stage.stop(controlled=False)
    stage.runtime.advance(5000)
    again = LogManager(["/logs"], storage=stage.storage)
    assert again.last_stop.broker_epochs == (first,)
    again.close()


def test_one_that_stops_between_two_sessions_begins_no_other() -> None:
    stage = Stage()
    stage.stop()
    stage.store.expire(stage.sessions[-1])
    stage.runtime.advance(60_000)
    assert stage.stopped == ["first"]
    assert len(stage.sessions) == 1


@pytest.mark.parametrize("act", ["stop", "crash"])
def test_who_is_down_stays_down(act: str) -> None:
    """What comes late from the coordinator has no effect any more."""
    stage = Stage()
    epoch = stage.broker.broker_epoch
    if act == "stop":
        stage.stop(controlled=False)
    else:
        stage.broker.crash()
    stage.broker.on_joined(stage.sessions[-1], epoch + 5)
    stage.broker.on_lost()
    stage.runtime.advance(60_000)
    assert stage.broker.state is S.STOPPED
    assert stage.broker.broker_epoch == epoch


def test_a_broker_whose_id_is_taken_stops_with_a_reason() -> None:
    stage = Stage()
    stage.broker.crash()
    (session,) = stage.sessions
    other = ManualRuntime(stage.runtime.clock)
    fatal: list[LogstoreError] = []
    broker = Broker(
        BrokerSettings(
            broker_id=1,
            directories=("/other",),
            cluster_id=stage.broker.log_manager.cluster_id,
            config=ReplicationConfig(initial_broker_registration_timeout_ms=10_000),
        ),
        Surroundings(
            connect=stage.store.connect,
            transport=stage.transport,
            runtime=other,
            storage=FaultyStorage(),
            run_later=lambda task: task(),
            on_fatal=fatal.append,
        ),
    )
    broker.start()
    for _ in range(12):
        session.heartbeat()
        assert broker.state is not S.RUNNING
        other.advance(1000)
    assert broker.state is S.STOPPED
    (error,) = fatal
    assert isinstance(error, DuplicateBrokerRegistrationError)
    assert broker.fatal_error is error
    node = stage.admin.get(nodes.broker_path(1))
    assert node is not None
    assert node.ephemeral_owner == session.session_id


def test_a_broker_without_an_answer_can_be_stopped() -> None:
    stage = Stage()
    stage.store.crash()
    stage.runtime.advance(5000)
    stage.stop(controlled=False)
    stage.runtime.advance(5000)
    assert stage.stopped == ["first"]


def test_registrations_name_the_epochs_since_which_nothing_was_lost() -> None:
    """KIP-966: of a process that found no clean stop, its own."""
    stage = Stage()
    epochs = [stage.broker.broker_epoch]
    for _ in range(3):
        node = stage.admin.get(nodes.broker_path(1))
        assert node is not None
        registration = nodes.decode_broker(1, node.data)
        assert registration.previous_broker_epoch == -1
        assert registration.earlier_epochs == tuple(epochs[:-1])
        stage.store.expire(stage.sessions[-1])
        stage.runtime.advance(2000)
        epochs.append(stage.broker.broker_epoch)
    assert epochs == sorted(set(epochs))


@pytest.mark.parametrize(
    ("leader", "alive", "known"),
    [
        (2, (1, 2), True),
        (2, (1,), False),  # clients would be sent to a broker that is gone
        (-1, (1, 2), False),
        (1, (1, 2), False),  # it does not lead yet, and would refuse what it is sent
    ],
)
def test_a_leader_is_known_when_clients_can_be_sent_to_it(
    leader: int, alive: tuple[int, ...], known: bool
) -> None:
    stage, tp = Stage(), TopicPartition("orders", 0)
    registration = PartitionRegistration((1, 2), (1, 2), leader, 0, 0)
    brokers = tuple(LiveBroker(BrokerRegistration(each), 100 + each) for each in alive)
    changes = (PartitionChange(tp, registration, uuid.UUID(int=1)),)
    assert not stage.broker.knows_leader(tp)
    stage.broker.metadata.update(UpdateMetadataRequest(7, 1, 101, changes, brokers))
    assert stage.broker.knows_leader(tp) is known


def test_a_coordinator_at_an_older_state_ends_the_broker_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R-63: epochs only rise. The next life of the broker goes by the state that there is."""
    stage = Stage()
    first = stage.broker.broker_epoch
    before, stage.store = (
        stage.store,
        CoordinatorStore("/older", MemoryStorage(), stage.runtime.clock),
    )
    before.expire(stage.sessions[-1])
    stage.runtime.advance(10_000)
    (error,) = stage.fatal
    assert isinstance(error, CoordinatorWentBackError)
    assert stage.broker.state is S.STOPPED
    assert f"comes after {first}: an older state was put back" in caplog.text
    assert stage.store.connect().get(nodes.broker_path(1)) is None
    assert stage.again().state is S.RUNNING


def test_a_coordinator_that_says_that_it_went_back_ends_the_broker() -> None:
    stage = Stage()
    error = CoordinatorWentBackError("at transaction 0x3, and was at 0x4")

    def refusing() -> EmbeddedCoordinator:
        raise error

    stage.store.connect = refusing  # type: ignore[method-assign]
    stage.store.expire(stage.sessions[-1])
    stage.runtime.advance(10_000)
    assert stage.fatal == [error]
    assert stage.broker.state is S.STOPPED
