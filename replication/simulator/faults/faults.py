"""Inject the faults of a plan.

A fault that the loss budget does not allow now is weakened or left out.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from checkpoints.types import TopicPartition
from logstore.testing.faulty import CrashMode
from replication.coordination import nodes
from replication.simulator.faults.triggers import CONTROLLER, LEADER, Triggers, with_roles
from replication.simulator.world.admin_faults import AdminFaults
from replication.simulator.world.cluster import Machine, SimCluster
from replication.simulator.world.coordinator import (
    CARRIED_OUT,
    CRASH,
    NOT_CARRIED_OUT,
    CallFate,
    Silence,
)
from replication.simulator.world.fault_kinds import (
    ANOTHER_MINIMUM,
    COMPACTION,
    GIVEN_UP,
    IDENTITY,
    SLOW_ROLES,
    UNCLEAN_ELECTION,
)
from replication.simulator.world.identity_faults import IdentityFaults
from replication.simulator.world.network import Link
from replication.simulator.world.plan import PlannedFault
from replication.simulator.world.scheduler import US_PER_MS, Scheduler

K = TypeVar("K")
V = TypeVar("V")

COORDINATOR, CLIENTS = -1, -2
CLIENT_NODES = range(-60, -9)  # the nodes of clients in the network


class Injector:
    """Injects the faults of one schedule.

    Args:
        struck: counts the faults that really happened, by kind.
        followed: the partitions whose records are all tracked, and may be lost if a plan says so.
    """

    def __init__(
        self,
        cluster: SimCluster,
        scheduler: Scheduler,
        struck: Counter[str],
        followed: tuple[TopicPartition, ...],
    ) -> None:
        self._cluster = cluster
        self._scheduler = scheduler
        self._struck = struck
        self._over = False
        self._watched: list[Callable[[], None]] = []
        self.clean: Callable[[PlannedFault, Counter[str]], None] = lambda fault, struck: None
        self._moments = Triggers(cluster, scheduler, struck, self._begin)
        admin = AdminFaults(cluster, scheduler, struck, followed)
        weather, disk = self._rate, self._disk_error
        self._kinds: dict[str, Callable[[PlannedFault], None]] = {
            **dict.fromkeys(
                (
                    "message-loss",
                    "message-delay",
                    "message-twice",
                    "message-reorder",
                    "connection-reset",
                    "half-open-peer",
                    "epoch-flip",
                ),
                weather,
            ),
            **dict.fromkeys(("partition", "one-way-partition", "lasting-cut"), self._cut),
            "link-clog": self._clog,
            "slow-reader": self._slow_reader,
            **dict.fromkeys(("kill", "power-loss", "partial-power-loss"), self._crash),
            "bit-rot": self._flip,
            "flipped-read": self._flip_reads,
            **dict.fromkeys(("read-error", "write-error", "sync-error", "no-descriptors"), disk),
            "disk-full": self._disk_full,
            "slow-disk": self._slow_disk,
            "misdirected-write": self._misdirect,
            "wiped-disk": self._wipe,
            "pause": self._pause,
            "clock-jump": self._jump,
            "clock-drift": self._drift,
            "controller-crash": self._crash_controller,
            "controller-pause": self._pause_controller,
            "controller-removed": self._depose_controller,
            UNCLEAN_ELECTION: admin.elect_uncleanly,
            ANOTHER_MINIMUM: admin.change_minimum,
            GIVEN_UP: admin.move_and_give_up,
            **dict.fromkeys(IDENTITY, IdentityFaults(cluster, scheduler, struck).strike),
            COMPACTION: lambda fault: self.clean(fault, struck),
            SLOW_ROLES: self._slow_roles,
            "crash-in-recovery": self._crash_in_recovery,
            **dict.fromkeys((NOT_CARRIED_OUT, CARRIED_OUT), self._lose_answers),
            CRASH: self._crash_coordinator,
        }

    def schedule(self, faults: tuple[PlannedFault, ...], start_us: int) -> None:
        for fault in faults:
            self._scheduler.at(
                start_us + fault.at_ms * US_PER_MS,
                None,
                "",
                partial(self._begin, fault),
            )

    def stop(self) -> None:
        """Begin no more faults. Faults that are planned in disks are counted and dropped."""
        self._over = True
        self._moments.stop()
        self.count()

    def count(self) -> None:
        """Count the faults that the disks report."""
        for look in self._watched:
            look()

    def _begin(self, fault: PlannedFault) -> None:
        if self._over:
            return
        if fault.moment:
            self._moments.wait(fault)
            return
        met = with_roles(fault, self._roles()) if fault.names_roles else fault
        if met is not None:
            self._scheduler.note(f"fault {met}")
            self._kinds[met.kind](met)

    def _roles(self) -> dict[int, int]:
        """The present controller, and the leader of the first partition."""
        roles: dict[int, int] = {}
        controller = self._cluster.controller
        if controller is not None:
            roles[CONTROLLER] = controller
        latest = -1
        for broker_id, machine in self._cluster.machines.items():
            if machine.broker is not None:
                for tp, partition in machine.broker.replica_manager.partitions.items():
                    epoch = partition.leader_epoch
                    if tp.partition == 0 and partition.is_leader and epoch > latest:
                        latest, roles[LEADER] = epoch, broker_id
        return roles

    def _end_after(self, fault: PlannedFault, undo: Callable[[], None]) -> None:
        def end() -> None:
            if not self._over:
                undo()

        self._scheduler.after(fault.duration_ms * US_PER_MS, None, f"end of {fault.kind}", end)

    # -- network -------------------------------------------------------------------------------

    def _rate(self, fault: PlannedFault) -> None:
        rates = self._cluster.network.weather.rates
        rates[fault.kind] = fault.amount
        self._end_after(fault, lambda: forget(rates, fault.kind))

    def _cut(self, fault: PlannedFault) -> None:
        cut = self._cluster.network.weather.cut
        links: list[Link] = []
        for other in fault.others:
            if other in (COORDINATOR, fault.broker):
                continue
            nodes = CLIENT_NODES if other == CLIENTS else (other,)
            for node in nodes:
                if fault.amount != 2.0:
                    links.append((fault.broker, node))
                if fault.amount != 1.0:
                    links.append((node, fault.broker))
        for link in links:
            cut[link] = fault.kind
        coordinator = COORDINATOR in fault.others
        if coordinator:
            self._struck[fault.kind] += 1
            self._cluster.cut_off(fault.broker)

        def undo() -> None:
            for link in links:
                cut.pop(link, None)
            if coordinator:
                self._cluster.reconnect(fault.broker)

        self._end_after(fault, undo)

    def _clog(self, fault: PlannedFault) -> None:
        until_us = self._scheduler.now_us + fault.duration_ms * US_PER_MS
        for other in fault.others:
            self._cluster.network.weather.clogged[fault.broker, other] = until_us

    def _slow_reader(self, fault: PlannedFault) -> None:
        slow = self._cluster.network.weather.slow
        slow[fault.broker] = 150 * US_PER_MS
        self._end_after(fault, lambda: forget(slow, fault.broker))

    # -- crashes -------------------------------------------------------------------------------

    def _targets(self, fault: PlannedFault) -> list[Machine]:
        machines = self._cluster.machines
        return [machines[fault.broker]] if fault.broker >= 0 else list(machines.values())

    def _crash(self, fault: PlannedFault) -> None:
        for machine in self._targets(fault):
            mode = self._mode(machine, fault.kind)
            if mode is None:
                continue
            go = partial(self._go_down, machine, fault.kind, mode, fault.duration_ms)
            if fault.broker < 0 or not fault.amount:
                go()
            else:
                self._cluster.atlas.book(machine.broker_id, forgets=self._forgets(mode))
                machine.disk.crash_after(int(fault.amount))
                machine.at_disk_crash = go

    def _mode(self, machine: Machine, kind: str) -> CrashMode | None:
        """The worst crash mode that is allowed now, or None."""
        atlas, broker = self._cluster.atlas, machine.broker_id
        if not machine.up or not atlas.may_stop(broker):
            return None
        if kind == "kill" or not atlas.may_lose_power(broker):
            return "all_kept"
        return "all_lost" if kind == "power-loss" else "random"

    def _forgets(self, mode: CrashMode) -> bool:
        return mode != "all_kept" and not self._cluster.atlas.power_loss_is_safe

    def _go_down(self, machine: Machine, kind: str, mode: CrashMode, restart_ms: int) -> None:
        if not machine.up:
            return
        broker = machine.broker_id
        self._struck[kind if mode != "all_kept" else "kill"] += 1
        self._scheduler.note(f"b{broker} goes down: {kind} {mode}")
        self._cluster.atlas.stopped(broker, forgets=self._forgets(mode))
        self.count()
        self._cluster.crash(broker, mode, restart_ms)

    def _wipe(self, fault: PlannedFault) -> None:
        machine = self._cluster.machines[fault.broker]
        if machine.up and self._cluster.atlas.may_forget(fault.broker):
            self._struck["wiped-disk"] += 1
            self.count()
            self._cluster.crash(fault.broker, "all_lost", fault.duration_ms, wipe=True)

    def _crash_controller(self, fault: PlannedFault) -> None:
        controller = self._cluster.controller
        if controller is not None and self._cluster.atlas.may_stop(controller):
            self._struck["controller-crash"] += 1
            machine = self._cluster.machines[controller]
            self._go_down(machine, "kill", "all_kept", fault.duration_ms)

    def _crash_in_recovery(self, fault: PlannedFault) -> None:
        """Kill a broker, and kill it again during its recovery."""
        machine = self._cluster.machines[fault.broker]
        if self._mode(machine, "kill") is None:
            return
        self._go_down(machine, "kill", "all_kept", fault.duration_ms)
        machine.disk.crash_after(int(fault.amount))
        machine.at_disk_crash = partial(
            self._cluster.crash, fault.broker, "all_kept", fault.duration_ms
        )

    # -- disks ---------------------------------------------------------------------------------

    def _watch_disk(self, machine: Machine, what: str, kind: str) -> None:
        struck = machine.disk.struck
        counted = struck[what]

        def look() -> None:
            nonlocal counted
            self._struck[kind] += struck[what] - counted
            counted = struck[what]

        self._watched.append(look)

    def _disk_error(self, fault: PlannedFault) -> None:
        machine, atlas = self._cluster.machines[fault.broker], self._cluster.atlas
        forgets = fault.kind == "sync-error" and self._cluster.plan.flush == "os"
        allowed = atlas.may_forget if forgets else atlas.may_stop
        if not machine.up or not allowed(fault.broker):
            return
        operation, error = {
            "read-error": ("read", errno.EIO),
            "write-error": ("write", errno.EIO),
            "sync-error": ("sync", errno.EIO),
            "no-descriptors": ("open", errno.EMFILE),
        }[fault.kind]
        atlas.book(fault.broker, forgets=forgets)  # it ends the process at an unknown time
        machine.drops_pages |= fault.kind == "sync-error"
        self._watch_disk(machine, operation, fault.kind)
        machine.disk.fail(
            operation,
            f"/b{fault.broker}/*",
            after=int(fault.amount),
            error=error,
            partial=random.Random(int(fault.amount)),
        )

    def _disk_full(self, fault: PlannedFault) -> None:
        machine = self._cluster.machines[fault.broker]
        if machine.up and self._cluster.atlas.may_stop(fault.broker):
            self._cluster.atlas.book(fault.broker)
            self._watch_disk(machine, "disk_full", fault.kind)
            machine.disk.capacity = machine.disk.used + int(fault.amount)

            def undo() -> None:
                machine.disk.capacity = None

            self._end_after(fault, undo)

    def _flip_reads(self, fault: PlannedFault) -> None:
        machine = self._cluster.machines[fault.broker]
        if machine.up:
            self._watch_disk(machine, "read_flip", fault.kind)
            machine.disk.flip_next_read(random.Random(int(fault.amount)))

    def _slow_disk(self, fault: PlannedFault) -> None:
        machine = self._cluster.machines[fault.broker]
        taken = int(fault.amount)
        self._watch_disk(machine, "slow", fault.kind)
        machine.disk.latency = lambda operation, path: taken if operation != "read" else 0

        def undo() -> None:
            machine.disk.latency = None

        self._end_after(fault, undo)

    def _flip(self, fault: PlannedFault) -> None:
        """Flip one bit on the disk of one machine."""
        machine, atlas = self._cluster.machines[fault.broker], self._cluster.atlas
        if not machine.up or not atlas.may_forget(fault.broker):
            return
        if machine.disk.flip_at_rest(random.Random(int(fault.amount))):
            atlas.damaged(fault.broker)
            self._struck["bit-rot"] += 1

    def _misdirect(self, fault: PlannedFault) -> None:
        machine, atlas = self._cluster.machines[fault.broker], self._cluster.atlas
        if machine.up and atlas.may_forget(fault.broker):
            atlas.damaged(fault.broker)
            self._watch_disk(machine, "misdirected", fault.kind)
            machine.disk.misdirect(
                f"/b{fault.broker}/*", random.Random(int(fault.amount)), after=int(fault.amount) % 9
            )

    # -- coordinator ---------------------------------------------------------------------------

    def _lose_answers(self, fault: PlannedFault) -> None:
        """Lose answers at a rate for a while, or one answer, perhaps with the connection."""
        silences = self._cluster.coordinator.silence
        for machine in self._targets(fault):
            silence = silences.setdefault(machine.broker_id, Silence())
            if fault.amount >= 1:
                fate = CallFate(fault.kind, connection_ms=fault.duration_ms)
                silence.planned.append((int(fault.amount), fate))
            else:
                silence.rates[fault.kind] = fault.amount
                self._end_after(fault, partial(forget, silence.rates, fault.kind))

    def _crash_coordinator(self, fault: PlannedFault) -> None:
        """Crash the coordinator at once, or at one of the next changes of its disk."""
        if fault.amount:
            self._cluster.coordinator.crash_after(int(fault.amount), fault.duration_ms)
        else:
            self._cluster.coordinator.crash(fault.duration_ms)

    # -- time ----------------------------------------------------------------------------------

    def _stall(self, machine: Machine, fault: PlannedFault) -> None:
        if machine.process is not None:
            self._struck[fault.kind] += 1
            machine.process.stall(self._scheduler.now_us + fault.duration_ms * US_PER_MS)

    def _pause(self, fault: PlannedFault) -> None:
        self._stall(self._cluster.machines[fault.broker], fault)

    def _slow_roles(self, fault: PlannedFault) -> None:
        """Let each request of the controller take ``amount`` ms, as long as the process lives."""
        process = self._cluster.machines[fault.broker].process
        if process is None:
            return
        counted = process.slow_controls

        def look() -> None:
            nonlocal counted
            self._struck[fault.kind] += process.slow_controls - counted
            counted = process.slow_controls

        self._watched.append(look)
        process.control_us = int(fault.amount) * US_PER_MS
        self._end_after(fault, process.hurry)

    def _depose_controller(self, fault: PlannedFault) -> None:
        """Remove the controller's node, as operators do to get another controller.

        Its session lives on.
        """
        if self._cluster.coordinator.remove(nodes.CONTROLLER):
            self._struck["controller-removed"] += 1

    def _pause_controller(self, fault: PlannedFault) -> None:
        controller = self._cluster.controller
        if controller is not None:
            self._stall(self._cluster.machines[controller], fault)

    def _jump(self, fault: PlannedFault) -> None:
        self._struck[fault.kind] += 1
        self._cluster.machines[fault.broker].clock.offset_ms += int(fault.amount)

    def _drift(self, fault: PlannedFault) -> None:
        self._struck[fault.kind] += 1
        self._cluster.machines[fault.broker].clock.drift = fault.amount


def forget(entries: dict[K, V], key: K) -> None:
    entries.pop(key, None)
