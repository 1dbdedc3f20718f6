"""The storage seam: a place to switch, and where the order of syncs and names is asserted."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import TracebackType

from logstore.format.index_entry import TXN_ENTRY
from logstore.storage.memory import DirNode, DiskOperation, FileNode, FileOrDir, MemoryFile
from logstore.testing import FaultyStorage, ManualClock
from logstore.testing.faulty import SimulatedCrash
from logstore.testing.faulty_nodes import FaultyDirNode, FaultyFileNode
from tests.interleavings.scheduler import Found, Scheduler

DIRECTORY = "/logs/t-0"
LOG_NAME = re.compile(r"\d{20}\.log")
HELD_LOG_NAME = re.compile(r"\d{20}\.log(\.swap)?")

# Small files that a new leadership or a new topic writes before its first record, by design under
# the lock of the writer; they are not written for a record.
WRITTEN_UNDER_LOCK = (
    "leader-epoch-checkpoint",
    "leader-epoch-checkpoint.tmp",
    "partition.metadata",
    "partition.metadata.tmp",
)


class _Guard:
    """In the place of the storage's lock: a step before each call and one after it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._depth = 0

    def __enter__(self) -> None:
        if not self._depth:
            self._scheduler.point("storage")
        self._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if not self._depth and not isinstance(error, Found):
            self._scheduler.point("storage done")


class Disk(FaultyStorage):
    """A faulty disk that asserts orders as they happen.

    Attributes:
        removing: what the running actor does with segments: ``retention``, ``truncation`` or
            nothing; says which segment must go first.
        before_aborted: called before an entry of a transaction index is written.
        strict: the design without waits for the disk under the lock of the writer.
    """

    def __init__(self, scheduler: Scheduler, clock: ManualClock, *, strict: bool) -> None:
        super().__init__(clock=lambda: clock.wall_ms() / 1000)
        self._scheduler = scheduler
        self.strict = strict
        self.checking = False
        self.removing: Callable[[], str] = lambda: ""
        self.before_aborted: Callable[[], None] = lambda: None
        self.make_dir(DIRECTORY)
        for parent in ("/", "/logs"):
            self.sync_dir(parent)
        self.guard = _Guard(scheduler)  # type: ignore[assignment]

    # -- where the order is asserted -----------------------------------------------------------

    def before(self, operation: str, path: str) -> None:
        if self.checking:
            if operation == DiskOperation.SYNC_DIR:
                self._check_sync(operation, path)
            elif operation == DiskOperation.RENAME:
                self._check_removal(path)
        super().before(operation, path)

    def change(self, operation: str, path: str) -> None:
        try:
            super().change(operation, path)
        except SimulatedCrash:
            self._scheduler.stopping = True  # nobody does another step
            raise

    def on_sync(self, file: MemoryFile) -> None:
        if self.checking:
            self._check_sync(DiskOperation.SYNC, file.path)
        super().on_sync(file)

    def on_write(self, file: MemoryFile, position: int, data: memoryview) -> None:
        if self.checking and file.path.endswith(".txnindex"):
            self.before_aborted()
        super().on_write(file, position, data)

    def link(self, parent: DirNode, name: str, node: FileOrDir) -> None:
        self._check_roll(parent, name)
        super().link(parent, name, node)

    def move(self, parent: DirNode, name: str, target: DirNode, to: str, node: FileOrDir) -> None:
        self._check_roll(target, to)
        super().move(parent, name, target, to, node)

    def _check_sync(self, operation: str, path: str) -> None:
        if not self.strict or path.rpartition("/")[2] in WRITTEN_UNDER_LOCK:
            return
        for lock in self._scheduler.current.held:
            if getattr(getattr(lock, "rank", None), "name", "") == "WRITE":
                raise Found("sync under the write lock", f"{operation} of {path}")

    def _check_removal(self, path: str) -> None:
        name = path.rpartition("/")[2]
        removing = self.removing()
        if not removing or not LOG_NAME.fullmatch(name):
            return
        entries = self._dir(DIRECTORY).entries
        present = sorted(other for other in entries if LOG_NAME.fullmatch(other))
        first = present[0] if removing == "retention" else present[-1]
        if name != first:
            raise Found("order of removal", f"{removing} removes {name} before {first}")

    def _check_roll(self, directory: DirNode, name: str) -> None:
        """The segment before is on the disk, name and all, before the final name appears.

        The name may be the one that it had before it was final: a restart goes on with that.
        """
        if not self.checking or not LOG_NAME.fullmatch(name) or name in directory.entries:
            return
        before = [n for n in directory.entries if HELD_LOG_NAME.fullmatch(n) and n < name]
        if not before:
            return
        last = max(before)
        node = directory.entries[last]
        assert isinstance(node, FaultyFileNode)
        assert isinstance(directory, FaultyDirNode)
        if not _is_durable(node):
            raise Found(
                "order of a roll", f"{name} appears before the content of {last} is durable"
            )
        if not any(node is directory.durable.get(held) for held in (last, last + ".swap")):
            raise Found("order of a roll", f"{name} appears before the name {last} is durable")

    # -- what a power cut would leave ----------------------------------------------------------

    def durable_log_bytes(self) -> bytes:
        """All segments' bytes that surely survive, under a name that survives."""
        directory = self._dir(DIRECTORY)
        assert isinstance(directory, FaultyDirNode)
        return b"".join(
            bytes(node.durable)
            for name, node in sorted(directory.durable.items())
            if HELD_LOG_NAME.fullmatch(name) and isinstance(node, FaultyFileNode)
        )

    def is_indexed(self, marker: int) -> bool:
        """Whether some transaction index holds the abort with its marker at this offset."""
        return any(
            entry[3] == marker
            for name, node in self._dir(DIRECTORY).entries.items()
            if name.endswith(".txnindex") and isinstance(node, FileNode)
            for entry in TXN_ENTRY.iter_unpack(
                bytes(node.data[: node.size // TXN_ENTRY.size * TXN_ENTRY.size])
            )
        )

    @property
    def has_failed(self) -> bool:
        """Some call failed on request."""
        return bool(self.struck)


def _is_durable(node: FaultyFileNode) -> bool:
    return bytes(node.durable) == bytes(node.data[: node.size])


__all__ = ["DIRECTORY", "Disk", "FileNode"]
