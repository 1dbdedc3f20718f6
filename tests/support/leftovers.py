"""Threads and descriptors of this process that were not there before.

Numbers alone say nothing: what earlier tests left may end at any moment.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def descriptors(under: Path | None = None) -> Counter[str]:
    """What the open descriptors lead to; with ``under``, only files below that directory."""
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # of the listing itself, or closed since
            target = os.readlink(f"/proc/self/fd/{name}")
            if under is None or target.startswith(f"{under}/"):
                found[target] += 1
    return found


@contextmanager
def nothing_left() -> Iterator[None]:
    """What is begun or opened within has ended and is closed after it, or soon: ``close`` does not
    wait for threads whose call of another system may hang."""
    gc.collect()
    threads, files = set(threading.enumerate()), descriptors()
    yield
    end = time.monotonic() + 10
    for thread in set(threading.enumerate()) - threads:
        thread.join(max(0.0, end - time.monotonic()))
    assert set(threading.enumerate()) - threads == set()
    assert descriptors() - files == Counter()
