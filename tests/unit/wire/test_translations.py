"""Messages of clients <-> Kafka's: what one side writes the other side reads, in each version."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints.types import TopicPartition
from logstore.format.batch import encode_batch, end_transaction_marker
from logstore.format.control import ControlType
from replication.client.positions import read_part
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    EpochEndOffset,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    IsolationLevel,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderPartitionResponse,
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
)
from replication.common.state import UNKNOWN_EPOCH
from replication.fetcher.fetch_session_handler import FetchSessionHandler, SessionOutcome
from replication.protocol import (
    SERVED,
    ApiKey,
    MalformedMessageError,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from replication.protocol import messages as wire
from replication.wire import calls, fetch, offsets, produce
from replication.wire.calls import TRANSLATIONS

ID, OTHER_ID = uuid.UUID(int=7), uuid.UUID(int=8)
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
NAMES = {ID: "a", OTHER_ID: "b"}


def over_the_wire(key: ApiKey, message: object, version: int, *, answer: bool = False) -> object:
    if not answer:
        return decode_request(key, version, memoryview(encode_request(message, version)))
    body = b"".join(bytes(part) for part in encode_response(message, version))  # type: ignore[arg-type]
    return decode_response(key, version, memoryview(body))


versions = st.integers(*SERVED[ApiKey.FETCH])


@given(
    versions,
    st.lists(
        st.builds(
            FetchPartition,
            st.sampled_from([A0, A1, B0]),
            st.integers(0, 2**62),
            st.integers(0, 1 << 30),
            st.integers(-1, 9),
            st.integers(-1, 9),
            st.just(-1),
            st.none(),
        ),
        unique_by=lambda part: part.tp,
    ),
    st.sampled_from(IsolationLevel),
)
def test_a_fetch_is_the_same_on_both_sides(
    version: int, parts: list[FetchPartition], level: IsolationLevel
) -> None:
    ids = {"a": ID, "b": OTHER_ID}
    parts = sorted(part._replace(topic_id=ids[part.tp.topic]) for part in parts)
    sent = FetchRequest(tuple(parts), isolation_level=level, rack_id="r", max_bytes=1 << 20)
    message = over_the_wire(ApiKey.FETCH, fetch.request_to(sent, version), version)
    got = fetch.request_from(
        message,
        version,
        NAMES.get,
        max_bytes=1 << 20,
        takes_slices=False,  # type: ignore[arg-type]
    )
    with_ids, with_epoch = version >= fetch.FIRST_WITH_IDS, version >= 9
    wanted = tuple(
        part._replace(
            topic_id=part.topic_id if with_ids else None,
            current_leader_epoch=part.current_leader_epoch if with_epoch else UNKNOWN_EPOCH,
            last_fetched_epoch=part.last_fetched_epoch if version >= 12 else UNKNOWN_EPOCH,
        )
        for part in parts
    )
    assert got == sent._replace(
        partitions=wanted, names_by_id=with_ids, rack_id="r" if version >= 11 else ""
    )


def test_topics_are_named_by_id_only_where_each_is_known() -> None:
    known, unknown = FetchPartition(A0, 0, topic_id=ID), FetchPartition(B0, 0)
    assert fetch.latest_version(FetchRequest((known,))) is None
    assert fetch.latest_version(FetchRequest((known, unknown))) == fetch.FIRST_WITH_IDS - 1


@pytest.mark.parametrize("version", [4, 11, 12, 13, 18])
def test_an_answer_to_a_fetch(version: int) -> None:
    asked = FetchRequest(
        (FetchPartition(A0, 0, topic_id=ID), FetchPartition(B0, 0, topic_id=OTHER_ID))
    )
    diverging = EpochEndOffset(3, 9)
    found = FetchResponse(
        (
            FetchPartitionResponse(A0, ErrorCode.NONE, 5, 4, 1, b"batches", topic_id=ID),
            FetchPartitionResponse(A1, ErrorCode.NONE, 5, diverging_epoch=diverging, topic_id=ID),
            FetchPartitionResponse(
                B0,
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                current_leader=(2, 8),
                topic_id=OTHER_ID,
            ),
        )
    )
    if version < 12:
        found = FetchResponse((found.partitions[0], found.partitions[2]))
    message = fetch.response_to(found, version, is_committed=False)
    message = over_the_wire(ApiKey.FETCH, message, version, answer=True)  # type: ignore[assignment]
    got = {part.tp: part for part in fetch.response_from(asked, message, version).partitions}
    assert (bytes(got[A0].batches), got[A0].high_watermark) == (b"batches", 5)
    assert got[B0].error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    if version >= 12:
        assert got[A1].diverging_epoch == diverging
        assert got[B0].current_leader == (2, 8)
    assert got[A0].topic_id == (ID if version >= 13 else None)


def test_topics_that_were_not_asked_for_are_left_out() -> None:
    kind = wire.FetchResponse
    message = kind(responses=(kind.FetchableTopicResponse("", uuid.UUID(int=99), ()),))
    asked = FetchRequest((FetchPartition(A0, 0, topic_id=ID),))
    assert fetch.response_from(asked, message, 13).partitions == ()


def test_a_session_knows_the_names_of_all_its_topics() -> None:
    """An answer names by their ids also topics that this request does not list (W-46)."""
    kind = wire.FetchResponse
    session, other = FetchSessionHandler(), uuid.UUID(int=99)
    wanted = {A0: FetchPartition(A0, 0, topic_id=ID), B0: FetchPartition(B0, 0, topic_id=other)}

    def answered(*changed: TopicPartition) -> tuple[FetchRequest, FetchResponse]:
        asked = session.next_request(wanted, changed or None)
        request = FetchRequest(asked.partitions, topic_names=asked.names)
        part = kind.PartitionData(0, 0, 7)
        topics = [kind.FetchableTopicResponse("", each, (part,)) for each in (ID, other)]
        message = kind(session_id=5, responses=tuple(topics))
        response = fetch.response_from(request, message, 13)
        assert session.on_answer(asked, response) is SessionOutcome.GOOD
        return request, response

    for changed in ((), (A0,), (B0,)):
        request, response = answered(*changed)
        assert {part.tp for part in response.partitions} == {A0, B0}
        assert len(request.partitions) == (2 if not changed else 0)
    # Topics come and go, and the names with them.
    for number in range(100):
        tp = TopicPartition(f"t{number}", 0)
        wanted[tp] = FetchPartition(tp, 0, topic_id=uuid.UUID(int=1000 + number))
        answered(tp)
        del wanted[tp]
        request, response = answered(tp)
        assert {part.tp for part in response.partitions} == {A0, B0}
    assert len(request.topic_names or ()) < 50
    # One topic without an id has the whole session go by names.
    wanted[A1] = FetchPartition(A1, 0)
    request, _ = answered(A1)
    assert fetch.latest_version(request) == 12
    request, _ = answered(B0)
    assert (request.partitions, fetch.latest_version(request)) == ((), 12)


def test_a_session_with_a_leader_that_knows_no_ids() -> None:
    """Its answers are about the topics that were asked for, by name."""
    kind = wire.FetchResponse
    session = FetchSessionHandler()
    asked = session.next_request({A0: FetchPartition(A0, 0, topic_id=ID)}, None)
    topics = (kind.FetchableTopicResponse("a", partitions=(kind.PartitionData(0, 0, 7),)),)
    request = FetchRequest(asked.partitions, topic_names=asked.names)
    response = fetch.response_from(request, kind(session_id=5, responses=topics), 12)
    assert session.on_answer(asked, response) is SessionOutcome.GOOD


def marker(base: int, producer_id: int, kind: ControlType) -> bytes:
    return bytes(
        end_transaction_marker(
            kind,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=0,
            base_offset=base,
            leader_epoch=0,
        )
    )


def in_transaction(base: int, producer_id: int, value: bytes) -> bytes:
    return bytes(
        encode_batch(
            [(None, value, 0)],
            base_offset=base,
            leader_epoch=0,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
    )


@pytest.mark.parametrize("cut", [False, True])
def test_an_aborted_transaction_ends_at_its_marker(cut: bool) -> None:
    """The answer names beginnings alone. What the producer writes behind the marker counts again,
    and without a marker the transaction goes on to the end."""
    log = [
        in_transaction(0, 1, b"aborted"),
        in_transaction(1, 2, b"of another"),
        marker(2, 1, ControlType.ABORT),
        in_transaction(3, 1, b"committed"),
        marker(4, 1, ControlType.COMMIT),
        marker(5, 2, ControlType.COMMIT),
        in_transaction(6, 1, b"aborted too"),
        marker(7, 1, ControlType.ABORT),
    ]
    if cut:
        del log[-1]
    kind = wire.FetchResponse
    part = kind.PartitionData(
        0,
        0,
        8,
        8,
        0,
        aborted_transactions=(kind.AbortedTransaction(1, 0), kind.AbortedTransaction(1, 6)),
        records=b"".join(log),
    )
    message = kind(responses=(kind.FetchableTopicResponse("a", partitions=(part,)),))
    asked = FetchPartition(A0, 0)
    (found,) = fetch.response_from(FetchRequest((asked,)), message, 11).partitions
    taken = read_part(asked, found, IsolationLevel.READ_COMMITTED)
    assert [record.value for record in taken.records] == [b"of another", b"committed"]
    assert taken.next_offset == (7 if cut else 8)


def test_the_torn_end_of_an_answer_is_left_for_the_next() -> None:
    """A broker cuts records at the size that was asked for."""
    whole = in_transaction(0, 1, b"x") + in_transaction(1, 1, b"y")
    kind = wire.FetchResponse
    part = kind.PartitionData(0, 0, 2, 2, 0, records=whole[:-10])
    message = kind(responses=(kind.FetchableTopicResponse("a", partitions=(part,)),))
    asked = FetchPartition(A0, 0)
    (found,) = fetch.response_from(FetchRequest((asked,)), message, 11).partitions
    taken = read_part(asked, found, IsolationLevel.READ_UNCOMMITTED)
    assert ([r.value for r in taken.records], taken.next_offset) == ([b"x"], 1)


@pytest.mark.parametrize("version", range(3, 13))
def test_produce(version: int) -> None:
    sent = ProduceRequest(-1, 5, (ProducePartition(A0, b"x"), ProducePartition(B0, b"y")))
    request = over_the_wire(ApiKey.PRODUCE, produce.request_to(sent, version), version)
    assert [  # type: ignore[attr-defined]
        (topic.name, part.index, bytes(part.records))
        for topic in request.topic_data  # type: ignore[attr-defined]
        for part in topic.partition_data
    ] == [("a", 0, b"x"), ("b", 0, b"y")]
    answers = ProduceResponse(
        (
            ProducePartitionResponse(A0, ErrorCode.NONE, 7, -1, 2 if version >= 5 else -1),
            ProducePartitionResponse(
                B0,
                ErrorCode.INVALID_RECORD,
                error_message="why" if version >= 8 else "",
                record_errors=((1, "this"),) if version >= 8 else (),
                current_leader=(3, 4) if version >= 10 else (-1, -1),
            ),
        )
    )
    kind = wire.ProduceResponse
    message = kind(
        tuple(
            kind.TopicProduceResponse(
                each.tp.topic, partition_responses=(produce.part_to(each, version),)
            )
            for each in answers.partitions
        )
    )
    message = over_the_wire(ApiKey.PRODUCE, message, version, answer=True)  # type: ignore[assignment]
    assert produce.response_from(sent, message, version) == answers


@pytest.mark.parametrize("version", range(1, 12))
def test_list_offsets(version: int) -> None:
    sent = ListOffsetsRequest((ListOffsetsPartition(A0, -1, 3), ListOffsetsPartition(B0, 99, 3)))
    over_the_wire(ApiKey.LIST_OFFSETS, offsets.request_to(sent, version), version)
    answers = (
        ListOffsetsPartitionResponse(A0, ErrorCode.NONE, 5, 6, 7 if version >= 4 else -1),
        ListOffsetsPartitionResponse(B0, ErrorCode.OFFSET_NOT_AVAILABLE),
    )
    kind = wire.ListOffsetsResponse
    message = kind(
        topics=tuple(
            kind.ListOffsetsTopicResponse(each.tp.topic, (offsets.listed_to(each, version),))
            for each in answers
        )
    )
    message = over_the_wire(ApiKey.LIST_OFFSETS, message, version, answer=True)  # type: ignore[assignment]
    got = offsets.response_from(sent, message, version)
    late = ErrorCode.OFFSET_NOT_AVAILABLE if version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE
    assert got == ListOffsetsResponse((answers[0], answers[1]._replace(error_code=late)))


@pytest.mark.parametrize("version", [2, 3, 4])
def test_ends_of_epochs(version: int) -> None:
    parts = (OffsetForLeaderPartition(A0, 3, 5), OffsetForLeaderPartition(B0, 4, 6))
    sent = OffsetForLeaderEpochRequest(parts)
    key = ApiKey.OFFSET_FOR_LEADER_EPOCH
    request = over_the_wire(key, offsets.epoch_request_to(sent, version), version)
    assert offsets.epoch_request_from(request) == sent  # type: ignore[arg-type]
    answers = (
        OffsetForLeaderPartitionResponse(A0, ErrorCode.NONE, 3, 9),
        OffsetForLeaderPartitionResponse(B0, ErrorCode.FENCED_LEADER_EPOCH),
    )
    message = offsets.epoch_response_to(request, answers)  # type: ignore[arg-type]
    message = over_the_wire(key, message, version, answer=True)  # type: ignore[assignment]
    got = offsets.epoch_response_from(sent, message, version)
    assert got == OffsetForLeaderEpochResponse(answers)


def test_an_answer_without_a_partition_is_none() -> None:
    """The cores of clients rely on an answer for each partition."""
    for request, message in (
        (ProduceRequest(-1, 5, (ProducePartition(A0, b"x"),)), wire.ProduceResponse()),
        (ListOffsetsRequest((ListOffsetsPartition(A0, -1),)), wire.ListOffsetsResponse()),
        (
            OffsetForLeaderEpochRequest((OffsetForLeaderPartition(A0, 0),)),
            wire.OffsetForLeaderEpochResponse(),
        ),
    ):
        with pytest.raises(MalformedMessageError, match="a-0"):
            TRANSLATIONS[type(request)].response_from(request, message, 3)


def test_metadata() -> None:
    kind = wire.MetadataResponse
    message = kind(
        brokers=(kind.MetadataResponseBroker(3, "host", 9092, "rack"),),
        controller_id=3,
        topics=(
            kind.MetadataResponseTopic(
                0,
                "a",
                ID,
                partitions=(kind.MetadataResponsePartition(0, 1, 3, 9, (3, 4), (3,), (4,)),),
            ),
            kind.MetadataResponseTopic(29, "secret"),
            kind.MetadataResponseTopic(3, None, OTHER_ID),
        ),
    )
    got = calls.TRANSLATIONS[MetadataRequest].response_from(MetadataRequest(), message, 12)
    assert got.topic_ids == {"a": ID}
    assert got.topic_errors == {"secret": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    ((tp, code, leader, epoch, replicas, isr, offline),) = got.partitions
    assert (tp, code, leader, epoch) == (A1, ErrorCode.NONE, 3, 9)
    assert (replicas, isr, offline) == ((3, 4), (3,), (4,))
    ((registration, _),) = got.brokers
    assert (registration.broker_id, registration.host, registration.port) == (3, "host", 9092)
    assert registration.rack == "rack"


def test_only_who_may_have_topics_made_asks_for_it() -> None:
    for may_create in (False, True):
        request = calls.TRANSLATIONS[MetadataRequest].request_to(
            MetadataRequest(("a",), may_create), 12
        )
        assert request.allow_auto_topic_creation is may_create
        assert [topic.name for topic in request.topics or ()] == ["a"]
    assert calls.TRANSLATIONS[MetadataRequest].request_to(MetadataRequest(), 12).topics is None


def test_each_request_of_the_cores_has_a_translation() -> None:
    assert {each.api_key for each in calls.TRANSLATIONS.values()} >= {
        ApiKey.METADATA,
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.INIT_PRODUCER_ID,
    }
