"""Replicas move between the directories of their brokers under load (X-156)."""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Callable

import pytest

from replication.client import Producer
from replication.common.config import ReplicationConfig
from replication.embedded.cluster import Cluster
from tests.support.until import until

BROKERS = (0, 1, 2)
ROUNDS = 4


@pytest.mark.slow
def test_nothing_is_lost_or_twice_while_all_replicas_move(
    make_logstore_cluster: Callable[..., Cluster],
) -> None:
    """Two producers and all three brokers at once: leaders and followers, there and back. Nothing
    would drop what a producer sends again; one partition syncs each append."""
    small = ReplicationConfig(replica_fetch_max_bytes=20_000, replica_fetch_wait_max_ms=50)
    cluster = make_logstore_cluster(3, log_dirs_per_broker=2, config=small)
    config = {"segment.bytes": "100000"}
    tps = [
        *cluster.create_topic("orders", config=config),
        *cluster.create_topic("synced", config={**config, "flush.messages": "1"}),
    ]
    stop, sent = threading.Event(), {tp: list[bytes]() for tp in tps}
    failures: list[BaseException] = []

    def produce(number: int) -> None:
        tp = tps[number]
        producer = Producer(cluster.client)
        try:
            while not stop.is_set():
                value = b"%d-%d" % (number, len(sent[tp]))
                producer.send(tp.topic, value, partition=tp.partition)
                sent[tp].append(value)
        except BaseException as error:
            failures.append(error)

    def place(broker: int, number: int) -> str:
        log = cluster.broker(broker).log_manager.get(*tps[number])
        return posixpath.dirname(log.directory)

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(len(tps))]
    for thread in threads:
        thread.start()
    try:
        for _ in range(ROUNDS):
            wanted = {}
            for broker in BROKERS:
                manager = cluster.broker(broker).log_manager
                for number, tp in enumerate(tps):
                    here = place(broker, number)
                    (target,) = {*manager.live_directories} - {here}
                    wanted[broker, number] = target
                    moves = cluster.broker(broker).replica_manager.moves
                    moves.alter({tp: target}, lambda codes: None)
            for key, path in wanted.items():
                until(lambda key=key, path=path: place(*key) == path or failures)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures
    for tp in tps:
        cluster.wait_for_isr(tp, BROKERS)
        values = [each.value for each in cluster.read_all(tp.topic)[0]]
        assert values == sent[tp]
        assert len(values) > 10
