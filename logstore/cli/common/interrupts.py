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

    Args:
        second_ends: SIGTERM is an interrupt, too, and a second one ends it at once: for work that
            may be dropped, but is better brought to an end.
    """

    def __init__(self, *, second_ends: bool = False) -> None:
        self.pending = self._waiting = False
        self._second_ends = second_ends
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, *([signal.SIGTERM] if self._second_ends else [])):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def _note(self, number: int, frame: FrameType | None) -> None:
        is_second, self.pending = self.pending, True
        if self._waiting or (is_second and self._second_ends):
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
