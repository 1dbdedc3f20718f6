"""What the coordinator's silence does to a controller, one call after the other.

Each event is run once as it is, and its calls of the coordinator are counted. Then it is run again
for every call: the answer is lost before the call was carried out, or after, or the controller
dies there. What has to hold in the end is the same as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from functools import partial
from random import Random
from typing import Any, NamedTuple

import pytest

from replication.common.messages import (
    AlterableConfig,
    AlterPartitionItem,
    AlterPartitionReassignmentsRequest,
    AlterPartitionRequest,
    ControlledShutdownRequest,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    ElectionType,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    Request,
    Response,
)
from replication.common.state import NO_LEADER, TopicPartition
from replication.controller import store, writer
from replication.coordination import (
    CoordinatorUnavailableError,
    NoNodeError,
    SessionExpiredError,
    nodes,
)
from replication.coordination.embedded import EmbeddedCoordinator
from tests.support.cases import for_each
from tests.support.controllers import T0, Brokers

CALLS = ("get", "children", "create", "set", "delete", "transact", "watch")
T1, T2 = TopicPartition("t", 1), TopicPartition("t", 2)
REST_MS = 60_000


class Loss(Enum):
    BEFORE = "before"
    AFTER = "after"
    DEATH_BEFORE = "death before"
    DEATH_AFTER = "death after"


class Faults:
    """Between ``begin`` and ``end`` it counts what controllers ask the coordinator, and strikes."""

    def __init__(self, losses: Mapping[int, Loss] | None = None) -> None:
        self.count = 0
        self.struck = 0
        self._losses = losses or {}
        self._on = False
        self._brokers: Brokers | None = None

    def watch_over(self, brokers: Brokers) -> None:
        self._brokers = brokers
        brokers.on_session = self._wrap
        for broker, session in brokers.sessions.items():
            self._wrap(broker, session)

    def begin(self) -> None:
        self._on = True

    def end(self) -> None:
        self._on = False

    def _wrap(self, broker: int, session: EmbeddedCoordinator) -> None:
        for name in CALLS:
            setattr(session, name, partial(self._call, broker, getattr(session, name)))

    def _call(self, broker: int, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loss = None
        if self._on:
            loss = self._losses.get(self.count)
            self.count += 1
        if loss is None:
            return call(*args, **kwargs)
        self.struck += 1
        if loss in (Loss.AFTER, Loss.DEATH_AFTER):
            call(*args, **kwargs)
        if loss in (Loss.BEFORE, Loss.AFTER):
            raise CoordinatorUnavailableError(f"lost {loss.value}")
        assert self._brokers is not None
        self._brokers.kill(broker, settle=False)
        raise SessionExpiredError("the process is gone")


Replies = list[Response | Mapping[TopicPartition, Any] | None]


class Stage(NamedTuple):
    """Four brokers, of which 1 is the controller and has no replica of ``t``."""

    b: Brokers
    replies: Replies

    def ask(self, request: Request) -> None:
        self.b.controller.handle(request, self.replies.append)

    def propose(self, *isr: int, tp: TopicPartition = T0) -> None:
        now = self.b.partition(tp)
        topic_id = self.b.topic(tp.topic).topic_id
        leader = self.b.brokers[now.leader]
        item = AlterPartitionItem(
            tp,
            now.leader_epoch,
            now.partition_epoch,
            tuple((r, -1) for r in isr),
            topic_id=topic_id,
        )
        self.ask(AlterPartitionRequest(now.leader, leader.broker_epoch, (item,)))

    def move(self, target: tuple[int, ...] | None, tp: TopicPartition = T0) -> None:
        self.ask(AlterPartitionReassignmentsRequest(((tp, target),)))


Act = Callable[[Stage], None]
EVENTS: dict[str, tuple[Act, Act]] = {}  # by name: what comes before, and the event


def nothing(stage: Stage) -> None:
    pass


def event(prepare: Act = nothing) -> Callable[[Act], Act]:
    def add(act: Act) -> Act:
        EVENTS[act.__name__.replace("_", " ")] = prepare, act
        return act

    return add


@event()
def a_leader_dies(stage: Stage) -> None:
    stage.b.kill(2, settle=False)


@event()
def two_die_at_once(stage: Stage) -> None:
    stage.b.kill(2, 3, settle=False)


@event()
def the_controller_dies_and_others_with_it(stage: Stage) -> None:
    stage.b.kill(1, 2, 4, settle=False)
    stage.b.start(4, clean=False, settle=False)


@event()
def the_controller_is_removed(stage: Stage) -> None:
    with suppress(NoNodeError):
        stage.b.admin.delete(nodes.CONTROLLER)


@event()
def one_is_back_before_anybody_looked(stage: Stage) -> None:
    stage.b.kill(2, settle=False)
    stage.b.start(2, settle=False)


@event()
def one_is_back_without_proof_of_a_clean_stop(stage: Stage) -> None:
    stage.b.kill(2, settle=False)
    stage.b.start(2, clean=False, settle=False)


@event(lambda stage: stage.b.kill(2, 3, 4))
def the_last_of_the_eligible_replicas_is_back(stage: Stage) -> None:
    stage.b.start(4, settle=False)


@event(lambda stage: stage.b.kill(2, 3, 4))
def one_comes_and_goes_and_another_comes(stage: Stage) -> None:
    stage.b.start(4, settle=False)
    stage.b.settle()
    stage.b.kill(4)
    stage.b.start(2, settle=False)


@event(lambda stage: stage.b.kill(2, 3, 4))
def all_are_back_uncleanly(stage: Stage) -> None:
    for broker in (2, 3, 4):
        stage.b.start(broker, clean=False, settle=False)


@event()
def a_controlled_shutdown(stage: Stage) -> None:
    stage.ask(ControlledShutdownRequest(2, stage.b.brokers[2].broker_epoch))


@event()
def a_topic_is_created(stage: Stage) -> None:
    stage.ask(CreateTopicRequest("n", assignment=((2, 3), (3, 4), (4, 2))))


@event()
def a_topic_is_deleted(stage: Stage) -> None:
    stage.ask(DeleteTopicRequest("t"))


@event(lambda stage: stage.b.kill(4))
def a_topic_is_deleted_while_a_replica_is_down(stage: Stage) -> None:
    stage.ask(DeleteTopicRequest("t"))
    stage.b.settle()
    stage.b.start(4, settle=False)


@event()
def a_topic_is_deleted_by_its_id(stage: Stage) -> None:
    stage.ask(DeleteTopicRequest(topic_id=stage.b.topic("t").topic_id))


@event()
def a_topic_grows(stage: Stage) -> None:
    stage.ask(CreatePartitionsRequest("t", 6, ((3, 4, 2), (4, 2, 1), (2, 1, 3))))


@event(lambda stage: stage.b.kill(4))
def a_topic_grows_while_a_broker_is_down(stage: Stage) -> None:
    stage.ask(CreatePartitionsRequest("t", 4, ((4, 3, 2),)))
    stage.b.settle()
    stage.b.start(4, settle=False)


@event()
def a_topic_is_configured(stage: Stage) -> None:
    keys = AlterableConfig("retention.ms", "5000"), AlterableConfig("min.insync.replicas", "3")
    stage.ask(IncrementalAlterConfigsRequest("t", keys))


@event(lambda stage: stage.b.kill(3, 4))
def fewer_replicas_are_enough(stage: Stage) -> None:
    key = AlterableConfig("min.insync.replicas", "1")
    stage.ask(IncrementalAlterConfigsRequest("t", (key,)))


def _only_an_unclean_election_helps(stage: Stage) -> None:
    stage.b.kill(2, 3, 4)
    stage.b.start(2, clean=False)
    assert stage.b.partition().leader == NO_LEADER


@event(_only_an_unclean_election_helps)
def unclean_elections_are_allowed(stage: Stage) -> None:
    key = AlterableConfig("unclean.leader.election.enable", "true")
    stage.ask(IncrementalAlterConfigsRequest("t", (key,)))


@event()
def a_partition_begins_to_move(stage: Stage) -> None:
    stage.move((1, 2))


@event()
def a_partition_loses_a_replica(stage: Stage) -> None:
    stage.move((3, 4))


@event(lambda stage: stage.b.kill(2))
def a_partition_loses_a_replica_that_is_down(stage: Stage) -> None:
    stage.move((3, 4))
    stage.b.settle()
    stage.b.start(2, settle=False)


@event(lambda stage: stage.b.reassign((1, 3)) and None)
def a_move_is_given_up(stage: Stage) -> None:
    stage.move(None)


@event(lambda stage: stage.b.reassign((1, 3)) and None)
def a_move_completes(stage: Stage) -> None:
    stage.propose(1, 2, 3, 4)


@event()
def an_isr_shrinks(stage: Stage) -> None:
    stage.propose(2, 4)


@event(lambda stage: stage.b.alter((2, 3)) and None)
def an_isr_grows(stage: Stage) -> None:
    stage.propose(2, 3, 4)


def _others_lead(stage: Stage) -> None:
    stage.b.bounce(2)
    for tp in (T0, T1, T2):
        stage.b.alter((2, 3, 4), tp)
    assert stage.b.partition().leader == 3


@event(_others_lead)
def preferred_leaders_are_wanted(stage: Stage) -> None:
    stage.ask(ElectLeadersRequest(ElectionType.PREFERRED, (T0, T1)))


@event(_others_lead)
def the_periodic_rebalance(stage: Stage) -> None:
    stage.b.settle(300_000)


@event(lambda stage: stage.b.kill(2, 3, 4))
def an_unclean_election_is_wanted(stage: Stage) -> None:
    stage.b.start(2, clean=False)
    stage.ask(ElectLeadersRequest(ElectionType.UNCLEAN, None))


@event()
def a_log_directory_fails(stage: Stage) -> None:
    stage.b.brokers[2].failed = {T0}
    stage.b.brokers[2].told.pop(T0, None)
    stage.b.admin.create(
        nodes.log_dir_event_path(), nodes.encode_log_dir_event(2), sequential=True, parents=True
    )


class Outcome(NamedTuple):
    calls: int
    struck: int
    replies: Replies
    state: dict[str, object]


def run(name: str, losses: Mapping[int, Loss] | None = None) -> Outcome:
    prepare, act = EVENTS[name]
    return perform(prepare, [act], losses)


def perform(prepare: Act, acts: list[Act], losses: Mapping[int, Loss] | None = None) -> Outcome:
    b = Brokers(4, config={"leader.imbalance.check.interval.seconds": "300"})
    b.create(assignment=((2, 3, 4), (3, 4, 2), (4, 2, 3)), min_insync_replicas="2")
    stage = Stage(b, [])
    prepare(stage)
    faults = Faults(losses)
    faults.watch_over(b)
    faults.begin()
    for act in acts:
        act(stage)
    b.settle(REST_MS)
    faults.end()
    b.settle(REST_MS)
    if any(noted.up for noted in b.brokers.values()):
        b.check()
    state: dict[str, object] = {}
    for topic in b.admin.children(nodes.TOPICS):
        state[topic] = b.topic(topic).config
        for tp in map(partial(TopicPartition, topic), b.topic(topic).partitions):
            if b.admin.get(nodes.partition_state_path(tp)) is not None:
                now = b.partition(tp)
                trusted = sorted((*now.isr, *now.elr))
                state[str(tp)] = now.replicas, now.leader != NO_LEADER, trusted
    for broker, noted in b.brokers.items():
        if noted.failed:
            noted.failed = set()
            b.kill(broker)
        if not noted.up:
            b.start(broker)
    b.settle(REST_MS)
    b.check()
    for topic in b.admin.children(nodes.TOPICS):
        for tp in map(partial(TopicPartition, topic), b.topic(topic).partitions):
            assert b.partition(tp).leader != NO_LEADER
    return Outcome(faults.count, faults.struck, stage.replies, state)


@pytest.fixture(autouse=True)
def _small_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that an event has several."""
    for module in (store, writer):
        monkeypatch.setattr(module, "CHUNK", 2)


@pytest.mark.slow
@for_each("name", EVENTS, at_once=8)
def test_one_answer_is_lost(name: str) -> None:
    undisturbed = run(name)
    assert all(reply is not None for reply in undisturbed.replies)
    for call in range(undisturbed.calls):
        for loss in (Loss.BEFORE, Loss.AFTER):
            outcome = run(name, {call: loss})
            assert outcome.struck == 1
            assert outcome.state == undisturbed.state, (call, loss)
            assert _codes(outcome.replies) == _codes(undisturbed.replies), (call, loss)


@pytest.mark.slow
@for_each("name", EVENTS, at_once=8)
def test_the_controller_dies_in_mid_event(name: str) -> None:
    """The next one finishes what it began, or leaves it; nobody waits for it."""
    undisturbed = run(name)
    for call in range(undisturbed.calls):
        for loss in (Loss.DEATH_BEFORE, Loss.DEATH_AFTER):
            assert run(name, {call: loss}).struck == 1


@for_each("name", EVENTS, at_once=8)
def test_some_answers_are_lost(name: str) -> None:
    undisturbed = run(name)
    rng = Random(name)
    for _ in range(10):
        first = rng.randrange(undisturbed.calls)
        second = first + rng.randint(1, 6)
        losses = {c: rng.choice([Loss.BEFORE, Loss.AFTER]) for c in (first, second)}
        outcome = run(name, losses)
        assert outcome.state == undisturbed.state, losses


SIMPLE = [name for name, (prepare, _) in EVENTS.items() if prepare is nothing]


@for_each("seed", range(15), at_once=5)
def test_several_events_at_once(seed: int) -> None:
    """One is in doubt while the others are due."""
    rng = Random(seed)
    acts = [EVENTS[name][1] for name in rng.sample(SIMPLE, 3)]
    calls = perform(nothing, acts).calls
    for _ in range(10):
        first = rng.randrange(calls)
        losses = {c: rng.choice([*Loss][:2]) for c in (first, first + rng.randint(1, 6))}
        perform(nothing, acts, losses)


def _codes(replies: Replies) -> list[object]:
    return [getattr(reply, "error_code", reply) for reply in replies]
