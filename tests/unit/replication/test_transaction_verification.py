"""What a leader asks before a transaction begins in its partition, and what it appends then."""

from __future__ import annotations

import pytest

from checkpoints.types import TopicPartition
from logstore.common.config import BrokerConfig
from replication.common.error_codes import ErrorCode
from replication.common.internal_topics import TRANSACTION_STATE, java_hash, partition_for
from replication.common.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    ProducePartition,
    ProduceRequest,
    TransactionSupport,
    TxnMarker,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from replication.replica_manager.transaction_verification import (
    ERROR_OF_VERIFICATION,
    error_for_producer,
)
from tests.support.builders import produced
from tests.support.replica_managers import BROKER, TP, Answers, Host

NONE = ErrorCode.NONE
STATE = TopicPartition(TRANSACTION_STATE, 0)
EXPIRATION_MS = BrokerConfig().producer_id_expiration_ms


class Verifying(Host):
    """It leads a partition; broker 3 coordinates transactions."""

    def __init__(self) -> None:
        super().__init__(verify_transactions=True)
        self.lead(replicas=(BROKER,))
        self.tell(self.change(), self.change(STATE, leader=3, topic_id=None))

    def send(
        self,
        sequence: int = 0,
        *,
        epoch: int = 0,
        producer_id: int = 5,
        support: TransactionSupport = TransactionSupport.DEFAULT_ERROR,
        transactional_id: str | None = "shop",
    ) -> Answers:
        answers = Answers()
        data = produced(producer_id, sequence, producer_epoch=epoch, transactional=True)
        parts = (ProducePartition(TP, data),)
        request = ProduceRequest(-1, 1000, parts, transactional_id, support)
        self.manager.writes.produce(request, answers)
        return answers

    def confirm(self, code: ErrorCode = NONE) -> AddPartitionsToTxnRequest:
        sent = self.transport.take()
        assert isinstance(sent.request, AddPartitionsToTxnRequest)
        assert sent.broker_id == 3
        sent.reply(AddPartitionsToTxnResponse(tuple((tp, code) for tp in sent.request.partitions)))
        return sent.request

    def mark(self, *, epoch: int = 0, coordinator_epoch: int = 0, version: int = 0) -> ErrorCode:
        answers = Answers()
        marker = TxnMarker(5, epoch, True, coordinator_epoch, (TP,), version)
        self.manager.writes.write_txn_markers(WriteTxnMarkersRequest((marker,)), answers)
        [response] = answers
        assert isinstance(response, WriteTxnMarkersResponse)
        [[(tp, code)]] = response.markers
        assert tp == TP
        return code


def test_the_first_batch_waits_for_the_coordinator_and_the_next_ones_do_not() -> None:
    host = Verifying()
    answers = host.send(0)
    assert not answers
    request = host.confirm()
    assert request == AddPartitionsToTxnRequest("shop", 5, 0, (TP,), verify_only=True)
    assert answers.only.error_code is NONE
    assert host.send(1).only.error_code is NONE
    assert host.transport.sent == []


def test_a_producer_of_the_second_protocol_has_its_partition_added() -> None:
    host = Verifying()
    answers = host.send(support=TransactionSupport.ADD_PARTITION)
    assert host.confirm().verify_only is False
    assert answers.only.error_code is NONE


def test_a_late_batch_opens_no_transaction() -> None:
    """The coordinator agreed, and then the transaction ended: what it said counts no more."""
    host = Verifying()
    host.send(0)
    host.confirm()
    late = host.send(0, epoch=1)  # asks; a fence by the coordinator overtakes the answer
    assert host.mark(epoch=1) is NONE
    host.confirm()
    assert late.only.error_code is ErrorCode.INVALID_TXN_STATE
    assert host.partition().log is not None
    assert host.partition().log.replica.first_unstable_offset is None


def test_each_transaction_is_verified_again() -> None:
    host = Verifying()
    host.send(0)
    host.confirm()
    assert host.mark() is NONE
    assert not host.send(1)
    host.confirm()


def test_a_transactional_batch_without_an_id_is_refused() -> None:
    host = Verifying()
    answers = host.send(transactional_id=None)
    assert answers.only.error_code is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
def test_what_the_coordinator_refuses_is_not_appended(code: ErrorCode, told: ErrorCode) -> None:
    host = Verifying()
    answers = host.send()
    host.confirm(code)
    assert answers.only.error_code is told
    assert host.partition().local_log().log_end_offset == 0


def test_no_coordinator_answers() -> None:
    host = Verifying()
    answers = host.send()
    host.transport.reply(None)
    assert answers.only.error_code is ErrorCode.NOT_ENOUGH_REPLICAS


def test_nobody_coordinates() -> None:
    host = Verifying()
    host.tell(host.change(STATE, leader=-1, epoch=1, topic_id=None))
    assert host.send().only.error_code is ErrorCode.NOT_ENOUGH_REPLICAS


def test_the_end_of_the_transaction_before_is_waited_for() -> None:
    host = Verifying()
    answers = host.send(support=TransactionSupport.ADD_PARTITION)
    host.confirm(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert not answers
    host.runtime.advance(20)
    host.confirm()
    assert answers.only.error_code is NONE


def test_it_is_not_waited_for_long() -> None:
    host = Verifying()
    answers = host.send(support=TransactionSupport.ADD_PARTITION)
    for _ in range(6):
        host.confirm(ErrorCode.CONCURRENT_TRANSACTIONS)
        host.runtime.advance(20)
    assert answers.only.error_code is ErrorCode.CONCURRENT_TRANSACTIONS


def test_no_batch_overtakes_the_first_one() -> None:
    """The second is on its way when the first is refused, and nobody knows the producer yet: taken,
    it would be the producer's first, and the first one would be out of order for ever."""
    host = Verifying()
    first = host.send(0)
    host.confirm(ErrorCode.CONCURRENT_TRANSACTIONS)
    for _ in range(5):
        host.runtime.advance(20)
        host.confirm(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert first.only.error_code is ErrorCode.NOT_ENOUGH_REPLICAS
    second = host.send(1)
    host.confirm()
    assert second.only.error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    again = host.send(0)
    host.confirm()
    assert again.only.base_offset == 0
    assert host.send(1).only.base_offset == 1


@pytest.mark.parametrize("refusal", [ErrorCode.INVALID_TXN_STATE, None])
@pytest.mark.parametrize("sequences", [[0], [1], [1, 0]])
def test_a_late_copy_of_an_earlier_batch_spoils_no_later_transaction(
    sequences: list[int], refusal: ErrorCode | None
) -> None:
    """In version 1 all transactions of a producer have one epoch. The copy asks before the next
    transaction begins in this partition; the coordinator may agree, as it has begun elsewhere."""
    host = Verifying()
    for sequence in (0, 1):
        host.send(sequence)
        if sequence == 0:
            host.confirm()
    assert host.mark() is NONE
    for sequence in sequences:
        late = host.send(sequence)
        if refusal is None:
            host.transport.take()  # the answer is on its way
        else:
            host.confirm(refusal)
            assert late.only.error_code is refusal
    answers = host.send(2)
    host.confirm()
    assert answers.only.error_code is NONE
    assert host.send(4).only.error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert host.send(3).only.error_code is NONE


def test_the_first_batch_of_a_producer_of_version_2_has_sequence_0() -> None:
    host = Verifying()
    answers = host.send(1, support=TransactionSupport.ADD_PARTITION)
    host.confirm()
    assert answers.only.error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    host.send(1, epoch=1)  # in version 1 it may be any
    host.confirm()
    assert host.partition().log_end_offset == 1


def test_a_refused_batch_of_a_later_epoch_is_no_obstacle() -> None:
    host = Verifying()
    host.send(0, epoch=7)
    host.confirm(ErrorCode.PRODUCER_FENCED)
    answers = host.send(0)
    host.confirm()
    assert answers.only.error_code is NONE


class TestForgetting:
    """Of what is asked for and never followed by an append nothing may stay for ever."""

    def count(self, host: Verifying) -> int:
        return sum(map(len, host.partition().local_log().producers.known._verifications.values()))

    def test_it_ends_with_the_producers(self) -> None:
        host = Verifying()
        for producer_id in range(100, 200):
            host.send(producer_id=producer_id)
            host.confirm(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        host.send(epoch=3)
        host.confirm(ErrorCode.PRODUCER_FENCED)
        host.runtime.clock.advance(EXPIRATION_MS - 1)
        host.log_manager.housekeeper.remove_expired_producers()
        assert self.count(host) == 101
        host.send()
        host.confirm(ErrorCode.NOT_COORDINATOR)
        host.runtime.clock.advance(1)
        host.log_manager.housekeeper.remove_expired_producers()
        assert self.count(host) == 1  # of the last one
        host.runtime.clock.advance(EXPIRATION_MS)
        host.log_manager.housekeeper.remove_expired_producers()
        assert self.count(host) == 0

    def test_one_that_is_asked_for_again_stays(self) -> None:
        """Also that of a producer whose records are too old to be remembered."""
        host = Verifying()
        host.send(0)
        host.confirm()
        assert host.mark() is NONE
        host.send(1)
        host.confirm(ErrorCode.NOT_COORDINATOR)
        host.runtime.clock.advance(EXPIRATION_MS)
        answers = host.send(1)
        host.log_manager.housekeeper.remove_expired_producers()
        assert host.partition().local_log().producers.entries() == []
        host.confirm()
        assert answers.only.error_code is NONE

    def test_it_ends_with_the_leadership(self) -> None:
        """The next leader may end the transaction."""
        host = Verifying()
        host.send()
        assert self.count(host) == 1
        host.follow(epoch=1, replicas=(BROKER, 2))
        assert self.count(host) == 0

    def test_what_one_leadership_asked_opens_nothing_in_a_later_one(self) -> None:
        host = Verifying()
        late = host.send()
        host.follow(epoch=1, replicas=(BROKER, 2))
        host.lead(epoch=2, replicas=(BROKER,))
        host.confirm()
        assert late.only.error_code is ErrorCode.INVALID_TXN_STATE
        host.send()
        host.confirm()
        assert host.partition().log_end_offset == 1


def test_an_empty_name_is_not_asked_for() -> None:
    host = Verifying()
    answers = host.send(transactional_id="")
    assert answers.only.error_code is ErrorCode.INVALID_REQUEST


def test_every_error_has_a_translation() -> None:
    assert set(ERROR_OF_VERIFICATION) == set(ErrorCode)
    old, new = TransactionSupport.DEFAULT_ERROR, TransactionSupport.GENERIC_ERROR
    abortable = ErrorCode.TRANSACTION_ABORTABLE
    assert error_for_producer(abortable, old) is ErrorCode.INVALID_TXN_STATE
    assert error_for_producer(abortable, new) is abortable


class TestMarkers:
    """W-155."""

    def test_one_of_an_older_coordinator_is_fenced(self) -> None:
        host = Verifying()
        assert host.mark(coordinator_epoch=4) is NONE
        assert host.mark(coordinator_epoch=3) is ErrorCode.TRANSACTION_COORDINATOR_FENCED

    def test_a_delayed_one_does_not_end_the_next_transaction(self) -> None:
        """testDelayedWriteTxnMarkersShouldNotCommitTxnOffset, of the log of a partition."""
        host = Verifying()
        host.send(0)
        host.confirm()
        assert host.mark(epoch=1, version=2) is NONE
        assert host.mark(epoch=1, version=2) is NONE  # twice is no harm
        host.send(0, epoch=1)
        host.confirm()
        assert host.mark(epoch=1, version=2) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert host.partition().local_log().replica.first_unstable_offset is not None
        assert host.mark(epoch=2, version=2) is NONE
        assert host.partition().local_log().replica.first_unstable_offset is None

    def test_a_delayed_batch_with_a_bumped_epoch_is_rejected(self) -> None:
        """testDelayedTxnOffsetCommitWithBumpedEpochIsRejected, of the log of a partition."""
        host = Verifying()
        assert host.mark(epoch=1) is NONE
        answers = host.send(0, epoch=0)
        assert host.transport.sent == []  # the coordinator need not be asked
        assert answers.only.error_code is ErrorCode.INVALID_PRODUCER_EPOCH

    def test_a_partition_that_is_not_led_here(self) -> None:
        host = Verifying()
        host.follow(epoch=1, replicas=(BROKER, 2))
        assert host.mark() is ErrorCode.NOT_LEADER_OR_FOLLOWER

    def test_no_marker_no_wait(self) -> None:
        answers = Answers()
        Verifying().manager.writes.write_txn_markers(WriteTxnMarkersRequest(()), answers)
        assert answers == [WriteTxnMarkersResponse(())]


@pytest.mark.parametrize(
    ("key", "value"), [("", 0), ("a", 97), ("shop", 3529462), ("polygenelubricants", -(2**31))]
)
def test_java_hash(key: str, value: int) -> None:
    """W-100."""
    assert java_hash(key) == value
    assert 0 <= partition_for(key, 50) < 50
