"""One channel: what is sent, in which order, and what is sent again."""

from __future__ import annotations

from uuid import UUID

import pytest

from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionChange,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from replication.common.retrying import Reaction
from replication.common.state import (
    BrokerRegistration,
    LiveBroker,
    PartitionRegistration,
    TopicAssignment,
    TopicPartition,
)
from replication.controller.channels import (
    BACKOFF,
    PIECE,
    REQUEST_REACTIONS,
    ROLE_REACTIONS,
    STOP_REACTIONS,
    BrokerChannel,
    ControlResponse,
    Numbers,
)
from replication.controller.context import ControllerContext
from tests.support.cases import for_each
from tests.support.controllers import T0
from tests.support.replication import ManualRuntime, RecordingTransport

PAUSE_MS = int(BACKOFF.max_ms)
T1 = TopicPartition("t", 1)
ROLES, METADATA, STOPS = LeaderAndIsrRequest, UpdateMetadataRequest, StopReplicaRequest
ANSWERS: dict[type, ControlResponse] = {
    ROLES: LeaderAndIsrResponse(ErrorCode.NONE),
    METADATA: UpdateMetadataResponse(ErrorCode.NONE),
    STOPS: StopReplicaResponse(ErrorCode.NONE),
}


def at(tp: TopicPartition, leader_epoch: int) -> dict[TopicPartition, PartitionChange]:
    return {tp: PartitionChange(tp, PartitionRegistration((1, 2), (1, 2), 1, leader_epoch, 0))}


def stop(tp: TopicPartition) -> dict[TopicPartition, StopReplicaPartition]:
    return {tp: StopReplicaPartition(tp, 0, delete=True)}


class Wire:
    def __init__(self, *, is_foreign: bool = False) -> None:
        self.runtime = ManualRuntime()
        self.transport = RecordingTransport()
        self.heard: list[ControlResponse] = []
        self.stale = 0
        self.context = ControllerContext()
        self.channel = BrokerChannel(
            LiveBroker(BrokerRegistration(2, is_foreign=is_foreign), 77),
            self.runtime.actor("controller"),
            self.runtime,
            self.transport,
            (1, 5),
            Numbers(),
            self.context,
            lambda broker, request, response: self.heard.append(response),
            self.on_stale,
            30_000,
        )

    def on_stale(self) -> None:
        self.stale += 1

    def waiting(self) -> tuple[type, dict[TopicPartition, int]]:
        """The one request on its way: its kind, and the leader epochs in it."""
        (sent,) = self.transport.sent
        request = sent.request
        assert isinstance(request, LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest)
        assert request[:3] == (1, 5, 77)
        epochs = {
            part.tp: part.leader_epoch
            if isinstance(part, StopReplicaPartition)
            else part.registration.leader_epoch
            for part in request.partitions
        }
        return type(request), epochs

    def is_full(self) -> bool:
        (sent,) = self.transport.sent
        assert isinstance(sent.request, LeaderAndIsrRequest | UpdateMetadataRequest)
        return sent.request.is_full

    def answer(self) -> None:
        self.transport.reply(ANSWERS[self.waiting()[0]])
        self.runtime.run_until_idle()

    def lose(self) -> None:
        self.transport.reply(None)
        self.runtime.advance(PAUSE_MS)


def test_kafka_s_order_one_at_a_time() -> None:
    wire = Wire()
    wire.channel.stop(stop(T1).values())
    wire.channel.update_metadata(at(T0, 0))
    wire.channel.lead_and_follow(at(T0, 0))
    wire.channel.send()
    wire.channel.send()
    for kind, tp in ((ROLES, T0), (METADATA, T0), (STOPS, T1)):
        assert wire.waiting() == (kind, {tp: 0})
        wire.answer()
    assert wire.transport.sent == []
    assert [type(response) for response in wire.heard] == [type(ANSWERS[k]) for k in ANSWERS]


def test_a_broker_is_introduced_before_a_role_that_may_name_it() -> None:
    """X-92; to a real Kafka once, and a broker that goes waits its turn."""
    wire, brokers = (
        Wire(is_foreign=True),
        {n: LiveBroker(BrokerRegistration(n), 70 + n) for n in (1, 2, 3)},
    )
    wire.context.live = {2: brokers[2]}
    wire.channel.send_all_roles()
    wire.channel.send_all_metadata(at(T0, 0))
    wire.channel.send()
    for kind, epochs, is_full in (
        (METADATA, {}, False),
        (ROLES, {}, True),
        (METADATA, {T0: 0}, True),
    ):
        assert (*wire.waiting(), wire.is_full()) == (kind, epochs, is_full)
        wire.answer()
    wire.context.live = brokers
    wire.channel.update_metadata({})
    wire.channel.lead_and_follow(at(T0, 1))
    wire.channel.send()
    wire.lose()  # then nobody was introduced
    for kind, epochs in ((METADATA, {}), (ROLES, {T0: 1}), (METADATA, {})):
        assert wire.waiting() == (kind, epochs)
        wire.answer()
    del brokers[1]
    wire.channel.update_metadata({})
    wire.channel.lead_and_follow(at(T0, 2))
    wire.channel.send()
    assert wire.waiting() == (ROLES, {T0: 2})


def test_the_first_metadata_have_everything_whoever_joins_meanwhile() -> None:
    """X-92: with less of it a broker of ours would take all topics for unknown."""
    wire = Wire()
    wire.channel.send_all_roles()
    roles = {k: v for n in range(PIECE + 1) for k, v in at(TopicPartition("t", n), 1).items()}
    wire.channel.lead_and_follow(roles)
    wire.channel.send_all_metadata(roles)
    wire.channel.send()
    wire.context.live = {3: LiveBroker(BrokerRegistration(3), 78)}
    wire.channel.update_metadata({})
    kinds = []
    for _ in range(3):
        kinds.append(wire.waiting()[0])
        is_full = wire.is_full()
        wire.answer()
    assert (kinds, is_full) == ([ROLES, ROLES, METADATA], True)


def test_a_real_kafka_gets_no_role_for_an_isr() -> None:
    """X-95: unless the role that began the leader epoch may not have arrived."""
    wire = Wire(is_foreign=True)

    def decide(leader_epoch: int, partition_epoch: int) -> None:
        change = at(T0, leader_epoch)[T0]
        registration = change.registration._replace(partition_epoch=partition_epoch)
        wire.channel.lead_and_follow({T0: change._replace(registration=registration)})
        wire.channel.update_metadata({T0: change})
        wire.channel.send()

    decide(1, 1)
    decide(1, 2)
    wire.lose()
    (sent,) = wire.transport.sent
    assert isinstance(sent.request, LeaderAndIsrRequest)
    assert [c.registration.partition_epoch for c in sent.request.partitions] == [2]
    wire.answer()
    wire.answer()
    decide(1, 3)
    assert wire.waiting() == (METADATA, {T0: 1})
    wire.answer()
    assert wire.transport.sent == []
    wire.channel.stop(stop(T0).values())
    wire.channel.send()
    wire.answer()
    decide(1, 4)
    assert wire.waiting() == (ROLES, {T0: 1})


def test_what_waits_is_replaced_by_what_is_newer() -> None:
    wire = Wire()
    wire.channel.lead_and_follow(at(T0, 0))
    wire.channel.send()
    for epoch in (1, 2, 3):
        wire.channel.lead_and_follow(at(T0, epoch))
        wire.channel.send()
    wire.channel.lead_and_follow(at(T1, 9))
    wire.answer()
    assert wire.waiting() == (ROLES, {T0: 3, T1: 9})


@pytest.mark.parametrize("kind", [ROLES, METADATA])
def test_what_is_sent_again_is_the_newest(kind: type) -> None:
    """And nothing that was in the lost request is forgotten."""
    wire = Wire()
    add = wire.channel.lead_and_follow if kind is ROLES else wire.channel.update_metadata
    add({**at(T0, 0), **at(T1, 0)})
    wire.channel.send()
    add(at(T0, 1))
    wire.lose()
    assert wire.waiting() == (kind, {T0: 1, T1: 0})
    wire.lose()
    assert wire.waiting() == (kind, {T0: 1, T1: 0})


def test_metadata_without_partitions_is_sent_again_too() -> None:
    """It tells who is alive."""
    wire = Wire()
    wire.channel.update_metadata({})
    wire.channel.send()
    wire.lose()
    assert wire.waiting() == (METADATA, {})


@pytest.mark.parametrize("lost", [False, True])
def test_a_role_takes_the_place_of_a_stop(lost: bool) -> None:
    wire = Wire()
    wire.channel.stop(stop(T0).values())
    if lost:
        wire.channel.send()
        wire.channel.lead_and_follow(at(T0, 1))
        wire.lose()
    else:
        wire.channel.lead_and_follow(at(T0, 1))
        wire.channel.send()
    assert wire.waiting() == (ROLES, {T0: 1})
    wire.answer()
    assert wire.transport.sent == []


@pytest.mark.parametrize("lost", [False, True])
def test_a_stop_takes_the_place_of_a_role(lost: bool) -> None:
    wire = Wire()
    wire.channel.lead_and_follow(at(T0, 1))
    if lost:
        wire.channel.send()
        wire.channel.stop(stop(T0).values())
        wire.lose()
    else:
        wire.channel.stop(stop(T0).values())
        wire.channel.send()
    assert wire.waiting() == (STOPS, {T0: 0})
    wire.answer()
    assert wire.transport.sent == []


def test_a_closed_channel_is_silent() -> None:
    wire = Wire()
    wire.channel.lead_and_follow(at(T0, 0))
    wire.channel.send()
    wire.channel.close()
    wire.answer()
    wire.channel.send()
    assert wire.heard == []
    assert wire.transport.sent == []


def test_the_next_try_waits_a_moment() -> None:
    wire = Wire()
    wire.channel.lead_and_follow(at(T0, 0))
    wire.channel.send()
    wire.transport.reply(None)
    wire.runtime.run_until_idle()
    assert wire.transport.sent == []  # not before its time
    wire.runtime.advance(PAUSE_MS)
    assert wire.waiting() == (ROLES, {T0: 0})


A, B = UUID(int=1), UUID(int=2)  # of two topics that have one name


def role(tp: TopicPartition, topic_id: UUID) -> dict[TopicPartition, PartitionChange]:
    return {tp: at(tp, 0)[tp]._replace(topic_id=topic_id)}


def end(tp: TopicPartition, topic_id: UUID) -> list[StopReplicaPartition]:
    return [StopReplicaPartition(tp, -2, delete=True, topic_id=topic_id)]


@pytest.mark.parametrize("table", [REQUEST_REACTIONS, ROLE_REACTIONS, STOP_REACTIONS])
def test_every_code_has_a_reaction(table: dict[ErrorCode, Reaction]) -> None:
    assert set(table) == set(ErrorCode)


def numbers_of(wire: Wire) -> int:
    (sent,) = wire.transport.sent
    assert isinstance(sent.request, LeaderAndIsrRequest | UpdateMetadataRequest)
    return sent.request.sequence


@for_each("code", [code for code in ErrorCode if code is not ErrorCode.NONE])
def test_what_is_refused_as_a_whole_is_asked_again(code: ErrorCode) -> None:
    """Under another number; and where the broker knows a later controller, the tree is asked."""
    wire = Wire()
    wire.channel.lead_and_follow(at(T0, 0))
    wire.channel.send()
    assert numbers_of(wire) == 1
    wire.transport.reply(LeaderAndIsrResponse(code, ((T0, code),)))
    wire.runtime.advance(PAUSE_MS)
    assert wire.waiting() == (ROLES, {T0: 0})
    assert numbers_of(wire) == 2
    assert wire.stale == (code is ErrorCode.STALE_CONTROLLER_EPOCH)
    assert wire.heard == []


def test_pauses_grow_and_end_with_an_answer() -> None:
    wire = Wire()
    wire.channel.update_metadata({})
    wire.channel.send()
    for _ in range(10):
        wire.lose()
    wire.transport.reply(None)
    wire.runtime.advance(PAUSE_MS // 2)
    assert wire.transport.sent == []
    wire.runtime.advance(PAUSE_MS)
    wire.answer()
    wire.channel.update_metadata({})
    wire.channel.send()
    wire.transport.reply(None)
    wire.runtime.advance(PAUSE_MS // 4)
    assert wire.waiting() == (METADATA, {})


@for_each("code", [code for code in ErrorCode if ROLE_REACTIONS[code] is Reaction.AGAIN])
def test_one_partition_that_is_refused_does_not_hold_up_the_others(code: ErrorCode) -> None:
    """After a pause it is asked again, among everything that the broker has."""
    wire = Wire()
    wire.context.put_topic("t", TopicAssignment(A, {0: (2,), 1: (2,)}), 0)
    for tp in (T0, T1):
        wire.context.put(tp, PartitionRegistration((2,), (2,), 2, 4, 4))
    wire.channel.lead_and_follow({**role(T0, A), **role(T1, A)})
    wire.channel.send()
    wire.transport.reply(LeaderAndIsrResponse(ErrorCode.NONE, ((T0, ErrorCode.NONE), (T1, code))))
    wire.runtime.run_until_idle()
    wire.channel.update_metadata({})
    wire.channel.send()
    wire.answer()
    assert wire.transport.sent == []
    wire.runtime.advance(PAUSE_MS)
    assert wire.waiting() == (ROLES, {T0: 4, T1: 4})
    assert wire.is_full()
    wire.answer()
    wire.runtime.advance(60 * PAUSE_MS)
    assert wire.transport.sent == []


@for_each("code", [*ErrorCode])
def test_a_replica_that_does_not_go_is_told_again(code: ErrorCode) -> None:
    wire = Wire()
    wire.channel.stop(end(T0, A))
    wire.channel.send()
    wire.transport.reply(StopReplicaResponse(ErrorCode.NONE, ((T0, code),)))
    wire.runtime.advance(PAUSE_MS)
    if STOP_REACTIONS[code] is Reaction.AGAIN:
        assert wire.waiting() == (STOPS, {T0: -2})
        wire.channel.close()
    wire.runtime.advance(60 * PAUSE_MS)
    assert len(wire.transport.sent) == (STOP_REACTIONS[code] is Reaction.AGAIN)


def test_a_later_topic_of_the_name_waits_until_the_earlier_one_has_gone() -> None:
    wire = Wire()
    wire.channel.stop(end(T0, A))
    wire.channel.lead_and_follow(role(T0, B))
    wire.channel.send()
    assert wire.waiting() == (STOPS, {T0: -2})
    wire.lose()
    assert wire.waiting() == (STOPS, {T0: -2})
    wire.answer()
    assert wire.waiting() == (ROLES, {T0: 0})


def test_all_roles_are_told_also_when_there_are_none() -> None:
    """What goes for good goes before: it would only be set aside."""
    wire = Wire()
    wire.channel.send_all_roles()
    wire.channel.stop(end(T0, A))
    wire.channel.send()
    assert wire.waiting() == (STOPS, {T0: -2})
    wire.answer()
    for _ in range(3):
        assert wire.waiting() == (ROLES, {})
        assert wire.is_full()
        wire.lose()
    wire.answer()
    wire.channel.lead_and_follow(at(T0, 0))
    wire.channel.send()
    assert not wire.is_full()


def test_all_metadata_is_told_as_such_until_it_is_answered() -> None:
    wire = Wire()
    wire.channel.send_all_metadata(at(T0, 0))
    wire.channel.send()
    wire.channel.update_metadata(at(T1, 0))
    for tps in ({T0: 0}, {T0: 0, T1: 0}):
        assert wire.waiting() == (METADATA, tps)
        assert wire.is_full()
        wire.lose()
    wire.answer()
    wire.channel.update_metadata(at(T1, 1))
    wire.channel.send()
    assert not wire.is_full()


def test_what_cannot_be_read_is_not_taken_for_what_is_not_there() -> None:
    wire = Wire()
    wire.context.unreadable["t"] = None
    wire.channel.send_all_roles()
    wire.channel.lead_and_follow(at(T1, 0))
    wire.channel.send()
    assert wire.waiting() == (ROLES, {T1: 0})
    assert not wire.is_full()


# -- many partitions ------------------------------------------------------------------------------


def many(count: int, leader_epoch: int = 0) -> dict[TopicPartition, PartitionChange]:
    found: dict[TopicPartition, PartitionChange] = {}
    for number in range(count):
        found |= at(TopicPartition("big", number), leader_epoch)
    return found


def test_many_roles_go_in_pieces() -> None:
    wire = Wire()
    wire.channel.lead_and_follow(many(2 * PIECE + 1))
    wire.channel.update_metadata(many(2 * PIECE + 1))
    wire.channel.send()
    sizes = []
    while wire.transport.sent:
        kind, epochs = wire.waiting()
        sizes.append((kind, len(epochs)))
        wire.answer()
    pieces = [(ROLES, PIECE), (ROLES, PIECE), (ROLES, 1)]
    assert sizes == [*pieces, (METADATA, 2 * PIECE + 1)]


def test_an_election_goes_between_two_pieces() -> None:
    """Its role first, then what clients hear of it, then the rest of the large topic."""
    wire = Wire()
    wire.channel.lead_and_follow(many(3 * PIECE))
    wire.channel.update_metadata(many(3 * PIECE))
    wire.channel.send()
    wire.channel.lead_and_follow(at(T0, 4))
    wire.channel.update_metadata({**at(T0, 4), **at(T1, 5)})  # T1 is not on this broker
    wire.answer()
    kind, epochs = wire.waiting()
    assert (kind, len(epochs), epochs[T0]) == (ROLES, PIECE, 4)
    wire.answer()
    assert wire.waiting() == (METADATA, {T0: 4, T1: 5})
    wire.answer()
    for _ in range(2):
        kind, epochs = wire.waiting()
        assert (kind, T0 in epochs) == (ROLES, False)
        wire.answer()
    kind, epochs = wire.waiting()
    assert (kind, len(epochs), T0 in epochs) == (METADATA, 3 * PIECE, False)


def test_the_metadata_of_a_partition_follows_its_role() -> None:
    wire = Wire()
    wire.channel.lead_and_follow(many(4 * PIECE))
    wire.channel.send()
    last = TopicPartition("big", 4 * PIECE - 1)
    wire.channel.lead_and_follow(at(last, 1))
    wire.channel.update_metadata({**at(T0, 1), **at(last, 1)})
    order: list[tuple[type, bool]] = []
    while wire.transport.sent:
        kind, epochs = wire.waiting()
        order.append((kind, epochs.get(last) == 1))
        wire.answer()
    assert order.index((ROLES, True)) < order.index((METADATA, True))
    assert (ROLES, False) in order[order.index((METADATA, True)) :]


def test_a_piece_that_is_lost_is_sent_again_with_what_is_newer() -> None:
    wire = Wire()
    wire.channel.lead_and_follow(many(2 * PIECE))
    wire.channel.send()
    gone = TopicPartition("big", 0)
    wire.channel.stop(stop(gone).values())
    wire.channel.lead_and_follow(at(TopicPartition("big", 1), 3))
    wire.lose()
    kind, epochs = wire.waiting()
    assert (kind, epochs[TopicPartition("big", 1)]) == (ROLES, 3)
    assert gone not in epochs
    seen = dict(epochs)
    wire.answer()
    while wire.transport.sent:
        kind, epochs = wire.waiting()
        if kind is ROLES:
            assert not seen.keys() & epochs.keys()
            seen |= epochs
        wire.answer()
    assert len(seen) == 2 * PIECE - 1


def test_the_first_of_all_pieces_names_all_topics() -> None:
    """What is left of a broker's roles is no stray: the topics say what belongs here."""
    wire = Wire()
    topic = TopicAssignment(UUID(int=1), dict.fromkeys(range(PIECE + 1), (1, 2)))
    wire.context.put_topic("big", topic, 0)
    for tp, change in many(PIECE + 1).items():
        wire.context.put(tp, change.registration)
    wire.channel.send_all_roles()
    wire.channel.send()
    assert wire.is_full()
    (sent,) = wire.transport.sent
    assert isinstance(sent.request, LeaderAndIsrRequest)
    assert len(sent.request.partitions) == PIECE
    assert sent.request.topics == {"big": topic}
    wire.answer()
    assert not wire.is_full()
    assert len(wire.waiting()[1]) == 1


def test_one_that_is_refused_again_and_again_does_not_keep_a_broker_busy() -> None:
    """All is asked again after pauses that grow, though the other pieces are accepted; between
    them the metadata of new partitions gets its turn."""
    wire = Wire()
    tps = [TopicPartition("t", number) for number in range(4 * PIECE)]
    wire.context.put_topic("t", TopicAssignment(A, {tp.partition: (2,) for tp in tps}), 0)
    for tp in tps:
        wire.context.put(tp, PartitionRegistration((2,), (2,), 2, 4, 4))
    wire.channel.send_all_roles()
    wire.channel.send()
    wire.channel.update_metadata(at(TopicPartition("new", 0), 0))
    pieces = told = 0
    for _ in range(600):  # a minute of a broker that takes 100 ms for each request
        wire.runtime.advance(100)
        if not wire.transport.sent:
            continue
        kind, epochs = wire.waiting()
        if kind is METADATA:
            told += 1
            wire.answer()
            continue
        pieces += 1
        codes = dict.fromkeys(epochs, ErrorCode.NONE) | {
            tp: ErrorCode.REPLICA_NOT_AVAILABLE for tp in epochs if tp == tps[0]
        }
        wire.transport.reply(LeaderAndIsrResponse(ErrorCode.NONE, tuple(codes.items())))
        wire.runtime.run_until_idle()
    assert told
    assert pieces < 100
    wire.channel.close()
