"""Configurations are described and altered over the wire."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from logstore.common.config import LogConfig
from replication.apis import configs
from replication.apis.configs import ConfigSource, ConfigType, ResourceType, _shows
from replication.common.error_codes import ErrorCode
from replication.common.messages import AlterableConfig, AlterConfigOp
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.server.serving import ServedCluster
from tests.support.served import codes_of, connect, new_name
from tests.support.until import until
from tests.support.wire_client import WireClient
from tests.unit.apis.test_topics import creatable
from tests.unit.apis.test_topics import create as create_topics

Describe = wire.DescribeConfigsRequest
Alter = wire.IncrementalAlterConfigsRequest
Whole = wire.AlterConfigsRequest


def describe(
    client: WireClient,
    name: str,
    keys: tuple[str, ...] | None = None,
    kind: int = ResourceType.TOPIC,
    version: int = 4,
    synonyms: bool = True,
) -> wire.DescribeConfigsResponse.DescribeConfigsResult:
    request = Describe((Describe.DescribeConfigsResource(kind, name, keys),), synonyms)
    (result,) = client.ask(ApiKey.DESCRIBE_CONFIGS, version, request).results
    found: wire.DescribeConfigsResponse.DescribeConfigsResult = result
    return found


def alter(
    client: WireClient,
    name: str,
    *changes: tuple[str, int, str | None],
    kind: int = ResourceType.TOPIC,
    validate_only: bool = False,
) -> ErrorCode:
    configs = tuple(Alter.AlterableConfig(*each) for each in changes)
    resource = Alter.AlterConfigsResource(kind, name, configs)
    request = Alter((resource,), validate_only)
    (code,) = codes_of(client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request).responses)
    return code


def values(client: WireClient, name: str) -> dict[str, str | None]:
    """Of the keys that the topic sets itself."""
    found = describe(client, name).configs
    return {each.name: each.value for each in found if each.config_source == ConfigSource.TOPIC}


class TestDescribe:
    @pytest.mark.parametrize("version", range(1, 5))
    def test_every_key_of_a_topic(
        self, kafka: ServedCluster, client: WireClient, version: int
    ) -> None:
        name = new_name()
        kafka.create_topic(name, config={"cleanup.policy": "compact,delete"})
        result = describe(client, name, version=version)
        assert (result.error_code, result.resource_name) == (ErrorCode.NONE, name)
        found = {each.name: each for each in result.configs}
        assert found.keys() == LogConfig().to_properties().keys()
        policy, retention = found["cleanup.policy"], found["retention.ms"]
        assert (policy.value, policy.config_source) == ("compact,delete", ConfigSource.TOPIC)
        assert (retention.value, retention.config_source) == ("1000000", ConfigSource.STATIC_BROKER)
        assert not any(each.read_only or each.is_sensitive for each in result.configs)
        assert list(policy.synonyms) == [
            ("cleanup.policy", "compact,delete", ConfigSource.TOPIC),
            ("log.cleanup.policy", "delete", ConfigSource.DEFAULT),
        ]
        if version >= 3:
            assert {
                name: found[name].config_type
                for name in ("cleanup.policy", "preallocate", "segment.bytes", "retention.ms")
            } == {
                "cleanup.policy": ConfigType.LIST,
                "preallocate": ConfigType.BOOLEAN,
                "segment.bytes": ConfigType.INT,
                "retention.ms": ConfigType.LONG,
            }
            assert found["min.cleanable.dirty.ratio"].config_type == ConfigType.DOUBLE

    def test_the_keys_asked_for(self, kafka: ServedCluster, client: WireClient) -> None:
        name = new_name()
        kafka.create_topic(name)
        result = describe(client, name, ("segment.ms", "no.such.key"), synonyms=False)
        assert [(each.name, each.synonyms) for each in result.configs] == [("segment.ms", ())]

    def test_a_broker(self, kafka: ServedCluster) -> None:
        with connect(kafka, 1) as client:
            result = describe(client, "1", kind=ResourceType.BROKER)
            other = describe(client, "2", kind=ResourceType.BROKER)
        found = {each.name: each for each in result.configs}
        for key, value in (
            ("num.partitions", "2"),
            ("log.retention.ms", "1000000"),
            ("auto.create.topics.enable", "true"),
            ("num.network.threads", "1"),
            ("log.cleaner.enable", "true"),
        ):
            assert found[key].value == value, key
            assert found[key].read_only
        advertised = found["advertised.listeners"]
        (endpoint,) = kafka.broker(1).endpoints
        assert advertised.value == f"PLAINTEXT://{endpoint.host}:{endpoint.port}"
        assert (advertised.read_only, advertised.is_sensitive) == (True, False)
        assert found["log.retention.ms"].config_source == ConfigSource.STATIC_BROKER
        assert len(found) == len(result.configs)
        assert other.error_code == ErrorCode.INVALID_REQUEST

    @pytest.mark.parametrize(
        ("kind", "name", "code"),
        [
            (ResourceType.TOPIC, "nobody", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (ResourceType.TOPIC, "a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
            (ResourceType.BROKER, "nobody", ErrorCode.INVALID_REQUEST),
            (32, "nobody", ErrorCode.INVALID_REQUEST),
        ],
    )
    def test_what_is_not_there(
        self, client: WireClient, kind: int, name: str, code: ErrorCode
    ) -> None:
        result = describe(client, name, kind=kind)
        assert (result.error_code, result.configs) == (code, ())
        assert result.error_message


class TestIncrementalAlter:
    def test_set_append_subtract_delete(self, kafka: ServedCluster, client: WireClient) -> None:
        """Each is there as soon as it is answered (W-26)."""
        name = new_name()
        kafka.create_topic(name)
        op = AlterConfigOp
        for changes, own in (
            ([("retention.bytes", op.SET, "9")], {"retention.bytes": "9"}),
            (
                [("cleanup.policy", op.APPEND, "compact"), ("retention.bytes", op.DELETE, None)],
                {"cleanup.policy": "delete,compact"},
            ),
            ([("cleanup.policy", op.SUBTRACT, "delete")], {"cleanup.policy": "compact"}),
        ):
            assert alter(client, name, *changes) == ErrorCode.NONE
            assert values(client, name) == own
        (tp,) = kafka.broker(0).metadata.partitions_of(name)
        leader = kafka.replica(tp, kafka.wait_for_leader(tp))
        kafka.wait_until(lambda: leader.local_log().config.compact, "its leader follows it")

    @pytest.mark.parametrize(
        ("change", "code"),
        [
            (("retention.ms", AlterConfigOp.SET, "x"), ErrorCode.INVALID_CONFIG),
            (("retention.ms", AlterConfigOp.SET, None), ErrorCode.INVALID_REQUEST),
            (("retention.ms", AlterConfigOp.APPEND, "1"), ErrorCode.INVALID_CONFIG),
            (("no.such.key", AlterConfigOp.SET, "1"), ErrorCode.INVALID_CONFIG),
            (("retention.ms", 9, "1"), ErrorCode.INVALID_REQUEST),
        ],
    )
    def test_refusals_change_nothing(
        self, kafka: ServedCluster, client: WireClient, change: Any, code: ErrorCode
    ) -> None:
        name = new_name()
        kafka.create_topic(name)
        good = ("retention.bytes", AlterConfigOp.SET, "7")
        assert alter(client, name, good, change) == code
        assert values(client, name) == {}

    def test_to_validate_is_to_change_nothing(
        self, kafka: ServedCluster, client: WireClient
    ) -> None:
        name = new_name()
        kafka.create_topic(name)
        change = ("retention.bytes", AlterConfigOp.SET, "7")
        assert alter(client, name, change, validate_only=True) == ErrorCode.NONE
        assert alter(client, name, validate_only=True) == ErrorCode.NONE
        assert values(client, name) == {}

    def test_other_resources(self, client: WireClient) -> None:
        change = ("retention.bytes", AlterConfigOp.SET, "7")
        assert alter(client, new_name(), change) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert alter(client, "0", change, kind=ResourceType.BROKER) == ErrorCode.INVALID_REQUEST
        assert alter(client, "0", change, kind=77) == ErrorCode.INVALID_REQUEST

    def test_the_rates_of_throttles(self, kafka: ServedCluster, client: WireClient) -> None:
        """X-64: of the broker that is asked, all keys of a request or none."""
        key, other = "leader.replication.throttled.rate", "log.retention.ms"
        me = next(each for each in kafka.broker_ids if each != kafka.controller_id)
        quota = kafka.broker(me).replica_manager.quotas[key]

        def put(
            *changes: tuple[str, int, str | None], name: str = str(me), **more: bool
        ) -> ErrorCode:
            return alter(client, name, *changes, kind=ResourceType.BROKER, **more)

        def shown() -> tuple[str | None, int, bool]:
            (entry,) = describe(client, str(me), (key,), ResourceType.BROKER).configs
            return entry.value, entry.config_source, entry.read_only

        before = shown()
        assert before == (str(2**63 - 1), ConfigSource.DEFAULT, False)
        rate = (key, AlterConfigOp.SET, "50")
        for refused in ((other, AlterConfigOp.SET, "1"), (key, AlterConfigOp.APPEND, "1")):
            assert put(rate, refused) == ErrorCode.INVALID_REQUEST
        for value in ("x", "-1", None):
            assert put((key, AlterConfigOp.SET, value)) == ErrorCode.INVALID_CONFIG
        assert put(rate, name="77") == ErrorCode.INVALID_REQUEST
        assert put(rate, validate_only=True) == ErrorCode.NONE
        assert (shown(), quota.is_set) == (before, False)
        assert put(rate) == ErrorCode.NONE
        assert shown() == ("50", ConfigSource.DYNAMIC_BROKER, False)
        assert quota.rate == 50
        whole = Whole((Whole.AlterConfigsResource(ResourceType.BROKER, str(me), ()),), False)
        assert codes_of(client.ask(ApiKey.ALTER_CONFIGS, 2, whole).responses) == [ErrorCode.NONE]
        assert shown() == before
        assert put(rate) == put((key, AlterConfigOp.DELETE, None)) == ErrorCode.NONE
        assert (shown(), quota.rate) == (before, 2**63 - 1)

    def test_a_resource_twice(self, kafka: ServedCluster, client: WireClient) -> None:
        name = new_name()
        kafka.create_topic(name)
        config = Alter.AlterableConfig("retention.bytes", AlterConfigOp.SET, "7")
        resource = Alter.AlterConfigsResource(ResourceType.TOPIC, name, (config,))
        request = Alter((resource, resource), False)
        codes = codes_of(client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request).responses)
        assert codes == [ErrorCode.INVALID_REQUEST] * 2
        assert values(client, name) == {}


class TestAlter:
    @pytest.mark.parametrize("version", range(3))
    def test_what_is_not_named_is_the_default_again(
        self, kafka: ServedCluster, client: WireClient, version: int
    ) -> None:
        name = new_name()
        kafka.create_topic(name, config={"retention.bytes": 5, "segment.ms": 6})
        # The second time it goes on from what the first has left.
        for key in ("retention.bytes", "segment.ms", "segment.ms"):
            config = (Whole.AlterableConfig(key, "8"),)
            resource = Whole.AlterConfigsResource(ResourceType.TOPIC, name, config)
            request = Whole((resource,), False)
            answer = client.ask(ApiKey.ALTER_CONFIGS, version, request)
            assert codes_of(answer.responses) == [ErrorCode.NONE]
            assert values(client, name) == {key: "8"}


class TestItsOwnBroker:
    """A change is answered when the broker that was asked shows it."""

    @pytest.mark.parametrize("operation", [AlterConfigOp.SET, AlterConfigOp.APPEND])
    def test_shows_it_at_once(
        self, kafka: ServedCluster, client: WireClient, operation: AlterConfigOp
    ) -> None:
        name, key = new_name(), "cleanup.policy"
        create_topics(client, creatable(name))
        assert alter(client, name, (key, operation, "compact")) == ErrorCode.NONE
        value = "compact" if operation is AlterConfigOp.SET else "delete,compact"
        assert values(client, name) == {key: value}
        assert alter(client, name, (key, AlterConfigOp.DELETE, None)) == ErrorCode.NONE
        assert values(client, name) == {}

    def test_is_late(self, kafka: ServedCluster) -> None:
        name, hold = new_name(), threading.Event()
        other = next(n for n in range(3) if n != kafka.controller_id)
        with connect(kafka, other) as client, connect(kafka, other) as second:
            create_topics(client, creatable(name))
            requests = kafka.broker(other).replica_manager._control
            requests._actor.post(lambda: hold.wait(30) and None)
            codes: list[ErrorCode] = []
            change = ("retention.ms", AlterConfigOp.SET, "7")
            asking = threading.Thread(target=lambda: codes.append(alter(client, name, change)))
            asking.start()
            until(lambda: kafka._topics._present(name).config == {"retention.ms": "7"})
            assert (codes, values(second, name)) == ([], {})
            hold.set()
            asking.join()
            assert codes == [ErrorCode.NONE]
            assert values(second, name) == {"retention.ms": "7"}

    def test_does_not_show_it(self, kafka: ServedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        """Somebody undid it before this broker heard of it."""
        monkeypatch.setattr(configs, "SHOWN_WITHIN_MS", 1)
        name, hold = new_name(), threading.Event()
        other = next(n for n in range(3) if n != kafka.controller_id)
        with connect(kafka, other) as client:
            create_topics(client, creatable(name))
            requests = kafka.broker(other).replica_manager._control
            requests._actor.post(lambda: hold.wait(30) and None)
            try:
                change = ("retention.ms", AlterConfigOp.SET, "7")
                assert alter(client, name, change) == ErrorCode.NONE
                assert values(client, name) == {}
            finally:
                hold.set()

    def test_a_change_that_changes_nothing_waits_for_nothing(
        self, kafka: ServedCluster, client: WireClient
    ) -> None:
        name = new_name()
        create_topics(client, creatable(name))
        change = ("retention.ms", AlterConfigOp.SET, "7")
        assert [alter(client, name, change) for _ in range(2)] == [ErrorCode.NONE] * 2


@pytest.mark.parametrize(
    ("before", "now", "change", "shows"),
    [
        ({}, {}, ("k", "1", AlterConfigOp.SET), False),
        ({}, {"k": "1"}, ("k", "1", AlterConfigOp.SET), True),
        ({}, {"k": "2"}, ("k", "1", AlterConfigOp.SET), True),  # somebody changed it since
        ({"k": "2"}, {"k": "2"}, ("k", "1", AlterConfigOp.SET), False),
        ({"k": "2"}, {"k": "2"}, ("k", None, AlterConfigOp.DELETE), False),
        ({"k": "2"}, {}, ("k", None, AlterConfigOp.DELETE), True),
        ({"k": "a"}, {"k": "a"}, ("k", "b", AlterConfigOp.APPEND), False),
        ({"k": "a,b"}, {"k": "a,b"}, ("k", "b", AlterConfigOp.APPEND), True),
        ({"k": "a,b"}, {"k": "a,b"}, ("k", "b", AlterConfigOp.SUBTRACT), False),
        ({"k": "a"}, {"k": "a"}, ("k", "b", AlterConfigOp.SUBTRACT), True),
        ({"k": "a"}, None, ("k", "b", AlterConfigOp.SET), True),  # deleted meanwhile
    ],
)
def test_whether_a_broker_shows_a_change(
    before: dict[str, str], now: dict[str, str] | None, change: tuple[Any, ...], shows: bool
) -> None:
    assert _shows(before, now, [AlterableConfig(*change)]) is shows
