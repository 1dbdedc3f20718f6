"""A source that refuses, loses or delays what a mirror asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from checkpoints.types import TopicPartition
from logstore.storage.memory import MemoryStorage
from replication.common.error_codes import ErrorCode
from replication.mirror import Mirror, PartitionState, SourceUnreachableError
from replication.network import Listener
from replication.protocol import ApiKey
from replication.server.serving import ServedCluster
from tests.support.mirrors import (
    caught_up,
    is_stuck,
    kinds,
    mirror_of,
    mirrored_bytes,
    reported,
    source_bytes,
    write,
)
from tests.support.served import new_name, served
from tests.support.until import until


@pytest.fixture(autouse=True)
def no_fault_stays(kafka: ServedCluster) -> Iterator[None]:
    yield
    kafka.faults.clear()


@pytest.fixture
def tp(kafka: ServedCluster) -> TopicPartition:
    name = new_name("refused")
    kafka.create_topic(name)
    found = TopicPartition(name, 0)
    write(kafka, found, b"first")
    return found


def mirror(kafka: ServedCluster, tp: TopicPartition, **options: object) -> Mirror:
    chosen = {"topics": (tp.topic,), "internal": False, **options}
    return mirror_of(kafka, **chosen)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.KAFKA_STORAGE_ERROR]
)
def test_a_topic_that_may_not_be_read(
    kafka: ServedCluster, tp: TopicPartition, code: ErrorCode
) -> None:
    """The status and the report say so, nobody waits for it, and it goes on once it is allowed."""
    kafka.faults.fail(ApiKey.FETCH, error=code, times=None)
    with mirror(kafka, tp) as following:
        following.start()
        assert is_stuck(following)
        status = following.status.partitions[tp]
        assert (status.state, status.reason) == (
            PartitionState.FAILED,
            f"the source says {code.name}",
        )
        assert code.name in reported(following, "failed").reason
        kafka.faults.clear()
        until(lambda: mirrored_bytes(following, tp) == source_bytes(kafka, tp), "it goes on")
        caught_up(following)
        assert following.status.partitions[tp].reason == ""


def test_configurations_that_may_not_be_seen(
    kafka: ServedCluster, tp: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are unknown, the report says so once, however many answers do, and the records come
    nevertheless (X-175)."""
    monkeypatch.setattr("replication.mirror.source.TOPICS_AT_ONCE", 1)
    kafka.create_topic(f"{tp.topic}-too")
    refusal = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    kafka.faults.fail(ApiKey.DESCRIBE_CONFIGS, error=refusal, times=None)
    often = {"configs_interval_ms": 100, "metadata_interval_ms": 100}
    with mirror(kafka, tp, **often, topics=(f"{tp.topic}.*",)) as following:
        following.start()
        caught_up(following)
        caught_up(following)
        assert kinds(following.report) == ["config-unknown"]
        assert refusal.name in following.report.events[0].reason
        assert mirrored_bytes(following, tp) == source_bytes(kafka, tp)


@pytest.mark.parametrize("key", [ApiKey.METADATA, ApiKey.FETCH, ApiKey.LIST_OFFSETS, None])
@pytest.mark.parametrize("fault", ["drop", "lose_answer"])
def test_lost_requests_and_answers(
    kafka: ServedCluster, tp: TopicPartition, key: ApiKey | None, fault: str
) -> None:
    with mirror(kafka, tp) as following:
        following.start()
        caught_up(following)
        write(kafka, tp, b"second")
        getattr(kafka.faults, fault)(*([key] if key is not None else []), times=3)
        caught_up(following)
        assert mirrored_bytes(following, tp) == source_bytes(kafka, tp)
        assert not following.report.findings


def test_leaders_that_are_not_there(kafka: ServedCluster, tp: TopicPartition) -> None:
    kafka.faults.fail(ApiKey.FETCH, error=ErrorCode.NOT_LEADER_OR_FOLLOWER, times=3)
    with mirror(kafka, tp) as following:
        following.start()
        caught_up(following)
        assert mirrored_bytes(following, tp) == source_bytes(kafka, tp)


def test_a_known_mirror_begins_without_its_source() -> None:
    """It waits for it, and says why."""
    storage = MemoryStorage()
    with served() as kafka:
        own = TopicPartition("own", 0)
        kafka.create_topic(own.topic)
        write(kafka, own, b"first")
        servers = kafka.bootstrap_servers
        with mirror_of(servers, storage) as following:
            following.start()
            caught_up(following)
            bytes_ = mirrored_bytes(following, own)
    with mirror_of(servers, storage) as following:
        following.start()
        until(lambda: following.status.unreachable, "it says that the source is away")
        assert mirrored_bytes(following, own) == bytes_
        assert not following.catch_up(100)


def test_another_cluster_at_the_address_of_the_source() -> None:
    """Each new connection asks who is there: nothing of another cluster is followed."""
    storage, own = MemoryStorage(), TopicPartition("own", 0)
    with served() as kafka:
        port = int(kafka.bootstrap_servers.rpartition(":")[2])
        kafka.create_topic(own.topic)
        write(kafka, own, b"of the source")
        following = mirror_of(kafka, storage)
        following.start()
        caught_up(following)
        kept = mirrored_bytes(following, own)
    with following, served(listeners=(Listener("PLAINTEXT", "127.0.0.1", port),)) as another:
        another.create_topic(own.topic)
        write(another, own, b"of another", b"of another")
        until(
            lambda: "belongs to the cluster" in following.status.unreachable,
            "it sees that this is another cluster",
        )
        assert mirrored_bytes(following, own) == kept


def test_a_login_that_is_needed_and_missing_ends_the_start(kafka: ServedCluster) -> None:
    keys = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    login = 'PlainLoginModule required username="a" password="b";'
    broken = mirror_of(kafka, keys={**keys, "sasl.jaas.config": login})
    with broken, pytest.raises(SourceUnreachableError):
        broken.start()
