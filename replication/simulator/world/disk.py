"""The disk of one simulated machine, and a look at its bytes that disturbs nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator

from logstore.format.header import HEADER_SIZE
from logstore.storage.memory import DirNode, FileNode, MemoryFile
from logstore.testing.faulty import FOREVER, FaultyStorage
from logstore.testing.faulty_nodes import FaultyDirNode, FaultyFileNode


class SimDisk(FaultyStorage):
    """What the injector and the oracle need beyond ``FaultyStorage``: no call here can fail, is
    counted, or takes time."""

    def __init__(self) -> None:
        super().__init__()
        self._wrong_reads: list[random.Random] = []

    @property
    def used(self) -> int:
        """Bytes taken, as ``capacity`` counts them."""
        return self._used

    def _now_ms(self) -> int:
        return 0  # modification times stand still, as the default clock does

    def log_files(self) -> list[tuple[str, FileNode]]:
        """Paths of all segments that are not empty, and their files."""
        return [item for item in self._walk("", self.root) if item[1].size]

    def _walk(self, path: str, directory: DirNode) -> Iterator[tuple[str, FileNode]]:
        for name, node in directory.entries.items():
            if isinstance(node, DirNode):
                yield from self._walk(f"{path}/{name}", node)
            elif name.endswith(".log"):
                yield f"{path}/{name}", node

    def peek(self, path: str) -> FileNode | None:
        """The file at an absolute path."""
        node: DirNode | FileNode | None = self.root
        for name in path[1:].split("/"):
            if not isinstance(node, DirNode):
                return None
            node = node.entries.get(name)
        return node if isinstance(node, FileNode) else None

    @property
    def wipes(self) -> int:
        """How often it was replaced by an empty one."""
        return self.struck["wipe"]

    @property
    def is_well(self) -> bool:
        """No fault strikes, or waits to."""
        faults = (self._faults, self._read_flips, self._misdirections, self._wrong_reads)
        return (
            not any(faults)
            and self._crash_at == FOREVER
            and self.capacity is None
            and self.latency is None
        )

    def is_durable(self, path: str, start: int, end: int) -> bool:
        """Whether a power loss now would surely leave bytes ``start`` to ``end`` of a file, under
        the name that it has or under one that it had."""
        directory: DirNode | FileNode | None = self.root
        *above, name = path[1:].split("/")
        for part in above:
            assert isinstance(directory, FaultyDirNode)
            below = directory.entries.get(part)
            if below is None or directory.durable.get(part) is not below:
                return False
            directory = below
        assert isinstance(directory, FaultyDirNode)
        node = directory.entries.get(name)
        return (
            isinstance(node, FaultyFileNode)
            and any(kept is node for kept in directory.durable.values())
            and node.durable[start:end] == node.data[start:end]
        )

    def drop_clean_pages(self) -> None:
        """As memory pressure does: what a failed sync left out is gone."""
        for path, _ in self.log_files():
            self.evict(path)

    # -- damage within reach of the checksum, which leaves out offset, length, epoch and magic -----

    def flip_next_read(self, rng: random.Random) -> None:
        """The next read of batches gives one bit wrong."""
        self._wrong_reads.append(rng)

    def read_truly(self) -> None:
        """No read is wrong any more. A bit that flips while a log is recovered looks like a torn
        end: that is damage, and belongs to ``bit-rot``."""
        self._wrong_reads.clear()

    def on_read(self, file: MemoryFile, position: int, size: int) -> bytes:
        data = super().on_read(file, position, size)
        if self._wrong_reads and file.path.endswith(".log"):
            covered = _covered(data)
            if covered:
                rng = self._wrong_reads.pop()
                self.struck["read_flip"] += 1
                damaged = bytearray(data)
                damaged[rng.choice(covered)] ^= 1 << rng.randrange(8)
                data = bytes(damaged)
        return data

    def flip_at_rest(self, rng: random.Random) -> bool:
        """Damage a batch of any log; False when there is none."""
        files = [(path, _covered(bytes(node.data[: node.size]))) for path, node in self.log_files()]
        files = [(path, covered) for path, covered in files if covered]
        if not files:
            return False
        path, covered = rng.choice(files)
        self.flip(path, rng.choice(covered), 1 << rng.randrange(8))
        return True


def _covered(data: bytes) -> list[int]:
    """One position under the checksum of each batch, near its end."""
    found, position = [], 0
    while position + HEADER_SIZE <= len(data):
        size = 12 + int.from_bytes(data[position + 8 : position + 12], "big", signed=True)
        if size < HEADER_SIZE or position + size > len(data):
            break
        found.append(position + size - 2)
        found.append(position + 30)
        position += size
    return found
