"""Ctrl-C while a log is written: at once during a wait for input, otherwise between batches."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupts:
    """A context manager around writes, which keeps an interrupt until `check`.

    Python raises KeyboardInterrupt between any two steps, even in the middle of an append. The log
    in memory would then no longer agree with its file.
    """

    def __init__(self) -> None:
        self.pending = self._waiting = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.pending = True
        if self._waiting:
            raise KeyboardInterrupt

    def check(self) -> None:
        """
        Raises:
            KeyboardInterrupt: it was pressed.
        """
        if self.pending:
            raise KeyboardInterrupt

    @contextmanager
    def ending_waits(self) -> Iterator[None]:
        """Let an interrupt end what is called inside at once."""
        self._waiting = True
        try:
            self.check()
            yield
        finally:
            self._waiting = False


class InterruptibleInput:
    """A binary input whose reads Ctrl-C ends at once."""

    def __init__(self, stream: Any, interrupts: Interrupts) -> None:
        self._stream, self._interrupts = stream, interrupts
        self.fileno = stream.fileno

    def read1(self, size: int) -> bytes:
        with self._interrupts.ending_waits():
            data: bytes = self._stream.read1(size)
            return data
