"""What is answered at once, and what waits for data, for replicas or for the end of its time.

The tree of an answer says whether it waited. A request that waits has half a second.
"""

from __future__ import annotations

import random

from replication.protocol import ApiKey
from tests.differential.comparison import Sequence
from tests.differential.steps import Step, Tree, creation, new_topic

STEPS = 8
WAIT_MS = 600
UNKNOWN_ID = "12345678-0000-0000-0000-000000000001"


class Course:
    """Topic a has data, topic b none."""

    def __init__(self, seed: int, name: str) -> None:
        self.rng = random.Random(seed)
        self.name = name
        self.ids: dict[str, Tree] = {}

    def place(self, version: int, letter: str) -> dict[str, Tree]:
        name = f"{self.name}-{letter}"
        return {"topic": name} if version < 13 else {"topic_id": self.ids.get(name, UNKNOWN_ID)}


def fetched(course: Course) -> Step:
    """Partitions with data, at the end, out of range, of no topic, and such as are not there."""
    rng = course.rng
    version = rng.randint(4, 18)
    cases = (("a", 0, 0), ("b", 0, 0), ("b", 1, 0), ("b", 0, 5), ("none", 0, 0), ("b", 7, 0))
    picked = rng.sample(cases, rng.choice((0, 1, 2, 2, 3)))
    topics: dict[str, Tree] = {}
    for letter, partition, offset in picked:
        topic = topics.setdefault(letter, {**course.place(version, letter), "partitions": []})
        if partition in [each["partition"] for each in topic["partitions"]]:
            continue
        one = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        if version >= 9 and rng.random() < 0.15:
            one["current_leader_epoch"] = rng.choice((0, 5))
        if version >= 12 and rng.random() < 0.15:
            one["last_fetched_epoch"] = rng.choice((0, 1))
        topic["partitions"].append(one)
    request: dict[str, Tree] = {
        "max_wait_ms": rng.choice((WAIT_MS, WAIT_MS, 0)),
        "min_bytes": rng.choice((0, 1, 1, 1, 100_000)),
        "max_bytes": rng.choice((0, 1 << 20, 1 << 20)),
        "isolation_level": rng.choice((0, 1)),
        "topics": list(topics.values()),
    }
    if version >= 7 and topics and rng.random() < 0.2:  # a session of none is not opened here
        request |= {"session_id": rng.choice((0, 77)), "session_epoch": rng.choice((0, 1))}
    return Step("f", ApiKey.FETCH, version, request)


def asked(course: Course) -> Step:
    rng = course.rng
    version = rng.randint(4, 13)
    topics: Tree = [{"name": f"{course.name}-{rng.choice(('a', 'none', 'new'))}"}]
    if version >= 12 and rng.random() < 0.3:
        topics = [{"name": None, "topic_id": UNKNOWN_ID}]
    request = {"topics": topics, "allow_auto_topic_creation": rng.random() < 0.5}
    return Step("c", ApiKey.METADATA, version, request)


def produced(course: Course) -> Step:
    rng = course.rng
    letter, partition = rng.choice((("a", 0), ("none", 0), ("a", 7)))
    data = [{"index": partition, "records": [{"values": ["v"]}]}]
    request = {
        "acks": rng.choice((-1, 1)),
        "timeout_ms": rng.choice((0, WAIT_MS)),
        "topic_data": [{"name": f"{course.name}-{letter}", "partition_data": data}],
    }
    return Step("p", ApiKey.PRODUCE, rng.randint(3, 12), request)


def cut(course: Course) -> Step:
    rng = course.rng
    name = f"{course.name}-{rng.choice(('a', 'b', 'none'))}"
    parts = [{"partition_index": rng.choice((0, 7)), "offset": rng.choice((0, -1, 99))}]
    topics = [{"name": name, "partitions": parts}]
    request = {"topics": topics, "timeout_ms": rng.choice((0, WAIT_MS))}
    return Step("c", ApiKey.DELETE_RECORDS, rng.randint(0, 2), request)


def listed(course: Course) -> Step:
    rng = course.rng
    name = f"{course.name}-{rng.choice(('a', 'b', 'none'))}"
    parts = [{"partition_index": rng.choice((0, 7)), "timestamp": rng.choice((-1, -2, 0, 10**13))}]
    topics = [{"name": name, "partitions": parts}]
    return Step("f", ApiKey.LIST_OFFSETS, rng.randint(1, 9), {"replica_id": -1, "topics": topics})


def coordinated(course: Course) -> Step:
    """Of a group and of a transactional id that nobody has used."""
    rng = course.rng
    name = f"{course.name}-{rng.randrange(1000)}"
    if rng.random() < 0.5:
        groups = [{"group_id": name, "topics": None}]
        return Step("c", ApiKey.OFFSET_FETCH, rng.randint(8, 9), {"groups": groups})
    request = {"transactional_id": name, "transaction_timeout_ms": 60_000}
    return Step("c", ApiKey.INIT_PRODUCER_ID, rng.randint(0, 5), request)


def moved(course: Course) -> Step:
    request = {"timeout_ms": WAIT_MS, "topics": [{"name": f"{course.name}-none", "count": 3}]}
    return Step("c", ApiKey.CREATE_PARTITIONS, course.rng.randint(0, 3), request)


KINDS = {fetched: 14, asked: 3, produced: 2, cut: 2, listed: 1, coordinated: 2, moved: 1}


def sequence(seed: int, name: str) -> Sequence:
    course = Course(seed, name)
    answers = yield creation([new_topic(f"{name}-a"), new_topic(f"{name}-b")])
    for topic in answers[0]["topics"]:
        course.ids[topic["name"]] = topic["topic_id"]
    data = [{"index": 0, "records": [{"values": ["1", "2"]}]}]
    yield Step(
        "p",
        ApiKey.PRODUCE,
        9,
        {
            "acks": -1,
            "timeout_ms": 5000,
            "topic_data": [{"name": f"{name}-a", "partition_data": data}],
        },
    )
    for _ in range(STEPS):
        (kind,) = course.rng.choices(list(KINDS), list(KINDS.values()))
        yield kind(course)
