"""The state machine of transactions, with Kafka's tests of its coordinator by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checkpoints.types import TopicPartition
from logstore.common.errors import LogstoreError
from replication.common.error_codes import ErrorCode
from replication.coordinators.effects import CoordinatorRecord, ReserveProducerIds
from replication.coordinators.transactions import records
from replication.coordinators.transactions.shard import ERROR_OF_APPEND, TransactionShard
from replication.coordinators.transactions.state import (
    FROM,
    LAST_CLIENT_EPOCH,
    MAX_EPOCH,
    TransactionMetadata,
    TransactionState,
)
from replication.coordinators.transactions.transitions import Answer
from replication.protocol import messages as wire
from tests.support.cases import for_each
from tests.support.transactions import FIRST_ID, ID, OTHER, TP, V1, V2, Desk, Producer, Timer

NONE = ErrorCode.NONE
S = TransactionState
DAY_MS = 86_400_000


def with_state(state: TransactionState, **changes: object) -> Desk:
    """A coordinator that finds one transactional id in its log, and holds what follows."""
    partitions = frozenset() if state is S.EMPTY or state.is_complete else frozenset({TP})
    known = TransactionMetadata(
        ID,
        FIRST_ID,
        60_000,
        1_000_000,
        5,
        state,
        partitions,
        -1 if state is S.EMPTY else 1_000_000,
    )
    known = replace(known, **changes)  # type: ignore[arg-type]
    desk = Desk([records.encode(known)], ids=iter(range(2000, 3000)))
    desk.holds_markers = True
    return desk.load()


class TestInitProducerId:
    """W-150, W-152."""

    def test_a_new_name_gets_an_id_of_its_own_at_epoch_0(self) -> None:
        desk = Desk().load()
        assert desk.init() == (NONE, FIRST_ID, 0)
        assert desk.init(name="another") == (NONE, FIRST_ID + 1, 0)

    def test_the_next_producer_of_a_name_has_the_next_epoch(self) -> None:
        desk = Desk().load()
        assert [desk.init().producer_epoch for _ in range(4)] == [0, 1, 2, 3]

    @pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
    def test_a_timeout_out_of_bounds(self, timeout_ms: int) -> None:
        code = Desk().load().init(timeout_ms).error_code
        assert code is ErrorCode.INVALID_TRANSACTION_TIMEOUT

    def test_an_empty_name(self) -> None:
        assert Desk().load().init(name="").error_code is ErrorCode.INVALID_REQUEST

    @pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
    def test_should_generate_new_producer_id_if_epochs_exhausted(self, state: S) -> None:
        """shouldGenerateNewProducerIdIfEpochsExhausted"""
        desk = with_state(state, producer_epoch=LAST_CLIENT_EPOCH)
        assert desk.init() == (NONE, 2000, 0)
        assert desk.known().previous_producer_id == FIRST_ID

    @pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
    def test_should_wait_for_the_end_to_complete(self, state: S) -> None:
        """shouldWaitForCommitToCompleteOnHandleInitPidAndExistingTransactionInPrepareCommitState"""
        desk = with_state(state)
        assert desk.init().error_code is ErrorCode.CONCURRENT_TRANSACTIONS
        desk.markers_written()
        assert desk.init() == (NONE, FIRST_ID, 6)

    def test_should_abort_the_ongoing_transaction(self) -> None:
        """shouldAbortTransactionOnHandleInitPidWhenExistingTransactionInOngoingState"""
        desk = with_state(S.ONGOING)
        assert desk.init().error_code is ErrorCode.CONCURRENT_TRANSACTIONS
        [(_, marker)] = desk.markers
        assert (marker.producer_epoch, marker.is_commit, marker.partitions) == (6, False, (TP,))
        desk.markers_written()
        assert desk.known().state is S.COMPLETE_ABORT
        assert desk.init() == (NONE, FIRST_ID, 7)

    def test_should_not_repeatedly_bump_the_epoch_if_the_append_fails(self) -> None:
        """shouldNotRepeatedlyBumpEpochDueToInitPidDuringOngoingTxnIfAppendToLogFails"""
        desk = with_state(S.ONGOING)
        desk.holds_appends = True
        for _ in range(5):
            number = desk.send(wire.InitProducerIdRequest(ID, 60_000))
            desk.append_done(ErrorCode.NOT_ENOUGH_REPLICAS)
            answer = desk.answers[number]
            assert answer == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, -1)
        desk.holds_appends = False
        desk.init()
        assert desk.markers[0].marker.producer_epoch == 6

    def test_should_use_the_last_epoch_to_fence(self) -> None:
        """shouldUseLastEpochToFenceWhenEpochsAreExhausted"""
        desk = with_state(S.ONGOING, producer_epoch=LAST_CLIENT_EPOCH)
        assert desk.init().error_code is ErrorCode.CONCURRENT_TRANSACTIONS
        assert desk.markers[0].marker.producer_epoch == MAX_EPOCH
        desk.markers_written()
        assert desk.init() == (NONE, 2000, 0)

    def test_the_epoch_that_only_fences_is_given_to_nobody(self) -> None:
        """A transaction under it could not be fenced when it is overdue."""
        desk = with_state(S.ONGOING, producer_epoch=LAST_CLIENT_EPOCH)
        own = (FIRST_ID, LAST_CLIENT_EPOCH)
        assert desk.init(producer=own).error_code is ErrorCode.CONCURRENT_TRANSACTIONS
        desk.markers_written()
        assert desk.init(producer=own) == (NONE, 2000, 0)
        assert desk.init(producer=own) == (NONE, 2000, 0)  # did not hear the answer
        assert desk.init(producer=(2000, 0)) == (NONE, 2000, 1)

    def test_a_producer_that_goes_on_names_its_epoch(self) -> None:
        desk = Desk().load()
        desk.init()
        assert desk.init(producer=(FIRST_ID, 0)) == (NONE, FIRST_ID, 1)
        assert desk.init(producer=(FIRST_ID, 0)) == (NONE, FIRST_ID, 1)  # did not hear the answer
        assert desk.init(producer=(FIRST_ID, 1)) == (NONE, FIRST_ID, 2)
        assert desk.init(producer=(FIRST_ID, 0)).error_code is ErrorCode.PRODUCER_FENCED

    def test_a_producer_that_was_replaced_does_not_come_back(self) -> None:
        desk = Desk().load()
        old = desk.begin()
        desk.begin()
        code = desk.init(producer=old.identity).error_code
        assert code is ErrorCode.PRODUCER_FENCED

    def test_another_id_is_fenced(self) -> None:
        desk = Desk().load()
        desk.init()
        assert desk.init(producer=(77, 0)).error_code is ErrorCode.PRODUCER_FENCED

    def test_retry_after_producer_id_rotation(self) -> None:
        """testRetryInitProducerIdAfterProducerIdRotation"""
        desk = with_state(S.EMPTY, producer_epoch=LAST_CLIENT_EPOCH)
        old = (FIRST_ID, LAST_CLIENT_EPOCH)
        assert desk.init(producer=old) == (NONE, 2000, 0)
        assert desk.init(producer=old) == (NONE, 2000, 0)
        assert desk.init(producer=(2000, 0)) == (NONE, 2000, 1)
        assert desk.init(producer=old).error_code is ErrorCode.PRODUCER_FENCED

    def test_an_id_that_expired_lets_its_producer_begin_anew(self) -> None:
        assert Desk().load().init(producer=(5, 3)) == (NONE, FIRST_ID, 0)

    def test_no_producer_id_is_to_be_had(self) -> None:
        desk = Desk().load()
        desk.fails_ids = True
        assert desk.init().error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        desk.fails_ids = False
        assert desk.init().error_code is NONE

    def test_two_wait_for_an_id_of_the_same_name(self) -> None:
        desk = Desk().load()
        desk.holds_ids = True
        first, second = (desk.send(wire.InitProducerIdRequest(ID, 60_000)) for _ in range(2))
        desk.allocated()
        desk.allocated()
        assert desk.answers[first] == (NONE, FIRST_ID, 0)
        assert desk.answers[second] == (NONE, FIRST_ID, 1)  # the id that it asked for is not used


class TestPartitions:
    """W-153, W-159."""

    def test_the_first_begins_the_transaction(self) -> None:
        desk = Desk().load()
        producer = desk.begin()
        assert producer.add(TP) is NONE
        assert desk.known().state is S.ONGOING
        began = desk.known().start_ms
        desk.now_ms += 10
        assert producer.add(OTHER) is NONE
        assert desk.known().partitions == {TP, OTHER}
        assert desk.known().start_ms == began

    def test_what_is_in_it_already_needs_no_record(self) -> None:
        desk = Desk().load()
        producer = desk.begin()
        producer.add(TP, OTHER)
        written = len(desk.log)
        assert producer.add(OTHER) is NONE
        assert len(desk.log) == written

    def test_unknown_names_and_ids(self) -> None:
        desk = Desk().load()
        producer = desk.begin()
        producer.name = "unknown"
        assert producer.add() is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        producer.name, producer.producer_id = ID, 4
        assert producer.add() is ErrorCode.INVALID_PRODUCER_ID_MAPPING

    @pytest.mark.parametrize("difference", [-1, 1])
    def test_should_respond_with_producer_fenced_when_epochs_are_different(
        self, difference: int
    ) -> None:
        """shouldRespondWithProducerFencedOnAddPartitionsWhenEpochsAreDifferent"""
        desk = Desk().load()
        desk.begin()
        producer = desk.begin()
        producer.epoch += difference
        assert producer.add() is ErrorCode.PRODUCER_FENCED

    @pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
    def test_should_respond_with_concurrent_transactions(self, state: S) -> None:
        """shouldRespondWithConcurrentTransactionsOnAddPartitionsWhenStateIsPrepareCommit"""
        desk = with_state(state)
        assert Producer(desk, FIRST_ID, 5).add() is ErrorCode.CONCURRENT_TRANSACTIONS

    def test_a_request_that_meets_another(self) -> None:
        desk = Desk().load()
        producer = desk.begin()
        desk.holds_appends = True
        first = desk.send(producer.adds(TP))
        assert producer.add(OTHER) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert producer.end().error_code is ErrorCode.CONCURRENT_TRANSACTIONS
        assert first not in desk.answers
        desk.append_done()
        assert desk.answers[first] == (NONE, -1, -1)

    def test_verification_tells_what_is_in_the_ongoing_transaction(self) -> None:
        desk = Desk().load()
        producer = desk.begin()
        assert producer.verify(TP) == [ErrorCode.TRANSACTION_ABORTABLE]
        producer.add(TP)
        assert producer.verify(TP, OTHER) == [NONE, ErrorCode.TRANSACTION_ABORTABLE]
        desk.holds_markers = True
        producer.end()
        assert producer.verify(TP) == [ErrorCode.CONCURRENT_TRANSACTIONS]
        desk.markers_written()
        assert producer.verify(TP) == [ErrorCode.TRANSACTION_ABORTABLE]
        producer.epoch -= 1
        assert producer.verify(TP) == [ErrorCode.PRODUCER_FENCED]


class TestEndTxn:
    """W-154, W-155."""

    @pytest.mark.parametrize("committed", [True, False])
    def test_markers_follow_the_answer_and_then_it_is_complete(self, committed: bool) -> None:
        desk = Desk(epoch=9).load()
        desk.holds_markers = True
        producer = desk.begin()
        producer.add(TP, OTHER)
        assert producer.end(committed).error_code is NONE
        assert desk.known().state is (S.PREPARE_COMMIT if committed else S.PREPARE_ABORT)
        [(_, marker)] = desk.markers
        assert marker.partitions == (TP, OTHER)
        assert marker.is_commit is committed
        assert (marker.producer_id, marker.producer_epoch) == producer.identity
        assert marker.coordinator_epoch == 9
        desk.markers_written()
        assert desk.known().state is (S.COMPLETE_COMMIT if committed else S.COMPLETE_ABORT)
        assert desk.known().partitions == frozenset()

    @for_each(
        "state, committed, code",
        [
            (S.EMPTY, True, ErrorCode.INVALID_TXN_STATE),
            (S.EMPTY, False, ErrorCode.INVALID_TXN_STATE),
            (S.PREPARE_COMMIT, True, ErrorCode.CONCURRENT_TRANSACTIONS),
            (S.PREPARE_ABORT, False, ErrorCode.CONCURRENT_TRANSACTIONS),
            (S.COMPLETE_COMMIT, True, NONE),
            (S.COMPLETE_COMMIT, False, ErrorCode.INVALID_TXN_STATE),
            (S.COMPLETE_ABORT, True, ErrorCode.INVALID_TXN_STATE),
            (S.COMPLETE_ABORT, False, NONE),
        ],
    )
    def test_every_state_but_ongoing(self, state: S, committed: bool, code: ErrorCode) -> None:
        """shouldReturnInvalidTxnRequestOnEndTxnRequestWhenStatusIsCompleteCommitAndResultIsNotCommit
        and the other combinations"""
        assert Producer(with_state(state), FIRST_ID, 5).end(committed).error_code is code

    @pytest.mark.parametrize("committed", [True, False])
    def test_a_coordinator_that_is_deposed_does_not_take_an_end_for_the_one_before(
        self, committed: bool
    ) -> None:
        """Without bumps both have the same epoch. Its record is never committed."""
        deposed = Desk().load()
        producer = deposed.begin()
        producer.add()
        producer.end(committed)
        present = deposed.successor(1).load()
        same = Producer(present, *producer.identity)
        assert same.add() is NONE
        deposed.holds_appends = True
        end = wire.EndTxnRequest(ID, *producer.identity, committed)
        number = deposed.send(end)
        assert number not in deposed.answers
        deposed.append_done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert deposed.answers[number] == Answer(ErrorCode.NOT_COORDINATOR)
        assert same.end(committed).error_code is NONE

    def test_who_was_replaced_ends_nothing(self) -> None:
        desk = Desk().load()
        old = desk.begin()
        desk.begin().add()
        assert old.end().error_code is ErrorCode.PRODUCER_FENCED
        assert desk.known().state is S.ONGOING

    def test_empty_abort_after_commit(self) -> None:
        """TransactionsTest.testEmptyAbortAfterCommit"""
        desk = Desk().load()
        producer = desk.begin()
        producer.add()
        producer.end(True)
        assert producer.end(False).error_code is ErrorCode.INVALID_TXN_STATE
        producer.add()
        assert producer.end(False).error_code is NONE

    def test_a_transaction_begins_where_the_last_one_ended(self) -> None:
        desk = Desk().load()
        producer = desk.begin()
        for committed in (True, False, True):
            desk.now_ms += 5
            assert producer.add(TP) is NONE
            assert desk.known().start_ms == desk.now_ms
            assert producer.end(committed).error_code is NONE
        assert [marker.is_commit for marker in desk.written_markers] == [True, False, True]

    def test_the_record_of_the_completion_is_tried_until_it_is_written(self) -> None:
        desk = Desk().load()
        producer = desk.begin()
        producer.add()
        desk.holds_markers = True
        producer.end()
        desk.holds_appends = True
        desk.markers_written()
        for _ in range(3):
            desk.append_done(ErrorCode.NOT_ENOUGH_REPLICAS)
            assert producer.add() is ErrorCode.CONCURRENT_TRANSACTIONS
            desk.wait(200)
        desk.append_done()
        assert desk.known().state is S.COMPLETE_COMMIT

    def test_an_older_coordinator_leaves_it_to_the_newer_one(self) -> None:
        """W-155: TRANSACTION_COORDINATOR_FENCED"""
        desk = Desk().load()
        producer = desk.begin()
        producer.add()
        desk.holds_markers = True
        producer.end()
        desk.markers_written(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
        assert desk.known().state is S.PREPARE_COMMIT
        assert desk.init().error_code is ErrorCode.CONCURRENT_TRANSACTIONS


class TestVersion2:
    """W-164."""

    def test_each_end_has_an_epoch_of_its_own(self) -> None:
        desk = Desk().load()
        desk.holds_markers = True
        producer = desk.begin()
        producer.add(version=V2)
        assert producer.end(True, V2) == (NONE, FIRST_ID, 1)
        states = [records.decode(*record) for record in desk.log]
        assert [each[1].producer_epoch for each in states if each and each[1]] == [0, 0, 1]
        assert desk.markers[0].marker.producer_epoch == 1
        assert desk.markers[0].marker.transaction_version == 2
        desk.markers_written()
        assert desk.known().producer_epoch == 1

    @pytest.mark.parametrize("committed", [True, False])
    def test_a_repeated_end_is_known_by_its_epoch(self, committed: bool) -> None:
        """testEndTxnWhenStatusIsCompleteCommitAndResultIsCommitInV2"""
        desk = Desk().load()
        desk.holds_markers = True
        producer = desk.begin()
        producer.add(version=V2)
        first = producer.end(committed, V2)
        assert producer.end(committed, V2).error_code is ErrorCode.CONCURRENT_TRANSACTIONS
        desk.markers_written()
        assert producer.end(committed, V2) == first
        assert producer.end(not committed, V2).error_code is ErrorCode.INVALID_TXN_STATE

    def test_a_commit_of_nothing_is_refused(self) -> None:
        desk = Desk().load()
        producer = desk.begin()
        assert producer.end(True, V2).error_code is ErrorCode.INVALID_TXN_STATE
        producer.add(version=V2)
        producer.epoch = producer.end(True, V2).producer_epoch
        assert producer.end(True, V2).error_code is ErrorCode.INVALID_TXN_STATE

    def test_an_abort_of_nothing_is_a_transaction_of_its_own(self) -> None:
        desk = Desk().load()
        producer = desk.begin()
        for epoch in (1, 2, 3):
            assert producer.end(False, V2) == (NONE, FIRST_ID, epoch)
            producer.epoch = epoch
        assert desk.known().state is S.COMPLETE_ABORT
        assert desk.written_markers[0].partitions == ()

    def test_an_end_of_an_earlier_transaction_comes_late(self) -> None:
        desk = Desk().load()
        producer = desk.begin()
        producer.add(version=V2)
        late = producer.ends(True)
        producer.epoch = producer.end(True, V2).producer_epoch
        producer.add(version=V2)
        assert desk.ask(late, V2).error_code is ErrorCode.PRODUCER_FENCED
        assert desk.known().state is S.ONGOING

    def test_the_last_epoch_rotates_the_producer_id(self) -> None:
        """shouldReturnOkOnEndTxnV2IfEndTxnV2RetryEpochOverflow"""
        desk = with_state(S.ONGOING, producer_epoch=LAST_CLIENT_EPOCH)
        producer = Producer(desk, FIRST_ID, LAST_CLIENT_EPOCH)
        assert producer.end(True, V2) == (NONE, 2000, 0)
        [(_, marker)] = desk.markers
        assert (marker.producer_id, marker.producer_epoch) == (FIRST_ID, MAX_EPOCH)
        assert producer.end(True, V2).error_code is ErrorCode.CONCURRENT_TRANSACTIONS
        desk.markers_written()
        assert desk.known().producer_id == 2000
        assert producer.end(True, V2) == (NONE, 2000, 0)  # did not hear the answer
        assert Producer(desk, 2000, 0).add(version=V2) is NONE


class TestTime:
    """W-156."""

    def test_should_abort_expired_transactions_and_bump_the_epoch(self) -> None:
        """shouldAbortExpiredTransactionsInOngoingStateAndBumpEpoch and
        testFencingOnTransactionExpiration"""
        desk = Desk().load()
        producer = desk.begin(timeout_ms=15_000)
        producer.add()
        desk.wait(14_000)
        assert desk.known().state is S.ONGOING
        desk.wait(10_000)
        [marker] = desk.written_markers
        assert (marker.producer_epoch, marker.is_commit) == (1, False)
        assert desk.known().state is S.COMPLETE_ABORT
        assert producer.add() is ErrorCode.PRODUCER_FENCED
        assert producer.end().error_code is ErrorCode.PRODUCER_FENCED
        assert desk.init() == (NONE, FIRST_ID, 2)

    @pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
    def test_should_only_consider_ongoing_transactions(self, state: S) -> None:
        """shouldOnlyConsiderTransactionsInTheOngoingStateToAbort"""
        desk = with_state(state)
        desk.wait(DAY_MS)
        assert desk.known().state is state
        assert len(desk.log) == 1

    @pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
    def test_should_remove_expired_ids(self, state: S) -> None:
        """shouldRemoveCompleteCommitExpiredTransactionalIds"""
        desk = with_state(state)
        desk.wait(7 * DAY_MS - 1)
        assert len(desk.log) == 1
        desk.wait(3_600_001)
        assert desk.log[1:] == [records.tombstone(ID)]
        assert desk.shard.transactions == []

    @pytest.mark.parametrize("state", [S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT])
    def test_should_not_remove_what_is_open(self, state: S) -> None:
        desk = with_state(state, timeout_ms=900_000)
        desk.timers = {key: at for key, at in desk.timers.items() if key.name == "FORGET_IDLE"}
        desk.wait(8 * DAY_MS)
        assert len(desk.log) == 1

    @pytest.mark.slow
    @pytest.mark.parametrize(("length", "batches"), [(3, 2), (30_000, 65)])
    def test_many_are_removed_in_batches_that_the_topic_takes(
        self, length: int, batches: int
    ) -> None:
        desk = Desk().load()
        for number in range(520):
            desk.begin(name=f"{number}".ljust(length, "x"))
        desk.holds_appends = True
        del desk.timers[Timer.ABORT_OVERDUE]
        desk.wait(7 * DAY_MS + 3_600_000)
        sizes = [sum(len(record.key) for record in append.records) for append in desk.appends]
        assert max(sizes) < 300_000
        assert sum(len(append.records) for append in desk.appends) == 520
        assert len(desk.appends) == batches
        while desk.appends:
            desk.append_done()
        assert desk.shard.transactions == []

    def test_tombstones_that_are_not_written_leave_the_ids(self) -> None:
        desk = with_state(S.EMPTY)
        desk.holds_appends = True
        desk.wait(7 * DAY_MS + 3_600_000)
        assert desk.init().error_code is ErrorCode.CONCURRENT_TRANSACTIONS
        desk.append_done(ErrorCode.NOT_ENOUGH_REPLICAS)
        desk.holds_appends = False
        assert desk.init() == (NONE, FIRST_ID, 6)


class TestAppends:
    def test_every_error_has_a_translation(self) -> None:
        assert set(ERROR_OF_APPEND) == set(ErrorCode)

    @pytest.mark.parametrize(
        ("code", "told"),
        [
            # testAppendFailToNotCoordinatorError, testAppendFailToCoordinatorNotAvailableError,
            # testAppendFailToUnknownError
            (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
            (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
            (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
            (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
            (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        ],
    )
    def test_what_is_not_written_did_not_happen(self, code: ErrorCode, told: ErrorCode) -> None:
        desk = Desk().load()
        producer = desk.begin()
        before = desk.known()
        desk.holds_appends = True
        number = desk.send(producer.adds())
        desk.append_done(code)
        assert desk.answers[number] == (told, -1, -1)
        assert desk.known() == before
        desk.holds_appends = False
        assert producer.add() is NONE

    def test_a_name_that_was_not_written_is_not_known(self) -> None:
        desk = Desk().load()
        desk.holds_appends = True
        desk.send(wire.InitProducerIdRequest(ID, 60_000))
        desk.append_done(ErrorCode.NOT_ENOUGH_REPLICAS)
        assert desk.shard.transactions == []

    def test_a_late_append_is_answered_once_and_still_counts(self) -> None:
        desk = Desk().load()
        producer = desk.begin()
        desk.holds_appends = True
        number = desk.send(producer.adds())
        desk.append_times_out()
        assert desk.answers[number] == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, -1)
        assert producer.add() is ErrorCode.CONCURRENT_TRANSACTIONS
        desk.append_done()
        assert desk.known().state is S.ONGOING
        desk.holds_appends = False
        assert producer.add() is NONE

    def test_append_while_the_pending_state_changed(self) -> None:
        """testAppendTransactionToLogWhilePendingStateChanged: that cannot be, so nothing goes on
        from there. The runtime loads the partition again."""
        desk = Desk().load()
        producer = desk.begin()
        desk.holds_appends = True
        number = desk.send(producer.adds())
        desk.shard._entries[ID].under_way = None
        with pytest.raises(AssertionError):
            desk.append_done()
        assert number not in desk.answers
        assert desk.known().state is S.EMPTY


class TestLoading:
    def test_load_and_remove_transactions_for_partition(self) -> None:
        """testLoadAndRemoveTransactionsForPartition"""
        desk = Desk().load()
        producer = desk.begin()
        producer.add(TP, OTHER)
        desk.begin(name="gone")
        desk.log.append(records.tombstone("gone"))
        successor = desk.successor(1).load()
        assert successor.shard.transactions == [desk.known()]

    @pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
    def test_should_not_lose_the_completion_after_load(self, state: S) -> None:
        """shouldNotLoseTxnCompletionAfterLoad"""
        desk = with_state(state)
        [(_, marker)] = desk.markers
        assert marker.is_commit is (state is S.PREPARE_COMMIT)
        desk.markers_written()
        assert desk.known().state.is_complete

    def test_the_markers_of_a_later_election_say_so(self) -> None:
        desk = Desk(epoch=3).load()
        desk.holds_markers = True
        producer = desk.begin()
        producer.add()
        producer.end()
        successor = desk.successor(7)
        successor.holds_markers = True
        successor.load()
        assert successor.markers[0].marker.coordinator_epoch == 7

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            (b"", b""),
            (b"\0", b""),
            (b"\0\0\0\5ab", b""),
            (b"\0\0\0\2\xff\xfe", None),
            (b"\0\0\0\2ab", b""),
            (b"\0\0\0\2ab", b"\0\7"),
            (b"\0\0\0\2ab", b"\0\1\0\0"),
        ],
    )
    def test_load_transaction_metadata_with_corrupted_log(
        self, key: bytes, value: bytes | None
    ) -> None:
        """testLoadTransactionMetadataWithCorruptedLog: the runtime counts it and goes on."""
        desk = Desk()
        with pytest.raises(LogstoreError):
            desk.shard.replay(key, value)
        assert desk.load().shard.transactions == []

    @pytest.mark.parametrize("number", [6, 7, 8, -1])
    def test_a_state_that_is_never_written(self, number: int) -> None:
        desk = with_state(S.EMPTY)
        key, value = desk.log[0]
        assert value is not None
        at = 2 + 8 + 2 + 4
        with pytest.raises(LogstoreError):
            desk.shard.replay(key, value[:at] + number.to_bytes(1, signed=True) + value[at + 1 :])

    def test_records_of_later_kinds_are_skipped(self) -> None:
        desk = Desk()
        desk.shard.replay(b"\0\5whatever", b"\0\0")
        assert desk.load().shard.transactions == []


class TestProducerIds:
    def test_those_of_the_log_are_reserved(self) -> None:
        """Another broker may give ids to producers that have no transactions."""
        before = with_state(S.ONGOING)
        shard = TransactionShard(0, 1)
        for record in before.log:
            shard.replay(*record)
        assert ReserveProducerIds(FIRST_ID) in shard.on_loaded(0)
        assert not any(
            isinstance(each, ReserveProducerIds) for each in TransactionShard(0, 1).on_loaded(0)
        )

    def test_a_new_id_is_above_those_of_the_log(self) -> None:
        """The log may come from a cluster whose ids nobody here knows."""
        desk = with_state(S.EMPTY, producer_id=77)
        desk.holds_ids = True
        desk.send(wire.InitProducerIdRequest("another", 60_000))
        assert desk.allocations[0].above == 77

    def test_an_id_that_no_cluster_gives_does_not_count(self) -> None:
        desk = with_state(S.EMPTY, producer_id=2**63 - 1)
        desk.holds_ids = True
        desk.send(wire.InitProducerIdRequest("another", 60_000))
        assert desk.allocations[0].above == -1


class TestRecords:
    """W-171: bytes of a real Kafka."""

    EMPTY = (
        "0001 0000000000000008 0000 00009c40 00 00 000001a2023afba2 ffffffffffffffff "
        "01 00 08 0000000000000008"
    )
    ONGOING = (
        "0001 0000000000000008 0000 00009c40 01 02 03 7431 02 00000000 00 000001a2023afbc6 "
        "000001a2023afbc6 02 00 08 0000000000000008 02 02 0002"
    )

    @pytest.mark.parametrize(("text", "state"), [(EMPTY, S.EMPTY), (ONGOING, S.ONGOING)])
    def test_they_are_read_and_written_alike(self, text: str, state: S) -> None:
        record = CoordinatorRecord(records.tombstone("t").key, bytes.fromhex(text))
        found = records.decode(*record)
        assert found is not None
        assert found[1] is not None
        assert found[1].state is state
        assert found[1].timeout_ms == 40_000
        assert found[1].partitions == ({TopicPartition("t1", 0)} if state is S.ONGOING else set())
        assert records.encode(found[1]) == record

    def test_the_key(self) -> None:
        assert records.tombstone("ab") == (bytes.fromhex("0000 0002 6162"), None)


class TestStates:
    def test_the_table_is_complete(self) -> None:
        """W-151."""
        assert set(FROM) == set(TransactionState)
        assert FROM[S.PREPARE_EPOCH_FENCE] == frozenset()
        assert all(S.DEAD not in before for before in FROM.values())

    def test_describe(self) -> None:
        desk = Desk().load()
        unknown = desk.answers[desk.send(wire.DescribeTransactionsRequest((ID,)))]
        assert unknown is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        desk.begin()
        assert desk.answers[desk.send(wire.DescribeTransactionsRequest((ID,)))] == desk.known()

    def test_names(self) -> None:
        names = [state.kafka_name for state in TransactionState]
        assert names[:4] == ["Empty", "Ongoing", "PrepareCommit", "PrepareAbort"]
        assert V1 < V2
