"""Transactions of versions 1 and 2 with wrong epochs, ids and states, and what readers see."""

from __future__ import annotations

import random
from typing import Any

from replication.protocol import ApiKey
from tests.differential.comparison import Sequence
from tests.differential.steps import Step, Tree, creation, new_topic

STEPS = 60
T0 = 1_600_000_000_000


class Course:
    """Two transactional ids, each used by producers that may be fenced."""

    def __init__(self, seed: int, name: str) -> None:
        self.rng = random.Random(seed)
        self.name = name
        self.topic = f"{name}-t"
        self.group = f"{name}-g"
        self.topic_id: Tree = None
        self.producers: list[dict[str, Any]] = []
        self.number = 0
        # Kafka remembers of a producer id, over all its epochs, of which version its first append
        # was. Here each epoch has its own, so an id that changes its version is another case.
        self.has_version_2 = {letter: self.rng.random() < 0.5 for letter in "xy"}

    def id(self) -> str:
        return f"{self.name}-{self.rng.choice(('x', 'x', 'y'))}"

    def producer(self) -> dict[str, Any]:
        """Mostly the last one of an id."""
        known = self.producers
        if not known:
            return {"name": self.id(), "id": 424242, "epoch": 0, "next": {}}
        return known[-1] if self.rng.random() < 0.7 else self.rng.choice(known[-4:])

    def identity(self, one: dict[str, Any]) -> dict[str, Tree]:
        """The producer's id and epoch, as it says; wrong now and then."""
        found = {"producer_id": one["id"], "producer_epoch": one["epoch"]}
        roll = self.rng.random()
        if roll < 0.05:
            found["producer_epoch"] += self.rng.choice((1, -1, 5))
        elif roll < 0.07:
            found["producer_id"] = self.rng.choice((424242, -1))
        return found


def begun(course: Course) -> Step:
    rng = course.rng
    version = rng.randint(0, 5)
    request: dict[str, Tree] = {
        "transactional_id": course.id() if rng.random() < 0.95 else rng.choice(("", None)),
        "transaction_timeout_ms": 60_000 if rng.random() < 0.95 else rng.choice((0, -1, 2**31 - 1)),
    }
    if version >= 3 and course.producers and rng.random() < 0.35:
        one = course.producer()
        if rng.random() < 0.8:
            request["transactional_id"] = one["name"]
        request |= course.identity(one)
        if rng.random() < 0.1:
            request["producer_epoch"] = -1
    return Step("p", ApiKey.INIT_PRODUCER_ID, version, request)


def took_producer(course: Course, step: Step, answer: Tree) -> None:
    name = step.request["transactional_id"]
    if not answer or answer["error_code"] or not name:
        return
    found = {
        "name": name,
        "id": answer["producer_id"],
        "epoch": answer.get("producer_epoch", 0),
        "next": {},
        "v2": course.has_version_2.get(name[-1], False),
    }
    course.producers.append(found)


def added(course: Course) -> Step:
    one = course.producer()
    if one.get("v2"):  # whose first record adds its partition
        return produced(course)
    rng = course.rng
    partitions = rng.sample((0, 1), rng.choice((1, 1, 2)))
    if rng.random() < 0.05:
        partitions.append(7)
    topics = [{"name": course.topic, "partitions": partitions}]
    if rng.random() < 0.04:
        topics.append({"name": f"{course.name}-none", "partitions": [0]})
    identity = course.identity(one)
    request = {
        "v3_and_below_transactional_id": one["name"],
        "v3_and_below_producer_id": identity["producer_id"],
        "v3_and_below_producer_epoch": identity["producer_epoch"],
        "v3_and_below_topics": topics,
    }
    return Step("p", ApiKey.ADD_PARTITIONS_TO_TXN, rng.randint(0, 3), request)


def added_offsets(course: Course) -> Step:
    one = course.producer()
    if one.get("v2"):
        return committed_offsets(course)
    group = course.group if course.rng.random() < 0.95 else ""
    request = {"transactional_id": one["name"], "group_id": group, **course.identity(one)}
    return Step("p", ApiKey.ADD_OFFSETS_TO_TXN, course.rng.randint(0, 4), request)


def committed_offsets(course: Course) -> Step:
    one = course.producer()
    rng = course.rng
    version = rng.choice((5, 5, 5, 3)) if one.get("v2") else rng.randint(0, 4)
    course.number += 1
    topics = [
        {
            "name": course.topic if rng.random() < 0.95 else f"{course.name}-none",
            "partitions": [
                {
                    "partition_index": each,
                    "committed_offset": course.number,
                    "committed_metadata": rng.choice(("", "m", None)),
                }
                for each in rng.sample((0, 1, 7), rng.choice((1, 2)))
            ],
        }
    ]
    request: dict[str, Tree] = {
        "transactional_id": one["name"],
        "group_id": course.group,
        "topics": topics,
        **course.identity(one),
    }
    if version >= 3 and rng.random() < 0.08:
        request["generation_id"] = -1
        request["member_id"] = rng.choice(("", "nobody"))
    return Step("p", ApiKey.TXN_OFFSET_COMMIT, version, request)


def fetched_offsets(course: Course) -> Step:
    rng = course.rng
    version = rng.randint(1, 9)
    topics = rng.choice((None, [{"name": course.topic, "partition_indexes": [0, 1, 7]}]))
    if version < 2 and topics is None:
        topics = []
    if version < 8:
        request: dict[str, Tree] = {"group_id": course.group, "topics": topics}
    else:
        request = {"groups": [{"group_id": course.group, "topics": topics}]}
    if version >= 7:
        request["require_stable"] = rng.random() < 0.5
    return Step("f", ApiKey.OFFSET_FETCH, version, request)


def ended(course: Course) -> Step:
    one = course.producer()
    rng = course.rng
    version = rng.choice((5, 5, 5, 3)) if one.get("v2") else rng.randint(0, 4)
    if rng.random() < 0.05:
        version = rng.randint(0, 5)
    request = {
        "transactional_id": one["name"],
        "committed": rng.random() < 0.6,
        **course.identity(one),
    }
    if rng.random() < 0.03:
        request["transactional_id"] = rng.choice(("", f"{course.name}-unknown"))
    return Step("p", ApiKey.END_TXN, version, request)


def took_end(course: Course, step: Step, answer: Tree) -> None:
    """The producer goes on with what version 2 gave it, if it heard the answer."""
    if answer["error_code"] or answer.get("producer_id", -1) == -1 or course.rng.random() < 0.1:
        return
    ended = step.request["transactional_id"], step.request["producer_id"]
    for one in course.producers:
        if (one["name"], one["id"]) == ended and one["epoch"] == step.request["producer_epoch"]:
            one["id"], one["next"] = answer["producer_id"], {}
            one["epoch"] = answer.get("producer_epoch", 0)


def produced(course: Course) -> Step:
    rng = course.rng
    one = course.producer()
    version = rng.choice((12, 12, 13, 13, 11)) if one.get("v2") else rng.randint(3, 11)
    parts = []
    for partition in rng.sample((0, 1), rng.choice((1, 1, 2))):
        course.number += 1
        count = rng.choice((1, 2))
        identity = course.identity(one)
        identity["producer_epoch"] = min(identity["producer_epoch"], one["epoch"])
        if identity["producer_id"] == -1:  # no producer, and yet a transaction: refused here
            identity["producer_id"] = 424242
        sequence = one["next"].get(partition, 0)
        if rng.random() < 0.06:
            sequence += rng.choice((1, -1))
        made: dict[str, Tree] = {
            "values": [f"{course.number}.{at}" for at in range(count)],
            "time": T0 + course.number,
            "transactional": True,
            "base_sequence": sequence,
            **identity,
        }
        one["next"][partition] = sequence + count
        parts.append({"index": partition, "records": [made]})
    topic = {"name": course.topic} if version < 13 else {"topic_id": course.topic_id}
    request: dict[str, Tree] = {
        "transactional_id": one["name"],
        "acks": rng.choice((-1, -1, -1, 1)),
        "timeout_ms": 5000,
        "topic_data": [{**topic, "partition_data": parts}],
    }
    if rng.random() < 0.03:
        request["transactional_id"] = rng.choice((None, f"{course.name}-unknown", ""))
    return Step("p", ApiKey.PRODUCE, version, request)


def fetched(course: Course) -> Step:
    rng = course.rng
    version = rng.randint(4, 17)
    topic = {"topic": course.topic} if version < 13 else {"topic_id": course.topic_id}
    parts = [
        {
            "partition": each,
            "fetch_offset": rng.choice((0, 0, 1, 2, 5)),
            "partition_max_bytes": rng.choice((1, 200, 1 << 20)),
        }
        for each in (0, 1)
    ]
    request = {
        "max_wait_ms": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "isolation_level": rng.choice((0, 1, 1)),
        "topics": [{**topic, "partitions": parts}],
    }
    return Step("f", ApiKey.FETCH, version, request)


def listed(course: Course) -> Step:
    rng = course.rng
    parts = [
        {"partition_index": each, "timestamp": rng.choice((-1, -1, -2, -3, T0, T0 + 5))}
        for each in (0, 1)
    ]
    request = {
        "replica_id": -1,
        "isolation_level": rng.choice((0, 1)),
        "topics": [{"name": course.topic, "partitions": parts}],
    }
    return Step("f", ApiKey.LIST_OFFSETS, rng.randint(7, 9), request)


def looked(course: Course) -> Step:
    rng = course.rng
    roll = rng.random()
    if roll < 0.4:
        return Step(
            "c",
            ApiKey.DESCRIBE_PRODUCERS,
            0,
            {"topics": [{"name": course.topic, "partition_indexes": [0, 1]}]},
        )
    if roll < 0.8:
        ids = rng.sample([f"{course.name}-x", f"{course.name}-y", f"{course.name}-unknown", ""], 2)
        return Step("c", ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ids})
    ids = [one["id"] for one in course.producers[-2:]] or [424242]
    return Step(
        "c",
        ApiKey.LIST_TRANSACTIONS,
        rng.randint(0, 1),
        {
            "state_filters": rng.choice(([], ["Ongoing"], ["CompleteCommit", "Nonsense"])),
            "producer_id_filters": ids,
        },
    )


def sequence(seed: int, name: str) -> Sequence:
    course = Course(seed, name)
    rng = course.rng
    answers = yield creation([new_topic(course.topic)])
    course.topic_id = answers[0]["topics"][0]["topic_id"]
    kinds = (
        begun,
        added,
        added_offsets,
        committed_offsets,
        fetched_offsets,
        ended,
        produced,
        fetched,
        listed,
        looked,
    )
    weights = (5, 7, 3, 5, 4, 7, 12, 4, 2, 3)
    for number in range(1, STEPS):
        kind = rng.choices(kinds, weights)[0]
        if number == 1:
            kind = begun
        step = kind(course)
        answer = (yield step).get(number)
        if isinstance(answer, dict):
            if kind is begun:
                took_producer(course, step, answer)
            elif kind is ended:
                took_end(course, step, answer)
