"""What the Python drivers share: steps from the arguments, JSON lines, the end of the input."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

Step = dict[str, Any]
LONGEST_S = 120
_lock = threading.Lock()


def answer(**fields: Any) -> None:
    """Write one line."""
    with _lock:
        sys.stdout.write(json.dumps(fields) + "\n")
        sys.stdout.flush()


def read(value: bytes, key: bytes | None, partition: int, offset: int, timestamp: int) -> None:
    """Answer with a record."""
    name = None if key is None else key.decode()
    answer(read=value.decode(), key=name, partition=partition, offset=offset, timestamp=timestamp)


def records(step: Step) -> Iterator[tuple[str, str, int, int | None]]:
    """Give key, value, partition and timestamp of the records to produce, at the step's pace."""
    until = Until(step)
    number = 0
    while until.goes_on:
        if step.get("pause_ms"):
            time.sleep(step["pause_ms"] / 1000)
        base = step.get("timestamp_ms")
        timestamp = None if base is None else base + number
        value = f"{step['prefix']}{number}"
        yield f"k{number}", value, number % step["partitions"], timestamp
        until.took(1)
        number += 1


def transactions(step: Step) -> Iterator[tuple[bool, list[tuple[str, str, int, int | None]]]]:
    """Give the records by transactions, each with whether it is to be committed."""
    pending: list[tuple[str, str, int, int | None]] = []
    commit = True
    for record in records(step):
        pending.append(record)
        if len(pending) == step["transaction_size"]:
            yield commit, pending
            pending, commit = [], not commit
    if pending:
        yield commit, pending


class Until:
    """Whether a step goes on."""

    def __init__(self, step: Step) -> None:
        self._left = step.get("count")
        self._deadline = time.monotonic() + step.get("timeout_s", LONGEST_S)
        self._closed = threading.Event()
        if self._left is None:
            threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        while os.read(0, 1024):  # nothing is ever written there
            pass
        self._closed.set()

    def took(self, count: int) -> None:
        """Count records."""
        if self._left is not None:
            self._left -= count

    @property
    def goes_on(self) -> bool:
        """False once enough was read, the input ended, or the time is over."""
        enough = self._left is not None and self._left <= 0
        return not (enough or self._closed.is_set() or time.monotonic() > self._deadline)


def main(steps: dict[str, Callable[[str, Step], None]]) -> None:
    """Carry out the steps that the arguments name."""
    bootstrap, text = sys.argv[1:]
    for step in json.loads(text):
        steps[step["do"]](bootstrap, step)
