"""A store on any file system that Arrow reaches: S3 and its likes, GCS, Azure, HDFS.

Arrow offers no conditional put and no way to give a put up. So ``only_if_absent`` looks first, and
an object whose put failed in the middle is deleted again; a crash may leave it, and whatever counts
carries its own checksum (L-9).
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pyarrow import fs

from logstore.common.parallel import at_once
from logstore.common.types import Buffer
from logstore.storage.arrow_fs import ArrowStorage, naming
from logstore.storage.uri import shown
from logstore.tiers.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    StoreDeniedError,
    StoreError,
    StoreThrottledError,
    StoreUnavailableError,
)
from logstore.tiers.object_store import Parts, StoredObject, check_key

_PART_SIZE = 10 << 20
"""Arrow sends a part as soon as it has this much, which is also the least it may send."""

_PARTS_UNDER_WAY = 1
"""Arrow takes all that it is given and sends it behind the caller's back, at the rate of the
network: without a wait a large object would be in memory as a whole."""

_THROTTLED = ("SLOW_DOWN", "SlowDown", "HTTP status 503", "HTTP status 429", "TooManyRequests")


class ArrowObjectStore:
    """Objects below ``path`` of an ``ArrowStorage``."""

    conditional = False

    def __init__(self, storage: ArrowStorage, path: str) -> None:
        self.uri = shown(path.rstrip("/"))
        self.filesystem: fs.FileSystem = _sending_itself(storage.filesystem)
        self._base = storage.inner(path)

    def put(
        self, key: str, parts: Iterable[Buffer], size: int, *, only_if_absent: bool = False
    ) -> None:
        check_key(key, self.uri)
        given = Parts(key, parts, size)
        path = f"{self._base}/{key}"
        with self._naming(key, given):
            if only_if_absent and self.filesystem.get_file_info([path])[0].is_file:
                raise ObjectExistsError(key, "is there already", False, self.uri)
            if self._needs_folders():
                self.filesystem.create_dir(path.rpartition("/")[0], recursive=True)
            # A put that does not even begin leaves what is there, maybe by a later try, alone.
            stream = self.filesystem.open_output_stream(path, compression=None, buffer_size=None)
            try:
                self._write(stream, given)
            except BaseException:
                self._delete_torn(path, size)
                raise

    def _delete_torn(self, path: str, size: int) -> None:
        """Arrow finishes an object that is given up, with what it has by then.

        One of the whole size is another's: the caller may have waited long enough for this put, and
        have put the object again.
        """
        with suppress(OSError, ValueError):
            if self.filesystem.get_file_info([path])[0].size != size:
                self.filesystem.delete_file(path)

    def _write(self, stream: Any, parts: Parts) -> None:
        waiting = 0
        with stream:
            for part in parts:
                for start in range(0, len(part), _PART_SIZE):
                    stream.write(part[start : start + _PART_SIZE])
                    waiting += min(_PART_SIZE, len(part) - start)
                    if waiting >= _PARTS_UNDER_WAY * _PART_SIZE:
                        stream.flush()
                        waiting = 0
                del part

    def _needs_folders(self) -> bool:
        """Whether folders are more than a part of names there."""
        return self.filesystem.type_name in ("local", "hdfs", "subtree", "mock")

    def get(self, key: str, start: int = 0, size: int = -1) -> bytes:
        check_key(key, self.uri)
        with self._naming(key), self.filesystem.open_input_file(f"{self._base}/{key}") as file:
            rest = max(file.size() - start, 0)
            wanted = rest if size < 0 else min(size, rest)
            data: bytes = file.read_at(wanted, start) if wanted else b""
        if len(data) != wanted:  # Arrow does not report it
            reason = f"{len(data)} of {wanted} bytes came from {start} on"
            raise StoreUnavailableError(key, reason, False, self.uri)
        return data

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        folder, found = prefix.rpartition("/")[0], []
        base = f"{self._base}/{folder}".rstrip("/")
        with suppress(ObjectNotFoundError), self._naming(prefix):
            selector = fs.FileSelector(base, allow_not_found=True, recursive=True)
            found = self.filesystem.get_file_info(selector)
        skipped = len(self._base) + 1
        listed = [
            StoredObject(info.path[skipped:], info.size or 0, (info.mtime_ns or 0) // 1_000_000)
            for info in found
            if info.is_file and info.path.startswith(prefix, skipped)
        ]
        listed.sort()
        return iter(listed)

    def delete(self, keys: Collection[str]) -> None:
        for _ in at_once(self._delete, keys):
            pass

    def _delete(self, key: str) -> None:
        check_key(key, self.uri)
        with suppress(ObjectNotFoundError), self._naming(key):
            self.filesystem.delete_file(f"{self._base}/{key}")

    @contextmanager
    def _naming(self, key: str, given: Parts | None = None) -> Iterator[None]:
        """Arrow's errors as those of a store, except those of what is put."""
        try:
            with naming(key):
                yield
        except OSError as error:
            cause = error.__cause__
            if given is not None and given.failure in (error, cause) and given.failure:
                raise given.failure from None
            raise self._error(key, error) from error

    def _error(self, key: str, error: OSError) -> StoreError:
        reason = error.strerror or str(error)
        known: Any = {
            errno.ENOENT: ObjectNotFoundError,
            errno.ENOTDIR: ObjectNotFoundError,
            errno.EACCES: StoreDeniedError,
            errno.EPERM: StoreDeniedError,
        }.get(error.errno or 0)
        if known is not None:
            found: StoreError = known(key, reason, False, self.uri)
            return found
        if any(sign in reason for sign in _THROTTLED):
            return StoreThrottledError(key, reason, True, self.uri)
        return StoreUnavailableError(key, reason, True, self.uri)


def _sending_itself(files: fs.FileSystem) -> fs.FileSystem:
    """An S3 whose streams send a part while they are given it, from where its bytes are. By default
    they copy each part, and send it behind our back.

    A URI has no word for it, so the options come from what a pickle of the file system has.
    """
    if files.type_name != "s3":
        return files
    build, (options,) = files.__reduce__()
    changed: fs.FileSystem = build({**options, "background_writes": False})
    return changed


__all__ = ["ArrowObjectStore"]
