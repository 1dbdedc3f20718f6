"""Who is asked, how often, and in which words: brokers that move, load, die or are old."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from replication.admin import AdminClient, Answered, WireError
from replication.admin.admin_client import EARLIEST
from replication.admin.groups import (
    GroupStatus,
    commit_offsets,
    delete_groups,
    delete_offsets,
    describe_groups,
    list_groups,
    plan_offsets,
)
from replication.admin.topics import (
    alter_configs,
    create_topics,
    delete_topics,
    topic_statuses,
)
from replication.common.error_codes import ErrorCode
from replication.protocol import ADVERTISED, ApiKey, VersionRange, encode_request
from replication.protocol import messages as wire
from replication.security.config import ClientConfig
from replication.wire.access import ClusterAccess
from replication.wire.lane import LaneError, OpenCall
from tests.support.cases import for_each

KAFKA_2_1 = {
    ApiKey.METADATA: 7,
    ApiKey.LIST_OFFSETS: 4,
    ApiKey.CREATE_TOPICS: 3,
    ApiKey.DELETE_TOPICS: 3,
    ApiKey.FIND_COORDINATOR: 2,
    ApiKey.DESCRIBE_GROUPS: 2,
    ApiKey.LIST_GROUPS: 2,
    ApiKey.OFFSET_FETCH: 5,
    ApiKey.OFFSET_COMMIT: 6,
    ApiKey.DELETE_GROUPS: 1,
    ApiKey.ALTER_CONFIGS: 1,
    ApiKey.DESCRIBE_CONFIGS: 2,
    ApiKey.CREATE_PARTITIONS: 1,
}

Answer = Callable[[ApiKey, Any], Any]


class Brokers:
    """Three brokers behind a client. ``answers`` are functions of broker, API and request; the
    last one is asked for good. An error in place of an answer is raised.
    """

    def __init__(self, versions: dict[ApiKey, int] | None = None) -> None:
        known = versions or {key: each.last for key, each in ADVERTISED.items()}
        self.versions = {int(key): VersionRange(0, last) for key, last in known.items()}
        self.asked: list[tuple[int, ApiKey, Any]] = []
        self.controllers = [1]
        self.dead: set[int] = set()
        self.answers: dict[ApiKey, list[Any]] = {}

    def client(self, timeout_ms: int = 60_000) -> AdminClient:
        config = ClientConfig(bootstrap_servers=("b0:1",), default_api_timeout_ms=timeout_ms)
        return AdminClient(config, connect=self.connect)

    def connect(self, access: ClusterAccess) -> Any:
        return _Transport(self, access)

    def requests(self) -> list[tuple[int, ApiKey]]:
        return [(broker, key) for broker, key, _ in self.asked if key is not ApiKey.METADATA]

    def answer(self, broker: int, key: ApiKey, request: Any) -> Any:
        self.asked.append((broker, key, request))
        if key is ApiKey.METADATA:
            return self.metadata(request)
        rest = self.answers[key]
        told = rest.pop(0) if len(rest) > 1 else rest[0]
        if isinstance(told, Exception):
            raise told
        return told(broker, request) if callable(told) else told

    def metadata(self, request: Any) -> wire.MetadataResponse:
        kind = wire.MetadataResponse
        controller = self.controllers.pop(0) if len(self.controllers) > 1 else self.controllers[0]
        part = kind.MetadataResponsePartition
        return kind(
            brokers=tuple(kind.MetadataResponseBroker(n, f"b{n}", 1) for n in range(3)),
            controller_id=controller,
            topics=tuple(
                kind.MetadataResponseTopic(
                    name=topic.name,
                    partitions=tuple(part(0, n, n % 3, replica_nodes=(n % 3,)) for n in range(6)),
                )
                for topic in request.topics or ()
            ),
        )


class _Transport:
    """A ``TcpTransport`` whose brokers answer at once."""

    def __init__(self, brokers: Brokers, access: ClusterAccess) -> None:
        self.brokers = brokers
        self.addresses = {-1000 - at: address for at, address in enumerate(access.servers)}
        self.bootstrap = [*self.addresses]
        self.closed = False

    def set_addresses(self, addresses: dict[int, tuple[str, int]]) -> None:
        self.addresses |= addresses

    def call(self, broker_id: int, call: OpenCall, timeout_ms: int) -> None:
        assert not self.closed
        call.on_reply(self._answer(broker_id, call))

    def _answer(self, broker_id: int, call: OpenCall) -> Any:
        brokers, key = self.brokers, call.translation.api_key
        host, _ = self.addresses.get(broker_id, ("", 0))
        broker = int(host[1:] or -1)
        if broker in (-1, *brokers.dead):
            call.failure = LaneError(f"{host}:1: refused" if host else "there is none")
            return None
        if key is ApiKey.API_VERSIONS:
            kind = wire.ApiVersionsResponse
            each = (kind.ApiVersion(key, *found) for key, found in brokers.versions.items())
            return kind(api_keys=tuple(each))
        version = call.translation.latest_version(call.request)
        assert version is not None
        encode_request(call.request, version)  # a broker of that version can be asked so
        call.correlation_id = 1
        try:
            return brokers.answer(broker, key, call.request)
        except LaneError as error:
            call.failure = error
            return None

    def close(self) -> None:
        self.closed = True


def created(code: int = 0) -> Answer:
    kind = wire.CreateTopicsResponse
    return lambda _, request: kind(
        topics=tuple(
            kind.CreatableTopicResult(topic.name, error_code=code) for topic in request.topics
        )
    )


def coordinators(broker: int, code: int = 0) -> Answer:
    kind = wire.FindCoordinatorResponse
    return lambda _, request: kind(
        coordinators=tuple(
            kind.Coordinator(key, broker, error_code=code) for key in request.coordinator_keys
        )
    )


def deleted(*codes: int) -> Answer:
    kind = wire.DeleteGroupsResponse
    return lambda _, request: kind(
        results=tuple(
            kind.DeletableGroupResult(group, code)
            for group, code in zip(request.groups_names, codes, strict=True)
        )
    )


def test_the_next_controller_is_asked() -> None:
    brokers = Brokers()
    brokers.controllers = [1, 2]
    brokers.answers[ApiKey.CREATE_TOPICS] = [created(ErrorCode.NOT_CONTROLLER), created()]
    with brokers.client() as client:
        assert create_topics(client, ["orders"]) == {"orders": Answered(0, "")}
    assert brokers.requests() == [(1, ApiKey.CREATE_TOPICS), (2, ApiKey.CREATE_TOPICS)]


def test_a_controller_is_awaited() -> None:
    brokers = Brokers()
    brokers.controllers = [-1, 2]
    brokers.answers[ApiKey.CREATE_TOPICS] = [created()]
    with brokers.client() as client:
        assert create_topics(client, ["orders"])["orders"].code == 0
    assert brokers.requests() == [(2, ApiKey.CREATE_TOPICS)]


def test_what_may_have_been_done_is_not_asked_again() -> None:
    brokers = Brokers()
    brokers.answers[ApiKey.CREATE_TOPICS] = [LaneError("b1:1: timed out"), created()]
    with brokers.client() as client:
        told = create_topics(client, ["orders"])["orders"]
    assert told == Answered(ErrorCode.NETWORK_EXCEPTION, "b1:1: timed out")
    assert str(told) == "NETWORK_EXCEPTION: b1:1: timed out"


def test_coordinators_that_are_missing_load_and_move() -> None:
    brokers = Brokers()
    brokers.answers[ApiKey.FIND_COORDINATOR] = [
        coordinators(0, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        coordinators(1),
        coordinators(1),
        coordinators(2),
    ]
    brokers.answers[ApiKey.DELETE_GROUPS] = [
        deleted(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NON_EMPTY_GROUP),
        deleted(ErrorCode.NOT_COORDINATOR),
        deleted(0),
    ]
    with brokers.client() as client:
        told = delete_groups(client, ["a", "b"])
    assert {group: each.code for group, each in told.items()} == {
        "a": 0,
        "b": ErrorCode.NON_EMPTY_GROUP,
    }
    assert [broker for broker, key in brokers.requests() if key is ApiKey.DELETE_GROUPS] == [
        1,
        1,
        2,
    ]


def test_a_coordinator_that_does_not_come_is_given_up() -> None:
    brokers = Brokers()
    brokers.dead = {2}
    brokers.answers[ApiKey.FIND_COORDINATOR] = [coordinators(2)]
    with brokers.client(timeout_ms=1) as client:
        told = delete_groups(client, ["a"])["a"]
    assert told == Answered(ErrorCode.BROKER_NOT_AVAILABLE, "b2:1: refused")


def test_another_broker_answers_where_the_first_is_dead() -> None:
    brokers = Brokers()
    with brokers.client() as client:
        client.metadata()
        brokers.dead = {0}
        client.close()
        assert client.metadata(["orders"]).topics[0].name == "orders"
        brokers.dead = {0, 1, 2}
        client.close()
        with pytest.raises(WireError, match=r"b0:1: refused; b1:1: refused; b2:1: refused"):
            client.metadata()


def test_who_is_away_costs_one_time_out() -> None:
    """The first address of several does not answer; who did is asked first then."""
    brokers = Brokers()
    brokers.dead = {0}
    config = ClientConfig(bootstrap_servers=("b0:1", "b1:1"))
    tried: list[int] = []
    with pytest.MonkeyPatch.context() as patch, AdminClient(config, connect=brokers.connect) as c:
        ask = _Transport.call
        patch.setattr(_Transport, "call", lambda own, id, *_: (tried.append(id), ask(own, id, *_)))
        for _ in range(3):
            c.metadata()
    assert [*dict.fromkeys(tried)] == [-1000, -1001]
    assert tried.count(-1000) == 1


def test_a_connection_that_was_closed_is_opened_again() -> None:
    brokers = Brokers()
    brokers.answers[ApiKey.FIND_COORDINATOR] = [LaneError("closed"), LaneError("refused")]
    with brokers.client() as client:
        client.metadata()
        brokers.dead = {1, 2}
        with pytest.raises(WireError, match=r"^refused"):
            client.ask_coordinators(["g"], lambda connection, groups: {})
    assert [broker for broker, _ in brokers.requests()] == [0, 0]


def test_each_leader_is_asked_once_for_all_its_partitions() -> None:
    brokers = Brokers()
    kind = wire.ListOffsetsResponse
    brokers.answers[ApiKey.LIST_OFFSETS] = [
        lambda broker, request: kind(
            topics=tuple(
                kind.ListOffsetsTopicResponse(
                    topic.name,
                    tuple(
                        kind.ListOffsetsPartitionResponse(
                            part.partition_index,
                            ErrorCode.NOT_LEADER_OR_FOLLOWER if broker == 2 else 0,
                            offset=broker,
                        )
                        for part in topic.partitions[1:]
                    ),
                )
                for topic in request.topics
            )
        )
    ]
    tps = [TopicPartition(f"t{n}", p) for n in range(1000) for p in range(7)]
    with brokers.client() as client:
        told = client.list_offsets(tps, EARLIEST)
    assert [broker for broker, _ in brokers.requests()] == [0, 1, 2]
    found = {tp: (each.code, each.value) for tp, each in told.items() if tp.topic == "t7"}
    assert [found[TopicPartition("t7", n)] for n in range(7)] == [
        (ErrorCode.UNKNOWN_SERVER_ERROR, None),  # a broker leaves it out
        (ErrorCode.UNKNOWN_SERVER_ERROR, None),
        (ErrorCode.UNKNOWN_SERVER_ERROR, None),
        (0, 0),
        (0, 1),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None),
    ]


# ------------------------------------------------------------------------------------ Kafka 2.1


def test_an_old_broker_is_asked_for_topics_in_its_words() -> None:
    brokers = Brokers(KAFKA_2_1)
    brokers.answers[ApiKey.CREATE_TOPICS] = [created()]
    results = wire.DeleteTopicsResponse.DeletableTopicResult
    brokers.answers[ApiKey.DELETE_TOPICS] = [wire.DeleteTopicsResponse(0, (results("orders"),))]
    with brokers.client() as client:
        assert create_topics(client, ["orders"])["orders"].code == 0
        assert delete_topics(client, ["orders"])["orders"].code == 0
        (status,) = topic_statuses(client.metadata(["orders"])).values()
    made, gone = (request for _, key, request in brokers.asked if key is not ApiKey.METADATA)
    assert (made.topics[0].num_partitions, made.topics[0].replication_factor) == (1, 1)
    assert gone.topic_names == ("orders",)
    assert status.value.topic_id is None


def test_an_old_broker_replaces_all_keys_of_a_topic() -> None:
    brokers = Brokers(KAFKA_2_1)
    kind, entry = (
        wire.DescribeConfigsResponse,
        wire.DescribeConfigsResponse.DescribeConfigsResourceResult,
    )
    entries = (
        entry("retention.ms", "5", config_source=1),
        entry("segment.ms", "6", config_source=1),
        entry("max.message.bytes", "7", config_source=4),
    )
    brokers.answers[ApiKey.DESCRIBE_CONFIGS] = [
        kind(results=(kind.DescribeConfigsResult(0, None, 2, "orders", entries),))
    ]
    done = wire.AlterConfigsResponse
    brokers.answers[ApiKey.ALTER_CONFIGS] = [
        done(responses=(done.AlterConfigsResourceResponse(0, None, 2, "orders"),))
    ]
    with brokers.client() as client:
        told = alter_configs(client, ["orders"], {"flush.ms": "8"}, ["segment.ms"])
    assert told["orders"].code == 0
    (request,) = (each for _, key, each in brokers.asked if key is ApiKey.ALTER_CONFIGS)
    assert {tuple(pair) for pair in request.resources[0].configs} == {
        ("retention.ms", "5"),
        ("flush.ms", "8"),
    }


def old_groups() -> Brokers:
    brokers = Brokers(KAFKA_2_1)
    brokers.answers[ApiKey.FIND_COORDINATOR] = [wire.FindCoordinatorResponse(node_id=2)]
    listed = wire.ListGroupsResponse.ListedGroup
    brokers.answers[ApiKey.LIST_GROUPS] = [
        lambda broker, _: wire.ListGroupsResponse(
            groups=(listed("billing", "consumer"),) if broker == 2 else ()
        )
    ]
    described = wire.DescribeGroupsResponse.DescribedGroup
    brokers.answers[ApiKey.DESCRIBE_GROUPS] = [
        lambda _, request: wire.DescribeGroupsResponse(
            groups=tuple(
                described(group_id=name, group_state="Empty" if name == "billing" else "Dead")
                for name in request.groups
            )
        )
    ]
    kind = wire.OffsetFetchResponse
    part = kind.OffsetFetchResponsePartition(1, 70)
    brokers.answers[ApiKey.OFFSET_FETCH] = [
        kind(topics=(kind.OffsetFetchResponseTopic("orders", (part,)),))
    ]
    return brokers


def test_an_old_broker_is_asked_for_groups_in_its_words() -> None:
    brokers = old_groups()
    with brokers.client() as client:
        (listed,), failed = list_groups(client)
        told = describe_groups(client, ["billing", "none"])
    assert (listed.group_id, listed.state, listed.coordinator, failed) == (
        "billing",
        "Empty",
        2,
        {},
    )
    assert told["none"].code == ErrorCode.GROUP_ID_NOT_FOUND
    ((tp, offset, _, lag),) = told["billing"].value.offsets
    assert (tp, offset, lag) == (TopicPartition("orders", 1), 70, None)


def test_what_an_old_broker_does_not_have() -> None:
    with old_groups().client() as client:
        told = delete_offsets(client, "billing", [TopicPartition("orders", 1)])
    ((_, answered),) = told.items()
    assert answered.code == ErrorCode.UNSUPPORTED_VERSION


def test_a_commit_is_answered_for_each_partition() -> None:
    brokers = old_groups()
    kind = wire.OffsetCommitResponse
    codes = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 2, [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    brokers.answers[ApiKey.OFFSET_COMMIT] = [
        kind(
            topics=(
                kind.OffsetCommitResponseTopic(
                    "orders",
                    partitions=tuple(
                        kind.OffsetCommitResponsePartition(n, code) for n, code in enumerate(each)
                    ),
                ),
            )
        )
        for each in codes
    ]
    tps = [TopicPartition("orders", n) for n in range(2)]
    with brokers.client() as client:
        told = commit_offsets(client, "billing", dict.fromkeys(tps, 5))
    assert [told[tp].code for tp in tps] == codes[1]


# ------------------------------------------------------------------------------------- planning


@for_each(
    "wanted, planned, has_note",
    [
        (4, 4, False),
        (10, 10, False),
        (3, 4, True),
        (-1, 4, True),
        (11, 10, True),
        (None, None, False),
    ],
)
def test_a_new_offset_is_moved_into_the_log(
    wanted: int | None, planned: int | None, has_note: bool
) -> None:
    tp = TopicPartition("orders", 0)

    class Client:
        def list_offsets(self, tps: Any, timestamp: int, patient: bool) -> Any:
            return {tp: Answered(0, value=4 if timestamp == EARLIEST else 10)}

    group = GroupStatus("billing", "Empty", "", 0, ())
    plan = plan_offsets(Client(), group, [tp], lambda *_: wanted)[tp]  # type: ignore[arg-type]
    assert (plan.value, plan.message is not None and planned is not None) == (planned, has_note)
    assert bool(plan.code) == (wanted is None)
