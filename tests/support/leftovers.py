"""What a piece of code has begun and opened, and has to end and close: not what others have."""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.support.until import patience, until


def descriptors(under: Path) -> Counter[str]:
    """The files below that directory that this process has open, and how often."""
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # of the listing itself, or closed since
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith(f"{under}/"):
                found[target] += 1
    return found


@contextmanager
def nothing_left(under: Path | None = None) -> Iterator[list[threading.Thread]]:
    """Threads begun and sockets opened within, by this thread and by those that it began, have
    ended and are closed after it, or soon: ``close`` does not wait for threads whose call of
    another system may hang. So are the files below ``under``. It yields the threads so far."""
    threads: list[threading.Thread] = []
    sockets: list[socket.socket] = []
    caller = threading.current_thread()

    def noting(found: list[Any], function: Callable[..., None]) -> Callable[..., None]:
        def noted(self: Any, *args: Any, **kwargs: Any) -> None:
            current = threading.current_thread()
            # What the caller's shielded calls begin, they begin on a thread without a name.
            shielded = isinstance(current, threading._DummyThread)
            if current is caller or current in threads or shielded:
                found.append(self)
            function(self, *args, **kwargs)

        return noted

    before = descriptors(under) if under else Counter()
    with ExitStack() as patches:
        for owner, name, found in (
            (threading.Thread, "start", threads),
            (socket.socket, "__init__", sockets),
        ):
            patches.enter_context(patch.object(owner, name, noting(found, getattr(owner, name))))
        yield threads
    for thread in threads:
        thread.join(patience())
    assert [thread.name for thread in threads if thread.is_alive()] == []
    assert [each for each in sockets if each.fileno() != -1] == []
    if under:
        until(lambda: not descriptors(under) - before, f"all files below {under} are closed")
