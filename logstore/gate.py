"""Keeps files open while somebody reads them.

A descriptor that is closed under a ``pread`` may by then name another file, whose bytes would look
just as valid. So whoever is done with a file hands it to the gate.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from logstore.storage.base import File


class ReaderGate:
    """Shared by the segments of one log. Any number of readers; they never wait."""

    def __init__(self) -> None:
        self.opening = threading.Lock()  # held while a file is opened, or closed for good
        self._lock = threading.Lock()
        self._readers = 0
        self._windows: Counter[int] = Counter()  # mapped windows by base offset of the segment
        self._retired: list[File] = []

    @contextmanager
    def reading(self, window_of: int = -1) -> Iterator[None]:
        """No file is closed inside the ``with`` block. May be entered again by the same thread.

        ``window_of``: base offset of the segment, when the block holds a mapped window of it.
        """
        with self._lock:
            self._readers += 1
            self._windows[window_of] += 1
        try:
            yield
        finally:
            with self._lock:
                self._readers -= 1
                self._windows[window_of] -= 1
                if not self._windows[window_of]:
                    del self._windows[window_of]
                done: list[File] = []
                if not self._readers:
                    done, self._retired = self._retired, done
            for file in done:
                file.close()

    @contextmanager
    def cutting(self, base_offset: int) -> Iterator[bool]:
        """Whether somebody holds a mapped window of the segment; nobody gets one inside the block.

        Bytes that a window shows must not change, and touching a page that a truncation took
        away ends the process.
        """
        with self._lock:
            yield base_offset in self._windows

    def retire(self, file: File) -> None:
        """Close a file now, or when the last reader has left."""
        with self._lock:
            if self._readers:
                self._retired.append(file)
                return
        file.close()
