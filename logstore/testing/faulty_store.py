"""An object store that fails on demand: late, before or after the effect, or by a lie.

Over any other store, and deterministic: faults are planned by the kind of request, and strike one
after the other::

    store = FaultyObjectStore(MemoryObjectStore())
    store.plan("put", StoreFault.FAIL_AFTER)
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from enum import Enum

from logstore.common.types import Buffer
from logstore.tiers import (
    MemoryObjectStore,
    ObjectStore,
    StoredObject,
    StoreThrottledError,
    StoreUnavailableError,
)


class StoreFault(Enum):
    """What goes wrong with one request."""

    FAIL_BEFORE = "the request fails, without an effect"
    FAIL_AFTER = "it fails although it took effect"
    THROTTLE = "the store asks for fewer requests"
    FULL = "the store takes no more"
    LOSE = "a put is said to be done, and is not"
    TEAR = "a put is said to be done, and half of it is there"
    FLIP = "a put or a get has one other bit"
    SHORT = "a get brings fewer bytes than there are"
    OLD = "a get brings what was there before the last put"
    WAIT = "the request waits until ``release``"


class FaultyObjectStore:
    """``ObjectStore`` over another one, with faults.

    Attributes:
        requests: how many of each kind there were: ``put``, ``get``, ``list``, ``delete``.
        hidden: keys that listings do not show yet, though they are there.
        lingering: objects that listings still show, though they were deleted; ``late_lists`` adds
            to both.
        late_lists: whether what is put or deleted is listed only after ``settle``.
    """

    def __init__(self, store: ObjectStore | None = None) -> None:
        self.store = store or MemoryObjectStore()
        self.uri = self.store.uri
        self.requests: Counter[str] = Counter()
        self.late_lists = False
        self.hidden: set[str] = set()
        self.lingering: dict[str, StoredObject] = {}
        self._planned: dict[str, deque[StoreFault | None]] = {}
        self._before: dict[str, bytes] = {}
        self._released = threading.Event()

    @property
    def conditional(self) -> bool:
        return self.store.conditional

    def plan(self, request: str, *faults: StoreFault | None) -> None:
        """The next requests of a kind meet these faults, one each; ``None`` is a good one."""
        self._planned.setdefault(request, deque()).extend(faults)

    def release(self) -> None:
        """End all waits, those to come too."""
        self._released.set()

    def settle(self) -> None:
        """Listings show what is there."""
        self.hidden.clear()
        self.lingering.clear()

    def _fault(self, request: str, key: str) -> StoreFault | None:
        self.requests[request] += 1
        planned = self._planned.get(request)
        fault = planned.popleft() if planned else None
        if fault is StoreFault.WAIT:
            self._released.wait()
        elif fault is StoreFault.FAIL_BEFORE:
            raise StoreUnavailableError(key, "no answer", True, self.uri)
        elif fault is StoreFault.THROTTLE:
            raise StoreThrottledError(key, "slow down", False, self.uri)
        elif fault is StoreFault.FULL:
            raise StoreUnavailableError(key, "the store is full", False, self.uri)
        return fault

    def _after(self, fault: StoreFault | None, key: str) -> None:
        if fault is StoreFault.FAIL_AFTER:
            raise StoreUnavailableError(key, "the connection was cut", True, self.uri)

    def put(
        self, key: str, parts: Iterable[Buffer], size: int, *, only_if_absent: bool = False
    ) -> None:
        fault = self._fault("put", key)
        data = b"".join(bytes(part) for part in parts)
        if len(data) != size:
            raise ValueError(f"{key}: {len(data)} bytes were given for an object of {size}")
        was_there = [found for found in self.store.list(key) if found.key == key]
        if was_there:
            self._before[key] = self.store.get(key)
        if fault is StoreFault.LOSE:
            return
        if fault is StoreFault.TEAR:
            data = data[: size // 2]
        elif fault is StoreFault.FLIP:
            data = _flipped(data)
        self.store.put(key, [data], len(data), only_if_absent=only_if_absent)
        if self.late_lists and not was_there:
            self.hidden.add(key)
        self._after(fault, key)

    def get(self, key: str, start: int = 0, size: int = -1) -> bytes:
        fault = self._fault("get", key)
        data = self.store.get(key, start, size)
        if fault is StoreFault.OLD and key in self._before:
            old = self._before[key]
            data = old[start:] if size < 0 else old[start : start + size]
        elif fault is StoreFault.SHORT:
            data = data[:-1]
        elif fault is StoreFault.FLIP:
            data = _flipped(data)
        self._after(fault, key)
        return data

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        self._after(self._fault("list", prefix), prefix)
        found = {each.key: each for each in self.store.list(prefix)}
        shown = {key: each for key, each in found.items() if key not in self.hidden}
        late = {key: each for key, each in self.lingering.items() if key.startswith(prefix)}
        return iter(sorted({**late, **shown}.values()))

    def delete(self, keys: Collection[str]) -> None:
        fault = self._fault("delete", ", ".join(keys))
        if self.late_lists:
            for key in keys:
                self.lingering |= {o.key: o for o in self.store.list(key) if o.key == key}
        self.store.delete(keys)
        self._after(fault, ", ".join(keys))


def _flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :] if data else data


__all__ = ["FaultyObjectStore", "StoreFault"]
