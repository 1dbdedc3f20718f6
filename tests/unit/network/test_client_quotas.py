"""Quotas of clients: how long each is held back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replication.network import ClientQuota, ClientQuotas, Direction, NetworkConfig


def make(rate: int = 1000, window_ms: int = 10_000) -> tuple[ClientQuota, list[int]]:
    now = [1_000_000]
    return ClientQuota(rate, window_ms, lambda: now[0]), now


def test_a_window_may_come_at_once() -> None:
    quota, _ = make()
    assert quota.record("a", 10_000) == 0
    assert quota.record("a", 500) == 500
    assert quota.record("b", 10_000) == 0


def test_a_debt_is_paid_at_the_rate() -> None:
    quota, now = make()
    quota.record("a", 11_000)
    now[0] += 999
    assert quota.record("a", 0) == 1
    now[0] += 501
    assert quota.record("a", 1000) == 500


def test_nothing_holds_a_client_back_for_longer_than_a_window() -> None:
    quota, _ = make()
    assert quota.record("a", 1 << 40) == 10_000


@given(
    sizes=st.lists(st.integers(0, 20_000), min_size=1, max_size=50), rate=st.integers(1, 100_000)
)
def test_a_client_that_waits_keeps_to_its_quota(sizes: list[int], rate: int) -> None:
    """Over any time, at most a window's worth more than the rate allows."""
    quota, now = make(rate)
    began = now[0]
    for size in sizes:
        size = min(size, rate * 10)
        throttle_ms = quota.record("a", size)
        now[0] += throttle_ms
    sent = sum(min(size, rate * 10) for size in sizes)
    elapsed_ms = now[0] - began
    assert sent <= rate * (elapsed_ms + 10_000 + len(sizes)) / 1000


def test_clients_that_owe_nothing_are_forgotten() -> None:
    """And those that owe something are not, however many there are."""
    quota, now = make()
    for n in range(1000):
        quota.record(f"debtor-{n}", 60_000)
    for n in range(20_000):
        now[0] += 1
        quota.record(f"client-{n}", 1)
    assert len(quota._paid_ms) < 1000 + 2 * 10_000  # two windows of new clients
    assert all(quota.record(f"debtor-{n}", 0) == 10_000 for n in range(1000))


def test_quotas_by_their_keys() -> None:
    config = NetworkConfig.from_properties({"quota.producer.default": "5000"})
    quotas = ClientQuotas(config, lambda: 1_000_000)
    quota = quotas.of(Direction.PRODUCE)
    assert quota is not None
    assert quota.record("a", 55_000) == 1000
    assert quotas.of(Direction.FETCH) is None
