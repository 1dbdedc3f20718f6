"""The cluster on the stage: brokers that start, stop and lose power, messages that are kept back,
and time, which moves only in ``run``."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from checkpoints.types import TopicPartition
from logstore.log import ReplicaLog
from logstore.testing.faulty import CrashMode, SimulatedCrash
from replication.broker.broker import Broker, BrokerState
from replication.common.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    FetchRequest,
    LeaderAndIsrRequest,
)
from replication.common.state import PartitionRegistration
from replication.partition import Partition
from replication.simulator.oracle.invariants import Oracle
from replication.simulator.oracle.validations import what_is_missing
from replication.simulator.world.cluster import Machine, SimCluster
from replication.simulator.world.network import SimMessage
from replication.simulator.world.plan import SchedulePlan
from replication.simulator.world.scheduler import US_PER_MS, Scheduler
from tests.scenarios.holds import Hold

TOPIC = "t"
LAG_MS = 900
FETCH_WAIT_MS = 400
SESSION_TIMEOUT_MS = 700
SOCKET_TIMEOUT_MS = 900
NEVER_MS = 10**9
HEAL_LIMIT_MS = 60_000


class PromptScheduler(Scheduler):
    """Nothing takes time; only seeds are drawn."""

    def below(self, bound: int) -> int:
        return super().below(bound) if bound > 1 << 24 else 0


class StagedCluster:
    """See the module.

    Args:
        replicas: the assignment; the first one leads, or the next one of the next partition.
        flush: ``ack``, synced before it counts as replicated, or ``os``.
        elr: ``eligible.leader.replicas.enable``.
        exempt: invariants that the scenario allows to break; what broke is in ``exempted``.
        seed: of the choices that disks make when they lose power; with ``chance``, also of delays.
        log_config: fields of ``LogConfig`` beside those of the simulator.
    """

    def __init__(
        self,
        replicas: str = "ABC",
        *,
        min_isr: int = 1,
        flush: str = "os",
        elr: bool = True,
        partitions: int = 1,
        controllers: str = "X",
        exempt: tuple[str, ...] = (),
        seed: int = 0,
        chance: bool = False,
        truncation: str = "fetch",
        **log_config: Any,
    ) -> None:
        brokers = "".join(sorted(replicas)) + controllers
        self.ids = {name: number for number, name in enumerate(brokers)}
        self.names = {number: name for name, number in self.ids.items()}
        self.tps = [TopicPartition(TOPIC, number) for number in range(partitions)]
        self.tp = self.tps[0]
        self.exempted: list[str] = []
        self._exempt = exempt
        self._holds: list[Hold] = []
        self._counted: list[tuple[type, list[Any]]] = []
        scheduler = Scheduler if chance else PromptScheduler
        self.scheduler = scheduler(random.Random(seed))
        plan = SchedulePlan(
            seed=seed,
            truncation=truncation,
            flush=flush,
            brokers=len(brokers),
            partitions=partitions,
            min_isr=min_isr,
            idempotent=(),
            faults=(),
            operations=(),
            duration_ms=0,
            segment_bytes=1 << 16,
        )
        self.cluster = SimCluster(plan, self.scheduler, Counter(), self._started, self._ended)
        self.cluster.config = replace(
            self.cluster.config,
            eligible_leader_replicas=elr,
            auto_leader_rebalance=False,
            replica_lag_time_max_ms=LAG_MS,
            replica_fetch_wait_max_ms=FETCH_WAIT_MS,
            replica_fetch_backoff_ms=100,
            high_watermark_checkpoint_interval_ms=1000,
        )
        self.cluster.coordinator.session_timeout_ms = SESSION_TIMEOUT_MS
        self.cluster.network.socket_timeout_ms = SOCKET_TIMEOUT_MS
        # Indexes that are not full before the segment is: a roll flushes.
        log_config = {"segment_index_bytes": 4096, **log_config}
        self.cluster.log_config = replace(self.cluster.log_config, **log_config)
        self.cluster.network.gate = self._gate
        self.oracle = Oracle(self.cluster, self.tps, knows_faults=False)

    def _started(self, machine: Machine) -> None:
        self.oracle.started(machine)

    def _ended(self, machine: Machine) -> None:
        self.oracle.ended(machine)

    # -- time ------------------------------------------------------------------------------------

    def run(self, ms: float = 5) -> None:
        """Let time pass: everything that is due happens."""
        self._run_until(self.scheduler.now_us + int(ms * US_PER_MS))

    def _run_until(self, until_us: int) -> None:
        while (event := self.scheduler.next_event(until_us)) is not None:
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

    def until_quiet(self, limit_ms: int = HEAL_LIMIT_MS) -> None:
        """Until every replica is up, in sync, and holds and commits the same (I-24)."""
        deadline_us = self.scheduler.now_us + limit_ms * US_PER_MS
        while missing := what_is_missing(self.cluster, self.oracle):
            assert self.scheduler.now_us < deadline_us, f"I-24: {missing}"
            self.run(100)

    def until_in_sync(self, names: str, limit_ms: int = HEAL_LIMIT_MS) -> None:
        """Until the ISR is just these."""
        deadline_us = self.scheduler.now_us + limit_ms * US_PER_MS
        while self.isr != names:
            assert self.scheduler.now_us < deadline_us, f"the ISR is {self.isr}"
            self.run(100)

    # -- messages --------------------------------------------------------------------------------

    def _gate(self, message: SimMessage) -> None:
        for kind, contents in self._counted:
            if isinstance(message.content, kind):
                contents.append(message.content)
        for hold in self._holds:
            if hold.takes(message):
                hold.messages.append(message)
                return
        message.go(message.content)

    def hold(
        self, source: str | None = None, target: str | None = None, kind: type | None = None
    ) -> Hold:
        """Keep messages back from now on: from, to, and of which type."""
        ids = {**self.ids, None: None}
        hold = Hold(self.run, ids[source], ids[target], kind)
        self._holds.append(hold)
        return hold

    def count(self, kind: type) -> list[Any]:
        """Messages of a type that are sent from now on."""
        contents: list[Any] = []
        self._counted.append((kind, contents))
        return contents

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

    def cut(self, source: str, target: str) -> None:
        """Nothing gets from one to the other any more."""
        self.cluster.network.weather.cut[self.ids[source], self.ids[target]] = "one-way-partition"

    def cut_off(self, name: str, *, receives: bool = False, sends: bool = False) -> None:
        """From all other brokers, at most but for one way, and from the coordinator, whose sessions
        need both ways; clients still reach it."""
        for other in self.ids:
            if other != name:
                if not receives:
                    self.cut(other, name)
                if not sends:
                    self.cut(name, other)
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

    def machine(self, name: str) -> Machine:
        return self.cluster.machines[self.ids[name]]

    def broker(self, name: str) -> Broker:
        broker = self.machine(name).broker
        assert broker is not None, f"{name} is down"
        return broker

    def is_up(self, name: str) -> bool:
        return self.machine(name).up

    def start(self, name: str) -> None:
        self.cluster.start(self.ids[name])
        self.run()

    def begin_stop(self, name: str) -> None:
        """A clean stop, controlled as far as the controller answers; a second later it returns."""
        self.cluster.stop(self.ids[name], 1000)
        self.run()

    def stop(self, name: str) -> None:
        """A clean stop, completed."""
        self.cluster.stop(self.ids[name], NEVER_MS)
        self.run(1000)
        assert not self.is_up(name)

    def kill(self, *names: str, noticed: bool = True) -> None:
        """Processes are gone, their page caches stay.

        ``noticed``: their sessions end at once, one after the other; otherwise when they time out.
        """
        self._crash(names, "all_kept", noticed)

    def power_loss(self, *names: str, noticed: bool = True, mode: CrashMode = "all_lost") -> None:
        """The machine is gone, with all that was not synced."""
        self._crash(names, mode, noticed)

    def power_loss_in_write(self, name: str, after: int) -> None:
        """Power fails at the ``after``-th change of its disk from now, and leaves of what was not
        synced whatever the seed says: sectors, a prefix, zeros."""
        machine = self.machine(name)
        machine.at_disk_crash = lambda: self.cluster.crash(machine.broker_id, "random", NEVER_MS)
        machine.disk.crash_after(after)

    def _crash(self, names: Iterable[str], mode: CrashMode, noticed: bool) -> None:
        sessions = [self.machine(name).session for name in names]
        for name in names:
            self.cluster.crash(self.ids[name], mode, NEVER_MS)
        for session in sessions:
            if noticed and session is not None:
                self.cluster.coordinator.expire(session)
            self.run()

    def expire(self, name: str) -> None:
        """Its session ends; it hears of it when it reaches the coordinator again."""
        session = self.machine(name).session
        assert session is not None
        self.cluster.coordinator.expire(session)
        self.run()

    def flush(self, *names: str) -> None:
        """What is in the page cache reaches the disk."""
        for name in names:
            self.log(name).flush()

    # -- looking ---------------------------------------------------------------------------------

    def partition(self, name: str, tp: TopicPartition | None = None) -> Partition:
        return self.broker(name).replica_manager.partitions[tp or self.tp]

    def log(self, name: str, tp: TopicPartition | None = None) -> ReplicaLog:
        return self.broker(name).log_manager.get(*(tp or self.tp))

    def leo(self, name: str) -> int:
        return self.log(name).log_end_offset

    def hw(self, name: str) -> int:
        return self.log(name).high_watermark

    def values(self, name: str) -> list[bytes]:
        """All records of a replica, committed or not, but for those that ``finish`` wrote."""
        return [bytes(record.value or b"") for record in self.log(name).records()]

    def runs(self, name: str) -> list[tuple[int, int]]:
        """``(epoch, start offset)`` of the epochs that have records, or have just begun."""
        return [(entry[0], entry[1]) for entry in self.log(name).epoch_entries]

    @property
    def now(self) -> PartitionRegistration:
        """The partition as the controller's tree has it."""
        return self.oracle.registrations[self.tp]

    @property
    def epoch(self) -> int:
        return self.now.leader_epoch

    @property
    def leader(self) -> str | None:
        return self.names.get(self.now.leader)

    def leader_of(self, tp: TopicPartition) -> str:
        return self.names[self.oracle.registrations[tp].leader]

    @property
    def isr(self) -> str:
        return self.letters(self.now.isr)

    @property
    def elr(self) -> str:
        return self.letters(self.now.elr)

    def letters(self, brokers: Iterable[int]) -> str:
        return "".join(sorted(self.names[broker] for broker in brokers))

    @property
    def controller(self) -> str:
        """The one that acts now."""
        found = self.cluster.controller
        assert found is not None
        return self.names[found]

    def is_running(self, name: str) -> bool:
        return self.is_up(name) and self.broker(name).state is BrokerState.RUNNING
