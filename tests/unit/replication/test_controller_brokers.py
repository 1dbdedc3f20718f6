"""Brokers that come, go, come back and stop under a controller (R-53 … R-78)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    ElectionType,
    LeaderAndIsrRequest,
    UpdateMetadataRequest,
)
from replication.common.state import NO_LEADER, RecoveryState, TopicPartition
from replication.coordination import CoordinatorUnavailableError, Op, nodes
from tests.support.controllers import T0, Brokers


def test_a_dead_leader_is_replaced_and_everybody_hears() -> None:
    """R-54, R-59: it leaves the ISR, the epoch rises, live replicas get their roles."""
    b = Brokers()
    b.create()
    assert b.partition()[:5] == ((1, 2, 3), (1, 2, 3), 1, 0, 0)
    b.kill(1)
    now = b.partition()
    assert (now.leader, now.isr, now.leader_epoch, now.partition_epoch) == (2, (2, 3), 1, 1)
    for broker in (2, 3):
        assert b.brokers[broker].told[T0] == now
        assert b.brokers[broker].metadata[T0] == now
    last = b.brokers[3].requests_of(UpdateMetadataRequest)[-1]
    assert isinstance(last, UpdateMetadataRequest)
    assert [live.registration.broker_id for live in last.live_brokers] == [2, 3]


def test_a_follower_that_dies_leaves_the_isr_without_a_new_leader_epoch() -> None:
    """R-51, R-73."""
    b = Brokers()
    b.create(min_insync_replicas="2")
    b.kill(3)
    assert b.partition()[:5] == ((1, 2, 3), (1, 2), 1, 0, 1)
    fenced = b.alter((1, 2, 3))  # testAlterPartitionShouldRejectFencedBrokers
    assert fenced.error_code is ErrorCode.INELIGIBLE_REPLICA
    b.kill(2)
    now = b.partition()
    assert (now.isr, now.elr, now.leader_epoch, now.partition_epoch) == ((1,), (2,), 0, 2)


def test_last_replica_standing() -> None:
    """T-E1, S-20, R-74 … R-77: one that stopped uncleanly is not elected, the other one is."""
    b = Brokers()
    b.create(min_insync_replicas="2")
    b.kill(3)
    b.kill(2)
    b.kill(1)
    b.start(3)  # somebody has to be controller; 3 is in neither set
    now = b.partition()
    assert (now.leader, now.isr, now.elr) == (NO_LEADER, (), (2, 1))
    epoch = now.leader_epoch
    b.start(1, clean=False)
    now = b.partition()
    assert (now.leader, now.isr, now.elr) == (NO_LEADER, (), (2,))
    b.start(2)
    now = b.partition()
    assert (now.leader, now.isr, now.elr) == (2, (2,), ())
    assert now.leader_epoch == epoch + 1
    assert now.recovery_state is RecoveryState.RECOVERED
    assert b.controller.stats.unclean_leader_elections == 0


def test_the_last_known_leader_leads_again_when_nobody_is_trusted() -> None:
    """R-71: ISR and ELR empty; only the remembered one, only when it is alive, RECOVERING."""
    b = Brokers()
    b.create(min_insync_replicas="2")
    b.kill(3)
    b.kill(2)
    b.kill(1)
    b.start(3)
    b.start(2, clean=False)
    now = b.partition()
    assert (now.leader, now.elr, now.last_known_leader) == (NO_LEADER, (1,), 1)
    b.start(1, clean=False)
    now = b.partition()
    assert (now.leader, now.isr, now.recovery_state) == (1, (1,), RecoveryState.RECOVERING)
    assert b.controller.stats.unclean_leader_elections == 1
    assert b.alter((1,)).error_code is ErrorCode.NONE
    assert b.partition().recovery_state is RecoveryState.RECOVERED


@pytest.mark.parametrize(("clean", "isr"), [(True, (2, 3)), (False, (2, 3))])
def test_a_bounced_leader_loses_its_leadership(clean: bool, isr: tuple[int, ...]) -> None:
    """R-64, S-21: it is back before the controller looked; its epoch tells."""
    b = Brokers()
    b.kill(2)  # so that broker 3 is not the controller's only witness
    b.start(2)
    b.create(assignment=((2, 1, 3),))
    before = b.partition()
    b.bounce(2, clean=clean)
    now = b.partition()
    assert now.leader != 2
    assert 2 not in now.isr
    assert now.leader_epoch == before.leader_epoch + 1
    assert b.brokers[2].told[T0] == now  # the new incarnation knows its role
    assert b.alter((*now.isr, 2)).error_code is ErrorCode.NONE


@pytest.mark.parametrize("clean", [True, False])
def test_a_bounced_sole_replica(clean: bool) -> None:
    """R-69, R-71: from the ELR if it stopped cleanly, else as last known leader."""
    b = Brokers()
    b.create(assignment=((2,),))
    b.bounce(2, clean=clean)
    now = b.partition()
    assert (now.leader, now.isr, now.leader_epoch) == (2, (2,), 2)
    assert (now.recovery_state is RecoveryState.RECOVERED) is clean


def test_without_elr_the_last_member_stays() -> None:
    """R-57, R-74, R-77 without ELR."""
    b = Brokers(config={"eligible.leader.replicas.enable": "false"})
    b.create(assignment=((2, 3),))
    b.kill(3)
    b.kill(2)
    now = b.partition()
    assert (now.leader, now.isr, now.elr, now.leader_epoch) == (NO_LEADER, (2,), (), 1)
    b.start(3)
    assert b.partition() == now
    b.start(2, clean=False)
    after = b.partition()
    assert (after.leader, after.isr, after.leader_epoch) == (2, (2,), 2)


def test_unclean_election_where_the_topic_wants_it() -> None:
    """R-56, R-58, R-78, S-18."""
    b = Brokers()
    b.create(assignment=((2, 3),), unclean_leader_election_enable="true")
    b.kill(3)
    b.kill(2)
    assert b.partition().leader == NO_LEADER
    b.start(3)
    now = b.partition()
    assert (now.leader, now.isr, now.elr) == (3, (3,), ())
    assert now.recovery_state is RecoveryState.RECOVERING
    assert b.controller.stats.unclean_leader_elections == 1


def test_no_unclean_election_while_one_that_has_everything_comes_back() -> None:
    """R-59, R-69: the new incarnation is no candidate yet when the old one leaves the ISR."""
    b = Brokers()
    b.create(assignment=((2, 3),), unclean_leader_election_enable="true")
    b.kill(3)
    b.start(3)
    assert b.partition().isr == (2,)
    b.bounce(2, clean=True)
    now = b.partition()
    assert (now.leader, now.isr, now.recovery_state) == (2, (2,), RecoveryState.RECOVERED)
    assert b.controller.stats.unclean_leader_elections == 0


def test_no_unclean_election_beside_a_leader_that_stops() -> None:
    """R-65: it leads on with all that is committed, and only its end makes another one leader."""
    b = Brokers()
    b.create(assignment=((2, 3),), unclean_leader_election_enable="true")
    b.kill(3)
    b.start(3)
    before = b.partition()
    assert before.isr == (2,)
    assert b.shut_down(2).remaining == (T0,)
    assert b.partition() == before
    assert b.elect(ElectionType.UNCLEAN, T0) == {T0: ErrorCode.ELECTION_NOT_NEEDED}
    assert b.alter((2,)).error_code is ErrorCode.NONE
    assert b.partition().leader == 2
    b.kill(2)
    assert (b.partition().leader, b.controller.stats.unclean_leader_elections) == (3, 1)


def test_a_new_incarnation_is_told_everything_and_the_old_one_nothing() -> None:
    """R-52: requests carry the epoch of the incarnation they are for."""
    b = Brokers()
    b.create()
    b.kill(3)
    seen = len(b.brokers[3].requests)
    epoch = b.start(3)
    news = b.brokers[3].requests[seen:]
    assert [type(request) for request in news] == [LeaderAndIsrRequest, UpdateMetadataRequest]
    assert all(request.broker_epoch == epoch for request in news)  # type: ignore[union-attr]
    assert b.brokers[3].told[T0] == b.partition()


def test_the_epoch_is_remembered_after_the_isr_was_left() -> None:
    """KIP-966: durable, so that a later controller can tell a clean stop from another."""
    b = Brokers()
    for broker in b.ids:
        node = b.admin.get(nodes.broker_epoch_path(broker))
        assert node is not None
        assert nodes.decode_number(nodes.BROKER_EPOCHS, node.data) == b.brokers[broker].broker_epoch


def test_a_controller_that_dies_in_between_leaves_an_unclean_stop_to_the_next() -> None:
    """Only an epoch that was processed is remembered (R-63, R-70)."""
    b = Brokers()
    b.create(assignment=((2, 3),))
    session = b.sessions[1]
    transact = session.transact

    def silent_about_states(ops: Sequence[Op]) -> object:
        if any(op.path == nodes.partition_state_path(T0) for op in ops):
            raise CoordinatorUnavailableError("no answer")
        return transact(ops)

    session.transact = silent_about_states  # type: ignore[method-assign, assignment]
    b.bounce(3, clean=False)
    assert b.partition().isr == (2, 3)
    b.kill(1)
    assert (b.partition().isr, b.partition().elr) == ((2,), ())


def test_controlled_shutdown_moves_leaderships() -> None:
    """R-65: out of ISRs, no leaderships, no way back into an ISR; told to all."""
    b = Brokers()
    b.create(assignment=((2, 1, 3), (1, 2, 3)))
    assert b.shut_down(2) == ControlledShutdownResponse(ErrorCode.NONE)
    now = b.partition()
    assert (now.leader, now.isr, now.leader_epoch) == (1, (1, 3), 1)
    assert b.partition(TopicPartition("t", 1)).isr == (1, 3)
    last = b.brokers[3].requests_of(UpdateMetadataRequest)[-1]
    assert isinstance(last, UpdateMetadataRequest)
    assert last.shutting_down == (2,)
    assert b.alter((1, 3, 2)).error_code is ErrorCode.INELIGIBLE_REPLICA  # S-17
    b.bounce(2)
    assert b.alter((1, 3, 2)).error_code is ErrorCode.NONE


def test_controlled_shutdown_keeps_what_nobody_else_can_lead() -> None:
    """R-65: such partitions remain until a follower has caught up, or the broker just stops."""
    b = Brokers()
    b.create(assignment=((2, 3),))
    b.create("alone", ((2,),))
    b.kill(3)
    assert b.shut_down(2).remaining == (T0,)  # of the other one there is no other replica
    assert (b.partition().leader, b.partition().isr) == (2, (2,))
    b.start(3)
    result = b.alter((2, 3))  # now 3 can lead, and does at once
    assert result.error_code is ErrorCode.NEW_LEADER_ELECTED
    assert b.partition().leader == 3
    assert b.shut_down(2).remaining == ()
    assert b.partition().isr == (3,)


def test_two_that_stop_at_once_do_not_leave_a_partition_alone() -> None:
    """3 still has to leave the ISR, for lack of an answer of the coordinator, when 2 asks."""
    b = Brokers()
    b.create(assignment=((2, 3),))
    b.sessions[1].suspend()
    request = ControlledShutdownRequest(3, b.brokers[3].broker_epoch)
    b.controller.handle(request, lambda reply: None)
    b.settle()
    b.sessions[1].resume()
    assert b.shut_down(2).remaining == (T0,)
    assert b.partition().leader == 2
    b.settle(1000)
    assert (b.partition().leader, b.partition().isr) == (2, (2,))


def test_controlled_shutdown_is_told_to_all_at_once() -> None:
    """R-31: also when no partition changes, since leaders decide who may join."""
    b = Brokers()
    b.shut_down(3)
    last = b.brokers[2].requests[-1]
    assert isinstance(last, UpdateMetadataRequest)
    assert last.shutting_down == (3,)


def test_controlled_shutdown_of_another_incarnation_is_refused() -> None:
    b = Brokers()
    b.create()
    epoch = b.brokers[2].broker_epoch
    b.bounce(2)
    b.brokers[2].broker_epoch, current = epoch, b.brokers[2].broker_epoch
    assert b.shut_down(2).error_code is ErrorCode.STALE_BROKER_EPOCH
    b.brokers[2].broker_epoch = current


def test_a_failed_log_directory() -> None:
    """R-66: partitions in it are handled as if the broker were dead for them."""
    b = Brokers()
    b.create(assignment=((2, 3), (2, 3)))
    b.brokers[2].failed = {T0}
    b.sessions[2].create(nodes.log_dir_event_path(), nodes.encode_log_dir_event(2), sequential=True)
    b.settle()
    now = b.partition()
    assert (now.leader, now.isr, now.leader_epoch) == (3, (3,), 1)
    assert b.partition(TopicPartition("t", 1)).leader == 2
    assert b.admin.children(nodes.LOG_DIR_EVENTS) == []
    b.kill(3)
    assert b.partition().leader == NO_LEADER
    b.brokers[2].failed = set()
    b.bounce(2)
    assert b.partition().leader == NO_LEADER  # it is not in sync
    b.start(3)
    assert b.partition().leader == 3


def test_a_mended_log_directory_is_good_for_an_election() -> None:
    """R-154: after a restart, and at once."""
    b = Brokers()
    b.create(assignment=((2,),))
    b.brokers[2].failed = {T0}
    b.sessions[2].create(nodes.log_dir_event_path(), nodes.encode_log_dir_event(2), sequential=True)
    b.settle()
    assert b.partition().leader == NO_LEADER
    b.brokers[2].failed = set()
    b.bounce(2)
    assert b.partition().leader == 2


def test_nobody_is_elected_into_a_failed_directory() -> None:
    """R-53."""
    b = Brokers()
    b.create(assignment=((2, 3),), unclean_leader_election_enable="true")
    b.brokers[3].failed = {T0}
    b.sessions[3].create(nodes.log_dir_event_path(), nodes.encode_log_dir_event(3), sequential=True)
    b.settle()
    assert b.partition().isr == (2,)
    b.kill(2)
    assert b.partition().leader == NO_LEADER


def test_a_preferred_leader_gets_its_partition_back() -> None:
    """R-61: by the periodic task, once it is in the ISR."""
    b = Brokers()
    b.create(assignment=((2, 1), (3, 1)))
    b.kill(2)
    b.start(2)
    assert b.controller.stats.preferred_replica_imbalance_count == 1
    b.settle(300_000)
    assert b.partition().leader == 1  # 2 is not in sync yet
    b.alter((1, 2))
    b.settle(300_000)
    assert b.partition().leader == 2
    assert b.controller.stats.preferred_replica_imbalance_count == 0


def test_no_rebalance_when_it_is_switched_off() -> None:
    b = Brokers(config={"auto.leader.rebalance.enable": "false"})
    b.create(assignment=((2, 1),))
    b.kill(2)
    b.start(2)
    b.alter((1, 2))
    b.settle(900_000)
    assert b.partition().leader == 1


def test_a_notification_that_comes_while_others_are_read_is_read_too() -> None:
    """Nothing else would bring the controller to look again."""
    b = Brokers()
    session = b.sessions[1]
    children, later = session.children, [nodes.encode_log_dir_event(2)]

    def slow(path: str) -> list[str]:
        found = children(path)
        if path == nodes.LOG_DIR_EVENTS and later:
            b.admin.create(nodes.log_dir_event_path(), later.pop(), sequential=True)
        return found

    session.children = slow  # type: ignore[method-assign]
    b.admin.create(nodes.log_dir_event_path(), nodes.encode_log_dir_event(2), sequential=True)
    b.settle()
    assert later == []
    assert b.admin.children(nodes.LOG_DIR_EVENTS) == []
