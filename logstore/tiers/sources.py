"""Where the bytes of a shown file lie, and files that read them there.

A file is an object, a part of one, an object in chunks, or bytes in memory. All are read only. An
object is held against its announced size when it is opened, and index parts against their checksum
where one is known: what a store returns is another machine's word.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from logstore.common.bounds import UNPACKED_MAX
from logstore.common.errors import CorruptBatchError
from logstore.format.codecs.compression import Compression, decompress
from logstore.kernels import crc32c
from logstore.storage.base import File, Storage
from logstore.tiers.chunks import ChunkIndex
from logstore.tiers.errors import broken

_CHECKED_MAX = 16 << 20
"""Up to this size ``.indexes`` is read as a whole and checked; that of a segment of 1 GiB has 5 MB.
Larger ones are read where needed, and trusted as an index on a disk is."""

_KEPT_BYTES = 32 << 20
_CHUNKS_KEPT_BYTES = 32 << 20
_ROUND_MAX = 16 << 20
"""Stored bytes that one request asks for."""

UNKNOWN_CRC = -1


@dataclass(frozen=True, slots=True)
class InlineBytes:
    """Bytes that are no object of their own."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)


@dataclass(frozen=True, slots=True)
class WholeObject:
    """An object of ``whole`` bytes, of which the first ``size`` are shown."""

    path: str
    size: int
    whole: int


@dataclass(frozen=True, slots=True)
class ObjectPart:
    """``size`` bytes at ``position`` of an object of ``whole`` bytes with this CRC-32C."""

    path: str
    position: int
    size: int
    whole: int
    crc: int = UNKNOWN_CRC


@dataclass(frozen=True, slots=True)
class ChunkedObject:
    """The first ``size`` bytes of a segment that is stored in Zstandard chunks."""

    path: str
    chunks: ChunkIndex
    size: int


@dataclass(frozen=True, slots=True)
class RefusedObject:
    """An object that cannot be read, and why."""

    path: str
    size: int
    reason: str


ByteSource: TypeAlias = InlineBytes | WholeObject | ObjectPart | ChunkedObject | RefusedObject


class Objects:
    """Opens sources in a storage. Keeps a few small objects that were read as a whole."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._guard = threading.Lock()

    def open(self, source: ByteSource, path: str) -> File:
        """A source as the file ``path``.

        Raises:
            BrokenTierError: the object is missing, has another size or other bytes than it should
                have, or cannot be read at all.
            OSError: the store refused.
        """
        match source:
            case InlineBytes(data):
                return InlineFile(path, data)
            case RefusedObject(where, _, reason):
                raise broken(where, reason)
            case ObjectPart(_, position, size, whole, crc) if (
                crc != UNKNOWN_CRC and whole <= _CHECKED_MAX
            ):
                return InlineFile(path, self._checked(source)[position : position + size])
            case ObjectPart(where, position, size, whole):
                return PartFile(path, self._open(where, whole), position, size)
            case ChunkedObject(where, chunks, size):
                return ChunkedFile(path, self._open(where, chunks.stored_size), chunks, size)
            case WholeObject(where, size, whole):
                file = self._open(where, whole)
                is_real = size == whole and file.fileno() >= 0
                return file if is_real else PartFile(path, file, 0, size)

    def _open(self, path: str, size: int) -> File:
        try:
            file = self.storage.open(path, writable=False)
        except FileNotFoundError:
            raise _missing(path) from None
        found = file.size()
        if found != size:
            file.close()
            raise broken(path, f"has {found} bytes, its manifest says {size}")
        return file

    def _checked(self, part: ObjectPart) -> bytes:
        with self._guard:
            data = self._kept.get(part.path)
            if data is not None:
                self._kept.move_to_end(part.path)
                return data
        data = self.read(part.path, _CHECKED_MAX)
        if len(data) != part.whole:
            raise broken(part.path, f"has {len(data)} bytes, its manifest says {part.whole}")
        if crc32c(data) != part.crc:
            raise broken(part.path, f"has the CRC-32C {crc32c(data):08x}, not {part.crc:08x}")
        with self._guard:
            self._kept[part.path] = data
            while sum(map(len, self._kept.values())) > _KEPT_BYTES:
                self._kept.popitem(last=False)
        return data

    def read(self, path: str, limit: int) -> bytes:
        """A small object as a whole; errors as ``open``."""
        try:
            return self.storage.read_file(path, limit)
        except FileNotFoundError:
            raise _missing(path) from None


def _missing(path: str) -> OSError:
    return broken(path, "is missing in the store, though a manifest names it")


class _ReadOnlyFile:
    """What all files here refuse."""

    __slots__ = ("_size", "path")

    def __init__(self, path: str, size: int) -> None:
        self.path = path
        self._size = size

    def size(self) -> int:
        return self._size

    def fileno(self) -> int:
        return -1

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), self.path)

    write_at = map = truncate = sync = _refuse


class InlineFile(_ReadOnlyFile):
    """Bytes in memory as a file."""

    __slots__ = ("_data",)

    def __init__(self, path: str, data: bytes) -> None:
        super().__init__(path, len(data))
        self._data = data

    def read_at(self, position: int, size: int) -> bytes:
        return self._data[position : position + size]

    @contextmanager
    def view(self, position: int, size: int) -> Iterator[memoryview]:
        yield memoryview(self._data)[position : position + size]

    def close(self) -> None:
        pass


class PartFile(_ReadOnlyFile):
    """``size`` bytes at ``position`` of another file, which is closed with it."""

    __slots__ = ("_file", "_start")

    def __init__(self, path: str, file: File, position: int, size: int) -> None:
        super().__init__(path, size)
        self._file, self._start = file, position

    def _within(self, position: int, size: int) -> int:
        return max(min(size, self._size - position), 0)

    def read_at(self, position: int, size: int) -> bytes:
        wanted = self._within(position, size)
        data = self._file.read_at(self._start + position, wanted) if wanted else b""
        if len(data) != wanted:
            raise _short(self._file.path, len(data), wanted, self._start + position)
        return data

    @contextmanager
    def view(self, position: int, size: int) -> Iterator[memoryview]:
        wanted = self._within(position, size)
        with self._file.view(self._start + position, wanted) as window:
            if len(window) != wanted:
                raise _short(self._file.path, len(window), wanted, self._start + position)
            yield window

    def close(self) -> None:
        self._file.close()


class ChunkedFile(_ReadOnlyFile):
    """A segment in chunks, each one Zstandard frame. Chunks that were just read are kept."""

    __slots__ = ("_chunks", "_file", "_guard", "_kept")

    def __init__(self, path: str, file: File, chunks: ChunkIndex, size: int) -> None:
        super().__init__(path, size)
        self._file, self._chunks = file, chunks
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._guard = threading.Lock()

    def read_at(self, position: int, size: int) -> bytes:
        end = min(position + size, self._size)
        if end <= position:
            return b""
        numbers = self._chunks.numbers(position, end - position)
        start = numbers[0] * self._chunks.chunk_size
        parts = list(self._read(numbers))
        if len(parts) == 1:
            return parts[0][position - start : end - start]
        parts[-1] = parts[-1][: end - numbers[-1] * self._chunks.chunk_size]
        parts[0] = parts[0][position - start :]
        return b"".join(parts)

    @contextmanager
    def view(self, position: int, size: int) -> Iterator[memoryview]:
        yield memoryview(self.read_at(position, size))

    def _read(self, numbers: range) -> Iterator[bytes]:
        with self._guard:
            kept = {number: self._kept[number] for number in numbers if number in self._kept}
        at = numbers.start
        while at < numbers.stop:
            if at in kept:
                yield kept[at]
                at += 1
                continue
            stop = at + 1
            first = self._chunks.chunk(at)
            while stop < numbers.stop and stop not in kept:
                chunk = self._chunks.chunk(stop)
                end = chunk.stored_position + chunk.stored_size
                if end - first.stored_position > _ROUND_MAX:
                    break
                stop += 1
            yield from self._fetch(range(at, stop))
            at = stop

    def _fetch(self, numbers: range) -> Iterator[bytes]:
        """Neighbouring chunks by one request."""
        first, last = self._chunks.chunk(numbers[0]), self._chunks.chunk(numbers[-1])
        start = first.stored_position
        size = last.stored_position + last.stored_size - start
        if first.size > UNPACKED_MAX:
            raise broken(self._file.path, f"has chunks of {first.size} bytes, which is too large")
        packed = memoryview(self._file.read_at(start, size))
        if len(packed) != size:
            raise _short(self._file.path, len(packed), size, start)
        for number in numbers:
            chunk = self._chunks.chunk(number)
            at = chunk.stored_position - start
            try:
                data = bytes(
                    decompress(
                        Compression.ZSTD, packed[at : at + chunk.stored_size], limit=chunk.size
                    )
                )
            except CorruptBatchError as error:
                raise self._unreadable(chunk.stored_position, error.reason) from None
            if len(data) != chunk.size:
                reason = f"a chunk has {len(data)} bytes, not {chunk.size}"
                raise self._unreadable(chunk.stored_position, reason)
            self._keep(number, data)
            yield data

    def _keep(self, number: int, data: bytes) -> None:
        with self._guard:
            self._kept[number] = data
            while len(self._kept) > 1 and len(self._kept) * len(data) > _CHUNKS_KEPT_BYTES:
                self._kept.popitem(last=False)

    def _unreadable(self, position: int, reason: str) -> OSError:
        return broken(self._file.path, f"at byte {position}: {reason}")

    def close(self) -> None:
        self._file.close()


def _short(path: str, size: int, wanted: int, position: int) -> OSError:
    """Not ``BrokenTierError``: the object was long enough when it was opened."""
    reason = f"{size} of {wanted} bytes came from byte {position} on"
    return OSError(errno.EIO, reason, path)


__all__ = [
    "ByteSource",
    "ChunkedFile",
    "ChunkedObject",
    "InlineBytes",
    "InlineFile",
    "ObjectPart",
    "Objects",
    "PartFile",
    "RefusedObject",
    "WholeObject",
]
