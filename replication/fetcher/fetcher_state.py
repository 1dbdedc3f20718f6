"""The partitions of a fetcher, and which of them have work now.

Not thread-safe: a fetcher holds its lock. Times are monotonic ms.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from heapq import heappop, heappush
from typing import NamedTuple

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from logstore.log.reading.fetching import EARLIEST, LATEST
from replication.common.errors import ReplicationError
from replication.common.messages import (
    EpochEndOffset,
    FetchPartition,
    FetchPartitionResponse,
    ListOffsetsPartition,
    OffsetForLeaderPartition,
)
from replication.common.state import UNKNOWN_EPOCH
from replication.decisions.truncation import Truncation, TruncationRule, truncation_point
from replication.partition import Partition

logger = get_logger(__name__)


MOST_TIMES = 4


class OffsetMismatchError(ReplicationError):
    """Our log does not end at the fetch offset, so something else wrote to it."""


class InitialFetchState(NamedTuple):
    """The state to begin to follow in. ``offset`` is ``TruncationRule.initial_offset``."""

    topic_id: uuid.UUID | None
    leader_epoch: int
    offset: int


class Phase(Enum):
    """The next thing that a partition needs from its leader."""

    TRUNCATING = "truncating"  # find where our log may differ from the leader's
    RESETTING = "resetting"  # get the ends of the leader's log, since our offset is outside
    FETCHING = "fetching"


class EventStreak:
    """Counts consecutive events.

    Only time ends a streak and not a success in between, because a loop has successes too.
    """

    __slots__ = ("_at_ms", "_count")

    def __init__(self) -> None:
        self._count = self._at_ms = 0

    def extend(self, now_ms: int, ends_after_ms: int) -> int:
        """Count one more event. Returns the length of the streak."""
        if now_ms - self._at_ms > ends_after_ms:
            self._count = 0
        self._count, self._at_ms = self._count + 1, now_ms
        return self._count


class FetchState:
    """One partition of a fetcher under one leader epoch (R-113)."""

    __slots__ = (
        "delayed_until_ms",
        "is_settled",
        "lag",
        "last_epoch",
        "leader_end",
        "leader_epoch",
        "leaves_gap",
        "log_start",
        "most_times",
        "offset",
        "partition",
        "phase",
        "refused",
        "topic_id",
        "tp",
        "turned",
        "wanted",
    )

    def __init__(
        self, partition: Partition, initial: InitialFetchState, rule: TruncationRule
    ) -> None:
        self.tp = partition.tp
        self.partition = partition
        self.topic_id, self.leader_epoch, self.offset = initial
        self.log_start = partition.log_start_offset
        self.last_epoch = partition.latest_epoch  # the epoch of our last record
        if self.offset < 0:
            self.phase = Phase.RESETTING
        elif rule.begins_truncating(self.last_epoch):
            self.phase = Phase.TRUNCATING
        else:
            self.phase = Phase.FETCHING
        self.lag: int | None = None  # records behind the leader's high watermark; None: unknown
        # False while checkpoints may exceed our log after a truncation, also an earlier fetcher's.
        self.is_settled = False
        self.delayed_until_ms = 0
        self.refused = EventStreak()  # refusals by a leader that may not know yet that it leads
        self.turned = EventStreak()  # truncations and resets that the leader caused
        self.leader_end: int | None = None  # while resetting, once it is known
        self.wanted: FetchPartition | None = None  # our part of a request, while it does not change
        self.leaves_gap = False  # our log stays, and goes on behind what the leader has no more
        self.most_times = 1  # how much is asked for, in units of ``replica.fetch.max.bytes``

    def __repr__(self) -> str:
        return (
            f"FetchState({self.tp}, {self.phase.value} at {self.offset}, epoch {self.leader_epoch},"
            f" last epoch {self.last_epoch}, lag {self.lag})"
        )

    @property
    def in_sync(self) -> bool:
        """Whether it is in sync for a quota (R-145)."""
        return self.lag is not None and self.lag <= 0

    # -- our part of a request ---------------------------------------------------------------------

    def fetch_part(self, rule: TruncationRule, max_bytes: int) -> FetchPartition:
        """The part of a fetch for this partition (R-116).

        The log start is that at our latest change. Later deletions by our own retention do not
        matter, because the leader waits only for log starts that it raised itself (R-96).
        """
        last_epoch = self.last_epoch if rule.on_fetch else UNKNOWN_EPOCH
        return FetchPartition(
            self.tp,
            self.offset,
            max_bytes,
            self._sent_epoch(rule),
            last_epoch,
            self.log_start,
            self.topic_id,
        )

    def epoch_part(self, rule: TruncationRule) -> OffsetForLeaderPartition:
        """The question where our latest epoch ends in the leader's log (R-130)."""
        return OffsetForLeaderPartition(
            self.tp, self.last_epoch, self._sent_epoch(rule), self.topic_id
        )

    def ends_part(self, rule: TruncationRule) -> ListOffsetsPartition:
        """The question for the leader's log end, and then for its log start (R-129)."""
        which = LATEST if self.leader_end is None else EARLIEST
        return ListOffsetsPartition(self.tp, which, self._sent_epoch(rule), self.topic_id)

    def _sent_epoch(self, rule: TruncationRule) -> int:
        return self.leader_epoch if rule.fences else UNKNOWN_EPOCH

    # -- applying answers; each raises as ``Partition`` --------------------------------

    def append(self, part: FetchPartitionResponse) -> FetchProgress:
        """Append records, and take over watermarks (R-118).

        Raises:
            OffsetMismatchError: our log does not end where we fetched from.
        """
        partition, epoch = self.partition, self.leader_epoch
        log_end = partition.local_log().core.snapshot.log_end_offset
        if log_end != self.offset and not (self.leaves_gap and log_end < self.offset):
            raise OffsetMismatchError(f"{self.tp}: fetched from {self.offset}, ends at {log_end}")
        size, first = 0, self.lag is None
        if part.records:
            info = partition.follower.append(
                part.batches, epoch, part.log_start_offset, part.high_watermark
            )
            size = info.size
            if size:
                self.leaves_gap = False
                self.offset = info.last_offset + 1
                self.last_epoch = partition.local_log().epochs.latest
                self.wanted = None
        moved = partition.follower.follow(part.high_watermark, part.log_start_offset, epoch)
        self.lag = max(0, part.high_watermark - self.offset)
        log_start = partition.local_log().core.snapshot.log_start_offset
        changed = size > 0 or log_start != self.log_start
        if changed:
            self.log_start, self.wanted = log_start, None
        return FetchProgress(size, moved, first or changed)

    def ask_more(self, size: int, most: int) -> None:
        """Ask for up to four times as much while answers are full: the leader is far ahead.

        Args:
            size: of the answer, in bytes; 0 begins again.
            most: bytes that a request asks for at first.
        """
        is_full = size * 2 > self.most_times * most
        self.most_times = min(2 * self.most_times, MOST_TIMES) if is_full else 1

    def resume(self) -> None:
        """Continue at our log end after a partial change."""
        self.is_settled = False
        self._move_to(self.partition.log_end_offset, self.phase)

    def truncate(self, cut: Truncation, rule: TruncationRule) -> bool:
        """Truncate our log (R-137).

        False if nothing changed, so that we would ask the same again.
        """
        before = self.offset, self.last_epoch, self.phase
        high_watermark = self.partition.high_watermark
        if cut.offset < high_watermark:
            logger.warning("%s: cut to %d below %d", self.tp, cut.offset, high_watermark)
        self.is_settled = False
        self.partition.follower.truncate_to(cut.offset, self.leader_epoch)
        done = cut.finished or (rule.on_fetch and not rule.asks_first)
        # A batch that contains the offset was removed whole, so the log ends where it began.
        offset = min(cut.offset, self.partition.log_end_offset)
        self._move_to(offset, Phase.FETCHING if done else Phase.TRUNCATING)
        return before != (self.offset, self.last_epoch, self.phase)

    def truncate_to_answer(
        self, answer: EpochEndOffset, rule: TruncationRule, leader_log_start: int = -1
    ) -> bool:
        """Truncate where the leader says that an epoch ends (R-132 … R-136), as ``truncate``.

        Args:
            leader_log_start: −1 if the answer has none. The leader has forgotten the epochs below
                it. If the truncation would leave only records below it, these may differ from what
                was committed there, and so may their producers and transactions. Then our log
                begins again at the leader's log start.
        """
        if answer.end_offset < 0:
            self.partition.follower.epoch_not_known(self.last_epoch)
        log_end = self.partition.log_end_offset
        cut = truncation_point(
            answer, self.partition.follower.own_end_offset_for, log_end, min(self.offset, log_end)
        )
        if leader_log_start > 0 and cut.offset <= leader_log_start:
            self.is_settled = False
            before, side = self.offset, self.partition.follower
            side.begin_at_start(cut.offset, leader_log_start, self.leader_epoch)
            self._move_to(self.partition.log_end_offset, Phase.FETCHING)
            return self.offset != before or self.offset == leader_log_start
        return self.truncate(cut, rule)

    def begin_reset(self) -> None:
        """Our offset is outside the leader's log (R-129)."""
        self.phase, self.leader_end = Phase.RESETTING, None

    def reset(self, leader_offset: int) -> None:
        """Take the leader's log end, then its log start; continue where the logs meet (R-129)."""
        self.is_settled = False
        own_end, epoch = self.partition.log_end_offset, self.leader_epoch
        if self.leader_end is None:
            if leader_offset >= own_end:
                self.leader_end = leader_offset
                return
            logger.warning("%s: the leader ends at %d, we at %d", self.tp, leader_offset, own_end)
            self.partition.follower.take_end(leader_offset, epoch)
            offset, leader_end = self.partition.log_end_offset, leader_offset
        else:
            offset, leader_end = max(leader_offset, own_end), self.leader_end
            if leader_offset > own_end:
                self.partition.follower.take_start(leader_offset, leader_end, epoch)
        self._move_to(offset, Phase.FETCHING)
        if self.partition.log_end_offset < offset:
            self.leaves_gap, self.last_epoch = True, UNKNOWN_EPOCH
        self.lag = max(0, leader_end - offset)

    def give_up_reset(self) -> None:
        """Fetch again if we have an offset, because the leader did not answer its log ends."""
        self.leader_end = None
        if self.offset >= 0:
            self.phase = Phase.FETCHING

    def _move_to(self, offset: int, phase: Phase) -> None:
        """Move after a change of our log, which invalidates earlier answers."""
        self.last_epoch = self.partition.latest_epoch
        self.log_start = self.partition.log_start_offset
        self.offset, self.phase = offset, phase
        self.leader_end = self.wanted = None
        self.leaves_gap = False
        if phase is Phase.FETCHING:
            self.partition.follower.logs_meet(self.leader_epoch)


class FetchProgress(NamedTuple):
    size: int  # appended bytes
    high_watermark_moved: bool  # our own
    changed: bool  # the next request differs, or the partition goes to the end of the order


class Round:
    """The partitions with work. Progress of its members keeps it up to date, and new ones join it:
    thousands come in pieces, and no piece looks at all that came before. An answer belongs to the
    states that asked (R-117), so none becomes another one while a request is in flight.
    """

    __slots__ = (
        "_changed",
        "_delayed",
        "_delays",
        "fetching",
        "resetting",
        "throttled",
        "truncating",
        "unsettled",
        "wanted",
    )

    def __init__(self) -> None:
        self.unsettled: dict[TopicPartition, FetchState] = {}  # done before anything else
        self.truncating: dict[TopicPartition, FetchState] = {}
        self.resetting: dict[TopicPartition, FetchState] = {}
        # In fetch order. None holds the place of a state of those above.
        self.fetching: dict[TopicPartition, FetchState | None] = {}
        self.throttled = False  # some wait for the quota
        self.wanted: dict[TopicPartition, FetchPartition] = {}  # of ``fetching``
        # Changes since the last request; None: there was no request.
        self._changed: dict[TopicPartition, None] | None = None
        self._delayed: list[tuple[int, int, FetchState]] = []  # a heap, by the end of the delay
        self._delays = 0

    @property
    def due_ms(self) -> int | None:
        """When the first delay ends."""
        return self._delayed[0][0] if self._delayed else None

    def take_due(self, now_ms: int) -> Iterator[FetchState]:
        while self._delayed and self._delayed[0][0] <= now_ms:
            yield heappop(self._delayed)[2]

    def put_last(self, state: FetchState, part: FetchPartition) -> None:
        self.fetching.pop(state.tp, None)
        self.wanted.pop(state.tp, None)
        self.put(state, part)

    def put(self, state: FetchState | None, part: FetchPartition) -> None:
        """Put a state where its place is held, or last; or None, to hold a place."""
        self.fetching[part.tp] = state
        self.wanted[part.tp] = part
        if self._changed is not None:
            self._changed[part.tp] = None

    def delay(self, state: FetchState) -> None:
        """A state has no place until its delay ends."""
        tp = state.tp
        for part in (self.unsettled, self.truncating, self.resetting, self.fetching, self.wanted):
            part.pop(tp, None)
        if self._changed is not None:
            self._changed[tp] = None
        self._delays += 1
        heappush(self._delayed, (state.delayed_until_ms, self._delays, state))

    def take_changes(self) -> Iterable[TopicPartition] | None:
        """The changes since the last call. None at the first call: anything may have changed."""
        changed, self._changed = self._changed, {}
        return changed


class FetchStates:
    """The partitions of a fetcher in fetch order (R-115)."""

    def __init__(self, rule: TruncationRule, max_bytes: int, answer_bytes: int) -> None:
        """
        Args:
            max_bytes: to ask for of a partition that is not far behind.
            answer_bytes: that a whole answer may have.
        """
        self._rule, self._max_bytes = rule, max_bytes
        self._most = max(max_bytes, answer_bytes)
        self._states: dict[TopicPartition, FetchState] = {}
        self._round: Round | None = None  # kept while nothing changes, for idle rounds

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[FetchState]:
        return iter(self._states.values())

    def get(self, tp: TopicPartition) -> FetchState | None:
        return self._states.get(tp)

    def holds(self, state: FetchState) -> bool:
        """Whether this state is current: False if the partition was removed or added again."""
        return self._states.get(state.tp) is state

    def pop(self, tp: TopicPartition) -> None:
        if self._states.pop(tp, None) is not None:
            self._round = None

    def clear(self) -> None:
        self._states.clear()
        self._round = None

    def put_last(self, state: FetchState) -> None:
        """Add a state, or move a changed one to the end of the order."""
        is_new = state.tp not in self._states
        self._move_last(state)
        if self._round is not None and is_new and not state.is_settled:
            self._sort_in(self._round, state)
        else:
            self._round = None

    def progress(self, state: FetchState) -> None:
        """As ``put_last``, for a partition that was fetched and continues."""
        self._move_last(state)
        if self._round is not None:
            self._round.put_last(state, self._part(state))

    def _move_last(self, state: FetchState) -> None:
        self._states.pop(state.tp, None)
        self._states[state.tp] = state

    def _part(self, state: FetchState) -> FetchPartition:
        if state.wanted is None:
            wanted = min(self._max_bytes * state.most_times, self._most)
            state.wanted = state.fetch_part(self._rule, wanted)
        return state.wanted

    def mark_settled(self, states: Iterable[FetchState]) -> None:
        for state in states:
            state.is_settled = True
            self.go_on(state)

    def go_on(self, state: FetchState) -> None:
        """Note that a state goes on from what comes before a fetch, while none is in flight."""
        turn, tp = self._round, state.tp
        if turn is not None:
            turn.unsettled.pop(tp, None)
            turn.truncating.pop(tp, None)
            self._sort_in(turn, state)

    def group_by_topic(self) -> None:
        """Group the order by topic, as a round of truncation does (R-115)."""
        topics: dict[str, dict[TopicPartition, FetchState]] = {}
        for tp, state in self._states.items():
            topics.setdefault(tp.topic, {})[tp] = state
        self._states = {tp: state for group in topics.values() for tp, state in group.items()}
        self._round = None

    def delay(self, states: Iterable[FetchState], until_ms: int, now_ms: int) -> None:
        """Delay partitions. One that is delayed already keeps its delay (R-128)."""
        for state in list(states):
            if state.delayed_until_ms <= now_ms and self.holds(state):
                state.delayed_until_ms = until_ms
                self._move_last(state)
                if self._round is not None:
                    self._round.delay(state)

    def round(self, now_ms: int, must_wait: Callable[[FetchState], bool] | None) -> Round:
        """The work that can be done now.

        ``must_wait`` says whether the quota holds a partition back; None while it is not exceeded.
        """
        kept = self._round
        if kept is not None and must_wait is None and not kept.throttled:
            for state in kept.take_due(now_ms):
                if self.holds(state):
                    self._move_last(state)
                    self._sort_in(kept, state, now_ms)
            return kept
        self._round = new = Round()
        for state in self._states.values():
            self._sort_in(new, state, now_ms, must_wait)
        return new

    def _sort_in(
        self,
        turn: Round,
        state: FetchState,
        now_ms: int = 0,
        must_wait: Callable[[FetchState], bool] | None = None,
    ) -> None:
        """``now_ms`` may be left out for one that has just gone on."""
        if state.delayed_until_ms > now_ms:
            turn.delay(state)
            return
        if not state.is_settled:
            before_a_fetch = turn.unsettled
        elif state.phase is Phase.TRUNCATING:
            before_a_fetch = turn.truncating
        elif state.phase is Phase.RESETTING:
            before_a_fetch = turn.resetting
        elif must_wait is not None and must_wait(state):
            turn.throttled = True
            return
        else:
            turn.put(state, self._part(state))
            return
        before_a_fetch[state.tp] = state
        turn.put(None, self._part(state))


__all__ = [
    "FetchState",
    "FetchStates",
    "InitialFetchState",
    "OffsetMismatchError",
    "Phase",
    "Round",
]
