"""Leaders crash under each client: nothing acknowledged is lost, nothing is there twice."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from replication.server.serving import ServedCluster, serve
from tests.clients.matrix.clients import (
    DriverProcess,
    MatrixClient,
    answered,
    carry_out,
    start,
)
from tests.clients.matrix.test_matrix import PARTITIONS, READ_S, a_topic, group, produce, read
from tests.cluster.load import check_replicas

pytestmark = pytest.mark.slow

BROKERS = 3
BETWEEN = 40  # records that are acknowledged before the next crash
SETTINGS = {
    "default.replication.factor": BROKERS,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": BROKERS,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.replication.factor": BROKERS,
    "transaction.state.log.num.partitions": 4,
    "group.initial.rebalance.delay.ms": 0,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCluster]:
    directory: Path = tmp_path_factory.mktemp("killed")
    with serve(directory, brokers=BROKERS, config=SETTINGS) as kafka:
        yield kafka


def _topic(cluster: ServedCluster) -> str:
    for broker_id in set(range(BROKERS)) - set(cluster.live_brokers):
        cluster.start(broker_id)  # a test that failed left it down
    topic = a_topic()
    cluster.create_topic(topic, PARTITIONS, BROKERS)
    return topic


def _crash_leaders(
    cluster: ServedCluster, topic: str, driver: DriverProcess, kind: str, crashes: int
) -> None:
    """Crash the leader of one partition after the other, each time under load."""
    seen = 0
    for crash in range(1 if "patience" in driver.client.lacks else crashes):
        tp = TopicPartition(topic, crash % PARTITIONS)
        seen = _more(driver, kind, seen)
        leader = cluster.leader(tp)
        assert leader is not None
        cluster.crash(leader)
        cluster.wait_for_leader(tp, not_broker=leader)
        seen = _more(driver, kind, seen)
        cluster.start(leader)
        for partition in range(PARTITIONS):
            cluster.wait_for_isr(TopicPartition(topic, partition), set(range(BROKERS)))
    _more(driver, kind, seen)


def _more(driver: DriverProcess, kind: str, seen: int) -> int:
    """Wait for some more answers of a kind; return how many there are then."""
    step = 1 if kind == "committed" else BETWEEN
    driver.wait_for(seen + step, kind)
    return sum(kind in answer for answer in [*driver.answers])


def _run(
    cluster: ServedCluster, client: MatrixClient, crashes: int, topic: str, kind: str, **more: Any
) -> list[dict[str, Any]]:
    step = {**produce(topic, pause_ms=3, **more)}
    del step["count"]
    driver = start(client, cluster.bootstrap_servers, step)
    try:
        _crash_leaders(cluster, topic, driver, kind, crashes)
        driver.stop()
        return driver.finish()
    finally:
        driver.close()


def _records(
    cluster: ServedCluster, client: MatrixClient, topic: str, **more: Any
) -> list[dict[str, Any]]:
    """All that a client reads, up to a last record that says that this is the end."""
    last = produce(topic, "last", PARTITIONS)
    carry_out(client, cluster.bootstrap_servers, last)
    end = sum(cluster.end_offset(TopicPartition(topic, p)) for p in range(PARTITIONS))
    found: list[dict[str, Any]] = []
    # Markers of transactions count as offsets, and are no records: read until the last ones came.
    step = read(topic, end, timeout_s=READ_S, **more)
    driver = start(client, cluster.bootstrap_servers, step)
    try:
        while sum(str(a.get("read")).startswith("last") for a in [*driver.answers]) < PARTITIONS:
            driver.wait_for(len(found) + 1, "read")
            found = [answer for answer in [*driver.answers] if "read" in answer]
    finally:
        driver.close()
    found = [answer for answer in [*driver.answers] if "read" in answer]
    return [record for record in found if not record["read"].startswith("last")]


def _check_order(records: list[dict[str, Any]]) -> None:
    for partition in range(PARTITIONS):
        own = [r for r in records if r["partition"] == partition]
        assert [r["offset"] for r in own] == sorted({r["offset"] for r in own})
        numbers = [int(r["read"].removeprefix("v")) for r in own]
        assert numbers == sorted(numbers)


def test_idempotent_producer(client: MatrixClient, cluster: ServedCluster, crashes: int) -> None:
    topic = _topic(cluster)
    kind = "sent" if client.name == "kcat" else "acked"
    answers = _run(cluster, client, crashes, topic, kind, idempotent=True)
    records = _records(cluster, client, topic)
    counts = Counter(record["read"] for record in records)
    assert set(answered(answers, "acked")) <= counts.keys()
    assert set(counts.values()) == {1}
    assert not list(answered(answers, "failed"))
    _check_order(records)
    check_replicas(cluster, (TopicPartition(topic, p) for p in range(PARTITIONS)))


def test_transactional_producer(client: MatrixClient, cluster: ServedCluster, crashes: int) -> None:
    if "transactions" in client.lacks:
        pytest.skip(f"{client.name} has no transactions")
    if "transactions in crashes" in client.lacks:
        pytest.skip(f"{client.name} may hang for good, see FINDINGS.md")
    topic = _topic(cluster)
    size = 20
    answers = _run(
        cluster, client, crashes, topic, "committed", transactional_id=topic, transaction_size=size
    )
    records = _records(cluster, client, topic, isolation="read_committed")
    counts = Counter(record["read"] for record in records)
    committed = set(itertools.chain(*answered(answers, "committed")))
    aborted = set(itertools.chain(*answered(answers, "aborted")))
    assert committed <= counts.keys()
    assert not aborted & counts.keys()
    assert set(counts.values()) == {1}
    for unknown in answered(answers, "unknown"):
        assert len(counts.keys() & set(unknown)) in (0, len(unknown))
    _check_order(records)


def test_group(client: MatrixClient, cluster: ServedCluster, crashes: int) -> None:
    """A member reads on while the leaders and its coordinator change."""
    topic = _topic(cluster)
    reader = start(client, cluster.bootstrap_servers, group(topic, f"g-{topic}", timeout_s=100))
    try:
        kind = "sent" if client.name == "kcat" else "acked"
        answers = _run(cluster, client, crashes, topic, kind, idempotent=True)
        wanted = set(answered(answers, "acked"))
        count = len(wanted)
        while not wanted <= set(answered([*reader.answers], "read")):
            reader.wait_for(count, "read")
            count = sum("read" in answer for answer in [*reader.answers]) + 1
        reader.stop()
        reader.finish()
    finally:
        reader.close()
