"""Groups in the simulator: a few schedules, and broken coordinators that it must see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from replication.common.error_codes import ErrorCode
from replication.coordinators.effects import AppendDone
from replication.coordinators.groups.group import ClassicGroup, GroupMember
from replication.coordinators.runtime import CoordinatorRuntime
from replication.simulator.search.run import run_seed
from replication.simulator.world.plan import SearchOptions

SEEDS = 4
OPTIONS = SearchOptions(groups=True, events=80)


@pytest.mark.slow
def test_a_group_on_brokers_that_fail() -> None:
    """``logstore simulate --groups --schedules N`` runs as many as are asked for."""
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        result = run_seed(seed, OPTIONS)
        assert result.violations == [], f"seed {seed}"
        seen.update(result.counters)
    for what in (
        "group commits",
        "group offsets read",
        "group assignments",
        "elections",
    ):
        assert seen[what], f"no schedule met {what!r}"


@pytest.mark.slow
def test_static_members_without_faults() -> None:
    """They keep their assignment over a restart, and fence each other."""
    options = replace(OPTIONS, faults=("none",), events=150)
    seen: Counter[str] = Counter()
    for seed in range(40):
        result = run_seed(seed, options)
        assert result.violations == [], f"seed {seed}"
        seen.update(result.counters)
        if seen["assignments kept over a restart"] and seen["static members fenced"]:
            return
    raise AssertionError(seen)


Patch = Callable[[pytest.MonkeyPatch], None]


def commits_are_answered_before_they_are_committed(patch: pytest.MonkeyPatch) -> None:
    def append(self: CoordinatorRuntime, hosted: Any, effect: Any) -> None:
        unchanged(self, hosted, effect)
        event = AppendDone(effect.token, ErrorCode.NONE)
        self._submit(partial(self._event, hosted, event))
        hosted.appends[-1].on_done = lambda code: None
        hosted.appends[-1].token = None

    unchanged = CoordinatorRuntime._append
    patch.setattr(CoordinatorRuntime, "_append", append)


def a_new_leader_does_not_read_the_log(patch: pytest.MonkeyPatch) -> None:
    def load(self: CoordinatorRuntime, hosted: Any, offset: int, end_offset: int) -> None:
        self._submit(partial(self._loaded, hosted))

    patch.setattr(CoordinatorRuntime, "_load", load)


def a_member_that_restarts_gets_the_share_of_another(patch: pytest.MonkeyPatch) -> None:
    def rename(self: ClassicGroup, member: GroupMember, member_id: str) -> None:
        unchanged(self, member, member_id)
        others = [each for each in self.members.values() if each is not member]
        if others:
            member.assignment, others[0].assignment = others[0].assignment, member.assignment

    unchanged = ClassicGroup.rename
    patch.setattr(ClassicGroup, "rename", rename)


MUTANTS: list[Patch] = [
    a_member_that_restarts_gets_the_share_of_another,
    commits_are_answered_before_they_are_committed,
    a_new_leader_does_not_read_the_log,
]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.__name__)
def test_a_mutant_is_seen(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    found = next((v for s in range(40) if (v := run_seed(s, OPTIONS).violations)), [])
    assert any(each.startswith(("W-", "I-24")) for each in found), found
