"""The promises that hold once nothing has disturbed the cluster for a while (I-28).

Whenever a schedule leaves the cluster undisturbed for two lag times and the longest pause between
two attempts, all replicas must be in the ISR, and all earlier records committed everywhere. That
holds during a schedule too, not only at its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from checkpoints.types import TopicPartition
from replication.broker.broker import BrokerState
from replication.broker.controller_channel import BACKOFF
from replication.common.state import PartitionRegistration
from replication.partition import Partition
from replication.simulator.world.cluster import LAG_MS, Machine, SimCluster
from replication.simulator.world.scheduler import US_PER_MS, Process

LOOK_EVERY_US = 20 * US_PER_MS
# A leader that was cut off may still pause before it repeats its proposal. The pause is as long as
# in production, where it is short beside a lag time.
SETTLED_MS = 2 * LAG_MS + int(BACKOFF.max_ms)
# A lag time, half of one until the leader checks, and the controller's answer.
LAGGARD_MS = 5 * LAG_MS // 2


class Calm:
    """Checks periodically.

    Args:
        registrations: those in the controller's tree.
    Attributes:
        since_us: when the cluster was last disturbed.
        next_us: when to look again.
    """

    def __init__(
        self,
        cluster: SimCluster,
        registrations: dict[TopicPartition, PartitionRegistration],
        violated: Callable[[str, TopicPartition, str], None],
    ) -> None:
        self._cluster = cluster
        self._registrations = registrations
        self._violated = violated
        self.since_us = cluster.scheduler.now_us
        self.next_us = 0
        self._seen: tuple[object, ...] = ()
        # The leader and its controller, and the leader's log ends since, with their times.
        self._led: dict[TopicPartition, tuple[tuple[int, ...], deque[tuple[int, int]]]] = {}
        self._joined: dict[TopicPartition, dict[int, int]] = {}  # members of the ISR, since when
        self._ends: dict[TopicPartition, tuple[int, int]] = {}  # when, and the leader's log end
        # Leaders that have not taken their role: the election and its controller, and since when.
        self._elected: dict[TopicPartition, tuple[tuple[int, ...], int]] = {}

    def look(self) -> None:
        now_us = self._cluster.scheduler.now_us
        self.next_us = now_us + LOOK_EVERY_US
        self._look_for_laggards(now_us)
        self._look_for_elections(now_us)
        seen = self._events_so_far()
        if seen != self._seen or self._is_disturbed():
            self._seen, self.since_us = seen, now_us
            return
        if now_us - self.since_us >= SETTLED_MS * US_PER_MS:
            self._cluster.counters["looks at a calm cluster"] += 1
            for tp, now in self._registrations.items():
                missing = self._missing(tp, now)
                if missing:
                    passed_ms = (now_us - self.since_us) // US_PER_MS
                    self._violated("I-28", tp, f"nothing happens for {passed_ms} ms, but {missing}")

    def _look_for_laggards(self, now_us: int) -> None:
        """A replica that has lacked the leader's records for so long must not be in the ISR, if
        leader, controller and coordinator are connected.
        """
        cluster = self._cluster
        controller = cluster.controller
        for tp, now in self._registrations.items():
            before = self._joined.get(tp, {})
            joined = self._joined[tp] = {m: before.get(m, now_us) for m in now.isr}
            partition = self._leader_of(tp, now)
            if (
                partition is None
                or partition.log is None
                or controller is None
                or not cluster.coordinator.is_calm
                or not cluster.network.is_calm_between(now.leader, controller)
                or self._is_troubled(cluster.machines[now.leader])
                or self._is_troubled(cluster.machines[controller])
            ):
                self._led.pop(tp, None)
                continue
            who = (now.leader_epoch, controller, *(m.starts for m in cluster.machines.values()))
            known, ends = self._led.get(tp, ((), deque()))
            if known != who:
                ends = deque()
            self._led[tp] = who, ends
            ends.append((now_us, partition.log.log_end_offset))
            wanted = 0
            while ends and ends[0][0] <= now_us - LAGGARD_MS * US_PER_MS:
                wanted = ends[0][1]
                if len(ends) > 1 and ends[1][0] <= now_us - LAGGARD_MS * US_PER_MS:
                    ends.popleft()
                else:
                    break
            for member in now.isr:
                if self._cluster.machines[member].broker is None:
                    continue  # its session is ending, and its log is not seen until then
                if joined[member] > now_us - LAGGARD_MS * US_PER_MS:
                    continue  # with what was committed then
                if wanted and self._end_at(member, tp) < wanted:
                    self._violated(
                        "I-28",
                        tp,
                        f"b{member} of the ISR lacks for {LAGGARD_MS} ms what "
                        f"b{now.leader} has up to {wanted}",
                    )

    def _look_for_elections(self, now_us: int) -> None:
        """A leader that the controller and the coordinator reach takes its role, however slow other
        brokers are (I-35).
        """
        cluster = self._cluster
        controller = cluster.controller
        for tp, now in self._registrations.items():
            if (
                controller is None
                or now.leader not in cluster.machines
                or not cluster.coordinator.is_calm
                or not cluster.network.is_calm_between(now.leader, controller)
                or self._is_troubled(cluster.machines[now.leader])
                or cluster.machines[controller].process is None
                or self._is_stalled(cluster.machines[controller])
                or self._leader_of(tp, now) is not None
            ):
                self._elected.pop(tp, None)
                continue
            election = now.leader, now.leader_epoch, controller
            known, since_us = self._elected.get(tp, (election, now_us))
            if known != election:
                since_us = now_us
            self._elected[tp] = election, since_us
            passed_ms = (now_us - since_us) // US_PER_MS
            if passed_ms >= SETTLED_MS:
                self._violated(
                    "I-35", tp, f"b{now.leader} does not lead, {passed_ms} ms after its election"
                )

    def _leader_of(self, tp: TopicPartition, now: PartitionRegistration) -> Partition | None:
        machine = self._cluster.machines.get(now.leader)
        broker = None if machine is None else machine.broker
        partition = None if broker is None else broker.replica_manager.partitions.get(tp)
        leads = partition is not None and partition.is_leader
        return partition if leads else None

    def _end_at(self, member: int, tp: TopicPartition) -> int:
        broker = self._cluster.machines[member].broker
        partition = None if broker is None else broker.replica_manager.partitions.get(tp)
        log = None if partition is None else partition.log
        return -1 if log is None else log.log_end_offset

    def _events_so_far(self) -> tuple[object, ...]:
        """Counts of instantaneous faults and of elections."""
        cluster = self._cluster
        return (
            sum(cluster.struck.values()),
            sum(machine.starts for machine in cluster.machines.values()),
            tuple((r.leader, r.leader_epoch) for r in self._registrations.values()),
        )

    def _is_disturbed(self) -> bool:
        cluster = self._cluster
        return (
            not cluster.network.is_calm
            or cluster.controller is None
            or not cluster.coordinator.is_calm
            or any(self._is_troubled(machine) for machine in cluster.machines.values())
        )

    def _is_troubled(self, machine: Machine) -> bool:
        return (
            machine.process is None
            or machine.broker is None
            or machine.broker.state is not BrokerState.RUNNING
            or machine.cut_off
            or self._is_stalled(machine)
            or self._has_slow_roles(machine.process)
            or not machine.disk.is_well
            or any(log.failed for log in machine.broker.log_manager.logs.values())
            or self._cluster.atlas.is_damaged(machine.broker_id)
        )

    def _is_stalled(self, machine: Machine) -> bool:
        process = machine.process
        return process is not None and process.held_until_us > self._cluster.scheduler.now_us

    def _has_slow_roles(self, process: Process) -> bool:
        late = process.control_until_us > self._cluster.scheduler.now_us
        return late or process.control_us > 0

    def _missing(self, tp: TopicPartition, now: PartitionRegistration) -> str:
        if now.leader < 0:
            return f"it has no leader: {now}"
        if len(now.isr) < len(now.replicas):
            return f"not all replicas are in the ISR: {now}"
        broker = self._cluster.machines[now.leader].broker
        assert broker is not None
        leader = broker.replica_manager.partitions.get(tp)
        if leader is None or leader.log is None or not leader.is_leader:
            return f"b{now.leader} does not lead: {now}"
        end, mark = leader.log.log_end_offset, leader.log.high_watermark
        now_us = self._cluster.scheduler.now_us
        seen_us, before = self._ends.get(tp, (0, 0))
        if seen_us <= self.since_us:
            self._ends[tp] = now_us, end
        elif now_us - seen_us >= LAG_MS * US_PER_MS:
            self._ends[tp] = now_us, end
            if mark < before:
                return f"the high watermark stays at {mark}; the log ended at {before} a while ago"
        return ""
