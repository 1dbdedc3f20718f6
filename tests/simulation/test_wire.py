"""Schedules in which brokers speak in bytes (X-120)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from replication.common.messages import Request
from replication.protocol import ApiKey
from replication.replica_manager import fetch_sessions
from replication.simulator.search.plan_generator import draw_plan
from replication.simulator.search.run import run_plan
from replication.simulator.world.plan import SchedulePlan, SearchOptions
from replication.simulator.world.wire import OLDER, Call, SimWire
from replication.wire.calls import TRANSLATIONS


def plan_of(seed: int, *, wire: bool = True) -> SchedulePlan:
    return replace(draw_plan(seed, SearchOptions()), wire=wire)


def test_a_third_of_the_schedules_has_bytes() -> None:
    found = [draw_plan(seed, SearchOptions(events=10)).wire for seed in range(60)]
    assert 12 < sum(found) < 28


@pytest.mark.slow
def test_what_brokers_ask_each_other_goes_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the versions of both, of which some are earlier ones. The same plan gives the same run."""
    sent: Counter[tuple[ApiKey, int]] = Counter()
    send = SimWire.send

    def noted(wire: SimWire, call: Call, request: Request) -> None:
        send(wire, call, request)
        assert call.lane is not None
        key = TRANSLATIONS[type(request)].api_key
        for each in call.lane.lane.calls:
            sent[key, each.version] += 1

    monkeypatch.setattr(SimWire, "send", noted)
    plans = [plan_of(seed) for seed in (0, 6)]
    results = [run_plan(plan) for plan in plans]
    assert [result.violations for result in results] == [[], []]
    keys = {key for key, _ in sent}
    assert keys >= {
        ApiKey.FETCH,
        ApiKey.LEADER_AND_ISR,
        ApiKey.UPDATE_METADATA,
        ApiKey.ALTER_PARTITION,
    }
    versions = {version for key, version in sent if key is ApiKey.FETCH}
    assert min(versions) == OLDER[ApiKey.FETCH] < max(versions)
    monkeypatch.setattr(SimWire, "send", send)
    assert run_plan(plans[0]).trace_hash == results[0].trace_hash


@pytest.mark.slow
def test_bytes_find_what_values_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that knows a partition by the name of its topic has two places for it: over a wire
    the name comes later."""
    monkeypatch.setattr(fetch_sessions, "_key", lambda tp, topic_id: (tp, topic_id))
    seeds = range(2, 5)
    assert [run_plan(plan_of(seed, wire=False)).violations for seed in seeds] == [[], [], []]
    assert any(run_plan(plan_of(seed)).violations for seed in seeds)
