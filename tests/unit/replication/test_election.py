"""Who leads, and which ISR change is legal: R-42 … R-58, R-67 … R-78 as tables; with them the cases
of Kafka's PartitionChangeBuilderTest."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from replication.common.error_codes import ErrorCode
from replication.common.messages import AlterPartitionItem
from replication.common.state import NO_LEADER, PartitionRegistration, RecoveryState, TopicPartition
from replication.decisions.election import Mode, change, check_alter, elect, is_already_applied
from tests.support.cases import for_each

NONE: tuple[int, ...] = ()
RECOVERED, RECOVERING = RecoveryState.RECOVERED, RecoveryState.RECOVERING


def reg(
    isr: tuple[int, ...],
    leader: int,
    elr: tuple[int, ...] = (),
    *,
    epoch: int = 5,
    last: int = NO_LEADER,
    recovery: RecoveryState = RECOVERED,
    replicas: tuple[int, ...] = (1, 2, 3),
) -> PartitionRegistration:
    return PartitionRegistration(replicas, isr, leader, epoch, 10, recovery, elr, last)


def among(*alive: int) -> Collection[int]:
    return frozenset(alive)


@for_each(
    "isr, elr, leader, last, alive, online, preferred, unclean",
    [
        # isr     elr    leader last alive    R-54       R-55       R-56
        ((1, 2, 3), NONE, 2, -1, (1, 2, 3), (2, False), (1, False), (2, False)),
        ((1, 2, 3), NONE, 2, -1, (1, 3), (1, False), (1, False), (1, False)),
        ((2, 3), NONE, 3, -1, (1, 2, 3), (3, False), (3, False), (3, False)),
        ((2, 3), NONE, 1, -1, (1, 2, 3), (2, False), (2, False), (2, False)),
        ((3, 2), NONE, -1, -1, (2, 3), (2, False), (2, False), (2, False)),  # replica order
        ((2,), NONE, -1, -1, (1, 3), (-1, False), (-1, False), (1, True)),
        ((2,), NONE, -1, -1, (3,), (-1, False), (-1, False), (3, True)),
        ((2,), NONE, -1, -1, (), (-1, False), (-1, False), (-1, False)),
        ((2,), (3,), -1, -1, (3,), (-1, False), (-1, False), (3, True)),  # ISR comes before ELR
        ((2,), (3,), -1, -1, (1, 3), (-1, False), (-1, False), (3, True)),  # 3 has everything
        (NONE, (3,), -1, -1, (1, 2, 3), (3, False), (3, False), (3, False)),
        (NONE, (3, 2), -1, -1, (1, 2, 3), (2, False), (2, False), (2, False)),
        (NONE, (3,), -1, 1, (1, 2), (-1, False), (-1, False), (1, True)),
        (NONE, NONE, -1, 2, (1, 2, 3), (2, True), (2, True), (2, True)),
        (NONE, NONE, -1, 2, (1, 3), (-1, False), (-1, False), (1, True)),  # it must be alive
    ],
)
def test_elections(
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    leader: int,
    last: int,
    alive: tuple[int, ...],
    online: tuple[int, bool],
    preferred: tuple[int, bool],
    unclean: tuple[int, bool],
) -> None:
    """R-53 … R-56, R-69, R-71."""
    for mode, wanted in (
        (Mode.ONLINE, online),
        (Mode.PREFERRED, preferred),
        (Mode.UNCLEAN, unclean),
    ):
        assert elect((1, 2, 3), isr, elr, leader, last, alive.__contains__, mode) == wanted


# replicas 1, 2, 3; min ISR 2; leader 1; epoch 5. An event: who may lead after it, the target ISR
# (None: as it is), who stopped uncleanly, and the mode.
ALL = reg((1, 2, 3), 1)
LEADERLESS = reg(NONE, NO_LEADER, (2, 1), epoch=6, last=1)
WITH_ELR = {
    "R-72: 3 leaves": (ALL, (1, 2), (1, 2), NONE, Mode.ONLINE, reg((1, 2), 1)),
    "R-73: 2 leaves": (reg((1, 2), 1), (1,), (1,), NONE, Mode.ONLINE, reg((1,), 1, (2,))),
    "R-74: 1 fenced": (reg((1,), 1, (2,)), NONE, NONE, NONE, Mode.ONLINE, LEADERLESS),
    "R-75: 1 re-registers uncleanly": (
        LEADERLESS,
        NONE,
        None,
        (1,),
        Mode.ONLINE,
        reg(NONE, NO_LEADER, (2,), epoch=6, last=1),
    ),
    "R-76: 2 unfenced": (LEADERLESS, (2,), None, NONE, Mode.ONLINE, reg((2,), 2, (1,), epoch=7)),
    "R-76 after R-75": (
        reg(NONE, NO_LEADER, (2,), epoch=6, last=1),
        (1, 2),
        None,
        NONE,
        Mode.ONLINE,
        reg((2,), 2, epoch=7),
    ),
    "R-77 after R-75: 1 unfenced, not electable": (
        reg(NONE, NO_LEADER, (2,), epoch=6, last=1),
        (1,),
        None,
        NONE,
        Mode.ONLINE,
        reg(NONE, NO_LEADER, (2,), epoch=6, last=1),
    ),
    "R-78: unclean, 2 alive": (
        reg(NONE, NO_LEADER, (2,), epoch=6, last=1),
        (2, 3),
        None,
        NONE,
        Mode.UNCLEAN,
        reg((2,), 2, epoch=7),
    ),
    "R-78: unclean, only 3 alive": (
        reg(NONE, NO_LEADER, (2,), epoch=6, last=1),
        (3,),
        None,
        NONE,
        Mode.UNCLEAN,
        reg((3,), 3, epoch=7, recovery=RECOVERING),
    ),
    "R-67: ELR emptied at min ISR": (
        reg((1,), 1, (2, 3)),
        (1, 2, 3),
        (1, 2),
        NONE,
        Mode.ONLINE,
        reg((1, 2), 1),
    ),
    "R-56: all leave, one comes back uncleanly": (  # testUncleanLeaderElection
        ALL,
        (1, 2),
        (3,),
        NONE,
        Mode.UNCLEAN,
        reg((1,), 1, epoch=6, recovery=RECOVERING),
    ),
    "R-70: unclean member of the ISR": (
        ALL,
        (2, 3),
        (2, 3),
        (1,),
        Mode.ONLINE,
        reg((2, 3), 2, epoch=6),
    ),
    "R-71: both empty": (
        reg((1,), 1),
        NONE,
        NONE,
        (1,),
        Mode.ONLINE,
        reg(NONE, NO_LEADER, epoch=6, last=1),
    ),
    "R-71: the last one is back": (
        reg(NONE, NO_LEADER, epoch=6, last=1),
        (1, 3),
        None,
        NONE,
        Mode.ONLINE,
        reg((1,), 1, epoch=7, recovery=RECOVERING),
    ),
}
WITHOUT_ELR = {
    "R-72: 3 leaves": (ALL, (1, 2), (1, 2), NONE, Mode.ONLINE, reg((1, 2), 1)),
    "R-73: 2 leaves": (reg((1, 2), 1), (1,), (1,), NONE, Mode.ONLINE, reg((1,), 1)),
    "R-74: 1 fenced": (
        reg((1,), 1),
        NONE,
        NONE,
        NONE,
        Mode.ONLINE,
        reg((1,), NO_LEADER, epoch=6),
    ),
    "R-75: 1 re-registers uncleanly": (
        reg((1,), NO_LEADER, epoch=6),
        NONE,
        None,
        (1,),
        Mode.ONLINE,
        reg((1,), NO_LEADER, epoch=6),
    ),
    "R-76: 2 unfenced": (
        reg((1,), NO_LEADER, epoch=6),
        (2,),
        None,
        NONE,
        Mode.ONLINE,
        reg((1,), NO_LEADER, epoch=6),
    ),
    "R-77: 1 unfenced": (
        reg((1,), NO_LEADER, epoch=6),
        (1,),
        None,
        NONE,
        Mode.ONLINE,
        reg((1,), 1, epoch=7),
    ),
    "R-78: unclean, 3 alive": (
        reg((1,), NO_LEADER, epoch=6),
        (3,),
        None,
        NONE,
        Mode.UNCLEAN,
        reg((3,), 3, epoch=7, recovery=RECOVERING),
    ),
}
Row = tuple[
    PartitionRegistration,
    tuple[int, ...],
    tuple[int, ...] | None,
    tuple[int, ...],
    Mode,
    PartitionRegistration,
]


def check_row(row: Row, elr_enabled: bool) -> None:
    now, alive, isr, unclean, mode, wanted = row
    after = change(
        now,
        alive.__contains__,
        min_isr=2,
        elr_enabled=elr_enabled,
        mode=mode,
        isr=isr,
        unclean_replicas=unclean,
    )
    changed = wanted != now
    assert after == wanted._replace(partition_epoch=10 + changed)
    if not changed:
        assert after is now


@for_each("row", WITH_ELR.values())
def test_events_with_elr(row: Row) -> None:
    check_row(row, True)


@pytest.mark.parametrize("row", WITHOUT_ELR.values(), ids=WITHOUT_ELR)
def test_events_without_elr(row: Row) -> None:
    check_row(row, False)


class TestEpochs:
    """R-50, R-51."""

    def test_nothing_changes(self) -> None:
        assert change(ALL, ALL.replicas.__contains__, min_isr=2) is ALL

    def test_expansion_raises_only_the_partition_epoch(self) -> None:
        now = reg((1, 2), 1)
        after = change(now, now.replicas.__contains__, min_isr=2, isr=(1, 2, 3))
        assert (after.leader_epoch, after.partition_epoch) == (5, 11)

    def test_leaving_the_assignment_raises_both(self) -> None:
        after = change(ALL, ALL.replicas.__contains__, min_isr=2, replicas=(1, 2))
        assert after[:5] == ((1, 2), (1, 2), 1, 6, 11)

    def test_joining_the_assignment_raises_one(self) -> None:
        now = reg((1, 2), 1, replicas=(1, 2))
        after = change(now, now.replicas.__contains__, min_isr=2, replicas=(1, 2, 3))
        assert after[:5] == ((1, 2, 3), (1, 2), 1, 5, 11)

    def test_below_the_minimum_others_stay_eligible(self) -> None:
        """R-67: testEligibleLeaderReplicas_IsrAddNewMemberNotInELR."""
        now = reg((1,), 1, (3,), replicas=(1, 2, 3, 4))
        after = change(now, among(1, 2, 4).__contains__, min_isr=3, isr=(1, 4))
        assert (after.isr, after.elr) == ((1, 4), (3,))

    def test_another_order_of_the_replicas_raises_one(self) -> None:
        """testReassignmentRearrangesReplicas."""
        after = change(ALL, ALL.replicas.__contains__, min_isr=2, replicas=(3, 2, 1))
        assert after == ALL._replace(replicas=(3, 2, 1), partition_epoch=11)

    def test_a_leader_that_leaves_the_assignment_is_demoted(self) -> None:
        """testStoppedLeaderIsDemotedAfterReassignmentCompletesEvenIfNoNewEligibleLeaders."""
        now = reg((4, 1), 4, replicas=(2, 3, 4, 1))
        for elr_enabled in (False, True):
            after = change(
                now,
                among().__contains__,
                min_isr=2,
                elr_enabled=elr_enabled,
                isr=(2, 3),
                replicas=(2, 3),
            )
            assert after[:4] == ((2, 3), (2, 3), NO_LEADER, 6)

    def test_who_leads_does_not_change_the_recovery_state(self) -> None:
        """testChangeInLeadershipDoesNotChangeRecoveryState."""
        for elr_enabled in (False, True):
            now = reg((1,), 1, recovery=RECOVERING)
            offline = change(now, among().__contains__, min_isr=2, elr_enabled=elr_enabled, isr=())
            assert (offline.leader, offline.recovery_state) == (NO_LEADER, RECOVERING)
            online = change(offline, among(1).__contains__, min_isr=2, elr_enabled=elr_enabled)
            assert (online.leader, online.isr, online.recovery_state) == (1, (1,), RECOVERING)

    def test_an_unclean_leader_that_led_before_begins_an_epoch(self) -> None:
        now = reg((2,), 2)
        after = change(now, among(2).__contains__, min_isr=1, unclean_replicas=(2,))
        assert (after.leader, after.isr, after.leader_epoch) == (2, (2,), 6)
        assert after.recovery_state is RECOVERING

    def test_a_leader_says_that_it_recovered(self) -> None:
        now = reg((1,), 1, recovery=RECOVERING)
        after = change(now, among(1).__contains__, min_isr=1, isr=(1,), recovery_state=RECOVERED)
        assert (after.recovery_state, after.leader_epoch) == (RECOVERED, 5)
        assert after.partition_epoch == 11


def test_without_elr_nobody_outside_the_assignment_stays() -> None:
    """R-57 keeps the last members, R-62 sends removed ones away: the second wins."""
    now = reg((1, 2), 1)
    after = change(
        now, among(3).__contains__, min_isr=1, elr_enabled=False, isr=(), replicas=(2, 3)
    )
    assert after.isr == (2,)
    assert after.leader == NO_LEADER


TP = TopicPartition("t", 0)
ITEM = AlterPartitionItem(TP, 5, 10, ((1, 101), (2, 102)))


def eligible(broker: int, epoch: int) -> bool:
    return broker in (1, 2, 3) and epoch in (-1, 100 + broker)


@for_each(
    "now, item, sender, error",
    [
        (ALL, ITEM, 1, ErrorCode.NONE),
        (ALL, ITEM._replace(leader_epoch=6), 1, ErrorCode.NOT_CONTROLLER),
        (ALL, ITEM._replace(partition_epoch=11), 1, ErrorCode.NOT_CONTROLLER),
        (ALL, ITEM._replace(leader_epoch=4, partition_epoch=11), 1, ErrorCode.NOT_CONTROLLER),
        (ALL, ITEM._replace(leader_epoch=4), 1, ErrorCode.FENCED_LEADER_EPOCH),  # R-44, S-12
        (ALL, ITEM._replace(leader_epoch=4), 2, ErrorCode.FENCED_LEADER_EPOCH),
        (ALL, ITEM, 2, ErrorCode.INVALID_REQUEST),
        (ALL, ITEM._replace(partition_epoch=9), 2, ErrorCode.INVALID_REQUEST),
        (ALL, ITEM._replace(partition_epoch=9), 1, ErrorCode.INVALID_UPDATE_VERSION),
        (ALL, ITEM._replace(new_isr=()), 1, ErrorCode.INVALID_REQUEST),
        (ALL, ITEM._replace(new_isr=((1, -1), (1, -1))), 1, ErrorCode.INVALID_REQUEST),
        (ALL, ITEM._replace(new_isr=((1, -1), (4, -1))), 1, ErrorCode.INVALID_REQUEST),
        (ALL, ITEM._replace(new_isr=((2, -1), (3, -1))), 1, ErrorCode.INVALID_REQUEST),
        (
            reg((1,), 1, recovery=RECOVERING),
            ITEM._replace(recovery_state=RECOVERING),
            1,
            ErrorCode.INVALID_REQUEST,
        ),
        (
            ALL,
            ITEM._replace(recovery_state=RECOVERING, new_isr=((1, -1),)),
            1,
            ErrorCode.INVALID_REQUEST,
        ),
        (reg((1,), 1, recovery=RECOVERING), ITEM, 1, ErrorCode.NONE),
        (ALL, ITEM._replace(new_isr=((1, -1), (2, 99))), 1, ErrorCode.INELIGIBLE_REPLICA),
        (ALL, ITEM._replace(new_isr=((1, -1), (2, -1))), 1, ErrorCode.NONE),
    ],
)
def test_proposals(
    now: PartitionRegistration, item: AlterPartitionItem, sender: int, error: ErrorCode
) -> None:
    """R-43 … R-48 in Kafka's order."""
    assert check_alter(now, item, sender, eligible) is error


@pytest.mark.parametrize(
    ("item", "sender", "applied"),
    [
        (ITEM._replace(partition_epoch=9), 1, True),
        (ITEM, 1, False),  # not older
        (ITEM._replace(partition_epoch=9), 2, False),
        (ITEM._replace(partition_epoch=9, leader_epoch=4), 1, False),
        (ITEM._replace(partition_epoch=9, new_isr=((1, -1),)), 1, False),
        (ITEM._replace(partition_epoch=9, recovery_state=RECOVERING), 1, False),
    ],
)
def test_a_repeated_proposal(item: AlterPartitionItem, sender: int, applied: bool) -> None:
    """S-25."""
    assert is_already_applied(reg((2, 1), 1), item, sender) is applied


def test_nobody_else_stays_eligible_where_one_replica_is_enough() -> None:
    """R-67, R-69: with min ISR 1 the leader commits alone from its election on."""
    leaderless = PartitionRegistration((1, 2, 3), (), -1, 6, 9, elr=(1, 2, 3))
    alone = change(leaderless, lambda replica: replica == 1, min_isr=1)
    assert (alone.leader, alone.isr, alone.elr) == (1, (1,), ())
    gated = change(leaderless, lambda replica: replica == 1, min_isr=2)
    assert (gated.leader, gated.isr, gated.elr) == (1, (1,), (2, 3))


def test_nobody_outside_the_assignment_leads() -> None:
    """R-71: the last leader has left it."""
    now = PartitionRegistration((1, 2), (), NO_LEADER, 3, 7, last_known_leader=3)
    assert change(now, lambda replica: replica == 3, min_isr=1) is now


def test_the_last_leader_is_remembered_until_somebody_leads() -> None:
    """R-71. ISR and ELR may become empty long after the leader died."""
    now = PartitionRegistration((1, 2), (1, 2), 1, 3, 7)
    # 1 dies while the log directory of 2 is offline, then 2 dies too, and comes back uncleanly.
    alone = change(now, lambda r: False, min_isr=1, isr=(2,))
    assert (alone.leader, alone.isr, alone.elr) == (NO_LEADER, (2,), ())
    dead = change(alone, lambda r: False, min_isr=1, isr=())
    assert (dead.isr, dead.elr) == ((), (2,))
    unclean = change(dead, lambda r: r == 2, min_isr=1, unclean_replicas=(2,))
    assert (unclean.leader, unclean.isr, unclean.elr) == (NO_LEADER, (), ())
    after = change(unclean, lambda r: True, min_isr=1)
    assert (after.leader, after.isr) == (1, (1,))
    assert after.recovery_state is RecoveryState.RECOVERING
    assert after.last_known_leader == NO_LEADER
