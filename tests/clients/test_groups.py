"""Groups of unmodified clients, on brokers that come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from replication.common.internal_topics import GROUP_METADATA
from replication.server.serving import ServedCluster
from tests.support.served import new_name, served
from tests.support.until import patience, until

confluent = pytest.importorskip("confluent_kafka")

GROUPS = TopicPartition(GROUP_METADATA, 0)
CONFIG = {"offsets.topic.num.partitions": 1, "group.initial.rebalance.delay.ms": 0}


@pytest.fixture
def kafka() -> Iterator[ServedCluster]:
    with served(3, CONFIG, session_timeout_ms=1000) as cluster:
        yield cluster


def consumer(kafka: ServedCluster, group: str, **options: Any) -> Any:
    return confluent.Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 10_000,
            "log_level": 0,
            "heartbeat.interval.ms": 200,
            "retry.backoff.ms": 50,
            "reconnect.backoff.max.ms": 200,
            **options,
        }
    )


def commit(client: Any, topic: str, offset: int, partition: int = 0) -> None:
    """As long as it takes."""
    position = [confluent.TopicPartition(topic, partition, offset)]

    def confirmed() -> bool:
        try:
            client.commit(offsets=position, asynchronous=False)
        except confluent.KafkaException:
            client.poll(0.05)
            return False
        return True

    until(confirmed)


def committed(client: Any, topic: str) -> int:
    asked = [confluent.TopicPartition(topic, 0)]

    def answered() -> list[Any] | None:
        try:
            return list(client.committed(asked, timeout=patience()))
        except confluent.KafkaException:
            return None

    (found,) = until(answered)
    assert isinstance(found.offset, int)
    return found.offset


def test_the_coordinator_crashes_again_and_again(kafka: ServedCluster) -> None:
    """Every commit that was confirmed is there, whoever coordinates next; none goes back."""
    topic = new_name()
    kafka.create_topic(topic, 1, 3)
    client = consumer(kafka, "g")
    for number in range(1, 4):
        commit(client, topic, 10 * number)
        leader = kafka.wait_for_leader(GROUPS)
        kafka.wait_for_isr(GROUPS, range(3))
        kafka.crash(leader)
        assert committed(client, topic) == 10 * number
        commit(client, topic, 10 * number + 1)
        assert kafka.wait_for_leader(GROUPS, not_broker=leader) != leader
        kafka.start(leader)
        assert committed(client, topic) == 10 * number + 1
    client.close()


def test_a_compacted_log() -> None:
    """Of many commits the last one of each group is left, and is what a later start reads."""
    config = {**CONFIG, "offsets.topic.segment.bytes": 2000, "log.cleaner.enable": "true"}
    with served(1, config) as kafka:
        topic = new_name()
        kafka.create_topic(topic, 1, 1)
        clients = [consumer(kafka, name) for name in ("one", "two")]
        for offset in range(1, 101):
            for client in clients:
                commit(client, topic, offset)
        log = kafka.replica(GROUPS, 0).log
        assert log is not None
        assert len(log.segments) > 3
        cleaned = kafka.broker(0).log_manager.cleaner.clean_filthiest()
        assert cleaned is not None
        assert cleaned.stats.records_kept < cleaned.stats.records_read / 4
        kafka.stop(0)
        kafka.start(0)
        for client in clients:
            assert committed(client, topic) == 100
            client.close()


def test_a_topic_of_the_same_name(kafka: ServedCluster) -> None:
    """What was committed in one that is deleted is not an offset in the next one."""
    topic = new_name()
    kafka.create_topic(topic, 1, 3)
    client = consumer(kafka, "g")
    commit(client, topic, 10)
    kafka.delete_topic(topic)
    kafka.create_topic(topic, 1, 3)
    until(lambda: committed(client, topic) != 10, "its coordinator hears of it")
    assert committed(client, topic) == confluent.OFFSET_INVALID
    client.close()


def test_members_go_on_without_their_coordinator(kafka: ServedCluster) -> None:
    """The group is as the log has it: nobody joins again, and both still have their half."""
    topic = new_name()
    kafka.create_topic(topic, 2, 3)
    assigned: list[list[int]] = [[], []]
    rebalances: list[int] = []
    members = [consumer(kafka, "pair", **{"group.instance.id": f"i{n}"}) for n in range(2)]
    for member, own in zip(members, assigned, strict=True):

        def on_assign(_: Any, parts: list[Any], own: list[int] = own) -> None:
            own[:] = [part.partition for part in parts]
            rebalances.append(len(parts))

        member.subscribe([topic], on_assign=on_assign)

    def poll_until(condition: Callable[[], bool]) -> None:
        def polled() -> bool:
            for member in members:
                member.poll(0.05)
            return condition()

        until(polled, "both have their half")

    poll_until(lambda: sorted(map(tuple, assigned)) == [(0,), (1,)])
    kafka.wait_for_isr(GROUPS, range(3))
    before = len(rebalances)
    kafka.crash(kafka.wait_for_leader(GROUPS))
    for member, (partition,) in zip(members, assigned, strict=True):
        commit(member, topic, 7, partition)
    assert len(rebalances) == before
    for member in members:
        member.close()
