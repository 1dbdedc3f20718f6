"""The states of single brokers, put together: the state of all of them in one process (X-158)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from replication.embedded.cluster import Cluster
from replication.server.http import GroupSnapshot, cluster_state
from replication.server.http.merged import merged_state, read_state
from replication.server.http.state import Selection, select
from tests.support.until import until

TP = TopicPartition("orders", 0)
GROUPS = {
    0: [GroupSnapshot("shipping", "Empty", "consumer", 0, {TP: 9})],
    2: [GroupSnapshot("billing", "Stable", "consumer", 2, {TP: 3, TopicPartition("gone", 1): 4})],
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(3, tmp_path) as cluster:
        cluster.create_topic("orders", 2)
        cluster.create_topic("logs", 2, replication_factor=2)
        for number in range(5):
            cluster.produce("orders", b"%d" % number, partition=0)
        yield cluster


def nothing(cluster: Cluster) -> None:
    pass


def a_broker_dies(cluster: Cluster) -> None:
    leader = cluster.leader(TP)
    assert leader is not None
    cluster.crash(leader)
    cluster.wait_for_leader(TP, not_broker=leader)


def a_log_is_truncated(cluster: Cluster) -> None:
    leader = cluster.leader(TP)
    assert leader is not None
    for other in cluster.broker_ids:
        if other != leader:
            cluster.network.cut(other, leader)
    cluster.producer(acks=1).send("orders", b"only the leader has it", partition=0)
    cluster.crash(leader)
    cluster.heal()
    cluster.wait_for_leader(TP, not_broker=leader)
    cluster.produce("orders", b"of the next leader", partition=0)
    cluster.start(leader)
    cluster.wait_for_isr(TP, cluster.broker_ids)


def without_times(state: dict[str, Any]) -> dict[str, Any]:
    cuts = sorted((event | {"ago_ms": 0} for event in state["truncations"]), key=str)
    return state | {"truncations": cuts}


@pytest.mark.parametrize("happens", [nothing, a_broker_dies, a_log_is_truncated])
def test_it_is_the_state_of_one_process(
    cluster: Cluster, happens: Callable[[Cluster], None]
) -> None:
    happens(cluster)

    def together() -> dict[str, Any]:
        groups = [each for id_ in cluster.live_brokers for each in GROUPS.get(id_, [])]
        return without_times(cluster_state(map(cluster.broker, cluster.live_brokers), groups))

    def merged() -> dict[str, Any]:
        states = {
            id_: read_state(id_, json.dumps(alone(id_)).encode()) for id_ in cluster.live_brokers
        }
        return without_times(json.loads(json.dumps(merged_state(states))))

    def alone(broker_id: int) -> dict[str, Any]:
        return cluster_state([cluster.broker(broker_id)], GROUPS.get(broker_id, []))

    until(lambda: merged() == together(), "both are the same")  # high watermarks come later
    found = merged()
    assert len(found["partitions"]) == 4
    assert found["partitions"][2]["leader"] == cluster.leader(TP)


# -- by hand ---------------------------------------------------------------------------------------


def state(broker_id: int, *partitions: dict[str, Any], **rest: Any) -> dict[str, Any]:
    numbers = ("epoch", "partitions", "leaders", "under_replicated", "bytes_in", "bytes_out")
    own = {
        **dict.fromkeys((*numbers, "messages_in"), 7),
        "id": broker_id,
        "state": "running",
        "is_controller": False,
        "offline_directories": [],
    }
    return {
        "version": 2,
        "brokers": [own],
        "partitions": [*partitions],
        "groups": [],
        "truncations": [],
        **rest,
    }


def row(
    own: int, leader: int, epoch: int, isr: str = "012", assigned: str = "012", end: int = 5
) -> dict[str, Any]:
    """As one broker shows the partition."""
    leads = own == leader
    return {
        "topic": "orders",
        "partition": 0,
        "leader": leader,
        "leader_epoch": epoch,
        "isr": [int(each) for each in isr],
        "min_isr": 2 if leads else 0,
        "high_watermark": end if leads else -1,
        "replicas": [
            {
                "broker": int(each),
                "is_online": int(each) == own,
                "state": "online" if int(each) == own else "unknown",
                "log_start_offset": 0 if int(each) == own else -1,
                "log_end_offset": end if int(each) == own else -1,
                "high_watermark": end if int(each) == own else -1,
            }
            for each in assigned
        ],
    }


# what each broker says; then leader, epoch, ISR, minimum, high watermark, replicas, counts
TABLE: list[tuple[str, dict[int, Any], tuple[Any, ...]]] = [
    ("all agree", {0: state(0, row(0, 1, 4)), 1: state(1, row(1, 1, 4)), 2: state(2, row(2, 1, 4))},
     (1, 4, [0, 1, 2], 2, 5, "online online online", (0, 0))),
    ("an earlier leader does not know it yet",
     {0: state(0, row(0, 0, 3, end=9)), 1: state(1, row(1, 1, 4, "12")), 2: state(2, row(2, 1, 4))},
     (1, 4, [1, 2], 2, 5, "online online online", (0, 1))),
    ("the leader does not answer",
     {0: state(0, row(0, 1, 4)), 1: None, 2: state(2, row(2, 1, 4))},
     (1, 4, [0, 1, 2], 0, -1, "online unknown online", (0, 0))),
    ("of those that follow a silent leader the latest counts",
     {0: state(0, row(0, 1, 3)), 1: None, 2: state(2, row(2, 1, 4, "12"))},
     (1, 4, [1, 2], 0, -1, "online unknown online", (0, 1))),
    ("nobody leads",
     {0: state(0, row(0, -1, 4, "")), 1: None, 2: state(2, row(2, -1, 4, ""))},
     (-1, 4, [], 0, -1, "online unknown online", (1, 0))),
    ("one does not have it yet",
     {0: state(0, row(0, 0, 4, "01")), 1: state(1, row(1, 0, 4, "01")), 2: state(2)},
     (0, 4, [0, 1], 2, 5, "online online absent", (0, 1))),
    ("one opens its logs", {0: state(0, row(0, 0, 4, "0")), 1: state(1, brokers=[])},
     (0, 4, [0], 2, 5, "online unknown unknown", (0, 1))),
    ("one has it that is no replica any more",
     {0: state(0, row(0, 0, 4, "01", "013")), 1: state(1, row(1, 0, 4, "01", "013")),
      2: state(2, row(2, 0, 3, "01", "02"))},
     (0, 4, [0, 1], 2, 5, "online online online unknown", (0, 1))),
    ("one does not lead yet of which others have heard",
     {0: state(0, row(0, 1, 4)), 1: state(1)},
     (-1, 4, [], 0, -1, "online absent unknown", (1, 0))),
]  # fmt: skip


@pytest.mark.parametrize(("states", "expected"), [r[1:] for r in TABLE], ids=[r[0] for r in TABLE])
def test_who_is_believed(states: dict[int, Any], expected: tuple[Any, ...]) -> None:
    for order in (sorted(states), sorted(states, reverse=True)):
        found = merged_state({broker_id: states[broker_id] for broker_id in order})
        (p,) = found["partitions"]
        counts = found["counts"]
        assert (
            p["leader"],
            p["leader_epoch"],
            p["isr"],
            p["min_isr"],
            p["high_watermark"],
            " ".join(each["state"] for each in p["replicas"]),
            (counts["leaderless"], counts["under_replicated"]),
        ) == expected
        assert [each["id"] for each in found["brokers"]] == [0, 1, 2][: len(states)]


def test_a_broker_without_an_answer_has_a_row_without_numbers() -> None:
    found = merged_state({3: None, 1: state(1), 2: state(2, brokers=[])})
    assert [each["state"] for each in found["brokers"]] == ["running", "starting", "no answer"]
    silent = found["brokers"][2]
    assert silent.keys() == found["brokers"][0].keys()
    assert (silent["leaders"], silent["bytes_in"], silent["is_controller"]) == (None, None, False)
    assert select(found, Selection())["counts"]["selected_partitions"] == 0
    assert merged_state({})["brokers"] == []


def test_lags_are_of_the_merged_partitions() -> None:
    group = {"group": "g", "state": "Stable", "protocol_type": "consumer", "members": 1}
    elsewhere = {"topic": "orders", "partition": 0, "committed": 2, "high_watermark": -1}
    groups = [group | {"offsets": [elsewhere | {"lag": None}]}]
    coordinator = read_state(2, json.dumps(state(2, groups=groups)).encode())
    found = merged_state({1: state(1, row(1, 1, 4)), 2: coordinator})
    assert [each["lag"] for each in found["groups"][0]["offsets"]] == [3]
    found = merged_state({1: None, 2: coordinator})
    assert [each["lag"] for each in found["groups"][0]["offsets"]] == [None]


GOOD = json.dumps(state(1, row(1, 1, 4)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (GOOD, ""),
        (GOOD, "[]"),
        (GOOD, "[" * 100_000),
        (GOOD, "7" * 5000),
        (GOOD, '{"version": 2}'),
        ('"version": 2', '"version": 3'),
        ('"id": 1', '"id": 2'),
        ('"is_controller": false', '"is_controller": 0'),
        ('"epoch": 7', '"epoch": true'),
        ('"epoch": 7', '"epoch": NaN'),
        ('"isr": [0, 1, 2]', '"isr": {"0": 1}'),
        ('"isr": [0, 1, 2]', '"isr": [null]'),
        ('"topic": "orders"', '"topic": 5'),
        ('"replicas": [', '"replicas": [7, '),
        ('"groups": []', '"groups": "ab"'),
        ('"groups": []', '"groups": [{}]'),
        ('"truncations": []', '"truncations": [{"ago_ms": []}]'),
        (GOOD[-3:], ""),
    ],
)
def test_what_is_no_state_of_this_broker_is_refused(old: str, new: str) -> None:
    assert read_state(1, GOOD.encode())["brokers"][0]["id"] == 1
    assert old in GOOD
    with pytest.raises(ValueError, match=r"."):
        read_state(1, GOOD.replace(old, new).encode())


def test_two_brokers_in_one_state_are_none_of_one() -> None:
    both = json.loads(GOOD)
    both["brokers"] *= 2
    with pytest.raises(ValueError, match="not broker 1 alone"):
        read_state(1, json.dumps(both).encode())
    assert "more" not in read_state(1, json.dumps(json.loads(GOOD) | {"more": 1}).encode())
