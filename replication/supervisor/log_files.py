"""The logs of the processes: kept small, and shown."""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Iterator

from logstore.storage.local import LocalStorage

LOGS = "logs"
LOG_BYTES = 10_000_000  # then the file becomes that of its name with .1
TAIL_BYTES = 1 << 13
READ_BYTES = 1 << 20
_END = ".log"


def log_path(directory: str, name: str) -> str:
    return os.path.join(directory, LOGS, name + _END)


def rotate(path: str, limit: int = LOG_BYTES) -> bool:
    """Keep the log of a process that goes on writing below about ``limit`` bytes.

    Its content goes to ``path.1``, and the file is emptied: whoever writes appends. What comes in
    the moment between is lost.
    """
    try:
        if os.path.getsize(path) <= limit:
            return False
        with open(path, "r+b") as source, open(f"{path}.1", "wb") as kept:
            shutil.copyfileobj(source, kept)
            source.truncate(0)
    except OSError:
        return False  # a full disk must not end the supervisor
    return True


def last_error(path: str, since: int) -> str:
    """The last line that begins with ``error:``, without that; empty if there is none.

    Args:
        since: the size of the file before the lines that count.
    """
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            file.seek(max(0, size - TAIL_BYTES, since if since <= size else 0))
            lines = file.read(TAIL_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    said = [line.removeprefix("error:").strip() for line in lines if line.startswith("error:")]
    return said[-1] if said else ""


def names_of_logs(directory: str) -> list[str]:
    """Of which processes there is a log, as ``broker-0``."""
    try:
        names = [entry.name for entry in LocalStorage().scan_dir(os.path.join(directory, LOGS))]
    except FileNotFoundError:
        return []
    return sorted(name.removesuffix(_END) for name in names if name.endswith(_END))


def tail(directory: str, name: str, count: int) -> Iterator[list[str]]:
    """The last ``count`` lines first, then again and again what came since; empty if nothing."""
    path = log_path(directory, name)
    kept: deque[str] = deque(maxlen=count)
    for each in (f"{path}.1", path):
        try:
            with open(each, encoding="utf-8", errors="replace") as file:
                kept.extend(line.rstrip("\n") for line in file)
        except FileNotFoundError:
            continue
    position = os.path.getsize(path)
    yield list(kept)
    rest = b""
    while True:
        if os.path.getsize(path) < position:
            position, rest = 0, b""  # it was emptied
        with open(path, "rb") as log:
            log.seek(position)
            more = log.read(READ_BYTES)
        position += len(more)
        *lines, rest = (rest + more).split(b"\n")
        yield [line.decode("utf-8", "replace") for line in lines]
