"""Who waits for changes of which nodes, as ZooKeeper's ``WatchManager``."""

from __future__ import annotations

from enum import IntFlag
from typing import Generic, TypeVar

from replication.coordination.base import ancestors_of

W = TypeVar("W")  # hashable

WATCH_BYTES = 100  # about what a watch takes beside its path


class WatchMode(IntFlag):
    ONCE = 1  # ends with the first event
    PERSISTENT = 2
    RECURSIVE = 4  # persistent, and for all nodes below too


ONCE, RECURSIVE = WatchMode.ONCE.value, WatchMode.RECURSIVE.value  # plain: 10 times as fast


class Watches(Generic[W]):
    """Watchers by path; for one thread at a time. A watcher may have several modes at a path."""

    def __init__(self) -> None:
        self._modes: dict[str, dict[W, int]] = {}
        self._paths: dict[W, set[str]] = {}
        self._bytes: dict[W, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._paths.values()))

    def bytes_of(self, watcher: W) -> int:
        """About what the watches of one watcher take."""
        return self._bytes.get(watcher, 0)

    def add(self, watcher: W, path: str, mode: WatchMode) -> None:
        modes = self._modes.setdefault(path, {})
        if watcher not in modes:
            self._paths.setdefault(watcher, set()).add(path)
            self._bytes[watcher] = self.bytes_of(watcher) + WATCH_BYTES + len(path)
        modes[watcher] = modes.get(watcher, 0) | mode.value

    def remove(self, watcher: W, path: str) -> bool:
        """Remove all watches of a path. False if there are none."""
        if watcher not in self._modes.get(path, {}):
            return False
        modes, paths = self._modes[path], self._paths[watcher]
        del modes[watcher]
        paths.discard(path)
        self._bytes[watcher] -= WATCH_BYTES + len(path)
        if not modes:
            del self._modes[path]
        if not paths:
            del self._paths[watcher], self._bytes[watcher]
        return True

    def forget(self, watcher: W) -> None:
        for path in list(self._paths.get(watcher, ())):
            self.remove(watcher, path)

    def fire(self, path: str) -> dict[W, None]:
        """Who hears of a change of ``path``: its watchers first, each once, in the order in which
        they came. Watches for one event end."""
        found = self.fire_own(path)
        for place in ancestors_of(path):
            for watcher, modes in self._modes.get(place, {}).items():
                if modes & RECURSIVE:
                    found[watcher] = None
        return found

    def fire_own(self, path: str) -> dict[W, None]:
        """``fire`` without those who watch recursively."""
        found: dict[W, None] = {}
        for watcher, modes in list(self._modes.get(path, {}).items()):
            if modes != RECURSIVE:
                found[watcher] = None
            if modes == ONCE:
                self.remove(watcher, path)
            elif modes & ONCE:
                self._modes[path][watcher] = modes & ~ONCE
        return found
