"""A replica without proof of its log leaves ISR and ELR before an empty one is opened (R-180)."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from replication.broker.broker import BrokerState
from replication.broker.proofs import UNPROVEN_NAMED
from replication.common.error_codes import ErrorCode
from replication.common.errors import InconsistentClusterIdError
from replication.common.messages import (
    ControlledShutdownResponse,
    ElectionType,
    LeaderAndIsrRequest,
    PartitionChange,
)
from replication.common.state import (
    NO_LEADER,
    BrokerRegistration,
    PartitionRegistration,
    TopicAssignment,
)
from replication.coordination import nodes
from replication.decisions.election import change
from tests.support.builders import batch
from tests.support.cases import for_each
from tests.support.controllers import T0, Brokers
from tests.unit.replication.test_broker import Stage

TP = TopicPartition("t", 0)
ID = uuid.UUID(int=1 << 100)
NOW = PartitionRegistration((1, 2, 3), (1,), 1, 4, 9, elr=(2,))


# -- decisions ------------------------------------------------------------------------------------


@for_each(
    "previous, earlier, remembered, proves, other",
    [
        (5, (), 9, True, True),  # an older copy
        (9, (), 5, True, True),  # another broker's directories, or an older tree
        (5, (), 9, False, False),  # nothing is known of the copy
        (9, (), 9, True, False),
        (5, (9,), 9, True, False),
        (-1, (), 9, True, False),  # a crash: its logs are whole as far as they were synced
        (5, (), -2, True, False),  # the memory of the tree was lost
    ],
)
def test_directories_of_another_time(
    previous: int, earlier: tuple[int, ...], remembered: int, proves: bool, other: bool
) -> None:
    registration = BrokerRegistration(
        1, previous_broker_epoch=previous, earlier_epochs=earlier, proves_logs=proves
    )
    assert registration.is_of_another_time(remembered) is other


@for_each("elr_enabled", [True, False])
def test_a_lost_replica_is_out(elr_enabled: bool) -> None:
    """Not even as the last leader that is known: it would lead with nothing."""
    alone = NOW._replace(elr=())
    after = change(
        alone, lambda b: True, min_isr=2, elr_enabled=elr_enabled, isr=(), lost_replicas=(1,)
    )
    assert (after.isr, after.elr, after.leader) == ((), (), NO_LEADER)
    assert after.last_known_leader == NO_LEADER
    again = change(after, lambda b: True, min_isr=2, elr_enabled=elr_enabled)
    assert again.leader == NO_LEADER


def test_one_that_is_only_doubtful_may_lead_as_the_last_one_that_did() -> None:
    alone = NOW._replace(elr=())
    after = change(alone, lambda b: True, min_isr=2, isr=(), unclean_replicas=(1,))
    assert (after.isr, after.leader) == ((1,), 1)


def test_who_is_eligible_leads_instead() -> None:
    after = change(NOW, lambda b: True, min_isr=2, isr=(), lost_replicas=(1,))
    assert (after.isr, after.elr, after.leader) == ((2,), (), 2)


# -- the controller -------------------------------------------------------------------------------


def last_of_three() -> Brokers:
    """Broker 1 is the last in the ISR, broker 2 and 3 are eligible; all are down but 3."""
    b = Brokers(3)
    b.create(min_insync_replicas="3")
    b.create("other", ((1, 2),))
    b.kill(2)
    b.kill(1)
    return b


@for_each("unproven, led", [(frozenset({T0}), True), (None, True), (frozenset(), False)])
def test_a_controller_takes_what_is_named_out(
    unproven: frozenset[TopicPartition] | None, led: bool
) -> None:
    b = last_of_three()
    before = b.partition()
    b.start(1, unproven=unproven)
    now = b.partition()
    assert (1 not in (*now.isr, *now.elr, now.leader, now.last_known_leader)) is led
    other = b.partition(TopicPartition("other", 0))
    assert (1 in (*other.isr, *other.elr)) is (unproven is not None)
    assert before.leader == 3
    b.check()


def test_directories_of_another_time_prove_nothing() -> None:
    b = last_of_three()
    b.kill(3)
    b.start(1, previous_broker_epoch=1, proves_logs=True)
    now = b.partition(TopicPartition("other", 0))
    assert (now.isr, now.leader, now.last_known_leader) == ((), NO_LEADER, NO_LEADER)
    b.elect(ElectionType.UNCLEAN, TopicPartition("other", 0))
    assert b.partition(TopicPartition("other", 0)).leader == 1


def test_an_unclean_election_takes_another_one_first() -> None:
    """The topic allows it: those that were left behind have more than the one without a log."""
    b = Brokers(3)
    b.create(unclean_leader_election_enable="true")
    b.alter((1,))
    b.kill(1)
    b.start(1, unproven=frozenset({T0}))
    assert b.partition().leader == 2


def test_a_deletion_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The latest ones are: the node has a bound."""
    monkeypatch.setattr(nodes, "DELETED_TOPICS_KEPT", 2)
    b = Brokers(2)
    b.create(assignment=((1, 2),))
    b.delete()
    b.create(assignment=((1, 2),))
    first = b.topic().topic_id
    b.delete()
    b.create(assignment=((1, 2),))
    second = b.topic().topic_id
    b.delete()
    node = b.admin.get(nodes.DELETED_TOPICS)
    assert node is not None
    assert nodes.decode_topic_ids(nodes.DELETED_TOPICS, node.data) == [first, second]
    b.kill(b.controller._broker_id)
    b.create(assignment=((1, 2),)) if len(b.sessions) > 2 else None
    assert b.controller._term is not None
    assert b.controller._term.context.deleted == [first, second]


# -- the broker -----------------------------------------------------------------------------------


def registered(stage: Stage) -> BrokerRegistration:
    node = stage.admin.get(nodes.broker_path(1))
    assert node is not None
    return nodes.decode_broker(1, node.data)


def knows(stage: Stage, *partitions: int) -> None:
    """The tree has the topic, and a controller has processed this broker."""
    topic = TopicAssignment(ID, dict.fromkeys(partitions, (1,)))
    data = nodes.encode_topic(topic)
    if stage.admin.get(nodes.topic_path("t")) is None:
        stage.admin.create(nodes.topic_path("t"), data, parents=True)
    else:
        stage.admin.set(nodes.topic_path("t"), data)
    path = nodes.broker_epoch_path(1)
    if stage.admin.get(path) is None:
        stage.admin.create(path, b"1", parents=True)


def tell(stage: Stage, *partitions: int) -> None:
    """The broker leads, in an epoch that is above all before."""
    epoch = stage.broker.broker_epoch
    leads = PartitionRegistration((1,), (1,), 1, epoch, 0)
    changes = tuple(
        PartitionChange(TopicPartition("t", number), leads, ID) for number in partitions
    )
    request = LeaderAndIsrRequest(7, 1, epoch, changes, (), 1)
    answers: list[Any] = []
    stage.broker.replica_manager.control(request, answers.append)
    stage.runtime.run_until_idle()
    (response,) = answers
    assert {code for _, code in response.partitions} <= {ErrorCode.NONE}


def filled() -> Stage:
    """A broker with two logs, stopped cleanly."""
    stage = Stage()
    knows(stage, 0, 1)
    tell(stage, 0, 1)
    for log in stage.broker.log_manager.logs.values():
        log.append_as_leader(batch(), stage.broker.broker_epoch)
    stage.stop(controlled=False)
    return stage


def test_a_broker_names_what_is_missing_until_a_controller_talks_to_it() -> None:
    stage = filled()
    stage.storage.rename("/logs/t-0", "/elsewhere")
    for _ in range(3):  # lives of which no controller heard
        stage.broker = stage.again()
        assert registered(stage).unproven == {TP}
        assert registered(stage).proves_logs
        stage.stop(controlled=False)
    stage.broker = stage.again()
    stage.store.expire(stage.sessions[-1])
    stage.runtime.advance(1000)
    assert registered(stage).unproven == {TP}
    tell(stage, 1)
    stage.store.expire(stage.sessions[-1])
    stage.runtime.advance(1000)
    assert registered(stage).unproven == frozenset()
    stage.stop(controlled=False)
    stage.broker = stage.again()
    assert registered(stage).unproven == frozenset()


def test_a_partition_that_was_never_opened_lacks_nothing() -> None:
    """It was made while the broker was down, or just before its stop."""
    stage = filled()
    knows(stage, 0, 1, 2)
    stage.broker = stage.again()
    assert registered(stage).unproven == frozenset()


def test_a_life_after_a_crash_proves_nothing_that_no_controller_knows() -> None:
    """A controller knows the life before the crash: that of the marker is none of another time."""
    stage = filled()
    stage.broker = stage.again()
    stage.broker.crash()
    stage.store.expire(stage.sessions[-1])
    stage.broker = stage.again()
    assert registered(stage).previous_broker_epoch == -1
    stage.stop(controlled=False)
    stage.broker = stage.again()
    assert registered(stage).previous_broker_epoch > 0
    assert not registered(stage).proves_logs


def test_an_empty_directory_names_all_its_replicas() -> None:
    stage = filled()
    stage.storage.wipe()
    stage.broker = stage.again()
    assert registered(stage).unproven == {TP, TopicPartition("t", 1)}
    assert registered(stage).previous_broker_epoch == -1


def test_a_broker_that_no_controller_knows_is_new() -> None:
    stage = filled()
    stage.admin.delete(nodes.broker_epoch_path(1))
    stage.storage.wipe()
    stage.broker = stage.again()
    assert registered(stage).unproven == frozenset()


def test_a_log_beside_a_missing_file_is_looked_for_in_the_tree(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = filled()
    stage.storage.remove("/logs/closed-replicas-checkpoint")
    stage.storage.rename("/logs/t-0", "/elsewhere")
    for _ in range(2):  # the first of these lives proves it no more than the one before
        caplog.clear()
        stage.broker = stage.again()
        assert registered(stage).unproven == {TP}
        assert "the logs of 1 replicas are missing" in caplog.text
        stage.stop(controlled=False)


def test_too_many_to_be_named() -> None:
    stage = filled()
    knows(stage, *range(UNPROVEN_NAMED + 1))
    stage.storage.wipe()
    stage.broker = stage.again()
    assert registered(stage).unproven is None


def test_a_registration_without_an_answer_leaves_a_stop_unproven() -> None:
    """A controller may know the epoch that it got: the stop is none of another time."""
    stage = filled()
    stage.broker = stage.again()
    stage.broker.membership._unanswered.add(7)
    stage.stop(controlled=False)
    assert stage.storage.info("/logs/closed-replicas-checkpoint") is None
    stage.broker = stage.again()
    assert not registered(stage).proves_logs
    assert registered(stage).previous_broker_epoch > 0


def test_a_controller_may_know_an_epoch_before_the_last_one_only() -> None:
    stage = filled()
    for told in (False, True):
        stage.broker = stage.again()
        stage.store.expire(stage.sessions[-1])
        stage.broker.membership._unanswered.add(7)
        stage.runtime.advance(1000)
        assert not stage.broker.membership.has_unknown_epoch
        if told:
            tell(stage, 0, 1)
        stage.stop(controlled=False)
        found = stage.storage.info("/logs/closed-replicas-checkpoint")
        assert (found is not None) is told


def test_an_epoch_that_comes_too_late_leaves_a_stop_unproven() -> None:
    stage = filled()
    stage.broker = stage.again()
    stage.broker.state = BrokerState.CLOSING
    stage.broker.on_joined(stage.sessions[-1], stage.broker.broker_epoch + 5)
    assert stage.broker.proofs.doubts() is None


def test_a_broker_that_closes_its_logs_joins_no_more() -> None:
    """The epoch of a later registration would not be in the marker."""
    stage = filled()
    stage.broker = stage.again()
    left: list[bool] = []
    close = stage.broker.replica_manager.shutdown

    def shutdown() -> None:
        left.append(stage.broker.membership._leaving)
        close()

    stage.broker.replica_manager.shutdown = shutdown  # type: ignore[method-assign]
    stage.stop()
    stage.asked().reply(ControlledShutdownResponse(ErrorCode.NONE))
    stage.runtime.run_until_idle()
    assert left == [True]


def test_a_life_that_another_tree_refused_proves_no_more_than_the_one_before() -> None:
    stage = filled()
    for entry in stage.storage.scan_dir("/logs"):
        if entry.name.endswith("-checkpoint"):
            stage.storage.remove(f"/logs/{entry.name}")
    stage.storage.rename("/logs/t-0", "/elsewhere")
    stage.admin.set(nodes.CLUSTER_ID, nodes.encode_cluster_id("another"))
    stage.again()
    (error,) = stage.fatal
    assert isinstance(error, InconsistentClusterIdError)
    assert stage.admin.get(nodes.broker_path(1)) is None
    stage.admin.set(nodes.CLUSTER_ID, nodes.encode_cluster_id("c"))
    stage.broker = stage.again()
    assert registered(stage).unproven == {TP}
