"""What clients make of single answers: leaders, epochs, replicas, pauses."""

from __future__ import annotations

import math
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from logstore.common.errors import ConfigError, CorruptBatchError, OffsetOutOfRangeError
from logstore.format.header import parse_header
from logstore.log.reading.fetching import EARLIEST, LATEST
from replication.client import (
    Client,
    Consumer,
    ConsumerConfig,
    ConsumerCore,
    Metadata,
    Outcome,
    PollResult,
    Producer,
    ProducerConfig,
    ProducerCore,
    SendResult,
    Stamp,
    reactions,
)
from replication.client.inline import InlineActor
from replication.client.metadata import MAX_AGE_MS
from replication.client.positions import EpochsRead, FetchPosition, PositionStep, diverging_offset
from replication.client.sending import MAX_PRODUCER_EPOCH
from replication.common.error_codes import ErrorCode
from replication.common.errors import (
    BrokerUnavailableError,
    LogTruncationError,
    ReplicationError,
    UnknownPartitionError,
)
from replication.common.messages import (
    EpochEndOffset,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    LiveBroker,
    MetadataRequest,
    MetadataResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartitionResponse,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    Request,
    Response,
    TopicPartitionMetadata,
)
from replication.common.state import BrokerRegistration
from replication.common.transport import OnReply
from tests.support.builders import batch
from tests.support.leftovers import nothing_left
from tests.support.replication import ManualRuntime, RecordingTransport, Sent
from tests.support.until import patience

TP = TopicPartition("orders", 0)
TOPIC_ID = uuid.UUID(int=7)
TABLES = [
    "PRODUCE",
    "FETCH",
    "QUESTION",
    "METADATA",
]


@pytest.mark.parametrize("name", TABLES)
def test_every_code_has_a_reaction(name: str) -> None:
    table: Mapping[ErrorCode, Enum] = getattr(reactions, name)
    assert set(table) == set(ErrorCode)
    assert table[ErrorCode.NONE].name == "DONE"


class Talk:
    """A client and the answers that a test gives it, request by request."""

    def __init__(self) -> None:
        self.runtime = ManualRuntime()
        self.transport = RecordingTransport()
        self.metadata = Metadata(self.runtime, self.transport, lambda: (1, 2, 3))
        self.leader, self.epoch, self.topic_id = 1, 4, TOPIC_ID
        self.learn()

    def learn(self) -> None:
        """The client asks who leads what."""
        self.metadata.refresh(lambda answered: None)
        self.expect(MetadataRequest, lambda request: self.described())

    def described(self) -> MetadataResponse:
        part = TopicPartitionMetadata(
            TP, ErrorCode.NONE, self.leader, self.epoch, (1, 2, 3), (1, 2, 3), ()
        )
        live = tuple(LiveBroker(BrokerRegistration(n), n) for n in (1, 2, 3))
        return MetadataResponse(live, 1, (part,), {TP.topic: self.topic_id})

    def expect(
        self, kind: type[Request], answer: Callable[[Request], Response | None] | None = None
    ) -> Sent:
        """The next request, which must be of this kind; questions for metadata are answered."""
        self.runtime.run_until_idle()
        for _ in range(50):
            while self.transport.sent:
                sent = self.transport.take()
                if isinstance(sent.request, kind):
                    if answer is not None:
                        sent.reply(answer(sent.request))
                        self.runtime.run_until_idle()
                    return sent
                assert isinstance(sent.request, MetadataRequest), sent.request
                sent.reply(self.described())
                self.runtime.run_until_idle()
            self.runtime.advance(50)
        raise AssertionError(f"no {kind.__name__}")

    # -- producers -----------------------------------------------------------------------------

    def producer(self, **config: object) -> ProducerCore:
        self.sent: list[SendResult] = []
        return ProducerCore(
            self.runtime,
            self.transport,
            self.metadata,
            ProducerConfig(**config),  # type: ignore[arg-type]
        )

    def produce(self, core: ProducerCore, *values: bytes) -> None:
        core.send(TP, [(None, value) for value in values], self.sent.append)

    def answer_produce(self, code: ErrorCode, offset: int = -1) -> Stamp:
        """Answer the next produce request; how it was stamped."""
        seen: list[Stamp] = []

        def answer(request: Request) -> Response:
            assert isinstance(request, ProduceRequest)
            header = parse_header(request.partitions[0].records)
            seen.append(Stamp(header.producer_id, header.producer_epoch, header.base_sequence))
            return ProduceResponse((ProducePartitionResponse(TP, code, offset),))

        self.expect(ProduceRequest, answer)
        return seen[0]

    def answer_id(self, producer_id: int) -> None:
        self.expect(
            InitProducerIdRequest,
            lambda request: InitProducerIdResponse(ErrorCode.NONE, producer_id, 0),
        )

    # -- consumers -----------------------------------------------------------------------------

    def consumer(self, offset: int | None = 0, **config: object) -> ConsumerCore:
        self.polled: list[PollResult] = []
        core = ConsumerCore(
            self.runtime,
            self.transport,
            self.metadata,
            [TP],
            ConsumerConfig(**config),  # type: ignore[arg-type]
        )
        if offset is not None:
            core.seek(TP, offset)
        self.core = core
        return core

    def poll(self, max_wait_ms: int = 0) -> None:
        self.core.poll(max_wait_ms, self.polled.append)

    def answer_fetch(self, part: FetchPartitionResponse) -> tuple[int, FetchRequest]:
        sent = self.expect(FetchRequest, lambda request: FetchResponse((part,)))
        assert isinstance(sent.request, FetchRequest)
        return sent.broker_id, sent.request

    def read_some(self) -> None:
        """The records 0 … 3, of leader epoch 4."""
        self.poll()
        records = b"".join(batch(n, epoch=4) for n in range(4))
        self.answer_fetch(FetchPartitionResponse(TP, ErrorCode.NONE, 4, 4, 0, records))
        assert self.core.positions[TP].offset == 4


class TestProducer:
    def test_a_broker_that_has_it_already_and_not_where(self) -> None:
        talk = Talk()
        core = talk.producer(producer_id=9)
        talk.produce(core, b"a")
        talk.answer_produce(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
        assert talk.sent == [SendResult(Outcome.ACKNOWLEDGED, stamp=Stamp(9, 0, 0))]
        talk.produce(core, b"b")
        assert talk.answer_produce(ErrorCode.NONE, 5) == Stamp(9, 0, 1)

    @pytest.mark.parametrize(
        "code", [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID]
    )
    def test_a_leader_that_lost_what_came_before(self, code: ErrorCode) -> None:
        talk = Talk()
        core = talk.producer(producer_id=9)
        talk.produce(core, b"a", b"b")
        talk.answer_produce(ErrorCode.NONE, 0)
        talk.produce(core, b"c")
        assert talk.answer_produce(code) == Stamp(9, 0, 2)
        assert talk.answer_produce(ErrorCode.NONE, 0) == Stamp(9, 1, 0)
        assert talk.sent[-1].outcome is Outcome.ACKNOWLEDGED

    def test_what_was_refused_for_good_leaves_no_gap(self) -> None:
        talk = Talk()
        core = talk.producer(producer_id=9)
        talk.produce(core, b"a")
        talk.produce(core, b"b")
        talk.answer_produce(ErrorCode.MESSAGE_TOO_LARGE)
        assert talk.sent[0].outcome is Outcome.NOT_WRITTEN
        assert talk.answer_produce(ErrorCode.NONE, 0) == Stamp(9, 1, 0)

    def test_an_id_of_its_own_that_is_fenced_is_given_up(self) -> None:
        talk = Talk()
        core = talk.producer(idempotent=True)
        talk.produce(core, b"a")
        talk.answer_id(70)
        assert talk.answer_produce(ErrorCode.INVALID_PRODUCER_EPOCH) == Stamp(70, 0, 0)
        assert talk.sent[-1].error is not None
        talk.produce(core, b"b")
        talk.answer_id(71)
        assert talk.answer_produce(ErrorCode.NONE, 0) == Stamp(71, 0, 0)

    def test_an_id_of_the_caller_that_is_fenced_stays_so(self) -> None:
        talk = Talk()
        core = talk.producer(producer_id=9)
        for _ in range(2):
            talk.produce(core, b"a")
        talk.answer_produce(ErrorCode.INVALID_PRODUCER_EPOCH)
        talk.runtime.run_until_idle()
        codes = [result.error and result.error.code for result in talk.sent]
        assert codes == [ErrorCode.INVALID_PRODUCER_EPOCH] * 2
        assert not talk.transport.sent

    def test_all_epochs_are_used(self) -> None:
        talk = Talk()
        core = talk.producer(idempotent=True)
        talk.produce(core, b"a")
        talk.answer_id(70)
        talk.answer_produce(ErrorCode.NONE, 0)
        (lane,) = core._lanes.values()
        lane._next = Stamp(70, MAX_PRODUCER_EPOCH, 3)
        talk.produce(core, b"b")
        assert talk.answer_produce(ErrorCode.RECORD_LIST_TOO_LARGE).epoch == MAX_PRODUCER_EPOCH
        talk.produce(core, b"c")
        talk.answer_id(71)
        assert talk.answer_produce(ErrorCode.NONE, 0) == Stamp(71, 0, 0)

    def test_a_hint_leads_to_the_new_leader_at_once(self) -> None:
        talk = Talk()
        core = talk.producer()
        talk.produce(core, b"a")
        hint = ProducePartitionResponse(TP, ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=(3, 5))
        talk.expect(ProduceRequest, lambda request: ProduceResponse((hint,)))
        assert talk.transport.sent[0].broker_id == 3  # no time has passed
        # The same hint again is no news: two brokers that name each other are asked with pauses.
        talk.expect(ProduceRequest, lambda request: ProduceResponse((hint,)))
        assert not talk.transport.sent

    def test_never_back_to_a_leader_of_a_lower_epoch(self) -> None:
        """Not even when a broker did not know the topic for a while, and with it the epoch."""
        talk = Talk()
        core = talk.producer(producer_id=9)
        talk.produce(core, b"a")
        sent = talk.expect(ProduceRequest)
        view = talk.metadata.view
        stale = view.partitions[TP]._replace(leader_id=2, leader_epoch=3)
        talk.metadata.view = view._replace(partitions={TP: stale})
        talk.leader, talk.epoch = 2, 3
        sent.reply(None)
        talk.runtime.advance(2000)
        assert not [s for s in talk.transport.sent if isinstance(s.request, ProduceRequest)]

    def test_pauses_grow(self) -> None:
        """A cluster without a leader is not asked thousands of times."""
        talk = Talk()
        core = talk.producer(delivery_timeout_ms=10_000)
        talk.produce(core, b"a")
        count = 0
        while not talk.sent:
            talk.answer_produce(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            talk.runtime.run_until_idle()
            count += 1
            while talk.transport.sent and isinstance(
                talk.transport.sent[0].request, MetadataRequest
            ):
                talk.transport.take().reply(talk.described())
                talk.runtime.run_until_idle()
            while not talk.sent and not talk.transport.sent:
                talk.runtime.advance(10)
                while talk.transport.sent and isinstance(
                    talk.transport.sent[0].request, MetadataRequest
                ):
                    talk.transport.take().reply(talk.described())
                    talk.runtime.run_until_idle()
        assert 8 <= count <= 30
        assert talk.sent[0].outcome is Outcome.UNKNOWN

    @pytest.mark.parametrize("acks", [0, 1])
    def test_idempotence_needs_all_acks(self, acks: int) -> None:
        with pytest.raises(ConfigError):
            ProducerConfig(acks=acks, idempotent=True)


def position(*read: tuple[int, int], offset: int, resets: bool = True) -> FetchPosition:
    found = FetchPosition(TP, resets=resets)
    found.seek(offset)
    for epoch, first in read:
        found.epochs.note(epoch, first)
    return found


class TestComparison:
    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            (EpochEndOffset(5, 12), None),
            (EpochEndOffset(5, 10), None),
            (EpochEndOffset(5, 9), 9),
            (EpochEndOffset(3, 7), 6),  # of epoch 3 it has more than we read: that is ours' end
            (EpochEndOffset(3, 5), 5),
            (EpochEndOffset(1, 3), 2),
            (EpochEndOffset(0, 9), 1),  # nothing that we read is there
        ],
    )
    def test_where_logs_part(self, answer: EpochEndOffset, expected: int | None) -> None:
        """Read: epoch 1 from 1 on, 3 from 2 on, 5 from 6 to 9."""
        assert diverging_offset(position((1, 1), (3, 2), (5, 6), offset=10), answer) == expected

    def test_a_long_history_gives_an_end_that_is_never_too_high(self) -> None:
        epochs = EpochsRead()
        for epoch in range(1000):
            epochs.note(epoch, 10 * epoch)
        assert epochs.latest == 999
        assert len(epochs._entries) <= 64
        for epoch in range(999):
            assert epochs.end_of(epoch) <= 10 * (epoch + 1)
        assert epochs.end_of(998) == 9990

    def test_nothing_in_common(self) -> None:
        found = position((5, 6), offset=10)
        found.compare(EpochEndOffset())
        assert (found.step, found.offset) == (PositionStep.RESET, None)
        found = position((5, 6), offset=10, resets=False)
        found.compare(EpochEndOffset())
        assert isinstance(found.error, LogTruncationError)
        assert found.error.divergent_offset is None


class TestConsumer:
    def test_each_fetch_says_what_was_read(self) -> None:
        talk = Talk()
        talk.consumer()
        talk.read_some()
        talk.poll()
        broker, request = talk.answer_fetch(FetchPartitionResponse(TP, ErrorCode.NONE, 4, 4, 0))
        (part,) = request.partitions
        assert (part.current_leader_epoch, part.last_fetched_epoch) == (4, 4)
        assert (broker, part.topic_id) == (1, TOPIC_ID)

    def test_another_leadership_is_asked_first(self) -> None:
        talk = Talk()
        talk.consumer(reset=None)
        talk.read_some()
        talk.leader, talk.epoch = 2, 6
        talk.learn()
        talk.poll()
        sent = talk.expect(
            OffsetForLeaderEpochRequest,
            lambda request: OffsetForLeaderEpochResponse(
                (OffsetForLeaderPartitionResponse(TP, ErrorCode.NONE, 4, 3),)
            ),
        )
        assert isinstance(sent.request, OffsetForLeaderEpochRequest)
        assert sent.broker_id == 2
        assert sent.request.partitions[0][:3] == (TP, 4, 6)
        error = talk.polled[-1].error
        assert isinstance(error, LogTruncationError)
        assert (error.tp, error.position, error.divergent_offset) == (TP, 4, 3)
        talk.core.seek(TP, 3)
        talk.poll()
        talk.answer_fetch(FetchPartitionResponse(TP, ErrorCode.NONE, 3, 3, 0))
        assert talk.polled[-1] == PollResult([])

    def test_a_hint_counts_more_than_old_metadata(self) -> None:
        talk = Talk()
        talk.consumer()
        talk.poll(1000)
        part = FetchPartitionResponse(TP, ErrorCode.FENCED_LEADER_EPOCH, current_leader=(3, 5))
        assert talk.answer_fetch(part)[0] == 1
        broker, request = talk.answer_fetch(FetchPartitionResponse(TP, ErrorCode.NONE, 0, 0, 0))
        assert (broker, request.partitions[0].current_leader_epoch) == (3, 5)

    def test_records_come_before_an_error(self) -> None:
        other = TopicPartition("orders", 1)
        talk = Talk()
        core = talk.consumer(reset=None)
        core.seek(other, 0)
        view = talk.metadata.view
        both = {tp: view.partitions[TP]._replace(tp=tp) for tp in (TP, other)}
        talk.metadata.view = view._replace(partitions=both)
        parts = (
            FetchPartitionResponse(TP, ErrorCode.NONE, 1, 1, 0, batch(0, epoch=4)),
            FetchPartitionResponse(other, ErrorCode.UNKNOWN_SERVER_ERROR),
        )
        talk.poll()
        talk.expect(FetchRequest, lambda request: FetchResponse(parts))
        assert len(talk.polled[-1].records) == 1
        assert talk.polled[-1].error is None

    def test_an_epoch_above_the_leaders_is_damage(self) -> None:
        """No checksum covers it, and a position with it would seem to be out of range."""
        talk = Talk()
        talk.consumer()
        talk.poll()
        talk.answer_fetch(
            FetchPartitionResponse(TP, ErrorCode.NONE, 2, 2, 0, batch(0, 2, epoch=260))
        )
        assert isinstance(talk.polled[-1].error, CorruptBatchError)
        assert talk.core.positions[TP].offset == 0

    def test_out_of_range_without_a_policy_names_the_range(self) -> None:
        talk = Talk()
        talk.consumer(offset=50, reset=None)
        talk.poll()
        talk.answer_fetch(FetchPartitionResponse(TP, ErrorCode.OFFSET_OUT_OF_RANGE))
        for asked, offset in ((EARLIEST, 3), (LATEST, 9)):  # no broker takes both in one request
            part = ListOffsetsPartitionResponse(TP, ErrorCode.NONE, -1, offset)
            sent = talk.expect(
                ListOffsetsRequest, lambda _, part=part: ListOffsetsResponse((part,))
            )
            assert isinstance(sent.request, ListOffsetsRequest)
            assert [each.timestamp for each in sent.request.partitions] == [asked]
        error = talk.polled[-1].error
        assert isinstance(error, OffsetOutOfRangeError)
        assert (error.offset, error.start, error.end) == (50, 3, 9)

    def test_an_answer_from_before_a_seek_counts_no_more(self) -> None:
        talk = Talk()
        talk.consumer()
        talk.poll()
        sent = talk.expect(FetchRequest)
        talk.core.seek(TP, 7)
        sent.reply(
            FetchResponse((FetchPartitionResponse(TP, ErrorCode.NONE, 1, 1, 0, batch(0, epoch=4)),))
        )
        talk.runtime.run_until_idle()
        assert talk.polled == [PollResult([])]
        assert talk.core.positions[TP].offset == 7


class TestOtherReplicas:
    """KIP-392: a follower in the consumer's rack is read, and the leader has the say."""

    def redirected(self) -> Talk:
        talk = Talk()
        talk.consumer(reset=None, rack_id="b")
        talk.read_some()
        talk.poll(2000)
        _, request = talk.answer_fetch(
            FetchPartitionResponse(TP, ErrorCode.NONE, 9, 9, 0, preferred_read_replica=3)
        )
        assert request.rack_id == "b"
        return talk

    def test_it_is_read_from_then_on(self) -> None:
        talk = self.redirected()
        records = batch(4, epoch=4)
        broker, request = talk.answer_fetch(
            FetchPartitionResponse(TP, ErrorCode.NONE, 5, 5, 0, records)
        )
        assert (broker, request.partitions[0].last_fetched_epoch) == (3, 4)
        assert len(talk.polled[-1].records) == 1
        talk.poll()
        assert talk.answer_fetch(FetchPartitionResponse(TP, ErrorCode.NONE, 5, 5, 0))[0] == 3

    @pytest.mark.parametrize(
        "answer",
        [
            FetchPartitionResponse(TP, ErrorCode.OFFSET_OUT_OF_RANGE),
            FetchPartitionResponse(TP, ErrorCode.UNKNOWN_LEADER_EPOCH),
            FetchPartitionResponse(TP, ErrorCode.NONE, diverging_epoch=EpochEndOffset(3, 2)),
            None,
        ],
        ids=["out of range", "behind", "diverging", "silent"],
    )
    def test_what_it_lacks_is_no_finding(self, answer: FetchPartitionResponse | None) -> None:
        """It may be behind, or about to truncate: the leader is asked, and sends us nowhere."""
        talk = self.redirected()
        talk.expect(FetchRequest, lambda request: answer and FetchResponse((answer,)))
        records = batch(4, epoch=4)
        broker, request = talk.answer_fetch(
            FetchPartitionResponse(TP, ErrorCode.NONE, 5, 5, 0, records)
        )
        assert (broker, request.rack_id) == (1, "")
        assert len(talk.polled[-1].records) == 1

    def test_another_leader_ends_it(self) -> None:
        talk = self.redirected()
        talk.answer_fetch(FetchPartitionResponse(TP, ErrorCode.NONE, 4, 4, 0))
        talk.leader, talk.epoch = 2, 6
        talk.learn()
        talk.poll()
        talk.expect(
            OffsetForLeaderEpochRequest,
            lambda request: OffsetForLeaderEpochResponse(
                (OffsetForLeaderPartitionResponse(TP, ErrorCode.NONE, 4, 4),)
            ),
        )
        assert talk.answer_fetch(FetchPartitionResponse(TP, ErrorCode.NONE, 4, 4, 0))[0] == 2


def test_a_partition_that_fails_is_asked_with_pauses_and_then_given_up() -> None:
    talk = Talk()
    talk.consumer(timeout_ms=5000, reset=EARLIEST)
    talk.poll(100_000)
    count = 0
    while not talk.polled:
        talk.answer_fetch(FetchPartitionResponse(TP, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        count += 1
        while talk.transport.sent and isinstance(talk.transport.sent[0].request, MetadataRequest):
            talk.transport.take().reply(talk.described())
            talk.runtime.run_until_idle()
    error = talk.polled[0].error
    assert getattr(error, "code", None) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert count < 25


class TestAge:
    """Kafka's ``metadata.max.age.ms``: a topic grows, and nothing fails."""

    @pytest.mark.parametrize("use", ["produce", "poll"])
    def test_metadata_are_asked_for_again_in_time(self, use: str) -> None:
        talk = Talk()
        core = ProducerCore(talk.runtime, talk.transport, talk.metadata, ProducerConfig())
        consumer = ConsumerCore(
            talk.runtime, talk.transport, talk.metadata, [TP], ConsumerConfig(reset=EARLIEST)
        )

        def used() -> list[type]:
            talk.transport.sent.clear()
            if use == "produce":
                core.send_encoded(TP, batch(), 1, lambda result: None)
            else:
                consumer._poll = None
                consumer.poll(10, lambda result: None)
            talk.runtime.run_until_idle()
            return [type(sent.request) for sent in talk.transport.sent]

        assert MetadataRequest not in used()
        talk.runtime.clock.advance(MAX_AGE_MS - 1)
        assert MetadataRequest not in used()
        talk.runtime.clock.advance(1)
        assert MetadataRequest in used()
        assert MetadataRequest not in used()  # one is on its way

    def test_a_producer_spreads_over_new_partitions(self) -> None:
        talk = Talk()
        client = Client(talk.transport, lambda: (1,), talk.runtime.clock, metadata_max_age_s=60)
        client.metadata.refresh(lambda answered: None)
        talk.transport.take().reply(talk.described())
        assert client.partitions(TP.topic) == [TP]
        talk.runtime.clock.advance(60_000)
        client.partitions(TP.topic)
        grown = talk.described()
        new = grown.partitions[0]._replace(tp=TopicPartition(TP.topic, 1))
        talk.transport.take().reply(grown._replace(partitions=(*grown.partitions, new)))
        assert client.partitions(TP.topic) == [TP, new.tp]
        assert not talk.transport.sent


class TestThoseWhoWait:
    def test_one_that_raises_keeps_nobody_from_hearing(self) -> None:
        talk = Talk()
        told: list[bool] = []

        def raises(answered: bool) -> None:
            raise ZeroDivisionError

        talk.metadata.refresh(raises)
        talk.metadata.refresh(told.append)
        with pytest.raises(ZeroDivisionError):
            talk.expect(MetadataRequest, lambda request: talk.described())
        talk.runtime.run_until_idle()
        assert told == [True]

    def test_a_list_of_brokers_that_fails_once(self) -> None:
        runtime, transport = ManualRuntime(), RecordingTransport()
        lists: list[Sequence[int]] = [(1,)]
        metadata = Metadata(runtime, transport, lambda: lists[0])
        brokers, lists[:] = lists[:], []
        told: list[bool] = []
        metadata.refresh(told.append)
        runtime.run_until_idle()
        assert told == [False]
        lists[:] = brokers
        metadata.refresh(told.append)
        runtime.run_until_idle()
        transport.take().reply(None)
        runtime.run_until_idle()
        assert told == [False, False]


class Silent:
    """No broker ever answers, and no timer of the transport fires."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def send(
        self, broker_id: int, request: Request, on_reply: OnReply, timeout_ms: int = 0
    ) -> None:
        self.asked.set()


class TestBlocking:
    @pytest.mark.parametrize("call", ["send", "poll", "refresh", "offset_for", "new_producer_id"])
    def test_who_waits_when_the_client_is_closed_hears_of_it(self, call: str) -> None:
        silent = Silent()
        client = Client(silent, lambda: (1,))
        calls: dict[str, Callable[[], object]] = {
            "send": lambda: Producer(client).send(TP.topic, b"x", partition=0),
            "poll": lambda: Consumer(client, [TP]).poll(),
            "refresh": client.refresh,
            "offset_for": lambda: Consumer(client, [TP]).offset_for(TP, EARLIEST),
            "new_producer_id": client.new_producer_id,
        }
        errors: list[Exception] = []

        def run() -> None:
            try:
                calls[call]()
            except BrokerUnavailableError as error:
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert silent.asked.wait(patience())
        client.close()
        thread.join(patience())
        assert not thread.is_alive()
        run()  # and so whoever comes later
        assert [str(error) for error in errors] == ["the client was closed"] * 2

    def test_a_closed_client_sends_nothing_later(self) -> None:
        """Its timers are those of a runtime that goes on."""
        timers, silent = ManualRuntime(), Silent()
        client = Client(silent, lambda: (1,), timers.clock, timers=timers)
        sent: list[object] = []
        Producer(client)._core.send(TP, [(None, b"x")], sent.append)
        assert not silent.asked.is_set()  # nobody is known to lead: it pauses
        client.close()
        timers.advance(60_000)
        assert not silent.asked.is_set()
        assert sent == []

    def test_a_closed_client_leaves_no_thread(self) -> None:
        with (
            nothing_left() as threads,
            Client(Silent(), lambda: ()) as client,
            pytest.raises(UnknownPartitionError),
        ):
            Producer(client, delivery_timeout_s=0.03).send(TP.topic, b"x", partition=0)
        assert threads

    @pytest.mark.parametrize(
        "options",
        [
            {"producer_id": -1},
            {"producer_id": 2**63},
            {"producer_id": "7"},
            {"request_timeout_ms": -1},
            {"delivery_timeout_s": math.inf},
            {"delivery_timeout_s": math.nan},
            {"idempotent": True, "acks": 1},
        ],
        ids=str,
    )
    def test_what_no_producer_can_have(self, options: dict[str, Any]) -> None:
        with pytest.raises(ConfigError):
            Producer(Client(Silent(), lambda: (1,)), **options)

    @pytest.mark.parametrize(
        "options",
        [{"reset": "first"}, {"isolation": "none"}, {"max_bytes": 0}, {"timeout_s": math.inf}],
        ids=str,
    )
    def test_what_no_consumer_can_have(self, options: dict[str, Any]) -> None:
        with pytest.raises(ConfigError):
            Consumer(Client(Silent(), lambda: (1,)), [TP], **options)


class Cut:
    """A leader whose log was cut to two records of epoch 5."""

    log_end = 2

    def __init__(self, *refusals: ErrorCode) -> None:
        self.refusals = [*refusals]  # of questions for offsets

    def send(
        self, broker_id: int, request: Request, on_reply: OnReply, timeout_ms: int = 0
    ) -> None:
        match request:
            case MetadataRequest():
                part = TopicPartitionMetadata(TP, ErrorCode.NONE, 1, 5, (1,), (1,), ())
                live = (LiveBroker(BrokerRegistration(1), 1),)
                on_reply(MetadataResponse(live, 1, (part,), {TP.topic: TOPIC_ID}))
            case ListOffsetsRequest():
                ends = [
                    0 if asked.timestamp == EARLIEST else self.log_end
                    for asked in request.partitions
                ]
                code = self.refusals.pop() if self.refusals else ErrorCode.NONE
                parts = [ListOffsetsPartitionResponse(TP, code, offset=n) for n in ends]
                on_reply(ListOffsetsResponse(tuple(parts)))
            case FetchRequest(partitions=(asked,)):
                at, end = asked.fetch_offset, self.log_end
                code = ErrorCode.OFFSET_OUT_OF_RANGE if at > end else ErrorCode.NONE
                records = b"".join(batch(n, epoch=5) for n in range(at, end))
                on_reply(FetchResponse((FetchPartitionResponse(TP, code, end, end, 0, records),)))


class TestReadToEnd:
    def test_an_offset_is_asked_for_again_where_that_may_help(self) -> None:
        passing, final = ErrorCode.REPLICA_NOT_AVAILABLE, ErrorCode.NOT_CONTROLLER
        cut = Cut(final, passing)
        with Client(cut, lambda: (1,)) as client:
            consumer = Consumer(client, [TP])
            with pytest.raises(ReplicationError) as caught:
                consumer.offset_for(TP, EARLIEST)
            assert (caught.value.code, cut.refusals) == (final, [])
            cut.refusals = [passing]
            assert consumer.offset_for(TP, LATEST) == 2

    def test_a_position_behind_the_end_is_compared(self) -> None:
        with Client(Cut(), lambda: (1,)) as client:
            consumer = Consumer(client, [TP], reset=None)
            consumer.seek(TP, 7)
            with pytest.raises(OffsetOutOfRangeError):
                consumer.read_to_end(5)
            again = Consumer(client, [TP])
            again.seek(TP, 7)
            assert len(again.read_to_end(5)) == 2

    def test_a_log_that_is_cut_under_way_ends_where_it_ends_now(self) -> None:
        cut = Cut()
        with Client(cut, lambda: (1,)) as client:
            consumer = Consumer(client, [TP])
            first, poll = [True], consumer.poll

            def cut_first(max_wait_ms: int = 500) -> object:
                if first.pop() if first else False:
                    cut.log_end = 1
                return poll(max_wait_ms)

            consumer.poll = cut_first  # type: ignore[method-assign,assignment]
            assert len(consumer.read_to_end(5)) == 1


class TestInlineActor:
    def test_a_task_runs_where_it_is_posted_and_what_it_posts_after_it(self) -> None:
        actor, seen = InlineActor("a"), list[str]()

        def outer() -> None:
            actor.post(lambda: seen.append("inner"))
            seen.append("outer")

        actor.post(outer)
        assert seen == ["outer", "inner"]

    def test_many_threads_lose_no_task_and_never_meet(self) -> None:
        actor = InlineActor("a")
        inside, met, done = [0], list[int](), [0]

        def task() -> None:
            inside[0] += 1
            met.append(inside[0])
            done[0] += 1
            inside[0] -= 1

        threads = [
            threading.Thread(target=lambda: [actor.post(task) for _ in range(2000)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert done == [8000]
        assert set(met) == {1}
