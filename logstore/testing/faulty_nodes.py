"""The files and directories of a faulty disk: what is durable, and what is not."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator

from logstore.storage.memory import DirNode, FileNode, FileOrDir

SECTOR_SIZE = 512


class FaultyFileNode(FileNode):
    """A file with two contents. Only ranges that changed are copied by a sync.

    ``dirty`` lists ``[start, end)`` changed since the last sync, and ``size_min`` and ``size_max``
    are the extreme sizes since then, ``size_tail_max`` the largest since the last cut. Stores
    through a mapping cannot be seen; `absorb` finds them by comparing the range that was reserved
    for them with what the last sync saw.
    """

    __slots__ = (
        "allocated",
        "clean",
        "dirty",
        "durable",
        "durable_at",
        "lost",
        "mapped_end",
        "size_max",
        "size_min",
        "size_tail_max",
        "unlinked",
    )

    def __init__(self, mtime_ms: int) -> None:
        super().__init__(mtime_ms)
        self.durable = bytearray()
        self.dirty: list[tuple[int, int]] = []
        self.lost: list[tuple[int, int]] = []  # in the cache only, and counted as clean
        self.clean: bytearray | None = None  # the content at a failed sync, if not ``durable``
        self.size_min = self.size_max = self.size_tail_max = 0
        self.mapped_end = 0
        self.allocated = 0
        self.unlinked = False
        self.durable_at: tuple[FaultyDirNode, str] | None = None

    def touched(self, start: int, end: int) -> None:
        """Note that bytes from ``start`` to ``end`` or the size changed."""
        size, dirty = self.size, self.dirty
        if size < self.size_min:
            self.size_min = size
        elif size > self.size_max:
            self.size_max = size
        if start >= end:  # a cut
            self.size_tail_max = size
            return
        if size > self.size_tail_max:
            self.size_tail_max = size
        if dirty and dirty[-1][0] <= start <= dirty[-1][1]:
            start, before = dirty.pop()
            end = max(end, before)
        dirty.append((start, end))

    def begin_mapping(self) -> None:
        self.mapped_end = max(self.mapped_end, self.size)

    def absorb(self) -> None:
        """Find what was stored through mappings since the last sync."""
        if not self.mapped_end:
            return
        seen = self.durable if self.clean is None else self.clean
        end = min(self.mapped_end, self.size)
        if self.data[:end] != seen[:end]:
            for start, stop in _differences(self.data, seen, end):
                self.touched(start, stop)
        if not self.mappings:
            self.mapped_end = 0

    def synced(self, without: tuple[int, int] = (0, 0)) -> None:
        """Make everything durable except the range ``without``, which stays as it was."""
        self.absorb()
        _resize(self.durable, self.size)
        old = self.durable[slice(*without)]
        for start, end in self.dirty:
            self.durable[start:end] = self.data[start : min(end, self.size)]
        if old:
            self.durable[slice(*without)] = old
            self._apart(*without)
        if self.clean is not None:
            self.clean = self.data[: self.size]
        self._settled()

    def overwritten(self, position: int, data: bytes) -> None:
        """Put ``data`` on the disk from ``position`` on, up to the end of the file, but not in the
        cache.
        """
        self.absorb()
        end = min(position + len(data), len(self.durable))
        if position < end:
            self._apart(position, end)
            self.durable[position:end] = data[: end - position]

    def _apart(self, start: int, end: int) -> None:
        """Note that disk and cache now differ in clean pages."""
        if self.clean is None:
            self.clean = self.data[: self.size]
        self.lost.append((start, end))

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
        """Keep the cache after the process died. Its mappings store nothing from now on."""
        self.absorb()
        self.data = self.data[: self.size]
        self.mappings = self.mapped_end = 0

    def restart(self, image: bytearray) -> None:
        """Restart with ``image`` on the disk and an empty cache."""
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
        """Choose one of the contents that a power cut may leave."""
        self.absorb()
        if not self.dirty and self.size_min == self.size_max == len(self.durable):
            return self.durable
        base, size_max = self.durable, self.size_max
        cut = self.size_min < len(base) or self.size_tail_max < size_max
        if cut and rng.random() < 0.5:  # the cut reached the disk; what it cut reads as zeros
            base, size_max = base[: self.size_min], self.size_tail_max
        # The two extremes matter most: the whole file, and nothing of the new data.
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
        # Some crashes keep nearly everything and some nearly nothing. A fair coin for each sector
        # of a long file would give neither.
        likelihood = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        last: tuple[int, bytearray] | None = None
        for start, stop in sectors(self.dirty, min(len(image), self.size)):
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
    """A directory with two sets of names.

    ``pending`` turns the durable set into the current one.
    """

    __slots__ = ("durable", "durable_at", "durable_numbers", "pending")

    def __init__(self, mtime_ms: int) -> None:
        super().__init__(mtime_ms)
        self.durable: dict[str, FaultyFileNode | FaultyDirNode] = {}
        self.durable_numbers: dict[str, int] = {}  # name → the last change of it that is durable
        self.pending: list[NameChange] = []
        self.durable_at: tuple[FaultyDirNode, str] | None = None

    def wipe(self) -> None:
        """Remove all names below, now and after any crash."""
        for directory in list(self.below(durable_too=True)):
            directory.entries.clear()
            directory.durable.clear()
            directory.pending.clear()

    def below(self, *, durable_too: bool = False) -> Iterator[FaultyDirNode]:
        """This directory and all below it, each once, in a fixed order."""
        seen: set[int] = set()
        stack = [self]
        while stack:
            directory = stack.pop()
            if id(directory) in seen:
                continue
            seen.add(id(directory))
            children: list[FileOrDir] = list(directory.entries.values())
            if durable_too:
                children.extend(directory.durable.values())
            stack.extend(child for child in children if isinstance(child, FaultyDirNode))
            yield directory


class NameChange:
    """A name of a directory now means ``node``, or nothing. Numbers give the order of changes."""

    __slots__ = ("applied", "directory", "name", "node", "number")

    def __init__(
        self, number: int, directory: FaultyDirNode, name: str, node: FileOrDir | None
    ) -> None:
        assert node is None or isinstance(node, FaultyFileNode | FaultyDirNode)
        self.number, self.directory, self.name, self.node = number, directory, name, node
        self.applied = False

    def apply(self) -> None:
        """Make the change durable.

        A node with another durable name loses that name, because half of a rename is never durable.
        """
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


def _resize(data: bytearray, size: int) -> None:
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


def sectors(ranges: list[tuple[int, int]], end: int) -> Iterator[tuple[int, int]]:
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
