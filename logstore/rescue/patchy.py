"""Files on a medium that can no longer read some of its bytes."""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from logstore.storage.base import File, Storage

OPEN_MAX = 64
_PAGE = 4096


class FilePool:
    """Files of sources, for reading; at most ``OPEN_MAX`` of them are open at a time."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._open: OrderedDict[str, File] = OrderedDict()

    def get(self, path: str) -> File:
        file = self._open.pop(path, None) or self._storage.open(path, writable=False)
        self._open[path] = file
        if len(self._open) > OPEN_MAX:
            self._open.popitem(last=False)[1].close()
        return file

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


class PatchyFile:
    """A file whose unreadable bytes (EIO) read as zeros.

    Zeros never form a batch with a matching checksum, so a lost sector costs only the batch around
    it. ``unreadable`` has the positions of the unreadable pages.
    """

    def __init__(self, pool: FilePool, path: str) -> None:
        self._pool = pool
        self.path = path
        self.unreadable: set[int] = set()

    def size(self) -> int:
        return self._pool.get(self.path).size()

    def read_at(self, position: int, size: int) -> bytes:
        file = self._pool.get(self.path)
        try:
            return file.read_at(position, size)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        size = max(min(size, file.size() - position), 0)
        pages = range(position - position % _PAGE, position + size, _PAGE)
        return b"".join(self._page(file, page, position, position + size) for page in pages)

    def _page(self, file: File, page: int, start: int, end: int) -> bytes:
        first, stop = max(page, start), min(page + _PAGE, end)
        try:
            return file.read_at(first, stop - first)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self.unreadable.add(page)
            return bytes(stop - first)

    @contextmanager
    def view(self, position: int, size: int) -> Iterator[memoryview]:
        yield memoryview(self.read_at(position, size))
