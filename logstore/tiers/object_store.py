"""An object store: put whole objects, get ranges, list, delete. Nothing else is asked of one.

No rename, no append and no change of several objects at once; a listing may lag behind puts and
deletes, and a put may have taken place although it reported an error (L-9). Local directories are
stores too, and durable: what was put survives a power cut.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, Protocol, runtime_checkable

from checkpoints.files import UnusableFileError
from checkpoints.printable import printable
from logstore.common.clock import SystemClock
from logstore.common.errors import ConfigError
from logstore.common.extras import Extra, load
from logstore.common.random_id import random_id
from logstore.common.types import Buffer
from logstore.storage.base import FileInfo, Storage
from logstore.storage.local import LocalStorage, NamingStorage
from logstore.storage.uri import open_storage, shown
from logstore.tiers.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    StoreDeniedError,
    StoreError,
    StoreUnavailableError,
)
from logstore.tiers.keys import is_key

_TEMPORARY = ".put-"
"""What a put writes before its object has a name. A crash leaves it; a listing leaves it out."""


class StoredObject(NamedTuple):
    """An object as a listing shows it; ``mtime_ms`` is 0 where the store does not say."""

    key: str
    size: int
    mtime_ms: int


@runtime_checkable
class ObjectStore(Protocol):
    """Objects under keys. Keys are relative to the base, with ``/`` between their parts.

    Every call may raise a ``StoreError``. Thread-safe.
    """

    uri: str
    """For messages: no credentials, no query."""

    def put(
        self, key: str, parts: Iterable[Buffer], size: int, *, only_if_absent: bool = False
    ) -> None:
        """Store ``parts``, ``size`` bytes in all, as one object: whole, or nothing that counts.

        An existing object is replaced. Memory is bounded by a few parts. With ``only_if_absent``
        an object that is there is left alone; two puts at once are told apart where the store can
        (``conditional``), else the last one may win.

        Raises:
            ObjectExistsError: with ``only_if_absent``.
            ValueError: ``parts`` have another size. Nothing is stored.
        """
        ...

    @property
    def conditional(self) -> bool:
        """Whether ``only_if_absent`` holds against another put at the same moment."""
        ...

    def get(self, key: str, start: int = 0, size: int = -1) -> bytes:
        """``size`` bytes from ``start``, or all from there; fewer only at the end of the object.

        Raises:
            ObjectNotFoundError: there is none.
        """
        ...

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """All objects whose keys begin with ``prefix``, sorted by key. It may lag."""
        ...

    def delete(self, keys: Collection[str]) -> None:
        """Delete objects; those that are missing are no error."""
        ...


def open_store(uri: str) -> ObjectStore:
    """The store at ``uri``: a local path, ``file:///…``, ``s3://bucket/base?region=…`` and
    whatever else ``pyarrow.fs`` reaches.

    Raises:
        ConfigError: an unknown scheme or option, or what it needs is not installed; or the place is
            empty, as a variable without a value is, or the root of the file system.
    """
    storage, path = open_storage(uri)
    if not path.strip("/"):
        raise ConfigError(f"{shown(uri)!r} names no store: its objects would lie in the root")
    if isinstance(storage, LocalStorage):
        return LocalObjectStore(path)
    module = load("logstore.tiers.arrow_store", Extra.ARROW, f"{shown(uri)}: a store")
    store: ObjectStore = module.ArrowObjectStore(storage, path)
    return store


class Parts:
    """The parts of an object that is being put, as bytes.

    ``failure`` is what reading them raised, which is none of the store's errors. ``ValueError`` is
    raised as soon as they are more than ``size``, or at the end if they are fewer.
    """

    def __init__(self, key: str, parts: Iterable[Buffer], size: int) -> None:
        self._key, self._parts, self._size = key, parts, size
        self.failure: BaseException | None = None

    def __iter__(self) -> Iterator[memoryview]:
        total = 0
        try:
            for part in self._parts:
                view = memoryview(part).cast("B")
                total += len(view)
                if total > self._size:
                    break
                yield view
                del part, view  # whoever reads the next may need their memory
            if total != self._size:
                given = f"{total} bytes or more" if total > self._size else f"{total} bytes"
                raise ValueError(f"{self._key}: {given} were given for an object of {self._size}")
        except GeneratorExit:
            raise
        except BaseException as error:
            self.failure = error
            raise


def check_key(key: str, store: str) -> None:
    """
    Raises:
        StoreError: the key would lead out of the store, or cannot be shown.
    """
    if not is_key(key):
        raise StoreError(key[:200], "is not a key of an object", False, store)


class MemoryObjectStore:
    """A store in memory, for tests and as the model of the others."""

    conditional = True

    def __init__(self, uri: str = "memory://store") -> None:
        self.uri = uri
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._guard = threading.Lock()

    def put(
        self, key: str, parts: Iterable[Buffer], size: int, *, only_if_absent: bool = False
    ) -> None:
        check_key(key, self.uri)
        data = b"".join(Parts(key, parts, size))
        with self._guard:
            if only_if_absent and key in self._objects:
                raise ObjectExistsError(key, "is there already", False, self.uri)
            self._objects[key] = data, SystemClock().wall_ms()

    def get(self, key: str, start: int = 0, size: int = -1) -> bytes:
        check_key(key, self.uri)
        with self._guard:
            found = self._objects.get(key)
        if found is None:
            raise ObjectNotFoundError(key, "no such object", False, self.uri)
        return found[0][start:] if size < 0 else found[0][start : start + size]

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        with self._guard:
            keys = sorted(self._objects)
            keys = keys[bisect_left(keys, prefix) :]
            found = [(key, *self._objects[key]) for key in keys if key.startswith(prefix)]
        return (StoredObject(key, len(data), mtime_ms) for key, data, mtime_ms in found)

    def delete(self, keys: Collection[str]) -> None:
        for key in keys:
            check_key(key, self.uri)
        with self._guard:
            for key in keys:
                self._objects.pop(key, None)


class LocalObjectStore:
    """A store in a directory. A put is durable: written aside, synced, and only then named.

    A directory is made with its first object, and stays when the last one is deleted.
    """

    def __init__(self, root: str, storage: Storage | None = None) -> None:
        self._storage = storage or NamingStorage()
        self._root = root.rstrip("/") or "/"
        self.uri = self._root

    @property
    def conditional(self) -> bool:
        return isinstance(self._storage, NamingStorage)

    def put(
        self, key: str, parts: Iterable[Buffer], size: int, *, only_if_absent: bool = False
    ) -> None:
        check_key(key, self.uri)
        path = f"{self._root}/{key}"
        above = os.path.dirname(path)
        aside = f"{above}/{_TEMPORARY}{random_id()}"
        given = Parts(key, parts, size)
        with self._naming(key, given):
            if only_if_absent and self._storage.info(path) is not None:
                raise ObjectExistsError(key, "is there already", False, self.uri)
            self._make_dirs(above)
            try:
                self._write(aside, given)
                self._name(aside, path, key, only_if_absent)
            except BaseException:
                with suppress(OSError):
                    self._storage.remove(aside)
                raise

    def _make_dirs(self, path: str) -> None:
        """Make a directory, and make its name and those above durable."""
        missing = []
        while path not in ("", "/") and self._storage.info(path) is None:
            missing.append(path)
            path = os.path.dirname(path)
        for each in reversed(missing):
            self._storage.make_dir(each)
            self._storage.sync_dir(os.path.dirname(each) or ".")

    def _write(self, aside: str, parts: Parts) -> None:
        file = self._storage.open(aside, create=True)
        try:
            position = 0
            for part in parts:
                position += file.write_at(position, part)
                del part
            file.sync()
        finally:
            file.close()

    def _name(self, aside: str, path: str, key: str, only_if_absent: bool) -> None:
        try:
            if not (
                only_if_absent
                and isinstance(self._storage, NamingStorage)
                and self._linked(aside, path, key)
            ):
                self._storage.rename(aside, path)
        finally:
            self._storage.sync_dir(os.path.dirname(path) or ".")

    def _linked(self, aside: str, path: str, key: str) -> bool:
        """Give the new object its name unless another has it: the one step that cannot be two."""
        assert isinstance(self._storage, NamingStorage)
        try:
            linked = self._storage.link(aside, path)
        except FileExistsError:
            raise ObjectExistsError(key, "is there already", False, self.uri) from None
        if linked:
            self._storage.remove(aside)
        return linked

    def get(self, key: str, start: int = 0, size: int = -1) -> bytes:
        check_key(key, self.uri)
        with self._naming(key):
            file = self._storage.open(f"{self._root}/{key}", writable=False)
            try:
                rest = max(file.size() - start, 0)
                return file.read_at(start, rest if size < 0 else min(size, rest))
            finally:
                file.close()

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        with self._naming(prefix):
            above, _, _ = prefix.rpartition("/")
            found = self._below(above, prefix)
            yield from (each for each in found if not _is_temporary(each.key))

    def leftovers(self) -> Iterator[StoredObject]:
        """What puts have written, or write, that has no name yet."""
        with self._naming(""):
            yield from (each for each in self._below("", "") if _is_temporary(each.key))

    def _below(self, folder: str, prefix: str) -> Iterator[StoredObject]:
        try:
            entries = self._storage.scan_dir(f"{self._root}/{folder}" if folder else self._root)
        except (FileNotFoundError, NotADirectoryError):
            return
        # A folder's keys go on with a slash, which sorts before letters and behind a dash.
        for entry in sorted(entries, key=_sort_key):
            key = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir:
                if f"{key}/".startswith(prefix) or prefix.startswith(f"{key}/"):
                    yield from self._below(key, prefix)
            elif entry.is_file and key.startswith(prefix):
                yield StoredObject(key, entry.size, entry.mtime_ms)

    def delete(self, keys: Collection[str]) -> None:
        folders: set[str] = set()
        for key in keys:
            check_key(key, self.uri)
            path = f"{self._root}/{key}"
            with self._naming(key), suppress(FileNotFoundError, NotADirectoryError):
                self._storage.remove(path)
                folders.add(os.path.dirname(path))
        for folder in folders:
            with self._naming(folder):
                self._storage.sync_dir(folder)

    @contextmanager
    def _naming(self, key: str, given: Parts | None = None) -> Iterator[None]:
        """Errors of the system as those of a store, except those of what is put."""
        try:
            yield
        except OSError as error:
            if given is not None and error is given.failure:
                raise
            if given is not None and isinstance(error, NotADirectoryError | FileExistsError):
                reason = f"{printable(self._root)} is, or lies below, a file that is no directory"
                raise StoreError(key, reason, False, self.uri) from error
            raise self._error(key, error) from error

    def _error(self, key: str, error: OSError) -> StoreError:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return ObjectNotFoundError(key, "no such object", False, self.uri)
        if isinstance(error, UnusableFileError):
            return StoreError(key, error.reason, False, self.uri)
        reason = error.strerror or str(error)
        if isinstance(error, PermissionError):
            return StoreDeniedError(key, reason, False, self.uri)
        return StoreUnavailableError(key, reason, True, self.uri)


def _is_temporary(key: str) -> bool:
    return key.rpartition("/")[2].startswith(_TEMPORARY)


def _sort_key(entry: FileInfo) -> str:
    return f"{entry.name}/" if entry.is_dir else entry.name


__all__ = [
    "LocalObjectStore",
    "MemoryObjectStore",
    "ObjectStore",
    "Parts",
    "StoredObject",
    "check_key",
    "open_store",
]
