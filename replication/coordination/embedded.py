"""The coordinator inside the process: a durable tree, and sessions of brokers.

Every write is on the disk before it is answered (see ``journal``). It costs a sync, which the
operations of one ``transact`` share. Sessions do not outlive the process: opening the store again
ends earlier ones and removes their ephemeral nodes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from logstore.common.clock import Clock
from logstore.common.forks import Ownership, free_in_child
from logstore.storage.base import Storage
from logstore.storage.paths import absolute_path
from replication.coordination.base import (
    ANY_VERSION,
    Create,
    Delete,
    Deliver,
    EventKind,
    Node,
    Op,
    OpResult,
    SessionState,
    Set,
    StateListener,
    WatchEvent,
    WatchListener,
    ancestors_of,
    check_op,
    check_path,
    parent_of,
)
from replication.coordination.errors import CoordinatorUnavailableError, SessionExpiredError
from replication.coordination.journal import Journal, read_tree
from replication.coordination.notifications import Notifications
from replication.coordination.tree import Tree, TreeChange

LOCK_NAME = ".lock"


class CoordinatorStore:
    """The tree, its disk and its sessions; ``connect`` begins one. Safe for many threads.

    Args:
        directory: its own directory, created if missing, locked while the store is open.
        session_timeout_ms: ``expire_sessions`` ends sessions that were not used for longer.
        deliver: runs notifications; by default at once, in the thread that made the change, after
            its locks were released, one at a time and in order.
    Raises:
        CorruptStoreError: the file is damaged before its end.
        LogDirLockedError: the directory is in use.
        OSError: the disk failed.
    """

    def __init__(
        self,
        directory: str,
        storage: Storage,
        clock: Clock,
        session_timeout_ms: int = 18_000,
        deliver: Deliver | None = None,
    ) -> None:
        self.directory = directory = absolute_path(storage, directory)
        self.session_timeout_ms = session_timeout_ms
        self._ownership = Ownership(directory)
        self._clock = clock
        self._lock = free_in_child(threading.Lock())
        self._told = Notifications(self._lock, deliver)
        self._down = ""  # the reason why calls fail
        self._sessions: dict[int, EmbeddedCoordinator] = {}
        self._watches: dict[str, list[tuple[EmbeddedCoordinator, WatchListener]]] = {}
        _make_durable_dir(storage, directory)
        self._dir_lock = storage.lock(f"{directory}/{LOCK_NAME}")
        try:
            self._tree = read_tree(storage, directory)
            self._tree.execute(_deletions(self._tree, None), 0)  # sessions of an earlier process
            self._journal = Journal(storage, directory, self._tree)
        except BaseException:
            self._dir_lock.release()
            raise

    def connect(self) -> EmbeddedCoordinator:
        """Begin a session. Its id is the number of the transaction that records it.

        Raises:
            CoordinatorUnavailableError: the store is closed or its disk failed.
            ForkedError: another process opened it; as every change does.
        """
        self._ownership.check()
        with self._lock:
            self._check_up()
            self._tree.zxid += 1
            self._log(())
            session = EmbeddedCoordinator(self, self._tree.zxid, self._now_ms())
            self._sessions[session.session_id] = session
            return session

    def expire(self, session: EmbeddedCoordinator) -> None:
        """End a session as its timeout does. It is notified, at the latest when it resumes.

        Raises:
            CoordinatorUnavailableError: as ``connect``.
        """
        with self._changing():
            self._check_up()
            self._end(session)

    def expire_sessions(self, now_ms: int) -> None:
        """End the sessions that were silent for too long at ``now_ms`` of the monotonic clock.

        Call it a few times in each ``session_timeout_ms``. Raises as ``expire``.
        """
        with self._changing():
            self._check_up()
            for session in list(self._sessions.values()):
                if now_ms - session.last_heard_ms > self.session_timeout_ms:
                    self._end(session)

    @property
    def journal_size(self) -> int:
        """Bytes in the file."""
        return self._journal.size

    def close(self) -> None:
        """Release the directory, and suspend remaining sessions. Idempotent."""
        if self._ownership.lost is not None:
            self._journal.close()
            return
        with self._changing():
            self._stop("the store was closed")

    def crash(self) -> None:
        """Stop without notifications, as the death of the process does. For tests."""
        with self._lock:
            self._stop("the store crashed")
            self._told.clear()

    # --- for sessions

    def _call(self, session: EmbeddedCoordinator, ops: Sequence[Op]) -> list[OpResult]:
        for op in ops:
            check_op(op)
        with self._changing():
            self._check(session)
            return self._commit(ops, session.session_id)

    def _create(self, session: EmbeddedCoordinator, op: Create, parents: bool) -> tuple[str, int]:
        """The node, and its missing parents in the same step."""
        check_op(op)
        with self._changing():
            self._check(session)
            above = ancestors_of(parent_of(op.path)) if parents else []
            missing = [Create(path) for path in reversed(above) if self._tree.get(path) is None]
            path = self._commit([*missing, op], session.session_id)[-1]
            assert isinstance(path, str)
            return path, self._tree.zxid

    def _get(self, session: EmbeddedCoordinator, path: str) -> Node | None:
        check_path(path)
        with self._lock:
            self._check(session)
            return self._tree.get(path)

    def _children(self, session: EmbeddedCoordinator, path: str) -> list[str]:
        check_path(path)
        with self._lock:
            self._check(session)
            return self._tree.children(path)

    def _touch(self, session: EmbeddedCoordinator) -> None:
        with self._lock:
            self._check(session)

    def _watch(self, session: EmbeddedCoordinator, path: str, listener: WatchListener) -> None:
        check_path(path)
        with self._lock:
            self._check(session)
            self._watches.setdefault(path, []).append((session, listener))

    def _close(self, session: EmbeddedCoordinator) -> None:
        if self._ownership.lost is not None:  # the session is the parent's
            return
        with self._changing():
            if session.closed:
                return
            session.closed = True
            # A session that cannot reach the store just goes silent.
            if not (session.suspended or self._down):
                with suppress(CoordinatorUnavailableError):
                    self._end(session)

    def _suspend(self, session: EmbeddedCoordinator) -> None:
        with self._changing():
            if session.state is SessionState.CONNECTED:
                session.suspended = True
                self._tell(session, SessionState.SUSPENDED)

    def _resume(self, session: EmbeddedCoordinator) -> None:
        with self._changing():
            if not session.suspended:
                return
            session.suspended = False
            if session.closed or self._down:
                return
            if session.over:
                self._tell(session, SessionState.EXPIRED)
                return
            session.last_heard_ms = self._now_ms()
            self._tell(session, SessionState.CONNECTED)
            for path, watchers in self._watches.items():
                for watcher, listener in watchers:
                    if watcher is session:
                        self._told.add(partial(listener, WatchEvent(EventKind.MISSED, path)))

    def _state(self, session: EmbeddedCoordinator) -> SessionState:
        if session.closed or (session.over and not session.suspended):
            return SessionState.EXPIRED
        if session.suspended or self._down:
            return SessionState.SUSPENDED
        return SessionState.CONNECTED

    # --- under the lock

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    def _check_up(self) -> None:
        if self._down:
            raise CoordinatorUnavailableError(f"{self.directory}: {self._down}")

    def _check(self, session: EmbeddedCoordinator) -> None:
        state = self._state(session)
        if state is not SessionState.CONNECTED:
            if state is SessionState.EXPIRED:
                raise SessionExpiredError(f"session {session.session_id} is over")
            self._check_up()
            raise CoordinatorUnavailableError(f"session {session.session_id} is cut off")
        session.last_heard_ms = self._now_ms()

    def _commit(self, ops: Sequence[Op], session_id: int) -> list[OpResult]:
        results, changes = self._tree.execute(ops, session_id)
        if changes:
            self._log(changes)
            self._announce(changes)
        return results

    def _log(self, changes: Sequence[TreeChange]) -> None:
        """Make the tree's last transaction durable."""
        try:
            self._journal.append(self._tree.zxid, changes)
            if self._journal.wants_compaction():
                self._journal.compact(self._tree)
        except OSError as error:
            # The tree is ahead of the disk, so no more answers come from it.
            self._stop(f"the journal failed: {error}")
            raise CoordinatorUnavailableError(f"{self.directory}: {self._down}") from error
        except BaseException:
            self._stop("the journal failed")
            self._told.clear()  # the process dies here
            raise

    def _announce(self, changes: Sequence[TreeChange]) -> None:
        for change in changes:
            for path in ancestors_of(change.path):
                for session, listener in self._watches.get(path, ()):
                    if not session.suspended:
                        event = WatchEvent(change.kind, change.path)
                        self._told.add(partial(listener, event))

    def _tell(self, session: EmbeddedCoordinator, state: SessionState) -> None:
        for listener in session.state_listeners:
            self._told.add(partial(listener, state))

    def _end(self, session: EmbeddedCoordinator) -> None:
        if session.over:
            return
        self._commit(_deletions(self._tree, session.session_id), session.session_id)
        session.over = True
        del self._sessions[session.session_id]
        for path in list(self._watches):
            left = [entry for entry in self._watches[path] if entry[0] is not session]
            if left:
                self._watches[path] = left
            else:
                del self._watches[path]
        if not (session.suspended or session.closed):
            self._tell(session, SessionState.EXPIRED)

    def _stop(self, why: str) -> None:
        if self._down:
            return
        connected = [s for s in self._sessions.values() if s.state is SessionState.CONNECTED]
        self._down = why
        for session in connected:
            self._tell(session, SessionState.SUSPENDED)
        self._journal.close()
        self._dir_lock.release()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock, and send notifications after it is released."""
        self._ownership.check()
        try:
            with self._lock:
                yield
        finally:
            self._told.drain()


class EmbeddedCoordinator:
    """One session of a `CoordinatorStore`, with the methods of `Coordinator`.

    Every call keeps the session alive; ``heartbeat`` does nothing else.
    """

    def __init__(self, store: CoordinatorStore, session_id: int, now_ms: int) -> None:
        self.session_id = session_id
        self.last_heard_ms = now_ms
        self.suspended = False  # cut off from the store
        self.over = False  # as the store sees it
        self.closed = False  # closed by its owner
        self.state_listeners: list[StateListener] = []
        self._store = store

    @property
    def state(self) -> SessionState:
        return self._store._state(self)

    def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        parents: bool = False,
    ) -> tuple[str, int]:
        op = Create(path, data, ephemeral, sequential)
        return self._store._create(self, op, parents)

    def get(self, path: str) -> Node | None:
        return self._store._get(self, path)

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        (result,) = self._store._call(self, [Set(path, data, version)])
        assert isinstance(result, int)
        return result

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self._store._call(self, [Delete(path, version)])

    def children(self, path: str) -> list[str]:
        return self._store._children(self, path)

    def transact(self, ops: Sequence[Op]) -> list[OpResult]:
        return self._store._call(self, ops)

    def watch(self, path: str, listener: WatchListener) -> None:
        self._store._watch(self, path, listener)

    def on_state(self, listener: StateListener) -> None:
        self.state_listeners.append(listener)

    def heartbeat(self) -> None:
        """Keep the session alive. Raises as any call."""
        self._store._touch(self)

    def suspend(self) -> None:
        """Cut this session off: calls raise ``CoordinatorUnavailableError``, and its silence may
        end it."""
        self._store._suspend(self)

    def resume(self) -> None:
        """Let the session reach the store again. It may then learn that it has ended."""
        self._store._resume(self)

    def close(self) -> None:
        self._store._close(self)


def _deletions(tree: Tree, session_id: int | None) -> list[Op]:
    return [Delete(path) for path in tree.ephemerals(session_id)]


def _make_durable_dir(storage: Storage, directory: str) -> None:
    """Create directories level by level, each durably before the next.

    The deepest existing one may not be durable, because a killed process may have just created it.
    """
    path, missing = os.path.normpath(directory), []
    while path and storage.info(path) is None:
        missing.append(path)
        path = os.path.dirname(path)
    storage.sync_dir(os.path.dirname(path) or ".")
    for path in reversed(missing):
        storage.make_dir(path)
        storage.sync_dir(os.path.dirname(path) or ".")
