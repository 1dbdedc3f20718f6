"""Sessions of the served tree: they outlive connections, and end after silence."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass

from replication.coordination.served.connection import TreeConnection
from replication.coordination.tree import SessionChange

MIN_TICKS, MAX_TICKS = 2, 20  # ZooKeeper's bounds of a session's timeout


@dataclass(slots=True)
class TreeSession:
    """
    Attributes:
        deadline_ms: when it ends unless something is heard of it, on the monotonic clock.
        connection: the one that has it now.
    """

    session_id: int
    timeout_ms: int
    password: bytes
    deadline_ms: int
    connection: TreeConnection | None = None

    def touch(self, now_ms: int) -> None:
        self.deadline_ms = now_ms + self.timeout_ms


class Sessions:
    """The living ones, by their ids. Those of the journal get a whole timeout anew."""

    def __init__(self, found: Iterable[SessionChange], tick_ms: int, now_ms: int) -> None:
        self._tick_ms = tick_ms
        self._looked_ms = now_ms
        self._sessions: dict[int, TreeSession] = {}
        for each in found:
            self.begin(each, now_ms)

    def __len__(self) -> int:
        return len(self._sessions)

    def negotiate(self, timeout_ms: int) -> int:
        return min(max(timeout_ms, MIN_TICKS * self._tick_ms), MAX_TICKS * self._tick_ms)

    def begin(self, begun: SessionChange, now_ms: int) -> TreeSession:
        session_id, timeout_ms, password = begun
        session = TreeSession(session_id, timeout_ms, password, now_ms + timeout_ms)
        self._sessions[session_id] = session
        return session

    def get(self, session_id: int) -> TreeSession | None:
        return self._sessions.get(session_id)

    def find(self, session_id: int, password: bytes) -> TreeSession | None:
        """None if it has ended, or it is somebody else who asks."""
        session = self._sessions.get(session_id)
        if session is None or not hmac.compare_digest(session.password, password):
            return None
        return session

    def end(self, session: TreeSession) -> bool:
        """False if it has ended already."""
        return self._sessions.pop(session.session_id, None) is not None

    def take_silent(self, now_ms: int) -> list[TreeSession]:
        """Those whose timeout is over; they end. Call it once in half a tick.

        A process that stood still has heard nobody, so what it was late is given to everybody.
        """
        late_ms = now_ms - self._looked_ms - self._tick_ms
        self._looked_ms = now_ms
        if late_ms > 0:
            for session in self._sessions.values():
                session.deadline_ms += late_ms
        silent = [each for each in self._sessions.values() if each.deadline_ms < now_ms]
        for session in silent:
            self.end(session)
        return silent
