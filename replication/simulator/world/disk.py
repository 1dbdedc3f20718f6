"""The disk of one simulated machine, and access to its bytes without side effects."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from logstore.format.header import HEADER_SIZE
from logstore.storage.memory import DirNode, FileNode, MemoryFile
from logstore.testing.faulty import FOREVER, FaultyStorage
from logstore.testing.faulty_nodes import FaultyDirNode, FaultyFileNode


class SimDisk(FaultyStorage):
    """A ``FaultyStorage`` with methods for injector and oracle that never fail, are not counted and
    take no time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._wrong_reads: list[random.Random] = []
        self.changed_by_hand = 0  # how often somebody changed it while nobody used it

    @property
    def used(self) -> int:
        """Bytes taken, as ``capacity`` counts them."""
        return self._used

    def _now_ms(self) -> int:
        return 0  # modification times stand still, like the default clock

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

    def files(self, path: str) -> dict[str, bytes]:
        """The content of all files below a directory, by path."""
        found: dict[str, bytes] = {}
        for entry in self.scan_dir(path):
            inner = f"{path}/{entry.name}"
            found |= self.files(inner) if entry.is_dir else {inner: self.read_file(inner)}
        return found

    def put_back(self, content: Mapping[str, bytes]) -> None:
        """Write such files, with their directories."""
        for path, data in content.items():
            parts = path.split("/")
            for end in range(2, len(parts)):
                above = "/".join(parts[:end])
                if self.info(above) is None:
                    self.make_dir(above)
            self.write_file(path, data)

    def sync_names(self, path: str) -> None:
        """Make all names at and below a directory durable."""
        self.sync_dir(path)
        for entry in self.scan_dir(path):
            if entry.is_dir:
                self.sync_names(f"{path}/{entry.name}")

    @property
    def wipes(self) -> int:
        """Count how often the disk was replaced by another one, or changed by hand."""
        return self.struck["wipe"] + self.changed_by_hand

    @property
    def is_well(self) -> bool:
        """Whether no fault is active or waiting."""
        faults = (self._faults, self._read_flips, self._misdirections, self._wrong_reads)
        return (
            not any(faults)
            and self._crash_at == FOREVER
            and self.capacity is None
            and self.latency is None
        )

    def is_durable(self, path: str, start: int, end: int) -> bool:
        """Whether bytes ``[start, end)`` of a file would surely survive a power loss now, under its
        present name or an earlier one.
        """
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
        """Drop clean pages, as memory pressure does. Data of a failed sync is lost then."""
        for path, _ in self.log_files():
            self.evict(path)

    # -- damage within reach of the checksum, which leaves out offset, length, epoch and magic -----

    def flip_next_read(self, rng: random.Random) -> None:
        """Flip one bit in the next read of batches."""
        self._wrong_reads.append(rng)

    def read_truly(self) -> None:
        """Stop flipping reads.

        A flip while a log is recovered would look like a torn end, which belongs to ``bit-rot``.
        """
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
        """Damage a batch of any log. False if there is none."""
        files = [(path, _covered(bytes(node.data[: node.size]))) for path, node in self.log_files()]
        files = [(path, covered) for path, covered in files if covered]
        if not files:
            return False
        path, covered = rng.choice(files)
        self.flip(path, rng.choice(covered), 1 << rng.randrange(8))
        return True


def _covered(data: bytes) -> list[int]:
    """One position in each batch that the checksum covers, near its end."""
    found, position = [], 0
    while position + HEADER_SIZE <= len(data):
        size = 12 + int.from_bytes(data[position + 8 : position + 12], "big", signed=True)
        if size < HEADER_SIZE or position + size > len(data):
            break
        found.append(position + size - 2)
        found.append(position + 30)
        position += size
    return found
