"""Ensures that a partition is open only once, in this process or another.

The lock is that of the log directory around it, which Kafka and ``LogManager`` take too. Several
partitions of one directory may be open in one process, and then share its lock.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from logstore.common.errors import LogDirLockedError
from logstore.common.forks import in_child
from logstore.common.locks import Rank, make_lock
from logstore.common.shield import shielded
from logstore.log.core.core import medium_error
from logstore.storage.base import DirLock, Storage
from logstore.storage.local import LocalStorage

LOCK = ".lock"

_Key = tuple[object, str]


@dataclass(slots=True)
class _Shared:
    """The lock of one log directory, and the partitions that are open under it."""

    lock: DirLock
    partitions: set[str] = field(default_factory=set)


_guard = make_lock(Rank.MANAGER)
_shared: dict[_Key, _Shared] = {}


@in_child
def _forget_locks() -> None:
    """A child owns none of its parent's locks (``logstore.storage.local``)."""
    _shared.clear()
    _dropped.clear()


@contextmanager
def all_holds() -> Iterator[None]:
    """Inside the block this process neither takes nor releases a partition."""
    with _guard:
        yield


class PartitionHold:
    """One open partition of this process. A second release does nothing."""

    __slots__ = ("_key", "_partition", "_shared")

    def __init__(self, key: _Key, partition: str, shared: _Shared) -> None:
        self._key = key
        self._partition = partition
        self._shared: _Shared | None = shared

    def release(self) -> None:
        with _guard:
            shared, self._shared = self._shared, None
            if shared is not None:
                _release(self._key, self._partition, shared)
            _release_dropped()

    def __del__(self) -> None:
        # A log that was never closed. This may run under any lock, so the next call releases it.
        if self._shared is not None:
            _dropped.append((self._key, self._partition, self._shared))


_dropped: deque[tuple[_Key, str, _Shared]] = deque()


def _release_dropped() -> None:
    while _dropped:
        _release(*_dropped.popleft())


def _release(key: _Key, partition: str, shared: _Shared) -> None:
    shared.partitions.discard(partition)
    if not shared.partitions and _shared.get(key) is shared:
        del _shared[key]
        shared.lock.release()


@shielded
def hold_partition(storage: Storage, directory: str) -> PartitionHold:
    """Take the partition in ``directory``; its log directory is created when missing.

    Raises:
        LogDirLockedError: the partition is open already, or another owner has its log directory.
        StorageFailedError: the disk refused.
        ResourceBusyError: descriptors are short.
    """
    parent = parent_of(directory)
    try:
        if storage.info(parent) is None:
            storage.make_dir(parent)
        partition = storage.real_path(directory)
        key = (_domain(storage), storage.real_path(parent))
        with _guard:
            _release_dropped()
            shared = _shared.get(key)
            if shared is not None and not shared.lock.held:  # released by a simulated crash
                del _shared[key]
                shared = None
            for (domain, _), other in _shared.items():
                if domain == key[0] and partition in other.partitions and other.lock.held:
                    raise LogDirLockedError(directory, f"this process (pid {os.getpid()})")
            if shared is None:
                shared = _Shared(storage.lock(os.path.join(parent, LOCK)))
                _shared[key] = shared
            shared.partitions.add(partition)
    except OSError as error:
        raise medium_error(parent, "lock", error) from error
    return PartitionHold(key, partition, shared)


def parent_of(directory: str) -> str:
    return os.path.dirname(os.path.normpath(directory)) or "."


def _domain(storage: Storage) -> object:
    """An identity for storages that have the same files under the same paths."""
    return LocalStorage if isinstance(storage, LocalStorage) else storage
