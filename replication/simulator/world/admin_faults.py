"""Admin requests at the wrong time, sent to the controller itself."""

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
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectionType,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    Response,
)
from replication.coordination import nodes
from replication.simulator.world.cluster import SimCluster
from replication.simulator.world.plan import PlannedFault, SchedulePlan
from replication.simulator.world.scheduler import US_PER_MS, Scheduler


def targets(plan: SchedulePlan) -> list[tuple[int, ...]]:
    """All sufficiently large sets of brokers for a partition, in each of their orders."""
    most = min(3, plan.brokers)
    least = max(min(2, most), plan.min_isr)
    sizes = range(least, most + 1)
    return [target for size in sizes for target in permutations(range(plan.brokers), size)]


def move(
    cluster: SimCluster,
    tp: TopicPartition,
    target: tuple[int, ...] | None,
    reply: Callable[[Mapping[TopicPartition, ErrorCode]], None],
) -> bool:
    """Request a move from the controller; None cancels the present move. True if it was requested.

    The new replicas of a cancelled move leave, and records that only they and the leader had lose a
    copy. So they count as replicas that forget. If too many have forgotten, nothing is requested.
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

    def on_reply(response: Response | None) -> None:
        assert isinstance(response, AlterPartitionReassignmentsResponse)
        reply({tp: response.error_code, **dict(response.partitions)})

    broker.controller.handle(AlterPartitionReassignmentsRequest(((tp, target),)), on_reply)
    return True


class AdminFaults:
    """Injects these faults. ``followed``: the partitions for which it does."""

    def __init__(
        self,
        cluster: SimCluster,
        scheduler: Scheduler,
        struck: Counter[str],
        followed: tuple[TopicPartition, ...],
    ) -> None:
        self._cluster, self._scheduler, self._struck = cluster, scheduler, struck
        self._followed = followed

    def _controller(self, fault: PlannedFault) -> Broker | None:
        controller = self._cluster.controller
        broker = None if controller is None else self._cluster.machines[controller].broker
        if broker is not None:
            self._struck[fault.kind] += 1
        return broker

    def elect_uncleanly(self, fault: PlannedFault) -> None:
        """Elect any leader if there is none."""
        broker = self._controller(fault)
        if broker is not None:
            request = ElectLeadersRequest(ElectionType.UNCLEAN, self._followed)
            broker.handle(request, lambda response: None)

    def change_minimum(self, fault: PlannedFault) -> None:
        """Change min.insync.replicas of the topic, never below that of the plan, which decides how
        many replicas may forget.
        """
        broker = self._controller(fault)
        if broker is not None:
            value = str(max(self._cluster.plan.min_isr, int(fault.amount)))
            request = IncrementalAlterConfigsRequest(
                self._followed[0].topic, (AlterableConfig("min.insync.replicas", value),)
            )
            broker.handle(request, lambda response: None)

    def move_and_give_up(self, fault: PlannedFault) -> None:
        """Move a partition, and later move it back or to a third set of brokers."""
        number, choices = int(fault.amount), targets(self._cluster.plan)
        self._move(fault, choices[number % len(choices)])
        third = choices[number * 7 % len(choices)]
        self._scheduler.after(
            fault.duration_ms * US_PER_MS,
            None,
            "",
            partial(self._move, fault, third if number % 4 == 0 else None),
        )

    def _move(self, fault: PlannedFault, target: tuple[int, ...] | None) -> None:
        tp = self._followed[int(fault.amount) % len(self._followed)]
        if move(self._cluster, tp, target, lambda verdicts: None):
            self._struck[fault.kind] += 1
