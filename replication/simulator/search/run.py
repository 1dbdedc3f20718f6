"""Runs one schedule: start a cluster, run clients and faults, heal everything, and check that
nothing is missing.
"""

from __future__ import annotations

import random
from collections import Counter

from checkpoints.types import TopicPartition
from logstore.common.shield import unshielded
from logstore.segments.open_files import close_idle
from replication.broker.broker import BrokerState
from replication.common.messages import CreateTopicRequest, Request, Response, TopicResponse
from replication.common.state import UNKNOWN_EPOCH
from replication.simulator.faults.faults import Injector
from replication.simulator.faults.noise import LogWatch, Pace
from replication.simulator.oracle.history import WriteOutcome
from replication.simulator.oracle.invariants import Oracle
from replication.simulator.oracle.validations import (
    check_read,
    is_quiescent,
    pending_reason,
    validate,
)
from replication.simulator.search.plan_generator import draw_plan
from replication.simulator.workload.transfers import must_be_in_time
from replication.simulator.workload.workload import World
from replication.simulator.world.cluster import Machine, SimCluster
from replication.simulator.world.events import Events, ViolatedError, heard_by
from replication.simulator.world.plan import (
    GROUP_OPERATIONS,
    TRANSFER_OPERATIONS,
    Operation,
    Result,
    SchedulePlan,
    SearchOptions,
)
from replication.simulator.world.scheduler import US_PER_MS, Process, Scheduler

TOPIC = "t"
BOOT_LIMIT_MS = 5_000
HEAL_LIMIT_MS = 30_000  # virtual time within which all replicas are in sync again (I-24)
LAST_TRIES = 3
LATE = (
    "message-delay",
    "message-twice",
    "message-reorder",
    "link-clog",
    "pause",
    "controller-pause",
)  # faults that delay requests


def run_seed(seed: int, options: SearchOptions, *, keep_trace: bool = False) -> Result:
    """Run the schedule of ``seed`` under ``options``."""
    return run_plan(draw_plan(seed, options), keep_trace=keep_trace)


def run_plan(plan: SchedulePlan, *, keep_trace: bool = False) -> Result:
    """Run a plan."""
    run = _Run(plan, keep_trace=keep_trace)
    try:
        return run.run()
    finally:
        # A crashed broker closed nothing. Its files and their clock would keep the whole cluster in
        # memory, because the garbage collector does not see into the snapshot of a log.
        run.scheduler.forget()
        close_idle()


class _Run:
    def __init__(self, plan: SchedulePlan, *, keep_trace: bool) -> None:
        self.plan = plan
        self.has_transfers = plan.does_any(TRANSFER_OPERATIONS)
        self.has_groups = self.has_transfers or plan.does_any(GROUP_OPERATIONS)
        self.struck: Counter[str] = Counter()
        self.errors: list[str] = []
        self.scheduler = Scheduler(random.Random(f"run {plan.seed}"), keep_trace=keep_trace)
        self.partitions = [TopicPartition(TOPIC, number) for number in range(plan.partitions)]
        self.cluster = SimCluster(plan, self.scheduler, self.struck)
        self.oracle = Oracle(self.cluster, self.partitions)
        self.cluster.on_start, self.cluster.on_end = self._started, self.oracle.ended
        self.injector = Injector(self.cluster, self.scheduler, self.struck, tuple(self.partitions))
        self.world = World(plan, self.cluster, self.scheduler, self.partitions)
        self.injector.clean = self.world.compaction.clean
        self.pace = Pace(self.scheduler, self.errors.append)
        self.cluster.network.on_send = self._sent
        self.world.history.losses = self.oracle.unclean.losses
        if self.has_groups:
            self.oracle.registered.beside = self.world.coordinated_topics
        self.cluster.network.on_repeat = self.world.history.note_repeated
        self.cluster.network.must_be_in_time = must_be_in_time
        found = (self.oracle.violations, self.world.history.violations, self.errors)
        self.events = Events(self.scheduler, self.cluster, self.oracle.after_event, found)

    def _started(self, machine: Machine) -> None:
        self.oracle.started(machine)
        if machine.broker is not None and self.has_groups:
            groups = self.world.groups.attach(machine.broker)
            if self.has_transfers:
                self.world.transfers.attach(machine.broker, groups)

    def _sent(self, sender: Process, receiver: int, request: Request) -> None:
        self.pace.sent(sender, receiver, request)
        self.oracle.asked(sender, receiver, request)

    @unshielded()  # the world is thrown away with whatever interrupts it
    def run(self) -> Result:
        watch = LogWatch(self.plan, self.scheduler, self.oracle.counters, self.errors)
        with heard_by(watch):
            violations = self._phases()
        counters = Counter(self.oracle.counters)
        counters.update(self.cluster.counters)
        counters.update(self.struck)
        for write in self.world.history.writes:
            counters[f"writes {write.outcome.value}"] += 1
        scheduler = self.scheduler
        scheduler.note(f"end {sorted(counters.items())} {violations}")
        return Result(
            self.plan.seed,
            scheduler.events,
            scheduler.trace_hash,
            violations,
            dict(counters),
            scheduler.trace,
        )

    # -- phases --------------------------------------------------------------------------------

    def _phases(self) -> list[str]:
        try:
            self._boot()
            self._create_topic()
            start_us = self.scheduler.now_us
            self.injector.schedule(self.plan.faults, start_us)
            self.world.schedule(self.plan.operations, start_us)
            self.events.until(start_us + self.plan.duration_ms * US_PER_MS)
            self.scheduler.note("everything heals")
            self.injector.stop()
            self.cluster.heal()
            self._converge("after everything healed")
            self._last_writes()
            self._converge("after the last writes")
            self._last_reads()
            self._converge("after the last reads")  # a broker may have stopped late and be back
        except ViolatedError as error:
            self.oracle.violations += error.args
        found = [*self.oracle.violations, *self.world.history.violations, *self.errors]
        found += self.cluster.complaints
        if not found:
            found = validate(self.cluster, self.oracle, self.world.history)
            found += check_read(self.oracle, self.cluster, self.world.history)
            found += self.world.lives.violations(late_copies=self._requests_come_late())
            found += self.world.compaction.violations()
            found += self.world.transfers.violations()
        return found

    def _requests_come_late(self) -> bool:
        return any(self.struck[kind] for kind in LATE)

    def _missing(self) -> str:
        world = self.world
        if not self.cluster.network.is_calm:
            return "messages are on their way"
        return (
            pending_reason(self.cluster, self.oracle)
            or world.lives.pending_reason()
            or world.compaction.pending_reason()
            or world.groups.pending_reason()
            or world.transfers.pending_reason()
            or world.transactions.pending_reason()
        )

    def _boot(self) -> None:
        for broker_id in self.cluster.machines:
            self.cluster.start(broker_id)
        self.events.wait(
            lambda: self.cluster.controller is not None and self._all_registered(),
            BOOT_LIMIT_MS,
            lambda: "I-24 the cluster does not come up",
        )

    def _all_registered(self) -> bool:
        return all(
            machine.broker is not None and machine.broker.state is BrokerState.RUNNING
            for machine in self.cluster.machines.values()
        )

    def _create_topic(self) -> None:
        controller = self.cluster.controller
        assert controller is not None
        broker = self.cluster.machines[controller].broker
        assert broker is not None
        answers: list[Response | None] = []
        replicas = min(3, self.plan.brokers)
        assignment = tuple(
            tuple((number + r) % self.plan.brokers for r in range(replicas))
            for number in range(self.plan.partitions)
        )
        config = {"min.insync.replicas": str(self.plan.min_isr)}
        if self.plan.unclean:
            config["unclean.leader.election.enable"] = "true"
        request = CreateTopicRequest(TOPIC, self.plan.partitions, replicas, assignment, config)
        broker.handle(request, answers.append)
        self.events.wait(
            lambda: bool(answers) and is_quiescent(self.cluster, self.oracle),
            BOOT_LIMIT_MS,
            lambda: f"I-24 the topic gets no leader: {answers}",
        )
        assert isinstance(answers[0], TopicResponse)
        self.scheduler.note("the topic is there")

    def _converge(self, when: str) -> None:
        """Wait until all replicas are in sync again (I-24)."""
        self.events.wait(
            lambda: not self._missing(),
            HEAL_LIMIT_MS,
            lambda: f"I-24 {when}: {self._missing()}",
        )

    def _last_writes(self) -> None:
        """acks=all succeeds on every partition, once the client knows the leader (I-24)."""
        for number, tp in enumerate(self.partitions):
            outcomes: list[WriteOutcome] = []
            while WriteOutcome.OK not in outcomes:
                if len(outcomes) == LAST_TRIES:
                    raise ViolatedError(
                        f"I-24 {tp}: acks=all ends {outcomes[-1].value} in a healthy cluster"
                    )
                outcomes.append(self._write(number))

        def pending() -> list[int]:
            writes = self.world.history.writes
            return [write.number for write in writes if write.outcome is WriteOutcome.PENDING]

        self.events.wait(
            lambda: not pending(),
            HEAL_LIMIT_MS,
            lambda: f"I-24 writes {pending()} have no outcome",
        )

    def _last_reads(self) -> None:
        """Consumers get everything that is committed (I-24)."""
        world = self.world

        def pending_reason() -> str:
            for tp in self.partitions:
                committed = self.oracle.committed[tp]
                end = max(committed, default=-1) + 1
                for consumer in world.consumers:
                    position = consumer.core.positions[tp]
                    offset = position.offset or 0
                    if offset < end:
                        return f"{consumer.name} comes to {offset} of {tp}, which ends at {end}"
                    if (
                        self.oracle.unclean.allowed
                        and committed
                        and position.epoch not in (UNKNOWN_EPOCH, committed[end - 1].epoch)
                    ):
                        return f"{consumer.name} is at the end of what was {tp}"
            return ""

        def are_done() -> bool:
            if not pending_reason():
                return True
            for consumer in world.consumers:
                if consumer.idle:
                    consumer.consume(1)
            return False

        self.events.wait(are_done, HEAL_LIMIT_MS, lambda: f"I-24 {pending_reason()}")

    def _write(self, partition: int) -> WriteOutcome:
        write = self.world.producers[0].produce(Operation(0, "produce", 0, partition))
        self.events.wait(
            lambda: write.outcome is not WriteOutcome.PENDING,
            HEAL_LIMIT_MS,
            lambda: f"I-24 {write.tp}: the last write is not answered",
        )
        return write.outcome
