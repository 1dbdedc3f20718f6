"""A backup killed at its Nth put: ``python -m tests.unit.backup.backup_killed DIR STORE N``.

The kill comes in the middle of the object: half of its bytes are written.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator

from logstore.backup import Backup
from logstore.common.types import Buffer
from logstore.tiers import LocalObjectStore


class MortalStore(LocalObjectStore):
    """Counts down to its end."""

    lives: Iterator[bool] = iter(())

    def put(
        self, key: str, parts: Iterable[Buffer], size: int, *, only_if_absent: bool = False
    ) -> None:
        if next(self.lives, True):
            super().put(key, parts, size, only_if_absent=only_if_absent)
        else:
            super().put(key, _cut_short(parts), size, only_if_absent=only_if_absent)


def _cut_short(parts: Iterable[Buffer]) -> Iterator[Buffer]:
    for part in parts:
        view = memoryview(part)
        yield view[: len(view) // 2]
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    _, directory, root, number = sys.argv
    store = MortalStore(root)
    store.lives = iter([True] * (int(number) - 1) + [False])
    Backup([directory], store).run()
