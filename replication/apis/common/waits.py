"""Answers that wait: for the controller, or until this broker knows something."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from replication.broker.broker import Broker
from replication.common.error_codes import ErrorCode
from replication.common.gathering import Gathering
from replication.common.messages import Request, Response, TopicResponse
from replication.common.runtime import Cancellable, Runtime
from replication.replica_manager.metadata_cache import MetadataCache

MAX_CHANGES = 10_000
"""How many topics one request changes, while others wait for the controller (W-237)."""
TOO_MANY = TopicResponse(
    ErrorCode.POLICY_VIOLATION, f"one request has at most {MAX_CHANGES} topics changed"
)


def ask_all(
    broker: Broker,
    requests: Sequence[Request | TopicResponse],
    done: Callable[[Sequence[TopicResponse]], None],
    timeout_ms: int | None = None,
) -> None:
    """Have the controller carry out a request for each of several topics. A response in the place
    of one stays as it is."""
    gathering: Gathering[TopicResponse] = Gathering(len(requests), done)

    def on_answer(at: int, answer: Response | None) -> None:
        if not isinstance(answer, TopicResponse):
            answer = TopicResponse(error_without_answer(broker), "no controller answers in time")
        gathering.take_answer(at, answer)

    for at, request in enumerate(requests):
        if isinstance(request, TopicResponse):
            gathering.take_answer(at, request)
        elif at >= MAX_CHANGES:
            gathering.take_answer(at, TOO_MANY)
        else:
            broker.ask_controller(request, partial(on_answer, at), timeout_ms)


class _Wait:
    __slots__ = ("condition", "done", "timer")

    def __init__(self, condition: Callable[[], bool], done: Callable[[bool], None]) -> None:
        self.condition, self.done = condition, done
        self.timer: Cancellable | None = None


def error_without_answer(broker: Broker) -> ErrorCode:
    """The error for a client where the controller has not answered in time: there is none, or it is
    busy, and may still do what was asked for."""
    return ErrorCode.NOT_CONTROLLER if broker.controller_id is None else ErrorCode.REQUEST_TIMED_OUT


class MetadataWaits:
    """Waits until the metadata of this broker meet a condition, which each update checks."""

    def __init__(self, broker_id: int, runtime: Runtime, metadata: MetadataCache) -> None:
        self._runtime = runtime
        self._actor = runtime.actor(f"metadata-waits-{broker_id}")
        self._waits: dict[_Wait, None] = {}  # of the actor
        self._is_due = False  # a look, which sees all updates before it
        metadata.watch(self._updated)

    def until(
        self, condition: Callable[[], bool], timeout_ms: int, done: Callable[[bool], None]
    ) -> None:
        """Call ``done`` once: True when the condition holds, False after ``timeout_ms``."""
        self._actor.post(lambda: self._begin(_Wait(condition, done), timeout_ms))

    def _begin(self, wait: _Wait, timeout_ms: int) -> None:
        # First among the others, then the look: an update in between is seen by one of them.
        self._waits[wait] = None
        if wait.condition():
            self._end(wait, True)
        elif timeout_ms <= 0:
            self._end(wait, False)
        else:
            wait.timer = self._runtime.call_later(
                timeout_ms, lambda: self._actor.post(lambda: self._end(wait, False))
            )

    def _updated(self) -> None:
        if self._waits and not self._is_due:
            self._is_due = True
            self._actor.post(self._check_all)

    def _check_all(self) -> None:
        self._is_due = False  # first: what is updated from here on may not be seen
        for wait in [*self._waits]:
            if wait.condition():
                self._end(wait, True)

    def _end(self, wait: _Wait, is_fulfilled: bool) -> None:
        if wait not in self._waits:
            return
        del self._waits[wait]
        if wait.timer is not None:
            wait.timer.cancel()
        wait.done(is_fulfilled)
