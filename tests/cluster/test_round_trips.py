"""A record with acks=all costs the same however many partitions rest beside its own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from logstore.format.batch import encode_batch
from logstore.storage.memory import MemoryStorage
from replication.embedded.cluster import Cluster
from tests.support.until import until

RECORD = bytes(encode_batch([(b"key", b"value", 1_700_000_000_000)]))
EVERYWHERE = [0, 1, 2]


def calls_on_this_thread(act: Callable[[], object]) -> int:
    count = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


def on_a_thread(act: Callable[[], object]) -> Any:
    """What it returns. On the main thread a client has its requests served by another one."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(act()))
    thread.start()
    thread.join()
    return found[0]


def usual_calls(cluster: Cluster, tp: TopicPartition) -> int:
    """Of a round trip. One during which a fetch expires, or an actor is busy, has others."""
    producer = cluster.producer()
    trips = [calls_on_this_thread(lambda: producer.send_encoded(tp, RECORD)) for _ in range(40)]
    return max(set(trips), key=trips.count)


@pytest.mark.slow
def test_a_round_trip_beside_partitions_that_rest() -> None:
    with Cluster(3, "/cluster", storage=MemoryStorage()) as cluster:
        (tp,) = cluster.create_topic("busy", assignment=[EVERYWHERE])
        found = []
        for topic, count in (("one", 1), ("more", 15), ("many", 48)):
            for resting in cluster.create_topic(topic, assignment=[EVERYWHERE] * count):
                until(partial(all_follow, cluster, resting), "all follow it")
            found.append(on_a_thread(partial(usual_calls, cluster, tp)))
    assert max(found) - min(found) <= 2, found
    assert max(found) < 700


def all_follow(cluster: Cluster, tp: TopicPartition) -> bool:
    managers = [cluster.broker(each).replica_manager.fetchers for each in EVERYWHERE]
    return sum(tp in fetcher.lags() for each in managers for fetcher in each.fetchers) == 2
