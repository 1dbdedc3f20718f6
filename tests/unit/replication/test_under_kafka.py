"""A broker of ours whose controller is a real Kafka in ZooKeeper mode (X-10, X-13, X-24)."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from checkpoints.types import TopicPartition
from replication.broker.broker import BrokerState
from replication.common.error_codes import ErrorCode
from replication.common.errors import TopicsWithoutIdsError
from replication.common.messages import (
    LEADER_DURING_DELETE,
    ControlRequest,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionChange,
    Response,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from replication.common.state import (
    BrokerRegistration,
    LiveBroker,
    PartitionRegistration,
    TopicAssignment,
)
from replication.coordination import CoordinatorUnavailableError, nodes
from tests.unit.replication.test_broker import Stage as BrokerStage

KAFKA = 7
T0 = TopicPartition("t", 0)
ID, NEXT_ID = UUID(int=1), UUID(int=2)


class Stage(BrokerStage):
    """Broker 1, which leads partition t-0; broker 7 is a real Kafka, and the controller."""

    def configure(self, config: dict[str, str], *, notify: bool = True) -> None:
        path, data = nodes.topic_config_path("t"), nodes.encode_topic_config(config)
        if self.admin.get(path) is None:
            self.admin.create(path, data, parents=True)
        self.admin.set(path, data)
        if notify:
            change = nodes.encode_config_change("t")
            self.admin.create(nodes.config_change_path(), change, sequential=True, parents=True)
        self.runtime.run_until_idle()

    def tell(self, request: ControlRequest) -> Response | None:
        answers: list[Response | None] = []
        self.broker.handle(request, answers.append)
        self.runtime.run_until_idle()
        (answer,) = answers
        return answer

    def lead(self, topic_id: UUID = ID, leader_epoch: int = 0) -> Response | None:
        change = PartitionChange(
            T0, PartitionRegistration((1, 7), (1, 7), 1, leader_epoch, 0), topic_id
        )
        live = tuple(LiveBroker(BrokerRegistration(n), -1) for n in (1, 7))
        header = KAFKA, 3, self.broker.broker_epoch
        if self.tell(UpdateMetadataRequest(*header, (change,), live)) is None:
            return None
        return self.tell(LeaderAndIsrRequest(*header, (change,), ()))

    @property
    def retention_ms(self) -> int:
        log = self.broker.replica_manager.partition(T0).log
        assert log is not None
        return log.config.retention_ms

    @property
    def min_isr(self) -> int:
        return self.broker.replica_manager.partition(T0).min_isr


def test_a_topic_has_its_configuration_from_the_tree() -> None:
    """X-13, with the first order: a log never has another one."""
    stage = Stage()
    stage.configure({"retention.ms": "5", "min.insync.replicas": "2"}, notify=False)
    assert stage.lead() == LeaderAndIsrResponse(ErrorCode.NONE, ((T0, ErrorCode.NONE),))
    assert (stage.retention_ms, stage.min_isr) == (5, 2)
    known = stage.broker.metadata.topic_config("t")
    assert known == {"retention.ms": "5", "min.insync.replicas": "2"}


@pytest.mark.parametrize(
    ("made", "is_complete"),
    [
        ((), True),
        (("/brokers/topics/t",), True),  # it has no leader yet, and may never have one
        (("/brokers/topics/t/partitions/0",), False),
        (("/brokers/topics/t/partitions/0", "/admin/delete_topics/t"), True),
    ],
)
def test_a_controller_that_begins_names_the_brokers_first(
    made: tuple[str, ...], is_complete: bool
) -> None:
    """Clients hear of no cluster without topics, while there are some."""
    stage = Stage()
    for path in made:
        stage.admin.create(path, b"", parents=True)
    live = tuple(LiveBroker(BrokerRegistration(n), -1) for n in (1, 7))
    metadata, epoch = stage.broker.metadata, stage.broker.broker_epoch
    answer = stage.tell(UpdateMetadataRequest(KAFKA, 3, epoch, (), live))
    assert answer == UpdateMetadataResponse(ErrorCode.NONE)
    assert metadata.is_complete is is_complete
    assert metadata.is_alive(7)
    stage.lead()
    assert metadata.is_complete


@pytest.mark.parametrize("named", [{"sequence": 1}, {"is_full": True}])
def test_a_controller_of_ours_says_everything(named: dict[str, int]) -> None:
    stage = Stage()
    stage.broker.metadata.awaits_partitions = True
    epoch = stage.broker.broker_epoch
    stage.broker.metadata.update(UpdateMetadataRequest(KAFKA, 3, epoch, (), (), **named))
    assert stage.broker.metadata.is_complete


def test_a_change_is_heard_of_by_a_notification() -> None:
    stage = Stage()
    stage.lead()
    stage.configure({"retention.ms": "5", "min.insync.replicas": "2"})
    assert (stage.retention_ms, stage.min_isr) == (5, 2)
    assert stage.broker.metadata.topic_config("t") is not None
    stage.configure({})
    assert stage.min_isr == 1
    stage.lead(leader_epoch=1)
    assert stage.min_isr == 1


def test_other_notifications_are_no_matter() -> None:
    stage = Stage()
    stage.lead()
    for entity in ("topics/other", "users/me", "brokers/1"):
        data = json.dumps({"version": 2, "entity_path": entity}).encode()
        stage.admin.create(nodes.config_change_path(), data, sequential=True, parents=True)
    stage.admin.create(nodes.config_change_path(), b"nonsense", sequential=True)
    stage.configure({"retention.ms": "7"})
    assert stage.retention_ms == 7


def test_a_change_while_the_session_is_made_anew() -> None:
    """And the notification may be gone by then."""
    stage = Stage()
    stage.lead()
    stage.store.expire(stage.sessions[-1])
    stage.runtime.advance(1000)
    stage.configure({"retention.ms": "9"}, notify=False)
    stage.lead()
    assert stage.retention_ms == 9


def test_the_next_topic_of_a_name_has_a_configuration_of_its_own() -> None:
    stage = Stage()
    stage.configure({"retention.ms": "5"})
    stage.lead()
    gone = PartitionChange(T0, PartitionRegistration((1, 7), (), LEADER_DURING_DELETE, -2, 0), ID)
    epoch = stage.broker.broker_epoch
    answer = stage.tell(UpdateMetadataRequest(KAFKA, 3, epoch, (gone,), ()))
    assert answer == UpdateMetadataResponse(ErrorCode.NONE)
    stage.configure({"retention.ms": "6"}, notify=False)
    change = PartitionChange(T0, PartitionRegistration((7,), (7,), 7, 0, 0), NEXT_ID)
    stage.tell(UpdateMetadataRequest(KAFKA, 3, epoch, (change,), ()))
    assert stage.broker.metadata.topic_config("t") == {"retention.ms": "6"}


def test_without_the_tree_there_is_no_answer_and_no_log() -> None:
    """The controller asks again."""
    stage = Stage()
    session = stage.sessions[-1]
    get = session.get

    def silent(path: str) -> object:
        raise CoordinatorUnavailableError(path)

    session.get = silent  # type: ignore[method-assign, assignment]
    assert stage.lead() is None
    assert not stage.broker.log_manager.logs
    session.get = get  # type: ignore[method-assign]
    assert stage.lead() is not None
    assert T0 in stage.broker.log_manager.logs


def test_the_epoch_with_which_a_real_kafka_addressed_it_is_reported() -> None:
    """X-94: its requests have no numbers, and a stop proves its logs nevertheless."""
    stage = Stage()
    stage.lead()
    assert stage.broker.replica_manager.reported_broker_epoch == stage.broker.broker_epoch


def test_no_cluster_without_topic_ids_is_joined() -> None:
    """X-24."""
    stage = Stage()
    stage.stop(controlled=False)
    other = BrokerRegistration(KAFKA, is_foreign=True)
    stage.admin.create(nodes.broker_path(KAFKA), nodes.encode_broker(other))
    stage.admin.create(nodes.topic_path("new"), nodes.encode_topic(TopicAssignment(ID, {0: (7,)})))
    stage.admin.create(nodes.topic_path("old"), b'{"version":2,"partitions":{"0":[7]}}')
    stage.broker = stage.again()
    (error,) = stage.fatal
    assert isinstance(error, TopicsWithoutIdsError)
    assert str(error).startswith("topics without ids: old. ")
    assert stage.broker.state is BrokerState.STOPPED
    stage.admin.delete(nodes.broker_path(KAFKA))
    assert stage.again().state is BrokerState.RUNNING
