"""The search itself: it repeats a seed exactly, every kind of fault strikes, what it finds is made
small, and the protocol holds."""

from __future__ import annotations

import gc
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from logstore.common.errors import ConfigError
from logstore.testing.faulty_nodes import FaultyFileNode
from replication.common.messages import MetadataRequest, MetadataResponse, Request, Response
from replication.common.transport import OnReply
from replication.simulator.command.simulate import simulate
from replication.simulator.faults.triggers import LEADER
from replication.simulator.oracle.excuses import Excuse
from replication.simulator.oracle.unclean import ELECTIONS
from replication.simulator.search.plan_generator import draw_plan
from replication.simulator.search.run import run_plan, run_seed
from replication.simulator.search.search import Summary, run_seeds, search
from replication.simulator.search.shrink import number_of, shrink
from replication.simulator.world.cluster import SimCluster
from replication.simulator.world.fault_kinds import (
    ANOTHER_MINIMUM,
    COMPACTION,
    GIVEN_UP,
    GROUPS,
    IDENTITY,
    KINDS,
    SLOW_ROLES,
    UNCLEAN_ELECTION,
    expand,
)
from replication.simulator.world.loss_budget import LossBudget
from replication.simulator.world.network import SOCKET_TIMEOUT_MS, Network, SimTransport
from replication.simulator.world.plan import PlannedFault, SchedulePlan, SearchOptions, plan_size
from replication.simulator.world.scheduler import START_US, Process, Scheduler, SimClock, SimRuntime
from tests.mutants import mutated, replication  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
REGRESSIONS = sorted((Path(__file__).parent / "regressions").glob("*.json"))
ANSWER = MetadataResponse((), 0, ())


def drain(scheduler: Scheduler, until_ms: int = 10_000) -> None:
    until_us = START_US + until_ms * 1000
    while (event := scheduler.next_event(until_us)) is not None:
        event.task()


class TestScheduler:
    def test_events_of_one_time_keep_their_order(self) -> None:
        scheduler, ran = Scheduler(random.Random(1)), list[int]()
        for number in range(5):
            scheduler.after(10, None, "", lambda number=number: ran.append(number))
        drain(scheduler)
        assert ran == [0, 1, 2, 3, 4]

    def test_an_actor_keeps_the_order_of_posting(self) -> None:
        scheduler, ran = Scheduler(random.Random(1)), list[int]()
        actor = SimRuntime(scheduler, Process("b0", 0), SimClock(scheduler)).actor("one")
        for number in range(50):
            actor.post(lambda number=number: ran.append(number))
        drain(scheduler)
        assert ran == list(range(50))

    def test_events_of_the_dead_vanish(self) -> None:
        scheduler, process, ran = Scheduler(random.Random(1)), Process("b0", 0), list[str]()
        scheduler.after(10, process, "", lambda: ran.append("never"))
        process.alive = False
        drain(scheduler)
        assert not ran

    def test_f29_a_pause_holds_events_back_and_loses_none(self) -> None:
        scheduler, process, ran = Scheduler(random.Random(1)), Process("b0", 0), list[int]()
        for delay in (1000, 2000):
            scheduler.after(delay, process, "", lambda: ran.append(scheduler.now_us - START_US))
        process.stall(START_US + 5000)
        drain(scheduler)
        assert ran == [5000, 5000]

    def test_f30_f31_wall_clocks_move_alone(self) -> None:
        scheduler = Scheduler(random.Random(1))
        one, other = SimClock(scheduler), SimClock(scheduler)
        other.offset_ms, other.drift = -500, 0.5
        drain(scheduler, 1000)
        assert one.monotonic_ns() == other.monotonic_ns()
        assert other.wall_ms() - one.wall_ms() == -500 + 500


class TestNetwork:
    def setup_method(self) -> None:
        self.struck: Counter[str] = Counter()
        self.scheduler = Scheduler(random.Random(1))
        self.network = Network(self.scheduler, self.struck)
        self.sender, self.receiver = Process("b0", 0), Process("b1", 1)
        self.handled: list[Request] = []
        self.replies: list[Response | None] = []
        self.network.bind(self.receiver, self.handle)

    def handle(self, request: Request, reply: OnReply) -> None:
        self.handled.append(request)
        reply(ANSWER)

    def send(self) -> list[Response | None]:
        SimTransport(self.network, self.sender).send(1, MetadataRequest(), self.replies.append)
        drain(self.scheduler)
        return self.replies

    def test_an_answer_comes_once(self) -> None:
        assert self.send() == [ANSWER]

    @pytest.mark.parametrize(
        ("kind", "handled"), [("message-loss", 0), ("connection-reset", 1), ("half-open-peer", 1)]
    )
    def test_no_answer_is_none(self, kind: str, handled: int) -> None:
        self.network.weather.rates[kind] = 1.0
        assert self.send() == [None]
        assert len(self.handled) == handled
        assert self.struck[kind] == 1

    def test_a_repeated_request_is_handled_twice_and_answered_once(self) -> None:
        self.network.weather.rates["message-twice"] = 1.0
        assert self.send() == [ANSWER]
        assert len(self.handled) == 2

    def test_a_cut_of_the_way_back_loses_the_answer(self) -> None:
        self.network.weather.cut[1, 0] = "one-way-partition"
        assert self.send() == [None]
        assert len(self.handled) == 1
        assert self.scheduler.now_ms - START_US // 1000 >= SOCKET_TIMEOUT_MS

    def test_a_clogged_link_delivers_late(self) -> None:
        self.network.weather.clogged[0, 1] = START_US + 300_000
        assert self.send() == [ANSWER]
        assert self.struck["link-clog"] == 1

    def test_a_dead_receiver_resets_the_connection(self) -> None:
        self.network.unbind(1)
        assert self.send() == [None]
        assert not self.handled


class TestAtlas:
    def test_flush_os_one_of_three_may_forget(self) -> None:
        atlas = LossBudget(1, power_loss_is_safe=False)
        assert atlas.may_lose_power(0)
        atlas.stopped(0, forgets=True)
        assert not atlas.may_lose_power(1)
        assert not atlas.may_stop(1)
        assert atlas.may_stop(0)
        atlas.all_in_sync()
        assert atlas.may_lose_power(1)

    def test_flush_ack_all_may_lose_power(self) -> None:
        atlas = LossBudget(1, power_loss_is_safe=True)
        for broker in range(3):
            assert atlas.may_lose_power(broker)
            atlas.stopped(broker)
        assert not atlas.may_forget(0)

    def test_damage_at_rest_is_not_forgotten(self) -> None:
        atlas = LossBudget(1, power_loss_is_safe=True)
        atlas.damaged(2)
        atlas.all_in_sync()
        assert not atlas.may_forget(1)
        atlas.wiped(2)
        atlas.all_in_sync()
        assert atlas.may_forget(1)


class TestPlans:
    def test_a_plan_is_kept_as_json(self) -> None:
        plan = draw_plan(7, SearchOptions())
        assert SchedulePlan.from_json(plan.to_json()) == plan

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"faults": 1}'])
    def test_hostile_json_is_an_error(self, text: str) -> None:
        with pytest.raises(ConfigError):
            SchedulePlan.from_json(text)

    @pytest.mark.parametrize("data", [b"\xff\xfe\x00bad", b"[" * 100_000], ids=["bytes", "deep"])
    def test_a_file_that_is_no_json(self, data: bytes) -> None:
        with pytest.raises(ConfigError):
            SchedulePlan.from_json(data)

    def test_the_command_says_so(self, tmp_path: Path) -> None:
        path = tmp_path / "plan.json"
        path.write_bytes(b"\xff\xfe\x00bad")
        for arguments in (["--replay", str(path)], ["--save", str(tmp_path / "none" / "x")]):
            result = CliRunner().invoke(simulate, arguments)
            assert (result.exit_code, type(result.exception)) == (2, SystemExit)
        assert CliRunner().invoke(simulate, ["--schedules", "0"]).exit_code == 2

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("seed", 1.5),
            ("seed", "x"),
            ("truncation", "none"),
            ("flush", "never"),
            ("brokers", 0),
            ("brokers", "3"),
            ("brokers", True),
            ("partitions", 0),
            ("idempotent", []),
            ("idempotent", [1]),
            ("duration_ms", -5),
            ("segment_bytes", 0),
            ("faults", [{"at_ms": 1, "kind": "no-such-kind", "others": []}]),
            ("faults", [{"at_ms": 1, "kind": "message-loss", "others": ["1"]}]),
            ("operations", [{"at_ms": 1, "kind": "dance"}]),
            ("operations", [{"at_ms": None, "kind": "produce"}]),
        ],
    )
    def test_a_value_that_no_run_can_have(self, name: str, value: object) -> None:
        data = {**json.loads(draw_plan(7, SearchOptions()).to_json()), name: value}
        with pytest.raises(ConfigError, match="not a plan"):
            SchedulePlan.from_json(json.dumps(data))

    def test_kinds_and_groups(self) -> None:
        assert len(KINDS) == 51
        beside = {
            UNCLEAN_ELECTION,
            ANOTHER_MINIMUM,
            GIVEN_UP,
            COMPACTION,
            SLOW_ROLES,
            *IDENTITY,
        }  # the first allows losses
        assert {*KINDS} - {*expand(["all"])} == beside
        assert beside == {*expand(["unclean", "admin", "compaction", "identity", "roles"])}
        assert expand(["power-loss", "clock"]) == (
            "power-loss",
            "pause",
            "clock-jump",
            "clock-drift",
        )
        assert expand(["torn-write"]) == ("partial-power-loss",)
        with pytest.raises(ConfigError, match="no fault or group 'no-such-kind'"):
            expand(["no-such-kind"])

    def test_the_docs_list_the_kinds(self) -> None:
        """docs/simulator.md says of each kind what the code says, and names one of its groups."""
        page = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()
        rows = re.findall(r"^\| `([\w-]+)` \| `(\w+)` \| (.+) \|$", page, re.MULTILINE)
        assert {kind: what for kind, _, what in rows} == KINDS
        assert all(kind in GROUPS[group] for kind, group, _ in rows)

    @pytest.mark.parametrize("flush", ["ack", "os"])
    def test_options_are_kept_to(self, flush: str) -> None:
        options = SearchOptions(faults=("net",), flush=flush, brokers=4)
        for seed in range(20):
            plan = draw_plan(seed, options)
            assert plan.flush == flush
            assert {fault.kind for fault in plan.faults} <= {*GROUPS["net"]}
            assert all(fault.broker < 4 for fault in plan.faults)


class TestDeterminism:
    """I-25."""

    def test_a_seed_is_a_run(self) -> None:
        options = SearchOptions(events=50)
        first, again, other = (run_seed(seed, options, keep_trace=True) for seed in (11, 11, 12))
        assert first.trace == again.trace
        assert first.trace_hash == again.trace_hash != other.trace_hash

    @pytest.mark.slow
    def test_nothing_of_a_schedule_stays_in_memory(self) -> None:
        """Neither in a call, nor from one call to the next."""
        counts = []
        for _ in range(3):
            run_seeds(70, 2, SearchOptions(faults=("crash",), events=60))
            kinds = Counter(type(item) for item in gc.get_objects())
            counts.append((kinds[SimCluster], kinds[FaultyFileNode]))
        assert counts[0] == counts[1] == counts[2]

    @pytest.mark.slow
    def test_the_seed_of_hashes_does_not_matter(self) -> None:
        code = (
            "from replication.simulator.matrix import *\n"
            "from replication.simulator.world.plan import SearchOptions\n"
            "from replication.simulator.search.run import run_seed\n"
            "print([run_seed(s, SearchOptions(events=100)).trace_hash for s in range(30, 34)])\n"
            "print(to_json(run_cells([s for s in SCENARIOS if s.name == 'S-28 os'], [DEFAULT])))"
        )
        outputs = {
            subprocess.run(
                [sys.executable, "-c", code],
                cwd=ROOT,
                check=True,
                capture_output=True,
                text=True,
                env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            ).stdout
            for seed in ("1", "2")
        }
        assert len(outputs) == 1


def run_block(first: int, *faults: str, count: int = 20) -> Summary:
    """Schedules that all hold; ``logstore simulate --schedules N`` runs more."""
    summary = search(first, count, SearchOptions(faults=faults))
    assert [failed.violations for failed in summary.failures] == []
    return summary


@pytest.mark.slow
class TestProtocol:
    @pytest.mark.parametrize("first", range(70_000, 70_060, 20))
    def test_directories_that_were_mixed_up_lose_nothing(self, first: int) -> None:
        """Also where brokers crash, and links are cut."""
        counters = run_block(first, "all", "identity").counters
        assert sum(counters[kind] for kind in IDENTITY) >= 15

    @pytest.mark.parametrize("first", range(50_000, 50_600, 40))
    def test_schedules_hold_and_reach_what_matters(self, first: int) -> None:
        counters = run_block(first, "all", count=40).counters
        reached = (
            "ELR used",
            "ISR expansions",
            "ISR shrinks",
            "clean stops",
            "recoveries",
            "writes ok",
            "writes unknown",
        )
        assert [name for name in reached if not counters[name]] == []
        assert counters["truncations"] >= 3
        assert counters["elections"] >= 10

    @pytest.mark.parametrize(
        "group", ["net", "crash", "disk", "clock", "controller", "coordinator", "identity"]
    )
    def test_every_fault_of_a_group_strikes(self, group: str) -> None:
        left = {*expand([group])}
        for seed in range(400):  # the rarest strikes in one of sixty
            result = run_seed(seed, SearchOptions(faults=(group,)))
            assert result.violations == []
            left -= {kind for kind in left if result.counters.get(kind)}
            if not left:
                break
        assert not left

    @pytest.mark.parametrize("first", range(60_000, 60_060, 20))
    def test_an_admin_at_the_wrong_time_loses_nothing(self, first: int) -> None:
        summary = run_block(first, "all", "admin")
        assert min(summary.reached[kind] for kind in (ANOTHER_MINIMUM, GIVEN_UP)) >= 3

    @pytest.mark.parametrize("first", range(50_000, 50_100, 20))
    def test_unclean_elections_lose_what_they_may(self, first: int) -> None:
        counters = run_block(first, "all", "unclean").counters
        for name in (UNCLEAN_ELECTION, ELECTIONS, f"excused: {Excuse.ELECTED_UNCLEANLY.value}"):
            assert counters[name] > 2

    def test_truncation_to_the_high_watermark_loses_data(self) -> None:
        """KIP-101 is there for a reason; what KIP-320 is for, the exhaustive check shows."""
        options = SearchOptions(truncation="hw")
        assert any(run_seed(seed, options).failed for seed in range(1, 51))


class TestShrinking:
    @pytest.mark.slow
    def test_a_failure_is_made_small_and_is_the_same(self) -> None:
        plan = draw_plan(3, SearchOptions())
        with mutated("high-watermark-without-followers"):
            small, result = shrink(plan, max_runs=60)
            assert plan_size(small) < plan_size(plan) / 2
            assert number_of(result.violations[0]) == number_of(run_plan(plan).violations[0])
            assert run_plan(small).violations == result.violations

    def test_what_does_not_fail_is_refused(self) -> None:
        with pytest.raises(ValueError, match="fails nowhere"):
            shrink(draw_plan(1, SearchOptions(events=40)))


class TestRegressions:
    """Plans that once broke the protocol (``violation``)."""

    @pytest.mark.slow
    @pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: path.stem)
    def test_it_holds_now(self, path: Path) -> None:
        plan = SchedulePlan.from_json(path.read_text())
        assert plan.violation
        assert run_plan(plan).violations == []


class TestCommand:
    def test_a_schedule_that_holds(self) -> None:
        done = CliRunner().invoke(
            simulate, ["--seed", "1", "--schedules", "1", "--events", "40", "--json"]
        )
        assert done.exit_code == 0
        assert json.loads(done.stdout)["violations"] == []

    def test_one_that_fails_exits_with_1_and_is_saved(self, tmp_path: Path) -> None:
        saved = tmp_path / "plan.json"
        saved.write_text(draw_plan(1, SearchOptions(events=40)).to_json())
        with mutated("high-watermark-without-followers"):
            done = CliRunner().invoke(simulate, ["--replay", str(saved)])
        assert done.exit_code == 1
        assert "I-" in done.stdout

    @pytest.mark.parametrize("arguments", [["--faults", "none-such"], ["--truncation", "x"]])
    def test_bad_arguments_are_told(self, arguments: list[str]) -> None:
        assert CliRunner().invoke(simulate, arguments).exit_code == 2

    def test_kinds_of_faults_are_listed(self) -> None:
        done = CliRunner().invoke(simulate, ["--faults", "?"])
        lines = done.stdout.splitlines()
        assert [line.split()[0] for line in lines if line[0] != " "] == [
            "all",
            "none",
            *(group for group in GROUPS if group not in ("all", "none")),
        ]
        assert {line.split()[0] for line in lines if line[0] == " "} == {*KINDS}
        assert max(map(len, lines)) <= 80


def test_a_broker_that_is_slow_with_its_roles() -> None:
    """It strikes, and no election of others waits for it (I-35)."""
    base = draw_plan(2, SearchOptions(faults=("none",)))
    plan = replace(
        base,
        operations=base.operations[:6],
        duration_ms=5000,
        faults=(
            PlannedFault(300, SLOW_ROLES, 2, 4500, 10_000.0),
            PlannedFault(350, "kill", LEADER, 300),
            PlannedFault(900, "kill", LEADER, 300),
        ),
    )
    result = run_plan(plan)
    assert not result.violations
    assert (result.counters[SLOW_ROLES], result.counters["kill"]) == (1, 2)
