"""What an admin does at the wrong time, asked of the controller itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from itertools import permutations

from checkpoints.types import TopicPartition
from replication.broker.broker import Broker
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    AlterableConfig,
    ElectionType,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
)
from replication.coordination import nodes
from replication.simulator.world.cluster import SimCluster
from replication.simulator.world.plan import Fault, Plan
from replication.simulator.world.scheduler import US_PER_MS, Scheduler


def targets(plan: Plan) -> list[tuple[int, ...]]:
    """The sets of brokers that are large enough for a partition, in each of their orders."""
    most = min(3, plan.brokers)
    least = max(min(2, most), plan.min_isr)
    sizes = range(least, most + 1)
    return [target for size in sizes for target in permutations(range(plan.brokers), size)]


def move(
    cluster: SimCluster, tp: TopicPartition, target: tuple[int, ...] | None,
    reply: Callable[[Mapping[TopicPartition, ErrorCode]], None],
) -> bool:  # fmt: skip
    """Ask the controller for a move; None gives up the one that is under way. True if it was asked.

    New replicas of a move that is given up leave, and what they alone kept beside the leader is on
    one disk less: they count as replicas that forget. Where too many have, nothing is asked.
    """
    controller, tree = cluster.controller, cluster.coordinator.tree
    broker = None if controller is None else cluster.machines[controller].broker
    node = None if tree is None else tree.get(nodes.topic_path(tp.topic))
    if broker is None or node is None:
        return False
    adding = nodes.decode_topic(tp.topic, node.data).adding.get(tp.partition, ())
    leaving = set(adding).difference(target or ())
    if leaving and not cluster.atlas.may_stop(*leaving):
        return False
    for replica in leaving:
        cluster.atlas.stopped(replica, forgets=True)
    cluster.scheduler.note(f"{tp} is to be on {target or 'where it was'}")
    broker.controller.reassign({tp: target}, reply)
    return True


class AdminFaults:
    """``followed``: the partitions that it is about."""

    def __init__(
        self, cluster: SimCluster, scheduler: Scheduler, struck: Counter[str],
        followed: tuple[TopicPartition, ...],
    ) -> None:  # fmt: skip
        self._cluster, self._scheduler, self._struck = cluster, scheduler, struck
        self._followed = followed

    def _controller(self, fault: Fault) -> Broker | None:
        controller = self._cluster.controller
        broker = None if controller is None else self._cluster.machines[controller].broker
        if broker is not None:
            self._struck[fault.kind] += 1
        return broker

    def elect_uncleanly(self, fault: Fault) -> None:
        """A leader at any price, where there is none."""
        broker = self._controller(fault)
        if broker is not None:
            request = ElectLeadersRequest(ElectionType.UNCLEAN, self._followed)
            broker.handle(request, lambda response: None)

    def change_minimum(self, fault: Fault) -> None:
        """Of the topic, and never below what the plan says: so many may forget."""
        broker = self._controller(fault)
        if broker is not None:
            value = str(max(self._cluster.plan.min_isr, int(fault.amount)))
            request = IncrementalAlterConfigsRequest(
                self._followed[0].topic, (AlterableConfig("min.insync.replicas", value),)
            )
            broker.handle(request, lambda response: None)

    def move_and_give_up(self, fault: Fault) -> None:
        """A partition is to be elsewhere; and later where it was, or at a third place."""
        number, choices = int(fault.amount), targets(self._cluster.plan)
        self._move(fault, choices[number % len(choices)])
        third = choices[number * 7 % len(choices)]
        self._scheduler.after(
            fault.duration_ms * US_PER_MS, None, "",
            partial(self._move, fault, third if number % 4 == 0 else None),
        )  # fmt: skip

    def _move(self, fault: Fault, target: tuple[int, ...] | None) -> None:
        tp = self._followed[int(fault.amount) % len(self._followed)]
        if move(self._cluster, tp, target, lambda verdicts: None):
            self._struck[fault.kind] += 1
