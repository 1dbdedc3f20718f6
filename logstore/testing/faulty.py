"""A disk in memory that loses what was not synced and fails on demand.

What is durable
    Each file has a *current* content, which reads see, and a *durable* one, which ``File.sync``
    brings up to date. Each directory has current and durable names; creations, renames and
    removals wait for ``sync_dir``. Syncing a file does not make its name durable.

What a crash may do (`FaultyStorage.crash`)
    ``all_kept``  the process is killed: the page cache survives, and what was dirty stays dirty.
    ``all_lost``  power fails and nothing unsynced had reached the disk.
    ``random``    power fails at some moment of write-back. Of the waiting changes of names either
                  a prefix in the order in which they were made is kept, as a journal does, or any
                  subset; a rename is one change and is never half done. Of each unsynced file
                  the size is any that it had or passed since its last sync, filled up with zeros
                  where data did not follow the size; a truncation may be lost although later
                  writes were kept; each 512-byte sector is old or new, and one may be torn.

What a failed sync does
    The pages count as clean and are not on the disk (as on ext4, XFS and Btrfs): reads still see
    them, and a later sync that succeeds does not write them.

What a misdirected write does
    A sync succeeds, but the device put a part of it elsewhere: where it belongs the disk still
    holds what it held, and another place holds it instead. The cache shows neither.

Choices come from the ``random.Random`` that the caller passes; nothing depends on the time, on the
order of a set or on a hash, so a seed repeats a run exactly.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import random
import re
from collections import Counter
from collections.abc import Callable
from typing import Literal, TypeAlias

from logstore.storage.memory import DirNode, DiskOperation, FileOrDir, MemoryFile, MemoryStorage
from logstore.testing.faulty_nodes import (
    SECTOR_SIZE,
    FaultyDirNode,
    FaultyFileNode,
    NameChange,
)

FOREVER = 1 << 62
CrashMode: TypeAlias = Literal["all_lost", "all_kept", "random"]


class SimulatedCrash(BaseException):
    """The machine went down at this operation; it was not carried out.

    Not an ``Exception``: code under test that handles errors must not survive a power cut. Until
    ``FaultyStorage.crash`` every further operation raises it too, so that ``finally`` blocks on
    the way out change nothing.
    """


class Fault:
    """One injected fault. ``struck`` counts how often it really hit."""

    __slots__ = ("_after", "_pattern", "_times", "error", "operation", "partial", "struck")

    def __init__(
        self,
        operation: str,
        path_glob: str,
        after: int,
        error: int,
        times: int,
        partial: int | random.Random,
    ) -> None:
        self.operation = operation
        self.error = error
        self.partial = partial
        self.struck = 0
        self._pattern = re.compile(fnmatch.translate(path_glob))
        self._after = after
        self._times = times

    def strikes(self, operation: str, path: str) -> bool:
        if operation != self.operation or self.struck >= self._times:
            return False
        if self._pattern.match(path) is None:
            return False
        if self._after > 0:
            self._after -= 1
            return False
        self.struck += 1
        return True

    def kept(self, size: int) -> int:
        """Return how many bytes of a failed write reach the file."""
        if isinstance(self.partial, random.Random):
            return self.partial.randint(0, size)
        return min(self.partial, size)


class FaultyStorage(MemoryStorage):
    """See the module. One machine: ``crash`` takes it down and brings it up again.

    Args:
        capacity: bytes of file data; beyond it writes, ``reserve`` and truncations that extend are
            ENOSPC. Sparse parts, such as a mapping that was not reserved, take no room.
        clock: seconds, for modification times; stands still by default.

    Attributes:
        operations: how many changes were requested so far, syncs included; ``crash_after`` counts
        them.
        struck: what really happened: an operation that failed on request by its name,
            ``disk_full``, ``read_flip``, ``flip``, ``crash``, and what crashes in mode
            ``random`` did: ``lost_name``, ``lost_truncation`` (a file longer than it was),
            ``lost_size`` (shorter), ``lost_sector``, ``zero_fill`` (a lost sector past the old
            end), ``torn_sector``; also ``misdirected``, ``wipe``, and ``slow`` for an operation
            that took time.
        latency: how many ms an ``DiskOperation`` on a path takes; 0 by default.
        busy_ms: the sum of all latencies. The owner of the clock lets that time pass.
        stopped: a planned crash has happened; nothing works until ``crash``.
    """

    def __init__(
        self, *, capacity: int | None = None, clock: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.capacity = capacity
        self.operations = 0
        self.struck: Counter[str] = Counter()
        self.latency: Callable[[str, str], int] | None = None
        self.busy_ms = 0
        self._faults: list[Fault] = []
        self._read_flips: list[tuple[Fault, random.Random]] = []
        self._misdirections: list[tuple[Fault, random.Random]] = []
        self._crash_at = FOREVER
        self.stopped = False
        self._used = 0
        self._change_number = 0
        super().__init__(clock=clock)

    # --- control

    def fail(
        self,
        operation: str,
        path_glob: str = "*",
        *,
        after: int = 0,
        error: int = errno.EIO,
        times: int = 1,
        partial: int | random.Random = 0,
    ) -> Fault:
        """Let an operation fail.

        Args:
            operation: the value of an ``DiskOperation``.
            path_glob: of the path as the caller gave it; ``*`` matches ``/`` too.
            after: how many matching operations succeed first.
            times: how many fail then; ``FOREVER`` for all.
            partial: how many bytes of a failed write reach the file, or a generator that chooses.
        """
        fault = Fault(DiskOperation(operation), path_glob, after, error, times, partial)
        self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """Remove all faults and the planned crash. Capacity and latency stay."""
        self._faults.clear()
        self._read_flips.clear()
        self._misdirections.clear()
        self._crash_at = FOREVER

    def crash_after(self, count: int) -> None:
        """Raise ``SimulatedCrash`` in place of the ``count``-th change from now (from 1)."""
        self._crash_at = self.operations + count

    def flip(self, path: str, position: int, mask: int = 1) -> None:
        """Damage a byte at rest: on the disk, and in the cache."""
        with self.guard:
            node = self._file(path)
            node.data[position] ^= mask
            if position < len(node.durable):
                node.durable[position] ^= mask
            self.struck["flip"] += 1

    def flip_reads(self, path_glob: str, rng: random.Random, *, times: int = 1) -> Fault:
        """Return reads with one bit wrong; the file is not changed."""
        fault = Fault(DiskOperation.READ, path_glob, 0, 0, times, 0)
        self._read_flips.append((fault, rng))
        return fault

    def misdirect(
        self, path_glob: str, rng: random.Random, *, after: int = 0, times: int = 1
    ) -> Fault:
        """Let the device write a part of a sync to a wrong place.

        Args:
            path_glob: matches the file that is synced. Only a sync with something to write counts.
            rng: chooses the part, and the wrong place, in this file or another one on the disk.
        """
        fault = Fault(DiskOperation.SYNC, path_glob, after, 0, times, 0)
        self._misdirections.append((fault, rng))
        return fault

    def wipe(self, path: str = "/") -> None:
        """Replace the disk that holds directory ``path`` by an empty one.

        Call it while the machine is down, that is, after `crash`.
        """
        with self.guard:
            directory = _faulty_dir(self._dir(path))
            directory.wipe()
            self._used = sum(node.allocated for node in self._files())
            self.struck["wipe"] += 1

    def evict(self, path: str) -> None:
        """Drop clean pages of a file from the cache, so that data of a failed sync is lost."""
        with self.guard:
            self._file(path).evict()

    def durable_bytes(self, path: str) -> bytes:
        """The bytes of a file that would surely survive a power cut now.

        Its name may still be lost.
        """
        with self.guard:
            return bytes(self._file(path).durable)

    def crash(self, rng: random.Random | None = None, mode: CrashMode = "random") -> None:
        """Take the machine down and up again. The module says what is kept.

        Open files and mappings fail with ESTALE afterwards, locks are released and planned crashes
        are forgotten. Faults stay.

        Args:
            rng: makes the choices; required in mode ``random``.
        """
        with self.guard:
            self.struck["crash"] += 1
            if mode == "all_kept":
                for node in self._files():
                    node.survive()
            elif mode == "all_lost":
                self._keep_changes([])
                for node in self._files():
                    node.restart(node.durable)
            else:
                if rng is None:
                    raise ValueError("mode 'random' needs an rng")
                self._keep_changes(self._choose_changes(rng))
                for node in self._files():
                    node.restart(node.crash_image(rng, self.struck))
            self._used = sum(node.allocated for node in self._files())
            self.generation += 1
            self.locks.clear()
            self._crash_at = FOREVER
            self.stopped = False

    # --- hooks

    def new_file(self) -> FaultyFileNode:
        return FaultyFileNode(self._now_ms())

    def new_dir(self) -> FaultyDirNode:
        return FaultyDirNode(self._now_ms())

    def before(self, operation: str, path: str) -> None:
        if self._faults or self.stopped or self.latency is not None:
            fault = self._begin(operation, path)
            if fault is not None:
                raise _error(fault.error, path)

    def _begin(self, operation: str, path: str) -> Fault | None:
        """Begin an operation with its latency. Returns the fault that hits it."""
        if self.stopped:
            raise SimulatedCrash
        if self.latency is not None:
            taken = self.latency(operation, path)
            if taken > 0:
                self.busy_ms += taken
                self.struck["slow"] += 1
        return self._strike(operation, path) if self._faults else None

    def change(self, operation: str, path: str) -> None:
        self.operations += 1
        if self.operations >= self._crash_at:
            self.stopped = True
            raise SimulatedCrash(f"at {operation} of {path}, change number {self.operations}")

    def link(self, parent: DirNode, name: str, node: FileOrDir) -> None:
        super().link(parent, name, node)
        self._record(parent, name, node)

    def unlink(self, parent: DirNode, name: str) -> None:
        self._unlinked(parent.entries[name])
        super().unlink(parent, name)
        self._record(parent, name, None)

    def move(self, parent: DirNode, name: str, target: DirNode, to: str, node: FileOrDir) -> None:
        replaced = target.entries.get(to)
        if replaced is node:
            return
        if replaced is not None:
            self._unlinked(replaced)
        super().move(parent, name, target, to, node)
        change = self._record(target, to, node)
        if target is not parent:
            _faulty_dir(parent).pending.append(change)  # a sync of either makes it durable

    def on_read(self, file: MemoryFile, position: int, size: int) -> bytes:
        self.before(DiskOperation.READ, file.path)
        data = super().on_read(file, position, size)
        for fault, rng in self._read_flips:
            if data and fault.strikes(DiskOperation.READ, file.path):
                self.struck["read_flip"] += 1
                damaged = bytearray(data)
                damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                data = bytes(damaged)
        return data

    def on_write(self, file: MemoryFile, position: int, data: memoryview) -> None:
        fault = self._begin(DiskOperation.WRITE, file.path)
        self.change(DiskOperation.WRITE, file.path)
        if fault is not None:
            self._write(file, position, data[: fault.kept(len(data))])
            raise _error(fault.error, file.path)
        fitting = len(data)
        if self.capacity is not None:
            node = _faulty_file(file)
            fitting = max(0, min(len(data), node.allocated + self.free_bytes(file.path) - position))
        self._write(file, position, data[:fitting])
        if fitting < len(data):
            raise self._disk_full(file.path)

    def _write(self, file: MemoryFile, position: int, data: memoryview) -> None:
        if data:
            node = _faulty_file(file)
            size_before = node.size
            super().on_write(file, position, data)
            node.touched(min(position, size_before), position + len(data))
            self._allocate(node, position + len(data))

    def on_truncate(self, file: MemoryFile, size: int) -> None:
        self.before(DiskOperation.TRUNCATE, file.path)
        node = _faulty_file(file)
        self.change(DiskOperation.TRUNCATE, file.path)
        if size - node.allocated > self.free_bytes(file.path):
            raise self._disk_full(file.path)
        self._resize(file, size)
        if size < node.allocated:
            if not node.unlinked:
                self._used -= node.allocated - size
            node.allocated = size
        self._allocate(node, size)

    def _resize(self, file: MemoryFile, size: int) -> None:
        node = _faulty_file(file)
        size_before = node.size
        if size < size_before:
            node.absorb()  # mapped stores up to here count as made before
        super().on_truncate(file, size)
        node.touched(min(size, size_before), size)

    def on_map(self, file: MemoryFile, size: int) -> None:
        self.before(DiskOperation.MAP, file.path)
        node = _faulty_file(file)
        node.begin_mapping()
        if size > node.size:
            self.change(DiskOperation.MAP, file.path)
            self._resize(file, size)  # sparse: takes no space until it is reserved

    def on_reserve(self, file: MemoryFile, end: int) -> None:
        with self.guard:
            self.before(DiskOperation.RESERVE, file.path)
            node = _faulty_file(file)
            if end - node.allocated > self.free_bytes(file.path):
                raise self._disk_full(file.path)
            self._allocate(node, end)
            node.mapped_end = max(node.mapped_end, end)

    def on_unmap(self, file: MemoryFile) -> None:
        _faulty_file(file).absorb()

    def on_sync(self, file: MemoryFile) -> None:
        fault = self._begin(DiskOperation.SYNC, file.path)
        self.change(DiskOperation.SYNC, file.path)
        node = _faulty_file(file)
        if fault is not None:
            node.sync_failed()
            raise _error(fault.error, file.path)
        if self._misdirections:
            self._misdirect(file.path, node)
        else:
            node.synced()

    def on_sync_dir(self, path: str, node: DirNode) -> None:
        self.change(DiskOperation.SYNC_DIR, path)
        directory = _faulty_dir(node)
        for change in directory.pending:
            change.apply()
        directory.pending.clear()

    # --- parts

    def _misdirect(self, path: str, node: FaultyFileNode) -> None:
        """Sync the file, perhaps with one of its changed ranges written elsewhere."""
        node.absorb()
        ranges = [(start, min(end, node.size)) for start, end in node.dirty if start < node.size]
        rng = None
        if ranges:
            rng = next(
                (r for fault, r in self._misdirections if fault.strikes(DiskOperation.SYNC, path)),
                None,
            )
        if rng is None:
            node.synced()
            return
        self.struck["misdirected"] += 1
        start, end = rng.choice(ranges)
        data = bytes(node.data[start:end])
        node.synced(without=(start, end))
        target = rng.choice([other for other in self._files() if other.durable] or [node])
        sector = rng.randrange(len(target.durable) // SECTOR_SIZE + 1) * SECTOR_SIZE
        position = sector + start % SECTOR_SIZE
        if target is not node or position != start:  # otherwise it went to a free part of the disk
            target.overwritten(position, data)

    def _strike(self, operation: str, path: str) -> Fault | None:
        for fault in self._faults:
            if fault.strikes(operation, path):
                self.struck[operation] += 1
                return fault
        return None

    def _record(self, parent: DirNode, name: str, node: FileOrDir | None) -> NameChange:
        self._change_number += 1
        directory = _faulty_dir(parent)
        change = NameChange(self._change_number, directory, name, node)
        directory.pending.append(change)
        return change

    def _choose_changes(self, rng: random.Random) -> list[NameChange]:
        changes = {
            change.number: change
            for directory in _faulty_dir(self.root).below(durable_too=True)
            for change in directory.pending
            if not change.applied
        }
        ordered = [changes[number] for number in sorted(changes)]
        if rng.random() < 0.5:
            kept = ordered[: rng.randint(0, len(ordered))]
        else:
            kept = [change for change in ordered if rng.random() < 0.5]
        self.struck["lost_name"] += len(ordered) - len(kept)
        return kept

    def _keep_changes(self, kept: list[NameChange]) -> None:
        for change in kept:
            change.apply()
        for directory in _faulty_dir(self.root).below(durable_too=True):
            directory.entries = dict(directory.durable)
            directory.pending.clear()

    def _files(self) -> list[FaultyFileNode]:
        return [
            node
            for directory in _faulty_dir(self.root).below()
            for node in directory.entries.values()
            if isinstance(node, FaultyFileNode)
        ]

    def _file(self, path: str) -> FaultyFileNode:
        node = self._node(path)
        if not isinstance(node, FaultyFileNode):
            raise _error(errno.EISDIR, path)
        return node

    def free_bytes(self, path: str) -> int:
        return FOREVER if self.capacity is None else max(0, self.capacity - self._used)

    def _allocate(self, node: FaultyFileNode, end: int) -> None:
        if end > node.allocated:
            if not node.unlinked:
                self._used += end - node.allocated
            node.allocated = end

    def _unlinked(self, node: FileOrDir) -> None:
        if isinstance(node, FaultyFileNode):
            node.unlinked = True
            self._used -= node.allocated

    def _disk_full(self, path: str) -> OSError:
        self.struck["disk_full"] += 1
        return _error(errno.ENOSPC, path)


def _faulty_file(file: MemoryFile) -> FaultyFileNode:
    assert isinstance(file.node, FaultyFileNode)
    return file.node


def _faulty_dir(node: DirNode) -> FaultyDirNode:
    assert isinstance(node, FaultyDirNode)
    return node


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
