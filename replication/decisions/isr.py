"""In-sync replicas and the high watermark: pure rules of a leader.

``Partition`` and the exhaustive check use the same functions. Offsets are exclusive ends, times are
monotonic ms.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from replication.common.state import UNKNOWN_EPOCH, PartitionRegistration

NEVER_MS = -(2**62)  # Kafka has 0, the epoch of the wall clock; ours starts anywhere


class IdleFetch(Protocol):
    """A follower keeps fetching a partition at the end of its log without changes.

    Such fetches are not processed one by one: one time is noted for all such partitions of a fetch
    session.
    """

    @property
    def fetched_ms(self) -> int:
        """The time of its last fetch."""
        ...

    def wake(self) -> None:
        """Process fetches again.

        Called under the lock of a partition, so it takes no lock and is short.
        """
        ...


class FollowerProgress(NamedTuple):
    """The leader's knowledge of a follower (R-1 … R-6); its times are those of ``settled``."""

    log_end: int = -1
    log_start: int = -1
    leader_end_at_fetch: int = 0  # our log end when its last fetch was processed
    last_fetch_ms: int = NEVER_MS
    caught_up_ms: int = NEVER_MS  # the latest time at which it is known to have had everything
    broker_epoch: int = UNKNOWN_EPOCH
    idle: IdleFetch | None = None  # fetches since the last one that is noted here


def settled(known: FollowerProgress) -> FollowerProgress:
    """The progress, with the time of fetches that were noted for many partitions at once."""
    if known.idle is None:
        return known
    at_ms = known.idle.fetched_ms
    return known._replace(
        last_fetch_ms=max(known.last_fetch_ms, at_ms),
        caught_up_ms=max(known.caught_up_ms, at_ms),
        idle=None,
    )


def after_fetch(
    known: FollowerProgress,
    fetch_offset: int,
    log_start: int,
    now_ms: int,
    leader_end: int,
    broker_epoch: int,
) -> FollowerProgress:
    """The progress after a fetch (R-7). ``leader_end`` is our log end before the read."""
    known = settled(known)
    caught_up_ms = known.caught_up_ms
    if fetch_offset >= leader_end:
        caught_up_ms = max(caught_up_ms, now_ms)
    elif fetch_offset >= known.leader_end_at_fetch:
        caught_up_ms = max(caught_up_ms, known.last_fetch_ms)
    return FollowerProgress(
        fetch_offset,
        log_start,
        max(leader_end, known.leader_end_at_fetch),
        now_ms,
        caught_up_ms,
        broker_epoch,
    )


def after_election(
    known: FollowerProgress, now_ms: int, leader_end: int, *, in_isr: bool, led_before: bool
) -> FollowerProgress:
    """The progress at a new leader epoch (R-11). Members of the ISR get one lag time to fetch."""
    seen_ms = now_ms if in_isr else NEVER_MS
    if not led_before:
        return FollowerProgress(leader_end_at_fetch=-1, caught_up_ms=seen_ms)
    return settled(known)._replace(
        leader_end_at_fetch=leader_end,
        last_fetch_ms=seen_ms,
        caught_up_ms=seen_ms,
    )


def is_caught_up(known: FollowerProgress, leader_end: int, now_ms: int, max_lag_ms: int) -> bool:
    """Whether a follower is at our log end, or was within the lag time (R-10)."""
    if known.log_end == leader_end:
        return True
    return now_ms - settled(known).caught_up_ms <= max_lag_ms


def effective_min_isr(min_insync_replicas: int, replica_count: int) -> int:
    """The setting, at most the number of replicas (R-20)."""
    return min(min_insync_replicas, replica_count)


def next_high_watermark(
    current: int,
    leader_end: int,
    awaited: Iterable[int],
    committed_isr_size: int,
    min_isr: int,
) -> int:
    """The high watermark that a leader may move to, or ``current`` (R-21 … R-25).

    Args:
        awaited: log ends of the remote replicas that count (``is_awaited``), −1 if unknown; read
            only as far as needed.
        committed_isr_size: members of the committed ISR, the leader included.
        min_isr: ``effective_min_isr``.
    """
    if committed_isr_size < min_isr:
        return current
    target = leader_end
    for log_end in awaited:
        if log_end <= current:
            return current
        if log_end < target:
            target = log_end
    return target if target > current else current


def is_awaited(in_maximal_isr: bool, caught_up: bool, eligible: bool) -> bool:
    """Whether the high watermark waits for a replica (R-22).

    It also waits for one that is about to join. Otherwise a leader alone in its ISR would run away
    from it.
    """
    return in_maximal_isr or (caught_up and eligible)


def may_join(
    follower_end: int,
    high_watermark: int,
    epoch_start: int,
    *,
    in_isr: bool,
    in_flight: bool,
    eligible: bool,
) -> bool:
    """Whether a leader proposes to add a replica to the ISR (R-30, R-31).

    The start of the leader's own epoch counts because its high watermark may lag behind what was
    committed before it was elected (KAFKA-7128).
    """
    if in_isr or in_flight or not eligible:
        return False
    return follower_end >= high_watermark and follower_end >= epoch_start


def may_start_empty(registration: PartitionRegistration, broker_id: int) -> bool:
    """Whether a replica may begin with an empty log although its log may be on a failed disk.

    It may not if others rely on its records: if it leads, or if it is or may become a member of the
    ISR without fetching (Kafka's ``isNew``). A new partition is empty.
    """
    if registration.leader_epoch == 0 and registration.partition_epoch == 0:
        return True
    relied_on = (registration.leader, registration.last_known_leader)
    return broker_id not in (*relied_on, *registration.isr, *registration.elr)


class IsrState(NamedTuple):
    """The ISR of a leader: the committed one, and a proposed one (R-27, R-33)."""

    committed: tuple[int, ...]
    proposed: tuple[int, ...] | None = None

    @property
    def in_flight(self) -> bool:
        return self.proposed is not None

    @property
    def maximal(self) -> tuple[int, ...]:
        """The members for which the high watermark waits: old and proposed ones (R-27)."""
        if self.proposed is None:
            return self.committed
        return (*self.committed, *(r for r in self.proposed if r not in self.committed))
