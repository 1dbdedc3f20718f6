"""Broken brokers and controllers, each with one guard removed. If two guards protect against the
same fault, the mutant removes both.

Under the rule ``fetch`` every fetch has the epoch of the last record, and a leader counts only what
agrees with its own log. That hides what the epochs of requests are for. So some mutants run under
the protocol of KIP-320, which itself must hold.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from logstore.log import PartitionLog
from logstore.log.maintenance import LogMaintenance
from logstore.log.replica import LogEpochs
from logstore.log.writing.state import LogState
from replication.broker.controller_channel import ControllerChannel
from replication.broker.membership import BACKOFF, Membership
from replication.common.error_codes import ErrorCode
from replication.common.retrying import Reaction, RetryingCall, Settle
from replication.controller import partitions as decisions_module
from replication.controller.channels import BrokerChannel, Numbers
from replication.controller.context import ControllerContext
from replication.controller.controller import Controller
from replication.controller.partitions import PartitionDecisions
from replication.controller.store import ConflictError, ControllerStore
from replication.controller.term import ControllerTerm
from replication.coordination import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionState,
)
from replication.coordination.embedded import CoordinatorStore
from replication.decisions import election as election_module
from replication.decisions.election import Mode, change
from replication.decisions.isr import IsrState, may_join, next_high_watermark
from replication.decisions.truncation import (
    HIGH_WATERMARK_RULE,
    RULES,
    Truncation,
    check_leader_epoch,
    truncation_point,
)
from replication.fetcher import fetcher_state
from replication.fetcher.fetcher import Fetcher
from replication.fetcher.fetcher_state import FetchState, FetchStates
from replication.partition import FetchRead, Leadership, Partition
from replication.partition import isr_changes as isr_changes_module
from replication.partition import leader as leader_module
from replication.partition import partition as partition_module
from replication.partition import replica as replica_module
from replication.partition.follower import FollowerSide
from replication.partition.isr_changes import IsrChanges
from replication.partition.leader import LeaderSide
from replication.partition.replica import Replica
from replication.replica_manager import replica_manager as replica_manager_module
from replication.replica_manager import waiting as waiting_module
from replication.replica_manager.control_requests import ControlRequests
from replication.replica_manager.metadata_cache import MetadataCache
from replication.replica_manager.waiting import WaitingRequests
from replication.replica_manager.writes import DelayedProduce
from tests.mutants import MonkeyPatch, mutant
from tests.mutants.model import FENCED_RULE


def kip_320(patch: MonkeyPatch) -> None:
    """Not a mutant: a correct protocol, in which the epochs of requests matter."""
    patch.setattr(replica_manager_module, "RULES", {**RULES, "fetch": FENCED_RULE})


# -- epochs, and who may join ----------------------------------------------------------


@mutant()
def isr_change_without_compare_and_set(patch: MonkeyPatch) -> None:
    """The controller accepts an ISR change of any leader epoch and partition epoch."""

    def check(now: Any, item: Any, sender: int, eligible: Any) -> ErrorCode:
        if any(not eligible(replica, epoch) for replica, epoch in item.new_isr):
            return ErrorCode.INELIGIBLE_REPLICA
        return ErrorCode.NONE

    def alter(self: PartitionDecisions, item: Any, sender: int) -> ErrorCode:
        now = self._context.partitions[item.tp]
        return check(now, item, sender, self._context.is_eligible)

    patch.setattr(PartitionDecisions, "_error_of", alter)
    patch.setattr(decisions_module, "_is_new", lambda item, now: True)


@mutant()
def join_before_high_watermark(patch: MonkeyPatch) -> None:
    """A replica joins the ISR before it has reached the high watermark."""

    def join(follower_end: int, high_watermark: int, epoch_start: int, **rest: Any) -> bool:
        return may_join(max(follower_end, high_watermark), high_watermark, epoch_start, **rest)

    patch.setattr(isr_changes_module, "may_join", join)


@mutant()
def no_truncation(patch: MonkeyPatch) -> None:
    """A leader never says that a follower's log parts from its own."""
    patch.setattr(leader_module, "diverging_epoch", lambda found, offset, epoch: None)


@mutant()
def join_before_epoch_start(patch: MonkeyPatch) -> None:
    """A replica joins the ISR before it has reached the start of the leader's own epoch."""

    def join(follower_end: int, high_watermark: int, epoch_start: int, **rest: Any) -> bool:
        return may_join(follower_end, high_watermark, 0, **rest)

    patch.setattr(isr_changes_module, "may_join", join)


@mutant(under=kip_320)
def older_epochs_not_fenced(patch: MonkeyPatch) -> None:
    """A leader serves followers that are still in an earlier epoch, and counts their progress."""

    def check(requested: int, current: int) -> ErrorCode:
        return check_leader_epoch(max(requested, current), current)

    patch.setattr(replica_module, "check_leader_epoch", check)


@mutant(under=kip_320)
def newer_epochs_not_fenced(patch: MonkeyPatch) -> None:
    """A deposed leader serves followers that are in a newer epoch than its own."""

    def check(requested: int, current: int) -> ErrorCode:
        return check_leader_epoch(min(requested, current), current)

    patch.setattr(replica_module, "check_leader_epoch", check)


@mutant(under=kip_320)
def epochs_not_fenced(patch: MonkeyPatch) -> None:
    """Requests of any epoch are served."""
    patch.setattr(replica_module, "check_leader_epoch", lambda requested, current: ErrorCode.NONE)


@mutant()
def follower_epoch_not_checked(patch: MonkeyPatch) -> None:
    """An answer is applied although the follower has moved to another epoch since."""
    patch.setattr(FollowerSide, "_following", lambda self, epoch: self._replica.local_log())
    patch.setattr(LogState, "take_role_locked", lambda self, leader_epoch, leads: None)
    patch.setattr(FetchStates, "holds", lambda self, state: True)


@mutant()
def list_offsets_of_any_epoch(patch: MonkeyPatch) -> None:
    """ListOffsets is answered whatever leader epoch the requester believes in (KIP-320)."""
    offset_for_timestamp = LeaderSide.offset_for_timestamp

    def mutant(self: LeaderSide, timestamp: int, **rest: Any) -> tuple[int, int, int]:
        return offset_for_timestamp(self, timestamp, **{**rest, "current_leader_epoch": -1})

    patch.setattr(LeaderSide, "offset_for_timestamp", mutant)


@mutant()
def read_not_confirmed(patch: MonkeyPatch) -> None:
    """What was read is the answer, although the role has changed since (inside ``log.read``)."""
    patch.setattr(Replica, "confirm_epoch", lambda self, role, log: None)


@mutant()
def isr_change_of_any_topic_id(patch: MonkeyPatch) -> None:
    """A proposal for a topic that was deleted counts for the next one of its name (KIP-516)."""
    judge = PartitionDecisions._error_of

    def mutant(self: PartitionDecisions, item: Any, sender: int) -> ErrorCode:
        topic = self._context.topics.get(item.tp.topic)
        if topic is not None:
            item = item._replace(topic_id=topic.assignment.topic_id)
        return judge(self, item, sender)

    patch.setattr(PartitionDecisions, "_error_of", mutant)


@mutant()
def numbers_begin_with_a_channel(patch: MonkeyPatch) -> None:
    """A controller that takes over again under its own epoch numbers its requests from 1."""
    open_channel = Controller._open_channel

    def mutant(self: Controller, *args: Any) -> Any:
        self._numbers = Numbers()
        return open_channel(self, *args)

    patch.setattr(Controller, "_open_channel", mutant)


@mutant()
def deposed_controller_writes(patch: MonkeyPatch) -> None:
    """A controller writes without asking whether another one was elected since."""

    def transact(self: ControllerStore, ops: Any) -> None:
        try:
            self._coordinator.transact([*ops])
        except (BadVersionError, NoNodeError, NodeExistsError, NotEmptyError) as error:
            raise ConflictError(str(error)) from error

    patch.setattr(ControllerStore, "_transact", transact)
    patch.setattr(ControllerStore, "is_deposed", lambda self: False)


# -- high watermark and acknowledgement ---------------------------------------------------------


@mutant()
def high_watermark_without_followers(patch: MonkeyPatch) -> None:
    """The high watermark does not wait for anybody."""

    def advance(current: int, end: int, awaited: Any, size: int, min_isr: int) -> int:
        return next_high_watermark(current, end, [], size, min_isr)

    patch.setattr(isr_changes_module, "next_high_watermark", advance)


@mutant()
def high_watermark_without_min_isr(patch: MonkeyPatch) -> None:
    """The high watermark moves while the ISR is below its minimum (KAFKA-15583)."""

    def advance(current: int, end: int, awaited: Any, size: int, min_isr: int) -> int:
        return next_high_watermark(current, end, awaited, size, 0)

    patch.setattr(isr_changes_module, "next_high_watermark", advance)


@mutant()
def high_watermark_of_committed_isr(patch: MonkeyPatch) -> None:
    """The high watermark waits for the committed ISR only, not for who is about to join."""
    patch.setattr(IsrState, "maximal", property(lambda self: self.committed))
    patch.setattr(isr_changes_module, "is_awaited", lambda *args: False)


@mutant()
def acknowledged_before_high_watermark(patch: MonkeyPatch) -> None:
    """acks=all is answered as soon as the leader has appended."""
    patch.setattr(LeaderSide, "acks_satisfied", lambda self, *args: (True, ErrorCode.NONE))
    patch.setattr(LeaderSide, "is_waiting_for", lambda self, *args: False)


@mutant()
def diverging_answer_raises_high_watermark(patch: MonkeyPatch) -> None:
    """A follower takes over the high watermark of an answer that says its log is wrong."""
    truncate = FetchState.truncate_to_answer

    def mutant(self: FetchState, *args: Any) -> bool:
        self.partition.follower.follow(self.partition.log_end_offset, 0, self.leader_epoch)
        return truncate(self, *args)

    patch.setattr(FetchState, "truncate_to_answer", mutant)


@mutant()
def consumers_read_uncommitted(patch: MonkeyPatch) -> None:
    """Consumers are served up to the log end."""
    fetch = LeaderSide.fetch

    def mutant(self: LeaderSide, part: Any, **rest: Any) -> FetchRead:
        log = self._replica.log
        if log is not None and rest["replica_id"] < 0 and self._replica.is_leader:
            state = log.state
            before, state.high_watermark = state.high_watermark, state.log_end_offset
            state.publish_locked()
            try:
                return fetch(self, part, **rest)
            finally:
                state.high_watermark = before
                state.publish_locked()
        return fetch(self, part, **rest)

    patch.setattr(LeaderSide, "fetch", mutant)


@mutant()
def progress_of_an_earlier_leadership(patch: MonkeyPatch) -> None:
    """A leader that missed the one in between counts the earlier progress of followers."""
    from replication.decisions.isr import after_election

    def mutant(known: Any, *args: Any, in_isr: bool, led_before: bool) -> Any:
        return after_election(known, *args, in_isr=in_isr, led_before=known.log_end >= 0)

    patch.setattr(partition_module, "after_election", mutant)


# -- who waits, and who hears of it ---------------------------------------------------------------


@mutant()
def isr_change_wakes_nobody(patch: MonkeyPatch) -> None:
    """An answered ISR change moves the high watermark, and nobody who waits for it is told."""
    on_result = IsrChanges._on_result

    def mutant(self: IsrChanges, item: Any, pending: Any, result: Any) -> None:
        env = self._env
        self._env = replace(env, on_high_watermark=lambda tp: None)
        try:
            on_result(self, item, pending, result)
        finally:
            self._env = env

    patch.setattr(IsrChanges, "_on_result", mutant)


@mutant()
def role_change_wakes_nobody(patch: MonkeyPatch) -> None:
    """Requests that wait at a partition that changes its role are not looked at."""
    patch.setattr(WaitingRequests, "on_role_change", lambda self, tp: None)


@mutant()
def append_wakes_no_follower(patch: MonkeyPatch) -> None:
    """A follower that waits for records hears of new ones only by its own deadline."""

    def mutant(self: WaitingRequests, tp: Any, hw_moved: bool) -> None:
        if hw_moved:
            self.on_high_watermark(tp)

    patch.setattr(WaitingRequests, "on_append", mutant)


@mutant()
def high_watermark_wakes_no_consumer(patch: MonkeyPatch) -> None:
    """A consumer that waits for records hears of new ones only by its own deadline."""
    check = waiting_module._check

    def mutant(self: WaitingRequests, tp: Any) -> None:
        check(self.produce, tp)
        check(self.delete_records, tp)

    patch.setattr(WaitingRequests, "on_high_watermark", mutant)


@mutant()
def log_start_wakes_nobody(patch: MonkeyPatch) -> None:
    """A deletion that waits for its followers hears of them only by its own deadline."""
    check = waiting_module._check

    def mutant(self: WaitingRequests, tp: Any) -> None:
        check(self.produce, tp)
        check(self.consumer_fetch, tp)

    patch.setattr(WaitingRequests, "on_log_start", lambda self, tp: None)
    patch.setattr(WaitingRequests, "on_high_watermark", mutant)


@mutant()
def reset_wakes_nobody(patch: MonkeyPatch) -> None:
    """A consumer that waits at a follower below its new log start is not told so."""
    on_ends = Fetcher._on_ends

    def mutant(self: Fetcher, *args: Any) -> list[Any]:
        on_ends(self, *args)
        return []

    patch.setattr(Fetcher, "_on_ends", mutant)


@mutant()
def committed_writes_time_out(patch: MonkeyPatch) -> None:
    """One acks=all in three is answered REQUEST_TIMED_OUT although it is committed."""
    attempt, count = DelayedProduce.try_complete, itertools.count()
    deaf = WeakKeyDictionary[DelayedProduce, bool]()

    def mutant(self: DelayedProduce) -> bool:
        if deaf.setdefault(self, next(count) % 3 == 0):
            return False
        return attempt(self)

    patch.setattr(DelayedProduce, "try_complete", mutant)


@mutant()
def isr_never_shrinks(patch: MonkeyPatch) -> None:
    """A leader keeps a follower that stopped fetching in its ISR."""
    patch.setattr(IsrChanges, "maybe_shrink_isr", lambda self: None)


# -- truncation ---------------------------------------------------------------------------------


@mutant()
def truncation_one_too_low(patch: MonkeyPatch) -> None:
    """A follower cuts one record more than it has to."""

    def cut(*args: Any) -> Truncation:
        found = truncation_point(*args)
        return found._replace(offset=max(0, found.offset - 1))

    patch.setattr(fetcher_state, "truncation_point", cut)


@mutant()
def log_start_inside_a_batch_not_met(patch: MonkeyPatch) -> None:
    """A follower that has to go on from inside a batch, where the leader's log begins, cannot."""

    def append(self: FollowerSide, records: Any, leader_epoch: int, *_: int) -> Any:
        return self._append_fetched(self._following(leader_epoch), records, leader_epoch)

    patch.setattr(FollowerSide, "append", append)


@mutant()
def epoch_not_assigned_at_election(patch: MonkeyPatch) -> None:
    """A new leader records its epoch only with its first batch (KAFKA-7415)."""
    patch.setattr(LogEpochs, "assign", lambda self, epoch, start_offset=None: None)


@mutant()
def what_the_leader_deleted_is_kept(patch: MonkeyPatch) -> None:
    """A follower keeps records that nobody can compare any more, below its leader's log start."""
    told = FetchState.truncate_to_answer

    def mutant(self: FetchState, answer: Any, rule: Any, leader_log_start: int = -1) -> bool:
        return told(self, answer, rule)

    patch.setattr(FetchState, "truncate_to_answer", mutant)
    patch.setattr(leader_module, "cannot_be_compared", lambda found, fetch_offset, log_start: False)


@mutant()
def configuration_change_not_applied(patch: MonkeyPatch) -> None:
    """A log that is open goes on with the configuration that it was opened with."""
    patch.setattr(LogMaintenance, "configure", lambda self, config: None)


# -- elections and incarnations -----------------------------------------------------------------


@mutant()
def unclean_restart_keeps_isr(patch: MonkeyPatch) -> None:
    """A broker that restarts without proof of a clean stop stays in ISR and ELR (KIP-966)."""
    fence = PartitionDecisions.fence

    def mutant(self: PartitionDecisions, gone: Any, unclean: Any, lost: Any) -> Any:
        return fence(self, [b for b in gone if b not in unclean], [], {})

    patch.setattr(PartitionDecisions, "fence", mutant)


@mutant()
def broker_epoch_not_checked(patch: MonkeyPatch) -> None:
    """The controller lets any incarnation of a broker join an ISR (KIP-903)."""

    def eligible(self: ControllerContext, broker: int, broker_epoch: int) -> bool:
        return broker in self.live and broker not in self.shutting_down

    def known(self: MetadataCache, broker_id: int, broker_epoch: int) -> bool:
        return self.broker_epoch(broker_id) != -1

    patch.setattr(ControllerContext, "is_eligible", eligible)
    patch.setattr(MetadataCache, "eligible", known)


@mutant()
def a_broker_waits_for_the_roles_of_others(patch: MonkeyPatch) -> None:
    """The controller has one request on its way, to all brokers together."""
    ask = BrokerChannel._send_next
    latest: WeakKeyDictionary[ControllerContext, BrokerChannel] = WeakKeyDictionary()

    def mutant(self: BrokerChannel, settle: Settle) -> None:
        other = latest.get(self._context, self)
        if other is not self and other._in_flight is not None and not other._closed:
            settle(Reaction.AGAIN)
            return
        latest[self._context] = self
        ask(self, settle)

    patch.setattr(BrokerChannel, "_send_next", mutant)


@mutant()
def control_requests_of_earlier_incarnations(patch: MonkeyPatch) -> None:
    """A broker obeys requests that were meant for the process before it."""
    patch.setattr(ControlRequests, "_is_to_an_earlier_life", lambda self, request: False)


@mutant()
def election_outside_isr(patch: MonkeyPatch) -> None:
    """Whoever is alive may lead."""

    def mutant(now: Any, acceptable: Any, **rest: Any) -> Any:
        rest["mode"] = Mode.UNCLEAN
        return change(now, acceptable, **rest)

    patch.setattr(decisions_module, "change", mutant)


@mutant()
def unclean_election_before_isr(patch: MonkeyPatch) -> None:
    """Where an unclean election is allowed, a stale replica comes before the online ISR."""
    elect = election_module.elect

    def mutant(
        replicas: Any,
        isr: Any,
        elr: Any,
        leader: Any,
        last: Any,
        acceptable: Any,
        mode: Mode = Mode.ONLINE,
        *rest: Any,
    ) -> Any:
        if mode is Mode.UNCLEAN and not acceptable(leader):
            for replica in replicas:
                if replica not in (*isr, *elr) and acceptable(replica):
                    return election_module.Elected(replica, unclean=True)
        return elect(replicas, isr, elr, leader, last, acceptable, mode, *rest)

    patch.setattr(election_module, "elect", mutant)


@mutant()
def unclean_election_of_whoever_is_back_first(patch: MonkeyPatch) -> None:
    """It does not wait until the replicas that are coming back count as candidates."""

    def mutant(self: Any, gone: Any, unclean: Any, lost: Any) -> Any:
        def after(tp: Any) -> Any:
            isr = [r for r in self._context.partitions[tp].isr if r not in gone]
            return self.decide(tp, isr=isr, unclean=unclean)

        return self._changes(self._on(gone), after)

    patch.setattr(PartitionDecisions, "fence", mutant)


@mutant()
def unclean_election_beside_a_leader_that_stops(patch: MonkeyPatch) -> None:
    """A leader in controlled shutdown, which nobody can replace without a loss, is replaced."""

    def mutant(stays: bool, mode: Mode) -> Mode:
        return mode

    patch.setattr(PartitionDecisions, "_mode_beside", staticmethod(mutant))


@mutant()
def leader_epoch_not_raised(patch: MonkeyPatch) -> None:
    """A new leader goes on under the epoch of the old one."""

    def mutant(now: Any, acceptable: Any, **rest: Any) -> Any:
        return change(now, acceptable, **rest)._replace(leader_epoch=now.leader_epoch)

    patch.setattr(decisions_module, "change", mutant)


@mutant()
def no_eligible_leader_replicas(patch: MonkeyPatch) -> None:
    """Replicas that left the ISR are forgotten, and the last leader is trusted (S-20)."""

    def mutant(now: Any, acceptable: Any, **rest: Any) -> Any:
        return change(now, acceptable, **{**rest, "min_isr": 0})

    patch.setattr(decisions_module, "change", mutant)


# -- seen by scripts of what arrives when -------------------------------------------------------


@mutant()
def truncation_to_the_high_watermark(patch: MonkeyPatch) -> None:
    patch.setattr(replica_manager_module, "RULES", {**RULES, "fetch": HIGH_WATERMARK_RULE})


@mutant()
def answers_without_the_epoch(patch: MonkeyPatch) -> None:
    """A follower cuts at the offset of an answer, whatever epoch it is of."""

    def cut(answer: Any, *rest: Any) -> Truncation:
        return truncation_point(answer._replace(epoch=-1), *rest)

    patch.setattr(fetcher_state, "truncation_point", cut)


@mutant()
def truncation_in_one_round(patch: MonkeyPatch) -> None:
    """A follower does not ask again after its first cut."""

    def cut(*args: Any) -> Truncation:
        return truncation_point(*args)._replace(finished=True)

    patch.setattr(fetcher_state, "truncation_point", cut)


@mutant()
def proposals_count_at_once(patch: MonkeyPatch) -> None:
    """A leader takes an ISR for committed before the controller has said so."""
    patch.setattr(IsrState, "maximal", property(lambda self: self.proposed or self.committed))


@mutant()
def stopping_broker_joins_at_the_controller(patch: MonkeyPatch) -> None:
    """The controller lets a broker in controlled shutdown join an ISR."""
    patch.setattr(ControllerContext, "is_eligible", lambda self, broker, epoch: broker in self.live)


@mutant()
def stopping_broker_joins_at_the_leader(patch: MonkeyPatch) -> None:
    """A leader proposes a broker in controlled shutdown."""
    patch.setattr(MetadataCache, "eligible", lambda self, broker, epoch: broker in self._brokers)


@mutant()
def high_watermark_below_the_log_start(patch: MonkeyPatch) -> None:
    """A log that begins anew keeps the high watermark that it had."""
    truncate = LogMaintenance.truncate_fully_and_start_at

    def mutant(self: LogMaintenance, offset: int, *rest: Any) -> None:
        before, state = self._state.high_watermark, self._state
        truncate(self, offset, *rest)
        state.high_watermark = before
        state.publish_locked()

    patch.setattr(LogMaintenance, "truncate_fully_and_start_at", mutant)


@mutant()
def retention_above_the_high_watermark(patch: MonkeyPatch) -> None:
    """Retention deletes what is not committed."""
    delete_old = LogMaintenance.delete_old_segments

    def mutant(self: LogMaintenance) -> int:
        state = self._state
        before, state.high_watermark = state.high_watermark, state.log_end_offset
        state.publish_locked()
        try:
            return delete_old(self)
        finally:
            state.high_watermark = min(before, state.log_end_offset)
            state.publish_locked()

    patch.setattr(LogMaintenance, "delete_old_segments", mutant)


@mutant()
def cut_of_nothing_keeps_epochs(patch: MonkeyPatch) -> None:
    """A truncation at the log end leaves later epochs in the epoch file."""
    truncate = PartitionLog.truncate_to

    def mutant(self: PartitionLog, offset: int) -> bool:
        return False if offset >= self.log_end_offset else truncate(self, offset)

    patch.setattr(PartitionLog, "truncate_to", mutant)


@mutant()
def answers_of_partitions_that_left(patch: MonkeyPatch) -> None:
    """A fetcher applies an answer to a partition that it does not fetch any more."""
    patch.setattr(FetchStates, "holds", lambda self, state: True)


@mutant()
def high_watermark_of_a_new_leader_is_served(patch: MonkeyPatch) -> None:
    """Offsets are told before the high watermark has reached the leader's own epoch."""
    patch.setattr(Leadership, "start_offset", property(lambda self: 0, lambda self, value: None))


@mutant()
def append_below_the_minimum(patch: MonkeyPatch) -> None:
    """acks=all is appended although the ISR is below its minimum."""
    append = LeaderSide.append

    def mutant(self: LeaderSide, records: Any, acks: int, *rest: Any) -> Any:
        return append(self, records, 1, *rest)

    patch.setattr(LeaderSide, "append", mutant)


@mutant()
def unclean_elections_refused(patch: MonkeyPatch) -> None:
    """The topic's wish for unclean elections is not heard."""

    def mutant(now: Any, acceptable: Any, **rest: Any) -> Any:
        if rest["mode"] is Mode.UNCLEAN:
            rest["mode"] = Mode.ONLINE
        return change(now, acceptable, **rest)

    patch.setattr(decisions_module, "change", mutant)


@mutant()
def isr_change_moves_no_high_watermark(patch: MonkeyPatch) -> None:
    """After an answered ISR change the high watermark waits for the next fetch."""
    on_result = IsrChanges._on_result

    def mutant(self: IsrChanges, *args: Any) -> None:
        with MonkeyPatch.context() as inner:
            inner.setattr(IsrChanges, "try_high_watermark", lambda self, leading: False)
            on_result(self, *args)

    patch.setattr(IsrChanges, "_on_result", mutant)


@mutant()
def proposals_are_not_repeated(patch: MonkeyPatch) -> None:
    """A broker asks its controller once."""
    call = ControllerChannel.call

    def mutant(self: ControllerChannel, *args: Any, **kwargs: Any) -> Any:
        return call(self, *args, **{**kwargs, "tries": 1})

    patch.setattr(ControllerChannel, "call", mutant)


@mutant()
def silent_sessions_never_end(patch: MonkeyPatch) -> None:
    patch.setattr(CoordinatorStore, "expire_sessions", lambda self, now_ms: None)


@mutant()
def same_leader_new_epoch_missed(patch: MonkeyPatch) -> None:
    """A follower whose leader stays the same under a new epoch does not begin again."""
    make_follower = Partition.make_follower

    def mutant(self: Partition, change: Any) -> bool:
        same = self.leader_id == change.registration.leader and not self.is_leader
        return make_follower(self, change) and not same

    patch.setattr(Partition, "make_follower", mutant)


# -- answers that come late, and looks that are not taken ----------------------------------------


@mutant()
def verdict_of_an_overtaken_proposal(patch: MonkeyPatch) -> None:
    """A late verdict on an ISR proposal is applied after newer metadata (R-35)."""
    on_result = IsrChanges._on_result

    def mutant(self: IsrChanges, item: Any, pending: Any, result: Any) -> None:
        replica = self._replica
        leading = replica.role
        assert isinstance(leading, Leadership)
        replica.become(replace(leading, isr=pending))
        on_result(self, item, pending, result)
        if isinstance(replica.role, Leadership) and replica.role.isr is pending:
            replica.become(leading)

    patch.setattr(IsrChanges, "_on_result", mutant)


@mutant()
def epoch_remembered_before_the_isr_is_left(patch: MonkeyPatch) -> None:
    """A controller notes that it has processed a broker, and processes it then."""
    brokers = ControllerStore.brokers

    def mutant(self: ControllerStore) -> Any:
        seen = brokers(self)
        self.remember({broker: live.broker_epoch for broker, live in seen.items()})
        return seen

    patch.setattr(ControllerStore, "brokers", mutant)


@mutant()
def stop_of_any_topic_of_the_name(patch: MonkeyPatch) -> None:
    """The stop of an earlier topic confirms the deletion of the next one of its name."""
    on_stopped = ControllerTerm._on_stopped

    def mutant(self: ControllerTerm, broker: int, request: Any, response: Any) -> None:
        topics = self.context.topics
        stops = tuple(
            stop._replace(topic_id=topics[stop.tp.topic].assignment.topic_id)
            for stop in request.partitions
            if stop.tp.topic in topics
        )
        on_stopped(self, broker, request._replace(partitions=stops), response)

    patch.setattr(ControllerTerm, "_on_stopped", mutant)


@mutant()
def changes_during_a_look_are_not_looked_at(patch: MonkeyPatch) -> None:
    """A controller counts changes as read that come while it reads."""
    changed = Controller._changed

    def mutant(self: Controller, path: str) -> None:
        assert self._session is not None
        self._signalled.add((self._session.session_id, path))
        changed(self, path)
        self._signalled.discard((self._session.session_id, path))

    patch.setattr(Controller, "_changed", mutant)


@mutant()
def no_look_for_the_controller_after_a_reconnect(patch: MonkeyPatch) -> None:
    """A broker that is connected again waits for a change of the controller."""
    on_state = Membership._on_state

    def mutant(self: Membership, session: Any, state: SessionState) -> None:
        search = self._search
        if state is SessionState.CONNECTED:
            self._search = RetryingCall(self._runtime, self._actor, BACKOFF, lambda settle: None)
        on_state(self, session, state)
        self._search = search

    patch.setattr(Membership, "_on_state", mutant)


@mutant()
def a_lasting_conflict_is_tried_for_ever(patch: MonkeyPatch) -> None:
    """A controller does not go on without what is refused again and again."""
    patch.setattr(ControllerStore, "leave_out", lambda self, context, conflict: False)


@mutant()
def a_removed_state_is_made_up(patch: MonkeyPatch) -> None:
    """A partition whose state was removed begins anew, with whichever replica is there first."""
    patch.setattr(ControllerStore, "_is_first", lambda self, context, tp: True)


@mutant()
def unclean_restarts_are_forgotten_meanwhile(patch: MonkeyPatch) -> None:
    """What can be read again trusts brokers that came back uncleanly in the meantime (R-70)."""
    patch.setattr(ControllerContext, "doubtful_replicas", lambda self: {})
