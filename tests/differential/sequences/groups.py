"""Groups of the classic protocol: joins, syncs, heartbeats, leaves, static members, offsets.

Kafka keeps members in the order of a hash of their random ids. So it draws which one leads after
the leader left, and a sequence may part from it there for no other reason.
"""

from __future__ import annotations

import random
from typing import Any

from replication.protocol import ApiKey
from tests.differential.comparison import Sequence
from tests.differential.steps import Step, Tree, creation, new_topic

STEPS = 60
CLIENTS = ("m1", "m2", "m3")


class Course:
    """Three clients of one group; each has at most one request that waits."""

    def __init__(self, seed: int, name: str) -> None:
        self.rng = random.Random(seed)
        self.group = f"{name}-g"
        self.topic = f"{name}-t"
        self.topic_id: Tree = None
        self.members: dict[str, dict[str, Any]] = {
            each: {"member": "", "generation": -1, "instance": None} for each in CLIENTS
        }
        if self.rng.random() < 0.5:
            self.members["m1"]["instance"] = f"{name}-i"
        self.waiting: dict[int, str] = {}  # clients, by the steps of their requests
        self.number = 0

    def free(self) -> list[str]:
        return [each for each in CLIENTS if each not in self.waiting.values()]

    def who(self, version: int, first_with_instances: int) -> dict[str, Tree]:
        """Member, generation and instance, wrong now and then."""
        rng = self.rng
        one = self.members[rng.choice(CLIENTS)]
        found = {"member_id": one["member"], "generation_id": one["generation"]}
        roll = rng.random()
        if roll < 0.06:
            found["generation_id"] += rng.choice((1, -1))
        elif roll < 0.1:
            found["member_id"] = rng.choice(("nobody", ""))
        elif roll < 0.12:
            found["generation_id"] = -1
        if version >= first_with_instances:
            found["group_instance_id"] = one["instance"]
            if rng.random() < 0.04:
                found["group_instance_id"] = rng.choice(
                    (f"{self.group}-x", self.members["m1"]["instance"])
                )
        return found

    def group_id(self) -> str:
        return (
            self.group if self.rng.random() < 0.97 else self.rng.choice(("", f"{self.group}-none"))
        )


def joined(course: Course, client: str) -> Step:
    rng, one = course.rng, course.members[client]
    version = rng.randint(5 if one["instance"] else 0, 9)
    names = rng.choice((["range"], ["range", "sticky"]))  # at equal votes Kafka draws one
    is_odd = bool(one["member"])  # Kafka keeps a group for a while that nobody could join
    if is_odd and rng.random() < 0.03:
        names = rng.choice(([], ["other"]))
    request: dict[str, Tree] = {
        "group_id": course.group_id(),
        "session_timeout_ms": 60_000 if rng.random() < 0.96 else rng.choice((0, 1, 2**31 - 1)),
        "member_id": one["member"] if rng.random() < 0.95 else rng.choice(("", "nobody")),
        "protocol_type": "connect" if is_odd and rng.random() < 0.03 else "consumer",
        "protocols": [{"name": each, "metadata": f"{rng.choice((1, 1, 2)):02x}"} for each in names],
    }
    if version >= 1:
        request["rebalance_timeout_ms"] = 60_000
    if version >= 5:
        request["group_instance_id"] = one["instance"]
    if version >= 8:
        request["reason"] = "because"
    return Step(client, ApiKey.JOIN_GROUP, version, request, may_wait=True)


def synced(course: Course, client: str) -> Step:
    rng, one = course.rng, course.members[client]
    version = rng.randint(0, 5)
    request: dict[str, Tree] = {
        "group_id": course.group_id(),
        "generation_id": one["generation"] + (rng.choice((1, -1)) if rng.random() < 0.05 else 0),
        "member_id": one["member"] if rng.random() < 0.97 else "nobody",
        "assignments": [],
    }
    if version >= 3:
        request["group_instance_id"] = one["instance"]
    if version >= 5 and rng.random() < 0.9:
        request["protocol_type"] = "consumer" if rng.random() < 0.95 else "other"
        request["protocol_name"] = one.get("protocol", "range") if rng.random() < 0.95 else "other"
    if one.get("leads"):
        known = [each["member"] for each in course.members.values() if each["member"]]
        request["assignments"] = [
            {"member_id": each, "assignment": f"{at:02x}aa"}
            for at, each in enumerate(known)
            if rng.random() < 0.9
        ]
    return Step(client, ApiKey.SYNC_GROUP, version, request, may_wait=True)


def beaten(course: Course) -> Step:
    version = course.rng.randint(0, 4)
    return Step(
        "c", ApiKey.HEARTBEAT, version, {"group_id": course.group_id(), **course.who(version, 3)}
    )


def left(course: Course) -> Step:
    rng = course.rng
    version = rng.randint(0, 5)
    request: dict[str, Tree] = {"group_id": course.group_id()}
    if version < 3:
        request["member_id"] = course.who(0, 9)["member_id"]
    else:
        members = []
        for _ in range(rng.choice((1, 1, 2))):
            who = course.who(version, 3)
            who.pop("generation_id")
            if rng.random() < 0.2 and who["group_instance_id"]:
                who["member_id"] = ""
            members.append(who)
        request["members"] = members
    return Step("c", ApiKey.LEAVE_GROUP, version, request)


def committed(course: Course) -> Step:
    rng = course.rng
    version = rng.randint(2, 10)
    who = course.who(version, 7)
    if rng.random() < 0.2:
        who |= {"member_id": "", "generation_id": -1}
        if version >= 7:
            who["group_instance_id"] = None
    who["generation_id_or_member_epoch"] = who.pop("generation_id")
    course.number += 1
    parts = [
        {
            "partition_index": each,
            "committed_offset": course.number,
            "committed_metadata": rng.choice(
                ("", "m", None, "x" * 4096, "x" * 4097, "ü" * 4096, "𝄞" * 2048, "𝄞" * 2049)[
                    : 3 if rng.random() < 0.85 else 8
                ]
            ),
            **({"committed_leader_epoch": rng.choice((-1, 0, 7))} if version >= 6 else {}),
        }
        for each in rng.sample((0, 1, 7), rng.choice((1, 2)))
    ]
    name = course.topic if rng.random() < 0.95 else f"{course.topic}-none"
    topic: dict[str, Tree] = {"name": name} if version < 10 else {"topic_id": course.topic_id}
    request = {"group_id": course.group_id(), **who, "topics": [{**topic, "partitions": parts}]}
    return Step("c", ApiKey.OFFSET_COMMIT, version, request)


def fetched(course: Course) -> Step:
    rng = course.rng
    version = rng.randint(1, 10)
    topic: dict[str, Tree] = (
        {"name": course.topic} if version < 10 else {"topic_id": course.topic_id}
    )
    topics = [{**topic, "partition_indexes": rng.sample((0, 1, 7), rng.choice((1, 3)))}]
    asked = topics if version < 2 or rng.random() < 0.6 else None
    if version < 8:
        request: dict[str, Tree] = {"group_id": course.group_id(), "topics": asked}
    else:
        one = {"group_id": course.group_id(), "topics": asked}
        if version >= 9 and rng.random() < 0.3:
            one |= {"member_id": rng.choice(("", "nobody")), "member_epoch": rng.choice((-1, 0, 5))}
        request = {
            "groups": [one, {"group_id": f"{course.group}-two", "topics": asked}][
                : rng.choice((1, 2))
            ]
        }
    if version >= 7:
        request["require_stable"] = rng.random() < 0.5
    return Step("c", ApiKey.OFFSET_FETCH, version, request)


def described(course: Course) -> Step:
    rng = course.rng
    version = rng.randint(0, 6)
    groups = rng.sample([course.group, f"{course.group}-none", ""], rng.choice((1, 2)))
    return Step("c", ApiKey.DESCRIBE_GROUPS, version, {"groups": groups})


def deleted(course: Course) -> Step:
    rng = course.rng
    if rng.random() < 0.5:
        groups = rng.sample([course.group, f"{course.group}-none", ""], rng.choice((1, 2)))
        return Step("c", ApiKey.DELETE_GROUPS, rng.randint(0, 2), {"groups_names": groups})
    parts = [{"partition_index": each} for each in rng.sample((0, 1, 7), rng.choice((1, 2)))]
    request = {
        "group_id": course.group_id(),
        "topics": [{"name": course.topic, "partitions": parts}],
    }
    return Step("c", ApiKey.OFFSET_DELETE, 0, request)


def took(course: Course, step: Step, answer: Tree) -> None:
    """What a client learns of its join or sync."""
    if not isinstance(answer, dict) or step.client not in course.members:
        return
    one, code = course.members[step.client], answer.get("error_code", 0)
    if code == 25:
        one["member"] = ""
    elif step.key is ApiKey.JOIN_GROUP:
        if answer.get("member_id") and code in (0, 79):
            one["member"] = answer["member_id"]
        if not code:
            one["generation"] = answer.get("generation_id", 0)
            one["leads"] = answer.get("leader") == one["member"]
            one["protocol"] = answer.get("protocol_name", "")


def sequence(seed: int, name: str) -> Sequence:
    course = Course(seed, name)
    rng = course.rng
    answers = yield creation([new_topic(course.topic)])
    course.topic_id = answers[0]["topics"][0]["topic_id"]
    steps: list[Step] = []
    kinds = (joined, synced, beaten, left, committed, fetched, described, deleted)
    for number in range(1, STEPS):
        free = course.free()
        kind = rng.choices(kinds, (12, 12, 5, 2, 6, 4, 3, 1))[0]
        if kind in (joined, synced) and not free:
            kind = rng.choice((beaten, described, left))
        step = kind(course, rng.choice(free)) if kind in (joined, synced) else kind(course)
        steps.append(step)
        answers = yield step
        if step.may_wait and number not in answers:
            course.waiting[number] = step.client
        for at, answer in answers.items():
            course.waiting.pop(at, None)
            took(course, steps[at - 1], answer)
