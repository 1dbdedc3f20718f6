"""Broken variants of the code, each with one guard removed, which a search must find.

A mutant is a list of patches of our own functions where they are called, undone at the end. No
patch touches the simulator or the oracle. If two guards protect against the same fault, the mutant
removes both.

Under the rule ``fetch`` every fetch has the epoch of the last record, and a leader counts only what
agrees with its own log. That hides what the epochs of requests are for. So some mutants run under
the protocol of KIP-320, which itself must hold (``BASELINES``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from checkpoints import clean_shutdown
from logstore.cleaner import cleaner as cleaner_module
from logstore.common.errors import ConfigError, CorruptDataError
from logstore.kernels import OffsetMap, RecordSieve
from logstore.log import ReplicaLog
from logstore.log.writing.flushing import LogFlusher
from logstore.log.writing.producer_checks import ProducerUpdates
from logstore.log.writing.writer import Cut, LogWriter
from logstore.manager.opener import LogOpener
from logstore.recovery import recovery, set_aside
from logstore.recovery.clean_start import CleanEnd
from logstore.segments.segment import Segment
from replication.common.error_codes import ErrorCode
from replication.controller import partitions as decisions_module
from replication.controller.channels import Numbers
from replication.controller.context import ControllerContext
from replication.controller.controller import Controller
from replication.controller.partitions import PartitionDecisions
from replication.controller.store import ConflictError, ControllerStore
from replication.coordination import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from replication.decisions import election as election_module
from replication.decisions.election import Mode, change
from replication.decisions.isr import IsrState, may_join, next_high_watermark
from replication.decisions.truncation import RULES, Truncation, check_leader_epoch, truncation_point
from replication.fetcher.fetcher import Fetcher
from replication.fetcher.fetcher_state import FetchState, FetchStates
from replication.partition import FetchRead, Partition
from replication.partition import base as base_module
from replication.partition import isr_changes as isr_changes_module
from replication.partition import leader as leader_module
from replication.partition import partition as partition_module
from replication.replica_manager import replica_manager as replica_manager_module
from replication.replica_manager import waiting as waiting_module
from replication.replica_manager.delayed import DelayedProduce
from replication.replica_manager.metadata_cache import MetadataCache
from replication.replica_manager.replica_manager import ReplicaManager
from replication.replica_manager.role_changes import RoleChanges
from replication.replica_manager.waiting import WaitingRequests
from replication.simulator.exhaustive.mutants import FENCED_RULE


class Patch(NamedTuple):
    """``target.name`` becomes ``value``."""

    target: Any
    name: str
    value: Any


MUTANTS: dict[str, tuple[str, Callable[[], list[Patch]]]] = {}
"""Name → what is wrong, and the patches."""

KIP_320 = "kip-320"
BASELINES: dict[str, Callable[[], list[Patch]]] = {
    KIP_320: lambda: [Patch(replica_manager_module, "RULES", {**RULES, "fetch": FENCED_RULE})]
}
"""Correct protocols under which some mutants run. They may be named in place of a mutant."""


def _mutant(make: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
    name = make.__name__.strip("_").replace("_", "-")
    assert make.__doc__ is not None
    MUTANTS[name] = (make.__doc__.strip(), make)
    return make


@contextmanager
def mutated(name: str | None) -> Iterator[None]:
    """Run the block with a mutant; None for no change.

    Raises:
        ConfigError: the mutant does not exist.
    """
    if name is None:
        yield
        return
    if name not in MUTANTS and name not in BASELINES:
        raise ConfigError(f"no mutant {name!r}; known are {', '.join(MUTANTS)}")
    make = BASELINES[name] if name in BASELINES else MUTANTS[name][1]
    with ExitStack() as stack:
        for target, attribute, value in make():
            owner = owner_of(target, attribute)
            stack.callback(setattr, owner, attribute, owner.__dict__[attribute])
            setattr(owner, attribute, value)
        yield


def owner_of(target: Any, attribute: str) -> Any:
    """Where an attribute is defined: a module, or a class or one of its bases."""
    if not isinstance(target, type):
        return target
    return next(base for base in target.__mro__ if attribute in base.__dict__)


# -- the eight of the exhaustive check ----------------------------------------------------------


@_mutant
def isr_change_without_compare_and_set() -> list[Patch]:
    """The controller accepts an ISR change of any leader epoch and partition epoch."""

    def check(now: Any, item: Any, sender: int, eligible: Any) -> ErrorCode:
        if any(not eligible(replica, epoch) for replica, epoch in item.new_isr):
            return ErrorCode.INELIGIBLE_REPLICA
        return ErrorCode.NONE

    def alter(self: PartitionDecisions, item: Any, sender: int) -> ErrorCode:
        now = self._context.partitions[item.tp]
        return check(now, item, sender, self._context.is_eligible)

    return [
        Patch(PartitionDecisions, "_judge", alter),
        Patch(decisions_module, "_is_news", lambda item, now: True),
    ]


@_mutant
def join_before_high_watermark() -> list[Patch]:
    """A replica joins the ISR before it has reached the high watermark."""

    def join(follower_end: int, high_watermark: int, epoch_start: int, **rest: Any) -> bool:
        return may_join(max(follower_end, high_watermark), high_watermark, epoch_start, **rest)

    return [Patch(isr_changes_module, "may_join", join)]


@_mutant
def no_truncation() -> list[Patch]:
    """A leader never says that a follower's log parts from its own."""
    return [Patch(leader_module, "diverging_epoch", lambda found, offset, epoch: None)]


@_mutant
def join_before_epoch_start() -> list[Patch]:
    """A replica joins the ISR before it has reached the start of the leader's own epoch."""

    def join(follower_end: int, high_watermark: int, epoch_start: int, **rest: Any) -> bool:
        return may_join(follower_end, high_watermark, 0, **rest)

    return [Patch(isr_changes_module, "may_join", join)]


@_mutant
def older_epochs_not_fenced() -> list[Patch]:
    """A leader serves followers that are still in an earlier epoch, and counts their progress."""

    def check(requested: int, current: int) -> ErrorCode:
        return check_leader_epoch(max(requested, current), current)

    return [*BASELINES[KIP_320](), Patch(base_module, "check_leader_epoch", check)]


@_mutant
def newer_epochs_not_fenced() -> list[Patch]:
    """A deposed leader serves followers that are in a newer epoch than its own."""

    def check(requested: int, current: int) -> ErrorCode:
        return check_leader_epoch(min(requested, current), current)

    return [*BASELINES[KIP_320](), Patch(base_module, "check_leader_epoch", check)]


@_mutant
def epochs_not_fenced() -> list[Patch]:
    """Requests of any epoch are served."""
    return [
        *BASELINES[KIP_320](),
        Patch(base_module, "check_leader_epoch", lambda requested, current: ErrorCode.NONE),
    ]


@_mutant
def follower_epoch_not_checked() -> list[Patch]:
    """An answer is applied although the follower has moved to another epoch since."""
    return [
        Patch(Partition, "_following", lambda self, leader_epoch: self.local_log()),
        Patch(LogWriter, "take_role_locked", lambda self, leader_epoch, leads: None),
        Patch(FetchStates, "holds", lambda self, state: True),
    ]


@_mutant
def list_offsets_of_any_epoch() -> list[Patch]:
    """ListOffsets is answered whatever leader epoch the requester believes in (KIP-320)."""
    offset_for_timestamp = Partition.offset_for_timestamp

    def mutant(self: Partition, timestamp: int, **rest: Any) -> tuple[int, int, int]:
        return offset_for_timestamp(self, timestamp, **{**rest, "current_leader_epoch": -1})

    return [Patch(Partition, "offset_for_timestamp", mutant)]


@_mutant
def read_not_confirmed() -> list[Patch]:
    """What was read is the answer, although the role has changed since (inside ``log.read``)."""
    return [Patch(Partition, "_confirm", lambda self, role, log: None)]


@_mutant
def isr_change_of_any_topic_id() -> list[Patch]:
    """A proposal for a topic that was deleted counts for the next one of its name (KIP-516)."""
    judge = PartitionDecisions._judge

    def mutant(self: PartitionDecisions, item: Any, sender: int) -> ErrorCode:
        topic = self._context.topics.get(item.tp.topic)
        if topic is not None:
            item = item._replace(topic_id=topic.assignment.topic_id)
        return judge(self, item, sender)

    return [Patch(PartitionDecisions, "_judge", mutant)]


@_mutant
def numbers_begin_with_a_channel() -> list[Patch]:
    """A controller that takes over again under its own epoch numbers its requests from 1."""
    open_channel = Controller._open_channel

    def mutant(self: Controller, *args: Any) -> Any:
        self._numbers = Numbers()
        return open_channel(self, *args)

    return [Patch(Controller, "_open_channel", mutant)]


@_mutant
def deposed_controller_writes() -> list[Patch]:
    """A controller writes without asking whether another one was elected since."""

    def transact(self: ControllerStore, ops: Any) -> None:
        try:
            self._coordinator.transact([*ops])
        except (BadVersionError, NoNodeError, NodeExistsError, NotEmptyError) as error:
            raise ConflictError(str(error)) from error

    return [
        Patch(ControllerStore, "_transact", transact),
        Patch(ControllerStore, "is_deposed", lambda self: False),
    ]


# -- high watermark and acknowledgement ---------------------------------------------------------


@_mutant
def high_watermark_without_followers() -> list[Patch]:
    """The high watermark does not wait for anybody."""

    def advance(current: int, end: int, awaited: Any, size: int, min_isr: int) -> int:
        return next_high_watermark(current, end, [], size, min_isr)

    return [Patch(isr_changes_module, "next_high_watermark", advance)]


@_mutant
def high_watermark_without_min_isr() -> list[Patch]:
    """The high watermark moves while the ISR is below its minimum (KAFKA-15583)."""

    def advance(current: int, end: int, awaited: Any, size: int, min_isr: int) -> int:
        return next_high_watermark(current, end, awaited, size, 0)

    return [Patch(isr_changes_module, "next_high_watermark", advance)]


@_mutant
def high_watermark_of_committed_isr() -> list[Patch]:
    """The high watermark waits for the committed ISR only, not for who is about to join."""
    return [
        Patch(IsrState, "maximal", property(lambda self: self.committed)),
        Patch(isr_changes_module, "is_awaited", lambda *args: False),
    ]


@_mutant
def acknowledged_before_high_watermark() -> list[Patch]:
    """acks=all is answered as soon as the leader has appended."""
    return [
        Patch(Partition, "acks_satisfied", lambda self, *args: (True, ErrorCode.NONE)),
        Patch(Partition, "is_waiting_for", lambda self, *args: False),
    ]


@_mutant
def diverging_answer_raises_high_watermark() -> list[Patch]:
    """A follower takes over the high watermark of an answer that says its log is wrong."""
    truncate = FetchState.truncate_to_answer

    def mutant(self: FetchState, answer: Any, rule: Any) -> bool:
        self.partition.follow(self.partition.log_end_offset, 0, self.leader_epoch)
        return truncate(self, answer, rule)

    return [Patch(FetchState, "truncate_to_answer", mutant)]


@_mutant
def consumers_read_uncommitted() -> list[Patch]:
    """Consumers are served up to the log end."""
    fetch = Partition.fetch

    def mutant(self: Partition, part: Any, **rest: Any) -> FetchRead:
        if self.log is not None and rest["replica_id"] < 0 and self.is_leader:
            writer = self.log._writer
            before, writer.high_watermark = writer.high_watermark, writer.log_end_offset
            writer.publish_locked()
            try:
                return fetch(self, part, **rest)
            finally:
                writer.high_watermark = before
                writer.publish_locked()
        return fetch(self, part, **rest)

    return [Patch(Partition, "fetch", mutant)]


@_mutant
def progress_of_an_earlier_leadership() -> list[Patch]:
    """A leader that did not hear of the one in between counts what followers had before."""
    from replication.decisions.isr import after_election

    def mutant(known: Any, *args: Any, in_isr: bool, led_before: bool) -> Any:
        return after_election(known, *args, in_isr=in_isr, led_before=known.log_end >= 0)

    return [Patch(partition_module, "after_election", mutant)]


# -- who waits, and who hears of it ---------------------------------------------------------------


@_mutant
def isr_change_wakes_nobody() -> list[Patch]:
    """An answered ISR change moves the high watermark, and nobody who waits for it is told."""
    on_result = Partition._on_result

    def mutant(self: Partition, item: Any, pending: Any, result: Any) -> None:
        env = self._env
        self._env = replace(env, on_high_watermark=lambda tp: None)
        try:
            on_result(self, item, pending, result)
        finally:
            self._env = env

    return [Patch(Partition, "_on_result", mutant)]


@_mutant
def role_change_wakes_nobody() -> list[Patch]:
    """Requests that wait at a partition that changes its role are not looked at."""
    return [Patch(WaitingRequests, "on_role_change", lambda self, tp: None)]


@_mutant
def append_wakes_no_follower() -> list[Patch]:
    """A follower that waits for records hears of new ones only by its own deadline."""

    def mutant(self: WaitingRequests, tp: Any, hw_moved: bool) -> None:
        if hw_moved:
            self.on_high_watermark(tp)

    return [Patch(WaitingRequests, "on_append", mutant)]


@_mutant
def high_watermark_wakes_no_consumer() -> list[Patch]:
    """A consumer that waits for records hears of new ones only by its own deadline."""
    check = waiting_module._check

    def mutant(self: WaitingRequests, tp: Any) -> None:
        check(self.produce, tp)
        check(self.delete_records, tp)

    return [Patch(WaitingRequests, "on_high_watermark", mutant)]


@_mutant
def log_start_wakes_nobody() -> list[Patch]:
    """A deletion that waits for its followers hears of them only by its own deadline."""
    check = waiting_module._check

    def mutant(self: WaitingRequests, tp: Any) -> None:
        check(self.produce, tp)
        check(self.consumer_fetch, tp)

    return [
        Patch(WaitingRequests, "on_log_start", lambda self, tp: None),
        Patch(WaitingRequests, "on_high_watermark", mutant),
    ]


@_mutant
def reset_wakes_nobody() -> list[Patch]:
    """A consumer that waits at a follower below its new log start is not told so."""
    on_ends = Fetcher._on_ends

    def mutant(self: Fetcher, *args: Any) -> list[Any]:
        on_ends(self, *args)
        return []

    return [Patch(Fetcher, "_on_ends", mutant)]


@_mutant
def committed_writes_time_out() -> list[Patch]:
    """One acks=all in three is answered REQUEST_TIMED_OUT although it is committed."""
    attempt, count = DelayedProduce.try_complete, itertools.count()
    deaf = WeakKeyDictionary[DelayedProduce, bool]()

    def mutant(self: DelayedProduce) -> bool:
        if deaf.setdefault(self, next(count) % 3 == 0):
            return False
        return attempt(self)

    return [Patch(DelayedProduce, "try_complete", mutant)]


@_mutant
def isr_never_shrinks() -> list[Patch]:
    """A leader keeps a follower that stopped fetching in its ISR."""
    return [Patch(Partition, "maybe_shrink_isr", lambda self: None)]


# -- truncation ---------------------------------------------------------------------------------


@_mutant
def truncation_one_too_low() -> list[Patch]:
    """A follower cuts one record more than it has to."""
    from replication.fetcher import fetcher_state

    def cut(*args: Any) -> Truncation:
        found = truncation_point(*args)
        return found._replace(offset=max(0, found.offset - 1))

    return [Patch(fetcher_state, "truncation_point", cut)]


@_mutant
def log_start_inside_a_batch_not_met() -> list[Patch]:
    """A follower that has to go on from inside a batch, where the leader's log begins, cannot."""

    def append(self: Partition, records: Any, leader_epoch: int, leader_log_start: int) -> Any:
        return self._append_fetched(self._following(leader_epoch), records, leader_epoch)

    return [Patch(Partition, "append_as_follower", append)]


@_mutant
def epoch_not_assigned_at_election() -> list[Patch]:
    """A new leader records its epoch only with its first batch (KAFKA-7415)."""
    return [Patch(ReplicaLog, "assign_epoch", lambda self, epoch, start_offset=None: None)]


@_mutant
def what_the_leader_deleted_is_kept() -> list[Patch]:
    """A follower keeps records that nobody can compare any more, below its leader's log start."""
    told = FetchState.truncate_to_answer

    def mutant(self: FetchState, answer: Any, rule: Any, leader_log_start: int = -1) -> bool:
        return told(self, answer, rule)

    return [
        Patch(FetchState, "truncate_to_answer", mutant),
        Patch(leader_module, "cannot_be_compared", lambda found, fetch_offset, log_start: False),
    ]


@_mutant
def configuration_change_not_applied() -> list[Patch]:
    """A log that is open goes on with the configuration that it was opened with."""
    return [Patch(ReplicaLog, "configure", lambda self, config: None)]


# -- elections and incarnations -----------------------------------------------------------------


@_mutant
def unclean_restart_keeps_isr() -> list[Patch]:
    """A broker that restarts without proof of a clean stop stays in ISR and ELR (KIP-966)."""
    fence = PartitionDecisions.fence

    def mutant(self: PartitionDecisions, gone: Any, unclean: Any) -> Any:
        return fence(self, [b for b in gone if b not in unclean], [])

    return [Patch(PartitionDecisions, "fence", mutant)]


@_mutant
def broker_epoch_not_checked() -> list[Patch]:
    """The controller lets any incarnation of a broker join an ISR (KIP-903)."""

    def eligible(self: ControllerContext, broker: int, broker_epoch: int) -> bool:
        return broker in self.live and broker not in self.shutting_down

    def known(self: MetadataCache, broker_id: int, broker_epoch: int) -> bool:
        return self.broker_epoch(broker_id) != -1

    return [
        Patch(ControllerContext, "is_eligible", eligible),
        Patch(MetadataCache, "eligible", known),
    ]


@_mutant
def control_requests_of_earlier_incarnations() -> list[Patch]:
    """A broker obeys requests that were meant for the process before it."""
    refusal = RoleChanges._refusal

    def mutant(self: RoleChanges, request: Any) -> ErrorCode:
        return refusal(self, request._replace(broker_epoch=-1))

    return [Patch(RoleChanges, "_refusal", mutant)]


@_mutant
def election_outside_isr() -> list[Patch]:
    """Whoever is alive may lead."""

    def mutant(now: Any, acceptable: Any, **rest: Any) -> Any:
        rest["mode"] = Mode.UNCLEAN
        return change(now, acceptable, **rest)

    return [Patch(decisions_module, "change", mutant)]


@_mutant
def unclean_election_before_isr() -> list[Patch]:
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
    ) -> Any:
        if mode is Mode.UNCLEAN and not acceptable(leader):
            for replica in replicas:
                if replica not in (*isr, *elr) and acceptable(replica):
                    return election_module.Elected(replica, unclean=True)
        return elect(replicas, isr, elr, leader, last, acceptable, mode)

    return [Patch(election_module, "elect", mutant)]


@_mutant
def unclean_election_of_whoever_is_back_first() -> list[Patch]:
    """Nobody waits with it until those that are coming back count as candidates."""

    def mutant(self: Any, gone: Any, unclean: Any) -> Any:
        def after(tp: Any) -> Any:
            isr = [r for r in self._context.partitions[tp].isr if r not in gone]
            return self.decide(tp, isr=isr, unclean=unclean)

        return self._changes(self._on(gone), after)

    return [Patch(PartitionDecisions, "fence", mutant)]


@_mutant
def unclean_election_beside_a_leader_that_stops() -> list[Patch]:
    """A leader in controlled shutdown, which nobody can replace without a loss, is replaced."""

    def mutant(stays: bool, mode: Mode) -> Mode:
        return mode

    return [Patch(PartitionDecisions, "_mode_beside", staticmethod(mutant))]


@_mutant
def leader_epoch_not_raised() -> list[Patch]:
    """A new leader goes on under the epoch of the old one."""

    def mutant(now: Any, acceptable: Any, **rest: Any) -> Any:
        return change(now, acceptable, **rest)._replace(leader_epoch=now.leader_epoch)

    return [Patch(decisions_module, "change", mutant)]


@_mutant
def no_eligible_leader_replicas() -> list[Patch]:
    """Replicas that left the ISR are forgotten, and the last leader is trusted (S-20)."""

    def mutant(now: Any, acceptable: Any, **rest: Any) -> Any:
        return change(now, acceptable, **{**rest, "min_isr": 0})

    return [Patch(decisions_module, "change", mutant)]


# -- storage ------------------------------------------------------------------------------------


@_mutant
def flush_without_sync() -> list[Patch]:
    """A flush returns, and nothing was synced."""
    return [Patch(Segment, "flush", lambda self, *, indexes: None)]


@_mutant
def unsynced_records_counted_after_a_start() -> list[Patch]:
    """Records that a kill left in the page cache count although flush.messages asks for a sync."""
    return [Patch(LogFlusher, "flush_what_is_due", lambda self: None)]


@_mutant
def acknowledged_before_sync() -> list[Patch]:
    """With flush.messages=1 the sync comes a little after the answer."""
    after_append = LogFlusher.after_append

    def mutant(self: LogFlusher, last_offset: int, *, sync: bool = False) -> None:
        self._background(lambda: after_append(self, last_offset, sync=sync))

    return [Patch(LogFlusher, "after_append", mutant)]


@_mutant
def asks_on_without_settling() -> list[Patch]:
    """A follower whose append could not be synced asks on behind it all the same."""

    def settle(self: ReplicaManager, tps: Any) -> None:
        self.log_manager.checkpoint_cuts(tps)

    return [Patch(ReplicaManager, "_settle", settle)]


@_mutant
def leader_counts_before_its_sync() -> list[Patch]:
    """A leader commits what it has written, and could not sync."""
    end = property(lambda self: self.log_end_offset)
    return [Patch(ReplicaLog, "kept_end_offset", end)]


@_mutant
def whole_disk_called_damaged() -> list[Patch]:
    """Once in the life of a disk, recovery finds damage in a log that has none."""
    load = LogOpener.load
    told = WeakSet[Any]()

    def mutant(self: LogOpener, log_dir: Any, tp: Any, config: Any) -> ReplicaLog:
        log = load(self, log_dir, tp, config)
        if not log_dir.clean and log.log_end_offset >= 8 and self.storage not in told:
            told.add(self.storage)
            log.crash()
            raise CorruptDataError(log.directory, 0, "damage that is not there")
        return log

    return [Patch(LogOpener, "load", mutant)]


@_mutant
def clean_marker_kept() -> list[Patch]:
    """The marker of a clean stop outlives the start after it, and is believed whatever is there."""

    def end(last: Segment, recovery_point: int | None) -> CleanEnd:
        return CleanEnd(last.read_next_offset()[0])

    return [
        Patch(clean_shutdown, "remove", lambda path, files: clean_shutdown.exists(path, files)),
        Patch(recovery, "clean_end", end),
    ]


@_mutant
def torn_tail_not_cut() -> list[Patch]:
    """Recovery finds the end of the good batches, and leaves the rest in the file."""
    return [Patch(set_aside.Remover, "cut", lambda self, segment, position, reason, **_: None)]


@_mutant
def cut_not_made_durable() -> list[Patch]:
    """What is appended after a truncation may reach the disk without it."""

    def settle(self: LogFlusher) -> None:
        if self._writer.cut is Cut.NOT_DURABLE:
            self.cut_is_durable_locked()

    return [Patch(LogFlusher, "settle_cut_flush_locked", settle)]


@_mutant
def duplicates_not_recognised() -> list[Patch]:
    """A retried batch of an idempotent producer is not compared with those it repeats."""
    nothing = ProducerUpdates([], [], [])
    return [Patch(LogWriter, "_check_producers_locked", lambda self, *args: nothing)]


@_mutant
def producers_forgotten_in_recovery() -> list[Patch]:
    """After a restart nobody remembers which sequences are in the log."""
    return [Patch(recovery._Loader, "_load_producers", lambda self, *args: None)]


# -- compaction ---------------------------------------------------------------------------------


@_mutant
def tombstones_dropped_at_once() -> list[Patch]:
    """The pass after the one that first sees a tombstone drops it before all have read it."""

    def mutant(
        offset_map: OffsetMap, now_ms: int, delete_retention_ms: int, *rest: Any
    ) -> RecordSieve:
        return RecordSieve(offset_map, now_ms, 0, *rest)

    return [Patch(cleaner_module, "RecordSieve", mutant)]
