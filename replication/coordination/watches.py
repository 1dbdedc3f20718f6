"""Who waits for changes of which nodes, as ZooKeeper's ``WatchManager``."""

from __future__ import annotations

from collections.abc import Hashable
from enum import IntFlag
from typing import Generic, TypeVar

from replication.coordination.base import ancestors_of

W = TypeVar("W", bound=Hashable)


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

    def __len__(self) -> int:
        return sum(map(len, self._paths.values()))

    def add(self, watcher: W, path: str, mode: WatchMode) -> bool:
        """Let a watcher hear of ``path``. False if it has a watch of that path already."""
        modes = self._modes.setdefault(path, {})
        before = modes.get(watcher, 0)
        modes[watcher] = before | mode.value
        self._paths.setdefault(watcher, set()).add(path)
        return not before

    def remove(self, watcher: W, path: str) -> bool:
        """Remove all watches of a path. False if there are none."""
        if watcher not in self._modes.get(path, {}):
            return False
        modes, paths = self._modes[path], self._paths[watcher]
        del modes[watcher]
        paths.discard(path)
        if not modes:
            del self._modes[path]
        if not paths:
            del self._paths[watcher]
        return True

    def forget(self, watcher: W) -> None:
        for path in list(self._paths.get(watcher, ())):
            self.remove(watcher, path)

    def fire(self, path: str) -> dict[W, None]:
        """Who hears of a change of ``path``: its watchers first, each once, in the order in which
        they came. Watches for one event end."""
        found: dict[W, None] = {}
        for place in ancestors_of(path):
            for watcher, modes in list(self._modes.get(place, {}).items()):
                if modes & RECURSIVE:
                    found[watcher] = None
                if place != path:
                    continue
                found[watcher] = None
                if modes == ONCE:
                    self.remove(watcher, path)
                else:
                    self._modes[path][watcher] = modes & ~ONCE
        return found
