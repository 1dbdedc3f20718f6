"""Periodic duties of a broker: on actors, so that no timer's thread ever waits for a disk."""

from __future__ import annotations

import threading

from logstore.manager.duties import SHORTEST_WAIT_MS, Schedule
from replication.common.runtime import Actor, Cancellable, Runtime

LONGEST_WAIT_MS = 3_600_000  # a period may be longer than a timer can wait


class ActorRunner:
    """A ``Runner`` whose rounds are tasks of an actor. A round that waits is not posted again."""

    def __init__(self, runtime: Runtime, actor: Actor, schedule: Schedule) -> None:
        self._runtime = runtime
        self._actor = actor
        self._schedule = schedule
        self._lock = threading.Lock()
        self._posted = self._stopped = False
        self._timer: Cancellable | None = None
        self.wake()

    def wake(self) -> None:
        with self._lock:
            if self._posted or self._stopped:
                return
            self._posted = True
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        self._actor.post(self._run)

    def _run(self) -> None:
        with self._lock:
            if self._stopped:
                return
            self._posted = False
        wait_ms = SHORTEST_WAIT_MS
        try:
            wait_ms = self._schedule.run_due()
        finally:
            with self._lock:
                if not self._posted and not self._stopped:
                    wait_ms = min(wait_ms, LONGEST_WAIT_MS)
                    self._timer = self._runtime.call_later(wait_ms, self.wake)

    def stop(self, *, wait: bool) -> None:
        with self._lock:
            self._stopped = True
            if self._timer is not None:
                self._timer.cancel()
        self._actor.close(wait)
