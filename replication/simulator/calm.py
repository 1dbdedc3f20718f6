"""What must be so once nothing disturbs the cluster for a while (I-28).

Not only in the end, when everything is healed, but whenever a schedule leaves the cluster alone for
two lag times: all replicas are in the ISR, and what was written before is committed everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

from checkpoints.types import TopicPartition
from replication.broker import BrokerState
from replication.simulator.cluster import LAG_MS, Machine, SimCluster
from replication.simulator.scheduler import US_PER_MS
from replication.state import PartitionRegistration

LOOK_EVERY_US = 20 * US_PER_MS
SETTLED_MS = 2 * LAG_MS


class Calm:
    """Looks now and then.

    Args:
        registrations: as the controller's tree has them.
    Attributes:
        since_us: when the cluster was disturbed for the last time.
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
        self._next_us = 0
        self._seen: tuple[object, ...] = ()
        self._ends: dict[TopicPartition, tuple[int, int]] = {}  # when, and the leader's log end

    def look(self) -> None:
        now_us = self._cluster.scheduler.now_us
        if now_us < self._next_us:
            return
        self._next_us = now_us + LOOK_EVERY_US
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

    def _events_so_far(self) -> tuple[object, ...]:
        """Faults that are over at once, and elections, whoever wanted them."""
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
            or machine.process.held_until_us > self._cluster.scheduler.now_us
            or not machine.disk.is_well
            or self._cluster.atlas.is_damaged(machine.broker_id)
        )

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
