"""Transactions over the wire, version by version, with Kafka's tests of whole transactions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from replication.apis.common.broker_requests import LAST_OF_CLIENTS
from replication.apis.transactions import FENCED_SINCE
from replication.common.error_codes import ErrorCode
from replication.common.internal_topics import GROUP_METADATA, TRANSACTION_STATE
from replication.protocol import SERVED, ApiKey
from replication.protocol import messages as wire
from replication.server.serving import ServedCluster
from tests.support.served import (
    BROKERS,
    WITH_BROKERS,
    batch,
    connect,
    fetch,
    find_coordinator,
    new_name,
    produce,
    produce_request,
    served,
)
from tests.support.until import until
from tests.support.wire_client import WireClient
from tests.support.wire_producer import WireProducer

E = ErrorCode
SETTINGS: dict[str, object] = {
    **WITH_BROKERS["config"],
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.num.partitions": 2,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 50,
}


@pytest.fixture(scope="module")
def kafka() -> Iterator[ServedCluster]:
    with served(1, SETTINGS, listeners=WITH_BROKERS["listeners"]) as brokers:
        yield brokers


@pytest.fixture
def client(kafka: ServedCluster) -> Iterator[WireClient]:
    with connect(kafka) as connected:
        yield connected


class AsBroker:
    """Tests of what brokers ask of each other, by their listener."""

    @pytest.fixture
    def client(self, kafka: ServedCluster) -> Iterator[WireClient]:
        with connect(kafka, listener=BROKERS) as connected:
            yield connected


@pytest.fixture
def producer(kafka: ServedCluster, client: WireClient) -> WireProducer:
    made = WireProducer(kafka, client)
    assert made.init() == E.NONE
    return made


@pytest.fixture
def tp(kafka: ServedCluster) -> TopicPartition:
    (made,) = kafka.create_topic(new_name())
    return made


def rest(kafka: ServedCluster, tp: TopicPartition) -> None:
    """Until no transaction is open there."""
    log = kafka.replica(tp, 0).local_log()
    kafka.wait_until(
        lambda: log.snapshot.last_stable_offset == log.log_end_offset, "no transaction is open"
    )


def offset_of(client: WireClient, group: str, tp: TopicPartition) -> tuple[int, int]:
    kind = wire.OffsetFetchRequest
    topics = (kind.OffsetFetchRequestTopic(tp.topic, (tp.partition,)),)
    request = kind(group, topics, require_stable=True)
    (part,) = client.ask(ApiKey.OFFSET_FETCH, 7, request).topics[0].partitions
    return part.error_code, part.committed_offset


def commit_in_transaction(
    kafka: ServedCluster, client: WireClient, producer: WireProducer, tp: TopicPartition
) -> str:
    """The name of a group with offset 42, which does not count before the transaction ends."""
    group = new_name("group")
    find_coordinator(client, group)
    assert producer.add_offsets(group) == E.NONE
    kind = wire.TxnOffsetCommitRequest
    part = kind.TxnOffsetCommitRequestPartition(tp.partition, 42)
    topics = (kind.TxnOffsetCommitRequestTopic(tp.topic, (part,)),)
    request = kind(producer.name, group, producer.producer_id, producer.epoch, topics=topics)
    response = client.ask(ApiKey.TXN_OFFSET_COMMIT, 3, request)
    assert response.topics[0].partitions[0].error_code == E.NONE
    assert offset_of(client, group, tp) == (E.UNSTABLE_OFFSET_COMMIT, -1)
    return group


class TestInitProducerId:
    def test_accepts_init_and_returns_the_next_id_when_the_name_is_null(
        self, client: WireClient
    ) -> None:
        """shouldAcceptInitPidAndReturnNextPidWhenTransactionalIdIsNull"""
        request = wire.InitProducerIdRequest(None, 0)
        first, second = (client.ask(ApiKey.INIT_PRODUCER_ID, 4, request) for _ in range(2))
        assert (first.error_code, first.producer_epoch) == (E.NONE, 0)
        assert second.producer_id == first.producer_id + 1

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            (("", 1000), E.INVALID_REQUEST),
            (("a", 1000, 5, -1), E.INVALID_REQUEST),
            (("a", 1000, -1, 5), E.INVALID_REQUEST),
            (("a", 0), E.INVALID_TRANSACTION_TIMEOUT),
            (("a", 900_001), E.INVALID_TRANSACTION_TIMEOUT),
        ],
    )
    def test_what_is_refused(
        self, kafka: ServedCluster, client: WireClient, fields: tuple[Any, ...], code: ErrorCode
    ) -> None:
        WireProducer(kafka, client, "a").init()
        response = client.ask(ApiKey.INIT_PRODUCER_ID, 4, wire.InitProducerIdRequest(*fields))
        assert response.error_code == code
        assert (response.producer_id, response.producer_epoch) == (-1, -1)

    @pytest.mark.parametrize("version", range(SERVED[ApiKey.INIT_PRODUCER_ID].last + 1))
    def test_every_version(self, kafka: ServedCluster, client: WireClient, version: int) -> None:
        made = WireProducer(kafka, client)
        assert made.init(version) == E.NONE
        assert made.epoch == 0
        assert made.init(version, again=version >= 3) == E.NONE
        assert made.epoch == 1


def test_no_broker_gives_an_id_that_is_in_a_log_of_another() -> None:
    """As where several brokers take over the logs of another cluster."""
    foreign = 4321
    with served(3) as kafka:
        (tp,) = kafka.create_topic(new_name(), assignment=[[2]])
        records = batch(b"x", producer_id=foreign, producer_epoch=0, base_sequence=0)
        clients = [connect(kafka, broker_id) for broker_id in (0, 1)]

        def new_ids() -> list[int]:
            request = wire.InitProducerIdRequest(None, 0)
            answers = [each.ask(ApiKey.INIT_PRODUCER_ID, 4, request) for each in clients]
            assert [each.error_code for each in answers] == [E.NONE] * 2
            return [each.producer_id for each in answers]

        with connect(kafka, 2) as client:
            assert produce(client, tp, records).error_code == E.NONE
        assert max(new_ids()) < foreign  # and both have the rest of a block
        kafka.stop(2)
        kafka.start(2)
        assert min(new_ids()) > foreign
        for each in clients:
            each.close()


@pytest.mark.parametrize("key", FENCED_SINCE)
def test_fenced_producers_hear_it_in_the_words_of_their_version(
    kafka: ServedCluster,
    client: WireClient,
    producer: WireProducer,
    tp: TopicPartition,
    key: ApiKey,
) -> None:
    """W-157."""
    WireProducer(kafka, client, producer.name).init()
    ask = {
        ApiKey.INIT_PRODUCER_ID: lambda version: producer.init(version, again=True),
        ApiKey.ADD_PARTITIONS_TO_TXN: lambda version: producer.add(tp, version=version)[0],
        ApiKey.ADD_OFFSETS_TO_TXN: lambda version: producer.add_offsets("g", version),
        ApiKey.END_TXN: lambda version: producer.end(version=version),
    }[key]
    first = 3 if key is ApiKey.INIT_PRODUCER_ID else 0
    kafka.wait_until(lambda: ask(first) != E.COORDINATOR_NOT_AVAILABLE, "the groups have a topic")
    last = LAST_OF_CLIENTS.get(key, SERVED[key].last)
    for version in range(first, last + 1):
        code = E.PRODUCER_FENCED if version >= FENCED_SINCE[key] else E.INVALID_PRODUCER_EPOCH
        assert ask(version) == code, version


class TestAddPartitions:
    def test_one_that_is_not_known_spoils_the_others(
        self, producer: WireProducer, tp: TopicPartition
    ) -> None:
        """W-153."""
        unknown = TopicPartition(new_name(), 0)
        codes = producer.add(tp, unknown)
        assert codes == [E.OPERATION_NOT_ATTEMPTED, E.UNKNOWN_TOPIC_OR_PARTITION]
        assert producer.end(True) == E.INVALID_TXN_STATE

    def test_no_name(self, producer: WireProducer, tp: TopicPartition) -> None:
        producer.name = ""
        assert producer.add(tp) == [E.INVALID_REQUEST]
        assert producer.end() == E.INVALID_REQUEST
        assert producer.add_offsets("g") == E.INVALID_REQUEST

    def test_no_group(self, producer: WireProducer) -> None:
        """It has a partition like any other name. The commit itself is refused."""
        until(lambda: producer.add_offsets("") != E.COORDINATOR_NOT_AVAILABLE)  # its topic is made
        assert producer.add_offsets("") == E.NONE

    def test_a_name_that_nobody_has(self, producer: WireProducer, tp: TopicPartition) -> None:
        producer.name = new_name("nobody")
        assert producer.add(tp) == [E.INVALID_PRODUCER_ID_MAPPING]


class TestTransactions:
    """TransactionsTest."""

    @pytest.mark.parametrize("committed", [True, False])
    def test_committed_records_are_seen_when_it_ends_and_aborted_ones_never(
        self,
        kafka: ServedCluster,
        client: WireClient,
        producer: WireProducer,
        tp: TopicPartition,
        committed: bool,
    ) -> None:
        assert producer.add(tp) == [E.NONE]
        assert producer.send(tp) == E.NONE
        assert producer.send(tp, 1) == E.NONE
        before = kafka.consumer(tp, isolation="read_committed").read_to_end()
        assert before == []
        assert producer.end(committed) == E.NONE
        rest(kafka, tp)
        after = kafka.consumer(tp, isolation="read_committed").read_to_end()
        assert len(after) == (2 if committed else 0)
        assert fetch(client, tp).last_stable_offset == 3

    def test_delayed_fetch_includes_the_aborted_transaction(
        self, kafka: ServedCluster, producer: WireProducer, tp: TopicPartition
    ) -> None:
        """testDelayedFetchIncludesAbortedTransaction"""
        producer.add(tp)
        producer.send(tp)
        with connect(kafka) as reader:
            kind = wire.FetchRequest
            part = kind.FetchPartition(tp.partition, partition_max_bytes=1 << 20)
            topics = (kind.FetchTopic(tp.topic, partitions=(part,)),)
            request = kind(max_wait_ms=30_000, min_bytes=1, isolation_level=1, topics=topics)
            reader.send(ApiKey.FETCH, 11, request)
            producer.end(False)
            response = reader.receive(ApiKey.FETCH, 11)
        ((found,),) = (topic.partitions for topic in response.responses)
        assert len(found.records) > 0
        assert [each.producer_id for each in found.aborted_transactions] == [producer.producer_id]

    def test_fencing_on_transaction_expiration(
        self, kafka: ServedCluster, client: WireClient, tp: TopicPartition
    ) -> None:
        """testFencingOnTransactionExpiration"""
        made = WireProducer(kafka, client)
        made.init(timeout_ms=100)
        made.add(tp)
        made.send(tp)
        rest(kafka, tp)  # by itself
        assert made.send(tp, 1) == E.INVALID_PRODUCER_EPOCH
        assert made.end(True) == E.PRODUCER_FENCED
        assert kafka.consumer(tp, isolation="read_committed").read_to_end() == []
        assert made.init() == E.NONE
        assert made.epoch == 2

    def test_send_offsets_with_group_metadata(
        self, kafka: ServedCluster, client: WireClient, producer: WireProducer, tp: TopicPartition
    ) -> None:
        """testSendOffsetsWithGroupMetadata: they count with the transaction."""
        group = commit_in_transaction(kafka, client, producer, tp)
        assert producer.end() == E.NONE
        kafka.wait_until(lambda: offset_of(client, group, tp) == (E.NONE, 42), "the offset counts")

    def test_a_batch_that_was_never_added(self, producer: WireProducer, tp: TopicPartition) -> None:
        """W-159."""
        assert producer.send(tp, version=9) == E.INVALID_TXN_STATE
        assert producer.send(tp, version=11) == E.TRANSACTION_ABORTABLE

    @pytest.mark.parametrize("committed", [True, False])
    @pytest.mark.parametrize("version", [9, 11])
    def test_a_batch_that_comes_after_the_end(
        self,
        kafka: ServedCluster,
        client: WireClient,
        producer: WireProducer,
        tp: TopicPartition,
        version: int,
        committed: bool,
    ) -> None:
        """W-159, in protocol 1: it has the epoch of the next transaction, and opens none."""
        for _ in range(2):
            assert producer.add(tp) == [E.NONE]
            end_offset = fetch(client, tp).high_watermark
            assert producer.send(tp, end_offset // 2, version) == E.NONE
            assert producer.end(committed) == E.NONE
            rest(kafka, tp)
            late = producer.send(tp, end_offset // 2 + 1, version)
            assert late == (E.INVALID_TXN_STATE if version == 9 else E.TRANSACTION_ABORTABLE)
            part = fetch(client, tp)
            assert part.high_watermark == part.last_stable_offset == end_offset + 2

    def test_a_batch_without_the_name_of_its_producer(
        self, client: WireClient, producer: WireProducer, tp: TopicPartition
    ) -> None:
        producer.add(tp)
        records = batch(b"x", producer_id=producer.producer_id, producer_epoch=0, base_sequence=0)
        transactional = batch(
            b"x",
            producer_id=producer.producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        code = produce(client, tp, transactional).error_code
        assert code == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert produce(client, tp, records).error_code == E.NONE  # only idempotent


class TestVersion2:
    """W-164: the leader adds the partition, and each end has its own epoch."""

    def test_a_life(
        self, kafka: ServedCluster, client: WireClient, producer: WireProducer, tp: TopicPartition
    ) -> None:
        for number in range(3):
            kafka.wait_until(
                lambda: producer.send(tp, version=12) == E.NONE, "the leader adds the partition"
            )
            assert producer.epoch == number
            assert producer.end(number != 1, version=5) == E.NONE
            assert producer.epoch == number + 1
        rest(kafka, tp)
        found = kafka.consumer(tp, isolation="read_committed").read_to_end()
        assert [record.offset for _, record in found] == [0, 4]

    def test_an_end_that_was_not_heard(
        self, kafka: ServedCluster, producer: WireProducer, tp: TopicPartition
    ) -> None:
        producer.send(tp, version=12)
        before = producer.producer_id, producer.epoch
        assert producer.end(version=5) == E.NONE
        after = producer.producer_id, producer.epoch
        producer.producer_id, producer.epoch = before
        kafka.wait_until(lambda: producer.end(version=5) == E.NONE, "it is known again")
        assert (producer.producer_id, producer.epoch) == after


class TestSeveralTransactionsAtOnce(AsBroker):
    """AddPartitionsToTxn from version 4 on is for leaders of partitions."""

    @pytest.mark.parametrize("version", [4, 5])
    def test_only_to_verify(
        self,
        kafka: ServedCluster,
        client: WireClient,
        producer: WireProducer,
        tp: TopicPartition,
        version: int,
    ) -> None:
        """AddPartitionsToTxnRequestServerTest.testOneSuccessOneErrorInBatchedRequest"""
        (other,) = kafka.create_topic(new_name())
        ended, nobody = WireProducer(kafka, client), WireProducer(kafka, client)
        assert ended.init() == E.NONE
        nobody.producer_id, nobody.epoch = producer.producer_id, producer.epoch
        assert producer.add(tp) == [E.NONE]
        asked = (
            producer.asked_to_add(tp, other, version=version, verify_only=True),
            ended.asked_to_add(tp, version=version, verify_only=True),
            nobody.asked_to_add(tp, version=version),
        )
        request = wire.AddPartitionsToTxnRequest(tuple(each.transactions[0] for each in asked))
        response = client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, request)
        assert response.error_code == E.NONE
        found = {
            each.transactional_id: [
                part.partition_error_code
                for topic in each.topic_results
                for part in topic.results_by_partition
            ]
            for each in response.results_by_transaction
        }
        assert found == {
            producer.name: [E.NONE, E.TRANSACTION_ABORTABLE],
            ended.name: [E.TRANSACTION_ABORTABLE],
            nobody.name: [E.INVALID_PRODUCER_ID_MAPPING],
        }
        assert ended.end(True) == E.INVALID_TXN_STATE  # to verify added nothing

    @pytest.mark.parametrize("version", [4, 5])
    def test_added_as_a_leader_does(
        self, kafka: ServedCluster, producer: WireProducer, tp: TopicPartition, version: int
    ) -> None:
        assert producer.add(tp, version=version) == [E.NONE]
        assert producer.end(False, version=5) == E.NONE
        assert producer.epoch == 1
        rest(kafka, tp)

    @pytest.mark.parametrize("version", [4, 5])
    def test_of_nothing(self, client: WireClient, version: int) -> None:
        request = wire.AddPartitionsToTxnRequest()
        response = client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, request)
        assert (response.error_code, response.results_by_transaction) == (E.NONE, ())


class TestWriteTxnMarkers(AsBroker):
    """A coordinator, or an operator, ends a transaction in the partition itself."""

    @pytest.mark.parametrize("version", [1, 2])
    @pytest.mark.parametrize("committed", [False, True])
    def test_ends_an_open_transaction(
        self,
        kafka: ServedCluster,
        client: WireClient,
        producer: WireProducer,
        tp: TopicPartition,
        version: int,
        committed: bool,
    ) -> None:
        producer.add(tp)
        producer.send(tp)
        assert fetch(client, tp).last_stable_offset == 0
        assert self._write(client, producer, tp, committed=committed, version=version) == E.NONE
        assert fetch(client, tp).last_stable_offset == 2
        read = kafka.consumer(tp, isolation="read_committed").read_to_end()
        assert len(read) == committed
        # What comes late under the same epoch opens nothing, for it is not verified any more.
        producer.name = "forgotten"
        assert producer.send(tp, 1) != E.NONE
        assert fetch(client, tp).last_stable_offset == 2

    def test_fenced_by_a_later_coordinator(
        self, client: WireClient, producer: WireProducer, tp: TopicPartition
    ) -> None:
        producer.add(tp)
        producer.send(tp)
        assert self._write(client, producer, tp, coordinator_epoch=7) == E.NONE
        producer.add(tp)
        fenced = self._write(client, producer, tp, coordinator_epoch=6)
        assert fenced == E.TRANSACTION_COORDINATOR_FENCED

    def test_fenced_by_a_later_producer(
        self, client: WireClient, producer: WireProducer, tp: TopicPartition
    ) -> None:
        producer.init()
        producer.add(tp)
        producer.send(tp)
        assert self._write(client, producer, tp, epoch=0) == E.INVALID_PRODUCER_EPOCH
        assert fetch(client, tp).last_stable_offset == 0

    def test_in_protocol_2_its_epoch_is_above_that_of_the_transaction(
        self, client: WireClient, producer: WireProducer, tp: TopicPartition
    ) -> None:
        producer.add(tp)
        producer.send(tp)
        options = {"version": 2, "transaction_version": 2}
        late = self._write(client, producer, tp, **options)
        assert late == E.INVALID_PRODUCER_EPOCH
        assert self._write(client, producer, tp, epoch=1, **options) == E.NONE
        assert self._write(client, producer, tp, epoch=1, **options) == E.NONE  # once more

    @pytest.mark.parametrize(
        "fields", [{"producer_id": -1}, {"epoch": -1}, {"version": 2, "transaction_version": -1}]
    )
    def test_what_no_coordinator_sends(
        self, client: WireClient, producer: WireProducer, tp: TopicPartition, fields: dict[str, int]
    ) -> None:
        assert self._write(client, producer, tp, **fields) == E.INVALID_REQUEST
        assert fetch(client, tp).high_watermark == 0

    def test_where_there_is_nothing(
        self, client: WireClient, producer: WireProducer, tp: TopicPartition
    ) -> None:
        unknown = TopicPartition(new_name(), 0)
        beyond = TopicPartition(tp.topic, 99)
        for each in (unknown, beyond):
            assert self._write(client, producer, each) == E.UNKNOWN_TOPIC_OR_PARTITION
        own = TopicPartition(TRANSACTION_STATE, 0)
        assert self._write(client, producer, own) == E.INVALID_TOPIC_EXCEPTION

    def test_each_partition_has_its_own_answer(
        self, client: WireClient, producer: WireProducer, tp: TopicPartition
    ) -> None:
        kind = wire.WriteTxnMarkersRequest
        topics = (
            kind.WritableTxnMarkerTopic(new_name(), (4,)),
            kind.WritableTxnMarkerTopic(tp.topic, (0, 0, 5)),
            kind.WritableTxnMarkerTopic(TRANSACTION_STATE, (0,)),
        )
        one = kind.WritableTxnMarker(producer.producer_id, 0, False, topics, 0)
        other = kind.WritableTxnMarker(producer.producer_id + 1_000_000, 0, True, topics[1:2], 0)
        response = client.ask(ApiKey.WRITE_TXN_MARKERS, 1, kind((one, other)))
        unknown = E.UNKNOWN_TOPIC_OR_PARTITION
        assert [
            (
                marker.producer_id,
                [(t.name, [tuple(p) for p in t.partitions]) for t in marker.topics],
            )
            for marker in response.markers
        ] == [
            (
                one.producer_id,
                [
                    (topics[0].name, [(4, unknown)]),
                    (tp.topic, [(0, E.NONE), (0, E.NONE), (5, unknown)]),
                    (TRANSACTION_STATE, [(0, E.INVALID_TOPIC_EXCEPTION)]),
                ],
            ),
            (other.producer_id, [(tp.topic, [(0, E.NONE), (0, E.NONE), (5, unknown)])]),
        ]
        assert fetch(client, tp).high_watermark == 2
        assert client.ask(ApiKey.WRITE_TXN_MARKERS, 1, kind()).markers == ()

    def test_offsets_of_a_group(
        self, kafka: ServedCluster, client: WireClient, producer: WireProducer, tp: TopicPartition
    ) -> None:
        """The coordinator of the group hears of it: the offsets count from then on."""
        group = commit_in_transaction(kafka, client, producer, tp)
        for number in range(2):  # wherever the group is
            place = TopicPartition(GROUP_METADATA, number)
            assert self._write(client, producer, place, committed=True) == E.NONE
        assert offset_of(client, group, tp) == (E.NONE, 42)
        beyond = TopicPartition(GROUP_METADATA, 50)
        assert self._write(client, producer, beyond) == E.NOT_LEADER_OR_FOLLOWER

    @staticmethod
    def _write(
        client: WireClient,
        producer: WireProducer,
        tp: TopicPartition,
        *,
        committed: bool = False,
        producer_id: int | None = None,
        epoch: int | None = None,
        coordinator_epoch: int = 0,
        version: int = 1,
        transaction_version: int = 0,
    ) -> int:
        kind = wire.WriteTxnMarkersRequest
        marker = kind.WritableTxnMarker(
            producer.producer_id if producer_id is None else producer_id,
            producer.epoch if epoch is None else epoch,
            committed,
            (kind.WritableTxnMarkerTopic(tp.topic, (tp.partition,)),),
            coordinator_epoch,
            transaction_version,
        )
        response = client.ask(ApiKey.WRITE_TXN_MARKERS, version, kind((marker,)))
        (answer,) = response.markers
        assert answer.producer_id == marker.producer_id
        ((part,),) = (topic.partitions for topic in answer.topics)
        return int(part.error_code)


class TestForPeople:
    def test_describe_and_list(
        self, kafka: ServedCluster, client: WireClient, producer: WireProducer, tp: TopicPartition
    ) -> None:
        producer.add(tp)
        request = wire.DescribeTransactionsRequest((producer.name, "nobody", ""))
        known, unknown, empty = client.ask(
            ApiKey.DESCRIBE_TRANSACTIONS, 0, request
        ).transaction_states
        assert (known.transaction_state, known.producer_id) == ("Ongoing", producer.producer_id)
        assert known.transaction_timeout_ms == 60_000
        assert known.transaction_start_time_ms > 0
        assert [(t.topic, t.partitions) for t in known.topics] == [(tp.topic, (0,))]
        assert unknown.error_code == E.TRANSACTIONAL_ID_NOT_FOUND
        assert empty.error_code == E.INVALID_REQUEST

        def listed(version: int = 1, **filters: Any) -> list[str]:
            request = wire.ListTransactionsRequest(**filters)
            response = client.ask(ApiKey.LIST_TRANSACTIONS, version, request)
            assert response.error_code == E.NONE
            return [each.transactional_id for each in response.transaction_states]

        assert producer.name in listed(0)
        assert producer.name in listed(state_filters=("Ongoing",))
        assert producer.name not in listed(state_filters=("Empty",))
        assert listed(producer_id_filters=(producer.producer_id,)) == [producer.name]
        assert producer.name in listed(duration_filter=-1)
        assert producer.name not in listed(duration_filter=3_600_000)
        for pattern, is_listed in (
            (producer.name, True),
            (f"{producer.name[:2]}.*[0-9]$", True),
            (producer.name[:-1], False),
            ("", True),
        ):
            found = listed(2, transactional_id_pattern=pattern)
            assert (producer.name in found) is is_listed, pattern
        response = client.ask(
            ApiKey.LIST_TRANSACTIONS,
            1,
            wire.ListTransactionsRequest(state_filters=("Asleep", "Asleep")),
        )
        assert response.unknown_state_filters == ("Asleep",)
        assert response.transaction_states == ()


def test_clients_do_not_write_where_coordinators_do(
    client: WireClient, producer: WireProducer
) -> None:
    """Nobody else appends there, so a coordinator knows all that its log says."""
    for partition in range(2):
        tp = TopicPartition(TRANSACTION_STATE, partition)
        assert produce(client, tp, batch(b"x")).error_code == E.INVALID_TOPIC_EXCEPTION


def test_an_append_needs_no_coordinator_without_a_transaction(
    client: WireClient, tp: TopicPartition
) -> None:
    """Neither does a name alone make one."""
    request = produce_request(tp, batch(b"plain"), transactional_id="nobody")
    response = client.ask(ApiKey.PRODUCE, 9, request)
    assert response.responses[0].partition_responses[0].error_code == E.NONE
