"""What a cluster becomes whose log directories are adopted: decided from values alone."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from checkpoints.topic_properties import TopicProperties
from checkpoints.types import TopicPartition
from logstore.common.errors import ConfigError
from replication.adopt import (
    AdoptedCluster,
    ClusterImage,
    TopicImage,
)
from replication.adopt.found import CoordinatorState, FoundBroker, FoundLog
from replication.adopt.plan import FOR_EVER, AdoptionRules, plan
from replication.common.internal_topics import (
    GROUP_METADATA,
    TRANSACTION_STATE,
    masked_partition_for,
    partition_for,
)
from replication.common.state import MAX_EPOCH_OF_A_LOG, NO_LEADER, PartitionRegistration

ONE, OTHER = uuid.UUID(int=11), uuid.UUID(int=12)
T0 = TopicPartition("t", 0)
NOW_MS = 10**12


def log(epoch: int = 0, end: int = 5, topic_id: uuid.UUID | None = ONE, **fields: Any) -> FoundLog:
    return FoundLog(topic_id, ((epoch, 0),), end, **fields)


def broker(logs: Mapping[TopicPartition, FoundLog], **fields: Any) -> FoundBroker:
    defaults: dict[str, Any] = {"broker_epoch": -1, "configs": {"t": TopicProperties({})}}
    return FoundBroker(("/d",), logs=logs, **{**defaults, **fields})


def image(
    partitions: Mapping[int, tuple[tuple[int, ...], tuple[int, ...], int]],
    config: Mapping[str, str] = {},
    **fields: Any,
) -> ClusterImage:
    """Of topic ``t``: replicas, ISR and leader epoch of each partition."""
    known = {
        number: PartitionRegistration(replicas, isr, isr[0] if isr else -1, epoch, 0)
        for number, (replicas, isr, epoch) in partitions.items()
    }
    defaults: dict[str, Any] = {
        "topics": {"t": TopicImage("t", ONE, known)},
        "configs": {(2, "t"): dict(config)},
        "next_producer_id": 0,
        "left_out": {},
        "certain_end": 9,
        "end_offset": 9,
        "notes": (),
    }
    return ClusterImage(**{**defaults, **fields})


def planned(
    brokers: Mapping[int, FoundBroker], known: ClusterImage | None = None, **options: Any
) -> AdoptedCluster:
    return plan("cluster", brokers, known, AdoptionRules(NOW_MS, **options))


def kinds(cluster: AdoptedCluster) -> set[str]:
    return {note.kind for note in cluster.report.notes}


def roles(state: PartitionRegistration) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    return state.replicas, state.isr, state.leader


# -- who leads -------------------------------------------------------------------------------------


def test_the_latest_epoch_leads_then_the_longest_log() -> None:
    """R-184"""
    found = planned(
        {
            0: broker({T0: log(epoch=3, end=90)}),
            1: broker({T0: log(epoch=4, end=50)}),
            2: broker({T0: log(epoch=4, end=60)}),
        }
    )
    assert roles(found.states[T0]) == ((2, 1, 0), (2,), 2)
    assert found.states[T0].leader_epoch == 4


def test_equal_logs_are_in_sync() -> None:
    found = planned({b: broker({T0: log(4, 60)}) for b in (0, 1)})
    assert roles(found.states[T0]) == ((0, 1), (0, 1), 0)


def test_only_replicas_that_were_in_sync_lead() -> None:
    brokers = {0: broker({T0: log(4, 60)}), 1: broker({T0: log(4, 70)})}
    found = planned(brokers, image({0: ((1, 0, 2), (0, 2), 9)}))
    assert roles(found.states[T0]) == ((1, 0, 2), (0,), 0)
    assert found.states[T0].leader_epoch == 9
    assert "absent brokers" in kinds(found)


def test_without_a_replica_in_sync_nobody_leads() -> None:
    found = planned({0: broker({T0: log(4, 60)})}, image({0: ((0, 1, 2), (1, 2), 4)}))
    assert roles(found.states[T0]) == ((0, 1, 2), (1, 2), NO_LEADER)
    assert "out of sync" in kinds(found)
    assert found.report.led == 0


def test_a_log_that_is_not_as_its_stop_left_it_does_not_lead() -> None:
    """Its broker says so when it registers (R-180)."""
    brokers = {0: broker({T0: log(4, 60)}, unproven=frozenset({T0})), 1: broker({T0: log(4, 50)})}
    assert roles(planned(brokers).states[T0]) == ((0, 1), (1,), 1)
    del brokers[1]
    assert roles(planned(brokers).states[T0]) == ((0,), (), NO_LEADER)


def test_a_broker_that_lost_its_log_never_serves_an_empty_one() -> None:
    """Its absence from the replicas keeps even an unclean election from taking it (R-184)."""
    here = {0: broker({T0: log()})}
    found = planned(here, image({0: ((0,), (0,), 1), 1: ((0, 7), (0, 7), 1), 2: ((0,), (0,), 1)}))
    assert roles(found.states[TopicPartition("t", 1)]) == ((7,), (7,), NO_LEADER)
    assert roles(found.states[TopicPartition("t", 2)]) == ((1,), (), NO_LEADER)
    (note,) = (each for each in found.report.notes if each.kind == "without a log")
    assert note.names == ("t-1", "t-2")


def test_gaps_between_partitions_are_somebody_elses() -> None:
    found = planned({1: broker({T0: log(), TopicPartition("t", 3): log()})})
    assert found.topics["t"].partitions == {0: (1,), 1: (0,), 2: (0,), 3: (1,)}
    assert found.states[TopicPartition("t", 2)].leader == NO_LEADER


def test_a_damaged_log_keeps_its_place() -> None:
    """Otherwise its broker would set it aside."""
    tp = TopicPartition("t", 1)
    found = planned({0: broker({T0: log()}, unavailable={tp: "torn"})})
    assert roles(found.states[tp]) == ((0,), (), NO_LEADER)
    assert {"damaged", "without a log"} <= kinds(found)


def test_read_only_replicas_behind_their_leader_stay_out() -> None:
    brokers = {0: broker({T0: log(4, 60)}), 1: broker({T0: log(4, 50)})}
    found = planned(brokers, image({0: ((1, 0, 2), (0, 1, 2), 4)}), read_only=True)
    assert roles(found.states[T0]) == ((0, 2), (0,), 0)
    assert "behind" in kinds(found)


# -- epochs and ids --------------------------------------------------------------------------------


def test_epochs_begin_above_all_that_is_known() -> None:
    tx = TopicPartition(TRANSACTION_STATE, 0)
    found = planned(
        {
            0: broker({T0: log(7), tx: log(2, topic_id=OTHER)}, coordinator_epoch=31),
            1: broker({}, broker_epoch=800, producer_id=4_999, coordinator_epoch=2**31 - 1),
        }
    )
    assert found.states[T0].leader_epoch == 7
    assert found.states[tx].leader_epoch == 31
    assert (found.broker_epoch, found.producer_id) == (800, 4_999)


def test_an_absurd_epoch_is_left_to_the_broker() -> None:
    found = planned({0: broker({T0: log(MAX_EPOCH_OF_A_LOG + 1)})})
    assert found.states[T0].leader_epoch == 0


def test_producer_ids_of_the_metadata_count() -> None:
    found = planned({0: broker({T0: log()})}, image({0: ((0,), (0,), 1)}, next_producer_id=7000))
    assert found.producer_id == 6999


# -- topics ----------------------------------------------------------------------------------------


def test_a_topic_with_two_ids_is_not_served() -> None:
    brokers = {
        0: broker({T0: log(topic_id=ONE), TopicPartition("u", 0): log(topic_id=None)}),
        1: broker({T0: log(topic_id=OTHER)}),
    }
    found = planned(brokers)
    assert [*found.topics] == ["u"]
    assert "two topics of one name" in kinds(found)
    # With the metadata one of them is right.
    found = planned(brokers, image({0: ((0, 1), (0, 1), 1)}))
    assert roles(found.states[T0]) == ((0, 1), (0,), 0)
    assert {"of another id", "unknown to the metadata"} <= kinds(found)


def test_a_topic_without_an_id_gets_the_same_one_each_time() -> None:
    ids = {planned({0: broker({T0: log(topic_id=None)})}).topics["t"].topic_id for _ in range(2)}
    assert len(ids) == 1
    mixed = {T0: log(topic_id=None), TopicPartition("t", 1): log(topic_id=ONE)}
    assert planned({0: broker(mixed)}).topics["t"].topic_id == ONE


def test_a_replica_that_the_metadata_has_elsewhere_is_not_served() -> None:
    own = TopicPartition("t", 1)
    brokers = {0: broker({T0: log(9, 99), own: log()}), 1: broker({T0: log(4, 50)})}
    found = planned(brokers, image({0: ((1,), (1,), 4), 1: ((0,), (0,), 4)}))
    assert roles(found.states[T0]) == ((1,), (1,), 1)
    assert "moved away" in kinds(found)


def test_logs_that_the_metadata_gives_to_others_are_refused() -> None:
    """They would all become strays (R-184)."""
    here = broker({T0: log(), TopicPartition("u", 0): log(topic_id=OTHER)})
    known = image({0: ((1,), (1,), 4)})
    with pytest.raises(ConfigError, match="gives broker 0 none of the logs there"):
        planned({0: here}, known)
    with pytest.raises(ConfigError, match="another time"):
        planned({0: here, 1: here}, known)
    with pytest.raises(ConfigError, match="another time"):
        planned({1: here}, image({}, topics={}))
    assert planned({1: here, 2: broker({})}, known).report.led == 1


def test_partitions_made_after_the_metadata_are_offline_and_no_strays() -> None:
    """Only their numbers are certain: a topic never loses a partition."""
    later, again = TopicPartition("t", 2), TopicPartition("t", 3)
    here = broker({T0: log(), later: log(4), again: log(topic_id=OTHER)})
    found = planned({0: here}, image({0: ((0,), (0,), 1)}))
    assert roles(found.states[later]) == ((0,), (), NO_LEADER)
    assert found.states[later].leader_epoch == 4
    assert roles(found.states[TopicPartition("t", 1)]) == ((1,), (), NO_LEADER)
    assert again not in found.states
    names = {note.kind: note.names for note in found.report.notes}
    assert names["out of sync"] == ("t-2",)
    assert names["without a log"] == ("t-1",)
    absurd = broker({T0: log(), TopicPartition("t", 2**31 - 1): log()})
    found = planned({0: absurd}, image({0: ((0,), (0,), 1)}))
    assert [*found.states] == [T0]
    assert "unknown to the metadata" in kinds(found)


def test_a_folder_with_an_absurd_number_costs_nothing() -> None:
    found = planned({0: broker({T0: log(), TopicPartition("u", 2**31 - 1): log(topic_id=OTHER)})})
    assert [*found.topics] == ["t"]
    assert "nearly no partition" in kinds(found)


def test_many_folders_with_absurd_numbers_cost_little() -> None:
    """The bound is one for all topics."""
    here = {TopicPartition(f"u{n}", 9000): log(topic_id=uuid.UUID(int=n)) for n in range(1, 9)}
    found = planned({0: broker({T0: log(), **here})})
    assert [*found.topics] == ["t", "u1"]
    (note,) = (each for each in found.report.notes if each.kind == "nearly no partition")
    assert note.count == 7


# -- configurations --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "after"),
    [
        ({}, FOR_EVER),
        ({"retention.bytes": "9"}, {"retention.ms": "-1", "retention.bytes": "9"}),
        ({"retention.ms": "5"}, {"retention.ms": "5"}),
        ({"cleanup.policy": "compact"}, {"cleanup.policy": "compact"}),
        ({"cleanup.policy": "compact,delete"}, {"cleanup.policy": "compact,delete", **FOR_EVER}),
    ],
)
def test_a_retention_that_nobody_knows_deletes_nothing(
    config: Mapping[str, str], after: Mapping[str, str]
) -> None:
    here, known = {0: broker({T0: log()})}, image({0: ((0,), (0,), 1)}, config)
    found = planned(here, known)
    assert found.topics["t"].config == after
    assert ("retention unknown" in kinds(found)) is (after != config)
    assert planned(here, known, read_only=True).topics["t"].config == config
    assert planned(here, known, pins_retention=False).topics["t"].config == config


def test_what_all_brokers_were_told_for_topics_becomes_theirs() -> None:
    told = {"log.retention.ms": "9000", "min.insync.replicas": "1", "log.cleaner.threads": "4"}
    known = image({0: ((0,), (0,), 1)})
    configs = {(4, ""): told, (4, "0"): {"log.segment.bytes": "99"}}
    known = known._replace(configs=configs)
    found = planned({0: broker({T0: log()})}, known)
    assert found.topics["t"].config == {"retention.ms": "9000"}
    (note,) = (each for each in found.report.notes if each.kind.startswith("not carried"))
    assert note.names == ("log.cleaner.threads", "log.segment.bytes of broker 0")
    own = {**configs, (2, "t"): {"retention.ms": "8"}}
    found = planned({0: broker({T0: log()})}, known._replace(configs=own))
    assert found.topics["t"].config == {"retention.ms": "8"}
    assert planned({0: broker({T0: log()})}, known, read_only=True).topics["t"].config == {}


def test_overrides_alone_say_nothing_of_the_retention() -> None:
    """A backup of a Kafka's directory knows them, and not the ``server.properties`` beside."""
    for own, after in (
        ({"segment.ms": "5"}, {"segment.ms": "5", **FOR_EVER}),
        ({"retention.ms": "5"}, {"retention.ms": "5"}),
        ({"cleanup.policy": "compact"}, {"cleanup.policy": "compact"}),
    ):
        found = planned({0: broker({T0: log()}, configs={"t": TopicProperties(own, 0)})})
        assert found.topics["t"].config == after
        assert ("retention unknown" in kinds(found)) is (after != own)
    internal = {GROUP_METADATA: TopicProperties({"segment.bytes": "99999"}, 0)}
    found = planned({0: broker({TopicPartition(GROUP_METADATA, 0): log()}, configs=internal)})
    usual = {"cleanup.policy": "compact", "segment.bytes": "99999"}
    assert found.topics[GROUP_METADATA].config == usual


def test_topic_properties_say_all_and_the_latest_counts() -> None:
    configs = [TopicProperties({"retention.ms": str(n)}, n) for n in (3, 4)]
    found = planned({n: broker({T0: log()}, configs={"t": each}) for n, each in enumerate(configs)})
    assert found.topics["t"].config == {"retention.ms": "4"}
    assert planned({0: broker({T0: log()})}).topics["t"].config == {}
    assert planned({0: broker({T0: log()}, configs={})}).topics["t"].config == FOR_EVER


def test_the_topics_of_coordinators_are_compacted() -> None:
    found = planned({0: broker({TopicPartition(GROUP_METADATA, 0): log()}, configs={})})
    assert found.topics[GROUP_METADATA].config == {"cleanup.policy": "compact"}


def test_keys_that_are_not_known_are_left_out() -> None:
    config = {"retention.ms": "5", "confluent.tier.enable": "true", "segment.bytes": "many"}
    found = planned({0: broker({T0: log()})}, image({0: ((0,), (0,), 1)}, config))
    assert found.topics["t"].config == {"retention.ms": "5"}
    (note,) = (each for each in found.report.notes if each.kind == "unknown configuration")
    assert note.names == ("t: confluent.tier.enable", "t: segment.bytes")


def test_records_past_their_retention_are_named() -> None:
    known = image({0: ((0,), (0,), 1)}, {"retention.ms": "1000"})
    for age, is_named in ((1001, True), (999, False)):
        here = {0: broker({T0: log(oldest_ms=NOW_MS - age)})}
        assert ("past their retention" in kinds(planned(here, known))) is is_named
        assert "past their retention" not in kinds(planned(here, known, read_only=True))


def test_writes_that_nobody_takes_are_named() -> None:
    known = image({0: ((0, 1, 2), (0, 1), 1)}, {"min.insync.replicas": "2", "retention.ms": "1"})
    assert "too few replicas" in kinds(planned({0: broker({T0: log()})}, known))
    both = {b: broker({T0: log()}) for b in (0, 1)}
    assert "too few replicas" not in kinds(planned(both, known))


# -- coordinators ----------------------------------------------------------------------------------


def _placed(place: Any, count: int = 50) -> FoundBroker:
    keys: dict[int, set[str]] = {}
    for name in ("a", "orders", "audit-1", "billing-2", "simple-3"):
        keys.setdefault(place(name, count), set()).add(name)
    states = {
        n: CoordinatorState(frozenset(own), dict.fromkeys([(key, T0) for key in own], 5))
        for n, own in ((n, keys.get(n, ())) for n in range(count))
    }
    logs = {TopicPartition(GROUP_METADATA, n): log(state=state) for n, state in states.items()}
    return broker(logs, configs={})


def test_the_place_of_keys_is_told_by_the_keys() -> None:
    assert not planned({0: _placed(partition_for)}).masked
    assert planned({0: _placed(masked_partition_for)}).masked == {GROUP_METADATA}
    found = planned({0: _placed(lambda name, count: 1)})
    assert not found.masked
    assert "misplaced keys" in kinds(found)
    assert (found.report.groups, found.report.offsets) == (5, 5)


@pytest.mark.parametrize(("count", "found"), [(50, 50), (64, 64), (7, 7)])
def test_the_number_of_partitions_is_told_by_the_keys(count: int, found: int) -> None:
    """A broker of three may not have the last ones; ``java_hash`` then leads elsewhere."""
    whole = _placed(partition_for, count)
    part = {tp: log for tp, log in whole.logs.items() if log.state and log.state.keys}
    assert len(part) < count
    adopted = planned({0: whole._replace(logs=part)})
    assert len(adopted.topics[GROUP_METADATA].partitions) == found
    assert adopted.report.groups == 5
    empty = TopicPartition(GROUP_METADATA, 3)
    adopted = planned({0: whole._replace(logs={empty: log(state=CoordinatorState())})})
    assert len(adopted.topics[GROUP_METADATA].partitions) == 50


def test_transactions_without_a_coordinator_are_named() -> None:
    tx = TopicPartition(TRANSACTION_STATE, 0)
    state = CoordinatorState(frozenset({"a"}), open=frozenset({5}))
    logs = {
        T0: log(open_producers=(5,)),
        TopicPartition("t", 1): log(open_producers=(5, 6)),
        tx: log(topic_id=OTHER, state=state),
    }
    notes = {note.kind: note.names for note in planned({0: broker(logs)}).report.notes}
    assert notes["open transactions"] == ("t-0", "t-1")
    assert notes["hanging transactions"] == ("t-1",)


def test_what_is_not_carried_is_counted() -> None:
    others = {"share groups": frozenset({"s", "r"}), "consumer groups": frozenset({"c"})}
    logs = {TopicPartition(GROUP_METADATA, 0): log(state=CoordinatorState(others=others))}
    known = image({0: ((0,), (0,), 1)}, left_out={"ACLs": 3})
    topics = {
        GROUP_METADATA: TopicImage(
            GROUP_METADATA, ONE, {0: PartitionRegistration((0,), (0,), 0, 1, 0)}
        )
    }
    report = planned({0: broker(logs)}, known._replace(topics=topics)).report
    assert "not carried: ACLs: 3" in report.lines()
    assert "not carried: share groups: 2 are not served (r, s)" in report.lines()
    notes = report.to_json()["notes"]
    assert isinstance(notes, list)
    assert report.to_json()["transactionalIds"] == 0
    assert {"kind": "not carried: ACLs", "text": "", "count": 3, "names": ()} in notes
