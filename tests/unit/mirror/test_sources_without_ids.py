"""A source from before topics had ids: a topic that is made anew is known by its epochs."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoints.types import TopicPartition
from replication.protocol import ApiKey
from tests.support.mirrored import (
    batches_of,
    check_holds,
    check_verifies,
    grow,
    log_of,
    mirroring,
    reported,
    until_equal,
)
from tests.support.scripted_source import (
    KAFKA_2_1,
    Exchange,
    ScriptedSource,
    SourceTopic,
    on_answers,
)
from tests.support.until import until

ORDERS = TopicPartition("orders", 0)


def _source() -> ScriptedSource:
    topic = SourceTopic({0: log_of((3, 0), (3, 4)), 1: log_of((2, 0))})
    return ScriptedSource({"orders": topic}, versions=KAFKA_2_1)


def _anew() -> SourceTopic:
    return SourceTopic({0: log_of((8, 0), word="anew"), 1: log_of((8, 0), word="anew")})


@pytest.mark.parametrize("is_seen", [True, False], ids=["running", "down"])
def test_a_topic_whose_epochs_fall_is_another_one(is_seen: bool, tmp_path: Path) -> None:
    """All its logs are set aside, also those whose epochs do not tell, and begun again (X-173)."""
    with _source() as source:
        before = source.logs()[ORDERS].batches
        with mirroring(source, tmp_path):
            until_equal(source, tmp_path)
            if is_seen:
                source.change(lambda: source.topics.update(orders=_anew()))
                until_equal(source, tmp_path)
        if not is_seen:
            source.change(lambda: source.topics.update(orders=_anew()))
            with mirroring(source, tmp_path):
                until_equal(source, tmp_path)
        check_holds(tmp_path, source.logs())
    check_verifies(tmp_path)
    aside = sorted(each for each in tmp_path.iterdir() if each.name.endswith("-stray"))
    assert len(aside) == 2
    kept = b"".join(path.read_bytes() for path in sorted(aside[0].glob("*.log")))
    assert kept == b"".join(before)
    (event,) = reported(tmp_path, ORDERS)
    assert (event["kind"], event["from"], event["to"]) == ("set-aside", 0, 12)


def test_a_broker_behind_the_others_sets_nothing_aside(tmp_path: Path) -> None:
    """Its metadata have an earlier epoch, in which nobody leads."""
    with _source() as source, mirroring(source, tmp_path):
        until_equal(source, tmp_path)
        held = batches_of(tmp_path, ORDERS)
        seen = source.asked[ApiKey.OFFSET_FOR_LEADER_EPOCH]
        source.change(lambda: source.lies.append(on_answers(ApiKey.METADATA, _behind)))
        counts = source.asked
        until(lambda: counts[ApiKey.OFFSET_FOR_LEADER_EPOCH] >= seen + 3, "leaders were asked")
        assert batches_of(tmp_path, ORDERS) == held
        source.change(source.lies.clear)
        source.change(lambda: grow(source.logs()[ORDERS]))
        until_equal(source, tmp_path)
    assert reported(tmp_path, ORDERS) == []


def _behind(exchange: Exchange) -> None:
    topics = tuple(
        topic._replace(partitions=tuple(part._replace(leader_epoch=0) for part in topic.partitions))
        for topic in exchange.answer.topics
    )
    exchange.answer = exchange.answer._replace(topics=topics)
