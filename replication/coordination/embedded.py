"""The coordinator inside the process: a durable tree, and sessions of brokers.

Every write is on the disk before it is answered (see ``journal``). It costs a sync, which the
operations of one ``transact`` share. Sessions do not outlive the process: opening the store again
ends earlier ones, those of a served tree too, and removes their ephemeral nodes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from checkpoints.loggers import get_logger
from logstore.common.clock import Clock
from logstore.common.forks import Ownership, free_in_child
from logstore.storage.base import Storage
from logstore.storage.paths import absolute_path
from replication.coordination.base import (
    Coordinator,
    Create,
    Delete,
    Deliver,
    EventKind,
    Node,
    Op,
    OpResult,
    SessionState,
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
from replication.coordination.tree import Tree, TreeChange, TreeTransaction
from replication.coordination.watches import Watches, WatchMode

logger = get_logger(__name__)

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
        self._deliver = deliver or _call_listener
        self._notifications: list[Callable[[], None]] = []  # in the order of the changes
        self._draining = False
        self._down = ""  # the reason why calls fail
        self._sessions: dict[int, EmbeddedCoordinator] = {}
        self._watches: Watches[_Watch] = Watches()
        make_durable_dir(storage, directory)
        self._dir_lock = storage.lock(f"{directory}/{LOCK_NAME}")
        try:
            self._tree = read_tree(storage, directory)
            self._tree.sessions.clear()
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
                if now_ms - session.last_call_ms > self.session_timeout_ms:
                    self._end(session)

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
            self._notifications.clear()

    # --- under the lock

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    def _check_up(self) -> None:
        if self._down:
            raise CoordinatorUnavailableError(f"{self.directory}: {self._down}")

    def _commit(self, ops: Sequence[Op], session_id: int) -> list[OpResult]:
        results, changes = self._tree.execute(ops, session_id, self._clock.wall_ms())
        if changes:
            self._log(changes)
            self._announce(changes)
        return results

    def _log(self, changes: Sequence[TreeChange]) -> None:
        """Make the tree's last transaction durable."""
        try:
            tree, journal = self._tree, self._journal
            journal.append([TreeTransaction(tree.zxid, self._clock.wall_ms(), changes)])
            if journal.is_outweighed:
                journal.replace(tree.snapshot())
        except OSError as error:
            # The tree is ahead of the disk, so no more answers come from it.
            self._stop(f"the journal failed: {error}")
            raise CoordinatorUnavailableError(f"{self.directory}: {self._down}") from error
        except BaseException:
            self._stop("the journal failed")
            self._notifications.clear()  # the process dies here
            raise

    def _announce(self, changes: Sequence[TreeChange]) -> None:
        for change in changes:
            for watch in self._watches.fire(change.path):
                if not watch.session.suspended:
                    event = WatchEvent(change.kind, change.path)
                    self._notifications.append(partial(watch.listener, event))

    def _notify(self, session: EmbeddedCoordinator, state: SessionState) -> None:
        for listener in session.state_listeners:
            self._notifications.append(partial(listener, state))

    def _end(self, session: EmbeddedCoordinator) -> None:
        if session.over:
            return
        self._commit(_deletions(self._tree, session.session_id), session.session_id)
        session.over = True
        del self._sessions[session.session_id]
        for watch in session.watches:
            self._watches.forget(watch)
        if not (session.suspended or session.closed):
            self._notify(session, SessionState.EXPIRED)

    def _stop(self, why: str) -> None:
        if self._down:
            return
        connected = [s for s in self._sessions.values() if s.state is SessionState.CONNECTED]
        self._down = why
        for session in connected:
            self._notify(session, SessionState.SUSPENDED)
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
            self._drain()

    def _drain(self) -> None:
        """Run all notifications, without the lock.

        The running drain also runs those that a listener or another thread adds, so listeners
        neither nest nor overtake each other.
        """
        while True:
            with self._lock:
                if self._draining or not self._notifications:
                    return
                self._draining = True
                batch, self._notifications = self._notifications, []
            try:
                for notification in batch:
                    self._deliver(notification)
            finally:
                self._draining = False


class _Watch:
    """A listener, which may be there twice."""

    def __init__(self, session: EmbeddedCoordinator, path: str, listener: WatchListener) -> None:
        self.session, self.path, self.listener = session, path, listener


class EmbeddedCoordinator(Coordinator):
    """One session of a `CoordinatorStore`. Every call keeps it alive."""

    def __init__(self, store: CoordinatorStore, session_id: int, now_ms: int) -> None:
        self._session_id = session_id
        self.last_call_ms = now_ms
        self.suspended = False  # cut off from the store
        self.over = False  # as the store sees it
        self.closed = False  # closed by its owner
        self.state_listeners: list[StateListener] = []
        self.watches: list[_Watch] = []
        self._store = store

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def state(self) -> SessionState:
        if self.closed or (self.over and not self.suspended):
            return SessionState.EXPIRED
        if self.suspended or self._store._down:
            return SessionState.SUSPENDED
        return SessionState.CONNECTED

    def _check(self) -> None:
        """Refuse a call that does not reach the store, whose lock is held."""
        state = self.state
        if state is SessionState.EXPIRED:
            raise SessionExpiredError(f"session {self.session_id} is over")
        if state is SessionState.SUSPENDED:
            self._store._check_up()
            raise CoordinatorUnavailableError(f"session {self.session_id} is cut off")
        self.last_call_ms = self._store._now_ms()

    def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        parents: bool = False,
    ) -> tuple[str, int]:
        """The node, and its missing parents in the same step."""
        op = Create(path, data, ephemeral, sequential)
        check_op(op)
        store = self._store
        with store._changing():
            self._check()
            above = ancestors_of(parent_of(path)) if parents else []
            missing = [Create(each) for each in reversed(above) if store._tree.get(each) is None]
            real_path = store._commit([*missing, op], self.session_id)[-1]
            return str(real_path), store._tree.zxid

    def get(self, path: str) -> Node | None:
        check_path(path)
        with self._store._lock:
            self._check()
            return self._store._tree.get(path)

    def children(self, path: str) -> list[str]:
        check_path(path)
        with self._store._lock:
            self._check()
            return self._store._tree.children(path)

    def transact(self, ops: Sequence[Op]) -> list[OpResult]:
        for op in ops:
            check_op(op)
        with self._store._changing():
            self._check()
            return self._store._commit(ops, self.session_id)

    def watch(self, path: str, listener: WatchListener) -> None:
        check_path(path)
        with self._store._lock:
            self._check()
            self.watches.append(_Watch(self, path, listener))
            self._store._watches.add(self.watches[-1], path, WatchMode.RECURSIVE)

    def on_state(self, listener: StateListener) -> None:
        self.state_listeners.append(listener)

    def heartbeat(self) -> None:
        """Do nothing but keep the session alive. Raises as any call."""
        with self._store._lock:
            self._check()

    def suspend(self) -> None:
        """Cut this session off: calls raise ``CoordinatorUnavailableError``, and its silence may
        end it."""
        with self._store._changing():
            if self.state is SessionState.CONNECTED:
                self.suspended = True
                self._store._notify(self, SessionState.SUSPENDED)

    def resume(self) -> None:
        """Let the session reach the store again. It may then learn that it has ended."""
        store = self._store
        with store._changing():
            if not self.suspended:
                return
            self.suspended = False
            if self.closed or store._down:
                return
            if self.over:
                store._notify(self, SessionState.EXPIRED)
                return
            self.last_call_ms = store._now_ms()
            store._notify(self, SessionState.CONNECTED)
            for watch in self.watches:
                missed = WatchEvent(EventKind.MISSED, watch.path)
                store._notifications.append(partial(watch.listener, missed))

    def close(self) -> None:
        store = self._store
        if store._ownership.lost is not None:  # the session is the parent's
            return
        with store._changing():
            if self.closed:
                return
            self.closed = True
            # A session that cannot reach the store just goes silent.
            if not (self.suspended or store._down):
                with suppress(CoordinatorUnavailableError):
                    store._end(self)


def _call_listener(notification: Callable[[], None]) -> None:
    try:
        notification()
    except Exception:
        logger.exception("a listener failed")


def _deletions(tree: Tree, session_id: int | None) -> list[Op]:
    return [Delete(path) for path in tree.ephemerals(session_id)]


def make_durable_dir(storage: Storage, directory: str) -> None:
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
