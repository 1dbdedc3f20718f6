"""Backups beside a running mirror, one after each pause, and one at the end.

A store that is down stops nobody: the failure is shown, and the next pause ends with another try.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from checkpoints.loggers import get_logger
from logstore.common.clock import Clock, SystemClock
from logstore.common.errors import LogstoreError

logger = get_logger(__name__)

FIRST_RETRY_S = 10.0
"""The pause after a failure, doubled with each further one, up to the interval."""
LAST_S = 15.0
"""A backup that runs at a signal has so long, and the last one with it: who sends signals kills
after 30 s. What a backup has put without its commit the next one takes."""
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class BackupStatus:
    """
    Attributes:
        uri: without credentials.
        completed: how many backups were committed in this run.
        completed_ms_ago: since the last one; None: none in this run.
        failures: how many tries failed.
        failure: of the last try; "" if it succeeded.
        findings: of the last backup: what it could not take.
    """

    uri: str
    completed: int = 0
    completed_ms_ago: int | None = None
    failures: int = 0
    failure: str = ""
    findings: tuple[str, ...] = ()


class ContinuousBackup:
    """Runs backups on a thread of its own. Call ``start``, and ``close`` at the end.

    Args:
        uri: for messages, without credentials.
        run: makes one backup, and returns its findings. It is given what waits, some seconds,
            between its tries.
    """

    def __init__(
        self,
        uri: str,
        run: Callable[[Callable[[float], object]], tuple[str, ...]],
        interval_s: float,
        clock: Clock | None = None,
    ) -> None:
        self._run, self._interval_s = run, interval_s
        self._clock = clock or SystemClock()
        self._status = BackupStatus(uri)
        self._completed_ns: int | None = None
        self._closing, self._hurried = threading.Event(), threading.Event()
        self._retry_s = FIRST_RETRY_S
        self._thread = threading.Thread(target=self._loop, name="mirror-backup", daemon=True)

    def start(self) -> None:
        """Begin with the first pause: a mirror that has just started has little that is new."""
        self._thread.start()

    def close(self) -> None:
        """End after the backup that runs now. Idempotent."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def finish(
        self, is_stopped: Callable[[], bool], *, one_more: bool = True, patience_s: float = LAST_S
    ) -> bool:
        """End, with one more backup if it is wanted; whether that was committed.

        Args:
            is_stopped: once it is true there are ``patience_s`` left, and what fails is not tried
                again.
        """
        self._closing.set()
        committed: list[bool] = []
        last = threading.Thread(
            target=lambda: committed.append(self._last(one_more)),
            name="mirror-last-backup",
            daemon=True,
        )
        last.start()
        until_ns: int | None = None
        while last.is_alive():
            if until_ns is None and is_stopped():
                self._hurried.set()
                until_ns = self._clock.monotonic_ns() + int(patience_s * 1e9)
            elif until_ns is not None and self._clock.monotonic_ns() >= until_ns:
                self._failed(f"it was not done {patience_s:g} s after the signal")
                return False
            last.join(_LOOK_S)
        return committed == [True]

    def _last(self, one_more: bool) -> bool:
        failures = self._status.failures
        self.close()
        has_just_failed = self._hurried.is_set() and self._status.failures > failures
        return one_more and not has_just_failed and self.run_now()

    def _pause(self, seconds: float) -> None:
        if self._hurried.wait(seconds):
            raise LogstoreError("a signal came while the store was waited for")

    @property
    def status(self) -> BackupStatus:
        completed_ns = self._completed_ns
        if completed_ns is None:
            return self._status
        age_ms = (self._clock.monotonic_ns() - completed_ns) // 1_000_000
        return replace(self._status, completed_ms_ago=age_ms)

    def run_now(self) -> bool:
        """Make one on this thread; whether it was committed. For after ``close``, too."""
        try:
            findings = self._run(self._pause)
        except (LogstoreError, OSError) as error:
            self._failed(str(error) or type(error).__name__)
        except Exception as error:  # a bug of ours must not end the mirror
            logger.exception("a backup failed")
            self._failed(f"{type(error).__name__}: {error}")
        else:
            before = self._status
            self._completed_ns, self._retry_s = self._clock.monotonic_ns(), FIRST_RETRY_S
            self._status = replace(
                before, completed=before.completed + 1, failure="", findings=findings
            )
            return True
        return False

    def _failed(self, reason: str) -> None:
        before = self._status
        self._status = replace(before, failures=before.failures + 1, failure=reason)
        logger.warning("no backup to %s: %s", before.uri, reason)

    def _loop(self) -> None:
        pause_s = self._interval_s
        while not self._closing.wait(pause_s):
            pause_s = self._interval_s
            if not self.run_now():
                pause_s = min(self._retry_s, self._interval_s)
                self._retry_s = min(2 * self._retry_s, self._interval_s)


__all__ = ["BackupStatus", "ContinuousBackup"]
