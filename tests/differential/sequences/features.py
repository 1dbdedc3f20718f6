"""What tools ask of a cluster: ACLs, quotas, credentials, features, moves, coordinators.

The client of a sequence has its name, as in ``admin``.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from replication.protocol import SERVED, ApiKey
from tests.differential.comparison import Sequence
from tests.differential.steps import Step, Tree, creation, new_topic

STEPS = 15
LEVELS = (
    (("transaction.version", 2),),
    (("transaction.version", 1),),
    (("transaction.version", 9),),
)
PATTERNS = (
    None,
    "",
    "{}-.*",
    "^{}-[xy]$",
    ".*",
    "(",
    "a**",
    "a{{2000}}",
    "[",
    r"\\1",
    "x|{}-y",
    "nobody",
)


class Course:
    def __init__(self, seed: int, name: str) -> None:
        self.rng = random.Random(seed)
        self.name = name

    def step(self, key: ApiKey, request: dict[str, Tree], first: int = 0) -> Step:
        """In one of the versions that are served, from ``first`` on."""
        served = SERVED[key]
        version = self.rng.randint(max(first, served.first), served.last)
        return Step(self.name, key, version, request)

    def some(self, *choices: Tree) -> list[Tree]:
        return [self.rng.choice(choices) for _ in range(self.rng.choice((0, 1, 1, 2, 3)))]


def acls(course: Course) -> Step:
    rng = course.rng
    bound = {"operation": rng.choice((1, 2, 3)), "permission_type": rng.choice((1, 2, 3))}
    wanted = {
        "resource_type_filter": rng.choice((1, 2, 3)),
        "resource_name_filter": rng.choice((None, "x")),
        "pattern_type_filter": rng.choice((1, 2, 3)),
        "principal_filter": rng.choice((None, "User:a")),
        "host_filter": None,
        **bound,
    }
    made = {
        "resource_type": 2,
        "resource_name": rng.choice(("x", course.name)),
        "resource_pattern_type": 3,
        "principal": "User:a",
        "host": "*",
        "operation": 2,
        "permission_type": 3,
    }
    key = rng.choice((ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS))
    if key is ApiKey.CREATE_ACLS:
        return course.step(key, {"creations": course.some(made)})
    if key is ApiKey.DELETE_ACLS:
        return course.step(key, {"filters": course.some(wanted)})
    return course.step(key, wanted)


def quotas(course: Course) -> Step:
    kinds = [{"entity_type": "user", "match_type": 0, "match": "nobody"}]
    kinds.append({"entity_type": "client-id", "match_type": 0, "match": course.name})
    kinds.append({"entity_type": "user", "match_type": 1, "match": None})
    picked = course.rng.choice(([], kinds[:1], kinds[1:2], kinds[:2], kinds[1:]))
    request = {"components": picked, "strict": course.rng.random() < 0.5}
    return course.step(ApiKey.DESCRIBE_CLIENT_QUOTAS, request)


def credentials(course: Course) -> Step:
    users = course.some({"name": "a"}, {"name": "b"}, {"name": ""})
    request = {"users": users if course.rng.random() < 0.8 else None}
    return course.step(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, request)


def levels(course: Course) -> Step:
    """Only such as change nothing: the other sequences meet the features of the start."""
    updates = course.some(*LEVELS, ("nope", 1), ("", 1))
    flat = [each[0] if isinstance(each[0], tuple) else each for each in updates]
    request: dict[str, Tree] = {
        "timeout_ms": 1000,
        "feature_updates": [{"feature": name, "max_version_level": level} for name, level in flat],
    }
    return course.step(ApiKey.UPDATE_FEATURES, request)


def resources(course: Course) -> Step:
    request = {"resource_types": course.some(2, 4, 8, 16, 32, 0, 99)}
    return course.step(ApiKey.LIST_CONFIG_RESOURCES, request, first=1)


def moves(course: Course) -> Step:
    rng = course.rng
    places = (f"{course.name}-a", f"{course.name}-a", f"{course.name}-none", "a b")
    targets = (["@node:0"], ["@node:0"], None, [], ["@node:0", "@node:0"], [77], ["@node:0", 77])
    topics = []
    for name in dict.fromkeys(course.some(*places)):
        indexes = dict.fromkeys(course.some(0, 0, 1, 7, -1))
        parts = [{"partition_index": each, "replicas": rng.choice(targets)} for each in indexes]
        topics.append({"name": name, "partitions": parts})
    request: dict[str, Tree] = {"timeout_ms": 10_000, "topics": topics}
    step = course.step(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request)
    if topics and step.version >= 1 and rng.random() < 0.5:
        step.request["allow_replication_factor_change"] = False
    return step


def under_way(course: Course) -> Step:
    topics = [
        {"name": name, "partition_indexes": [0, 7]}
        for name in dict.fromkeys(course.some(f"{course.name}-a", f"{course.name}-none"))
    ]
    request = {"timeout_ms": 1000, "topics": topics if course.rng.random() < 0.8 else None}
    return course.step(ApiKey.LIST_PARTITION_REASSIGNMENTS, request)


def coordinators(course: Course) -> Step:
    rng = course.rng
    names = (f"{course.name}-x", f"{course.name}-y", "", "a b")
    if rng.random() < 0.3:
        version, key = rng.randint(0, 3), {"key": rng.choice(names)}
    else:
        version, key = rng.randint(4, 6), {"coordinator_keys": course.some(*names)}
    request: dict[str, Tree] = {**key}
    if version >= 1:
        request["key_type"] = rng.choice((0, 0, 1, 1, 9))
    return Step(course.name, ApiKey.FIND_COORDINATOR, version, request)


def producers(course: Course) -> Step:
    """Makes ids that ``transactions`` finds."""
    request = {
        "transactional_id": f"{course.name}-{course.rng.choice('xy')}",
        "transaction_timeout_ms": 60_000,
    }
    return course.step(ApiKey.INIT_PRODUCER_ID, request)


def transactions(course: Course) -> Step:
    rng = course.rng
    pattern = rng.choice(PATTERNS)
    request: dict[str, Tree] = {
        "state_filters": course.some("Ongoing", "Empty", "nonsense", ""),
        "producer_id_filters": [],
    }
    step = course.step(ApiKey.LIST_TRANSACTIONS, request)
    if step.version >= 1:
        request["duration_filter"] = rng.choice((-1, -1, 0, 10**9))
    if step.version >= 2 and pattern is not None:
        request["transactional_id_pattern"] = pattern.format(course.name)
    return step


def groups(course: Course) -> Step:
    names = (f"{course.name}-g", f"{course.name}-none", "")
    # Kafka describes a group as often as it is named, and a broker here once: answers are bounded.
    step = course.step(ApiKey.DESCRIBE_GROUPS, {"groups": [*dict.fromkeys(course.some(*names))]})
    if step.version >= 3:
        step.request["include_authorized_operations"] = course.rng.random() < 0.5
    return step


def marked(course: Course) -> Step:
    """An end of a transaction that there is not, as an operator's tool sends it."""
    rng = course.rng
    topics = [
        {"name": name, "partition_indexes": rng.choice(([0], [0, 1], [7]))}
        for name in dict.fromkeys(course.some(f"{course.name}-a", f"{course.name}-none"))
    ]
    marker = {
        "producer_id": 424242,
        "producer_epoch": 0,
        "transaction_result": False,
        "topics": topics,
        "coordinator_epoch": rng.choice((0, -1)),
    }
    return course.step(ApiKey.WRITE_TXN_MARKERS, {"markers": [marker]})


def logged_in(course: Course) -> Step:
    """On a listener without logins."""
    if course.rng.random() < 0.5:
        return Step("s", ApiKey.SASL_HANDSHAKE, 1, {"mechanism": course.rng.choice(("PLAIN", ""))})
    return Step("s", ApiKey.SASL_AUTHENTICATE, course.rng.randint(0, 2), {"auth_bytes": "00"})


KINDS: dict[Callable[[Course], Step], int] = {
    acls: 3,
    quotas: 2,
    credentials: 2,
    levels: 2,
    resources: 2,
    moves: 4,
    under_way: 2,
    coordinators: 3,
    producers: 2,
    transactions: 3,
    groups: 2,
    marked: 1,
    logged_in: 1,
}


def sequence(seed: int, name: str) -> Sequence:
    course = Course(seed, name)
    yield creation([new_topic(f"{name}-a")])
    for _ in range(STEPS):
        (kind,) = course.rng.choices(list(KINDS), list(KINDS.values()))
        yield kind(course)
