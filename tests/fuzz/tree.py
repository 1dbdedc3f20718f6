"""A log directory as a value: relative path -> entry. Mutations work on it; a run gets it on disk.

Paths and names are ``str`` with surrogates for bytes that are not UTF-8, as ``os.fsdecode`` makes.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

SHOWN_MAX = 1 << 20  # bytes of a file that are read back; larger ones are sparse


class Kind(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    FIFO = "fifo"
    SOCKET = "socket"
    LINK = "link"


@dataclass(frozen=True, slots=True)
class Entry:
    """``size`` above ``len(data)`` stands for a hole behind the data; ``target`` is of a link."""

    kind: Kind
    data: bytes = b""
    size: int = 0
    target: str = ""
    mtime_ns: int = 0

    def holding(self, data: bytes) -> Entry:
        return replace(self, data=data, size=len(data))


Tree: TypeAlias = dict[str, Entry]
DIRECTORY = Entry(Kind.DIRECTORY)


def file_of(data: bytes) -> Entry:
    return Entry(Kind.FILE, data, len(data))


def read_tree(root: str, *, content: bool = True) -> Tree:
    """What lies below ``root``; without ``content`` only names, sizes and times."""
    found: Tree = {}
    pending = [""]
    while pending:
        below = pending.pop()
        for item in os.scandir(os.path.join(root, below)):
            path = os.path.join(below, item.name)
            found[path] = _read_entry(item, content)
            if found[path].kind is Kind.DIRECTORY:
                pending.append(path)
    return found


def _read_entry(item: os.DirEntry[str], content: bool) -> Entry:
    info = item.stat(follow_symlinks=False)
    mode, mtime = info.st_mode, info.st_mtime_ns
    if stat.S_ISDIR(mode):
        return Entry(Kind.DIRECTORY, mtime_ns=mtime)
    if stat.S_ISLNK(mode):
        return Entry(Kind.LINK, target=os.readlink(item.path), mtime_ns=mtime)
    if not stat.S_ISREG(mode):
        return Entry(Kind.FIFO if stat.S_ISFIFO(mode) else Kind.SOCKET, mtime_ns=mtime)
    data = b""
    if content:
        with open(item.path, "rb") as file:
            data = file.read(SHOWN_MAX)
    return Entry(Kind.FILE, data, info.st_size, mtime_ns=mtime)


def write_tree(tree: Tree, root: str) -> None:
    """Make ``root`` hold exactly ``tree``. An entry below a place that is no directory is left out,
    as is a name that no file can have."""
    remove_tree(root)
    os.mkdir(root)
    for path in sorted(tree):
        try:
            _write_entry(tree[path], os.path.join(root, path))
        except (FileNotFoundError, NotADirectoryError, FileExistsError, OSError, ValueError):
            continue
    for path in sorted(tree, reverse=True):  # what is written in a directory changes its time
        if tree[path].mtime_ns and tree[path].kind is not Kind.LINK:
            full = os.path.join(root, path)
            if os.path.lexists(full):
                os.utime(full, ns=(tree[path].mtime_ns,) * 2, follow_symlinks=False)


def _write_entry(entry: Entry, path: str) -> None:
    match entry.kind:
        case Kind.DIRECTORY:
            os.mkdir(path)
        case Kind.FIFO:
            os.mkfifo(path)
        case Kind.LINK:
            os.symlink(entry.target, path)
        case Kind.SOCKET:
            here = os.open(os.path.dirname(path), os.O_PATH)  # a socket's path is short
            try:
                with socket.socket(socket.AF_UNIX) as bound:
                    bound.bind(f"/proc/self/fd/{here}/{os.path.basename(path)}")
            finally:
                os.close(here)
        case Kind.FILE:
            with open(path, "xb") as file:
                file.write(entry.data)
                file.truncate(max(entry.size, len(entry.data)))


def remove_tree(root: str) -> None:
    if os.path.lexists(root):
        shutil.rmtree(root)


def differences(one: Tree, other: Tree, *, times: bool = True) -> list[str]:
    """Paths at which two trees differ, each with what differs."""
    found = []
    for path in sorted({*one, *other}):
        a, b = one.get(path), other.get(path)
        if a is None or b is None:
            found.append(f"{path}: {'appeared' if a is None else 'is gone'}")
        elif replace(a, mtime_ns=0) != replace(b, mtime_ns=0):
            found.append(f"{path}: changed from {a.size} to {b.size} bytes")
        elif times and a.mtime_ns != b.mtime_ns:
            found.append(f"{path}: its time changed")
    return found
