"""What follows from what the source says: a pure function."""

from __future__ import annotations

import uuid

import pytest

from checkpoints.types import TopicPartition
from logstore.common.errors import ConfigError
from replication.common.error_codes import ErrorCode
from replication.common.messages import MetadataResponse, TopicPartitionMetadata
from replication.common.state import NO_LEADER, BrokerRegistration, LiveBroker
from replication.mirror import MirrorConfig, decisions
from replication.mirror.decisions import LocalPartition, MirrorPlan, Replaced, WantedPartition
from replication.mirror.source import (
    SourceLeader,
    SourceTopic,
    SourceView,
    known_config,
    named_by_most,
    view_of,
)

OLD, NEW = uuid.UUID(int=10), uuid.UUID(int=11)
TP, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)


def view(topic_id: uuid.UUID | None = OLD, *leaders: SourceLeader) -> SourceView:
    return SourceView("cluster", {"orders": SourceTopic(topic_id, dict(enumerate(leaders)))})


def plan(
    shown: SourceView, confirmed: tuple[uuid.UUID, ...] = (), **here: LocalPartition
) -> MirrorPlan:
    local = {TopicPartition("orders", int(name[1:])): own for name, own in here.items()}
    return decisions.decide(shown, local, lambda topic: topic != "hidden", confirmed)


def test_a_new_topic_is_made_and_followed() -> None:
    found = plan(view(OLD, SourceLeader(1, 5), SourceLeader(NO_LEADER, 6)))
    assert found == MirrorPlan(
        wanted=(
            WantedPartition(TP, OLD, 1, 5),
            WantedPartition(OTHER, OLD, NO_LEADER, 6),
        )
    )


def test_what_is_followed_goes_on() -> None:
    own = LocalPartition(OLD, 1, 5)
    assert plan(view(OLD, SourceLeader(1, 5)), p0=own) == MirrorPlan()


def test_another_leadership_is_followed() -> None:
    own = LocalPartition(OLD, 1, 5)
    found = plan(view(OLD, SourceLeader(2, 6)), p0=own)
    assert found.wanted == (WantedPartition(TP, OLD, 2, 6),)


def test_an_earlier_leadership_is_not_followed() -> None:
    """Such an answer is from a broker behind the others."""
    own = LocalPartition(OLD, 1, 5)
    assert plan(view(OLD, SourceLeader(2, 4)), p0=own) == MirrorPlan()


def test_what_nobody_leads_pauses() -> None:
    found = plan(view(OLD, SourceLeader(NO_LEADER, 6)), p0=LocalPartition(OLD, 1, 5))
    assert found == MirrorPlan(pause=(TP,))


def test_what_failed_is_tried_again() -> None:
    own = LocalPartition(OLD, 1, 5, may_retry=True)
    assert plan(view(OLD, SourceLeader(1, 5)), p0=own).wanted


def test_logs_of_another_id_are_set_aside() -> None:
    """All of them, also of partitions that the later topic does not have (X-173)."""
    own = LocalPartition(OLD, 1, 5)
    found = plan(view(NEW, SourceLeader(1, 0)), (NEW,), p0=own, p1=own)
    assert found.replaced == (Replaced("orders", (0, 1), OLD, NEW),)
    assert found.wanted == (WantedPartition(TP, NEW, 1, 0),)


def test_a_broker_behind_the_others_does_not_bring_an_id_back() -> None:
    own = LocalPartition(NEW, 1, 0)
    for confirmed in ((), (NEW,)):
        found = plan(view(OLD, SourceLeader(1, 5)), confirmed, p0=own)
        assert found == MirrorPlan(doubted=("orders",))


@pytest.mark.parametrize(
    ("brokers", "ids", "found"),
    [
        (1, [NEW], NEW),
        (2, [NEW], None),
        (2, [NEW, OLD], None),
        (3, [OLD], None),
        (3, [NEW, OLD, NEW], NEW),
        (3, [NEW, NEW], NEW),
        (4, [NEW, NEW, OLD, None], None),
        (3, [], None),
    ],
)
def test_an_id_is_that_which_most_brokers_name(
    brokers: int, ids: list[uuid.UUID | None], found: uuid.UUID | None
) -> None:
    all_of_them = tuple(
        LiveBroker(BrokerRegistration(each, "host", 9092), -1) for each in range(brokers)
    )
    answers = [
        MetadataResponse(all_of_them, 1, (), {"orders": each} if each else {}, {}, "cluster")
        for each in ids
    ]
    wanted = {} if found is None else {"orders": found}
    assert named_by_most(["orders", "others"], answers) == wanted


def test_a_log_without_an_id_gets_one() -> None:
    """It is from before topics had ids; epochs say whether it is the same history."""
    found = plan(view(NEW, SourceLeader(1, 5)), p0=LocalPartition())
    assert found == MirrorPlan(wanted=(WantedPartition(TP, NEW, 1, 5),))


def test_a_source_without_ids_sets_nothing_aside() -> None:
    assert plan(view(None, SourceLeader(1, 5)), p0=LocalPartition(OLD, 1, 5)) == MirrorPlan()


def test_a_topic_that_is_gone_stays() -> None:
    found = plan(SourceView("cluster", {}), p0=LocalPartition(OLD, 1, 5), p1=LocalPartition(OLD))
    assert found == MirrorPlan(pause=(TP,), gone=("orders",))


def test_topics_that_are_not_chosen_are_left_alone() -> None:
    hidden = SourceView("cluster", {"hidden": SourceTopic(OLD, {0: SourceLeader(1, 1)})})
    assert plan(hidden) == MirrorPlan()


def test_a_leader_that_is_not_among_the_brokers_is_none() -> None:
    parts = (
        TopicPartitionMetadata(TP, ErrorCode.NONE, 1, 3, (1,), (1,), ()),
        TopicPartitionMetadata(OTHER, ErrorCode.NONE, 2, 3, (2,), (2,), ()),
        TopicPartitionMetadata(TopicPartition("o", -5), ErrorCode.NONE, 1, 3, (2,), (2,), ()),
    )
    brokers = (LiveBroker(BrokerRegistration(1, "host", 9092), -1),)
    answer = MetadataResponse(brokers, 1, parts, {"orders": OLD}, {}, "cluster")
    assert view_of(answer) == view(OLD, SourceLeader(1, 3), SourceLeader(NO_LEADER, 3))


def test_configurations_that_make_no_sense_here_are_left_out() -> None:
    found = known_config(
        {
            "retention.ms": "1000",
            "segment.bytes": "a lot",
            "of.a.later.release": "1",
            "cleanup.policy": "compact,delete",
            "follower.replication.throttled.replicas": "0:1",
            "message.format.version": None,
        }
    )
    assert found == {"retention.ms": "1000", "cleanup.policy": "compact,delete"}


@pytest.mark.parametrize(
    "wrong",
    [{"topics": ("(",)}, {"rate_bytes_per_s": 0}, {"metadata_interval_ms": 1}],
    ids=str,
)
def test_a_wrong_configuration_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        MirrorConfig(**wrong)  # type: ignore[arg-type]


def test_patterns_match_whole_names() -> None:
    is_chosen = MirrorConfig(topics=("orders", "a.*"), internal=False).choice()
    assert [is_chosen(name) for name in ("orders", "orders2", "abc", "__consumer_offsets")] == [
        True,
        False,
        True,
        False,
    ]


def test_an_answer_has_no_more_than_the_rate() -> None:
    config = MirrorConfig(rate_bytes_per_s=100_000).fetching()
    assert config.replica_fetch_response_max_bytes == 100_000
    assert config.replica_fetch_max_bytes == 100_000


@pytest.mark.parametrize(
    "own", [LocalPartition(None, 1, 5), LocalPartition(None, log_epoch=5)], ids=["followed", "here"]
)
def test_earlier_epochs_without_ids_are_to_be_confirmed(own: LocalPartition) -> None:
    """By the leader itself: it may be another topic, or a broker behind the others."""
    found = plan(view(None, SourceLeader(1, 4)), p0=own)
    assert found == MirrorPlan(older=(WantedPartition(TP, None, 1, 4),))
