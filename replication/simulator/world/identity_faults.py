"""Somebody copies, restores, mixes or removes the directories of a broker while it is down.

Some brokers stop in order, the one concerned last. Its disk is changed, and it comes back first. So
it is often the last one of the ISR, and what it has left decides what the others keep.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial

from checkpoints import CLEAN_SHUTDOWN, CLOSED_REPLICAS, META_PROPERTIES, RECOVERY_POINT
from checkpoints.types import TopicPartition
from replication.broker.broker import BrokerState
from replication.coordination import nodes
from replication.simulator.world.cluster import Machine, SimCluster
from replication.simulator.world.fault_kinds import IDENTITY
from replication.simulator.world.plan import PlannedFault
from replication.simulator.world.scheduler import US_PER_MS, Scheduler

OTHERS_LATER_MS = 900  # the others come back so much later
FOREIGN_MS = 1000  # within which a broker must have refused a foreign tree
COPIES = 4  # kept of each disk
SET_ASIDE, REMOVED, OLDER_LOG, OLDER, MIXED, LOST_FILE, FOREIGN_TREE = IDENTITY
LOSE_NOTHING = (LOST_FILE, FOREIGN_TREE)

DiskContent = dict[str, bytes]
Change = Callable[[Machine, random.Random], bool]


class IdentityFaults:
    """Injects these faults."""

    def __init__(self, cluster: SimCluster, scheduler: Scheduler, struck: Counter[str]) -> None:
        self._cluster, self._scheduler, self._struck = cluster, scheduler, struck
        self._copies: dict[int, list[DiskContent]] = {}
        self._changes: dict[str, Change] = {
            SET_ASIDE: self._set_aside,
            REMOVED: self._remove,
            OLDER_LOG: self._put_back_a_log,
            OLDER: self._put_back,
            MIXED: self._mix_up,
            LOST_FILE: self._lose_a_file,
        }

    def strike(self, fault: PlannedFault) -> None:
        cluster = self._cluster
        if not self._may(fault):
            return
        others = [other for other in fault.others if other != fault.broker]
        waiting = set(others)
        go = partial(self._stop, fault)

        def down(other: int, machine: Machine) -> None:
            waiting.discard(other)
            if not waiting:
                go()

        if not others:
            go()
        for other in others:
            cluster.stop(other, fault.duration_ms + OTHERS_LATER_MS, partial(down, other))

    def _may(self, fault: PlannedFault) -> bool:
        atlas = self._cluster.atlas
        loses = fault.kind not in LOSE_NOTHING
        if not loses:
            return atlas.may_stop(fault.broker)
        return atlas.may_forget(fault.broker) and not self._is_alone(fault.broker)

    def _is_alone(self, broker: int) -> bool:
        """Whether only this broker may lead a partition: one that was made while others were down.

        The budget does not know of it.
        """
        tree = self._cluster.coordinator.tree
        if tree is None:
            return True
        for path, entry in tree:
            if path.startswith(nodes.TOPICS) and path.endswith("/state"):
                name, number = path.split("/")[3:6:2]
                tp = TopicPartition(name, int(number))
                now = nodes.decode_partition(tp, entry.node.data, 0, tuple(self._cluster.machines))
                if {*now.isr, *now.elr} == {broker}:
                    return True
        return False

    def _stop(self, fault: PlannedFault) -> None:
        self._cluster.stop(fault.broker, fault.duration_ms, partial(self._tamper, fault))

    def _tamper(self, fault: PlannedFault, machine: Machine) -> None:
        """Change the disk of a broker that has stopped cleanly."""
        machine.disk.read_truly()  # a flip would stay in a copy
        copies = self._copies.setdefault(machine.broker_id, [])
        rng = random.Random(int(fault.amount))
        if self._may(fault):
            self._cluster.repair(machine)  # a fault that waits in the disk is not for us
            if fault.kind == FOREIGN_TREE:
                struck = self._lead_astray(machine)
            else:
                struck = self._changes[fault.kind](machine, rng)
            if struck:
                self._struck[fault.kind] += 1
                self._scheduler.note(f"b{machine.broker_id}: {fault.kind} while it is down")
                self._cluster.atlas.stopped(
                    machine.broker_id, forgets=fault.kind not in LOSE_NOTHING
                )
                machine.disk.sync_dir("/")
                machine.disk.sync_names(_home(machine))
                machine.disk.changed_by_hand += 1
        if not self._cluster.atlas.is_damaged(machine.broker_id):  # a copy would be, too
            copies.append(machine.disk.files(_home(machine)))
        del copies[:-COPIES]

    # -- the disk ------------------------------------------------------------------------------

    def _a_log(self, machine: Machine, rng: random.Random) -> str | None:
        home = _home(machine)
        names = [e.name for e in machine.disk.scan_dir(home) if e.is_dir]
        logs = sorted(name for name in names if name.startswith("t-") and "." not in name)
        return f"{home}/{rng.choice(logs)}" if logs else None

    def _set_aside(self, machine: Machine, rng: random.Random) -> bool:
        path = self._a_log(machine, rng)
        if path is not None:
            machine.disk.rename(path, f"{path}.{rng.getrandbits(128):032x}-stray")
        return path is not None

    def _remove(self, machine: Machine, rng: random.Random) -> bool:
        path = self._a_log(machine, rng)
        if path is not None:
            machine.disk.remove_tree(path)
        return path is not None

    def _put_back_a_log(self, machine: Machine, rng: random.Random) -> bool:
        path = self._a_log(machine, rng)
        if path is None:
            return False
        now = machine.disk.files(path)
        copies = [_below(copy, path) for copy in self._copies[machine.broker_id]]
        older = [copy for copy in copies if copy and copy != now]
        if older:
            machine.disk.remove_tree(path)
            machine.disk.put_back(rng.choice(older))
        return bool(older)

    def _put_back(self, machine: Machine, rng: random.Random) -> bool:
        now = machine.disk.files(_home(machine))
        older = [copy for copy in self._copies[machine.broker_id] if copy != now]
        if older:
            self._replace(machine, rng.choice(older))
        return bool(older)

    def _mix_up(self, machine: Machine, rng: random.Random) -> bool:
        """It gets a copy of another broker's directory, with its own name in it."""
        others = [
            (broker, copies[-1])
            for broker, copies in self._copies.items()
            if copies and broker != machine.broker_id
        ]
        if not others:
            return False
        broker, copy = rng.choice(others)
        home, owner = _home(machine), f"{_home(machine)}/{META_PROPERTIES}"
        content = {home + path.removeprefix(f"/b{broker}"): data for path, data in copy.items()}
        content[owner] = machine.disk.read_file(owner)
        self._replace(machine, content)
        return True

    def _replace(self, machine: Machine, content: DiskContent) -> None:
        machine.disk.remove_tree(_home(machine))
        machine.disk.put_back(content)

    def _lose_a_file(self, machine: Machine, rng: random.Random) -> bool:
        files = (CLEAN_SHUTDOWN, CLOSED_REPLICAS, META_PROPERTIES, RECOVERY_POINT)
        path = f"{_home(machine)}/{rng.choice(files)}"
        if machine.disk.peek(path) is None:
            return False
        machine.disk.remove(path)
        return True

    # -- the tree ------------------------------------------------------------------------------

    def _lead_astray(self, machine: Machine) -> bool:
        """Its next start meets an empty tree. It must refuse that, and change nothing."""
        cluster = self._cluster
        if self._a_log(machine, random.Random(0)) is None:
            return False
        machine.elsewhere = cluster.another_coordinator()

        def look() -> None:
            if machine.elsewhere is None:
                return
            machine.elsewhere = None
            broker = machine.broker
            if broker is not None and broker.state is BrokerState.RUNNING:
                cluster.complaints.append(
                    f"I-34 b{machine.broker_id} serves under a tree that knows none of its topics"
                )
            cluster.crash(machine.broker_id, "all_kept", 10)

        self._scheduler.after(FOREIGN_MS * US_PER_MS, None, "", look)
        return True


def _home(machine: Machine) -> str:
    return f"/b{machine.broker_id}"


def _below(copy: DiskContent, path: str) -> DiskContent:
    return {each: data for each, data in copy.items() if each.startswith(f"{path}/")}
