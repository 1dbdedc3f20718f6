"""Fuzzers of what asks the kernel of the machine: ``_window`` and ``_directory``."""

from __future__ import annotations

import os
import random
import tempfile
from typing import Any

from logstore.kernels import _window
from logstore.storage.local import LocalStorage
from tests.fuzz.kernels.compare import outcome
from tests.fuzz.kernels.inputs import LONG, number

LARGEST = 1 << 22  # windows above it only where they are refused: memory is the caller's


def windows(rng: random.Random) -> None:
    """Windows onto a file that another descriptor cuts and extends meanwhile."""
    content = rng.randbytes(rng.choice((0, 1, 100, 4096, 5000, 70_000)))
    with tempfile.NamedTemporaryFile(buffering=0) as file:
        file.write(content)
        with open(file.name, "r+b", buffering=0) as other:
            for _ in range(4):
                position = rng.choice((0, 1, 4095, 4096, len(content), abs(number(rng))))
                size = rng.choice((1, 60, 4096, 100_000, 0, -1))
                size = rng.choice((LONG, LONG - 4095)) if rng.random() < 0.02 else size
                position = min(position, LONG)
                if rng.random() < 0.2:
                    other.truncate(rng.choice((0, 10, 4096, len(content))))
                    content = content[: os.fstat(other.fileno()).st_size]
                    content += bytes(os.fstat(other.fileno()).st_size - len(content))
                read(file.fileno(), position, size, content)
                mapped(rng, file.fileno(), position, size, content)
                assert os.pread(file.fileno(), len(content) + 1, 0) == content
    for bad in (-1, 1 << 20):
        refused(lambda bad=bad: _window.ReadWindow(bad, 0, 10))
        refused(lambda bad=bad: _window.MappedWindow(bad, 0, 10))


def refused(call: Any) -> Any:
    """The result, or None for a refusal: an errno, a range, or no memory for so much."""
    try:
        kind, result = outcome(call)
    except MemoryError:
        return None
    return result if kind == "returned" else None


def read(descriptor: int, position: int, size: int, content: bytes) -> None:
    window = refused(lambda: _window.ReadWindow(descriptor, position, size))
    if window is not None:
        assert bytes(window) == content[position : position + size]
        assert len(window) == len(memoryview(window))
        assert outcome(lambda: memoryview(window).__setitem__(0, 1))[0] == "TypeError"


def mapped(rng: random.Random, descriptor: int, position: int, size: int, content: bytes) -> None:
    window = refused(lambda: _window.MappedWindow(descriptor, position, size))
    if window is None:
        return
    inside = position + size <= len(content)
    if rng.random() < 0.7 and size <= LARGEST:
        refused(window.populate)
    held = memoryview(window) if rng.random() < 0.5 else None
    if inside:  # a look past the end of a file is a SIGBUS: who maps answers for that
        assert bytes(window) == content[position : position + size]
    if held is not None:
        assert outcome(window.close)[0] == "BufferError"
        held.release()
    window.close()
    window.close()
    assert outcome(window.populate)[0] == "ValueError"
    assert outcome(lambda: memoryview(window))[0] == "BufferError"


def name_of(rng: random.Random) -> bytes:
    size = rng.choice((1, 2, 30, 254, 255))
    letters = rng.choice((b"ab0-. ", bytes(range(1, 256))))
    name = bytes(rng.choice(letters) for _ in range(size)).replace(b"/", b"_")
    return name if name not in (b".", b"..") else b"..."


def directories(rng: random.Random) -> None:
    """Directories with odd names, links that lead nowhere or into a ring, and odd times."""
    storage, count = LocalStorage(), rng.choice((0, 3, 63, 64, 65, 130))
    with tempfile.TemporaryDirectory() as path:
        root = os.fsencode(path)
        for _ in range(count):
            one = os.path.join(root, name_of(rng))
            kind = rng.random()
            if os.path.lexists(one):
                continue
            if kind < 0.05:
                os.mkdir(one)
            elif kind < 0.08:
                os.symlink(b"nowhere", one)
            elif kind < 0.1:
                os.mkfifo(one)
            else:
                with open(one, "wb") as file:
                    file.truncate(rng.choice((0, 1, 1 << 40)))
                if rng.random() < 0.2:
                    os.utime(one, (0, rng.choice((-1, 0, 10**9, 2**60))))
        wanted = {e.name: e.stat().st_size for e in os.scandir(path) if os.path.exists(e.path)}
        found = {e.name: e.size for e in storage.scan_dir(path)}
        assert {name: found[name] for name in wanted} == wanted
        assert set(found) <= set(os.listdir(path))


FUZZERS = {"windows": windows, "directories": directories}
