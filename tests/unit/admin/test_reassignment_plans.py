"""Plans of moves: the files of Kafka's tool, and what is proposed."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from logstore.common.errors import ConfigError
from replication.admin.reassignment_plans import (
    check_racks,
    plan_json,
    propose,
    read_plan,
    read_topics,
    throttled_replicas,
    without,
)
from tests.support.cases import for_each


def tp(number: int, topic: str = "orders") -> TopicPartition:
    return TopicPartition(topic, number)


def entry(**fields: Any) -> dict[str, Any]:
    return {"topic": "orders", "partition": 0, "replicas": [1, 2], **fields}


def test_a_plan_comes_back_as_it_was_written() -> None:
    replicas = {tp(1): (3, 1), tp(0): (1, 2), tp(0, "a"): (2,)}
    written = plan_json(replicas)
    assert [(each["topic"], each["partition"]) for each in written["partitions"]] == [
        ("a", 0),
        ("orders", 0),
        ("orders", 1),
    ]
    plan = read_plan(json.dumps(written))
    assert (plan.replicas, plan.directories) == (replicas, {})


def test_a_directory_is_named_for_one_replica() -> None:
    plan = read_plan(json.dumps({"partitions": [entry(log_dirs=["any", "/b"])]}))
    assert plan.directories == {(tp(0), 2): "/b"}


@for_each(
    "given, reason",
    [
        ("", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "the JSON is no object"),
        ({"version": 2, "partitions": [entry()]}, "version 2"),
        ({"version": True, "partitions": [entry()]}, "version True"),
        ({}, "'partitions' is missing"),
        ({"partitions": []}, "names no partition"),
        ({"partitions": [7]}, "'topic' is missing"),
        ({"partitions": [entry(), entry()]}, "names orders-0 twice"),
        ({"partitions": [entry(replicas=[])]}, "no replicas"),
        ({"partitions": [entry(replicas=[1, 1])]}, "a broker twice"),
        ({"partitions": [entry(replicas=[1, "2"])]}, "numbers of 31 bits"),
        ({"partitions": [entry(replicas=[1, True])]}, "numbers of 31 bits"),
        ({"partitions": [entry(partition=-1)]}, "numbers of 31 bits"),
        ({"partitions": [entry(partition=2**31)]}, "numbers of 31 bits"),
        ({"partitions": [entry(log_dirs=["any"])]}, "log_dirs"),
        ({"partitions": [entry(log_dirs=["any", 3])]}, "log_dirs"),
    ],
)
def test_a_bad_plan_is_refused(given: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_plan(given if isinstance(given, str) else json.dumps(given))


@for_each(
    "given, reason",
    [
        ({"topics": [{"topic": "a"}, {"topic": "a"}]}, "topic 'a' twice"),
        ({"topics": []}, "names no topic"),
        ({"version": 3, "topics": [{"topic": "a"}]}, "version 3"),
        ({"topics": [{"name": "a"}]}, "'topic' is missing"),
    ],
)
def test_bad_topics_are_refused(given: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_topics(json.dumps(given))


@for_each(
    "racks, count, factor",
    [
        ({1: None, 2: None, 3: None}, 3, 2),
        ({1: "a", 2: "a", 3: "b", 4: "b"}, 50, 2),
        ({1: "a", 2: "a", 3: "b", 4: "c", 5: "c"}, 60, 3),
        ({1: "a", 2: "a", 3: "a", 4: "a", 5: "b", 6: "b", 7: "b", 8: "b"}, 64, 4),
        ({9: None}, 50, 1),
    ],
)
def test_a_proposal_spreads_leaders_and_racks(
    racks: dict[int, str | None], count: int, factor: int
) -> None:
    present = {tp(n): tuple(range(100, 100 + factor)) for n in range(count)}
    proposed = propose(present, racks)
    leads = Counter(replicas[0] for replicas in proposed.values())
    assert max(leads.values()) - min(leads.values()) <= 1
    assert len(leads) == min(count, len(racks))
    for replicas in proposed.values():
        assert len(set(replicas)) == factor
        if None not in racks.values():
            of = len({racks[each] for each in replicas})
            assert of == min(factor, len(set(racks.values())))
    held = Counter(each for replicas in proposed.values() for each in replicas)
    if len(set(racks.values())) in (1, len(racks)):
        assert max(held.values()) - min(held.values()) <= factor


def test_a_proposal_needs_brokers() -> None:
    with pytest.raises(ConfigError, match="2 replicas for 1 brokers"):
        propose({tp(0): (1, 2)}, {1: None})
    with pytest.raises(ConfigError, match="not all brokers have a rack"):
        check_racks({1: None, 2: "a"})


def test_a_broker_is_emptied_and_its_leaderships_are_spread() -> None:
    """Of four brokers in two racks: no partition has both replicas in one rack, what the broker did
    not have stays as it is."""
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: "b", 4: "b"}
    present = propose({tp(n): (1, 2) for n in range(40)}, racks)
    moved = without(present, racks, [3])
    assert moved.keys() == {each for each, replicas in present.items() if 3 in replicas}
    after = {**present, **moved}
    assert all(3 not in replicas for replicas in after.values())
    assert all({racks[each] for each in replicas} == {"a", "b"} for replicas in after.values())
    assert all(len(set(present[each]) - set(replicas)) == 1 for each, replicas in moved.items())
    leads = Counter(replicas[0] for replicas in after.values())
    assert max(leads.values()) <= 14


def test_a_broker_that_is_gone_can_be_excluded() -> None:
    assert without({tp(0): (9, 1)}, {1: None, 2: None}, [9]) == {tp(0): (1, 2)}


def test_a_broker_that_is_needed_stays() -> None:
    with pytest.raises(ConfigError, match=r"orders-0 has 3 replicas.*only 2 brokers"):
        without({tp(0): (1, 2, 3)}, {1: None, 2: None, 3: None}, [3])


def test_those_that_send_and_those_that_receive_are_throttled() -> None:
    moves = [(tp(0), [1, 2], [2, 3]), (tp(1), [1], [4])]
    assert throttled_replicas(moves) == {"orders": ("0:1,0:2,1:1", "0:3,1:4")}
