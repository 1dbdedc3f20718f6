"""The steps of one replica: pure functions of its state and, for a request, its leader's.

A request and its answer are one step. A fetch that is answered later does not differ from one that
was sent later, because its leader epoch decides whether it counts. Each function returns the
replica after the step, which is the same one if nothing changes, or None if the request is refused.
"""

from __future__ import annotations

from replication.common.error_codes import ErrorCode
from replication.common.messages import EpochEndOffset
from replication.common.state import NO_LEADER, UNKNOWN_EPOCH
from replication.decisions.isr import FollowerProgress, IsrState, effective_min_isr
from replication.decisions.truncation import Truncation, TruncationRule
from replication.simulator.exhaustive.decisions import EpochCheck, ModelDecisions
from replication.simulator.exhaustive.logs import append, begin_epoch, truncate
from replication.simulator.exhaustive.state import ModelPhase, ModelRecord, ModelReplica

MIN_ISR = 1  # acks and unclean elections are not in the model; a larger minimum only stops more
UNKNOWN_END = -1  # what a leader knows about a replica that has not fetched from it
LATE_MS, LAG_MS = 2, 1  # a replica that is behind counts as behind for long enough to leave the ISR


# -- a change of role -----------------------------------------------------------------------------


def lead(replica: ModelReplica, me: int, epoch: int, isr: tuple[int, ...]) -> ModelReplica:
    """Lead (R-13). Within the same epoch only the ISR changes."""
    if epoch == replica.leader_epoch:
        return replica._replace(isr=IsrState(isr))
    log = begin_epoch(replica.log, epoch)
    return ModelReplica(log, replica.high_watermark, me, epoch, IsrState(isr))


def follow(replica: ModelReplica, leader: int, epoch: int, rule: TruncationRule) -> ModelReplica:
    """Follow (R-14, R-112, R-113). Without a known leader the log stays as it is (R-16)."""
    after = ModelReplica(replica.log, replica.high_watermark, leader, epoch)
    latest = replica.log.latest_epoch
    if leader == NO_LEADER or not rule.begins_truncating(latest):
        return after
    if rule.must_ask(latest):
        return after._replace(phase=ModelPhase.TRUNCATING)
    end = replica.log.end_offset
    offset = rule.initial_offset(latest, replica.high_watermark, end)
    return cut(after, Truncation(offset, finished=True))


def cut(replica: ModelReplica, to: Truncation) -> ModelReplica:
    """Truncate, then fetch again or ask again (R-137)."""
    return replica._replace(
        log=truncate(replica.log, to.offset),
        high_watermark=min(replica.high_watermark, to.offset),
        phase=ModelPhase.FETCHING if to.finished else ModelPhase.TRUNCATING_ON,
    )


# -- a follower asks its leader -------------------------------------------------------------------


def sent_epoch(follower: ModelReplica, rule: TruncationRule) -> int:
    return follower.leader_epoch if rule.fences else UNKNOWN_EPOCH


def passes(
    check: EpochCheck, follower: ModelReplica, leader: ModelReplica, rule: TruncationRule
) -> bool:
    return check(sent_epoch(follower, rule), leader.leader_epoch) == ErrorCode.NONE


def end_of(replica: ModelReplica, epoch: int, decide: ModelDecisions) -> EpochEndOffset:
    """The end of an epoch in a replica's log (F-208)."""
    log = replica.log
    return EpochEndOffset(*decide.end_offset_for(log.epochs, epoch, log.end_offset))


def told_to_cut(
    follower: ModelReplica, answer: EpochEndOffset, initial_offset: int, decide: ModelDecisions
) -> Truncation:
    return decide.truncation_point(
        answer,
        lambda epoch: end_of(follower, epoch, decide),
        follower.log.end_offset,
        initial_offset,
    )


def ask_where_to_cut(
    follower: ModelReplica, leader: ModelReplica, rule: TruncationRule, decide: ModelDecisions
) -> ModelReplica | None:
    """A round of truncation before fetching (R-130 … R-137)."""
    first = follower.phase is ModelPhase.TRUNCATING
    initial = follower.high_watermark if first else follower.log.end_offset
    latest = follower.log.latest_epoch
    if not rule.must_ask(latest):
        return cut(follower, Truncation(initial, finished=True))
    if not passes(decide.epoch_to_truncate, follower, leader, rule):
        return None
    return cut(follower, told_to_cut(follower, end_of(leader, latest, decide), initial, decide))


def fetch(
    follower: ModelReplica, leader: ModelReplica, rule: TruncationRule, decide: ModelDecisions
) -> ModelReplica | None:
    """Fetch at most one record. A larger answer is several steps.

    Raises:
        AssertionError: the leader said that the logs diverge, and the follower had nothing to
            truncate, so it would ask the same forever (KAFKA-10706).
    """
    end, latest = follower.log.end_offset, follower.log.latest_epoch
    found = EpochEndOffset()
    checked = rule.on_fetch and latest != UNKNOWN_EPOCH
    if checked:
        found = end_of(leader, latest, decide)
        parted = None
        if found.end_offset >= 0:
            parted = decide.diverging_epoch(found, end, latest)
        if parted is not None:
            if not passes(decide.epoch_to_truncate, follower, leader, rule):
                return None
            to = told_to_cut(follower, parted, end, decide)
            after = cut(follower, to._replace(finished=True))  # the next fetch continues
            assert after != follower, f"{follower} asks {leader} for ever"
            return after
    if not passes(decide.epoch_to_read, follower, leader, rule):
        return None
    leader_end = leader.log.end_offset
    if end > leader_end or (checked and found.end_offset < 0):  # out of range
        # Out of range: truncate to the leader's end if it is before ours, else try again.
        return cut(follower, Truncation(leader_end, finished=True)) if end > leader_end else None
    log = follower.log
    if end < leader_end:
        log = append(log, leader.log.records[end])
    watermark = min(leader.high_watermark, log.end_offset)  # held inside the log
    return follower._replace(log=log, high_watermark=watermark)


# -- a leader counts its followers' fetches ------------------------------------------------


def known_end(
    leader: ModelReplica,
    follower: ModelReplica,
    check: EpochCheck,
    rule: TruncationRule,
    decide: ModelDecisions,
) -> int:
    """The log end that a fetch sent now would show to the leader (R-2, R-9), or −1.

    A leader may know an older, smaller log end. Then it decides what it could have decided earlier,
    or moves the high watermark in smaller steps.
    """
    following = follower.leader == leader.leader and follower.phase is ModelPhase.FETCHING
    end, latest = follower.log.end_offset, follower.log.latest_epoch
    if not following or end > leader.log.end_offset:
        return UNKNOWN_END
    if not passes(check, follower, leader, rule):
        return UNKNOWN_END
    if rule.on_fetch and latest != UNKNOWN_EPOCH:
        found = end_of(leader, latest, decide)
        if found.end_offset < 0 or decide.diverging_epoch(found, end, latest) is not None:
            return UNKNOWN_END
    return end


def advance(
    leader: ModelReplica, me: int, ends: dict[int, int], decide: ModelDecisions, replicas: int
) -> ModelReplica:
    """Move the high watermark by one record towards where the rule allows it (R-21 … R-25)."""
    end, watermark = leader.log.end_offset, leader.high_watermark
    maximal = leader.isr.maximal
    awaited = [
        known
        for replica, known in ends.items()
        if replica != me and decide.is_awaited(replica in maximal, known == end, True)
    ]
    target = decide.next_high_watermark(
        watermark, end, awaited, len(leader.isr.committed), effective_min_isr(MIN_ISR, replicas)
    )
    return leader._replace(high_watermark=watermark + 1) if target > watermark else leader


def proposals(
    leader: ModelReplica, me: int, ends: dict[int, int], decide: ModelDecisions
) -> list[tuple[int, ...]]:
    """The ISRs that a leader may ask for now, one member more or less (R-30 … R-33).

    Time is not modelled: a replica behind the log end may leave the ISR at once or never.
    """
    isr, log = leader.isr, leader.log
    if isr.in_flight:
        return []
    wanted = []
    for replica, known in ends.items():
        if replica == me:
            continue
        if replica in isr.committed:
            progress = FollowerProgress(log_end=known)
            if not decide.is_caught_up(progress, log.end_offset, LATE_MS, LAG_MS):
                wanted.append(tuple(r for r in isr.committed if r != replica))
        elif known != UNKNOWN_END and decide.may_join(  # asked when it fetches
            known,
            leader.high_watermark,
            log.epochs[-1].start_offset,
            in_isr=False,
            in_flight=False,
            eligible=True,
        ):
            wanted.append(tuple(sorted((*isr.committed, replica))))
    return wanted


def write(leader: ModelReplica, record_id: int) -> ModelReplica:
    """Append a producer's record. A replica accepts it as long as it believes that it leads."""
    record = ModelRecord(record_id, leader.leader_epoch)
    return leader._replace(log=append(leader.log, record))
