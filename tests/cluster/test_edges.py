"""Brokers at their edges, on real threads: a coordinator without an answer, an end that comes
twice, a replica that was moved away from a broker that is down."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from logstore.common.errors import LogstoreError
from logstore.log import PartitionLog
from replication.broker.broker import Broker, BrokerState
from replication.common.config import ReplicationConfig
from replication.common.error_codes import ErrorCode
from replication.common.errors import (
    BrokerUnavailableError,
    DuplicateBrokerRegistrationError,
    ReplicationError,
    UnknownPartitionError,
)
from replication.common.messages import (
    AlterPartitionReassignmentsRequest,
    DeleteTopicRequest,
    MetadataRequest,
    Response,
)
from replication.common.state import BrokerRegistration
from replication.common.transport import LocalTransport
from replication.coordination import SessionState, nodes, open_coordinator
from replication.embedded.cluster import Cluster
from tests.support.coordinator_faults import LosingService
from tests.support.replication import ManualRuntime
from tests.support.until import patience, until

pytestmark = pytest.mark.slow


def in_background(task: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=task, daemon=True)
    thread.start()
    return thread


class Faulty(LosingService):
    """A coordinator whose answers a test may lose."""

    def __init__(self, url: str) -> None:
        super().__init__(open_coordinator(url, session_timeout_ms=6000), self._loses)
        self.rule: Callable[[str, str], str | None] = lambda method, path: None

    def _loses(self, method: str, path: str) -> str | None:
        return self.rule(method, path)


@pytest.fixture
def coordinator_url(tmp_path: Path) -> str:
    return f"embedded:{tmp_path}/coordinator"


@pytest.fixture
def faulty(coordinator_url: str, tmp_path: Path) -> Iterator[tuple[Faulty, Cluster]]:
    service = Faulty(coordinator_url)
    config = ReplicationConfig(replica_lag_time_max_ms=1000)
    with Cluster(3, tmp_path / "brokers", coordinator=service, config=config) as cluster:
        cluster._runtime.every(1000, cluster._keep_sessions)
        yield service, cluster
        service.rule = lambda method, path: None


class TestSilence:
    def test_one_unanswered_read_of_the_controller(self, faulty: tuple[Faulty, Cluster]) -> None:
        """A leader that did not hear who is controller asks again, and its ISR may shrink."""
        service, cluster = faulty
        leader, other = (b for b in (0, 1, 2) if b != cluster.controller_id)
        third = cluster.controller_id
        (tp,) = cluster.create_topic(
            "t", assignment=[[leader, other, third]], config={"min.insync.replicas": 2}
        )  # type: ignore[list-item]
        cluster.produce("t", b"1")
        cluster.stop(leader)
        lost: list[str] = []

        def loses(method: str, path: str) -> str | None:
            if (method, path) == ("get", nodes.CONTROLLER) and not lost:
                lost.append(path)
                return "before"
            return None

        service.rule = loses
        cluster.start(leader)
        cluster.wait_until(lambda: len(cluster.isr(tp)) == 3, "in sync")
        cluster.elect_preferred(tp)
        cluster.wait_until(lambda: cluster.leader(tp) == leader, "the preferred one leads")
        assert lost
        for link in ((leader, other), (other, leader)):
            cluster.network.cut(*link)
        cluster.produce("t", b"2")  # acks=all: only a smaller ISR lets it be
        assert other not in cluster.isr(tp)

    def test_a_stop_does_not_wait_for_connect(self, faulty: tuple[Faulty, Cluster]) -> None:
        service, cluster = faulty
        goes_on = threading.Event()

        def loses(method: str, path: str) -> str | None:
            if method == "connect":
                goes_on.wait(patience())
                return "before"
            return None

        service.rule = loses
        service.service.expire(cluster.session(1)._session)  # type: ignore[attr-defined]
        cluster.wait_until(lambda: cluster.broker(1).state is BrokerState.STARTING)
        stop = in_background(lambda: cluster.stop(1, controlled=False))
        stop.join(patience())
        assert not stop.is_alive()
        goes_on.set()

    def test_a_stop_does_not_wait_for_what_the_controller_asks(
        self, faulty: tuple[Faulty, Cluster]
    ) -> None:
        service, cluster = faulty
        goes_on, entered = threading.Event(), threading.Event()
        controller = cluster.controller_id
        assert controller is not None

        def loses(method: str, path: str) -> str | None:
            if (method, path) == ("children", nodes.BROKER_IDS):
                entered.set()
                goes_on.wait(patience())
            return None

        service.rule = loses
        cluster.crash(next(b for b in cluster.live_brokers if b != controller))
        assert entered.wait(patience())
        stop = in_background(lambda: cluster.stop(controller, controlled=False))
        stop.join(patience())
        assert not stop.is_alive()
        goes_on.set()

    def test_a_failed_directory_does_not_wait_for_connect(
        self, faulty: tuple[Faulty, Cluster]
    ) -> None:
        service, cluster = faulty
        goes_on = threading.Event()
        service.rule = lambda method, path: (
            "before" if method == "connect" and goes_on.wait(patience()) else None
        )
        service.service.expire(cluster.session(1)._session)  # type: ignore[attr-defined]
        cluster.wait_until(lambda: cluster.broker(1).state is BrokerState.STARTING)
        broker = cluster.broker(1)
        (path,) = broker.log_manager.live_directories
        broker.log_manager._directories.fail(path, LogstoreError("no disk"))
        cluster.wait_until(lambda: broker.state is BrokerState.STOPPED, "it gives up")
        goes_on.set()

    def test_a_session_that_comes_too_late_is_not_the_next_life(
        self, faulty: tuple[Faulty, Cluster]
    ) -> None:
        service, cluster = faulty
        goes_on, held = threading.Event(), list[str]()

        def loses(method: str, path: str) -> str | None:
            if method == "connect" and not held:
                held.append(method)
                goes_on.wait(patience())
            return None

        made, connect = list[Any](), service.service.connect
        service.service.connect = lambda: made.append(connect()) or made[-1]
        service.rule = loses
        service.service.expire(cluster.session(1)._session)  # type: ignore[attr-defined]
        cluster.wait_until(lambda: bool(held), "it connects")
        cluster.stop(1, controlled=False)
        cluster.start(1)
        session = cluster.session(1)
        goes_on.set()
        until(lambda: len(made) == 2 and made[1].state is SessionState.EXPIRED)
        assert cluster.session(1) is session
        assert cluster.broker(1).state is BrokerState.RUNNING

    def test_a_stop_while_an_answer_is_out_ends_the_session(
        self, faulty: tuple[Faulty, Cluster]
    ) -> None:
        """As soon as the answer is there, and not by a timeout that a client's pings put off."""
        service, cluster = faulty
        asked, goes_on = threading.Event(), threading.Event()
        membership = cluster.broker(1).membership

        def loses(method: str, path: str) -> str | None:
            if threading.current_thread().name == "membership-1" and method == "get":
                asked.set()
                goes_on.wait(patience())
            return None

        service.rule = loses
        membership.find_controller()
        assert asked.wait(patience())
        session = cluster.session(1)
        cluster.stop(1, controlled=False)
        assert session.state is SessionState.CONNECTED
        goes_on.set()
        cluster.wait_until(lambda: session.state is SessionState.EXPIRED, "its end", patience())
        assert cluster.session(0).get(nodes.broker_path(1)) is None


def frozen() -> Cluster:
    """A cluster whose broker 1 is cut off from the others: its controlled stop must repeat."""
    cluster = Cluster(3, config=ReplicationConfig(controlled_shutdown_retry_backoff_ms=300_000))
    cluster.wait_until(lambda: cluster.controller_id is not None)
    if cluster.controller_id == 1:  # it would need nobody else, and stop at once
        cluster.stop(1)
        cluster.wait_until(lambda: cluster.controller_id in (0, 2))
        cluster.start(1)
    cluster.create_topic("t", 1, 3)
    cluster.cut_off(1, coordinator=False)
    return cluster


def reached(cluster: Cluster, sender: int, receiver: int) -> bool:
    answers: list[Response | None] = []
    transport = LocalTransport(cluster.network, sender, ManualRuntime())
    transport.send(receiver, MetadataRequest(), answers.append)
    until(lambda: bool(answers))
    return answers[0] is not None


def test_brokers_are_healed_one_by_one() -> None:
    with Cluster(3) as cluster:
        cluster.cut_off(1)
        cluster.cut_off(2, coordinator=False)
        cluster.heal(1)
        assert (reached(cluster, 1, 0), reached(cluster, 0, 1)) == (True, True)
        assert (reached(cluster, 1, 2), reached(cluster, 2, 0)) == (False, False)
        cluster.heal(2)
        assert (reached(cluster, 1, 2), reached(cluster, 2, 0)) == (True, True)
        cluster.wait_until(lambda: sorted(cluster.live_brokers) == [0, 1, 2])


class TestTheEndComesTwice:
    @pytest.mark.parametrize("end", ["crash", "stop", "last directory"])
    def test_while_a_broker_stops(self, end: str) -> None:
        with frozen() as cluster:
            broker = cluster.broker(1)
            first = in_background(lambda: cluster.stop(1))
            cluster.wait_until(lambda: broker.state is BrokerState.STOPPING)
            if end == "crash":
                cluster.crash(1)
            elif end == "stop":
                second = in_background(lambda: cluster.stop(1, controlled=False))
                second.join(patience())
                assert not second.is_alive()
            else:
                (path,) = broker.log_manager.live_directories
                broker.log_manager._directories.fail(path, LogstoreError("no disk"))
            first.join(patience())
            assert not first.is_alive()
            assert broker.state is BrokerState.STOPPED
            cluster.heal()
            cluster.start(1)

    def test_two_threads_stop_and_a_third_starts_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The slower of the two must not take down the next life."""
        both = threading.Barrier(2)  # a thread that comes later stops the next life rightly
        honest = Broker.shutdown

        def shutdown(broker: Broker, *arguments: Any, **options: Any) -> None:
            both.wait(patience())
            honest(broker, *arguments, **options)

        with Cluster(1) as cluster:
            for _ in range(10):
                with monkeypatch.context() as patch:
                    patch.setattr(Broker, "shutdown", shutdown)
                    stops = [in_background(lambda: quiet(cluster.stop)) for _ in range(2)]
                    stops[0].join(patience())
                    cluster.start(0)
                    stops[1].join(patience())
                    cluster.start(0)
                assert not any(stop.is_alive() for stop in stops)
                assert cluster.network.bound == [0]
                assert cluster.session(0) is not None

    def test_a_cluster_is_closed_while_a_broker_stops(self) -> None:
        cluster = frozen()
        broker = cluster.broker(1)
        stop = in_background(lambda: quiet(cluster.stop, 1))
        cluster.wait_until(lambda: broker.state is BrokerState.STOPPING)
        close = in_background(cluster.close)
        close.join(patience())
        stop.join(patience())
        assert not close.is_alive()
        assert not stop.is_alive()

    def test_no_timer_asks_a_closed_coordinator(self) -> None:
        with Cluster(1) as cluster:
            close, timer = cluster.coordinator.close, cluster._runtime._thread
            was_alive = []

            def close_coordinator() -> None:
                was_alive.append(timer.is_alive())
                close()

            cluster.coordinator.close = close_coordinator  # type: ignore[method-assign]
        assert was_alive == [False]

    def test_many_start_it_at_once(self) -> None:
        with Cluster(1) as cluster:
            for _ in range(10):
                cluster.stop(0)
                together, failures = threading.Barrier(4), []

                def start(together=together, failures=failures) -> None:  # type: ignore[no-untyped-def]
                    together.wait()
                    try:
                        cluster.start(0)
                    except LogstoreError as error:
                        failures.append(error)

                for starter in [in_background(start) for _ in range(4)]:
                    starter.join(patience())
                    assert not starter.is_alive()
                assert failures == []
                assert cluster.live_brokers == [0]

    def test_a_start_waits_for_the_stop_that_is_under_way(self) -> None:
        with frozen() as cluster:
            broker = cluster.broker(1)
            stop = in_background(lambda: cluster.stop(1))
            cluster.wait_until(lambda: broker.state is BrokerState.STOPPING)
            start = in_background(lambda: cluster.start(1))
            start.join(0.05)
            assert start.is_alive()
            cluster.heal()
            cluster.stop(1, controlled=False)  # the first one would try again in minutes
            stop.join(patience())
            start.join(patience())
            assert cluster.broker(1) is not broker
            assert cluster.live_brokers == [0, 1, 2]

    def test_who_waits_in_a_cluster_hears_that_it_is_closed(self) -> None:
        errors: list[Exception] = []
        with Cluster(1) as cluster:

            def wait() -> None:
                try:
                    cluster.wait_for_leader(TopicPartition("t", 0))
                except BrokerUnavailableError as error:
                    errors.append(error)

            waiting = in_background(wait)
        waiting.join(patience())
        assert not waiting.is_alive()
        assert "closed" in str(errors)

    def test_nobody_starts_in_a_cluster_that_is_closed(self) -> None:
        with Cluster(1) as cluster:
            pass
        with pytest.raises(BrokerUnavailableError, match="closed"):
            cluster.start(0)


def quiet(stop: Callable[[int], None], broker_id: int = 0) -> None:
    try:
        stop(broker_id)
    except LogstoreError:  # it is down already
        return


def test_another_process_with_its_id_is_named(tmp_path: Path) -> None:
    service = open_coordinator(f"embedded:{tmp_path}/coordinator")
    other = service.connect()
    other.create(
        nodes.broker_path(0),
        nodes.encode_broker(BrokerRegistration(0)),
        ephemeral=True,
        parents=True,
    )
    config = ReplicationConfig(initial_broker_registration_timeout_ms=1500)
    with pytest.raises(DuplicateBrokerRegistrationError, match="broker 0 is registered already"):
        Cluster(1, tmp_path / "brokers", coordinator=service, config=config)


@pytest.mark.parametrize("put_back", ["a copy", "nothing"])
def test_other_directories_are_no_clean_stop(tmp_path: Path, put_back: str) -> None:
    """The last of the ISR stops cleanly, and comes back with less than it had (R-70)."""
    config = ReplicationConfig(
        replica_lag_time_max_ms=1000, controlled_shutdown_retry_backoff_ms=50
    )
    with Cluster(3, tmp_path, config=config) as cluster:
        last, other = (b for b in (0, 1, 2) if b != cluster.controller_id)
        (tp,) = cluster.create_topic(
            "t", assignment=[[last, other]], config={"min.insync.replicas": 2}
        )
        directory, copy = Path(cluster.log_dirs(last)[0]), tmp_path / "copy"
        cluster.produce("t", b"1")
        cluster.stop(last)
        shutil.copytree(directory, copy)
        cluster.start(last)
        cluster.wait_for_isr(tp, (last, other))
        cluster.produce("t", b"2")
        cluster.stop(other)
        cluster.stop(last)
        shutil.rmtree(directory)
        if put_back == "a copy":
            shutil.copytree(copy, directory)
        cluster.start(last)
        cluster.start(other)
        cluster.wait_for_isr(tp, (last, other))
        assert [record.value for record in cluster.read_all("t")[0]] == [b"1", b"2"]


class TestStrays:
    def move(self, cluster: Cluster, tp: TopicPartition, to: tuple[int, ...]) -> None:
        controller = cluster.controller_id
        assert controller is not None
        request = AlterPartitionReassignmentsRequest(((tp, to),))
        answer: Any = cluster.client.call(controller, request, patience())
        assert dict(answer.partitions) == {tp: ErrorCode.NONE}
        cluster.wait_until(
            lambda: cluster.isr(tp) == tuple(sorted(to)), f"{tp} is on {to}", patience()
        )

    def test_a_replica_that_was_moved_away_while_its_broker_was_down(self) -> None:
        with Cluster(4) as cluster:
            (tp,) = cluster.create_topic("t", assignment=[[0, 1, 2]])
            for number in range(20):
                cluster.produce("t", b"%d" % number)
            cluster.wait_for_isr(tp, (0, 1, 2))
            cluster.crash(2)
            cluster.wait_for_isr(tp, (0, 1))
            self.move(cluster, tp, (0, 1, 3))
            cluster.start(2)
            manager = cluster.broker(2).log_manager
            directory = Path(cluster.log_dirs(2)[0])
            cluster.wait_until(
                lambda: bool(list(directory.glob("t-0.*-stray"))), "a stray", patience()
            )
            assert not manager.logs
            assert not cluster.broker(2).replica_manager.partitions
            (stray,) = directory.glob("t-0.*-stray")
            assert sum(path.stat().st_size for path in stray.glob("*.log")) > 0
            # The name of a later topic, and the place of it, are free.
            cluster.delete_topic("t")
            cluster.create_topic("t", assignment=[[0, 1, 3]])
            cluster.produce("t", b"new")
            self.move(cluster, tp, (0, 1, 2))
            assert cluster.replica(tp, 2).log_end_offset == 1
            assert stray.exists()
            cluster.restart(2)
            cluster.wait_for_isr(tp, (0, 1, 2))
            assert stray.exists()

    def test_what_a_live_broker_has_survives_its_sessions(self) -> None:
        """A full list comes with each registration; nothing that is named goes."""
        with Cluster(3) as cluster:
            (tp,) = cluster.create_topic("t", assignment=[[0, 1, 2]])
            cluster.produce("t", b"1")
            for _ in range(5):
                session = cluster.session(2)
                cluster.coordinator.expire(session)  # type: ignore[attr-defined]
                cluster.wait_until(lambda before=session: cluster.session(2) is not before)
                cluster.wait_for_isr(tp, (0, 1, 2))
            cluster.produce("t", b"2")
            assert not list(Path(cluster.log_dirs(2)[0]).glob("*-stray"))


KINDS: tuple[tuple[str, str], ...] = (
    ("connect", ""),
    ("watch", nodes.CONTROLLER),
    ("watch", nodes.BROKER_IDS),
    ("watch", nodes.LOG_DIR_EVENTS),
    ("create", nodes.broker_path(1)),
    ("get", nodes.CONTROLLER),
    ("get", nodes.CONTROLLER_EPOCH),
    ("transact", nodes.CONTROLLER),
    ("transact", nodes.CONTROLLER_EPOCH),
    ("children", nodes.BROKER_IDS),
    ("get", nodes.broker_path(1)),
    ("children", nodes.TOPICS),
    ("get", nodes.topic_path("t")),
)


@pytest.mark.parametrize("carried_out", [False, True], ids=["not carried out", "carried out"])
@pytest.mark.parametrize(("method", "path"), KINDS)
def test_each_kind_of_call_may_lose_its_answers(
    faulty: tuple[Faulty, Cluster], method: str, path: str, carried_out: bool
) -> None:
    """Twice in a row, while brokers and controllers come and go: the cluster goes on."""
    service, cluster = faulty
    (tp,) = cluster.create_topic("t", 1, 3, config={"min.insync.replicas": 2})
    cluster.produce("t", b"1")
    lost: list[str] = []

    def loses(called: str, at: str) -> str | None:
        if (called, at) != (method, path) or len(lost) >= 2:
            return None
        lost.append(called)
        return "after" if carried_out else "before"

    service.rule = loses
    controller = cluster.controller_id
    assert controller is not None
    cluster.crash(controller)
    cluster.wait_until(lambda: cluster.controller_id not in (None, controller), "a controller")
    cluster.produce("t", b"2")
    cluster.start(controller)
    cluster.restart(1)
    cluster.wait_for_isr(tp, (0, 1, 2))
    cluster.produce("t", b"3")
    cluster.create_topic("u", 1, 3)
    known = {cluster.broker(b).controller_id for b in cluster.live_brokers}
    assert known == {cluster.controller_id}
    assert [r.value for r in cluster.read_all("t")[0]] == [b"1", b"2", b"3"]


def test_topics_are_deleted_by_id_grown_and_configured(faulty: tuple[Faulty, Cluster]) -> None:
    """While the coordinator loses the answer to every fifth change, a broker is down, and the
    controller goes."""
    service, cluster = faulty
    cluster.create_topic("t", 2, config={"min.insync.replicas": 2})
    for number in range(10):
        cluster.produce("t", b"%d" % number)
    calls = itertools.count(1)
    ways = itertools.cycle(("before", "after"))

    def loses(method: str, path: str) -> str | None:
        changes = method == "transact" and "/topics" in path
        return next(ways) if changes and next(calls) % 5 == 0 else None

    service.rule = loses
    assert [tp.partition for tp in cluster.create_partitions("t", 5)] == [2, 3, 4]
    down = next(b for b in cluster.broker_ids if b != cluster.controller_id)
    cluster.stop(down)
    cluster.alter_topic("t", {"max.message.bytes": 200, "retention.ms": -1})
    with pytest.raises(ReplicationError) as refused:
        cluster.produce("t", bytes(300), b"key")
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    with pytest.raises(ReplicationError) as refused:
        cluster.alter_topic("t", {"retention.ms": 5, "no.such.key": 1})
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    with pytest.raises(ReplicationError) as refused:
        cluster.create_partitions("t", 5)
    assert refused.value.code is ErrorCode.INVALID_PARTITIONS
    controller = cluster.controller_id
    assert controller is not None
    cluster.crash(controller)
    cluster.start(controller)
    cluster.start(down)
    for number in range(5):
        tp = TopicPartition("t", number)
        cluster.wait_for_isr(tp, (0, 1, 2))
        for broker in cluster.broker_ids:
            config = cluster.replica(tp, broker).local_log().config
            assert (config.max_message_bytes, config.retention_ms) == (200, -1)
    for number in range(30):
        cluster.produce("t", b"later", b"%d" % number)
    read = cluster.read_all("t")
    assert sum(map(len, read.values())) == 40
    assert any(read[number] for number in (2, 3, 4))
    first = cluster.client.metadata.view.topic_ids["t"]
    cluster.delete_topic("t")
    with pytest.raises(UnknownPartitionError):
        cluster.delete_topic("t")
    cluster.create_topic("t", config={"min.insync.replicas": 2})
    late = cluster._topics._ask_controller(DeleteTopicRequest(topic_id=first))
    assert late.error_code is ErrorCode.UNKNOWN_TOPIC_ID
    cluster.produce("t", b"new")
    assert [len(records) for records in cluster.read_all("t").values()] == [1]


def test_another_minimum_while_writes_wait(faulty: tuple[Faulty, Cluster]) -> None:
    """Too few replicas for acks=all, until fewer are enough."""
    _, cluster = faulty
    controller = cluster.controller_id
    assert controller is not None
    others = [b for b in cluster.broker_ids if b != controller]
    (tp,) = cluster.create_topic(
        "t", assignment=[[controller, *others]], config={"min.insync.replicas": 3}
    )
    cluster.produce("t", b"1")
    cluster.stop(others[0])
    with pytest.raises(ReplicationError) as refused:
        cluster.producer(delivery_timeout_s=0.5).send("t", b"2")
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    cluster.alter_topic("t", {"min.insync.replicas": 2})
    cluster.produce("t", b"3")
    cluster.alter_topic("t", {"min.insync.replicas": None})
    assert cluster.replica(tp, controller).min_isr == 1


def test_a_minimum_is_in_force_when_it_is_told(
    faulty: tuple[Faulty, Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader takes it over after its log: the copy of the configuration may wait for a disk."""
    _, cluster = faulty
    (tp,) = cluster.create_topic("t", 1, 3)
    leader = cluster.leader(tp)
    assert leader is not None
    manager = cluster.broker(leader).log_manager
    configure, go_on = manager.configure, threading.Event()

    def slow(log: PartitionLog, config: Mapping[str, str]) -> None:
        configure(log, config)
        assert go_on.wait(patience())

    monkeypatch.setattr(manager, "configure", slow)
    altering = threading.Thread(target=cluster.alter_topic, args=("t", {"min.insync.replicas": 2}))
    altering.start()
    log = cluster.replica(tp, leader).local_log()
    until(lambda: log.config.min_insync_replicas == 2, "its log has it")
    altering.join(0.05)
    assert altering.is_alive()
    go_on.set()
    altering.join(patience())
    assert cluster.replica(tp, leader).min_isr == 2


def test_a_state_that_was_removed_stops_one_partition(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another controller takes over, says what is wrong, and serves everything else."""
    other = TopicPartition("other", 0)
    with Cluster(3, tmp_path / "brokers", session_timeout_ms=2000) as cluster:
        cluster.create_topic("t", 1, 3)
        cluster.create_topic("other", 1, 3)
        first = cluster.controller_id
        assert first is not None
        state = nodes.partition_state_path(TopicPartition("t", 0))
        cluster.session(first).delete(state)
        cluster.crash(first)
        until(lambda: cluster.controller_id not in (None, first))
        cluster.create_topic("third", 1, 2)
        cluster.produce("other", b"1")
        assert [record.value for record in cluster.read_all("other")[0]] == [b"1"]
        assert cluster.leader(other) != first
    assert f"t-0 is left out, and offline: {state}: was removed" in caplog.text
