"""What tests of backups use again and again: a source that grows, and stores that misbehave."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

from logstore.common.config import LogConfig
from logstore.common.types import Buffer
from logstore.log import run_inline
from logstore.manager import LogManager, ManagerOwner
from logstore.testing import ManualClock
from logstore.tiers import MemoryObjectStore, ObjectStore, StoredObject
from tests.unit.verify.verify_logs import fill

SMALL = {"segment.bytes": "1800", "index.interval.bytes": "500", "retention.ms": "-1"}
SOME = {"orders": 2, "__consumer_offsets": 1}


class GrowingSource:
    """A log directory of one broker, which is closed whenever nothing is written."""

    def __init__(self, path: Path, *, cluster_id: str | None = None, node_id: int = 3) -> None:
        self.path = path
        self.clock = ManualClock()
        self._owner = ManagerOwner(cluster_id, node_id, run_later=run_inline)
        self._seed = 0

    def open(self) -> LogManager:
        return LogManager([self.path], LogConfig(), clock=self.clock, owner=self._owner)

    def write(
        self, batches: int = 40, topics: dict[str, int] = SOME, *, transactions: bool = False
    ) -> None:
        """Append batches to each partition; topics that are missing are created first."""
        with self.open() as manager:
            for topic, partitions in topics.items():
                if topic not in manager.topics():
                    manager.create_topic(topic, partitions, SMALL)
                for partition in range(partitions):
                    self._seed += 1
                    rng = random.Random(self._seed)
                    fill(manager.get(topic, partition), self.clock, batches, rng, transactions)

    def copy(self, path: Path) -> GrowingSource:
        """The same at another place, which grows by itself."""
        shutil.copytree(self.path, path)
        found = GrowingSource(path, cluster_id=self._owner.cluster_id)
        found.clock.advance(self.clock.wall_ms() - found.clock.wall_ms())
        found._seed = self._seed
        return found

    def logs(self, partition: str = "orders-0") -> list[Path]:
        return sorted((self.path / partition).glob("*.log"))


def flip(path: Path, position: int | None = None) -> None:
    """Flip a bit of a file, in its middle unless it is said where, as a medium may."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if position is None else position] ^= 1
    path.write_bytes(data)


class KilledError(BaseException):
    """Stands for the end of the process: nothing that catches errors catches it."""


Rig = Callable[[str, str], None]
"""Is called with the operation and the key before it has an effect, and may raise."""


def quiet(operation: str, key: str) -> None:
    """A rig that does nothing."""


class RiggedStore:
    """A store whose calls go by ``before`` and ``after``, and whose listing by ``listing``.

    ``calls`` has each operation with its key, in order.
    """

    def __init__(self, store: ObjectStore | None = None) -> None:
        self.store = store or MemoryObjectStore()
        self.uri = self.store.uri
        self.calls: list[tuple[str, str]] = []
        self.before: Rig = quiet
        self.after: Rig = quiet
        self.listing: Callable[[StoredObject], bool] = lambda found: True
        self.lost: Callable[[str], bool] = lambda key: False

    @property
    def conditional(self) -> bool:
        return self.store.conditional

    def put(
        self, key: str, parts: Iterable[Buffer], size: int, *, only_if_absent: bool = False
    ) -> None:
        self._begin("put", key)
        if self.lost(key):
            list(parts)
        else:
            self.store.put(key, parts, size, only_if_absent=only_if_absent)
        self.after("put", key)

    def get(self, key: str, start: int = 0, size: int = -1) -> bytes:
        self._begin("get", key)
        data = self.store.get(key, start, size)
        self.after("get", key)
        return data

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        self._begin("list", prefix)
        return filter(self.listing, self.store.list(prefix))

    def delete(self, keys: Collection[str]) -> None:
        for key in keys:
            self._begin("delete", key)
        self.store.delete(keys)

    def _begin(self, operation: str, key: str) -> None:
        self.calls.append((operation, key))
        self.before(operation, key)

    def heal(self) -> None:
        self.before = self.after = quiet

    def copy(self) -> RiggedStore:
        """The same objects in another store, without rigs."""
        found = RiggedStore()
        for key in self.objects():
            found.replace(key, self.store.get(key))
        return found

    def count(self, operation: str) -> int:
        return sum(each == operation for each, _ in self.calls)

    def objects(self, suffix: str = "") -> Sequence[str]:
        return [found.key for found in self.store.list() if found.key.endswith(suffix)]

    def replace(self, key: str, data: bytes) -> None:
        self.store.put(key, (data,), len(data))

    def flip(self, key: str, position: int = -10) -> None:
        """Flip a bit of an object, as a medium may."""
        data = bytearray(self.store.get(key))
        data[position] ^= 1
        self.replace(key, bytes(data))


def pauses() -> tuple[list[float], Callable[[float], None]]:
    """What was waited for, and a wait that takes no time."""
    waited: list[float] = []
    return waited, waited.append
