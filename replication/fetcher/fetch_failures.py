"""The reactions of a fetcher to error codes: one table, pauses, and the end of partitions that it
cannot continue.

Not thread-safe: a fetcher holds its lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from logstore.common.errors import (
    CorruptMessageError,
    InvalidRecordError,
    LogClosedError,
    ResourceBusyError,
)
from replication.common.config import ReplicationConfig
from replication.common.error_codes import ErrorCode
from replication.common.errors import NotLeaderOrFollowerError, error_for
from replication.common.limited_log import LimitedLogger
from replication.common.quota import ReplicationQuota
from replication.common.retrying import Backoff, reactions
from replication.common.runtime import Runtime
from replication.common.transport import Transport
from replication.decisions.truncation import TruncationRule
from replication.fetcher.fetch_session_handler import FetchSessionHandler, SessionOutcome
from replication.fetcher.fetcher_state import EventStreak, FetchState, FetchStates
from replication.partition import Partition

logger = get_logger(__name__)

FIRST_PAUSE_MS = 5
LONGEST_HOLD_MS = 300_000
FREE_TURNS = 3  # consecutive truncations and resets that a normal change of leader may need


class FetchReaction(Enum):
    """More detailed than ``retrying.Reaction``, because each of the many partitions of a fetcher
    can continue, begin elsewhere or be left out by itself.
    """

    APPLY = "apply"
    RESET = "reset"  # our offset is outside the leader's log
    SOON = "soon"  # after a short pause, which grows
    LATER = "later"  # after ``replica.fetch.backoff.ms``
    FAIL = "fail"  # not fetched until new metadata adds it again
    NEW_SESSION = "new session"  # the leader lost our session, or has another view


REACTIONS = reactions(
    {
        FetchReaction.APPLY: [ErrorCode.NONE],
        FetchReaction.RESET: [ErrorCode.OFFSET_OUT_OF_RANGE],
        # A follower often learns about a new leader before the leader does. Kafka waits for the
        # whole pause here, too.
        FetchReaction.SOON: [
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_ID,
        ],
        FetchReaction.FAIL: [ErrorCode.FENCED_LEADER_EPOCH],
        FetchReaction.NEW_SESSION: [
            ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
            ErrorCode.INVALID_FETCH_SESSION_EPOCH,
            ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ],
    },
    otherwise=FetchReaction.LATER,
)


def pauses(longest_ms: int) -> Backoff:
    """Pauses after refusals that may be over soon.

    There is no jitter, so that partitions that were refused together are fetched together again. No
    other fetcher fetches them.

    Args:
        longest_ms: ``replica.fetch.backoff.ms``.
    """
    longest = max(1, longest_ms)
    return Backoff(min(FIRST_PAUSE_MS, longest), longest, jitter=0.0)


@dataclass(frozen=True, slots=True)
class FetcherContext:
    """The context that all fetchers of a broker share.

    ``on_high_watermarks`` is called, without a lock, with partitions whose high watermark changed
    or whose log was truncated or reset. ``finish_changes`` is called before the leader learns the
    ends of changed logs: it lowers checkpoints of truncated ones, and syncs what must not wait.
    ``failed`` has the partitions that are not fetched until they are added again, and why.
    ``on_refused`` is called, under a fetcher's lock, with a partition that its leader refuses and
    why, and with no partition if the leader does not answer: no controller tells a client where to
    fetch from.
    """

    broker_id: int
    runtime: Runtime
    transport: Transport
    config: ReplicationConfig
    rule: TruncationRule
    partition_of: Callable[[TopicPartition], Partition]
    broker_epoch: Callable[[], int]
    on_high_watermarks: Callable[[list[TopicPartition]], None]
    finish_changes: Callable[[list[TopicPartition]], None]
    quota: ReplicationQuota | None = None
    failed: dict[TopicPartition, Exception] = field(default_factory=dict)
    on_refused: Callable[[TopicPartition | None, ErrorCode], None] = lambda tp, code: None

    @property
    def is_consumer(self) -> bool:
        """Whether the leaders are those of another cluster, which owe nothing to this one."""
        return self.broker_id < 0


class FetchFailures:
    """The troubles of one fetcher."""

    def __init__(
        self, name: str, env: FetcherContext, states: FetchStates, session: FetchSessionHandler
    ) -> None:
        self._name = name
        self._log = LimitedLogger(logger, env.runtime.clock)
        self._env = env
        self._states = states
        self._session = session
        self._lost_sessions, self._fruitless = EventStreak(), EventStreak()
        self._pauses = pauses(env.config.replica_fetch_backoff_ms)
        self._held_until_ms = 0

    @property
    def held_ms(self) -> int:
        """How long the leader wants no request yet."""
        return max(0, self._held_until_ms - self._env.runtime.now_ms())

    def hold(self, throttle_ms: int) -> None:
        """Ask nothing while the leader's quota is exceeded: it would not read it (KIP-219). A
        leader that names a longer time than any quota needs is asked again before."""
        self._held_until_ms = self._env.runtime.now_ms() + min(throttle_ms, LONGEST_HOLD_MS)

    def not_applied(self, state: FetchState, error: Exception) -> None:
        """React to the error of a change of a partition, which delays or ends the partition."""
        match error:
            case CorruptMessageError() | InvalidRecordError():  # fetched again
                self._log.warning(
                    "%s: fetched what is not valid, again later: %s",
                    state.tp,
                    error,
                    about=state.tp,
                )
                state.resume()  # the log already began inside a batch
                self.delay([state])
            case ResourceBusyError():  # nothing was done, or it is only not durable
                self._log.warning("%s: again later: %s", state.tp, error, about=state.tp)
                state.resume()
                self.delay([state])
            case NotLeaderOrFollowerError():
                self.delay([state])  # its role changed, and that change removes or adds it again
            case _ if self._states.holds(state):  # given up
                self.fail(state.tp, error)
        self._session.doubt(state.tp)

    def refused(self, state: FetchState, code: ErrorCode) -> None:
        """React to an error of the leader for a request under the state's epoch."""
        self._env.on_refused(state.tp, code)
        match REACTIONS[code]:
            case FetchReaction.RESET:
                state.begin_reset()
                self._states.put_last(state)
                self.pause_in_a_circle(state)
            case FetchReaction.SOON:
                self.delay([state], self._pause_ms(self._extend(state.refused)))
            case FetchReaction.FAIL:
                error = error_for(code, f"{state.tp}: epoch {state.leader_epoch}")
                self.fail(state.tp, error)
            case FetchReaction.APPLY | FetchReaction.LATER | FetchReaction.NEW_SESSION:
                self.delay([state])

    def pause_in_a_circle(self, state: FetchState) -> None:
        """Pause if truncations or resets repeat. One usually brings us to the leader's log.

        If the leader keeps giving useless answers, the pauses grow.
        """
        turns = self._extend(state.turned) - FREE_TURNS
        if turns > 0:
            self.delay([state], self._pause_ms(turns))

    def _extend(self, streak: EventStreak) -> int:
        longest_ms = self._env.config.replica_fetch_backoff_ms
        return streak.extend(self._env.runtime.now_ms(), 2 * longest_ms)

    def _pause_ms(self, failures: int) -> int:
        return int(self._pauses.delay_ms(failures, self._env.runtime.random))

    def fail(self, tp: TopicPartition, error: Exception) -> None:
        if isinstance(error, LogClosedError):  # the broker ends, and its logs are closed first
            logger.info("%s: %s is not fetched any more: %s", self._name, tp, error)
        else:
            self._log.error(
                "%s: %s is not fetched any more: %s",
                self._name,
                tp,
                error,
                about=tp,
                exc_info=error,
            )
        self._states.pop(tp)
        self._env.failed[tp] = error

    def pause_after_nothing(self) -> None:
        """Pause if a leader that was to wait for records answers at once again and again, and
        without any: else nothing paces us but its answers (X-179).
        """
        turns = self._extend(self._fruitless) - FREE_TURNS
        if turns > 0:
            self.delay(self._states, self._pause_ms(turns))

    def delay(self, states: Iterable[FetchState], backoff_ms: int | None = None) -> None:
        """Leave these partitions alone for ``replica.fetch.backoff.ms`` (R-128)."""
        now_ms = self._env.runtime.now_ms()
        if backoff_ms is None:
            backoff_ms = max(1, self._env.config.replica_fetch_backoff_ms)  # never a loop
        self._states.delay(states, now_ms + backoff_ms, now_ms)

    def pause_between_sessions(self, outcome: SessionOutcome) -> None:
        """Begin a lost session again at once, but pause if that repeats."""
        turns = self._extend(self._lost_sessions) - FREE_TURNS
        if outcome is SessionOutcome.BAD:
            self.delay(self._states)
        elif turns > 0:
            self.delay(self._states, self._pause_ms(turns))
