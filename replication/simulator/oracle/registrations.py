"""The part of the oracle that checks what the controller writes (I-2, I-8 … I-10, I-32)."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from checkpoints.types import TopicPartition
from replication.common.state import PartitionRegistration
from replication.coordination import nodes
from replication.coordination.base import Node
from replication.coordination.tree import Tree
from replication.simulator.oracle.oracle_log import View
from replication.simulator.oracle.unclean import UncleanElections
from replication.simulator.world.cluster import SimCluster


class ReplicaViews(Protocol):
    """The rest of the oracle, which knows the replicas."""

    counters: Counter[str]
    violations: list[str]
    unclean: UncleanElections

    def violated(self, number: str, tp: TopicPartition, text: str) -> None: ...
    def live_view(self, broker_id: int, tp: TopicPartition) -> View | None: ...
    def check_committed(
        self, number: str, broker_id: int, tp: TopicPartition, what: str
    ) -> None: ...


class RegistrationChecks:
    """Check each change of the coordinator's tree.

    Attributes:
        known: the registration of each partition at the last check.
        broker_epochs: those that the tree has, by broker.
        beside: other topics whose replicas count as copies.
        zxid: the change of the tree that was checked last.
    """

    def __init__(
        self, cluster: SimCluster, partitions: list[TopicPartition], oracle: ReplicaViews
    ) -> None:
        self.known: dict[TopicPartition, PartitionRegistration] = {}
        self.broker_epochs: dict[int, int] = {}
        self.beside: tuple[str, ...] = ()
        self._cluster = cluster
        self._oracle = oracle
        self.zxid = -1
        self._controller_epoch = 0  # at the last check
        self._nodes: dict[TopicPartition, Node] = {}
        self._paths = {tp: nodes.partition_state_path(tp) for tp in partitions}

    def check(self, tree: Tree) -> None:
        """Check the tree, which has changed since the last call."""
        self.zxid = tree.zxid
        self._oracle.unclean.looked(tree)
        for broker_id in self._cluster.machines:
            path = nodes.broker_epoch_path(broker_id)
            known = tree.get(path)
            if known is not None:
                epoch = nodes.decode_number(path, known.data)
                if epoch < self.broker_epochs.get(broker_id, -1):
                    self._oracle.violations.append(
                        f"I-8 broker epoch of b{broker_id} goes back to {epoch}"
                    )
                self.broker_epochs[broker_id] = epoch
        for tp, path in self._paths.items():
            node = tree.get(path)
            if node is None or node == self._nodes.get(tp):
                continue
            self._nodes[tp] = node
            topic = tree.get(nodes.topic_path(tp.topic))
            assert topic is not None
            replicas = nodes.decode_topic(tp.topic, topic.data).partitions[tp.partition]
            self._change(tree, tp, nodes.decode_partition(tp, node.data, node.version, replicas))
        present = tree.get(nodes.CONTROLLER_EPOCH)
        if present is not None:
            self._controller_epoch = nodes.decode_number(nodes.CONTROLLER_EPOCH, present.data)

    def _change(self, tree: Tree, tp: TopicPartition, now: PartitionRegistration) -> None:
        before = self.known.get(tp)
        self.known[tp] = now
        self._oracle.counters["registrations"] += 1
        self._cluster.scheduler.note(
            f"{tp} leader {now.leader} epoch {now.leader_epoch}.{now.partition_epoch} "
            f"ISR {now.isr} ELR {now.elr}"
        )
        if before is not None:
            if (
                now.leader_epoch < before.leader_epoch
                or now.partition_epoch <= before.partition_epoch
            ):
                self._oracle.violated("I-8", tp, f"{now} after {before}")
            if now.leader not in (before.leader, -1):
                self._oracle.counters["elections"] += 1
            if len(now.isr) < len(before.isr):
                self._oracle.counters["ISR shrinks"] += 1
            elif len(now.isr) > len(before.isr):
                self._oracle.counters["ISR expansions"] += 1
            if now.elr and not before.elr:
                self._oracle.counters["ELR used"] += 1
        self._oracle.unclean.registered(tree, tp, before, now)
        present = tree.get(nodes.CONTROLLER_EPOCH)
        assert present is not None
        # In one event a controller may write, notice its removal and be elected again.
        latest = nodes.decode_number(nodes.CONTROLLER_EPOCH, present.data)
        if not self._controller_epoch <= now.controller_epoch <= latest:
            self._oracle.violated(
                "I-32", tp, f"a controller of epoch {now.controller_epoch} writes in epoch {latest}"
            )
        if now.leader >= 0 and now.leader not in now.isr:
            self._oracle.violated("I-9", tp, f"leader outside its ISR: {now}")
        for member in dict.fromkeys((*now.isr, *now.elr)):
            self.check_member(member, tp, f"as of partition epoch {now.partition_epoch}")
        leader = self._oracle.live_view(now.leader, tp) if now.leader >= 0 else None
        if (
            leader is not None
            and leader.leads
            and leader.leader_epoch == now.leader_epoch
            and len(now.isr) >= min(self._cluster.plan.min_isr, len(now.replicas))
            and not set(now.isr) <= set(leader.isr.maximal)
        ):
            self._oracle.violated(
                "I-9",
                tp,
                f"the controller's ISR {now.isr} is not within the leader's maximal "
                f"one, {leader.isr.maximal}",
            )
        if before is not None:
            self._check_joined(tp, before, now)
        self._settled()

    def _check_joined(
        self, tp: TopicPartition, before: PartitionRegistration, now: PartitionRegistration
    ) -> None:
        """A replica that is far behind must not join the ISR (I-10)."""
        if now.leader < 0 or now.leader_epoch != before.leader_epoch:
            return
        leader = self._oracle.live_view(now.leader, tp)
        if leader is None or not leader.leads or leader.leader_epoch != now.leader_epoch:
            return
        for member in now.isr:
            if member in before.isr:
                continue
            view = self._oracle.live_view(member, tp)
            if view is not None and view.shadow.end < leader.high_watermark:
                self._oracle.violated(
                    "I-10",
                    tp,
                    f"b{member} joins the ISR with log end {view.shadow.end}, below "
                    f"the high watermark {leader.high_watermark}",
                )

    def _settled(self) -> None:
        for tp in self._paths:
            state = self.known.get(tp)
            if state is None or len(state.isr) < len(state.replicas):
                return
        for broker_id, machine in self._cluster.machines.items():
            broker = machine.broker
            if broker is None or self.broker_epochs.get(broker_id) != broker.broker_epoch:
                return
        if all(map(self._is_in_sync, self.beside)):
            self._cluster.atlas.all_in_sync()

    def _is_in_sync(self, name: str) -> bool:
        """Whether all replicas of a topic are in the ISR; also if there is no such topic yet."""
        tree = self._cluster.coordinator.tree
        topic = None if tree is None else tree.get(nodes.topic_path(name))
        if tree is None or topic is None:
            return True
        for number, replicas in nodes.decode_topic(name, topic.data).partitions.items():
            tp = TopicPartition(name, number)
            node = tree.get(nodes.partition_state_path(tp))
            if node is None:
                return False
            state = nodes.decode_partition(tp, node.data, node.version, replicas)
            if len(state.isr) < len(replicas):
                return False
        return True

    def check_member(self, broker_id: int, tp: TopicPartition, when: str) -> None:
        if self._oracle.live_view(broker_id, tp) is not None:
            self._oracle.check_committed("I-2", broker_id, tp, f"in the controller's ISR {when}")
