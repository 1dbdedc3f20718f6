"""Carry out a sequence on two brokers at once, step by step, and note each difference."""

from __future__ import annotations

import select
import time
from collections.abc import Generator
from typing import NamedTuple

from replication.protocol import ApiKey
from tests.differential.broker import NODE, Broker
from tests.differential.rules import comparable
from tests.differential.steps import Step, Tree

Answers = dict[int, Tree]
Sequence = Generator[Step, Answers, None]
"""Yields steps, and is sent what was answered since, by the numbers of the steps."""

SETTINGS = {
    "offsets.topic.num.partitions": 50,  # as by default: with one, no id is ever in a wrong one
    "transaction.state.log.num.partitions": 50,
    "auto.create.topics.enable": "false",
    "num.partitions": 2,
    "log.retention.ms": -1,
}
"""Of both brokers."""
OUR_SETTINGS = {**SETTINGS, "node.id": NODE}

CHANGES = {
    ApiKey.CREATE_TOPICS: "topics",
    ApiKey.CREATE_PARTITIONS: "results",
    ApiKey.DELETE_TOPICS: "responses",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "",
    ApiKey.ALTER_CONFIGS: "",
}
"""Seen by later requests only after the metadata have come; the topics in their answers."""

QUIET_S = 0.15  # without an answer: the request waits for others
LATE_S = 35.0


class Difference(NamedTuple):
    number: int
    step: Step
    kafka: Tree
    ours: Tree


class Run(NamedTuple):
    steps: list[Step]
    answers: list[Answers]  # of Kafka, as they came after each step
    differences: list[Difference]


def compare(sequence: Sequence, kafka: Broker, ours: Broker) -> Run:
    """Both brokers, asked the same."""
    run = Run([], [], [])
    kafka.begin()
    ours.begin()
    try:
        step = next(sequence)
        while True:
            number = len(run.steps)
            run.steps.append(step)
            for each in (kafka, ours):
                each.send(number, step)
            theirs, mine = _both(number, step, kafka, ours)
            run.answers.append(theirs)
            for at in sorted({*theirs, *mine}):
                one, other = theirs.get(at, "nothing"), mine.get(at, "nothing")
                if comparable(run.steps[at], one) != comparable(run.steps[at], other):
                    run.differences.append(Difference(at, run.steps[at], one, other))
                    if run.steps[at].key in CHANGES:
                        return run  # what there is differs from here on
            for each in (kafka, ours):
                after(each, step, theirs.get(number))
            step = sequence.send(theirs)
    except StopIteration:
        pass
    return run


def _both(number: int, step: Step, kafka: Broker, ours: Broker) -> tuple[Answers, Answers]:
    theirs: Answers = {}
    mine: Answers = {}
    quiet_s = QUIET_S if step.may_wait else LATE_S
    began = time.monotonic()
    while True:
        select.select([*kafka.sockets, *ours.sockets], [], [], 0.02)
        found = kafka.poll(0), ours.poll(0)
        theirs |= found[0]
        mine |= found[1]
        waited = time.monotonic() - began
        if any(found):
            continue
        if set(theirs) == set(mine):
            others_wait = step.may_wait and (kafka.is_waiting or ours.is_waiting)
            if waited > (QUIET_S if number in theirs and others_wait else quiet_s):
                return theirs, mine
            if number in theirs and not others_wait:
                return theirs, mine
        if waited > LATE_S:
            return theirs, mine


def after(broker: Broker, step: Step, answer: Tree) -> None:
    """Wait for what a broker does behind its answer, so that the next step meets the same."""
    if not isinstance(answer, dict):
        return
    ends = step.key in (ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID)
    if ends and step.request.get("transactional_id"):
        broker.wait_for_end(step.request["transactional_id"])
    if step.key not in CHANGES or step.request.get("validate_only"):
        return
    broker.wait_for_metadata()
    field = CHANGES[step.key]
    names = [each["name"] for each in answer.get(field, ()) if not each["error_code"]]
    if step.key is ApiKey.DELETE_TOPICS:
        broker.wait_without_logs(names)
    elif names:
        broker.wait_for_topics(names)
