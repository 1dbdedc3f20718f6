"""What is neither file nor directory, in a storage in memory."""

from __future__ import annotations

from logstore.storage.memory import MemoryStorage


def make_other(storage: MemoryStorage, path: str) -> None:
    """Put a FIFO or the like at ``path``."""
    storage.open(path, create=True).close()
    storage._node(path).regular = False  # type: ignore[union-attr]
