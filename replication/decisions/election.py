"""Elections, and legal changes of the ISR: pure rules of the controller.

``change`` is the one way from a registration to its successor (Kafka's ``PartitionChangeBuilder``);
``check_alter`` judges a leader's proposal. Liveness comes in as predicates.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum
from typing import NamedTuple

from replication.common.error_codes import ErrorCode
from replication.common.messages import AlterPartitionItem
from replication.common.state import (
    NO_LEADER,
    PartitionRegistration,
    RecoveryState,
)

IsAcceptable = Callable[[int], bool]


class Mode(Enum):
    """Which candidates an election considers, and in what order (R-54 … R-56)."""

    ONLINE = "online"
    PREFERRED = "preferred"
    UNCLEAN = "unclean"


class Elected(NamedTuple):
    leader: int  # NO_LEADER if no replica may lead
    unclean: bool = False


def elect(
    replicas: Collection[int],
    isr: Collection[int],
    elr: Collection[int],
    leader: int,
    last_known_leader: int,
    acceptable: IsAcceptable,
    mode: Mode = Mode.ONLINE,
    last_choice: Collection[int] = (),
) -> Elected:
    """Choose a leader (R-53 … R-57, R-69, R-71).

    Args:
        replicas: the assignment, the preferred replica first.
        acceptable: registered, not shutting down, its log directory online.
        last_choice: of an unclean election, because their logs are missing or older.
    """

    def valid(replica: int) -> bool:
        trusted = replica in isr or (not isr and replica in elr)
        return replica != NO_LEADER and trusted and acceptable(replica)

    order = [*replicas]
    if mode is Mode.PREFERRED:
        order = [*order[:1], leader, *order[1:]]
    else:
        order = [leader, *order]
    for replica in order:
        if valid(replica):
            return Elected(replica)
    if not isr and not elr and last_known_leader in replicas and acceptable(last_known_leader):
        return Elected(last_known_leader, unclean=True)
    if mode is Mode.UNCLEAN:
        # Prefer a replica with everything, although the ISR is not empty, because none of it can
        # lead.
        for replica in sorted(replicas, key=lambda r: (r not in elr, r in last_choice)):
            if acceptable(replica):
                return Elected(replica, unclean=True)
    return Elected(NO_LEADER)


def change(
    now: PartitionRegistration,
    acceptable: IsAcceptable,
    *,
    min_isr: int,
    elr_enabled: bool = True,
    mode: Mode = Mode.ONLINE,
    isr: Collection[int] | None = None,
    unclean_replicas: Collection[int] = (),
    lost_replicas: Collection[int] = (),
    last_choice: Collection[int] = (),
    replicas: tuple[int, ...] | None = None,
    recovery_state: RecoveryState | None = None,
) -> PartitionRegistration:
    """The registration after an event, or ``now`` itself if nothing changes (R-50, R-51).

    Args:
        acceptable: which replicas may lead after the event.
        min_isr: ``isr.effective_min_isr`` of the topic.
        isr: the target ISR, if the event changes it (a member left, a leader's proposal).
        unclean_replicas: restarted without proof of a clean stop, so they leave ISR and ELR (R-70).
        lost_replicas: their logs are missing, or older than they were. They leave as those do, and
            none of them is remembered as the last leader: only an unclean election can take it
            (R-180).
        last_choice: as of ``elect``.
        replicas: a new assignment (R-62). Replicas that leave it leave ISR and ELR.
    """
    target_replicas = now.replicas if replicas is None else replicas
    clean = {*target_replicas}.difference(unclean_replicas, lost_replicas)
    target_isr = tuple(r for r in (now.isr if isr is None else isr) if r in clean)
    target_elr: tuple[int, ...] = ()
    if elr_enabled and len(target_isr) < min_isr:  # an ELR exists only then
        former = dict.fromkeys((*now.elr, *now.isr))
        target_elr = tuple(r for r in former if r in clean and r not in target_isr)
    if not elr_enabled and not target_isr:
        # The last members stay, so that only they can be elected.
        target_isr = tuple(r for r in now.isr if r in target_replicas and r not in lost_replicas)
    # Remembered while there is no leader, for the time when no replica surely has everything any
    # more. That may come after the end of the leadership.
    last_known = now.last_known_leader
    if elr_enabled and now.leader != NO_LEADER:
        last_known = now.leader
    if last_known in lost_replicas:
        last_known = NO_LEADER
    isr_and_elr = target_isr, target_elr
    elected = elect(
        target_replicas, *isr_and_elr, now.leader, last_known, acceptable, mode, last_choice
    )
    recovery = now.recovery_state if recovery_state is None else recovery_state
    leader = elected.leader
    if leader != NO_LEADER:
        last_known = NO_LEADER
        if elected.unclean:
            target_isr, target_elr, recovery = (leader,), (), RecoveryState.RECOVERING
        elif leader not in target_isr:  # from the ELR
            target_isr = (leader,)
            # If one replica is enough, later commits are not on the others.
            stay = len(target_isr) < min_isr
            target_elr = tuple(r for r in target_elr if stay and r != leader)
    shrunk_assignment = any(r not in target_replicas for r in now.replicas)
    bumps = leader != now.leader or elected.unclean or shrunk_assignment
    after = now._replace(
        replicas=target_replicas,
        isr=target_isr,
        elr=target_elr,
        leader=leader,
        last_known_leader=last_known,
        recovery_state=recovery,
    )
    if after == now and not bumps:
        return now
    return after._replace(
        leader_epoch=now.leader_epoch + bumps, partition_epoch=now.partition_epoch + 1
    )


def check_alter(
    now: PartitionRegistration,
    item: AlterPartitionItem,
    sender: int,
    eligible: Callable[[int, int], bool],
) -> ErrorCode:
    """Judge a leader's proposal, in Kafka's order (R-43 … R-48).

    Args:
        eligible: (broker id, broker epoch or −1) → whether it is registered, not shutting down, and
            of that epoch (KIP-841, KIP-903).
    """
    if item.leader_epoch > now.leader_epoch or item.partition_epoch > now.partition_epoch:
        return ErrorCode.NOT_CONTROLLER  # the sender knows a newer controller
    if item.leader_epoch < now.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if sender != now.leader:
        return ErrorCode.INVALID_REQUEST
    if item.partition_epoch < now.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    members = [replica for replica, _ in item.new_isr]
    if (
        not members
        or len(set(members)) != len(members)
        or any(r not in now.replicas for r in members)
        or now.leader not in members
    ):
        return ErrorCode.INVALID_REQUEST
    recovering = item.recovery_state is RecoveryState.RECOVERING
    if recovering and (len(members) > 1 or now.recovery_state is RecoveryState.RECOVERED):
        return ErrorCode.INVALID_REQUEST
    if any(not eligible(replica, epoch) for replica, epoch in item.new_isr if replica != sender):
        return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def is_already_applied(now: PartitionRegistration, item: AlterPartitionItem, sender: int) -> bool:
    """Whether a proposal was applied before and its answer lost: its result is the present state
    (S-25).
    """
    return (
        sender == now.leader
        and item.leader_epoch == now.leader_epoch
        and item.partition_epoch < now.partition_epoch
        and sorted(replica for replica, _ in item.new_isr) == sorted(now.isr)
        and item.recovery_state == now.recovery_state
    )


__all__ = ["Elected", "Mode", "change", "check_alter", "elect", "is_already_applied"]
