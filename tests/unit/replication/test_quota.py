"""Replication quotas (R-145, R-146), with Kafka's ReplicationQuotaManagerTest under its names."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints.types import TopicPartition
from logstore.common.config import MAX_LONG
from logstore.common.errors import ConfigError
from logstore.testing import ManualClock
from replication.common.quota import ReplicationQuota, SampledRate, parse_throttled_replicas
from tests.support.cases import for_each
from tests.support.replication import ManualRuntime

TPS = [TopicPartition("topic1", i) for i in range(4)]


class TestReplicationQuotaManager:
    def test_should_throttle_only_defined_replicas(self) -> None:
        quota = ReplicationQuota(MAX_LONG, lambda: 0)
        quota.throttle("topic1", [1, 2, 3])
        assert [quota.is_throttled(tp) for tp in TPS] == [False, True, True, True]
        assert not quota.is_throttled(TopicPartition("topic2", 1))

    def test_should_exceed_quota_then_return_back_below_bound_as_time_passes(self) -> None:
        runtime = ManualRuntime(ManualClock())
        quota = ReplicationQuota(100, runtime.now_ms)
        quota.throttle("topic1", None)
        # A full window, at the rate.
        quota.record(TPS[1], 1)
        assert not quota.is_exceeded()
        quota.record(TPS[1], 99)
        assert not quota.is_exceeded()
        quota.record(TPS[1], 1)
        assert quota.is_exceeded()
        runtime.clock.advance(1100)
        assert not quota.is_exceeded()
        runtime.clock.advance(400)
        quota.record(TPS[1], 60)
        assert quota.byte_rate == pytest.approx(161 / 1.5)
        assert quota.is_exceeded()
        runtime.clock.advance(500)
        assert not quota.is_exceeded()

    def test_should_support_wildcard_throttled_replicas(self) -> None:
        quota = ReplicationQuota(MAX_LONG, lambda: 0)
        quota.throttle("topic1", None)
        assert all(quota.is_throttled(tp) for tp in TPS)
        quota.throttle("topic1", [])
        assert not any(quota.is_throttled(tp) for tp in TPS)

    def test_only_listed_replicas_count(self) -> None:
        """R-146."""
        quota = ReplicationQuota(10, lambda: 0)
        quota.throttle("topic1", [0])
        quota.record(TPS[1], 1000)
        assert quota.byte_rate == 0
        quota.record(TPS[0], 11)
        assert quota.is_exceeded()
        assert quota.must_wait(TPS[0], in_sync=False)
        assert not quota.must_wait(TPS[0], in_sync=True)
        assert not quota.must_wait(TPS[1], in_sync=False)
        quota.set_rate(MAX_LONG)
        assert not quota.is_exceeded()

    def test_records_of_many_threads(self) -> None:
        quota = ReplicationQuota(10, lambda: 0)
        quota.throttle("topic1", None)

        def run() -> None:
            for _ in range(500):
                quota.record(TPS[0], 1)

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert quota.byte_rate == 2000


class TestSampledRate:
    def test_windows_are_forgotten(self) -> None:
        """11 windows of 1 s (R-146); one that still overlaps the span counts."""
        rate = SampledRate()
        for second in range(30):
            rate.record(100, second * 1000)
        assert rate.per_second(29_000) == pytest.approx(1100 / 10)
        assert rate.per_second(29_000 + 10_999) == pytest.approx(100 / 10.999)
        assert rate.per_second(29_000 + 11_000) == 0

    def test_window_that_overlaps_the_span(self) -> None:
        """It counts whole, although it began before."""
        rate = SampledRate()
        for now_ms in (0, 900, *range(1000, 12_000, 1000)):
            rate.record(1, now_ms)
        assert rate.per_second(11_000) == pytest.approx(13 / 11)

    def test_nothing_recorded(self) -> None:
        assert SampledRate().per_second(5) == 0

    @given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 10**9)), max_size=60))
    def test_never_above_what_came_in_a_window(self, events: list[tuple[int, int]]) -> None:
        """Not negative, and at most everything recorded over one window."""
        rate, now, total = SampledRate(), 0, 0
        for elapsed, units in events:
            now += elapsed
            total += units
            rate.record(units, now)
            assert 0 <= rate.per_second(now) <= total


class TestThrottledReplicas:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ("", ()),
            ("*", None),
            (" * ", None),
            ("0:1", (0,)),
            ("0:1,0:2,1:2,10:1", (0, 10)),
            ("3:2", ()),
        ],
    )
    def test_values(self, value: str, expected: tuple[int, ...] | None) -> None:
        assert parse_throttled_replicas(value, broker_id=1) == expected

    @for_each("value", ["**", "1", "1:", ":1", "1:2,", "1:2:3", "a:b", "1:-2", "*,1:2"])
    def test_refused(self, value: str) -> None:
        with pytest.raises(ConfigError):
            parse_throttled_replicas(value, broker_id=1)
