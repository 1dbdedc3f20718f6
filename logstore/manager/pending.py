"""``-delete`` directories that wait for their removal (F-229)."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from checkpoints.loggers import get_logger
from logstore.common.locks import Rank, make_lock
from logstore.storage.base import Storage

logger = get_logger(__name__)

RETRY_MS = 60_000


class PendingDeletes:
    """Directories to remove later. Thread-safe."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = make_lock(Rank.MANAGER)
        self._pending: list[tuple[int, str]] = []  # (due ms, path)

    def add(self, deletes: Iterable[tuple[int, str]]) -> None:
        """Add pairs of a wall-clock time in ms and the path of a directory."""
        deletes = list(deletes)
        with self._lock:
            self._pending += deletes

    def purge(self, now_ms: int) -> int:
        """Remove what is due. Returns how many. A failed removal is tried again a minute later.

        First their names are durable: no power cut leaves part of a log under its former name.
        """
        with self._lock:
            due = [path for when, path in self._pending if when <= now_ms]
            self._pending = [entry for entry in self._pending if entry[0] > now_ms]
        removed = 0
        synced: set[str] = set()
        for path in due:
            parent = posixpath.dirname(path)
            try:
                if parent not in synced:
                    self._storage.sync_dir(parent)
                    synced.add(parent)
                self._storage.remove_tree(path)
                removed += 1
            except FileNotFoundError:
                continue
            except OSError as error:
                logger.warning("%s is not removed yet: %s", path, error)
                self.add([(now_ms + RETRY_MS, path)])
        return removed
