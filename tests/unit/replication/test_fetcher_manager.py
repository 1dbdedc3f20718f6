"""Which fetcher follows which partition (R-111), and what metrics show of them (R-160, R-166)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints.types import TopicPartition
from replication.fetcher.fetcher_manager import fetcher_id
from replication.fetcher.fetcher_state import InitialFetchState
from tests.support.fetchers import LEADER, TP, Stage, fetched


@pytest.mark.parametrize(
    ("topic", "partition", "fetchers", "expected"),
    [
        ("orders", 3, 4, 2),  # the example of R-111
        ("", 0, 7, 0),
        ("a", 0, 1000, 31 * 97 % 1000),
        ("a", 5, 1, 0),
        ("ß€", 0, 1 << 31, 31 * (0xDF * 31 + 0x20AC)),
        ("\U0001f600", 0, 1 << 31, 31 * (0xD83D * 31 + 0xDE00)),  # two UTF-16 units, as Java counts
    ],
)
def test_fetcher_id(topic: str, partition: int, fetchers: int, expected: int) -> None:
    assert fetcher_id(TopicPartition(topic, partition), fetchers) == expected


def test_fetcher_id_of_the_smallest_integer() -> None:
    """Kafka's ``Utils.abs``: |−2³¹| counts as 0 (R-111)."""
    topic = "orders"
    code = -1008770331
    partition = (-(1 << 31) - 31 * code) % (1 << 32)
    assert fetcher_id(TopicPartition(topic, partition), 5) == 0
    assert fetcher_id(TopicPartition(topic, partition + 1), 1 << 31) == (1 << 31) - 1


@given(st.text(max_size=30), st.integers(0, 2**31 - 1), st.integers(1, 100))
def test_fetcher_id_is_in_range(topic: str, partition: int, fetchers: int) -> None:
    assert 0 <= fetcher_id(TopicPartition(topic, partition), fetchers) < fetchers


def test_another_leader() -> None:
    """A partition has one fetcher: with another leader it leaves the former one, whose late answer
    does nothing."""
    stage = Stage()
    stage.lead(1)
    stage.hold()
    stage.follow(1)
    stage.produce()
    late = stage.leader.answer(stage.request())
    stage.follower.become(3, 2)
    stage.manager.add_fetchers({TP: (3, InitialFetchState(None, 2, 0))})
    first, second = stage.manager.fetchers
    assert (first.partitions(), second.partitions()) == ([], [TP])
    stage.reply(late)
    assert stage.end == 0
    assert [sent.broker_id for sent in stage.wire.sent] == [3]
    stage.manager.close_idle()
    assert stage.manager.fetchers == (second,)


def test_one_fetcher_for_each_leader_and_id() -> None:
    stage = Stage(num_replica_fetchers=2)
    tps = [TopicPartition("orders", i) for i in range(4)]
    for tp in tps:
        stage.follower.become(LEADER, 1, tp)
    stage.manager.add_fetchers(
        {tp: (1 + tp.partition // 2, InitialFetchState(None, 1, 0)) for tp in tps}
    )
    names = {fetcher.name: fetcher.partitions() for fetcher in stage.manager.fetchers}
    assert sorted(names) == [f"ReplicaFetcherThread-{n}-{b}" for n in (0, 1) for b in (1, 2)]
    assert all(len(partitions) == 1 for partitions in names.values())


def test_figures() -> None:
    stage = Stage()
    assert (stage.manager.max_lag, stage.manager.min_fetch_rate) == (0, 0.0)
    stage.lead(1)
    stage.hold()
    stage.follow(1)
    stage.produce(3)
    stage.exchange()
    (fetcher,) = stage.manager.fetchers
    size = stage.follower.log().size
    assert (fetcher.requests, fetcher.bytes) == (2, size)
    stage.clock.advance(10_000)
    assert stage.manager.min_fetch_rate == pytest.approx(0.2)
    stage.reply(fetched(high_watermark=10, log_start_offset=0))
    assert stage.manager.max_lag == 7
    assert stage.manager.replication_bytes_in == size
    stage.manager.close()
    assert stage.manager.fetchers == ()
    assert stage.manager.replication_bytes_in == size


def test_nothing_is_followed_after_the_end() -> None:
    """An order of the controller that is under way while the broker stops comes through later; the
    log is closed by then."""
    stage = Stage()
    stage.lead(1)
    stage.manager.close()
    stage.follow(1)
    assert stage.manager.fetchers == ()
    assert not stage.manager.is_fetched(TP)
