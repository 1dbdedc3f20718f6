"""The ends of transactions on their way to the leaders, by the names of Kafka's tests of its
``TransactionMarkerChannelManager``."""

from __future__ import annotations

from typing import Any

import pytest

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    PartitionChange,
    TxnMarker,
    UpdateMetadataRequest,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from replication.common.state import NO_LEADER, PartitionRegistration
from replication.coordinators.transactions import markers as markers_module
from replication.coordinators.transactions.markers import (
    AT_ONCE,
    DELETED_AFTER_MS,
    REACTIONS,
    RETRY_MS,
    MarkerReaction,
    TransactionMarkerChannelManager,
)
from replication.replica_manager.metadata_cache import MetadataCache
from tests.support.cases import for_each
from tests.support.replica_managers import TOPIC_ID, live
from tests.support.replication import ManualRuntime, RecordingTransport, Sent

NONE = ErrorCode.NONE
A, B, C = (TopicPartition("orders", number) for number in range(3))


class Markers:
    """A manager whose leaders are played by the test: 2 leads A and B, 3 leads C."""

    def __init__(self) -> None:
        self.runtime = ManualRuntime()
        self.transport = RecordingTransport()
        self.metadata = MetadataCache(1)
        self.manager = TransactionMarkerChannelManager(self.runtime, self.transport, self.metadata)
        self.ends: list[tuple[int, ErrorCode]] = []
        self.is_current = True
        self.epoch = 0
        self.tell({A: 2, B: 2, C: 3})

    def tell(self, leaders: dict[TopicPartition, int]) -> None:
        """What the controller says; all partitions that there are."""
        self.epoch += 1
        changes = tuple(
            PartitionChange(tp, PartitionRegistration((1, 2, 3), (), n, self.epoch, 0), TOPIC_ID)
            for tp, n in leaders.items()
        )
        request = UpdateMetadataRequest(9, 1, 1, changes, live(1, 2, 3), is_full=True)
        self.metadata.update(request)

    def write(self, *tps: TopicPartition, producer_id: int = 7) -> None:
        marker = TxnMarker(producer_id, 4, True, 5, tps)
        self.manager.write(
            marker, lambda: self.is_current, lambda code: self.ends.append((producer_id, code))
        )

    def take(self, broker_id: int) -> tuple[Sent, list[tuple[TopicPartition, ...]]]:
        """The request that is on its way to a broker, and the partitions of its markers."""
        [sent] = [each for each in self.transport.sent if each.broker_id == broker_id]
        self.transport.sent.remove(sent)
        assert isinstance(sent.request, WriteTxnMarkersRequest)
        return sent, [marker.partitions for marker in sent.request.markers]

    def answer(self, broker_id: int, code: ErrorCode = NONE) -> None:
        sent, partitions = self.take(broker_id)
        answers = tuple(tuple((tp, code) for tp in tps) for tps in partitions)
        sent.reply(WriteTxnMarkersResponse(answers))

    def pause(self, ms: int = RETRY_MS) -> None:
        self.runtime.advance(ms)
        self.runtime.run_until_idle()


def test_should_generate_request_per_partition_per_broker() -> None:
    """shouldGenerateRequestPerPartitionPerBroker"""
    markers = Markers()
    markers.write(A, B, C)
    assert {each.broker_id for each in markers.transport.sent} == {2, 3}
    sent, partitions = markers.take(2)
    assert partitions == [(A, B)]
    [marker] = sent.request.markers  # type: ignore[union-attr]
    assert (marker.producer_id, marker.producer_epoch, marker.is_commit) == (7, 4, True)
    assert marker.coordinator_epoch == 5
    sent.reply(WriteTxnMarkersResponse((((A, NONE), (B, NONE)),)))
    assert markers.ends == []
    markers.answer(3)
    assert markers.ends == [(7, NONE)]


def test_a_transaction_without_partitions_ends_at_once() -> None:
    markers = Markers()
    markers.write()
    assert markers.ends == [(7, NONE)]


def test_what_comes_while_a_request_is_on_its_way_goes_with_the_next_one() -> None:
    markers = Markers()
    markers.write(A, producer_id=1)
    markers.write(A, producer_id=2)
    markers.write(B, producer_id=3)
    assert len(markers.transport.sent) == 1
    markers.answer(2)
    _, partitions = markers.take(2)
    assert partitions == [(A,), (B,)]
    assert markers.ends == [(1, NONE)]


def test_should_save_for_later_when_leader_unknown_but_not_available() -> None:
    """shouldSaveForLaterWhenLeaderUnknownButNotAvailable"""
    markers = Markers()
    markers.tell({A: NO_LEADER, B: 2, C: 3})
    markers.write(A, B)
    markers.answer(2)
    assert markers.ends == []
    markers.pause(10 * DELETED_AFTER_MS)
    assert markers.transport.sent == []
    markers.tell({A: 3, B: 2, C: 3})
    markers.pause()
    markers.answer(3)
    assert markers.ends == [(7, NONE)]


@for_each("code", [each for each in ErrorCode if REACTIONS[each] is MarkerReaction.AGAIN])
def test_should_retry_partition_when_not_leader(code: ErrorCode) -> None:
    """shouldRetryPartitionWhen…Error: from the leader that it has then."""
    markers = Markers()
    markers.write(A, C)
    markers.answer(3)
    markers.answer(2, code)
    assert markers.ends == []
    markers.tell({A: 3, B: 2, C: 3})
    markers.pause()
    sent, partitions = markers.take(3)
    assert partitions == [(A,)]
    sent.reply(WriteTxnMarkersResponse((((A, NONE),),)))
    assert markers.ends == [(7, NONE)]


def test_should_retry_when_the_broker_is_lost() -> None:
    """shouldReEnqueuePartitionsWhenBrokerDisconnected"""
    markers = Markers()
    markers.write(A, B)
    markers.transport.reply(None)
    markers.pause()
    assert markers.take(2)[1] == [(A, B)]


def test_no_copy_is_sent_while_the_first_may_still_be_appended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The link is cut while the leader waits for its lock: there is no answer, and yet the marker
    is appended. A second one that overtakes it would let the next transaction begin."""
    markers = Markers()
    send = markers.transport.send
    seen: list[int] = []

    def cut_off(*arguments: Any) -> None:
        send(*arguments)
        monkeypatch.undo()
        markers.transport.reply(None)
        markers.pause(10 * RETRY_MS)
        seen.append(len(markers.transport.sent))

    monkeypatch.setattr(markers.transport, "send", cut_off)
    markers.write(A)
    assert seen == [0]
    markers.pause()
    markers.answer(2)
    assert markers.ends == [(7, NONE)]


def test_ends_of_a_lost_election_do_not_hold_up_those_behind_them() -> None:
    """More than go into one request: with all of these left out, the rest goes at once."""
    markers = Markers()
    markers.write(A, producer_id=1)  # on its way; the others wait
    lost: list[ErrorCode] = []
    is_current = True
    for producer_id in range(100, 100 + AT_ONCE):
        marker = TxnMarker(producer_id, 4, True, 5, (A,))
        markers.manager.write(marker, lambda: is_current, lost.append)
    markers.write(A, producer_id=2)
    is_current = False
    markers.answer(2)
    markers.answer(2)
    assert markers.ends == [(1, NONE), (2, NONE)]
    assert lost == []


def test_a_request_has_so_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest goes with the next ones, and nothing ends before all of it has."""
    monkeypatch.setattr(markers_module, "PARTITIONS_AT_ONCE", 3)
    markers = Markers()
    tps = [TopicPartition("orders", number) for number in range(8)]
    markers.tell(dict.fromkeys(tps, 2))
    markers.write(tps[0], producer_id=1)  # on its way; the others wait
    markers.write(*tps[:7], producer_id=2)
    markers.write(tps[7], producer_id=3)
    found: list[TopicPartition] = []
    sizes = []
    while markers.transport.sent:
        [sent] = markers.transport.sent
        assert isinstance(sent.request, WriteTxnMarkersRequest)
        asked = [tp for marker in sent.request.markers for tp in marker.partitions]
        sizes.append(len(asked))
        found += asked
        markers.answer(2)
    assert sizes == [1, 3, 3, 2]
    assert sorted(found) == sorted([tps[0], *tps])
    assert sorted(markers.ends) == [(1, NONE), (2, NONE), (3, NONE)]


def test_an_answer_that_leaves_a_partition_out_is_no_answer_for_it() -> None:
    markers = Markers()
    markers.write(A, B)
    markers.transport.reply(WriteTxnMarkersResponse((((A, NONE),),)))
    markers.pause()
    assert markers.take(2)[1] == [(B,)]


@pytest.mark.parametrize(
    "code", [ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH]
)
def test_should_remove_completed_transactions_when_fenced(code: ErrorCode) -> None:
    """shouldStopSendingWhen…: nothing more is sent, and the end is told once."""
    markers = Markers()
    markers.write(A, C)
    markers.answer(2, code)
    assert markers.ends == [(7, code)]
    markers.answer(3, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    markers.pause(10_000)
    assert markers.transport.sent == []
    assert markers.ends == [(7, code)]


def test_should_skip_a_deleted_topic() -> None:
    """shouldSkipSendMarkersWhenLeaderNotFound, but not before it is sure."""
    markers = Markers()
    markers.tell({B: 2, C: 3})
    markers.write(A, B)
    markers.answer(2)
    markers.pause(DELETED_AFTER_MS - RETRY_MS)
    assert markers.ends == []
    for _ in range(3):
        markers.pause()
    assert markers.ends == [(7, NONE)]


def test_a_topic_of_which_this_broker_hears_late_is_not_deleted() -> None:
    markers = Markers()
    markers.tell({B: 2, C: 3})
    markers.write(A)
    markers.pause(DELETED_AFTER_MS - RETRY_MS)
    markers.tell({A: 3, B: 2, C: 3})
    markers.pause()
    markers.answer(3)
    assert markers.ends == [(7, NONE)]


def test_nothing_is_deleted_while_no_controller_has_told_everything() -> None:
    markers = Markers()
    markers.metadata.is_complete = False
    markers.tell({B: 2})
    markers.metadata.is_complete = False
    markers.write(A)
    markers.pause(3 * DELETED_AFTER_MS)
    assert markers.ends == []


def test_a_coordinator_of_the_past_sends_no_more() -> None:
    markers = Markers()
    markers.write(A, B)
    markers.is_current = False
    markers.transport.reply(None)
    markers.pause(10_000)
    assert markers.transport.sent == []
    assert markers.ends == []


def test_a_call_that_raises_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    markers = Markers()

    def fail(*_: object) -> None:
        raise OSError("no descriptor is left")

    with monkeypatch.context() as patched:
        patched.setattr(markers.transport, "send", fail)
        markers.write(A)
    assert markers.transport.sent == []
    markers.pause()
    markers.answer(2)
    assert markers.ends == [(7, NONE)]


def test_only_the_first_answer_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that came before the call raised."""
    markers = Markers()

    def answer_and_fail(_: int, request: WriteTxnMarkersRequest, on_reply: Any, *__: Any) -> None:
        on_reply(WriteTxnMarkersResponse(tuple(((A, NONE),) for _ in request.markers)))
        raise OSError("late")

    monkeypatch.setattr(markers.transport, "send", answer_and_fail)
    markers.write(A)
    markers.pause()
    assert markers.ends == [(7, NONE)]
