"""One process below the supervisor: its life, its pauses, its log.

Every one speaks the same way: a line of JSON on standard output says that it is ready, everything
else goes to its log, and SIGTERM stops it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import IO, Any

from logstore.common.clock import Clock
from replication.supervisor.log_files import last_error

NS_PER_S = 1_000_000_000
READY_LINE_BYTES = 1 << 16


# -- pauses ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RestartRule:
    """When a process that died is started again, and when no more."""

    first_s: float = 1.0
    longest_s: float = 30.0
    deaths: int = 5
    within_s: float = 60.0


class Restarts:
    """The deaths of one process. A life of ``within_s`` begins the count anew."""

    def __init__(self, rule: RestartRule) -> None:
        self._rule = rule
        self._deaths: list[int] = []
        self._row = 0

    def started(self) -> None:
        """Somebody asked for it: what was before does not count."""
        self._deaths.clear()
        self._row = 0

    def died(self, now_ns: int, started_ns: int) -> float | None:
        """The pause in seconds until the next start; None if there is none."""
        rule = self._rule
        window_ns = int(rule.within_s * NS_PER_S)
        if now_ns - started_ns >= window_ns:
            self._row = 0
        self._row += 1
        self._deaths = [at for at in self._deaths if now_ns - at < window_ns] + [now_ns]
        if len(self._deaths) >= rule.deaths:
            return None
        return float(min(rule.longest_s, rule.first_s * 2 ** min(self._row - 1, 30)))


# -- a process ------------------------------------------------------------------------------------


class ChildState(Enum):
    """The states of a process."""

    NEW = "new"  # never started
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"  # asked to end
    PAUSED = "paused"  # died; is started again when its pause is over
    STOPPED = "stopped"  # as it was asked to
    FAILED = "failed"  # died too often

    @property
    def is_alive(self) -> bool:
        return self in (ChildState.STARTING, ChildState.READY, ChildState.STOPPING)


@dataclass(frozen=True, slots=True)
class Launch:
    """How a process starts.

    Attributes:
        stdin: the pipe whose end ends it.
        kept: other descriptors that it keeps open.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    log: str
    stdin: int
    kept: tuple[int, ...] = ()


class Child:
    """A process that is started again when it dies. For one thread.

    Attributes:
        name: as ``broker 0``.
        ready: the fields of its last ready line.
        output_ended: it has closed standard output.
        due_ns: when a paused one is started.
        said: the last thing that went wrong.
    """

    def __init__(self, name: str, launch: Launch, clock: Clock, rule: RestartRule) -> None:
        self.name = name
        self.launch = launch
        self.state = ChildState.NEW
        self.ready: dict[str, Any] = {}
        self.due_ns = 0
        self.said = ""
        self.deaths = 0
        self._clock = clock
        self._restarts = Restarts(rule)
        self._process: subprocess.Popen[bytes] | None = None
        self._started_ns = 0
        self._log_start = 0
        self._line = b""
        self.output_ended = False
        self.end: int = -1
        """A descriptor that is readable when the process has ended; −1 where there is none."""

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def stdout(self) -> IO[bytes] | None:
        return None if self._process is None else self._process.stdout

    def start(self) -> bool:
        """Start it; False if the system refused, which counts as a death."""
        self._started_ns = self._clock.monotonic_ns()
        self._line, self.output_ended = b"", False
        self.ready = {}
        launch = self.launch
        try:
            with open(launch.log, "ab") as log:
                self._log_start = log.tell()
                self._process = subprocess.Popen(
                    launch.command,
                    stdin=launch.stdin,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=dict(launch.environment),
                    cwd="/",
                    pass_fds=launch.kept,
                    start_new_session=True,  # Ctrl-C in the terminal reaches the supervisor alone
                    bufsize=0,
                )
        except OSError as error:
            self.state = ChildState.STARTING
            self._has_died(f"could not start: {error}")
            return False
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        with suppress(AttributeError, OSError):  # older systems: the supervisor looks now and then
            self.end = os.pidfd_open(self._process.pid)
        self.state = ChildState.STARTING
        return True

    def start_anew(self) -> bool:
        """As ``start``, because somebody asked for it."""
        self._restarts.started()
        return self.start()

    def on_output(self) -> bool:
        """Take what stands in the pipe; True if it was the line that says ready."""
        stdout = self.stdout
        more = None if stdout is None else stdout.read(READY_LINE_BYTES)
        self.output_ended = more == b""
        if not more or self.state is not ChildState.STARTING:
            return False
        *lines, rest = (self._line + more).split(b"\n")
        self._line = rest[:READY_LINE_BYTES]
        for line in lines:
            with suppress(ValueError, RecursionError):
                found = json.loads(line)
                if isinstance(found, dict):
                    self.ready, self.state = found, ChildState.READY
                    return True
        return False

    def has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def on_end(self) -> None:
        """It has ended: what it is now depends on what was asked of it."""
        process = self._process
        assert process is not None
        self._process = None
        assert process.stdout is not None
        process.stdout.close()
        if self.end >= 0:
            os.close(self.end)
            self.end = -1
        if self.state is ChildState.STOPPING:
            self.state = ChildState.STOPPED
            return
        code = process.returncode
        how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        why = last_error(self.launch.log, self._log_start) if code > 0 else ""
        self._has_died(f"{how}: {why}" if why else how)

    def _has_died(self, why: str) -> None:
        self.deaths += 1
        self.said = why
        now = self._clock.monotonic_ns()
        pause_s = self._restarts.died(now, self._started_ns)
        if pause_s is None:
            self.state = ChildState.FAILED
        else:
            self.state = ChildState.PAUSED
            self.due_ns = now + int(pause_s * NS_PER_S)

    def stop(self) -> None:
        """Ask it to end, once: a second signal would end it at once. One that does not run is
        stopped."""
        if self.state.is_alive and self._process is not None:
            if self.state is not ChildState.STOPPING:
                self.state = ChildState.STOPPING
                self._process.terminate()
        elif self.state is not ChildState.FAILED:
            self.state = ChildState.STOPPED

    def kill(self) -> None:
        """End it and its group at once."""
        if not self.has_ended() and self._process is not None:
            if self.state.is_alive:
                self.state = ChildState.STOPPING
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self, timeout_s: float) -> None:
        """Until it has ended; it is killed then."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
            self.kill()
            self._process.wait()
            self.on_end()


Say = Callable[[str, Mapping[str, Any]], None]
"""Tells a person a line, and a program its fields."""
