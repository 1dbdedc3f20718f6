"""A broker's replica manager: what its partitions cost, each and beside so many."""

from __future__ import annotations

import uuid
from typing import Any

from checkpoints.types import TopicPartition
from replication.common.messages import (
    CONSUMER,
    FetchPartition,
    FetchPartitionResponse,
    FetchResponse,
    MetadataRequest,
    PartitionChange,
)
from tests.growth.work import Act, Case, Per, check, for_cases
from tests.support.builders import batch
from tests.support.fetch_sessions import Member
from tests.support.fetchers import Stage
from tests.support.replica_managers import TOPIC_ID, Host, part

TOPIC = "orders"


def named(count: int, first: int = 0) -> list[TopicPartition]:
    return [TopicPartition(TOPIC, number) for number in range(first, first + count)]


def leading(partitions: int, **change: Any) -> Host:
    """Its follower is broker 2."""
    host = Host()
    host.order(*changes(host, named(partitions), **change))
    host.tell(*changes(host, named(partitions), **change))
    return host


def following(partitions: int) -> Host:
    return leading(partitions, leader=2)


def changes(host: Host, tps: list[TopicPartition], **change: Any) -> list[PartitionChange]:
    return [host.change(tp, **change) for tp in tps]


def parts(tps: list[TopicPartition], offset: int = 0) -> list[FetchPartition]:
    return [part(offset, tp, topic_id=TOPIC_ID) for tp in tps]


def last(partitions: int) -> TopicPartition:
    """One of them: who looks at all until it is found comes to it last."""
    return TopicPartition(TOPIC, partitions - 1)


def written(partitions: int) -> Host:
    host = leading(partitions)
    host.produce(dict.fromkeys(named(partitions), batch()), acks=1)
    return host


# -- roles ----------------------------------------------------------------------------------------


def lead_each(size: int) -> Act:
    host = leading(1)
    told = changes(host, named(size, 1))
    return lambda: host.order(*told)


def lead_beside(size: int) -> Act:
    host = leading(size)
    (told,) = changes(host, named(1, size))
    return lambda: host.order(told)


def lead_again_each(size: int) -> Act:
    host = leading(size)
    told = changes(host, named(size), epoch=1)
    return lambda: host.order(*told)


def follow_each(size: int) -> Act:
    host = leading(size)
    told = changes(host, named(size), leader=2, epoch=1)
    return lambda: host.order(*told)


def follow_beside(size: int) -> Act:
    host = following(size)
    told = host.change(last(size), epoch=1, leader=2)
    return lambda: host.order(told)


def told_each(size: int) -> Act:
    host = leading(1)
    told = changes(host, named(size))
    return lambda: host.tell(*told)


def told_beside(size: int) -> Act:
    host = leading(size)
    told = host.change(last(size), epoch=1)
    return lambda: host.tell(told)


def stop_beside(size: int) -> Act:
    host = leading(size)
    return lambda: host.stop(last(size), epoch=1)


# -- clients --------------------------------------------------------------------------------------


def produce_each(size: int) -> Act:
    host = leading(size)
    records = dict.fromkeys(named(size), batch())
    return lambda: host.produce(records, acks=1)


def produce_beside(size: int) -> Act:
    host = leading(size)
    return lambda: host.produce({last(size): batch()}, acks=1)


def wait_each(size: int) -> Act:
    """A request of all, that its follower completes."""
    host = leading(size)

    def act() -> None:
        answers = host.produce(dict.fromkeys(named(size), batch()))
        host.fetch(*parts(named(size), 0), replica=2)
        host.fetch(*parts(named(size), 1), replica=2)
        assert answers

    return act


def answer_beside(size: int) -> Act:
    """A request is completed, while others wait for other partitions."""
    host = leading(size)
    waiting = [host.produce({tp: batch()}) for tp in named(size)]

    def act() -> None:
        host.replicate(1, tp=last(size))
        assert [bool(each) for each in waiting] == [False] * (size - 1) + [True]

    host.replicate(0, tp=last(size))
    return act


def fetch_each(size: int) -> Act:
    host = written(size)
    wanted = parts(named(size))
    return lambda: host.fetch(*wanted)


def fetch_beside(size: int) -> Act:
    host = written(size)
    return lambda: host.fetch(part(0, last(size)))


def fetch_as_follower(size: int) -> Act:
    host = written(size)
    wanted = parts(named(size))
    return lambda: host.fetch(*wanted, replica=2)


def fetches_wait(size: int) -> Act:
    """So many consumers wait for one partition that gets a record."""
    host = leading(1, replicas=(1,))
    for _ in range(size):
        host.fetch(part(0), wait_ms=1000)
    return lambda: host.produce(acks=1)


def append_beside_fetches(size: int) -> Act:
    """So many consumers wait for other partitions."""
    host = leading(size + 1, replicas=(1,))
    for tp in named(size, 1):
        host.fetch(part(0, tp), wait_ms=1000)
    return lambda: host.produce(acks=1)


# -- time that passes -----------------------------------------------------------------------------


def idle_leader(size: int) -> Act:
    host = leading(size)
    return lambda: host.runtime.advance(30_000)


# -- sessions of fetches --------------------------------------------------------------------------


def resting(partitions: int, replica: int = CONSUMER) -> tuple[Host, Act]:
    """A session that was told everything, and its next fetch."""
    host = written(partitions)
    member = Member(host, replica)
    wanted = {each.tp: each for each in parts(named(partitions), 1)}
    for _ in range(3):
        member.fetch(wanted)
    return host, lambda: member.send(member.handler.next_request(wanted, frozenset()))


def session_begins(size: int) -> Act:
    member = Member(written(size))
    wanted = {each.tp: each for each in parts(named(size))}
    return lambda: member.fetch(wanted)


def session_rests(size: int) -> Act:
    _, fetch = resting(size)
    return fetch


def session_of_a_follower_rests(size: int) -> Act:
    _, fetch = resting(size, 2)
    return fetch


def session_has_news(size: int) -> Act:
    host, fetch = resting(size)
    host.append(tp=last(size))
    return fetch


# -- following ------------------------------------------------------------------------------------


def followed(partitions: int) -> Stage:
    """All was copied, and the leader has a session of it."""
    stage = Stage()
    tps = named(partitions)
    for tp in tps:
        stage.lead(1, tp=tp)
    stage.follow(1, *tps)
    for epoch in range(3):
        stage.request()
        fetched = tuple(FetchPartitionResponse(tp, high_watermark=0) for tp in tps)
        stage.reply(FetchResponse(fetched if epoch == 0 else (), session_id=1))
    return stage


def follow_anew(size: int) -> Act:
    stage = Stage()
    for tp in named(size):
        stage.lead(1, tp=tp)

    def act() -> None:
        stage.follow(1, *named(size))
        stage.exchange()

    return act


def told_of(stage: Stage, tps: list[TopicPartition]) -> Act:
    stage.request()
    records = batch(value=b"new")
    news = tuple(FetchPartitionResponse(tp, high_watermark=0, records=records) for tp in tps)

    def act() -> None:
        stage.reply(FetchResponse(news, session_id=1))
        assert len(stage.fetch_request().partitions) == len(tps)

    return act


def copy_each(size: int) -> Act:
    return told_of(followed(size), named(size))


def copy_beside(size: int) -> Act:
    return told_of(followed(size), [last(size)])


def copy_nothing(size: int) -> Act:
    return told_of(followed(size), [])


# -- metadata -------------------------------------------------------------------------------------


def describe_each(size: int) -> Act:
    metadata = leading(size).metadata
    return lambda: metadata.describe(MetadataRequest())


def describe_beside(size: int) -> Act:
    host = leading(size)
    host.tell(host.change(TopicPartition("other", 0), topic_id=uuid.UUID(int=8)))
    return lambda: host.metadata.describe(MetadataRequest(("other",)))


@for_cases(
    Case("lead", lead_each),
    Case("lead beside partitions", lead_beside, Per.ONE),
    Case("lead again", lead_again_each),
    Case("follow", follow_each),
    Case("follow beside partitions", follow_beside, Per.ONE),
    Case("metadata of partitions", told_each),
    Case("metadata beside partitions", told_beside, Per.ONE),
    Case(
        "stop a replica beside partitions",
        stop_beside,
        Per.ONE,
        known="the partitions of a topic are sought among all logs",
    ),
    Case("produce to partitions", produce_each),
    Case("produce beside partitions", produce_beside, Per.ONE),
    Case("acks=all of partitions", wait_each),
    Case("acks=all beside waiting requests", answer_beside, Per.ONE),
    Case("fetch partitions", fetch_each),
    Case("fetch beside partitions", fetch_beside, Per.ONE),
    Case("follower fetches partitions", fetch_as_follower),
    Case("waiting fetches of a partition", fetches_wait),
    Case("append beside waiting fetches", append_beside_fetches, Per.ONE),
    Case("idle leader", idle_leader),
    Case("a session begins", session_begins),
    Case("a session rests", session_rests, Per.ONE),
    Case("a session of a follower rests", session_of_a_follower_rests, Per.ONE),
    Case("a session has news of one", session_has_news, Per.ONE),
    Case("follow anew", follow_anew),
    Case("copy", copy_each),
    Case("copy beside partitions", copy_beside, Per.ONE),
    Case("copy nothing", copy_nothing, Per.ONE),
    Case("describe partitions", describe_each),
    Case("describe beside partitions", describe_beside, Per.ONE),
)
def test_a_broker_costs_what_it_does(case: Case) -> None:
    check(case)
