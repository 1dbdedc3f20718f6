"""Brokers, machines and the coordinator of a simulation. The brokers are the real ones.

Only their storage, clock, transport, runtime and sessions are simulated.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from checkpoints.clean_shutdown import CLEAN_SHUTDOWN
from logstore.common.config import MAX_LONG, BrokerConfig, LogConfig
from logstore.common.errors import CorruptDataError, LogstoreError
from logstore.testing.faulty import CrashMode, SimulatedCrash
from replication.broker.broker import Broker, BrokerSettings, BrokerState, Surroundings
from replication.common.config import ReplicationConfig
from replication.coordination import Coordinator, CoordinatorUnavailableError
from replication.decisions.replica_selector import RACK_AWARE
from replication.simulator.world.coordinator import SimCoordinator, SimSession
from replication.simulator.world.disk import SimDisk
from replication.simulator.world.loss_budget import LossBudget
from replication.simulator.world.network import Network, SimTransport
from replication.simulator.world.plan import TRANSFER_OPERATIONS, SchedulePlan
from replication.simulator.world.scheduler import (
    US_PER_MS,
    Process,
    Scheduler,
    SimClock,
    SimRuntime,
)
from replication.simulator.world.wire import Wire

SESSION_TIMEOUT_MS = 400
HEARTBEAT_MS = 90
LAG_MS = 500
POWER_LOSS_AFTER_STOP = 0.3  # the share of clean stops with a slow disk; nothing may be lost by it
START_AGAIN_MS = 100  # a supervisor restarts a broker that did not come up

DISK_FAILS = frozenset({"read-error", "write-error", "sync-error", "disk-full", "no-descriptors"})
STORM_KINDS = {  # what a power cut in mode ``random`` did to the disk, and its fault kind
    "torn_sector": "torn-write",
    "zero_fill": "zero-fill",
    "lost_name": "lost-name",
    "lost_truncation": "lost-truncation",
}


def rack_of(number: int) -> str:
    """The rack of a broker or a consumer."""
    return f"r{number % 3}"


class Machine:
    """One broker's disk and clocks, and its process while it has one."""

    def __init__(self, broker_id: int, clock: SimClock) -> None:
        self.broker_id = broker_id
        self.clock = clock
        self.disk = SimDisk()
        self.process: Process | None = None
        self.broker: Broker | None = None
        self.session: SimSession | None = None
        self.elsewhere: SimCoordinator | None = None  # the coordinator that it meets by mistake
        self.cut_off = False  # from the coordinator
        self.starts = 0
        self.at_disk_crash: Callable[[], None] | None = None  # for a planned ``SimulatedCrash``
        self.coming_back = False
        self.drops_pages = False  # data of a failed sync is lost when the process ends

    @property
    def up(self) -> bool:
        return self.process is not None


class SimCluster:
    """The cluster of a simulation.

    Args:
        on_start, on_end: called after each start of a broker, and before its process ends.
    """

    def __init__(
        self,
        plan: SchedulePlan,
        scheduler: Scheduler,
        struck: Counter[str],
        on_start: Callable[[Machine], None] = lambda machine: None,
        on_end: Callable[[Machine], None] = lambda machine: None,
    ) -> None:
        self.plan = plan
        self.scheduler = scheduler
        self.struck = struck
        self.counters: Counter[str] = Counter()
        self.complaints: list[str] = []  # brokers' reports of disks that work: violations
        self.network = Network(scheduler, struck)
        if plan.wire:
            self.network.wire = Wire(self.network, scheduler, plan.seed)
        self.atlas = LossBudget(plan.min_isr - 1, power_loss_is_safe=plan.flush == "ack")
        self.on_start = on_start
        self.on_end = on_end
        self._events_us = 0
        self._disk_fails = any(fault.kind in DISK_FAILS for fault in plan.faults)
        self.coordinator = self.another_coordinator()
        self.log_config = LogConfig(
            segment_bytes=plan.segment_bytes,
            segment_index_bytes=64,
            index_interval_bytes=100,
            flush_messages=1 if plan.flush == "ack" else MAX_LONG,
            retention_ms=-1,
            message_timestamp_after_max_ms=MAX_LONG,
            file_delete_delay_ms=0,
        )
        self.broker_config = BrokerConfig(
            log_initial_task_delay_ms=500,
            log_flush_offset_checkpoint_interval_ms=2000,
            log_flush_start_offset_checkpoint_interval_ms=2000,
        )
        self.config = ReplicationConfig(
            truncation_rule=plan.truncation,
            replica_lag_time_max_ms=LAG_MS,
            replica_fetch_wait_max_ms=250,
            replica_fetch_max_bytes=plan.fetch_bytes,
            replica_fetch_backoff_ms=100,
            high_watermark_checkpoint_interval_ms=2500,
            controlled_shutdown_retry_backoff_ms=200,
            leader_imbalance_check_interval_s=4,
            # There is no coordinator for the transactions of ``workload.transactions``.
            verify_transactions=plan.does_any(TRANSFER_OPERATIONS),
            replica_selector=RACK_AWARE if plan.racks else "",
        )
        self.machines = {
            broker_id: Machine(broker_id, SimClock(scheduler)) for broker_id in range(plan.brokers)
        }
        scheduler.after(HEARTBEAT_MS * US_PER_MS, None, "", self._heartbeats)

    # -- coordinator ---------------------------------------------------------------------------

    def another_coordinator(self) -> SimCoordinator:
        """A coordinator with an empty tree."""
        return SimCoordinator(
            self.scheduler, self.struck, SESSION_TIMEOUT_MS, self._deliver, self._break_connection
        )

    def _deliver(self, notify: Callable[[], None]) -> None:
        """Deliver notifications in order, as the connection of a session does."""
        scheduler = self.scheduler
        self._events_us = max(self._events_us, scheduler.now_us + scheduler.below(500))
        scheduler.at(self._events_us, None, "coordinator tells", notify)

    def _heartbeats(self) -> None:
        now_us = self.scheduler.now_us
        for machine in self.machines.values():
            session = machine.session
            if (
                session is not None
                and machine.process is not None
                and not machine.cut_off
                and machine.process.busy_until_us <= now_us
            ):
                session.heartbeat()
        self.coordinator.expire_sessions()
        self.scheduler.after(HEARTBEAT_MS * US_PER_MS, None, "", self._heartbeats)

    def cut_off(self, broker_id: int) -> None:
        machine = self.machines[broker_id]
        machine.cut_off = True
        if machine.session is not None:
            machine.session.suspend()

    def _break_connection(self, broker_id: int, duration_ms: int) -> None:
        self.cut_off(broker_id)
        self.scheduler.after(
            duration_ms * US_PER_MS,
            None,
            f"b{broker_id} connects",
            lambda: self.reconnect(broker_id),
        )

    def reconnect(self, broker_id: int) -> None:
        machine = self.machines[broker_id]
        machine.cut_off = False
        if machine.session is not None:
            machine.session.resume()

    # -- processes -----------------------------------------------------------------------------

    @property
    def controller(self) -> int | None:
        for broker_id, machine in self.machines.items():
            if machine.broker is not None and machine.broker.controller.active:
                return broker_id
        return None

    def start(self, broker_id: int) -> None:
        """Start a broker, later again if its disk fails."""
        machine = self.machines[broker_id]
        machine.coming_back = False
        if machine.up:
            return
        machine.starts += 1
        scheduler = self.scheduler
        process = Process(f"b{broker_id}", broker_id)
        runtime = SimRuntime(scheduler, process, machine.clock)

        def connect() -> Coordinator:
            if machine.cut_off:
                raise CoordinatorUnavailableError("cut off")
            machine.session = (machine.elsewhere or self.coordinator).connect(broker_id)
            return machine.session

        source = random.Random(scheduler.below(1 << 30))
        machine.process = process
        try:
            broker = Broker(
                BrokerSettings(
                    broker_id=broker_id,
                    directories=(f"/b{broker_id}",),
                    log_config=self.log_config,
                    broker_config=self.broker_config,
                    config=self.config,
                    cluster_id="simulated",
                    rack=rack_of(broker_id) if self.plan.racks else None,
                ),
                Surroundings(
                    connect=connect,
                    transport=SimTransport(self.network, process),
                    runtime=runtime,
                    storage=machine.disk,
                    random_source=source,
                    random_id=lambda: f"{source.getrandbits(128):032x}",
                    run_later=runtime.run_later,
                    on_fatal=lambda error: self._on_fatal(machine, process),
                ),
            )
        except SimulatedCrash:
            self.struck["crash-in-recovery"] += 1
            self.disk_crashed(machine)
            return
        except LogstoreError as error:
            self._did_not_start(machine, error)
            return
        machine.broker = broker
        self.network.bind(process, broker.handle)
        if self.network.wire is not None:
            self.network.wire.serve(process, broker)
        self.on_start(machine)
        broker.start()

    def _did_not_start(self, machine: Machine, error: LogstoreError) -> None:
        self.counters["starts refused"] += 1
        self.scheduler.note(f"b{machine.broker_id} does not start: {error}")
        damaged = self.atlas.is_damaged(machine.broker_id)
        if isinstance(error, CorruptDataError) and not damaged:
            self.complaints.append(f"I-17 b{machine.broker_id}: its disk is whole, and {error}")
        elif not damaged and not self._disk_fails:
            self.complaints.append(f"I-19 b{machine.broker_id}: its disk is well, and {error}")
        self._gone(machine, "all_kept")
        self.repair(machine)
        if isinstance(error, CorruptDataError) or machine.starts > 40:
            # Damage in the middle of a log: an operator replaces the disk by an empty one.
            self._replace_disk(machine)
            self.counters["disks replaced"] += 1
        self.start_later(machine, START_AGAIN_MS)

    def _on_fatal(self, machine: Machine, process: Process) -> None:
        """End and restart a process without any log directory left."""
        if machine.process is process:
            machine.elsewhere = None
            self.counters["fatal"] += 1
            self._refused(machine)
            self.start_later(machine, START_AGAIN_MS)

    def _refused(self, machine: Machine) -> None:
        """Its process is over, because its disk refused something: the next one recovers."""
        self.atlas.stopped(machine.broker_id)
        self._gone(machine, "all_kept")
        if machine.drops_pages:
            machine.disk.drop_clean_pages()
        self.repair(machine)

    def repair(self, machine: Machine) -> None:
        """No fault waits in its disk any more."""
        machine.disk.heal()
        machine.disk.capacity = None
        machine.drops_pages = False
        self.atlas.unbook(machine.broker_id)

    def _replace_disk(self, machine: Machine) -> None:
        """By an empty one, with no fault in it."""
        machine.disk.wipe()
        self.repair(machine)
        self.atlas.wiped(machine.broker_id)

    def start_later(self, machine: Machine, delay_ms: int) -> None:
        machine.coming_back = True
        label = f"b{machine.broker_id} starts"
        self.scheduler.after(
            delay_ms * US_PER_MS, None, label, lambda: self.start(machine.broker_id)
        )

    def crash(
        self, broker_id: int, mode: CrashMode, restart_ms: int | None, *, wipe: bool = False
    ) -> None:
        """The process dies, or the machine with it; its session is left to expire. Without
        ``restart_ms`` it stays down until ``start``."""
        machine = self.machines[broker_id]
        if not machine.up:
            return
        self._gone(machine, mode, silent=mode != "all_kept")
        if wipe:
            self._replace_disk(machine)
        if restart_ms is not None:
            self.start_later(machine, restart_ms)

    def _gone(self, machine: Machine, mode: CrashMode, *, silent: bool = False) -> None:
        if machine.process is not None:
            machine.process.alive = False
        if machine.broker is not None:
            self.on_end(machine)
        self.network.unbind(machine.broker_id, silent=silent)
        machine.disk.read_truly()
        before = machine.disk.struck.copy()
        machine.disk.crash(self.scheduler.random, mode)
        for what, kind in STORM_KINDS.items():
            hits = machine.disk.struck[what] - before[what]
            if hits:
                self.struck[kind] += hits
        machine.process = machine.broker = machine.session = machine.at_disk_crash = None

    def disk_crashed(self, machine: Machine) -> None:
        """Handle a ``SimulatedCrash`` in an event of this machine."""
        planned = machine.at_disk_crash
        machine.at_disk_crash = None
        if planned is None:
            raise AssertionError(f"an unplanned crash of b{machine.broker_id}")
        planned()

    def stop(
        self,
        broker_id: int,
        restart_ms: int | None,
        then: Callable[[Machine], None] = lambda machine: None,
    ) -> None:
        """Stop a broker cleanly, if the disk allows, and start it again unless ``restart_ms`` is
        None.

        ``then`` is called after a clean stop, with the machine that is down.
        """
        machine = self.machines[broker_id]
        broker, process = machine.broker, machine.process
        if broker is None or broker.state is not BrokerState.RUNNING:
            return

        def stopped() -> None:
            if machine.process is not process or process is None:
                return
            if machine.disk.peek(f"/b{broker_id}/{CLEAN_SHUTDOWN}") is None:
                self.counters["stops that were not clean"] += 1
                self._refused(machine)
            else:
                self.counters["clean stops"] += 1
                process.alive = False
                self.on_end(machine)
                self.network.unbind(broker_id)
                if self.scheduler.random.random() < POWER_LOSS_AFTER_STOP:
                    self.counters["power lost after a clean stop"] += 1
                    machine.disk.crash(self.scheduler.random, "all_lost")
                machine.process = machine.broker = machine.session = None
                then(machine)
            if restart_ms is not None:
                self.start_later(machine, restart_ms)

        broker.shutdown(stopped)

    def heal(self) -> None:
        """End all faults, and start the brokers that are down, or that have a log that went offline
        alone, which only a start recovers."""
        self.network.heal()
        self.coordinator.heal()
        for machine in self.machines.values():
            self.repair(machine)
            machine.disk.latency = None
            machine.at_disk_crash = None
            machine.elsewhere = None
            if machine.process is not None:
                machine.process.busy_until_us = 0
                machine.process.hurry()
            if machine.cut_off:
                self.reconnect(machine.broker_id)
            if self.atlas.is_damaged(machine.broker_id):
                # Scrubbing finds damage at rest, and the replica is built again.
                self.crash(machine.broker_id, "all_kept", 10)
                self._replace_disk(machine)
            elif machine.broker is not None and any(
                log.failed for log in machine.broker.log_manager.logs.values()
            ):
                self.crash(machine.broker_id, "all_kept", 10)
            elif not machine.up and not machine.coming_back:
                self.start_later(machine, 10)
