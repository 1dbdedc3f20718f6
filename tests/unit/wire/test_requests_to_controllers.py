"""What brokers ask of controllers, leaders and coordinators <-> Kafka's messages, in each version:
what one side writes the other side reads."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints.types import TopicPartition
from replication.apis.controller_requests import OF_CONTROLLER
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    BROKER_DEFAULT,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AlterableConfig,
    AlterConfigOp,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteRecordsPartitionResponse,
    DeleteRecordsRequest,
    DeleteTopicRequest,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    IncrementalAlterConfigsRequest,
    InitProducerIdRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingReassignment,
    TopicResponse,
    TxnMarker,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from replication.protocol import (
    ZERO_UUID,
    MalformedMessageError,
    UnencodableMessageError,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    schema,
)
from replication.protocol import messages as wire
from replication.wire import offsets, transactions
from replication.wire.calls import TRANSLATIONS

E = ErrorCode
FAILED = TopicResponse(E.POLICY_VIOLATION, "no: é")
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)

names = st.text("abc.-_", max_size=5)
numbers = st.integers(-1, 2**31 - 1)
few = st.integers(-1, 2**15 - 1)
brokers = st.lists(st.integers(0, 9), max_size=3).map(tuple)
tps = st.lists(st.builds(TopicPartition, names, numbers), max_size=6, unique=True).map(tuple)
ids = st.uuids().filter(lambda each: each != ZERO_UUID)
codes = st.sampled_from(ErrorCode)
topic_answers = st.builds(TopicResponse, codes, st.text(max_size=5))

CREATIONS = st.one_of(
    st.builds(
        CreateTopicRequest,
        names,
        numbers,
        few,
        st.none(),
        st.dictionaries(names, names, max_size=3),
        st.booleans(),
    ),
    st.builds(
        CreateTopicRequest,
        names,
        st.just(1),
        st.just(1),
        assignment=st.lists(brokers, min_size=1, max_size=4).map(tuple),
        config=st.dictionaries(names, names, max_size=3),
        validate_only=st.booleans(),
    ),
)
CASES: dict[type, tuple[st.SearchStrategy[Any], int, st.SearchStrategy[Any]]] = {
    CreateTopicRequest: (CREATIONS, 2, topic_answers),
    DeleteTopicRequest: (
        st.one_of(
            names.map(DeleteTopicRequest), ids.map(lambda each: DeleteTopicRequest(None, each))
        ),
        6,
        topic_answers,
    ),
    CreatePartitionsRequest: (
        st.builds(
            CreatePartitionsRequest,
            names,
            numbers,
            st.none() | st.lists(brokers, max_size=3).map(tuple),
            st.booleans(),
        ),
        0,
        topic_answers,
    ),
    IncrementalAlterConfigsRequest: (
        st.builds(
            IncrementalAlterConfigsRequest,
            names,
            st.lists(
                st.builds(
                    AlterableConfig, names, st.none() | names, st.sampled_from(AlterConfigOp)
                ),
                max_size=3,
            ).map(tuple),
            st.booleans(),
        ),
        0,
        topic_answers,
    ),
    ElectLeadersRequest: (
        st.builds(ElectLeadersRequest, st.sampled_from(ElectionType), st.none() | tps),
        1,
        codes.map(ElectLeadersResponse),
    ),
    AlterPartitionReassignmentsRequest: (
        st.builds(
            AlterPartitionReassignmentsRequest,
            st.dictionaries(
                st.builds(TopicPartition, names, numbers), st.none() | brokers, max_size=4
            ).map(lambda found: tuple(found.items())),
            st.booleans(),
        ),
        1,
        codes.map(AlterPartitionReassignmentsResponse),
    ),
    ListPartitionReassignmentsRequest: (
        st.builds(ListPartitionReassignmentsRequest, st.none() | tps),
        0,
        st.builds(
            ListPartitionReassignmentsResponse,
            codes,
            st.lists(
                st.builds(
                    OngoingReassignment,
                    st.builds(TopicPartition, names, numbers),
                    brokers,
                    brokers,
                    brokers,
                ),
                max_size=4,
            ).map(tuple),
        ),
    ),
}
"""Of a request to a controller: drawn ones, the first version that carries each, and answers."""
WITH_PARTITIONS: dict[type, Callable[[Any], Iterable[TopicPartition]]] = {
    ElectLeadersRequest: lambda request: request.partitions or (),
    AlterPartitionReassignmentsRequest: lambda request: dict(request.targets),
}
"""Of the answers that have a code for each partition: which those are."""


def sent(kind: type, message: Any, version: int, *, answer: bool = False) -> Any:
    """A message as it arrives."""
    key = TRANSLATIONS[kind].api_key
    if not answer:
        return decode_request(key, version, memoryview(encode_request(message, version)))
    body = b"".join(bytes(part) for part in encode_response(message, version))  # type: ignore[arg-type]
    return decode_response(key, version, memoryview(body))


def test_every_request_to_a_controller_is_here() -> None:
    assert {TRANSLATIONS[kind].api_key for kind in CASES} == set(OF_CONTROLLER)


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
@given(st.data())
def test_what_one_side_asks_the_other_reads(kind: type, data: st.DataObject) -> None:
    drawn, first, answers = CASES[kind]
    translation = TRANSLATIONS[kind]
    served = OF_CONTROLLER[translation.api_key]
    request, answer = data.draw(drawn), data.draw(answers)
    version = data.draw(st.integers(first, schema.APIS[translation.api_key].versions.last))
    got = sent(kind, translation.request_to(request, version), version)
    assert served.questions(got) == [request]
    if not getattr(answer, "error_code", None) and kind in WITH_PARTITIONS:
        answer = answer._replace(
            partitions=tuple((tp, data.draw(codes)) for tp in WITH_PARTITIONS[kind](request))
        )
    told = sent(kind, served.answer(got, [answer], version), version, answer=True)
    assert translation.response_from(request, told, version) == answer


@pytest.mark.parametrize("version", range(1, 6))
def test_names_of_topics_to_delete_before_they_had_ids(version: int) -> None:
    translation = TRANSLATIONS[DeleteTopicRequest]
    served = OF_CONTROLLER[translation.api_key]
    request = DeleteTopicRequest("a")
    got = sent(DeleteTopicRequest, translation.request_to(request, version), version)
    assert served.questions(got) == [request]
    told = sent(DeleteTopicRequest, served.answer(got, [FAILED], version), version, answer=True)
    wanted = FAILED if version >= 5 else FAILED._replace(error_message="")
    assert translation.response_from(request, told, version) == wanted
    by_id = translation.request_to(DeleteTopicRequest(topic_id=uuid.UUID(int=7)), version)
    with pytest.raises(UnencodableMessageError):
        encode_request(by_id, version)


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (ElectLeadersRequest(ElectionType.UNCLEAN, (A0,)), 0),
        (AlterPartitionReassignmentsRequest(((A0, None),), may_change_factor=False), 0),
        (AddPartitionsToTxnRequest("t", 1, 2, (A0,)), 3),
        (InitProducerIdRequest(above=7), 5),
    ],
)
def test_what_a_version_cannot_carry_is_not_sent(request_: Any, version: int) -> None:
    with pytest.raises(UnencodableMessageError):
        encode_request(TRANSLATIONS[type(request_)].request_to(request_, version), version)


def test_an_assignment_of_nothing_asks_for_no_partition() -> None:
    request = CreateTopicRequest("a", assignment=())
    message = TRANSLATIONS[CreateTopicRequest].request_to(request, 7)
    (topic,) = message.topics
    assert (topic.num_partitions, topic.replication_factor) == (0, BROKER_DEFAULT)


@pytest.mark.parametrize(
    "topics",
    [
        (),
        (("b", ZERO_UUID),),
        (("a", ZERO_UUID), ("a", ZERO_UUID)),
        (("a", ZERO_UUID), ("b", ZERO_UUID)),
    ],
)
def test_an_answer_about_another_topic_is_none(topics: tuple[tuple[str, uuid.UUID], ...]) -> None:
    kind = wire.DeleteTopicsResponse.DeletableTopicResult
    response = wire.DeleteTopicsResponse(responses=tuple(kind(*each, 0) for each in topics))
    with pytest.raises(MalformedMessageError, match="not one answer about 'a'"):
        TRANSLATIONS[DeleteTopicRequest].response_from(DeleteTopicRequest("a"), response, 6)


def test_an_answer_without_a_partition_is_none() -> None:
    empty: dict[Any, Any] = {
        ElectLeadersRequest(ElectionType.PREFERRED, (A0,)): wire.ElectLeadersResponse(),
        AlterPartitionReassignmentsRequest(((A0, None),)): wire.AlterPartitionReassignmentsResponse(
            error_message=None
        ),
        DeleteRecordsRequest(((A0, 1),), 1): wire.DeleteRecordsResponse(),
        AddPartitionsToTxnRequest("t", 1, 2, (A0,)): wire.AddPartitionsToTxnResponse(),
        WriteTxnMarkersRequest((TxnMarker(1, 2, True, 3, (A0,)),)): wire.WriteTxnMarkersResponse(
            ()
        ),
    }
    for request, response in empty.items():
        with pytest.raises(MalformedMessageError, match="a-0 is missing"):
            TRANSLATIONS[type(request)].response_from(request, response, 2)


# -- leaders and coordinators -----------------------------------------------------------------


@given(st.integers(0, 2), st.dictionaries(st.builds(TopicPartition, names, numbers), numbers))
def test_old_records(version: int, asked: dict[TopicPartition, int]) -> None:
    kind = DeleteRecordsRequest
    request = DeleteRecordsRequest(tuple(asked.items()), 9)
    got = sent(kind, offsets.deletion_to(request, version), version)
    assert offsets.deletion_from(got) == request
    answers = [
        DeleteRecordsPartitionResponse(tp, E.NONE if at % 2 else E.NOT_LEADER_OR_FOLLOWER, at)
        for at, tp in enumerate(asked)
    ]
    told = sent(kind, offsets.deleted_to(answers), version, answer=True)
    assert offsets.deleted_from(request, told, version).partitions == tuple(answers)


@given(st.integers(4, 5), tps, st.booleans(), st.integers(0, 9))
def test_transactions_of_leaders(
    version: int, asked: tuple[TopicPartition, ...], verify_only: bool, epoch: int
) -> None:
    kind = AddPartitionsToTxnRequest
    request = AddPartitionsToTxnRequest("t", 2**40, epoch, asked, verify_only)
    got = sent(kind, transactions.addition_to(request, version), version)
    assert [transactions.addition_from(each) for each in got.transactions] == [request]
    result = wire.AddPartitionsToTxnResponse.AddPartitionsToTxnResult
    topic = wire.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    part = wire.AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
    topics = tuple(topic(tp.topic, (part(tp.partition, 48),)) for tp in reversed(asked))
    response = wire.AddPartitionsToTxnResponse(
        results_by_transaction=(result("other", topics[:1]), result("t", topics))
    )
    told = sent(kind, response, version, answer=True)
    wanted = AddPartitionsToTxnResponse(tuple((tp, E.INVALID_TXN_STATE) for tp in asked))
    assert transactions.added_from(request, told, version) == wanted
    refused = wire.AddPartitionsToTxnResponse(error_code=E.CLUSTER_AUTHORIZATION_FAILED)
    assert {code for _, code in transactions.added_from(request, refused, version).partitions} <= {
        E.CLUSTER_AUTHORIZATION_FAILED
    }


MARKERS = (
    TxnMarker(7, 1, True, 5, (A0, B0), 2),
    TxnMarker(8, 2, False, 6, ()),
    TxnMarker(7, 1, False, 5, (B0, A1)),
)


@pytest.mark.parametrize("version", [1, 2])
def test_ends_of_transactions(version: int) -> None:
    kind, request = WriteTxnMarkersRequest, WriteTxnMarkersRequest(MARKERS)
    got = sent(kind, transactions.markers_to(request, version), version)
    found = tuple(
        transactions.marker_from(each, marker.partitions)
        for each, marker in zip(got.markers, MARKERS, strict=True)
    )
    newest = 2 if version == 2 else 0
    assert found == (MARKERS[0]._replace(transaction_version=newest), *MARKERS[1:])
    known = [{A0: E.NONE, B0: E.INVALID_PRODUCER_EPOCH}, {}, {A1: E.NONE}]
    told = transactions.written_to(got.markers, known, E.NOT_LEADER_OR_FOLLOWER)
    assert transactions.written_from(
        request, sent(kind, told, version, answer=True), version
    ) == WriteTxnMarkersResponse(
        (
            ((A0, E.NONE), (B0, E.INVALID_PRODUCER_EPOCH)),
            (),
            ((B0, E.NOT_LEADER_OR_FOLLOWER), (A1, E.NONE)),
        )
    )


def test_kafka_puts_the_answers_to_one_producer_together() -> None:
    kind = wire.WriteTxnMarkersResponse
    part = kind.WritableTxnMarkerPartitionResult
    together = kind.WritableTxnMarkerResult(
        7,
        (
            kind.WritableTxnMarkerTopicResult("b", (part(0, 48),)),
            kind.WritableTxnMarkerTopicResult("a", (part(1, 0), part(0, 6))),
        ),
    )
    other = kind.WritableTxnMarkerResult(9, ())
    found = transactions.written_from(WriteTxnMarkersRequest(MARKERS), kind((other, together)), 1)
    assert found.markers == (
        ((A0, E.NOT_LEADER_OR_FOLLOWER), (B0, E.INVALID_TXN_STATE)),
        (),
        ((B0, E.INVALID_TXN_STATE), (A1, E.NONE)),
    )
