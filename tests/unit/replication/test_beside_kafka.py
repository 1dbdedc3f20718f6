"""A controller of ours while a real Kafka broker is registered: what others write into its tree."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from replication.common.messages import AlterableConfig, AlterPartitionItem
from replication.common.state import TopicAssignment, TopicPartition
from replication.coordination import nodes
from tests.support.controllers import T0, Brokers

KAFKA = 3
MOVE = {"topic": "t", "partition": 0, "replicas": [2, 1]}


@pytest.fixture
def b() -> Brokers:
    """Brokers 1 and 2 are ours; 1 is the controller."""
    brokers = Brokers(start=False)
    for broker in (1, 2):
        brokers.start(broker)
    brokers.start(KAFKA, is_foreign=True)
    brokers.controllers[KAFKA].stop()
    brokers.settle()
    return brokers


def put(b: Brokers, path: str, value: object, *, sequential: bool = False) -> None:
    b.admin.create(path, json.dumps(value).encode(), sequential=sequential, parents=True)
    b.settle()


def notified(b: Brokers) -> list[object]:
    found = [
        b.admin.get(f"{nodes.CONFIG_CHANGES}/{n}") for n in b.admin.children(nodes.CONFIG_CHANGES)
    ]
    return [json.loads(node.data)["entity_path"] for node in found if node is not None]


def test_a_topic_that_somebody_made_by_hand(b: Brokers) -> None:
    topic = TopicAssignment(UUID(int=7), {0: (1, KAFKA)})
    b.admin.create(nodes.topic_path("t"), nodes.encode_topic(topic))
    b.settle()
    assert b.partition().isr == (1, KAFKA)
    grown = topic._replace(partitions={0: (1, KAFKA), 1: (2,)})
    b.admin.set(nodes.topic_path("t"), nodes.encode_topic(grown))
    b.settle()
    assert b.partition(TopicPartition("t", 1)).leader == 2
    assert b.brokers[KAFKA].metadata.keys() == {T0, TopicPartition("t", 1)}


def test_nobody_looks_without_a_real_kafka() -> None:
    b = Brokers()
    b.admin.create(
        nodes.topic_path("t"), nodes.encode_topic(TopicAssignment(UUID(int=7), {0: (1,)}))
    )
    b.settle()
    assert b.admin.get(nodes.partition_state_path(T0)) is None


def test_a_configuration_that_a_real_kafka_wrote(b: Brokers) -> None:
    b.create()
    config = nodes.encode_topic_config({"min.insync.replicas": "2"})
    b.admin.set(nodes.topic_config_path("t"), config)
    put(b, nodes.config_change_path(), {"version": 2, "entity_path": "topics/t"}, sequential=True)
    assert b.brokers[2].configs[T0] == {"min.insync.replicas": "2"}


def test_a_real_kafka_hears_of_a_configuration_by_a_notification(b: Brokers) -> None:
    b.create()
    b.configure(AlterableConfig("retention.ms", "5"))
    assert notified(b) == ["topics/t"]


def test_marks_elections_and_moves_of_old_tools(b: Brokers) -> None:
    b.create(assignment=((1, KAFKA),))
    put(b, nodes.REASSIGNMENTS, {"version": 1, "partitions": [MOVE]})
    now = b.partition()
    assert (now.replicas, b.admin.get(nodes.REASSIGNMENTS)) == ((2, 1, KAFKA), None)
    b.alter((1, KAFKA, 2))
    assert (b.partition().replicas, b.partition().leader) == ((2, 1), 1)
    put(b, nodes.PREFERRED_ELECTIONS, {"version": 1, "partitions": [MOVE]})
    assert (b.partition().leader, b.admin.get(nodes.PREFERRED_ELECTIONS)) == (2, None)
    b.admin.create(nodes.delete_topic_path("t"))
    b.settle()
    assert b.admin.get(nodes.topic_path("t")) is None


@pytest.mark.parametrize("path", [nodes.REASSIGNMENTS, nodes.PREFERRED_ELECTIONS])
def test_what_cannot_be_read_is_no_request(b: Brokers, path: str) -> None:
    b.create()
    put(b, path, {"version": 1, "partitions": ["t-0"]})
    assert b.controller.active


def test_no_replica_is_eligible_outside_the_isr(b: Brokers) -> None:
    """X-94: a real Kafka commits without them. The last members of an ISR stay in it."""
    b.create(assignment=((1, 2, KAFKA),), min_insync_replicas="3")
    b.kill(2)
    assert (b.partition().isr, b.partition().elr) == ((1, KAFKA), ())


def test_eligible_replicas_of_before_are_not_forgotten() -> None:
    b = Brokers()
    b.create(assignment=((2, 3),), min_insync_replicas="2")
    b.kill(3)
    b.kill(2)
    assert (b.partition().isr, b.partition().elr) == ((), (3, 2))
    b.start(3, is_foreign=True)
    assert (b.partition().leader, b.partition().isr) == (3, (3,))


def test_a_leader_of_a_real_kafka_knows_no_epochs(b: Brokers) -> None:
    """X-69."""
    b.create(assignment=((KAFKA, 1),))
    now = b.partition()
    item = AlterPartitionItem(
        T0, now.leader_epoch, now.partition_epoch, ((KAFKA, -1),), topic_id=b.topic("t").topic_id
    )
    (shrunk,) = b.alter_items(KAFKA, item).partitions
    assert shrunk.isr == (KAFKA,)
    both = item._replace(partition_epoch=shrunk.partition_epoch, new_isr=((KAFKA, -1), (1, -1)))
    (grown,) = b.alter_items(KAFKA, both).partitions
    assert grown.isr == (KAFKA, 1)


def test_a_kafkas_controller_has_dealt_with_the_restarts_in_its_time() -> None:
    """X-98: the epochs that a broker of ours names are then not those that we remember."""
    b = Brokers(2)
    b.create(assignment=((1, 2),))
    remembered = b.brokers[2].broker_epoch

    def restart_after(last_epoch: int) -> None:
        b.start(2, previous_broker_epoch=last_epoch, proves_logs=True)

    b.kill(1, 2)
    b.admin.set(nodes.CONTROLLER_EPOCH, nodes.encode_number(7))  # and broker 2 came and went
    written = {"version": 1, "leader": 2, "leader_epoch": 5, "controller_epoch": 7, "isr": [2]}
    b.admin.set(nodes.partition_state_path(T0), json.dumps(written).encode())
    restart_after(remembered + 1)
    assert (b.partition().leader, b.partition().isr) == (2, (2,))
    b.kill(2)
    restart_after(remembered + 1)  # those of another time, under a controller of ours
    assert (b.partition().leader, b.partition().isr) == (-1, ())


def test_what_a_kafka_wrote_before_a_term_of_ours_proves_nothing() -> None:
    b = Brokers(2)
    b.create(assignment=((2,),))
    remembered = b.brokers[2].broker_epoch
    written = {"version": 1, "leader": 2, "leader_epoch": 5, "controller_epoch": 1, "isr": [2]}
    b.admin.set(nodes.partition_state_path(T0), json.dumps(written).encode())
    b.admin.create(nodes.LAST_TERM, nodes.encode_number(1))
    b.kill(1, 2)
    b.start(2, previous_broker_epoch=remembered - 1, proves_logs=True)
    assert (b.partition().leader, b.partition().isr) == (-1, ())


@pytest.mark.parametrize("leaves", ["dies", "stops"])
def test_a_leader_of_a_real_kafka_hears_who_was_taken_out_of_its_isr(
    b: Brokers, leaves: str
) -> None:
    """X-95: it takes no order of a leader epoch that it has."""
    b.create(assignment=((KAFKA, 2, 1),))
    before = b.partition()
    if leaves == "dies":
        b.kill(2)
    else:
        b.shut_down(2)
    now = b.partition()
    assert (now.leader, now.isr) == (KAFKA, (KAFKA, 1))
    assert now.leader_epoch == before.leader_epoch + 1
    assert b.brokers[KAFKA].told[T0] == now
