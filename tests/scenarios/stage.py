"""The stage of the scenarios: without a script every message arrives at once and in order, so the
same script is the same run.

The oracle of the simulator looks on after each event, and ``finish`` is the epilogue of every
scenario: everything heals, and all invariants hold. The controller is on X, which has no replica; Y
takes over from it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, ClassVar

from checkpoints.types import TopicPartition
from logstore.testing.faulty import SimulatedCrash
from replication.broker.broker import BrokerState
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    FetchRequest,
    LeaderAndIsrRequest,
)
from replication.simulator.matrix.cluster import ClientAnswer, StagedCluster
from replication.simulator.matrix.holds import Hold
from replication.simulator.oracle.invariants import Oracle
from replication.simulator.oracle.validations import pending_reason, validate
from replication.simulator.world.scheduler import Event, Scheduler


class PromptScheduler(Scheduler):
    """Nothing takes time; only seeds are drawn."""

    def below(self, bound: int) -> int:
        return super().below(bound) if bound > 1 << 24 else 0


class Stage(StagedCluster):
    """See the module.

    Args:
        replicas: the assignment; the first one leads, or the next one of the next partition.
        exempt: invariants that the scenario allows to break; what broke is in ``exempted``.
        chance: delays are drawn from the seed, too.
        options: the other ones of ``StagedCluster``.
    """

    config: ClassVar[dict[str, Any]] = {
        "replica_lag_time_max_ms": 900,
        "replica_fetch_wait_max_ms": 400,
        "replica_fetch_backoff_ms": 100,
        "high_watermark_checkpoint_interval_ms": 1000,
    }

    def __init__(
        self,
        replicas: str = "ABC",
        *,
        controllers: str = "X",
        exempt: tuple[str, ...] = (),
        seed: int = 0,
        chance: bool = False,
        **options: Any,
    ) -> None:
        brokers = "".join(sorted(replicas))
        scheduler = (Scheduler if chance else PromptScheduler)(random.Random(seed))
        super().__init__(brokers + controllers, scheduler, seed=seed, **options)
        self.exempted: list[str] = []
        self._exempt = exempt
        self._write_count = 0
        self.oracle = Oracle(self.cluster, self.tps, knows_faults=False)
        self.cluster.on_start, self.cluster.on_end = self.oracle.started, self.oracle.ended
        for name in controllers + brokers:
            self.start(name)
        self.create(replicas)
        self.until_quiet()

    def _do(self, event: Event) -> None:
        node = None if event.process is None else event.process.node
        machine = None if node is None else self.cluster.machines.get(node)
        try:
            event.task()
        except SimulatedCrash:
            assert machine is not None
            self.cluster.disk_crashed(machine)
        self.oracle.after_event(node)
        if machine is not None and machine.up and machine.disk.stopped:
            self.cluster.disk_crashed(machine)
        if self.oracle.violations:
            self._judge(self.oracle.violations)
            self.oracle.violations.clear()

    def _judge(self, violations: Iterable[str]) -> None:
        for violation in violations:
            assert violation.split()[0] in self._exempt, violation
            self.exempted.append(violation)

    def until_quiet(self) -> None:
        """Until every replica is up, in sync, and holds and commits the same (I-24)."""
        deadline_ms = self.scheduler.now_ms + self.limit_ms
        while missing := pending_reason(self.cluster, self.oracle):
            assert self.scheduler.now_ms < deadline_ms, f"I-24: {missing}"
            self.run(100)

    def until_in_sync(self, names: str) -> None:
        """Until the ISR is just these."""
        self.wait_for(f"in sync are {names}", lambda: self.isr == names)

    def finish(self) -> None:
        """The epilogue of every scenario: heal, wait, check all invariants."""
        self.heal()
        for name in self.ids:
            self.start(name)
        self.until_quiet()
        for tp in self.tps:
            last = self.produce(self.leader_of(tp), b"last", tp=tp)
            assert last.code is ErrorCode.NONE, f"I-24: {last.code}"
        self.until_quiet()
        self._judge(self.history.violations)
        self._judge(validate(self.cluster, self.oracle, self.history))

    # -- messages --------------------------------------------------------------------------------

    def hold_fetches(self, name: str) -> Hold:
        """What a follower asks for."""
        return self.hold(name, None, FetchRequest)

    def hold_proposals(self, name: str) -> Hold:
        """ISR changes of a leader."""
        return self.hold(name, None, AlterPartitionRequest)

    def hold_verdicts(self, name: str) -> Hold:
        """The controller's answers to them."""
        return self.hold(None, name, AlterPartitionResponse)

    def hold_roles(self, name: str) -> Hold:
        """What the controller tells a broker to be."""
        return self.hold(None, name, LeaderAndIsrRequest)

    def isolate(self, name: str, *, receives: bool = False, sends: bool = False) -> None:
        """From all other brokers, at most but for one way, and from the coordinator, whose sessions
        need both ways; clients still reach it."""
        cut = self.cluster.network.weather.cut
        for other in self.ids.values():
            if other != self.ids[name]:
                if not receives:
                    cut[other, self.ids[name]] = "one-way-partition"
                if not sends:
                    cut[self.ids[name], other] = "one-way-partition"
        self.cluster.cut_off(self.ids[name])

    def heal_links(self) -> None:
        """Brokers reach each other and the coordinator again."""
        self.cluster.network.heal()
        for broker_id, machine in self.cluster.machines.items():
            if machine.cut_off:
                self.cluster.reconnect(broker_id)

    def heal(self) -> None:
        """Links carry again, and what was held arrives."""
        self.heal_links()
        for hold in self._holds:
            hold.end()
        self._holds.clear()

    # -- lives -----------------------------------------------------------------------------------

    def begin_stop(self, name: str) -> None:
        """A clean stop, controlled as far as the controller answers; a second later it returns."""
        self.cluster.stop(self.ids[name], 1000)
        self.run()

    def power_loss_in_write(self, name: str, after: int) -> None:
        """Power fails at the ``after``-th change of its disk from now, and leaves of what was not
        synced whatever the seed says: sectors, a prefix, zeros."""
        machine = self.machine(name)
        machine.at_disk_crash = lambda: self.cluster.crash(machine.broker_id, "random", None)
        machine.disk.crash_after(after)

    def is_running(self, name: str) -> bool:
        return self.is_up(name) and self.broker(name).state is BrokerState.RUNNING

    # -- looking ---------------------------------------------------------------------------------

    def values(self, name: str) -> list[bytes]:
        """All records of a replica, committed or not."""
        return [bytes(record.value or b"") for record in self.log(name).records()]

    def runs(self, name: str) -> list[tuple[int, int]]:
        """``(epoch, start offset)`` of the epochs that have records, or have just begun."""
        return [(entry[0], entry[1]) for entry in self.log(name).epochs.entries]

    @property
    def isr(self) -> str:
        return self.letters(self.now.isr)

    @property
    def elr(self) -> str:
        return self.letters(self.now.elr)

    def letters(self, brokers: Iterable[int]) -> str:
        return "".join(sorted(self.names[broker] for broker in brokers))

    # -- clients ---------------------------------------------------------------------------------

    def produce(
        self,
        name: str,
        *values: bytes,
        acks: int = -1,
        tp: TopicPartition | None = None,
        wait_ms: float | None = None,
        **options: Any,
    ) -> ClientAnswer:
        """One batch, and what the client was told after ``wait_ms``."""
        answer = self.send_batch(name, *values, acks=acks, tp=tp, **options)
        self.run(wait_ms)
        return answer

    def fill(self, name: str, count: int, *, acks: int = 1) -> None:
        """``count`` records, each in a batch of its own."""
        for _ in range(count):
            self._write_count += 1
            answer = self.produce(name, b"%d" % self._write_count, acks=acks)
            assert acks != 1 or answer.code is ErrorCode.NONE, answer.code
