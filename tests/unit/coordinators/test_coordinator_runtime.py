"""The runtime of coordinators, over a real replica manager: what it promises to shards, and to
those who wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from logstore.common.errors import CorruptMessageError
from logstore.format.batch import empty_batch
from logstore.format.header import parse_header
from replication.common.error_codes import ErrorCode
from replication.common.messages import TxnMarker
from replication.coordinators.effects import (
    AllocateProducerId,
    Append,
    AppendDone,
    AppendTimedOut,
    CoordinatorRecord,
    Effect,
    Event,
    MarkersWritten,
    MarkerWritten,
    Outward,
    ProducerIdAllocated,
    Reply,
    RequestReceived,
    StartTimer,
    StopTimer,
    TimerFired,
    WriteMarkers,
)
from replication.coordinators.runtime import (
    FATES,
    LOAD_AGAIN_MS,
    LOAD_WAIT_MS,
    WRITE_TIMEOUT_MS,
    CoordinatorRuntime,
    Deliver,
    Fate,
    ShardState,
)
from tests.support.builders import batch
from tests.support.replica_managers import TP, Host

TOPIC = TP.topic
ELSEWHERE = TopicPartition("elsewhere", 0)


class RecordingShard:
    """Carries out what requests say, and remembers what it was told."""

    def __init__(self, number: int, epoch: int) -> None:
        self.number, self.epoch = number, epoch
        self.replayed: list[tuple[Any, ...]] = []
        self.events: list[Event] = []
        self.loaded = 0
        self.states: Counter[str] = Counter()
        self.on_done: dict[Hashable, list[Effect]] = {}

    def replay(self, key: bytes, value: bytes | None, *, producer_id: int = -1) -> None:
        if key == b"unreadable":
            raise CorruptMessageError("garbage")
        self.replayed.append((key, value, producer_id))

    def replay_marker(self, producer_id: int, producer_epoch: int, is_commit: bool) -> None:
        self.replayed.append(("marker", producer_id, producer_epoch, is_commit))

    def on_loaded(self, now_ms: int) -> list[Effect]:
        self.loaded += 1
        return []

    def on_event(self, event: Event, now_ms: int) -> list[Effect]:
        self.events.append(event)
        match event:
            case RequestReceived(to, request):
                assert callable(request)
                effects: list[Effect] = request(self, to)
                return effects
            case AppendDone(token, code):
                return [
                    each._replace(response=code) if isinstance(each, Reply) else each
                    for each in self.on_done.pop(token, [])
                ]
            case _:
                return []


def echo(shard: RecordingShard, to: Hashable) -> list[Effect]:
    return [Reply(to, ("answered in epoch", shard.epoch))]


def silent(shard: RecordingShard, to: Hashable) -> list[Effect]:
    return []


def append(shard: RecordingShard, to: Hashable, **producer: int) -> list[Effect]:
    """Answered with the end of the append."""
    shard.on_done[to] = [Reply(to, None)]
    return [Append((CoordinatorRecord(b"key %d" % to, b"value"),), to, **producer)]  # type: ignore[str-format]


class Coordinated:
    """A host with the coordinator of its topic."""

    def __init__(self, **options: Any) -> None:
        self.host = Host(**options)
        self.shards: list[RecordingShard] = []
        self.carried: list[tuple[Outward, Deliver, Callable[[], bool]]] = []
        self.runtime = CoordinatorRuntime(
            TOPIC, self.host.runtime, self.host.manager, self._make, self._carry_out
        )
        self.runtime.startup()

    def _make(self, number: int, epoch: int) -> RecordingShard:
        self.shards.append(RecordingShard(number, epoch))
        return self.shards[-1]

    def _carry_out(self, *begun: Any) -> None:
        self.carried.append(begun)

    def run(self, ms: int = 0) -> None:
        self.host.runtime.advance(ms)

    def lead(self, epoch: int = 0, replicas: tuple[int, ...] = (1,), **change: Any) -> None:
        self.host.lead(epoch=epoch, replicas=replicas, **change)
        self.run()

    def ask(self, request: Callable[..., list[Effect]] = echo, partition: int = 0) -> list[Any]:
        answers: list[Any] = []
        self.runtime.request(partition, request, answers.append)
        self.run()
        return answers

    def mark(self, marker: TxnMarker) -> list[ErrorCode]:
        codes: list[ErrorCode] = []
        self.runtime.write_marker(0, marker, codes.append)
        self.run()
        return codes

    def states(self) -> list[ShardState]:
        return [*self.runtime.states.elements()]

    @property
    def end_offset(self) -> int:
        log = self.host.partition().log
        assert log is not None
        return log.log_end_offset


@pytest.fixture
def coordinated() -> Coordinated:
    return Coordinated()


def test_every_code_has_a_fate() -> None:
    assert FATES.keys() == set(ErrorCode)
    assert FATES[ErrorCode.NONE] is Fate.COMMITTED
    # Whatever may leave records behind has to be looked up in the log.
    for code in (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
    ):
        assert FATES[code] is Fate.UNKNOWN


class TestElections:
    def test_serves_what_it_leads(self, coordinated: Coordinated) -> None:
        assert coordinated.ask() == [ErrorCode.NOT_COORDINATOR]
        coordinated.lead()
        assert coordinated.ask() == [("answered in epoch", 0)]
        assert coordinated.ask(partition=1) == [ErrorCode.NOT_COORDINATOR]
        assert coordinated.runtime.active == {0}

    def test_other_topics_are_not_its_business(self, coordinated: Coordinated) -> None:
        coordinated.host.lead(ELSEWHERE, replicas=(1,))
        coordinated.run()
        assert not coordinated.shards

    def test_leads_before_it_starts(self) -> None:
        host = Host()
        host.lead(replicas=(1,))
        shards: list[RecordingShard] = []

        def make(number: int, epoch: int) -> RecordingShard:
            shards.append(RecordingShard(number, epoch))
            return shards[-1]

        runtime = CoordinatorRuntime(TOPIC, host.runtime, host.manager, make)
        runtime.startup()
        host.runtime.run_until_idle()
        assert [shard.loaded for shard in shards] == [1]

    def test_resigns(self, coordinated: Coordinated) -> None:
        coordinated.lead()
        waiting = coordinated.ask(silent)
        coordinated.host.follow(epoch=1, replicas=(1, 2))
        coordinated.run()
        assert waiting == [ErrorCode.NOT_COORDINATOR]
        assert coordinated.ask() == [ErrorCode.NOT_COORDINATOR]
        assert coordinated.runtime.active == set()

    def test_replica_is_deleted(self, coordinated: Coordinated) -> None:
        coordinated.lead()
        waiting = coordinated.ask(silent)
        coordinated.host.stop()
        coordinated.run()
        assert waiting == [ErrorCode.NOT_COORDINATOR]

    def test_same_leadership_again(self, coordinated: Coordinated) -> None:
        """A change of the ISR, or a repeated order, is no election."""
        coordinated.lead()
        waiting = coordinated.ask(silent)
        coordinated.lead(0, partition_epoch=1)
        assert not waiting
        assert len(coordinated.shards) == 1

    def test_two_elections_quickly(self, coordinated: Coordinated) -> None:
        """Only the last leadership has a shard that serves."""
        host = coordinated.host
        coordinated.lead()
        waiting = coordinated.ask(silent)
        host.follow(epoch=1, replicas=(1, 2))
        host.lead(epoch=2, replicas=(1, 2), isr=(1,))
        host.follow(epoch=3, replicas=(1, 2))
        host.lead(epoch=4, replicas=(1, 2), isr=(1,))
        coordinated.run()
        assert waiting == [ErrorCode.NOT_COORDINATOR]
        assert coordinated.ask() == [("answered in epoch", 4)]
        assert [shard.epoch for shard in coordinated.shards] == [0, 4]

    def test_close(self, coordinated: Coordinated) -> None:
        coordinated.lead()
        waiting = coordinated.ask(silent)
        coordinated.runtime.close()
        coordinated.run()
        assert waiting == [ErrorCode.NOT_COORDINATOR]
        assert coordinated.ask() == [ErrorCode.NOT_COORDINATOR]
        assert coordinated.mark(MARKER) == [ErrorCode.NOT_COORDINATOR]


class TestLoading:
    def test_waits_for_the_commit_of_what_it_finds(self, coordinated: Coordinated) -> None:
        """What a leader has not committed a later one may not have: nobody is told of it."""
        coordinated.lead(0, (1, 2))
        coordinated.ask(append)
        assert coordinated.end_offset == 1
        coordinated.host.follow(epoch=1, replicas=(1, 2))
        coordinated.lead(2, (1, 2))
        loading = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
        assert coordinated.ask() == loading
        coordinated.run(2 * LOAD_WAIT_MS)
        assert coordinated.ask() == loading
        assert coordinated.shards[-1].replayed == []
        coordinated.host.replicate(1)
        coordinated.run()
        assert coordinated.shards[-1].replayed == [(b"key 1", b"value", -1)]
        assert coordinated.ask() == [("answered in epoch", 2)]

    def test_replays_in_order(self, coordinated: Coordinated) -> None:
        host = coordinated.host
        host.lead(replicas=(1,))
        producer = partial(append, producer_id=7, producer_epoch=0)
        coordinated.run()
        coordinated.ask(append)
        coordinated.ask(producer)
        coordinated.mark(MARKER)
        host.follow(epoch=1, replicas=(1, 2))
        coordinated.lead(2, (1, 2), isr=(1,))
        assert coordinated.shards[-1].replayed == [
            (b"key 1", b"value", -1),
            (b"key 2", b"value", 7),
            ("marker", 7, 0, True),
        ]

    def test_reads_in_pieces(self) -> None:
        coordinated = Coordinated()
        coordinated.runtime._load_bytes = 1
        coordinated.lead()
        for _ in range(5):
            coordinated.ask(append)
        coordinated.host.follow(epoch=1, replicas=(1, 2))
        coordinated.lead(2, (1, 2), isr=(1,))
        assert len(coordinated.shards[-1].replayed) == 5

    @pytest.mark.parametrize("load_bytes", [1, 1 << 20])
    def test_a_segment_that_ends_with_an_empty_batch(
        self, coordinated: Coordinated, load_bytes: int
    ) -> None:
        """testLoadTransactionMetadataContainingSegmentEndingWithEmptyBatch: the cleaner leaves one
        where all records of a producer's last batch are gone."""
        coordinated.runtime._load_bytes = load_bytes
        host = coordinated.host
        host.follow(epoch=0, replicas=(1, 2))
        log = host.partition().local_log()
        log.replica.append_as_follower(batch(key=b"first"))
        producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        cleaned = empty_batch(parse_header(batch(base_offset=1, **producer)))
        log.replica.append_as_follower(bytes(cleaned))
        log.roll()
        log.replica.append_as_follower(batch(key=b"third", base_offset=2))
        coordinated.lead(1, (1, 2), isr=(1,))
        assert [key for key, *_ in coordinated.shards[-1].replayed] == [b"first", b"third"]
        assert coordinated.ask() == [("answered in epoch", 1)]

    def test_resigns_while_loading(self, coordinated: Coordinated) -> None:
        coordinated.lead(0, (1, 2))
        coordinated.ask(append)
        coordinated.host.follow(epoch=1, replicas=(1, 2))
        coordinated.lead(2, (1, 2))
        coordinated.host.follow(epoch=3, replicas=(1, 2))
        coordinated.run(2 * LOAD_WAIT_MS)
        assert coordinated.ask() == [ErrorCode.NOT_COORDINATOR]
        assert coordinated.shards[-1].loaded == 0

    def test_unreadable_records_are_skipped(self, coordinated: Coordinated) -> None:
        host = coordinated.host
        host.lead(replicas=(1,))
        for key in (b"good", b"unreadable", None, b"also good"):
            host.produce(batch(key=key))
        coordinated.run()
        assert [key for key, *_ in coordinated.shards[0].replayed] == [b"good", b"also good"]

    def test_damage(self, coordinated: Coordinated) -> None:
        """A damaged batch may hold the newest of all: nothing older is served in its place."""
        host = coordinated.host
        host.lead(replicas=(1,))
        host.produce(batch(key=b"k", value=bytes(100)))
        host.produce(batch(key=b"k", value=bytes(100)))
        log = host.partition().log
        assert log is not None
        path = f"/logs/{TP}/{0:020}.log"
        host.storage.flip(path, 120)
        coordinated.run()
        assert coordinated.ask() == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert coordinated.states() == [ShardState.UNREADABLE]
        host.storage.flip(path, 120)
        coordinated.run(LOAD_AGAIN_MS)
        assert coordinated.ask() == [("answered in epoch", 0)]
        assert len(coordinated.shards[-1].replayed) == 2


class TestAppends:
    def test_answers_once_committed(self, coordinated: Coordinated) -> None:
        coordinated.lead(0, (1, 2))
        answers = coordinated.ask(append)
        assert not answers
        coordinated.host.replicate(1)
        coordinated.run()
        assert answers == [ErrorCode.NONE]

    def test_ends_in_the_order_of_the_log(self, coordinated: Coordinated) -> None:
        """Also where a later one is refused at once."""
        coordinated.lead(0, (1, 2))
        first, second = coordinated.ask(append), coordinated.ask(append)
        third = coordinated.ask(
            lambda shard, to: append(shard, to, producer_id=5, producer_epoch=-1)
        )
        assert not third
        coordinated.host.replicate(2)
        coordinated.run()
        assert (first, second) == ([ErrorCode.NONE], [ErrorCode.NONE])
        assert third == [ErrorCode.INVALID_RECORD]
        done = [e.token for e in coordinated.shards[0].events if isinstance(e, AppendDone)]
        assert done == [1, 2, 3]

    def test_takes_long(self, coordinated: Coordinated) -> None:
        coordinated.lead(0, (1, 2))
        answers = coordinated.ask(append)
        coordinated.run(WRITE_TIMEOUT_MS - 1)
        events = coordinated.shards[0].events
        assert AppendTimedOut(1) not in events
        coordinated.run(WRITE_TIMEOUT_MS)
        assert events.count(AppendTimedOut(1)) == 1
        assert not answers
        coordinated.host.replicate(1)
        coordinated.run()
        assert answers == [ErrorCode.NONE]

    def test_refused(self) -> None:
        coordinated = Coordinated(log_config={"min.insync.replicas": 2})
        coordinated.lead(0, (1, 2), isr=(1,))
        assert coordinated.ask(append) == [ErrorCode.NOT_ENOUGH_REPLICAS]
        assert coordinated.end_offset == 0
        assert len(coordinated.shards) == 1

    def test_too_large(self) -> None:
        coordinated = Coordinated(log_config={"max.message.bytes": 100})
        coordinated.lead()

        def large(shard: RecordingShard, to: Hashable) -> list[Effect]:
            shard.on_done[to] = [Reply(to, None)]
            return [Append((CoordinatorRecord(b"k", bytes(100)),), to)]

        assert coordinated.ask(large) == [ErrorCode.MESSAGE_TOO_LARGE]

    def test_leadership_lost_in_the_middle(self, coordinated: Coordinated) -> None:
        """The request has one answer; the next leader's shard does not hear of the append."""
        coordinated.lead(0, (1, 2))
        answers = coordinated.ask(append)
        coordinated.host.follow(epoch=1, replicas=(1, 2))
        coordinated.run(2 * WRITE_TIMEOUT_MS)
        assert answers == [ErrorCode.NOT_COORDINATOR]
        coordinated.lead(2, (1, 2))
        coordinated.host.replicate(1)
        coordinated.run()
        assert coordinated.ask() == [("answered in epoch", 2)]
        assert not any(isinstance(e, AppendDone) for e in coordinated.shards[-1].events)
        assert answers == [ErrorCode.NOT_COORDINATOR]

    def test_a_shard_that_is_over_writes_nothing(self, coordinated: Coordinated) -> None:
        """The broker resigned and leads again, and the shard does not know yet: what it decides is
        of another time."""
        coordinated.lead()

        def late(shard: RecordingShard, to: Hashable) -> list[Effect]:
            coordinated.host.follow(epoch=1, replicas=(1, 2))
            coordinated.host.lead(epoch=2, replicas=(1, 2), isr=(1,))
            return append(shard, to)

        assert coordinated.ask(late) == [ErrorCode.NOT_COORDINATOR]
        assert coordinated.end_offset == 0
        assert coordinated.ask() == [("answered in epoch", 2)]

    def test_nobody_knows_whether_it_is_written(self, coordinated: Coordinated) -> None:
        """The log is asked: the shard is loaded again."""
        coordinated.lead()
        coordinated.host.storage.fail("write", path_glob="*.log", times=1)
        answers = coordinated.ask(append)
        assert answers == [ErrorCode.NOT_COORDINATOR]
        assert len(coordinated.shards) == 2
        coordinated.host.report_failures()
        coordinated.run()
        assert coordinated.ask() == [ErrorCode.NOT_COORDINATOR]


MARKER = TxnMarker(7, 0, True, 3, ())


class TestMarkers:
    def test_come_after_what_they_end(self, coordinated: Coordinated) -> None:
        coordinated.lead(0, (1, 2))
        offsets = coordinated.ask(partial(append, producer_id=7, producer_epoch=0))
        codes = coordinated.mark(MARKER)
        assert (offsets, codes) == ([], [])
        coordinated.host.replicate(2)
        coordinated.run()
        assert (offsets, codes) == ([ErrorCode.NONE], [ErrorCode.NONE])
        assert coordinated.shards[0].events[-2:] == [
            AppendDone(1, ErrorCode.NONE),
            MarkerWritten(7, 0, True),
        ]

    def test_of_an_older_epoch(self, coordinated: Coordinated) -> None:
        """WriteTxnMarkersRequestTest.testDelayedWriteTxnMarkersShouldNotCommitTxnOffset"""
        coordinated.lead()
        coordinated.ask(partial(append, producer_id=7, producer_epoch=1))
        assert coordinated.mark(MARKER) == [ErrorCode.INVALID_PRODUCER_EPOCH]
        fenced = MARKER._replace(producer_epoch=1)
        assert coordinated.mark(fenced) == [ErrorCode.NONE]
        older = fenced._replace(coordinator_epoch=2)
        assert coordinated.mark(older) == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
        marked = [e for e in coordinated.shards[0].events if isinstance(e, MarkerWritten)]
        assert marked == [MarkerWritten(7, 1, True)]

    def test_batch_of_a_fenced_epoch(self, coordinated: Coordinated) -> None:
        """TxnOffsetCommitRequestTest.testDelayedTxnOffsetCommitWithBumpedEpochIsRejected"""
        coordinated.lead()
        coordinated.ask(partial(append, producer_id=7, producer_epoch=0))
        coordinated.mark(MARKER._replace(producer_epoch=1))
        late = coordinated.ask(partial(append, producer_id=7, producer_epoch=0))
        assert late == [ErrorCode.INVALID_PRODUCER_EPOCH]

    def test_without_a_shard(self, coordinated: Coordinated) -> None:
        assert coordinated.mark(MARKER) == [ErrorCode.NOT_COORDINATOR]
        coordinated.lead(0, (1, 2))
        codes = coordinated.mark(MARKER)
        assert not codes
        coordinated.host.follow(epoch=1, replicas=(1, 2))
        coordinated.run()
        assert codes == [ErrorCode.NOT_COORDINATOR]


class TestTimers:
    def timer(self, delay_ms: int | None) -> Callable[..., list[Effect]]:
        def request(shard: RecordingShard, to: Hashable) -> list[Effect]:
            effect = StopTimer("t") if delay_ms is None else StartTimer("t", delay_ms)
            return [effect, Reply(to, "done")]

        return request

    def fired(self, coordinated: Coordinated) -> int:
        return coordinated.shards[0].events.count(TimerFired("t"))

    @pytest.mark.parametrize(
        ("delays", "due_ms"), [([100], 100), ([100, 300], 300), ([300, 100], 100)]
    )
    def test_the_last_start_counts(
        self, coordinated: Coordinated, delays: list[int], due_ms: int
    ) -> None:
        coordinated.lead()
        for delay in delays:
            coordinated.ask(self.timer(delay))
        coordinated.run(due_ms - 1)
        assert self.fired(coordinated) == 0
        coordinated.run(1)
        assert self.fired(coordinated) == 1
        coordinated.run(1000)
        assert self.fired(coordinated) == 1

    def test_stopped(self, coordinated: Coordinated) -> None:
        coordinated.lead()
        coordinated.ask(self.timer(100))
        coordinated.ask(self.timer(None))
        coordinated.ask(self.timer(None))
        coordinated.run(200)
        assert self.fired(coordinated) == 0

    def test_often_set_later_costs_one(self, coordinated: Coordinated) -> None:
        """As the sessions of members that send heartbeats."""
        coordinated.lead()
        for _ in range(50):
            coordinated.ask(self.timer(100))
            coordinated.run(50)
        assert self.fired(coordinated) == 0
        assert len(coordinated.host.runtime._timers) < 20
        coordinated.run(50)
        assert self.fired(coordinated) == 1

    def test_not_after_the_end(self, coordinated: Coordinated) -> None:
        coordinated.lead()
        coordinated.ask(self.timer(100))
        coordinated.host.follow(epoch=1, replicas=(1, 2))
        coordinated.run(200)
        assert self.fired(coordinated) == 0


class TestFailures:
    def test_a_shard_that_fails(
        self, coordinated: Coordinated, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It may be in any state: the log has the truth."""
        coordinated.lead()
        waiting = coordinated.ask(silent)

        def fails(shard: RecordingShard, to: Hashable) -> list[Effect]:
            raise RuntimeError("bug")

        assert coordinated.ask(fails) == [ErrorCode.UNKNOWN_SERVER_ERROR]
        assert waiting == [ErrorCode.NOT_COORDINATOR]
        assert coordinated.ask() == [("answered in epoch", 0)]
        assert len(coordinated.shards) == 2
        assert "bug" in caplog.text

    def test_what_a_shard_began_ends_with_it(self, coordinated: Coordinated) -> None:
        """Loaded again in the same election, the next shard numbers its tokens from the start: an
        end that it took for one of its own would end a transaction without its markers."""
        coordinated.lead()
        begun = WriteMarkers("token", TxnMarker(7, 0, True, 0, (TP,)))

        def begin(shard: RecordingShard, to: Hashable) -> list[Effect]:
            return [begun, Reply(to, None)]

        coordinated.ask(begin)
        ((effect, deliver, is_current),) = coordinated.carried
        assert effect == begun
        assert is_current()
        coordinated.host.storage.fail("write", path_glob="*.log", times=1)
        coordinated.ask(append)
        former, latter = coordinated.shards
        assert former.epoch == latter.epoch
        assert not is_current()
        deliver(MarkersWritten("token", ErrorCode.NONE))
        coordinated.run()
        assert MarkersWritten not in map(type, (*former.events, *latter.events))

    def test_what_a_shard_began_comes_back_to_it(self, coordinated: Coordinated) -> None:
        coordinated.lead(0, (1, 2))
        coordinated.ask(lambda shard, to: [AllocateProducerId("token", -1), Reply(to, None)])
        ((_, deliver, is_current),) = coordinated.carried
        deliver(ProducerIdAllocated("token", ErrorCode.NONE, 7))
        coordinated.run()
        assert coordinated.shards[0].events[-1] == ProducerIdAllocated("token", ErrorCode.NONE, 7)
        coordinated.host.follow(epoch=1, replicas=(1, 2))
        assert not is_current()  # from the moment that another leads, not when the shard has heard

    def test_a_second_answer_is_dropped(
        self, coordinated: Coordinated, caplog: pytest.LogCaptureFixture
    ) -> None:
        coordinated.lead()
        assert coordinated.ask(lambda shard, to: [Reply(to, 1), Reply(to, 2)]) == [1]
        assert "answered twice" in caplog.text

    def test_whoever_takes_an_answer_may_fail(
        self, coordinated: Coordinated, caplog: pytest.LogCaptureFixture
    ) -> None:
        coordinated.lead()

        def fails(answer: object) -> None:
            raise RuntimeError("closed connection")

        coordinated.runtime.request(0, echo, fails)
        coordinated.run()
        assert "closed connection" in caplog.text
        assert coordinated.ask() == [("answered in epoch", 0)]

    def test_all(self, coordinated: Coordinated) -> None:
        coordinated.lead()
        coordinated.host.lead(TP._replace(partition=1), replicas=(1,))
        coordinated.run()
        answers: list[list[object]] = []
        coordinated.runtime.request_all(echo, answers.append)
        coordinated.run()
        assert answers == [[("answered in epoch", 0)] * 2]
