"""Produce, Fetch, ListOffsets, DeleteRecords and OffsetForLeaderEpoch over a few partitions."""

from __future__ import annotations

import random
from typing import Any

from replication.protocol import ApiKey
from tests.differential.comparison import Sequence
from tests.differential.steps import Step, Tree, creation, new_topic

STEPS = 60
SIZES = (0, 1, 60, 100, 200, 300, 1000, 1 << 20, 1 << 20, 1 << 20)
WHOLE = (1 << 20,)  # in a session, whose order is not Kafka's: nothing may depend on the first one
T0 = 1_600_000_000_000


class Course:
    """Draws the next request from what was answered before."""

    def __init__(self, seed: int, name: str) -> None:
        self.has_deleted = False
        self.is_new = self.has_ids = False
        self.rng = random.Random(seed)
        self.name = name
        self.topics = [f"{name}-a", f"{name}-b"]
        self.ids: dict[str, Tree] = {}
        self.producers: list[dict[str, Any]] = []
        self.session: Tree = 0
        self.session_epoch = 0
        self.sent: list[Tree] = []
        self.number = 0

    def tp(self) -> tuple[str, int]:
        if self.rng.random() < 0.04:
            return f"{self.name}-none", 0
        return self.rng.choice(self.topics), self.rng.choice(
            (0, 0, 0, 0, 1, 1, 1, 7, -1)[:8] if self.rng.random() < 0.9 else (7, -1)
        )

    def topic_field(
        self, version: int, first: int, topic: str, key: str = "name"
    ) -> dict[str, Tree]:
        if version < first:
            return {key: topic}
        if key == "name" and self.rng.random() < 0.03:
            return {"topic_id": "00000000-0000-0000-0000-000000000000"}
        return {"topic_id": self.ids.get(topic, "12345678-0000-0000-0000-000000000001")}


def create(course: Course, configs: list[dict[str, Tree]] | None = None) -> Step:
    topics = []
    for topic in course.topics:
        rng = course.rng
        drawn = list(configs or [])
        if rng.random() < 0.2:
            drawn.append({"name": "message.timestamp.type", "value": "LogAppendTime"})
        if rng.random() < 0.2:
            drawn.append({"name": "cleanup.policy", "value": "compact"})
        if rng.random() < 0.2:
            drawn.append({"name": "max.message.bytes", "value": "200"})
        if rng.random() < 0.15:
            drawn.append(
                {"name": "compression.type", "value": rng.choice(("gzip", "lz4", "uncompressed"))}
            )
        if rng.random() < 0.3:
            drawn.append({"name": "segment.bytes", "value": "1048576"})
        if rng.random() < 0.1:
            drawn.append({"name": "message.timestamp.before.max.ms", "value": "1000"})
        topics.append({**new_topic(topic), "configs": drawn})
    return creation(topics)


def batch(course: Course, transactional: bool = False) -> dict[str, Tree]:
    rng = course.rng
    course.number += 1
    count = rng.choice((1, 1, 2, 3, 5))
    found: dict[str, Tree] = {
        "values": [
            f"{course.number}.{at}" + "x" * rng.choice((0, 0, 20, 100)) for at in range(count)
        ],
        "time": T0 + rng.choice((0, course.number * 10, course.number * 10, 5, 100000)),
    }
    if rng.random() < 0.1:
        found["time_step"] = rng.choice((0, -3, 100))
    if rng.random() < 0.15:
        found["record_key"] = None
    if rng.random() < 0.2:
        found["compression"] = rng.choice(("GZIP", "SNAPPY", "LZ4", "ZSTD"))
    if rng.random() < 0.03:
        found["flip"] = rng.choice((70, 17, 24, 16))
    if rng.random() < 0.03:
        found["cut"] = rng.choice((1, 10))
    if rng.random() < 0.03:
        found["base_offset"] = rng.choice((5, 1000))
    if rng.random() < 0.03:
        found["control"] = True
    if rng.random() < 0.02:
        found["leader_epoch"] = rng.choice((-1, 7))
    if rng.random() < 0.05:
        at, data = rng.choice(
            (
                ("57", "00000000"),
                ("57", "00000009"),
                ("23", "00000009"),
                ("23", "ffffffff"),
                ("35", "0000017000000000"),
                ("21", "0040"),
                ("21", "0008"),
                ("21", "0008"),
                ("16", "01"),
                ("16", "03"),
                ("51", "0000"),
                ("53", "00000000"),
                ("43", "0000000000000001"),
            )
        )
        found["patch"] = {at: data}
    return found


def produced(course: Course) -> Step:
    rng = course.rng
    version = rng.randint(3, 13)
    parts: list[tuple[str, int, Tree]] = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        topic, partition = course.tp()
        made = batch(course)
        key = (topic, partition)
        if course.producers and rng.random() < 0.7:
            producer = rng.choice(course.producers)
            sequences = producer.setdefault("next", {})
            sequence = sequences.get(key, 0)
            epoch = producer["epoch"]
            roll = rng.random()
            if roll < 0.08:
                sequence = (sequence + rng.choice((1, 5))) % 2**31
            elif roll < 0.12:
                sequence = 0
            elif roll < 0.16:
                epoch = max(epoch + rng.choice((-1, 1, 1)), 0)
                if rng.random() < 0.6:
                    sequence = 0
                if epoch > producer["epoch"]:
                    producer["epoch"] = epoch
                    sequences.clear()
            elif roll < 0.19:
                sequence = 2**31 - 2
            made |= {
                "producer_id": producer["id"],
                "producer_epoch": epoch,
                "base_sequence": sequence,
            }
            sequences[key] = (sequence + len(made["values"])) % 2**31
        records: Tree = [made]
        earlier = [each for each in course.sent if "producer_id" in each[2]]
        if earlier and rng.random() < 0.25:
            topic, partition, again = rng.choice(earlier[-8:])
            records = [again]
        elif rng.random() < 0.03 and not {"cut", "flip"} & set(made):
            records = [made, {"values": ["second"], "time": T0}]
        elif rng.random() < 0.02:
            records = rng.choice(({"hex": ""}, {"hex": "00" * 20}, {"hex": "00" * 70}))
        else:
            course.sent.append((topic, partition, made))
        parts.append((topic, partition, records))
    topics = []
    for topic in dict.fromkeys(each[0] for each in parts):
        found = {}
        for name, partition, records in parts:
            if name == topic:
                found[partition] = records
        data = [{"index": p, "records": r} for p, r in found.items()]
        topics.append({**course.topic_field(version, 13, topic), "partition_data": data})
    request: dict[str, Tree] = {
        "acks": rng.choice((-1, -1, -1, 1, 1)) if rng.random() < 0.97 else rng.choice((2, -2)),
        "timeout_ms": 5000,
        "topic_data": topics,
    }
    if rng.random() < 0.02:
        request["transactional_id"] = rng.choice(("", "nobody"))
    return Step("p", ApiKey.PRODUCE, version, request)


def _offset(course: Course) -> int:
    return course.rng.choice((0, 0, 1, 2, 3, 5, 8, 13, 20, 40, 1000, -1))


def _topics(course: Course, version: int, sizes: tuple[int, ...] = SIZES) -> list[Tree]:
    rng = course.rng
    topics: list[Tree] = []
    for topic in rng.sample(course.topics, rng.choice((1, 2))) + (
        [f"{course.name}-none"] if rng.random() < 0.05 else []
    ):
        parts = []
        numbers = rng.sample((0, 1), rng.choice((1, 2, 2)))
        if rng.random() < 0.08:
            numbers.append(7)
        for partition in numbers:
            part: dict[str, Tree] = {
                "partition": partition,
                "fetch_offset": _offset(course),
                "partition_max_bytes": rng.choice(sizes),
            }
            if version >= 9 and rng.random() < 0.15:
                part["current_leader_epoch"] = rng.choice((0, 1, 5, -1))
            if version >= 12 and rng.random() < 0.15:
                part["last_fetched_epoch"] = rng.choice((0, 0, 1, 5))
            parts.append(part)
        topics.append({**course.topic_field(version, 13, topic, "topic"), "partitions": parts})
    return topics


def fetched(course: Course) -> Step:
    rng = course.rng
    version = rng.randint(4, 18)
    topics = _topics(course, version)
    in_session = course.session if version >= 7 and rng.random() < 0.35 else 0
    if in_session:  # answers of some sessions fit the versions of their first request alone
        version = rng.choice(
            [
                each
                for each in range(7, 19)
                if (each >= 12) == course.is_new and (each >= 13) == course.has_ids
            ]
        )
        topics = []
    request: dict[str, Tree] = {
        "max_wait_ms": rng.choice((0, 0, 0, 0, 30)),
        "min_bytes": rng.choice((0, 1, 1, 1, 1000)),
        "max_bytes": rng.choice((0, 1, 100, 250, 500, 1 << 20, 1 << 20, 1 << 20, 1 << 20)),
        "isolation_level": rng.choice((0, 1)),
        "topics": topics,
    }
    if not in_session and rng.random() < 0.02:
        request["isolation_level"] = 7
    elif version >= 7:
        roll = rng.random()
        if in_session:  # where bytes are short, another partition may be first
            request |= {
                "max_bytes": 1 << 20,
                "session_id": in_session,
                "session_epoch": course.session_epoch,
            }
            if roll < 0.2:
                forgotten = course.topic_field(version, 13, rng.choice(course.topics), "topic")
                request["forgotten_topics_data"] = [
                    {**forgotten, "partitions": [rng.choice((0, 1))]}
                ]
            elif roll < 0.28:
                request["session_epoch"] = rng.choice((-1, 5))
            elif roll < 0.5:
                request["topics"] = _topics(course, version, WHOLE)
        elif roll < 0.2:  # with partitions: a session of none is not opened here
            request |= {"session_id": 0, "session_epoch": 0}
            request["topics"] = _topics(course, version, WHOLE)
            course.is_new, course.has_ids = version >= 12, version >= 13
        elif roll < 0.25:
            request |= {"session_id": rng.choice((1, 77)), "session_epoch": rng.choice((-1, 1))}
    return Step("f", ApiKey.FETCH, version, request)


def took_fetch(course: Course, step: Step, answer: Tree) -> None:
    if not isinstance(answer, dict) or answer.get("error_code"):
        return
    if "session_id" in answer:
        if step.request.get("session_epoch") == 0:
            course.session, course.session_epoch = answer["session_id"], 1
        elif step.request.get("session_id") == course.session:
            course.session_epoch += 1
    elif step.request.get("session_id") == course.session:
        course.session = 0


def listed(course: Course) -> Step:
    rng = course.rng
    version = rng.randint(1, 11)
    topics = []
    for topic in rng.sample([*course.topics, f"{course.name}-none"], rng.choice((1, 2))):
        parts = []
        for partition in rng.sample((0, 1, 7), rng.choice((1, 2))):
            part: dict[str, Tree] = {
                "partition_index": partition,
                "timestamp": rng.choice(
                    (
                        -1,
                        -2,
                        -2 if course.has_deleted else -3,
                        -4,
                        -5,
                        -6,
                        -7,
                        0,
                        T0,
                        T0 + 5,
                        T0 + 50,
                        T0 + 110,
                        T0 + 300,
                        T0 + 100000,
                        T0 + 10**9,
                    )
                ),
            }
            if version >= 4 and rng.random() < 0.2:
                part["current_leader_epoch"] = rng.choice((0, 1, 5, -1))
            parts.append(part)
        topics.append({"name": topic, "partitions": parts})
    request: dict[str, Tree] = {"replica_id": rng.choice((-1, -1, -1, -1, -2)), "topics": topics}
    if version >= 2:
        request["isolation_level"] = rng.choice((0, 1)) if rng.random() < 0.97 else 7
    if version >= 10:
        request["timeout_ms"] = 1000
    return Step("f", ApiKey.LIST_OFFSETS, version, request)


def deleted(course: Course) -> Step:
    rng = course.rng
    course.has_deleted = True  # Kafka may then find its largest timestamp below the log start
    topics = []
    for topic in rng.sample([*course.topics, f"{course.name}-none"], rng.choice((1, 2))):
        parts = [
            {"partition_index": each, "offset": rng.choice((-1, 0, 1, 2, 3, 5, 100, -2))}
            for each in rng.sample((0, 1, 7), rng.choice((1, 2)))
        ]
        topics.append({"name": topic, "partitions": parts})
    return Step(
        "c", ApiKey.DELETE_RECORDS, rng.randint(0, 2), {"topics": topics, "timeout_ms": 5000}
    )


def epochs(course: Course) -> Step:
    rng = course.rng
    version = rng.randint(2, 4)
    topics = []
    for topic in rng.sample([*course.topics, f"{course.name}-none"], rng.choice((1, 2))):
        parts = [
            {
                "partition": each,
                "current_leader_epoch": rng.choice((-1, -1, 0, 1)),
                "leader_epoch": rng.choice((0, 0, 1, 5, -1, -2)),
            }
            for each in rng.sample((0, 1, 7), rng.choice((1, 2)))
        ]
        topics.append({"topic": topic, "partitions": parts})
    request: dict[str, Tree] = {"topics": topics}
    if version >= 3:
        request["replica_id"] = rng.choice((-1, -2))
    return Step("f", ApiKey.OFFSET_FOR_LEADER_EPOCH, version, request)


def described(course: Course) -> Step:
    rng = course.rng
    topics = [
        {"name": topic, "partition_indexes": rng.sample((0, 1, 7), rng.choice((1, 2)))}
        for topic in rng.sample([*course.topics, f"{course.name}-none"], rng.choice((1, 2)))
    ]
    return Step("c", ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": topics})


def sequence(seed: int, name: str) -> Sequence:
    course = Course(seed, name)
    rng = course.rng
    answers = yield create(course)
    for topic in answers[0]["topics"]:
        course.ids[topic["name"]] = topic.get("topic_id", "00000000-0000-0000-0000-000000000000")
    number = 0
    for _ in range(rng.choice((1, 2))):
        number += 1
        version = rng.randint(0, 5)
        found = (
            yield Step(
                "p",
                ApiKey.INIT_PRODUCER_ID,
                version,
                {"transactional_id": None, "transaction_timeout_ms": 1000},
            )
        )[number]
        course.producers.append(
            {"id": found["producer_id"], "epoch": found.get("producer_epoch", 0)}
        )
    while number < STEPS:
        number += 1
        kind = rng.choices(
            (produced, fetched, listed, deleted, epochs, described), (12, 10, 4, 1, 1, 1)
        )[0]
        step = kind(course)
        answers = yield step
        if step.key is ApiKey.FETCH:
            took_fetch(course, step, answers.get(number))
