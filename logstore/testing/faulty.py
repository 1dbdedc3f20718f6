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

Choices come from the ``random.Random`` that the caller passes; nothing depends on the time, on the
order of a set or on a hash, so a seed repeats a run exactly.
"""

from __future__ import annotations

import errno
import fnmatch
import math
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

from logstore.storage.memory import (
    LIST,
    MAKE_DIR,
    MAP,
    OPEN,
    READ,
    REMOVE,
    RENAME,
    RESERVE,
    SYNC,
    SYNC_DIR,
    TRUNCATE,
    WRITE,
    DirNode,
    FileNode,
    MemoryFile,
    MemoryStorage,
    Node,
)

SECTOR_SIZE = 512
FOREVER = 1 << 62
OPERATIONS = frozenset(
    {LIST, MAKE_DIR, MAP, OPEN, READ, REMOVE, RENAME, RESERVE, SYNC, SYNC_DIR, TRUNCATE, WRITE}
)

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
        """How many bytes of a failed write reach the file."""
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
        operations: changes asked of the disk so far, syncs included; ``crash_after`` counts them.
        struck: what really happened: an operation that failed on request by its name,
            ``disk_full``, ``read_flip``, ``flip``, ``crash``, and what crashes in mode
            ``random`` did: ``lost_name``, ``lost_truncation`` (a file longer than it was),
            ``lost_size`` (shorter), ``lost_sector``, ``zero_fill`` (a lost sector past the old
            end), ``torn_sector``.
    """

    def __init__(
        self, *, capacity: int | None = None, clock: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.capacity = capacity
        self.operations = 0
        self.struck: Counter[str] = Counter()
        self._faults: list[Fault] = []
        self._read_flips: list[tuple[Fault, random.Random]] = []
        self._crash_at = FOREVER
        self._down = False
        self._used = 0
        self._change_number = 0
        super().__init__(clock=clock)

    # --- what a test asks for

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
        """Make an operation fail.

        Args:
            operation: one of ``OPERATIONS``.
            path_glob: of the path as the caller gave it; ``*`` matches ``/`` too.
            after: how many matching operations succeed before.
            times: how many fail then, such as ``FOREVER``.
            partial: of a write, how many bytes reach the file; or who chooses.
        """
        if operation not in OPERATIONS:
            raise ValueError(f"no operation {operation!r}")
        fault = Fault(operation, path_glob, after, error, times, partial)
        self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """No more faults and no planned crash; the capacity stays."""
        self._faults.clear()
        self._read_flips.clear()
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
        fault = Fault(READ, path_glob, 0, 0, times, 0)
        self._read_flips.append((fault, rng))
        return fault

    def evict(self, path: str) -> None:
        """Drop clean pages of a file from the cache: what a failed sync left out is gone now."""
        with self.guard:
            self._file(path).evict()

    def durable_bytes(self, path: str) -> bytes:
        """What a power cut now would surely leave of a file; its name may still be lost."""
        with self.guard:
            return bytes(self._file(path).durable)

    def crash(self, rng: random.Random | None = None, mode: CrashMode = "random") -> None:
        """Take the machine down and up again; see the module for what is kept.

        Open files and mappings answer ESTALE from now on, locks are free, planned crashes are
        forgotten. Faults stay.

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
            self._down = False

    # --- hooks

    def new_file(self) -> FaultyFileNode:
        return FaultyFileNode(self._now_ms())

    def new_dir(self) -> FaultyDirNode:
        return FaultyDirNode(self._now_ms())

    def before(self, operation: str, path: str) -> None:
        if self._down:
            raise SimulatedCrash
        fault = self._strike(operation, path) if self._faults else None
        if fault is not None:
            raise _error(fault.error, path)

    def change(self, operation: str, path: str) -> None:
        self.operations += 1
        if self.operations >= self._crash_at:
            self._down = True
            raise SimulatedCrash(f"at {operation} of {path}, change number {self.operations}")

    def link(self, parent: DirNode, name: str, node: Node) -> None:
        super().link(parent, name, node)
        self._record(parent, name, node)

    def unlink(self, parent: DirNode, name: str) -> None:
        self._unlinked(parent.entries[name])
        super().unlink(parent, name)
        self._record(parent, name, None)

    def move(self, parent: DirNode, name: str, target: DirNode, to: str, node: Node) -> None:
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
        self.before(READ, file.path)
        data = super().on_read(file, position, size)
        for fault, rng in self._read_flips:
            if data and fault.strikes(READ, file.path):
                self.struck["read_flip"] += 1
                damaged = bytearray(data)
                damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                data = bytes(damaged)
        return data

    def on_write(self, file: MemoryFile, position: int, data: memoryview) -> None:
        if self._down:
            raise SimulatedCrash
        fault = self._strike(WRITE, file.path) if self._faults else None
        self.change(WRITE, file.path)
        if fault is not None:
            self._write(file, position, data[: fault.kept(len(data))])
            raise _error(fault.error, file.path)
        fitting = len(data)
        if self.capacity is not None:
            node = _faulty_file(file)
            fitting = max(0, min(len(data), node.allocated + self._free() - position))
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
        self.before(TRUNCATE, file.path)
        node = _faulty_file(file)
        self.change(TRUNCATE, file.path)
        if size - node.allocated > self._free():
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
        self.before(MAP, file.path)
        node = _faulty_file(file)
        node.begin_mapping()
        if size > node.size:
            self.change(MAP, file.path)
            self._resize(file, size)  # sparse: takes no room until it is reserved

    def on_reserve(self, file: MemoryFile, end: int) -> None:
        with self.guard:
            self.before(RESERVE, file.path)
            node = _faulty_file(file)
            if end - node.allocated > self._free():
                raise self._disk_full(file.path)
            self._allocate(node, end)
            node.mapped_end = max(node.mapped_end, end)

    def on_unmap(self, file: MemoryFile) -> None:
        _faulty_file(file).absorb()

    def on_sync(self, file: MemoryFile) -> None:
        if self._down:
            raise SimulatedCrash
        fault = self._strike(SYNC, file.path) if self._faults else None
        self.change(SYNC, file.path)
        if fault is not None:
            _faulty_file(file).sync_failed()
            raise _error(fault.error, file.path)
        _faulty_file(file).synced()

    def on_sync_dir(self, path: str, node: DirNode) -> None:
        self.change(SYNC_DIR, path)
        directory = _faulty_dir(node)
        for change in directory.pending:
            change.apply()
        directory.pending.clear()

    # --- parts

    def _strike(self, operation: str, path: str) -> Fault | None:
        for fault in self._faults:
            if fault.strikes(operation, path):
                self.struck[operation] += 1
                return fault
        return None

    def _record(self, parent: DirNode, name: str, node: Node | None) -> _Change:
        self._change_number += 1
        directory = _faulty_dir(parent)
        change = _Change(self._change_number, directory, name, node)
        directory.pending.append(change)
        return change

    def _choose_changes(self, rng: random.Random) -> list[_Change]:
        changes = {
            change.number: change
            for directory in self._dirs(durable_too=True)
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

    def _keep_changes(self, kept: list[_Change]) -> None:
        for change in kept:
            change.apply()
        for directory in self._dirs(durable_too=True):
            directory.entries = dict(directory.durable)
            directory.pending.clear()

    def _dirs(self, durable_too: bool = False) -> Iterator[FaultyDirNode]:
        """Directories from the root on, in a fixed order; each once."""
        seen: set[int] = set()
        stack = [_faulty_dir(self.root)]
        while stack:
            directory = stack.pop()
            if id(directory) in seen:
                continue
            seen.add(id(directory))
            children = list(directory.entries.values())
            if durable_too:
                children.extend(directory.durable.values())
            stack.extend(child for child in children if isinstance(child, FaultyDirNode))
            yield directory

    def _files(self) -> list[FaultyFileNode]:
        return [
            node
            for directory in self._dirs()
            for node in directory.entries.values()
            if isinstance(node, FaultyFileNode)
        ]

    def _file(self, path: str) -> FaultyFileNode:
        node = self._node(path)
        if not isinstance(node, FaultyFileNode):
            raise _error(errno.EISDIR, path)
        return node

    def _free(self) -> int:
        return FOREVER if self.capacity is None else max(0, self.capacity - self._used)

    def _allocate(self, node: FaultyFileNode, end: int) -> None:
        if end > node.allocated:
            if not node.unlinked:
                self._used += end - node.allocated
            node.allocated = end

    def _unlinked(self, node: Node) -> None:
        if isinstance(node, FaultyFileNode):
            node.unlinked = True
            self._used -= node.allocated

    def _disk_full(self, path: str) -> OSError:
        self.struck["disk_full"] += 1
        return _error(errno.ENOSPC, path)


class FaultyFileNode(FileNode):
    """A file with two contents. Only ranges that changed are copied by a sync.

    ``dirty`` lists ``[start, end)`` changed since the last sync, and ``size_min`` and ``size_max``
    are the extreme sizes since then, ``size_tail_max`` the largest since the last cut. Stores
    through a mapping cannot be seen; `absorb` finds them by comparing the range that was reserved
    for them with what the last sync saw.
    """

    __slots__ = (
        "allocated", "clean", "dirty", "durable", "durable_at", "lost", "mapped_end", "size_max",
        "size_min", "size_tail_max", "unlinked",
    )  # fmt: skip

    def __init__(self, mtime_ms: int) -> None:
        super().__init__(mtime_ms)
        self.durable = bytearray()
        self.dirty: list[tuple[int, int]] = []
        self.lost: list[tuple[int, int]] = []  # in the cache only, and counted as clean
        self.clean: bytearray | None = None  # what a failed sync saw; else ``durable`` is that
        self.size_min = self.size_max = self.size_tail_max = 0
        self.mapped_end = 0
        self.allocated = 0
        self.unlinked = False
        self.durable_at: tuple[FaultyDirNode, str] | None = None

    def touched(self, start: int, end: int) -> None:
        """Bytes from ``start`` to ``end`` changed, or the size did."""
        if start >= end:  # a cut
            self.size_tail_max = self.size
        self.size_min = min(self.size_min, self.size)
        self.size_max = max(self.size_max, self.size)
        self.size_tail_max = max(self.size_tail_max, self.size)
        if start >= end:
            return
        if self.dirty and self.dirty[-1][0] <= start <= self.dirty[-1][1]:
            start, before = self.dirty.pop()
            end = max(end, before)
        self.dirty.append((start, end))

    def begin_mapping(self) -> None:
        self.mapped_end = max(self.mapped_end, self.size)

    def absorb(self) -> None:
        """Note what was stored through mappings since the last sync."""
        if not self.mapped_end:
            return
        seen = self.durable if self.clean is None else self.clean
        end = min(self.mapped_end, self.size)
        if self.data[:end] != seen[:end]:
            for start, stop in _differences(self.data, seen, end):
                self.touched(start, stop)
        if not self.mappings:
            self.mapped_end = 0

    def synced(self) -> None:
        self.absorb()
        _resize(self.durable, self.size)
        for start, end in self.dirty:
            self.durable[start:end] = self.data[start : min(end, self.size)]
        if self.clean is not None:
            self.clean = self.data[: self.size]
        self._settled()

    def sync_failed(self) -> None:
        self.absorb()
        self.lost.extend(self.dirty)
        self.clean = self.data[: self.size]
        self.dirty.clear()

    def _settled(self) -> None:
        self.dirty.clear()
        self.size_min = self.size_max = self.size_tail_max = self.size

    def evict(self) -> None:
        self.absorb()
        for start, end in self.lost:
            for position in range(start, min(end, self.size)):
                if not any(a <= position < b for a, b in self.dirty):
                    on_disk = position < len(self.durable)
                    self.data[position] = self.durable[position] if on_disk else 0
        self.lost.clear()
        self.clean = None

    def survive(self) -> None:
        """The process died and the cache lives on; stores through its mappings end here."""
        self.absorb()
        self.data = self.data[: self.size]
        self.mappings = self.mapped_end = 0

    def restart(self, image: bytearray) -> None:
        """The disk holds ``image``, and the cache is empty."""
        self.durable = bytearray(image)
        self.data = bytearray(image)
        self.size = len(image)
        self.lost.clear()
        self.clean = None
        self.mappings = self.mapped_end = 0
        self.allocated = min(self.allocated, self.size)
        self.unlinked = False
        self._settled()

    def crash_image(self, rng: random.Random, struck: Counter[str]) -> bytearray:
        """One of the contents that a power cut may leave."""
        self.absorb()
        if not self.dirty and self.size_min == self.size_max == len(self.durable):
            return self.durable
        base, size_max = self.durable, self.size_max
        cut = self.size_min < len(base) or self.size_tail_max < size_max
        if cut and rng.random() < 0.5:  # the cut reached the disk; what it cut reads as zeros
            base, size_max = base[: self.size_min], self.size_tail_max
        # The ends of the range matter most: all of the file, and nothing of what is new.
        sizes = [len(base), self.size, size_max]
        if len(base) < self.size:
            sizes.append(rng.randint(len(base), self.size))
        size = rng.choice(sizes)
        image = bytearray(base)
        _resize(image, size)
        if size != self.size:
            struck["lost_size" if size < self.size else "lost_truncation"] += 1
        self._write_back(image, len(base), rng, struck)
        return image

    def _write_back(
        self, image: bytearray, base_size: int, rng: random.Random, struck: Counter[str]
    ) -> None:
        """Bring some of the dirty sectors into ``image``."""
        # Some crashes keep nearly all and some nearly nothing; a fair coin for each sector of a
        # long file would give neither.
        likelihood = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        last: tuple[int, bytearray] | None = None
        for start, stop in _sectors(self.dirty, min(len(image), self.size)):
            if rng.random() < likelihood:
                last = start, image[start:stop]
                image[start:stop] = self.data[start:stop]
            else:
                struck["lost_sector"] += 1
                if start >= base_size:
                    struck["zero_fill"] += 1
        if last is not None and rng.random() < 0.25:
            start, old = last
            cut = rng.randrange(len(old))
            image[start + cut : start + len(old)] = old[cut:]
            struck["torn_sector"] += 1


class FaultyDirNode(DirNode):
    """A directory with two sets of names; ``pending`` leads from the durable to the current one."""

    __slots__ = ("durable", "durable_at", "durable_numbers", "pending")

    def __init__(self, mtime_ms: int) -> None:
        super().__init__(mtime_ms)
        self.durable: dict[str, FaultyFileNode | FaultyDirNode] = {}
        self.durable_numbers: dict[str, int] = {}  # name -> the change that it is as of
        self.pending: list[_Change] = []
        self.durable_at: tuple[FaultyDirNode, str] | None = None


class _Change:
    """A name of a directory now means ``node``, or nothing. Numbers give the order of changes."""

    __slots__ = ("applied", "directory", "name", "node", "number")

    def __init__(self, number: int, directory: FaultyDirNode, name: str, node: Node | None) -> None:
        assert node is None or isinstance(node, FaultyFileNode | FaultyDirNode)
        self.number, self.directory, self.name, self.node = number, directory, name, node
        self.applied = False

    def apply(self) -> None:
        """Make it durable. A node that had another durable name leaves it: that was the rename,
        and half of a rename is never durable."""
        if self.applied:
            return
        self.applied = True
        directory, name, node = self.directory, self.name, self.node
        if directory.durable_numbers.get(name, -1) > self.number:
            return  # a later change of this name is durable already
        directory.durable_numbers[name] = self.number
        replaced = directory.durable.pop(name, None)
        if replaced is not None:
            replaced.durable_at = None
        if node is None:
            return
        if node.durable_at is not None:
            old_directory, old_name = node.durable_at
            if old_directory.durable.get(old_name) is node:
                del old_directory.durable[old_name]
        directory.durable[name] = node
        node.durable_at = (directory, name)


def _faulty_file(file: MemoryFile) -> FaultyFileNode:
    assert isinstance(file.node, FaultyFileNode)
    return file.node


def _faulty_dir(node: DirNode) -> FaultyDirNode:
    assert isinstance(node, FaultyDirNode)
    return node


def _resize(data: bytearray, size: int) -> None:
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


def _sectors(ranges: list[tuple[int, int]], end: int) -> Iterator[tuple[int, int]]:
    """Dirty ranges cut at sector borders, without overlaps, in ascending order."""
    done = 0
    for start, stop in sorted(ranges):
        start, stop = max(start, done), min(stop, end)
        while start < stop:
            border = min(stop, start - start % SECTOR_SIZE + SECTOR_SIZE)
            yield start, border
            start = border
        done = max(done, stop)


def _differences(new: bytearray, old: bytearray, end: int) -> Iterator[tuple[int, int]]:
    """Per sector, the range from the first to the last byte that differs; missing bytes are 0."""
    for start in range(0, end, SECTOR_SIZE):
        stop = min(start + SECTOR_SIZE, end)
        ours, theirs = new[start:stop], old[start:stop]
        if ours == theirs:
            continue
        size = stop - start
        theirs.extend(bytes(size - len(theirs)))
        difference = int.from_bytes(ours, "big") ^ int.from_bytes(theirs, "big")
        if difference:
            first = size - math.ceil(difference.bit_length() / 8)
            last = size - ((difference & -difference).bit_length() - 1) // 8
            yield start + first, start + last


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
