"""The disk of one simulated machine, and a look at its bytes that disturbs nothing."""

from __future__ import annotations

from collections.abc import Iterator

from logstore.storage.memory import DirNode, FileNode
from logstore.testing.faulty import FaultyStorage


class SimDisk(FaultyStorage):
    """What the injector and the oracle need beyond ``FaultyStorage``: no call here can fail, is
    counted, or takes time."""

    @property
    def used(self) -> int:
        """Bytes taken, as ``capacity`` counts them."""
        return self._used

    @property
    def stopped(self) -> bool:
        """A planned crash has struck: nothing works until ``crash``."""
        return self._down

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

    def drop_clean_pages(self) -> None:
        """As memory pressure does: what a failed sync left out is gone."""
        for path, _ in self.log_files():
            self.evict(path)

    def read_truly(self) -> None:
        """No read is wrong any more. A bit that flips while a log is recovered looks like a torn
        end: that is damage, and belongs to F-19."""
        self._read_flips.clear()
