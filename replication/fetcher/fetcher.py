"""Copies partitions from one leader: truncate, fetch, append (Kafka's ``ReplicaFetcherThread``).

A fetcher is a state machine on an actor. It has at most one request in flight. An answer, new
partitions or the end of a delay cause its next step. Its lock is held while an answer is applied,
so after a removal nothing is applied to the partition any more. Order of locks: fetcher, partition,
log.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from logstore.common.errors import ResourceBusyError
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    EpochEndOffset,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    Request,
    Response,
)
from replication.common.quota import SampledRate
from replication.common.runtime import Cancellable, Task, in_turn
from replication.decisions.truncation import Truncation
from replication.fetcher.fetch_failures import (
    REACTIONS,
    FetcherContext,
    FetchFailures,
    FetchReaction,
)
from replication.fetcher.fetch_session_handler import (
    FetchSessionHandler,
    SessionOutcome,
    SessionRequest,
)
from replication.fetcher.fetcher_state import (
    FetchState,
    FetchStates,
    InitialFetchState,
    Round,
)

logger = get_logger(__name__)

FETCH_MARGIN_MS = 5000
LIGHT_BYTES = 8192  # bytes of an answer that any thread may apply
LARGE_BYTES = 1 << 20  # of one whose bytes take most of its time, and another core helps

Apply = Callable[[Response], list[TopicPartition]]
"""Applies an answer.

Returns the partitions whose waiting consumers must be checked (R-95), because the high watermark
moved, or a truncation or a reset moved the ends of the log.
"""


class Fetcher:
    """Follows one leader for some partitions. Thread-safe.

    Attributes:
        requests, bytes: how many fetches were answered or lost, and how many bytes appended
        (R-162).
        dead: it stopped after an unknown error, and its partitions do not follow any more.
        unanswered_since_ms: when the first of the last requests was lost; None: the last one was
            answered.
    """

    def __init__(self, name: str, leader_id: int, env: FetcherContext) -> None:
        self.name = name
        self.leader_id = leader_id
        self.requests = 0
        self.bytes = 0
        self.dead = False
        self.unanswered_since_ms: int | None = None
        self._env = env
        self._actor = env.runtime.actor(name)
        config = env.config
        self._states = FetchStates(
            env.rule, config.replica_fetch_max_bytes, config.replica_fetch_response_max_bytes
        )
        self._session = FetchSessionHandler()
        self._failures = FetchFailures(name, env, self._states, self._session)
        self._lock = threading.RLock()  # reentrant: a failing disk may cause removals from within
        self._busy = False  # whether a step is posted or a request in flight
        self._closed = False
        self._awaited: Request | None = None  # the request in flight
        self._timer: Cancellable | None = None
        self._fetched_ms = 0  # when the last fetch was sent
        self._request_rate = SampledRate(samples=12, window_ms=5000)

    # -- partitions ----------------------------------------------------------------------------

    def add(self, partitions: Mapping[TopicPartition, InitialFetchState]) -> None:
        """Begin to follow. A partition that is here under the same epoch continues (R-113)."""
        with self._lock:
            for tp, initial in partitions.items():
                self._env.failed.pop(tp, None)
                state = self._states.get(tp)
                if state is None or state.leader_epoch != initial.leader_epoch:
                    try:
                        state = FetchState(self._env.partition_of(tp), initial, self._env.rule)
                    except Exception as error:
                        self._failures.fail(tp, error)
                        continue
                    self._session.doubt(tp)
                self._states.put_last(state)
            self._wake()

    def remove(self, tps: Iterable[TopicPartition]) -> None:
        """Stop following.

        On return no answer is being applied to them, unless the caller itself is applying one.
        """
        with self._lock:
            for tp in tps:
                self._states.pop(tp)

    def close(self) -> None:
        """Stop. On return nothing is applied any more."""
        with self._lock:
            self._closed = True
            self._states.clear()
            if self._timer is not None:
                self._timer.cancel()
        self._actor.close()

    def __len__(self) -> int:
        return len(self._states)

    def partitions(self) -> list[TopicPartition]:
        """The partitions in fetch order."""
        with self._lock:
            return [state.tp for state in self._states]

    def lags(self) -> dict[TopicPartition, int]:
        """Records behind the leader's high watermark, for partitions where it is known (R-161)."""
        with self._lock:
            return {state.tp: state.lag for state in self._states if state.lag is not None}

    def fetch_rate(self) -> float:
        """Requests a second over the last minute."""
        with self._lock:
            return self._request_rate.per_second(self._env.runtime.now_ms())

    # -- steps ---------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Post a step if none is posted. The lock is held."""
        if not self._busy and not self._closed:
            self._busy = True
            if self._timer is not None:
                self._timer.cancel()
            self._post(self._step)

    def _on_timer(self) -> None:
        with self._lock:
            self._wake()

    def _post(self, task: Task) -> None:
        self._actor.post(partial(self._run, task))

    def _run(self, task: Task) -> None:
        try:
            task()
        except Exception:
            logger.exception("%s stopped", self.name)
            self.dead = True

    def _step(self) -> None:
        """Send the next request, or wait until there is work (R-114)."""
        while True:
            with self._lock:
                if self._closed:
                    return
                turn = self._round()
                if self._failures.held_ms:
                    self._schedule_round(turn)
                    return
                if turn.truncating and self._truncate_alone(turn.truncating.values()):
                    turn = self._round()
                unsettled = [*turn.unsettled.values()]
                if not unsettled:
                    following = self._next(turn)
                    if following is None:
                        self._schedule_round(turn)
                        return
                    request, apply = following
                    self._awaited = request
                    break
            self._finish_changes(unsettled)

        def on_reply(response: Response | None) -> None:
            task = partial(self._run, partial(self._on_reply, request, apply, response))
            size = self._copied_bytes(response)
            if 0 < size <= LIGHT_BYTES:  # a change of threads costs more
                self._actor.offer(task)
            else:
                is_copy = LIGHT_BYTES < size < LARGE_BYTES
                self._actor.post(partial(in_turn, task) if is_copy else task)

        config = self._env.config
        timeout_ms = config.replica_socket_timeout_ms
        if isinstance(request, FetchRequest):  # the leader may let it wait, and then it has to come
            timeout_ms = max(timeout_ms, config.replica_fetch_wait_max_ms + FETCH_MARGIN_MS)
        try:
            self._env.transport.send(self.leader_id, request, on_reply, timeout_ms)
        except Exception:
            logger.exception("%s could not send", self.name)
            on_reply(None)

    def _copied_bytes(self, response: Response | None) -> int:
        """The bytes of records in an answer that needs no disk wait; else 0. One without records is
        not urgent."""
        if type(response) is not FetchResponse:
            return 0
        size = 0
        for part in response.partitions:
            if part.records:
                size += len(part.records)
                state = self._states.get(part.tp)
                if state is None or state.partition.follower.syncs_appends:
                    return 0
        return size

    def _on_reply(self, request: Request, apply: Apply, response: Response | None) -> None:
        moved: list[TopicPartition] = []
        with self._lock:
            if self._closed or self._awaited is not request:
                return
            self._awaited = None
            if response is None:
                if self.unanswered_since_ms is None:
                    self.unanswered_since_ms = self._env.runtime.now_ms()
                if isinstance(request, FetchRequest):
                    self._session.reset()  # the leader may have received it
                self._failures.delay(self._states)  # all of them
                self._env.on_refused(None, ErrorCode.NETWORK_EXCEPTION)
            else:
                self.unanswered_since_ms = None
                moved = apply(response)
        if moved:
            try:
                self._env.on_high_watermarks(moved)
            except Exception:  # an error of a waiting consumer, which must not stop replication
                logger.exception("%s could not report high watermarks", self.name)
        self._step()

    def _schedule_round(self, turn: Round) -> None:
        self._busy = False
        now_ms = self._env.runtime.now_ms()
        waits = [turn.due_ms - now_ms] if turn.due_ms is not None else []
        if self._failures.held_ms:
            waits = [self._failures.held_ms]
        if turn.throttled:
            waits.append(self._env.config.replica_fetch_backoff_ms)
        if waits:
            # The timer's thread must not wait for this lock.
            self._timer = self._env.runtime.call_later(
                max(0, min(waits)), lambda: self._post(self._on_timer)
            )

    def _round(self) -> Round:
        quota = self._env.quota
        throttling = quota is not None and quota.lists_any and quota.is_exceeded()
        now_ms = self._env.runtime.now_ms()
        return self._states.round(now_ms, self._must_wait if throttling else None)

    def _must_wait(self, state: FetchState) -> bool:
        quota = self._env.quota
        return quota is not None and not state.in_sync and quota.is_throttled(state.tp)

    def _truncate_alone(self, truncating: Iterable[FetchState]) -> bool:
        """Truncate partitions that need not ask the leader (R-130). False if there were none."""
        rule = self._env.rule
        alone = [s for s in truncating if not rule.must_ask(s.last_epoch)]
        for state in alone:
            try:
                state.truncate(Truncation(state.offset, finished=True), rule)
            except Exception as error:
                self._failures.not_applied(state, error)
            self._states.go_on(state)
        return bool(alone)

    def _finish_changes(self, unsettled: list[FetchState]) -> None:
        """Lower the checkpoints of truncated logs, with one write for all, before the next fetch,
        and sync what an append could not. Our lock is not held, because this waits for the disk,
        and a change of roles waits for our lock.
        """
        failure: Exception | None = None
        try:
            self._env.finish_changes([state.tp for state in unsettled])
        except ResourceBusyError as error:
            logger.warning("%s: a change of logs is not durable yet: %s", self.name, error)
            failure = error
        except Exception as error:
            failure = error
        with self._lock:
            unsettled = [state for state in unsettled if self._states.holds(state)]
            if failure is None:
                self._states.mark_settled(unsettled)
            elif isinstance(failure, ResourceBusyError):
                self._failures.delay(unsettled)
            else:
                for state in unsettled:
                    self._failures.fail(state.tp, failure)

    def _next(self, turn: Round) -> tuple[Request, Apply] | None:
        """The next request, and the function that applies its answer."""
        if turn.truncating:
            return self._ask_epochs([*turn.truncating.values()])
        if turn.resetting:
            return self._ask_ends([*turn.resetting.values()])
        if turn.fetching:
            return self._fetch(turn)
        return None

    # -- fetch ---------------------------------------------------------------------------------

    def _fetch(self, turn: Round) -> tuple[Request, Apply]:
        config = self._env.config
        asked = self._session.next_request(turn.wanted, turn.take_changes())
        request = FetchRequest(
            asked.partitions,
            self._env.broker_id,
            self._env.broker_epoch(),
            config.replica_fetch_wait_max_ms,
            config.replica_fetch_min_bytes,
            config.replica_fetch_response_max_bytes,
            session_id=asked.session_id,
            session_epoch=asked.session_epoch,
            forgotten=asked.forgotten,
            topic_names=asked.names,
        )
        self.requests += 1
        self._fetched_ms = self._env.runtime.now_ms()
        self._request_rate.record(1, self._fetched_ms)
        return request, partial(self._on_fetched, turn, asked)

    def _on_fetched(
        self, turn: Round, asked: SessionRequest, response: Response
    ) -> list[TopicPartition]:
        if not isinstance(response, FetchResponse):
            self._session.reset()
            self._failures.delay(self._states)
            return []
        outcome = self._session.on_answer(asked, response)
        if response.throttle_time_ms > 0:
            self._failures.hold(response.throttle_time_ms)
        if response.error_code:
            if REACTIONS[response.error_code] is not FetchReaction.NEW_SESSION:
                for each in self._states:
                    self._env.on_refused(each.tp, response.error_code)
                self._failures.delay(self._states)
            else:
                self._failures.pause_between_sessions(outcome)
            return []
        if outcome is not SessionOutcome.GOOD:
            self._failures.pause_between_sessions(outcome)
        moved: list[TopicPartition] = []
        diverging: list[tuple[FetchState, EpochEndOffset, int]] = []
        fetching, on_fetch = turn.fetching, self._env.rule.on_fetch
        applied: set[TopicPartition] = set()
        had_trouble, bytes_before = False, self.bytes
        for part in response.partitions:
            state = fetching.get(part.tp)
            if state is None or part.tp in applied or _is_of_another_topic(part, state):
                continue
            applied.add(part.tp)
            if not self._is_current(state, part):
                continue
            if part.error_code:
                had_trouble = True
                self._failures.refused(state, part.error_code)
            elif on_fetch and part.diverging_epoch is not None:
                diverging.append((state, part.diverging_epoch, part.log_start_offset))
            else:
                try:
                    if self._append(state, part):
                        moved.append(state.tp)
                except Exception as error:
                    had_trouble = True
                    self._failures.not_applied(state, error)
        for state, answer, log_start in diverging:  # after everything else
            if self._states.holds(state):
                self._truncate_to_answer(state, answer, log_start)
                moved.append(state.tp)
        if diverging:
            self._states.group_by_topic()
        if not (moved or had_trouble or self.bytes > bytes_before):
            self._pace()
        return moved

    def _pace(self) -> None:
        """React to an answer without anything: it should have taken its time."""
        waited_ms = self._env.runtime.now_ms() - self._fetched_ms
        if self._env.is_consumer and waited_ms * 2 < self._env.config.replica_fetch_wait_max_ms:
            self._failures.pause_after_nothing()

    def _is_current(self, state: FetchState, part: FetchPartitionResponse) -> bool:
        """Whether the partition is unchanged since the request was sent (R-117, W-202)."""
        if self._states.holds(state):
            return True
        newer = self._states.get(part.tp)
        if (
            newer is not None
            and part.error_code is ErrorCode.FENCED_LEADER_EPOCH
            and newer.leader_epoch != state.leader_epoch
        ):
            self._failures.delay([newer])  # its epoch has changed
        return False

    def _append(self, state: FetchState, part: FetchPartitionResponse) -> bool:
        progress, quota, is_free = state.append(part), self._env.quota, True
        self.bytes += progress.size
        if quota is not None and quota.lists_any:
            if part.records:
                quota.record(state.tp, len(part.records))
            # What a quota holds back is not to come in larger pieces.
            is_free = not quota.is_throttled(state.tp)
        state.ask_more(progress.size if is_free else 0, self._env.config.replica_fetch_max_bytes)
        if progress.changed and self._states.holds(state):
            self._states.progress(state)
        return progress.high_watermark_moved

    # -- truncate ------------------------------------------------------------------------------

    def _ask_epochs(self, asking: list[FetchState]) -> tuple[Request, Apply]:
        parts = tuple(state.epoch_part(self._env.rule) for state in asking)
        request = OffsetForLeaderEpochRequest(parts, self._env.broker_id)
        return request, partial(self._on_epochs, asking)

    def _on_epochs(self, asking: list[FetchState], response: Response) -> list[TopicPartition]:
        answers = response.partitions if isinstance(response, OffsetForLeaderEpochResponse) else ()
        asked = {state.tp: state for state in asking}
        moved = []
        for part in answers:
            state = asked.pop(part.tp, None)
            if state is None or not self._states.holds(state):
                continue  # gone, or in another epoch
            if part.error_code:
                self._failures.refused(state, part.error_code)
            else:
                self._truncate_to_answer(state, EpochEndOffset(part.leader_epoch, part.end_offset))
                moved.append(part.tp)
        self._failures.delay(asked.values())
        self._states.group_by_topic()
        return moved

    def _truncate_to_answer(
        self, state: FetchState, answer: EpochEndOffset, leader_log_start: int = -1
    ) -> None:
        try:
            changed = state.truncate_to_answer(answer, self._env.rule, leader_log_start)
        except Exception as error:
            self._failures.not_applied(state, error)
        else:
            if not changed:
                # A correct leader never gives an answer that changes nothing; avoid a loop.
                self._failures.delay([state])
                return
        self._failures.pause_in_a_circle(state)

    # -- reset ---------------------------------------------------------------------------------

    def _ask_ends(self, asking: list[FetchState]) -> tuple[Request, Apply]:
        parts = tuple(state.ends_part(self._env.rule) for state in asking)
        request = ListOffsetsRequest(parts, self._env.broker_id)
        return request, partial(self._on_ends, asking)

    def _on_ends(self, asking: list[FetchState], response: Response) -> list[TopicPartition]:
        answers = response.partitions if isinstance(response, ListOffsetsResponse) else ()
        asked = {state.tp: state for state in asking}
        moved = []
        for part in answers:
            state = asked.get(part.tp)
            if state is None or not self._states.holds(state):
                continue
            if part.error_code or part.offset < 0:
                state.give_up_reset()
                if part.error_code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    self._failures.delay([state])
                else:
                    self._failures.refused(state, part.error_code)
            else:
                try:
                    state.reset(part.offset)
                    self._states.put_last(state)
                except Exception as error:
                    self._failures.not_applied(state, error)
                moved.append(part.tp)
            del asked[part.tp]
        for state in asked.values():
            state.give_up_reset()
        self._failures.delay(asked.values())
        return moved


def _is_of_another_topic(part: FetchPartitionResponse, state: FetchState) -> bool:
    answered, asked = part.topic_id, state.topic_id
    return answered is not asked and answered is not None and answered != asked
