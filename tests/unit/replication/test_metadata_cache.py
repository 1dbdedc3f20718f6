"""What a broker knows of the cluster, as the controller tells it, in whatever order it arrives."""

from __future__ import annotations

import uuid

import pytest

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    EPOCH_DURING_DELETE,
    LEADER_DURING_DELETE,
    LeaderAndIsrRequest,
    MetadataRequest,
    PartitionChange,
    UpdateMetadataRequest,
)
from replication.common.state import (
    NO_LEADER,
    BrokerRegistration,
    LiveBroker,
    PartitionRegistration,
)
from replication.replica_manager.metadata_cache import MetadataCache

TP = TopicPartition("orders", 0)
ID = uuid.UUID(int=1)


def broker(broker_id: int, epoch: int, rack: str | None = None) -> LiveBroker:
    return LiveBroker(BrokerRegistration(broker_id, rack=rack), epoch)


def change(
    tp: TopicPartition = TP,
    leader: int = 1,
    epoch: int = 0,
    version: int = 0,
    topic_id: uuid.UUID = ID,
) -> PartitionChange:
    return PartitionChange(
        tp, PartitionRegistration((1, 2, 3), (1, 2), leader, epoch, version), topic_id
    )


def deleted(tp: TopicPartition = TP, topic_id: uuid.UUID = ID) -> PartitionChange:
    return change(tp, LEADER_DURING_DELETE, EPOCH_DURING_DELETE, 0, topic_id)


def told(
    *changes: PartitionChange,
    brokers: tuple[LiveBroker, ...] = (broker(1, 101), broker(2, 102)),
    shutting_down: tuple[int, ...] = (),
    into: MetadataCache | None = None,
) -> MetadataCache:
    cache = into or MetadataCache(1)
    cache.update(UpdateMetadataRequest(9, 1, 101, changes, brokers, shutting_down))
    return cache


class TestBrokers:
    def test_only_live_ones_have_an_epoch(self) -> None:
        cache = told(brokers=(broker(2, 102, "b"),))
        assert (cache.broker_epoch(2), cache.broker_epoch(3)) == (102, -1)
        assert cache.is_alive(2)
        assert not cache.is_alive(3)
        assert cache.rack(2) == "b"
        assert cache.rack(3) is None
        assert list(cache.live_brokers) == [2]

    @pytest.mark.parametrize(
        ("broker_id", "epoch", "eligible"),
        [(2, 102, True), (2, -1, True), (2, 101, False), (2, 103, False), (3, -1, False)],
    )
    def test_eligible_for_an_isr(self, broker_id: int, epoch: int, eligible: bool) -> None:
        """R-31: alive, and of the epoch of its last fetch, or that is unknown."""
        assert told().eligible(broker_id, epoch) is eligible

    def test_not_eligible_while_it_shuts_down(self) -> None:
        """R-31; it is eligible again when the controller says so no more."""
        cache = told(shutting_down=(2,))
        assert not cache.eligible(2, 102)
        assert told(into=cache).eligible(2, 102)

    def test_an_earlier_incarnation_does_not_come_back(self) -> None:
        """A repeated request of the past: the epoch never falls (R-52)."""
        cache = told(brokers=(broker(2, 202),))
        told(brokers=(broker(2, 102),), into=cache)
        assert cache.broker_epoch(2) == 202

    def test_a_leader_and_isr_request_introduces_brokers(self) -> None:
        cache = told(brokers=(broker(1, 101),))
        cache.update(LeaderAndIsrRequest(9, 1, 101, (change(),), (broker(1, 101), broker(2, 7))))
        assert cache.is_alive(2)
        assert cache.registration(TP) is None

    def test_one_of_a_kafka_says_nothing_of_them(self) -> None:
        """X-94."""
        cache = told(brokers=(broker(1, 101), broker(2, 7)))
        cache.update(LeaderAndIsrRequest(9, 1, 101, (change(),), ()))
        assert list(cache.live_brokers) == [1, 2]


class TestPartitions:
    def test_the_newest_registration_counts(self) -> None:
        """Whatever the order of arrival: by leader epoch, then partition epoch (R-50)."""
        cache = told(change(leader=2, epoch=1, version=4))
        told(change(leader=1, epoch=0, version=3), into=cache)
        told(change(leader=1, epoch=1, version=3), into=cache)
        known = cache.registration(TP)
        assert known is not None
        assert (known.leader, known.partition_epoch) == (2, 4)
        told(change(leader=1, epoch=1, version=5), into=cache)
        assert cache.registration(TP) == change(leader=1, epoch=1, version=5).registration

    def test_deletion_tells_what_is_gone(self) -> None:
        cache = told(change(), change(TopicPartition("orders", 1)))
        request = UpdateMetadataRequest(9, 1, 101, (deleted(),), (broker(1, 101),))
        assert cache.update(request) == [TP]
        assert cache.update(request) == []
        assert cache.registration(TP) is None
        assert cache.partitions_of("orders") == [TopicPartition("orders", 1)]
        assert cache.topic_id("orders") == ID
        told(deleted(TopicPartition("orders", 1)), into=cache)
        assert cache.topic_id("orders") is None

    def test_a_topic_created_again_forgets_the_old_one(self) -> None:
        """Its epochs begin at 0 again, and the deletion of the old topic is not meant for it."""
        again = uuid.UUID(int=2)
        cache = told(change(epoch=5, version=9), change(TopicPartition("orders", 1)))
        told(change(topic_id=again), into=cache)
        assert cache.partitions_of("orders") == [TP]
        assert cache.registration(TP) == change().registration
        told(deleted(topic_id=ID), into=cache)
        assert cache.topic_id("orders") == again


class TestDescribe:
    def test_all_topics_in_order(self) -> None:
        tps = [TopicPartition("b", 1), TopicPartition("b", 0), TopicPartition("a", 0)]
        cache = told(*map(change, tps), brokers=(broker(2, 102), broker(1, 101)))
        answer = cache.describe(MetadataRequest(), 7)
        assert [p.tp for p in answer.partitions] == sorted(tps)
        assert [b.registration.broker_id for b in answer.brokers] == [1, 2]
        assert answer.controller_id == 7
        assert answer.topic_ids == {"a": ID, "b": ID}

    def test_only_what_is_asked_for_and_known(self) -> None:
        cache = told(change(), change(TopicPartition("b", 0)))
        answer = cache.describe(MetadataRequest(("b", "unknown")))
        assert [p.tp.topic for p in answer.partitions] == ["b"]

    def test_replicas_that_are_not_alive_are_offline(self) -> None:
        (found,) = told(change()).describe(MetadataRequest()).partitions
        assert (found.error_code, found.leader_id) == (ErrorCode.NONE, 1)
        assert (found.replicas, found.isr, found.offline) == ((1, 2, 3), (1, 2), (3,))

    @pytest.mark.parametrize("leader", [-1, 3])
    def test_no_leader_or_a_dead_one(self, leader: int) -> None:
        (found,) = told(change(leader=leader)).describe(MetadataRequest()).partitions
        assert (found.error_code, found.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)


def test_what_a_full_update_does_not_name_is_gone() -> None:
    """A topic that was deleted, or made anew, while nobody could tell this broker."""
    kept, second, other = TopicPartition("kept", 0), TopicPartition("kept", 1), uuid.UUID(int=2)
    cache = told(change(kept), change(second), change(TP))
    told(into=cache)
    assert cache.registration(TP) is not None  # not a full one
    request = UpdateMetadataRequest(
        9, 2, 101, (change(kept, epoch=5), change(TP, topic_id=other)), (), is_full=True
    )
    assert cache.update(request) == [second]
    assert cache.partitions_of("kept") == [kept]
    assert cache.topic_id("orders") == other
    assert cache.update(request._replace(partitions=())) == [kept, TP]
    assert cache.topic_id("orders") is None


class TestTopics:
    def test_are_found_by_id_and_by_name(self) -> None:
        cache = told(change()._replace(config={"retention.ms": "1"}))
        assert cache.topic_name(ID) == "orders"
        assert cache.topic_id("orders") == ID
        assert cache.topic_config("orders") == {"retention.ms": "1"}
        assert cache.topics == ["orders"]

    def test_an_id_goes_with_its_topic(self) -> None:
        later = uuid.UUID(int=2)
        cache = told(change())
        told(change(topic_id=later), into=cache)
        assert cache.topic_name(ID) is None
        assert cache.topic_name(later) == "orders"
        told(deleted(topic_id=later), into=cache)
        assert cache.topic_name(later) is None
        assert cache.topic_config("orders") is None
        assert cache.topics == []

    def test_watchers_hear_of_every_update(self) -> None:
        cache, heard = MetadataCache(1), []
        cache.watch(lambda: heard.append(cache.topics))
        told(change(), into=cache)
        told(deleted(), into=cache)
        assert heard == [["orders"], []]


def test_partitions_without_a_state_count() -> None:
    """A key's place in an internal topic must not change when the rest becomes known."""
    cache = MetadataCache(1)
    registration = PartitionRegistration((1,), (1,), 1, 0, 0)
    changes = (PartitionChange(TopicPartition("t", 2), registration, None, {}, 5),)
    cache.update(UpdateMetadataRequest(9, 1, 1, changes, ()))
    assert cache.partition_count("t") == 5
    assert cache.partition_count("u") == 0


class TestBesideKafka:
    """X-10, X-92: what the controller of a Kafka in ZooKeeper mode tells, and what ours does."""

    def test_an_epoch_that_is_not_told_is_not_compared(self) -> None:
        cache = told(brokers=(broker(1, 101), broker(2, 102)))
        assert not cache.eligible(2, 103)
        told(brokers=(broker(1, -1), broker(2, -1)), into=cache)
        assert (cache.broker_epoch(2), cache.is_alive(2)) == (-1, True)
        assert cache.eligible(2, 103)
        assert cache.eligible(2, -1)
        assert not cache.eligible(3, -1)

    def test_our_own_epoch_is_that_to_which_the_request_goes(self) -> None:
        cache = told(brokers=(broker(1, -1),))
        assert cache.broker_epoch(1) == 101
        assert not cache.eligible(1, 100)

    def test_leaders_in_a_request_for_roles_are_not_all_brokers(self) -> None:
        cache = told(brokers=(broker(1, 101), broker(2, -1)))
        cache.update(LeaderAndIsrRequest(9, 1, 101, (), (broker(3, -1),)))
        assert sorted(cache.live_brokers) == [1, 2, 3]

    def test_clients_are_answered_once_everything_was_told(self) -> None:
        cache, brokers = MetadataCache(1), (broker(1, 101), broker(2, 102))
        cache.update(LeaderAndIsrRequest(9, 1, 101, (), brokers, 1, is_full=True))
        assert sorted(cache.live_brokers) == [1, 2]
        assert not cache.is_complete
        cache.update(UpdateMetadataRequest(9, 1, 101, (change(),), brokers, (), 2, is_full=True))
        assert cache.is_complete

    def test_a_real_kafka_tells_everything_at_once(self) -> None:
        assert told(brokers=(broker(1, -1),)).is_complete


def test_which_own_replicas_are_behind() -> None:
    """As the last update has it; those of others do not count, nor those without a leader."""
    cache = MetadataCache(1)
    assert cache.replicas_out_of_sync() == ()
    for version, isr, leader, behind in (
        (1, (1, 2), 2, ()),
        (2, (2,), 2, (TP,)),
        (3, (2,), NO_LEADER, ()),
        (4, (1,), 1, ()),
    ):
        made = change(leader=leader, version=version)
        registration = made.registration._replace(replicas=(1, 2), isr=isr)
        told(made._replace(registration=registration), into=cache)
        assert cache.replicas_out_of_sync() == behind
