"""The decisions of the controller, and how they reach the replicas.

A request may arrive late, repeatedly or never. So a decision stays deliverable until no replica can
accept it any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.common.messages import AlterPartitionItem
from replication.common.state import NO_LEADER, PartitionRegistration
from replication.decisions.election import IsAcceptable
from replication.decisions.isr import effective_min_isr
from replication.simulator.exhaustive.decisions import ModelDecisions
from replication.simulator.exhaustive.state import Control, ModelLeadership
from replication.simulator.exhaustive.steps import MIN_ISR

TP = TopicPartition("model", 0)
PARTITION_EPOCH = 0  # always the partition epoch of a leader's view (``Control``)


class Decided(NamedTuple):
    control: Control
    reason: str


class Delivery(NamedTuple):
    """A request that a replica may accept now."""

    leader: int
    epoch: int
    isr: tuple[int, ...]
    unseen_index: int  # its place among what the leader has not seen; −1 for a follower


def changed(
    control: Control,
    replicas: int,
    decide: ModelDecisions,
    isr: tuple[int, ...] | None,
    acceptable: IsAcceptable,
) -> Control:
    """The registration after an event, and its announcement, or ``control`` if nothing changes."""
    now = control.registration(replicas)
    after = decide.change(
        now, acceptable, min_isr=effective_min_isr(MIN_ISR, replicas), elr_enabled=False, isr=isr
    )
    return control if after is now else announced(control, after)


def announced(control: Control, after: PartitionRegistration) -> Control:
    history = control.leaderships
    if after.leader_epoch > control.leader_epoch:
        unseen = () if after.leader == NO_LEADER else (after.isr,)
        history = (*history, ModelLeadership(after.leader, unseen))
    elif after.leader != NO_LEADER:
        before = history[-1].unseen if history[-1] is not None else ()
        history = (*history[:-1], ModelLeadership(after.leader, (*before, after.isr)))
    return Control(after.leader, after.isr, history)


def decisions_of(control: Control, replicas: int, decide: ModelDecisions) -> Iterator[Decided]:
    """Elections and failures, with every choice of brokers that may lead (R-53, R-59).

    Only outcomes count, so at most one candidate is acceptable at a time. A broker that "fails" is
    not told, and may go on.
    """

    def only(candidate: int) -> IsAcceptable:
        return lambda broker: broker == candidate

    for candidate in control.isr:
        if candidate != control.leader:
            after = changed(control, replicas, decide, None, only(candidate))
            yield Decided(after, f"controller elects {candidate}")
    for failed in control.isr:
        rest = tuple(r for r in control.isr if r != failed)
        heirs = [control.leader]
        if failed == control.leader:
            heirs = [NO_LEADER, *rest]
        for heir in heirs:
            after = changed(control, replicas, decide, rest, only(heir))
            reason = f"controller removes {failed}"
            if failed == control.leader:
                reason += ", nobody can lead" if heir == NO_LEADER else f", elects {heir}"
            yield Decided(after, reason)


def altered(
    control: Control,
    sender: int,
    sender_epoch: int,
    isr: tuple[int, ...],
    replicas: int,
    decide: ModelDecisions,
) -> Control | None:
    """Judge and apply a leader's proposal (R-43 … R-48). None if it is refused.

    It elects no other leader: only the present one is acceptable.
    """
    item = AlterPartitionItem(TP, sender_epoch, PARTITION_EPOCH, tuple((r, -1) for r in isr))
    now = control.registration(replicas)
    if decide.check_alter(now, item, sender, lambda broker, epoch: True) != ErrorCode.NONE:
        return None
    return changed(control, replicas, decide, isr, lambda broker: broker == control.leader)


def deliverable(control: Control, me: int, my_epoch: int) -> Iterator[Delivery]:
    """The orders that a broker in ``my_epoch`` may still accept (R-12, R-18)."""
    for epoch, leadership in enumerate(control.leaderships):
        if leadership is None:
            continue
        if leadership.leader == me:
            if epoch >= my_epoch:
                for index, isr in enumerate(leadership.unseen):
                    yield Delivery(me, epoch, isr, index)
        elif epoch > my_epoch:
            yield Delivery(leadership.leader, epoch, (), -1)


def taken(control: Control, me: int, delivery: Delivery, lowest_epoch: int) -> Control:
    """Forget what can no longer be delivered: ``me`` took it, and all are at ``lowest_epoch`` or
    above.
    """
    history: list[ModelLeadership | None] = []
    for epoch, leadership in enumerate(control.leaderships):
        if leadership is not None and leadership.leader == me:
            if epoch < delivery.epoch:
                leadership = leadership._replace(unseen=())
            elif epoch == delivery.epoch:
                unseen = leadership.unseen[delivery.unseen_index + 1 :]
                leadership = leadership._replace(unseen=unseen)
        if leadership is not None and epoch <= lowest_epoch and not leadership.unseen:
            leadership = None
        history.append(leadership)
    return control._replace(leaderships=tuple(history))
