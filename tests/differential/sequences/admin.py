"""Topics, their partitions, records and configs, and what describes them; many requests are wrong.

The client of a sequence has its name: where all topics or groups are asked for, only those whose
names begin with it are compared.
"""

from __future__ import annotations

import random

from replication.protocol import ApiKey
from tests.differential.comparison import Sequence
from tests.differential.steps import Step, Tree, dump, new_topic

STEPS = 40
NEAR_NAMES = ("", ".", "..", "a b", "a/b", "ü", "x" * 249, "x" * 250, "__consumer_offsets")
CONFIGS = (
    ("retention.ms", ("1000000", "-1", "-2", "x", "", " 7000000 ", "9223372036854775808")),
    ("cleanup.policy", ("compact", "delete", "compact,delete", "delete,delete", "other", "")),
    ("segment.bytes", ("1048576", "1024", "13", "0", "-1", "1.5")),
    ("max.message.bytes", ("100000", "0", "-1", "2147483648")),
    ("compression.type", ("zstd", "producer", "none", "ZSTD")),
    ("compression.gzip.level", ("1", "-1", "0", "10")),
    ("min.cleanable.dirty.ratio", ("0.5", "0", "1", "1.1", "-0.1", "x")),
    ("message.timestamp.type", ("CreateTime", "LogAppendTime", "createtime")),
    ("unclean.leader.election.enable", ("true", "FALSE", "yes", "")),
    ("preallocate", ("false", "1")),
    ("min.insync.replicas", ("1", "0", "2")),
    ("leader.replication.throttled.replicas", ("", "*", "0:1", "0:1,1:1", "x", "0")),
    ("flush.messages", ("10", "0")),
    ("delete.retention.ms", ("5", "-1")),
    ("max.compaction.lag.ms", ("1", "0", "9223372036854775807")),
    ("min.compaction.lag.ms", ("0", "2", "-1")),
    ("follower.replication.throttled.replicas", ("", "0:1")),
    ("message.format.version", ("3.0-IV1",)),
    ("no.such.config", ("1",)),
    ("", ("1",)),
)
UNKNOWN = ("message.format.version", "no.such.config", "")
BROKER_KEYS = (
    "log.retention.ms",
    "num.io.threads",
    "broker.id",
    "no.such.config",
    "log.cleaner.threads",
)
UNKNOWN_ID = "11111111-2222-3333-4444-555555555555"


class Course:
    """A few topics, some of them there."""

    def __init__(self, seed: int, name: str) -> None:
        self.rng = random.Random(seed)
        self.name = name
        self.ids: list[str] = []
        self.first = True

    def topic(self, near: float = 0.08) -> str:
        if self.rng.random() < near:
            return self.rng.choice(NEAR_NAMES)
        return f"{self.name}-{self.rng.choice('abc')}"

    def topics(self, near: float = 0.08) -> list[str]:
        """Some names; the same one twice now and then."""
        return [self.topic(near) for _ in range(self.rng.choice((0, 1, 1, 1, 1, 2, 2, 3)))]

    def step(self, key: ApiKey, version: int, request: dict[str, Tree]) -> Step:
        return Step(self.name, key, version, request)

    def pairs(self) -> list[tuple[str, Tree]]:
        """Names and values of configs."""
        found: list[tuple[str, Tree]] = []
        for _ in range(self.rng.choice((0, 1, 1, 1, 2, 3))):
            key, values = self.rng.choice(CONFIGS)
            value = self.rng.choice(values[:2] if self.rng.random() < 0.5 else values)
            found.append((key, value if self.rng.random() < 0.96 else None))
        return found

    def replicas(self) -> list[Tree]:
        return self.rng.choice((["@node:0"], ["@node:0"], ["@node:0", "@node:0"], [], [77], [-1]))


def created(course: Course) -> Step:
    rng = course.rng
    topics: list[Tree] = []
    for name in course.topics():
        one: dict[str, Tree] = {
            "name": name,
            "num_partitions": rng.choice((1, 2, 3, -1, 0, -2) if rng.random() < 0.4 else (1, 2)),
            "replication_factor": rng.choice((1, -1, 0, 2, -2) if rng.random() < 0.3 else (1, -1)),
        }
        if rng.random() < 0.25:
            if rng.random() < 0.8:
                one |= {"num_partitions": -1, "replication_factor": -1}
            indexes = rng.choice(([0], [0, 1], [1], [0, 0], [0, 2], [-1]))
            one["assignments"] = [
                {"partition_index": each, "broker_ids": course.replicas()} for each in indexes
            ]
        if rng.random() < 0.4:
            one["configs"] = [{"name": key, "value": value} for key, value in course.pairs()]
        topics.append(one)
    request = {"topics": topics, "timeout_ms": 10_000, "validate_only": rng.random() < 0.25}
    return course.step(ApiKey.CREATE_TOPICS, rng.randint(2, 7), request)


def enlarged(course: Course) -> Step:
    rng = course.rng
    topics: list[Tree] = []
    for name in course.topics():
        one: dict[str, Tree] = {"name": name, "count": rng.choice((1, 2, 3, 4, 0, -1))}
        if rng.random() < 0.3:
            number = rng.choice((0, 1, 1, 2))
            one["assignments"] = [{"broker_ids": course.replicas()} for _ in range(number)]
        topics.append(one)
    request = {"topics": topics, "timeout_ms": 10_000, "validate_only": rng.random() < 0.3}
    return course.step(ApiKey.CREATE_PARTITIONS, rng.randint(0, 3), request)


def deleted(course: Course) -> Step:
    rng = course.rng
    version = rng.randint(1, 6)
    names = [each for each in course.topics() if each != "__consumer_offsets"]
    request: dict[str, Tree] = {"timeout_ms": 10_000}
    if version < 6:
        request["topic_names"] = names
    else:
        topics: list[Tree] = []
        for name in names:
            roll = rng.random()
            if roll < 0.5:
                topics.append({"name": name})
            elif roll < 0.9:
                found = rng.choice([*course.ids, UNKNOWN_ID])
                topics.append({"name": None, "topic_id": found})
            else:
                topics.append({"name": rng.choice((None, name)), "topic_id": UNKNOWN_ID})
        request["topics"] = topics
    return course.step(ApiKey.DELETE_TOPICS, version, request)


def produced(course: Course) -> Step:
    rng = course.rng
    values = ["v"] * rng.choice((1, 5))
    parts = [{"index": rng.choice((0, 0, 1)), "records": [{"values": values}]}]
    request = {
        "acks": -1,
        "timeout_ms": 10_000,
        "topic_data": [{"name": course.topic(0.02), "partition_data": parts}],
    }
    return course.step(ApiKey.PRODUCE, rng.randint(3, 12), request)


def cut(course: Course) -> Step:
    rng = course.rng
    topics = [
        {
            "name": name,
            "partitions": [
                {"partition_index": each, "offset": rng.choice((0, 1, 3, -1, -2, 99))}
                for each in rng.choice(([0], [0, 1], [], [7], [-1], [0, 0]))
            ],
        }
        for name in course.topics()
    ]
    return course.step(
        ApiKey.DELETE_RECORDS, rng.randint(0, 2), {"topics": topics, "timeout_ms": 5_000}
    )


def resources(course: Course) -> list[dict[str, Tree]]:
    rng = course.rng
    found: list[dict[str, Tree]] = [
        {"resource_type": 2, "resource_name": each} for each in course.topics(0.04)
    ]
    roll = rng.random()
    if roll < 0.1:
        name = rng.choice(("@broker:0", "", "77", "x"))
        found.append({"resource_type": 4, "resource_name": name})
    elif roll < 0.15:
        found.append({"resource_type": rng.choice((0, 1, 3, 9, 127)), "resource_name": "x"})
    return found


def altered(course: Course) -> Step:
    rng = course.rng
    is_incremental = rng.random() < 0.6
    asked = []
    validate_only = rng.random() < 0.25
    wanted = resources(course)
    if not is_incremental:  # where Kafka gives no answer to a resource that stands twice
        wanted = list({dump(each): each for each in wanted}.values())
    for each in wanted:
        configs: list[dict[str, Tree]] = []
        if each["resource_type"] == 4:
            validate_only = True  # a broker's configs would outlive the sequence
            pairs: list[tuple[str, Tree]] = [(rng.choice(BROKER_KEYS), rng.choice(("1", "8", "x")))]
        else:
            pairs = course.pairs()
        for key, value in pairs:
            one: dict[str, Tree] = {"name": key, "value": value}
            if is_incremental:
                # Kafka breaks where an unknown list is added to, and at operations that are none.
                known = key not in UNKNOWN
                one["config_operation"] = rng.choice((0, 0, 0, 1, 2, 3)[: 6 if known else 4])
            configs.append(one)
        asked.append({**each, "configs": configs})
    request = {"resources": asked, "validate_only": validate_only}
    if is_incremental:
        return course.step(ApiKey.INCREMENTAL_ALTER_CONFIGS, rng.randint(0, 1), request)
    return course.step(ApiKey.ALTER_CONFIGS, rng.randint(0, 2), request)


def described(course: Course) -> Step:
    rng = course.rng
    version = rng.randint(1, 4)
    keys = [key for key, _ in CONFIGS if key]
    asked = []
    # A resource that stands twice need not be answered twice, so that answers are bounded.
    once = {(each["resource_type"], each["resource_name"]): each for each in resources(course)}
    for each in once.values():
        wanted: Tree = rng.choice((None, None, [], rng.sample(keys, 3), ["retention.ms"] * 2))
        if each["resource_type"] == 4:
            wanted = list(rng.sample(BROKER_KEYS, 2))
        asked.append({**each, "configuration_keys": wanted})
    request = {"resources": asked, "include_synonyms": rng.random() < 0.4}
    if version >= 3:
        request["include_documentation"] = rng.random() < 0.1
    return course.step(ApiKey.DESCRIBE_CONFIGS, version, request)


def sized(course: Course) -> Step:
    rng = course.rng
    topics = [
        {"topic": each, "partitions": rng.choice(([0], [0, 1], [], [7], [0, 0]))}
        for each in course.topics()
    ]
    request = {"topics": topics if rng.random() < 0.8 else None}
    return course.step(ApiKey.DESCRIBE_LOG_DIRS, rng.randint(1, 5), request)


def elected(course: Course) -> Step:
    rng = course.rng
    version = rng.randint(0, 2)
    topics = [
        {"topic": each, "partitions": rng.choice(([0], [0, 1], [], [7], [-1]))}
        for each in course.topics()
    ]
    request: dict[str, Tree] = {
        "topic_partitions": topics if rng.random() < 0.9 else None,
        "timeout_ms": 5_000,
    }
    if version >= 1:
        request["election_type"] = rng.choice((0, 0, 1, 2))
    return course.step(ApiKey.ELECT_LEADERS, version, request)


def seen(course: Course) -> Step:
    """All topics are asked for only by versions that do not give their ids: the numbers of their
    symbols depend on how many others there are."""
    rng = course.rng
    version = rng.randint(0, 13)
    topics: Tree = [{"name": each} for each in course.topics()]
    if version == 0 and not topics:
        topics = [{"name": course.topic(0)}]
    if version >= 10 and rng.random() < 0.4:
        topics = [
            {"name": None, "topic_id": rng.choice([*course.ids, UNKNOWN_ID])}
            for _ in range(rng.choice((1, 2)))
        ]
    if 1 <= version < 10 and rng.random() < 0.2:
        topics = None
    request: dict[str, Tree] = {"topics": topics}
    if version >= 4:
        request["allow_auto_topic_creation"] = rng.random() < 0.5
    if version >= 8:
        request["include_topic_authorized_operations"] = rng.random() < 0.3
    if 8 <= version <= 10:
        request["include_cluster_authorized_operations"] = rng.random() < 0.3
    return course.step(ApiKey.METADATA, version, request)


def paged(course: Course) -> Step:
    rng = course.rng
    # Kafka breaks at a topic without a name.
    topics = [{"name": each} for each in (course.topics() or [course.topic()]) if each]
    request: dict[str, Tree] = {
        "topics": topics,
        "response_partition_limit": rng.choice((2000, 2000, 1, 2, 3, 0, -1, 2**31 - 1)),
    }
    if rng.random() < 0.3:
        request["cursor"] = {
            "topic_name": course.topic(),
            "partition_index": rng.choice((0, 1, 7, -1)),
        }
    return course.step(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request)


def clustered(course: Course) -> Step:
    rng = course.rng
    version = rng.randint(0, 2)
    request: dict[str, Tree] = {"include_cluster_authorized_operations": rng.random() < 0.4}
    if version >= 1:
        request["endpoint_type"] = rng.choice((1, 1, 1, 0, 2, 3))
    if version >= 2:
        request["include_fenced_brokers"] = rng.random() < 0.5
    return course.step(ApiKey.DESCRIBE_CLUSTER, version, request)


def grouped(course: Course) -> Step:
    rng = course.rng
    group = f"{course.name}-g"
    roll = rng.random()
    topics: list[Tree]
    if roll < 0.3:
        parts = [{"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}]
        # A group that has lost its last offset is gone at once here, and minutes later in Kafka. So
        # each has one of a topic that stays.
        names = course.topic(0), f"{course.name}-kept"
        topics = [{"name": each, "partitions": parts} for each in names]
        request = {"group_id": group, "generation_id_or_member_epoch": -1, "topics": topics}
        return course.step(ApiKey.OFFSET_COMMIT, rng.randint(2, 8), request)
    if roll < 0.6:
        version = rng.randint(0, 5)
        request = {}
        if version >= 4:
            states = ("Empty", "Stable", "empty", "Dead", "x", "")
            request["states_filter"] = rng.sample(states, rng.choice((0, 1, 2)))
        if version >= 5:
            types = ("classic", "Classic", "consumer", "x", "")
            request["types_filter"] = rng.sample(types, rng.choice((0, 1, 2)))
        return course.step(ApiKey.LIST_GROUPS, version, request)
    if roll < 0.75:
        names = rng.choice(([group], [group, group], [], ["", group], [f"{group}-none"]))
        return course.step(ApiKey.DELETE_GROUPS, rng.randint(0, 2), {"groups_names": names})
    topics = [
        {
            "name": each,
            "partitions": [{"partition_index": at} for at in rng.choice(([0], [0, 7], []))],
        }
        for each in dict.fromkeys(course.topics())
    ]
    name = rng.choice((group, group, group, "", f"{group}-none"))
    return course.step(ApiKey.OFFSET_DELETE, 0, {"group_id": name, "topics": topics})


KINDS = {
    created: 10,
    enlarged: 6,
    deleted: 4,
    produced: 4,
    cut: 5,
    altered: 9,
    described: 7,
    sized: 3,
    elected: 3,
    seen: 8,
    paged: 4,
    clustered: 1,
    grouped: 6,
}


def sequence(seed: int, name: str) -> Sequence:
    course = Course(seed, name)
    counts = {"a": 1, "b": 2, "kept": 1}
    topics = [new_topic(f"{name}-{each}", number) for each, number in counts.items()]
    step = course.step(ApiKey.CREATE_TOPICS, 7, {"topics": topics, "timeout_ms": 10_000})
    for number in range(STEPS):
        answers = yield step
        answer = answers.get(number)
        if step.key is ApiKey.CREATE_TOPICS and step.version == 7 and isinstance(answer, dict):
            for each in answer.get("topics", ()):
                is_made = not each["error_code"] and not step.request.get("validate_only")
                if is_made and not each["name"].endswith("-kept"):
                    course.ids.append(each["topic_id"])
        (kind,) = course.rng.choices(list(KINDS), list(KINDS.values()))
        step = kind(course)
