"""Terms of controllers: election, fail-over, being deposed, and a coordinator that fails (S-25)."""

from __future__ import annotations

from random import Random

import pytest

from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    AlterPartitionItem,
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    IncrementalAlterConfigsRequest,
    LeaderAndIsrRequest,
    Request,
    Response,
    TopicResponse,
    UpdateMetadataRequest,
)
from replication.common.state import NO_LEADER, TopicPartition
from replication.controller.channels import PIECE
from replication.controller.store import CHUNK
from replication.coordination import CoordinatorUnavailableError, Op, nodes
from replication.coordination.embedded import EmbeddedCoordinator
from tests.support.cases import for_each
from tests.support.controllers import PAUSE_MS, T0, Brokers


def test_one_controller_at_a_time_and_epochs_rise() -> None:
    """testEmptyCluster, testControllerEpochPersistsWhenAllBrokersDown."""
    b = Brokers()
    terms = []
    for broker in (1, 2, 3):
        terms.append([(i, c.epoch) for i, c in b.controllers.items() if c.active])
        b.kill(broker)
    assert terms == [[(1, 1)], [(2, 2)], [(3, 3)]]
    assert not any(c.active for c in b.controllers.values())
    assert b.admin.get(nodes.CONTROLLER) is None
    b.start(2)
    assert b.controller.epoch == 4


@pytest.mark.parametrize(
    ("request_", "refusal"),
    [
        (AlterPartitionRequest(2, 0, ()), AlterPartitionResponse(ErrorCode.NOT_CONTROLLER)),
        (
            ControlledShutdownRequest(2, 0),
            ControlledShutdownResponse(ErrorCode.NOT_CONTROLLER),
        ),
        (
            ElectLeadersRequest(ElectionType.PREFERRED, None),
            ElectLeadersResponse(ErrorCode.NOT_CONTROLLER),
        ),
        (CreateTopicRequest("t"), TopicResponse(ErrorCode.NOT_CONTROLLER)),
        (DeleteTopicRequest("t"), TopicResponse(ErrorCode.NOT_CONTROLLER)),
        (CreatePartitionsRequest("t", 2), TopicResponse(ErrorCode.NOT_CONTROLLER)),
        (IncrementalAlterConfigsRequest("t", ()), TopicResponse(ErrorCode.NOT_CONTROLLER)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_others_refuse(request_: Request, refusal: Response) -> None:
    b = Brokers()
    replies: list[Response | None] = []
    b.controllers[2].handle(request_, replies.append)
    b.settle()
    assert replies == [refusal]


def test_requests_of_brokers_are_no_business_of_a_controller() -> None:
    with pytest.raises(TypeError, match="UpdateMetadataRequest"):
        Brokers(1).controller.handle(UpdateMetadataRequest(1, 1, 1, (), ()), lambda reply: None)


def test_a_new_controller_knows_all_and_tells_all() -> None:
    """It fences the one that died with its office, and everybody hears of the new epoch."""
    b = Brokers()
    b.create(assignment=((1, 2, 3), (2, 3, 1)))
    b.kill(1)
    assert b.controllers[2].active
    now = b.partition()
    assert (now.leader, now.isr, now.controller_epoch) == (2, (2, 3), 2)
    for broker in (2, 3):
        assert b.brokers[broker].controller_epoch == 2
        assert b.brokers[broker].told == {tp: b.partition(tp) for tp in b.brokers[broker].told}
        assert len(b.brokers[broker].told) == 2
    stats = b.controller.stats
    assert (stats.active_controller_count, stats.active_broker_count) == (1, 2)
    assert (stats.global_topic_count, stats.global_partition_count) == (1, 2)
    assert b.controllers[1].stats.active_controller_count == 0


def test_all_that_happened_without_a_controller() -> None:
    """S-25: one died, one came back clean, one came back unclean; nobody was looking."""
    b = Brokers(5)
    b.create(assignment=((2, 3, 4, 5),), min_insync_replicas="4")
    b.controllers[5].stop()  # broker 5 lives but does not stand for controller
    b.settle()
    b.kill(1, 2, 3, 4, settle=False)
    b.start(3, clean=True, settle=False)
    b.start(4, clean=False)
    now = b.partition()
    assert (now.leader, now.isr) == (5, (5,))
    assert now.elr == (2, 3)  # both stopped cleanly as far as anybody knows; 4 did not
    assert b.brokers[4].told[T0] == now


def test_a_deposed_controller_writes_nothing() -> None:
    """R-52: its transactions demand its own controller epoch."""
    b = Brokers()
    b.create()
    old = b.controllers[1]
    assert old.active
    b.sessions[1].suspend()
    b.admin.delete(nodes.CONTROLLER)  # as the store would when the session's time is over
    b.settle()
    assert b.controllers[2].active
    assert old.active  # it has not heard
    before = b.partition()
    item = AlterPartitionItem(
        T0,
        before.leader_epoch,
        before.partition_epoch,
        ((1, b.brokers[1].broker_epoch),),
        topic_id=b.topic().topic_id,
    )
    replies: list[Response | None] = []
    request = AlterPartitionRequest(1, b.brokers[1].broker_epoch, (item,))
    old.handle(request, replies.append)  # before it looks at what it missed
    b.sessions[1].resume()
    b.settle()
    assert replies == [AlterPartitionResponse(ErrorCode.NOT_CONTROLLER)]
    assert b.partition() == before
    assert not old.active


@pytest.mark.parametrize(
    "request_",
    [
        DeleteTopicRequest("new"),
        CreateTopicRequest("gone", 1, 1),
        CreatePartitionsRequest("new", 2),
        IncrementalAlterConfigsRequest("new", ()),
        CreatePartitionsRequest("gone", 2, validate_only=True),
        IncrementalAlterConfigsRequest("gone", ()),
    ],
    ids=str,
)
def test_a_deposed_controller_judges_nothing(request_: Request) -> None:
    """Not even what it need not write: there may be a topic of which it has not heard."""
    b = Brokers()
    b.create("gone")
    old = b.controllers[1]
    b.sessions[1].suspend()
    b.admin.delete(nodes.CONTROLLER)
    b.settle()
    replies: list[Response | None] = []
    b.controllers[2].handle(CreateTopicRequest("new"), replies.append)
    b.controllers[2].handle(DeleteTopicRequest("gone"), replies.append)
    b.settle()
    assert replies == [TopicResponse(ErrorCode.NONE)] * 2
    assert old.active
    replies.clear()
    old.handle(request_, replies.append)
    b.settle()
    assert replies == []  # it cannot know
    b.sessions[1].resume()
    b.settle(PAUSE_MS)
    assert replies == [TopicResponse(ErrorCode.NOT_CONTROLLER)]


def test_a_deposed_controller_learns_it_from_a_broker() -> None:
    """STALE_CONTROLLER_EPOCH in an answer makes it look, and stand again."""
    b = Brokers()
    b.brokers[2].deaf = True
    b.create()
    b.admin.set(nodes.CONTROLLER_EPOCH, nodes.encode_number(7))
    b.settle()
    assert b.controller.epoch == 1  # nobody watches that node
    b.brokers[2].deaf, b.brokers[2].controller_epoch = False, 7
    b.settle(PAUSE_MS)
    assert b.controller.epoch == 7
    assert b.brokers[2].told[T0] == b.partition()


def test_removing_the_node_makes_a_new_election() -> None:
    b = Brokers()
    b.create()
    b.admin.delete(nodes.CONTROLLER)
    b.settle()
    assert b.controller.epoch == 2


def test_a_session_that_expires_ends_the_term() -> None:
    b = Brokers()
    b.create()
    b.tree.expire(b.sessions[1])
    b.settle()
    assert b.controllers[2].active
    replies: list[Response | None] = []
    b.controllers[1].handle(DeleteTopicRequest("t"), replies.append)
    b.settle()
    assert not b.controllers[1].active
    assert replies == [TopicResponse(ErrorCode.NOT_CONTROLLER)]


def test_an_event_waits_for_a_coordinator_without_an_answer() -> None:
    b = Brokers()
    b.create(assignment=((2, 3),))
    b.sessions[1].suspend()
    b.kill(2)
    assert b.partition().leader == 2
    b.settle(1000)
    b.sessions[1].resume()
    b.settle(PAUSE_MS)
    assert b.partition().leader == 3
    assert b.brokers[3].told[T0] == b.partition()


class Forgetful:
    """Makes a session's transactions fail: before they are carried out, or after."""

    def __init__(self, session: EmbeddedCoordinator, rng: Random, rate: float) -> None:
        self.rng, self.rate = rng, rate
        self.lost_before = self.lost_after = 0
        self._transact = session.transact
        session.transact = self.transact  # type: ignore[method-assign]

    def transact(self, ops: list[Op]) -> object:
        if self.rng.random() < self.rate:
            self.lost_before += 1
            raise CoordinatorUnavailableError("lost before")
        results = self._transact(ops)
        if self.rng.random() < self.rate:
            self.lost_after += 1
            raise CoordinatorUnavailableError("lost after")
        return results


@for_each("seed", range(10))
def test_lost_answers_of_the_coordinator_change_nothing_in_the_end(seed: int) -> None:
    """Each partition epoch moves by exactly one per applied change (S-25)."""
    b = Brokers(4, config={"auto.leader.rebalance.enable": "false"})
    faults = Forgetful(b.sessions[1], Random(seed), 0.4)
    b.controller.handle(CreateTopicRequest("t", 6, 3), lambda reply: None)
    b.settle(20_000)
    for broker in (2, 3, 4):
        b.bounce(broker, clean=broker != 3)
        b.settle(20_000)
        for number in range(6):
            tp = TopicPartition("t", number)
            now = b.partition(tp)
            assert now.leader != NO_LEADER
            item = AlterPartitionItem(
                tp,
                now.leader_epoch,
                now.partition_epoch,
                tuple((r, -1) for r in now.replicas),
                topic_id=b.topic().topic_id,
            )
            leader = b.brokers[now.leader]
            replies: list[Response | None] = []
            request = AlterPartitionRequest(now.leader, leader.broker_epoch, (item,))
            b.controller.handle(request, replies.append)
            b.settle(20_000)
            (reply,) = replies
            assert isinstance(reply, AlterPartitionResponse)
            assert reply.partitions[0].error_code is ErrorCode.NONE
            after = b.partition(tp)
            assert after.isr == now.replicas
            assert after.partition_epoch - now.partition_epoch == (now.isr != now.replicas)
            assert reply.partitions[0].partition_epoch == after.partition_epoch
    assert faults.lost_before
    assert faults.lost_after
    for broker in b.ids:
        for tp, told in b.brokers[broker].told.items():
            assert told == b.partition(tp)


@for_each("seed", range(10))
def test_a_take_over_that_is_interrupted_is_done_again(seed: int) -> None:
    """What was left undone is done; an unclean restart is not forgotten."""
    b = Brokers(4)
    b.create(assignment=((2, 3, 4), (3, 4, 2), (4, 2, 3)), min_insync_replicas="3")
    b.kill(1, 4, settle=False)
    b.start(4, clean=False, settle=False)
    for broker in (2, 3, 4):
        Forgetful(b.sessions[broker], Random(seed * 10 + broker), 0.5)
    b.settle(20_000)
    for number in range(3):
        now = b.partition(TopicPartition("t", number))
        assert 4 not in (*now.isr, *now.elr)
        assert now.leader in (2, 3)
        assert now.isr == tuple(r for r in now.replicas if r != 4)


def test_a_repeated_proposal_is_answered_as_applied() -> None:
    """S-25: the first answer was lost with the controller that gave it."""
    b = Brokers()
    b.create(assignment=((2, 3, 1),))
    item = AlterPartitionItem(T0, 0, 0, ((2, -1), (3, -1)), topic_id=b.topic().topic_id)
    assert b.alter_items(2, item).partitions[0].error_code is ErrorCode.NONE
    now = b.partition()
    b.kill(1)
    response = b.alter_items(2, item)
    assert response.partitions[0][1:7] == (
        ErrorCode.NONE,
        2,
        now.leader_epoch,
        (2, 3),
        now.partition_epoch,
        now.recovery_state,
    )
    assert b.partition() == now


def test_a_silent_broker_is_asked_again_with_the_newest_state() -> None:
    """One request in flight; what is superseded while it waits is never sent."""
    b = Brokers()
    b.create()
    b.brokers[3].deaf = True
    b.alter((1, 2))
    b.alter((1, 2, 3))
    b.alter((1, 3))
    b.settle(20 * PAUSE_MS)
    seen = len(b.brokers[3].requests)
    b.brokers[3].deaf = False
    b.settle(PAUSE_MS)
    news = b.brokers[3].requests[seen:]
    assert [type(request) for request in news] == [LeaderAndIsrRequest, UpdateMetadataRequest]
    assert b.brokers[3].told[T0] == b.partition()
    b.settle(10 * PAUSE_MS)
    assert len(b.brokers[3].requests) == seen + 2


def test_a_broker_that_does_not_know_its_epoch_yet_is_asked_again() -> None:
    b = Brokers()
    b.create()
    b.kill(3)
    b.start(3, settle=False)
    epoch, b.brokers[3].broker_epoch = b.brokers[3].broker_epoch, -1
    b.settle(5 * PAUSE_MS)
    assert b.brokers[3].told.get(T0) != b.partition()
    b.brokers[3].broker_epoch = epoch
    b.settle(PAUSE_MS)
    assert b.brokers[3].told[T0] == b.partition()


@pytest.mark.parametrize(
    "path",
    [
        nodes.topic_path("t"),
        nodes.partition_state_path(T0),
        nodes.topic_config_path("t"),
        nodes.broker_epoch_path(2),
    ],
)
def test_damage_of_one_node_stops_nothing_else(path: str) -> None:
    """What cannot be read is left alone; a lost broker epoch counts as an unclean stop."""
    b = Brokers()
    b.create()
    b.create("other", ((2, 3),), min_insync_replicas="2")
    b.admin.set(path, b"\xff{")
    b.kill(1)
    state = b.partition(TopicPartition("other", 0))
    if path == nodes.broker_epoch_path(2):
        assert (state.leader, state.isr, state.elr) == (3, (3,), ())
    else:
        assert state.leader == 2
        b.kill(2)
        b.start(1)
        assert b.partition(TopicPartition("other", 0)).leader == 3
        node = b.admin.get(path)
        assert node is not None
        assert node.data == b"\xff{"


def test_a_topic_that_was_removed_from_the_tree_blocks_nobody() -> None:
    b = Brokers()
    b.create()
    b.create("other", ((2, 3),))
    for path in (nodes.partition_state_path(T0), nodes.partition_path(T0)):
        b.admin.delete(path)
    b.kill(2)
    assert b.partition(TopicPartition("other", 0)).leader == 3


def test_who_obeys_a_later_controller_than_the_tree_has_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An older state was put back. Nobody can say what was decided since, so nobody guesses."""
    b = Brokers()
    b.create()
    b.brokers[3].controller_epoch = 99
    b.kill(2)
    b.settle(100 * PAUSE_MS)
    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert len(errors) == 2  # one in a minute
    assert "broker 3 obeys a later controller than this one of epoch 1" in errors[0]
    assert b.controllers[1].active


def test_one_request_that_was_overtaken_names_nobody(caplog: pytest.LogCaptureFixture) -> None:
    b = Brokers()
    b.create()
    b.brokers[3].controller_epoch = 99
    b.kill(2)
    b.brokers[3].controller_epoch = 0
    b.settle(10 * PAUSE_MS)
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []
    assert b.brokers[3].told[T0] == b.partition()


def test_a_leader_that_was_elected_later_than_the_tree_knows_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    b = Brokers()
    b.create()
    for _ in range(3):
        assert b.alter((1, 2), leader_epoch=7).error_code is ErrorCode.NOT_CONTROLLER
    said = "the leader of t-0 was elected later than the coordinator knows"
    assert caplog.text.count(said) == 1
    assert b.partition().isr == (1, 2, 3)


@pytest.mark.slow
def test_a_thousand_partitions_are_one_batch() -> None:
    """Some hundred nodes in a transaction, and as few requests to a broker as there are pieces."""
    b = Brokers()
    count = 1000
    b.create(assignment=((2, 3),) * count)
    b.kill(2, settle=False)
    requests = len(b.brokers[3].requests)
    transactions: list[int] = []
    session = b.sessions[1]
    transact = session.transact

    def counted(ops: list[Op]) -> object:
        transactions.append(len(ops))
        return transact(ops)

    session.transact = counted  # type: ignore[method-assign, assignment]
    b.settle()
    assert len(transactions) == -(-count // CHUNK)
    assert max(transactions) <= CHUNK + 1
    told: dict[type[object], list[int]] = {LeaderAndIsrRequest: [], UpdateMetadataRequest: []}
    for request in b.brokers[3].requests[requests:]:
        told[type(request)].append(len(request.partitions))  # type: ignore[union-attr, arg-type]
    assert all(sum(sizes) == count for sizes in told.values())
    assert len(told[LeaderAndIsrRequest]) == -(-count // PIECE)
    assert {state.leader for state in b.brokers[3].told.values()} == {3}


def test_a_take_over_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the reason: nobody else can be controller meanwhile."""
    b = Brokers()
    b.create()
    b.kill(1, settle=False)
    session = b.sessions[2]
    children, failures = session.children, [KeyError("a defect")] * 3

    def failing(path: str) -> list[str]:
        if failures:
            raise failures.pop()
        return children(path)

    session.children = failing  # type: ignore[method-assign]
    b.settle(5 * PAUSE_MS)
    assert b.controllers[2].active
    assert b.partition().leader == 2
    assert (failures, caplog.text.count("an event failed")) == ([], 1)


def test_a_deletion_between_two_tries_of_a_take_over_is_announced() -> None:
    b = Brokers()
    b.create(assignment=((2, 3),))
    b.kill(1, settle=False)
    session, mark = b.sessions[2], nodes.delete_topic_path("t")
    children = session.children

    def failing_once(path: str) -> list[str]:
        if path == nodes.LOG_DIR_EVENTS and b.admin.get(mark) is None:
            b.admin.create(mark, b"")
            raise CoordinatorUnavailableError("no answer")
        return children(path)

    session.children = failing_once  # type: ignore[method-assign]
    b.settle(5 * PAUSE_MS)
    assert b.controllers[2].active
    assert b.admin.children(nodes.TOPICS) == []


def test_who_did_not_hear_of_a_deletion_hears_it_from_the_next_controller() -> None:
    """Its replicas are elsewhere, so that nobody waited for it."""
    b = Brokers()
    b.create(assignment=((2,),))
    b.brokers[3].deaf = True
    b.delete()
    assert b.admin.children(nodes.TOPICS) == []
    b.kill(1)
    b.brokers[3].deaf = False
    b.settle(PAUSE_MS)
    assert b.brokers[3].metadata == {}
    b.check()
