"""The losses that an unclean election may cause: exactly what the elected replica lacks (I-33).

A topic, or an admin, may prefer a stale leader to none. Then committed records that the elected
replica lacks are lost, and so are records that a leader commits before it learns about the
election. Each such record is counted as an excuse, and nothing else is excused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from checkpoints.types import TopicPartition
from replication.broker.broker import BrokerState
from replication.common.state import PartitionRegistration, RecoveryState
from replication.coordination import nodes
from replication.coordination.tree import Tree
from replication.simulator.oracle.excuses import Excuse, Excuses
from replication.simulator.oracle.oracle_log import OracleEntry, OracleLog
from replication.simulator.world.cluster import SimCluster
from replication.simulator.world.fault_kinds import UNCLEAN_ELECTION
from replication.simulator.world.plan import SchedulePlan
from replication.simulator.world.scheduler import US_PER_MS

ELECTIONS = "unclean elections"
KNOWN_AFTER_US = 100 * US_PER_MS  # a controller decides from what it has read before


def may_elect_uncleanly(plan: SchedulePlan) -> bool:
    """Whether the topic allows it, or an admin requests it."""
    return plan.unclean or any(fault.kind == UNCLEAN_ELECTION for fault in plan.faults)


class Losses:
    """Records that unclean elections took, by partition and offset."""

    def __init__(self) -> None:
        self._lost: dict[TopicPartition, set[tuple[int, bytes]]] = {}
        self._values: dict[TopicPartition, set[bytes]] = {}

    def add(self, tp: TopicPartition, offset: int, value: bytes) -> bool:
        """Add a lost record. False if it is known already."""
        lost = self._lost.setdefault(tp, set())
        if (offset, value) in lost:
            return False
        lost.add((offset, value))
        self._values.setdefault(tp, set()).add(value)
        return True

    def took(self, tp: TopicPartition, offset: int, value: bytes) -> bool:
        return tp in self._lost and (offset, value) in self._lost[tp]

    def took_value(self, tp: TopicPartition, value: bytes) -> bool:
        """Whether this value was lost at any offset."""
        return tp in self._values and value in self._values[tp]


class UncleanElections:
    """Tracks unclean elections, if the plan allows them.

    Args:
        committed: the oracle's committed logs. Lost records are removed from them.
        shadow_of: returns what a replica's present process has.
    """

    def __init__(
        self,
        cluster: SimCluster,
        committed: dict[TopicPartition, dict[int, OracleEntry]],
        excuses: Excuses,
        counters: Counter[str],
        violated: Callable[[str, TopicPartition, str], None],
        shadow_of: Callable[[int, TopicPartition], OracleLog | None],
    ) -> None:
        self.losses = Losses()
        self.allowed = may_elect_uncleanly(cluster.plan)
        self._cluster = cluster
        self._committed = committed
        self._excuses = excuses
        self._counters = counters
        self._violated = violated
        self._shadow_of = shadow_of
        self._values: dict[TopicPartition, dict[int, bytes]] = {tp: {} for tp in committed}
        self._latest: dict[TopicPartition, int] = {}  # the leader epoch of the last such election
        self._since: dict[tuple[int, int], int] = {}  # registration → when it was first seen, µs

    def looked(self, tree: Tree) -> None:
        """Note a changed tree."""
        if self.allowed:
            for broker_id in self._cluster.machines:
                node = tree.get(nodes.broker_path(broker_id))
                if node is not None:
                    self._since.setdefault((broker_id, node.czxid), self._cluster.scheduler.now_us)

    def registered(
        self,
        tree: Tree,
        tp: TopicPartition,
        before: PartitionRegistration | None,
        now: PartitionRegistration,
    ) -> None:
        """Judge a registration that the controller has written."""
        if not self.allowed or before is None or now.leader < 0:
            return
        if (
            now.recovery_state is not RecoveryState.RECOVERING
            or now.leader_epoch == before.leader_epoch
        ):
            return
        if (
            before.recovery_state is RecoveryState.RECOVERING
            and now.leader in (*before.isr, *before.elr)
            and not self._cluster.atlas.forgotten(now.leader)
        ):
            return  # it had what the previous election left
        trusted = dict.fromkeys((*before.isr, *before.elr))
        if now.leader in trusted and not self._cluster.atlas.forgotten(now.leader):
            trusted = {}  # as good as the others, and no member of the ISR could lead
        for member in trusted:
            leads = member == before.leader
            if member != now.leader and self._could_lead(tree, member, tp, leads):
                self._violated(
                    "I-33",
                    tp,
                    f"b{now.leader} is elected uncleanly, although b{member} of ISR "
                    f"{before.isr} and ELR {before.elr} could lead",
                )
        self._counters[ELECTIONS] += 1
        self._latest[tp] = now.leader_epoch
        self._cut(tp, now.leader)

    def leads(self, tp: TopicPartition, broker_id: int, leader_epoch: int) -> None:
        """Note that an elected replica takes over.

        It may have lost records since, if it was moved away and back.
        """
        if leader_epoch == self._latest.get(tp):
            self._cut(tp, broker_id)

    def _could_lead(self, tree: Tree, broker_id: int, tp: TopicPartition, leads: bool) -> bool:
        """Whether a replica could lead: it is up (or leads and is stopping), the controller has
        processed this incarnation some time ago, and its log works.
        """
        broker = self._cluster.machines[broker_id].broker
        path = nodes.broker_epoch_path(broker_id)
        known = tree.get(path)
        node = tree.get(nodes.broker_path(broker_id))
        if (
            broker is None
            or broker.state not in (BrokerState.RUNNING, *[BrokerState.STOPPING] * leads)
            or known is None
            or nodes.decode_number(path, known.data) != broker.broker_epoch
            or node is None
        ):
            return False
        since_us = self._since.get((broker_id, node.czxid), self._cluster.scheduler.now_us)
        if self._cluster.scheduler.now_us - since_us < KNOWN_AFTER_US:
            return False
        partition = broker.replica_manager.partitions.get(tp)
        return partition is not None and partition.log is not None and not partition.log.failed

    def _cut(self, tp: TopicPartition, leader: int) -> None:
        shadow = self._shadow_of(leader, tp)
        entries = {} if shadow is None else shadow.entries
        start = 0 if shadow is None else shadow.start
        committed = self._committed[tp]
        parted = min(
            (o for o, entry in committed.items() if o >= start and entries.get(o) != entry),
            default=None,
        )
        if parted is None:
            return
        lost = sorted(offset for offset in committed if offset >= parted)
        self._cluster.scheduler.note(f"{tp} loses what was committed from {parted} to {lost[-1]}")
        for offset in lost:
            del committed[offset]
            value = self._values[tp].pop(offset, None)
            self._lose(tp, offset, value)

    def _lose(self, tp: TopicPartition, offset: int, value: bytes | None) -> None:
        if value is None or self.losses.add(tp, offset, value):
            self._excuses.use(Excuse.ELECTED_UNCLEANLY)

    def committed(self, tp: TopicPartition, shadow: OracleLog, offsets: Iterable[int]) -> None:
        """Note newly committed records."""
        if self.allowed:
            for offset in offsets:
                self._values[tp].update(shadow.values_at(offset))

    def is_overtaken(self, tp: TopicPartition, leader_epoch: int) -> bool:
        """Whether an unclean election came after this leadership began."""
        return leader_epoch < self._latest.get(tp, -1)

    def commits_late(self, tp: TopicPartition, shadow: OracleLog, offsets: Iterable[int]) -> None:
        """A leader that does not know about the election commits records.

        They are lost where the log differs now.
        """
        for offset in offsets:
            if self._committed[tp].get(offset) != shadow.entries.get(offset):
                for held, value in shadow.values_at(offset).items():
                    self._lose(tp, held, value)
