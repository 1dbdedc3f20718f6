"""Transactions request by request, over sockets, as producers of version 1 and version 2 send them
(W-153, W-154, W-164): both from end to end, which the unit tests of the coordinator do not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.protocol import FEATURES, SERVED, ApiKey
from replication.protocol import messages as wire
from replication.server.serving import ServedCluster
from tests.support.cases import for_each
from tests.support.served import batch, connect, fetch, find_coordinator, new_name, produce, served
from tests.support.until import until
from tests.support.wire_client import WireClient

V1, V2 = 4, 5  # versions of EndTxn
CONFIG = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}


@pytest.fixture(scope="module")
def kafka() -> Iterator[ServedCluster]:
    with served(config=CONFIG) as broker:
        yield broker


@pytest.fixture
def client(kafka: ServedCluster) -> Iterator[WireClient]:
    with connect(kafka) as connected:
        yield connected


class Producer(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int


AGAIN = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)


def _retried(ask: Callable[[], Any]) -> Any:
    """The answer, asked for again while the former transaction ends or the coordinator loads."""

    def settled() -> Any:
        answer = ask()
        return None if answer.error_code in AGAIN else answer

    return until(settled, "an answer that is not to be asked for again")


def _init(client: WireClient, transactional_id: str, version: int) -> Producer:
    find_coordinator(client, transactional_id, 1)
    request = wire.InitProducerIdRequest(transactional_id, 60_000)
    found = _retried(lambda: client.ask(ApiKey.INIT_PRODUCER_ID, version, request))
    assert found.error_code == ErrorCode.NONE
    return Producer(transactional_id, found.producer_id, found.producer_epoch)


def _end(
    client: WireClient, producer: Producer, committed: bool, version: int
) -> wire.EndTxnResponse:
    request = wire.EndTxnRequest(*producer, committed)
    answer: wire.EndTxnResponse = _retried(lambda: client.ask(ApiKey.END_TXN, version, request))
    return answer


def _send(
    client: WireClient,
    tp: TopicPartition,
    producer: Producer,
    value: bytes,
    sequence: int,
    version: int,
) -> int:
    """The error code."""
    records = batch(
        value,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=sequence,
        transactional=True,
    )
    name = producer.transactional_id
    part = _retried(lambda: produce(client, tp, records, version, transactional_id=name))
    code: int = part.error_code
    return code


def _committed(client: WireClient, tp: TopicPartition, offset: int) -> None:
    """Wait until the last stable offset is there."""
    until(lambda: fetch(client, tp).last_stable_offset >= offset, "markers are written")


def _topic(kafka: ServedCluster) -> TopicPartition:
    (tp,) = kafka.create_topic(new_name(), 1, 1)
    return tp


def test_a_transaction_of_version_1_names_its_partitions_first(
    kafka: ServedCluster, client: WireClient
) -> None:
    tp, producer = _topic(kafka), _init(client, new_name("tx"), 4)
    topics = (wire.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(tp.topic, (0,)),)
    request = wire.AddPartitionsToTxnRequest((), *producer, topics)
    added = client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, request).results_by_topic_v3_and_below
    assert [p.partition_error_code for t in added for p in t.results_by_partition] == [0]
    assert _send(client, tp, producer, b"one", 0, 11) == ErrorCode.NONE
    assert fetch(client, tp).last_stable_offset == 0
    ended = _end(client, producer, True, V1)
    assert ended == (0, ErrorCode.NONE, -1, -1)
    _committed(client, tp, 2)
    assert _end(client, producer, True, V1).error_code == ErrorCode.NONE
    assert _end(client, producer, False, V1).error_code == ErrorCode.INVALID_TXN_STATE


def test_a_partition_that_version_1_did_not_name_is_refused(
    kafka: ServedCluster, client: WireClient
) -> None:
    tp, producer = _topic(kafka), _init(client, new_name("tx"), 4)
    assert _send(client, tp, producer, b"one", 0, 9) == ErrorCode.INVALID_TXN_STATE
    assert _send(client, tp, producer, b"one", 0, 11) == ErrorCode.TRANSACTION_ABORTABLE
    assert fetch(client, tp).high_watermark == 0


def test_a_transaction_of_version_2_begins_with_its_records(
    kafka: ServedCluster, client: WireClient
) -> None:
    """Each end gives the next epoch; the markers carry it."""
    tp, first = _topic(kafka), _init(client, new_name("tx"), 5)
    assert _send(client, tp, first, b"one", 0, 12) == ErrorCode.NONE
    ended = _end(client, first, True, V2)
    assert ended == (0, ErrorCode.NONE, first.producer_id, first.producer_epoch + 1)
    _committed(client, tp, 2)

    second = first._replace(producer_epoch=ended.producer_epoch)
    assert _send(client, tp, second, b"two", 0, 12) == ErrorCode.NONE
    assert _send(client, tp, second, b"three", 1, 12) == ErrorCode.NONE
    aborted = _end(client, second, False, V2)
    assert aborted == (0, ErrorCode.NONE, first.producer_id, second.producer_epoch + 1)
    _committed(client, tp, 5)
    kind = wire.FetchRequest
    part = kind.FetchPartition(0, partition_max_bytes=1 << 20)
    request = kind(
        isolation_level=1,
        max_bytes=1 << 20,
        topics=(kind.FetchTopic(tp.topic, partitions=(part,)),),
    )
    ((found,),) = (t.partitions for t in client.ask(ApiKey.FETCH, 11, request).responses)
    assert found.aborted_transactions == ((first.producer_id, 2),)


def test_an_end_of_version_2_may_be_asked_again(kafka: ServedCluster, client: WireClient) -> None:
    """An answer that was lost: the old epoch gets the same answer, and the other end is refused."""
    tp, producer = _topic(kafka), _init(client, new_name("tx"), 5)
    assert _send(client, tp, producer, b"one", 0, 12) == ErrorCode.NONE
    ended = _end(client, producer, True, V2)
    assert _end(client, producer, True, V2) == ended
    assert _end(client, producer, False, V2).error_code == ErrorCode.INVALID_TXN_STATE
    _committed(client, tp, 2)


def test_records_of_an_epoch_that_ended_are_refused(
    kafka: ServedCluster, client: WireClient
) -> None:
    tp, producer = _topic(kafka), _init(client, new_name("tx"), 5)
    assert _send(client, tp, producer, b"one", 0, 12) == ErrorCode.NONE
    assert _end(client, producer, True, V2).error_code == ErrorCode.NONE
    _committed(client, tp, 2)
    assert _send(client, tp, producer, b"late", 1, 12) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert fetch(client, tp).high_watermark == 2


@for_each("version", SERVED[ApiKey.TXN_OFFSET_COMMIT].each())
def test_offsets_of_a_transaction_count_when_it_is_committed(
    kafka: ServedCluster, client: WireClient, version: int
) -> None:
    tp, group = _topic(kafka), new_name("group")
    find_coordinator(client, group)
    producer = _init(client, new_name("tx"), 4)
    if version < 5:
        asked = wire.AddOffsetsToTxnRequest(*producer, group)
        added = _retried(lambda: client.ask(ApiKey.ADD_OFFSETS_TO_TXN, min(version, 4), asked))
        assert added == wire.AddOffsetsToTxnResponse()
    kind = wire.TxnOffsetCommitRequest
    part = kind.TxnOffsetCommitRequestPartition(0, 7, committed_metadata="m")
    request = kind(
        producer.transactional_id,
        group,
        producer.producer_id,
        producer.producer_epoch,
        topics=(kind.TxnOffsetCommitRequestTopic(tp.topic, (part,)),),
    )
    committed = client.ask(ApiKey.TXN_OFFSET_COMMIT, version, request)
    assert [p.error_code for t in committed.topics for p in t.partitions] == [ErrorCode.NONE]
    assert _offset(client, group, tp) in (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert _end(client, producer, True, V2 if version >= 5 else V1).error_code == ErrorCode.NONE
    until(lambda: _offset(client, group, tp) == 7, "the offset is committed")


def _offset(client: WireClient, group: str, tp: TopicPartition) -> int:
    """Committed and stable; −1 if there is none, or the code that says so."""
    kind = wire.OffsetFetchRequest
    topics = (kind.OffsetFetchRequestTopics(tp.topic, partition_indexes=(0,)),)
    request = kind(
        groups=(kind.OffsetFetchRequestGroup(group, topics=topics),), require_stable=True
    )
    (found,) = client.ask(ApiKey.OFFSET_FETCH, 8, request).groups
    ((part,),) = (topic.partitions for topic in found.topics)
    return part.error_code or part.committed_offset


def test_transactions_are_described_and_listed(kafka: ServedCluster, client: WireClient) -> None:
    tp, producer = _topic(kafka), _init(client, new_name("tx"), 5)
    assert _send(client, tp, producer, b"one", 0, 12) == ErrorCode.NONE
    names = (producer.transactional_id, "nobody")
    described = client.ask(
        ApiKey.DESCRIBE_TRANSACTIONS, 0, wire.DescribeTransactionsRequest(names)
    ).transaction_states
    kind = wire.DescribeTransactionsResponse.TransactionState
    assert described[0] == kind(
        ErrorCode.NONE,
        producer.transactional_id,
        "Ongoing",
        60_000,
        described[0].transaction_start_time_ms,
        producer.producer_id,
        producer.producer_epoch,
        (wire.DescribeTransactionsResponse.TopicData(tp.topic, (0,)),),
    )
    assert described[1].error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND

    def listed(version: int, **filters: object) -> set[str]:
        response = client.ask(
            ApiKey.LIST_TRANSACTIONS, version, wire.ListTransactionsRequest(**filters)
        )
        return {each.transactional_id for each in response.transaction_states}

    assert producer.transactional_id in listed(0)
    assert producer.transactional_id in listed(0, state_filters=("Ongoing",))
    assert listed(0, producer_id_filters=(producer.producer_id,)) == {producer.transactional_id}
    assert producer.transactional_id not in listed(0, state_filters=("Empty",))
    assert producer.transactional_id not in listed(1, duration_filter=3_600_000)
    assert _end(client, producer, False, V2).error_code == ErrorCode.NONE


@for_each("version", SERVED[ApiKey.API_VERSIONS].each())
def test_features_are_those_of_the_cluster(client: WireClient, version: int) -> None:
    """A feature that may be absent is not named to clients that refuse such ones (W-15)."""
    response = client.ask(ApiKey.API_VERSIONS, version, wire.ApiVersionsRequest("test", "1"))
    supported = {
        each.name: (each.min_version, each.max_version) for each in response.supported_features
    }
    finalized = {
        each.name: (each.min_version_level, each.max_version_level)
        for each in response.finalized_features
    }
    assert supported == (dict(FEATURES) if version >= 4 else {})
    assert finalized == (
        {name: (at.last, at.last) for name, at in FEATURES.items()} if version >= 3 else {}
    )
    assert response.finalized_features_epoch == (0 if version >= 3 else -1)
