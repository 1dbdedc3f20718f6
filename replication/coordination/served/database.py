"""The tree of a served directory, whose writes apply at once and become durable together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from logstore.common.clock import Clock
from logstore.storage.base import Storage
from logstore.storage.paths import absolute_path
from replication.coordination.base import Delete, Op, OpResult
from replication.coordination.embedded import LOCK_NAME, make_durable_dir
from replication.coordination.journal import Journal, read_tree
from replication.coordination.tree import (
    Change,
    SessionChange,
    Stat,
    TreeChange,
    TreeSnapshot,
    TreeTransaction,
)

PASSWORD_BYTES = 16


class TreeBatch(NamedTuple):
    """Transactions that share a sync, or a snapshot that has them in it."""

    zxid: int
    transactions: list[TreeTransaction]
    snapshot: TreeSnapshot | None


class TreeDatabase:
    """For one thread, but for ``write``, which another calls for one batch after the other.

    What is in the tree may be ahead of the disk, so nobody may learn of it before ``write`` has
    returned for a batch with its zxid.

    Raises:
        CorruptStoreError, LogDirLockedError, OSError: as ``CoordinatorStore``.
    """

    def __init__(self, directory: str, storage: Storage, clock: Clock) -> None:
        self.directory = directory = absolute_path(storage, directory)
        self._clock = clock
        self._written: list[TreeTransaction] = []
        make_durable_dir(storage, directory)
        self._dir_lock = storage.lock(f"{directory}/{LOCK_NAME}")
        try:
            self.tree = tree = read_tree(storage, directory)
            # Those of sessions that the journal does not know, of a process that had the tree
            # inside, end with it.
            orphans = [
                Delete(path)
                for path in tree.ephemerals()
                if tree.entries[path].node.ephemeral_owner not in tree.sessions
            ]
            tree.execute(orphans, 0, clock.wall_ms())
            self._journal = Journal(storage, directory, tree)
        except BaseException:
            self._dir_lock.release()
            raise
        self.durable_zxid = tree.zxid

    def execute(
        self, ops: Sequence[Op], session_id: int, stats: list[Stat | None]
    ) -> tuple[list[OpResult], list[TreeChange]]:
        """As ``Tree.execute``."""
        now_ms = self._clock.wall_ms()
        results, changes = self.tree.execute(ops, session_id, now_ms, stats)
        if changes:
            self._written.append(TreeTransaction(self.tree.zxid, now_ms, changes))
        return results, changes

    def begin_session(self, timeout_ms: int) -> SessionChange:
        begun = self.tree.begin_session(timeout_ms, os.urandom(PASSWORD_BYTES))
        self._written.append(TreeTransaction(self.tree.zxid, self._clock.wall_ms(), [begun]))
        return begun

    def end_session(self, session_id: int) -> list[Change]:
        now_ms = self._clock.wall_ms()
        changes = self.tree.end_session(session_id, now_ms)
        self._written.append(TreeTransaction(self.tree.zxid, now_ms, changes))
        return changes

    @property
    def is_durable(self) -> bool:
        return self.durable_zxid == self.tree.zxid

    def take_batch(self) -> TreeBatch:
        """All that was written since the last batch, which ``write`` has made durable."""
        transactions, self._written = self._written, []
        outweighed = self._journal.is_outweighed
        return TreeBatch(self.tree.zxid, transactions, self.tree.snapshot() if outweighed else None)

    def write(self, batch: TreeBatch) -> None:
        """
        Raises:
            OSError: the disk failed; what of the batch is on it is unknown.
        """
        if batch.snapshot is not None:
            self._journal.replace(batch.snapshot)
        elif batch.transactions:
            self._journal.append(batch.transactions)

    def close(self) -> None:
        self._journal.close()
        self._dir_lock.release()
