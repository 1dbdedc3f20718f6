"""Open files of a process that has more segments than descriptors.

The ``.log`` file of a segment is opened for a read, and closed when descriptors are needed.

A descriptor that is closed during a ``pread`` may already name another file, whose bytes would look
just as valid. So a user of a file *holds* it, and a held file is never closed. Files that are not
held stay open up to a limit that all logs of the process share. Segments that are open for appends
have a limit too: the log that was opened longest ago rests until its next append. Slices that
are being sent have descriptors of their own, up to a limit too; beyond it bytes are read.
"""

from __future__ import annotations

import errno
import resource
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Protocol, TypeVar
from weakref import WeakKeyDictionary

from logstore.common.errors import ResourceBusyError
from logstore.common.forks import free_in_child
from logstore.format.filenames import SWAP_SUFFIX
from logstore.storage.base import File, Storage
from logstore.storage.file_slice import FileSlice, live_slices

T = TypeVar("T")

_OF_ACTIVE = 5  # descriptors of an active segment: its .log, and two for each mapped index

# No file is opened or closed under this lock, so it is held only for a moment.
_lock = free_in_child(threading.Lock())
_idle: OrderedDict[LogFile, None] = OrderedDict()  # open and not held, longest first
_active: WeakKeyDictionary[IdleLog, None] = WeakKeyDictionary()  # open for appends, longest first


class IdleLog(Protocol):
    """A log that is open for appends."""

    def try_idle(self) -> bool:
        """Release the descriptors. Returns whether it did. Never waits for a lock."""


def _shares() -> tuple[int, int, int]:
    """Idle files, active segments and slices: a quarter, a half and an eighth of what the process
    may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        soft = 1 << 20
    return (
        max(16, min(1024, soft // 4)),
        max(8, soft // 2 // _OF_ACTIVE),
        max(16, min(4096, soft // 8)),
    )


_IDLE_MAX, _ACTIVE_MAX, _SLICES_MAX = _shares()


def raise_limit() -> None:
    """Raise the descriptor limit as far as the system allows, as a JVM does at its start."""
    global _IDLE_MAX, _ACTIVE_MAX, _SLICES_MAX
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    _IDLE_MAX, _ACTIVE_MAX, _SLICES_MAX = _shares()


def opened_for_appends(log: IdleLog) -> None:
    """Count a log as open for appends. If there are too many, others rest.

    May be called with the lock of ``log``. It takes the locks of other logs only if they are free.
    """
    with _lock:
        _active.pop(log, None)
        _active[log] = None
        oldest = list(islice(_active, max(len(_active) - _ACTIVE_MAX, 0)))
    for other in oldest:
        if other is not log and other.try_idle():
            closed_for_appends(other)


def closed_for_appends(log: IdleLog) -> None:
    """Note that a log is closed or rests. Idempotent."""
    with _lock:
        _active.pop(log, None)


class LogFile:
    """The ``.log`` file of one segment, with any number of holders in any thread."""

    def __init__(self, storage: Storage, path: Callable[[], str]) -> None:
        """``path`` is called at each opening, because a segment may be renamed."""
        self._storage = storage
        self._path = path
        self._file: File | None = None
        self._holders = 0
        self._windows = 0
        self._sliced_end = 0  # no slice that was given out ends behind it
        self._barred = False
        self._retired = False

    def hold(self) -> File:
        """Open the file, and keep it open until ``release``.

        Raises:
            OSError: it cannot be opened; ESTALE after ``retire``.
        """
        with _lock:
            file = self._file
            if file is not None and not self._retired:
                self._holders += 1
                _idle.pop(self, None)
                return file
        return self._adopt(self._open())

    def _adopt(self, opened: File) -> File:
        """Keep a file that was just opened, unless another thread opened it first."""
        with _lock:
            if not self._retired:
                if self._file is None:
                    self._file, opened_too = opened, None
                else:
                    opened_too = opened
                self._holders += 1
                _idle.pop(self, None)
                file = self._file
            else:
                file, opened_too = None, opened
        if opened_too is not None:
            opened_too.close()
        if file is None:
            raise OSError(errno.ESTALE, "the segment was closed or removed", self._path())
        return file

    def _open(self) -> File:
        if self._retired:
            raise OSError(errno.ESTALE, "the segment was closed or removed", self._path())
        path = self._path()
        try:
            return self._storage.open(path)
        except FileNotFoundError:
            final = path.removesuffix(SWAP_SUFFIX)
            if final == path:
                raise
            return self._storage.open(final)  # it is being renamed
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            close_idle()
            return self._storage.open(path)

    def create(self) -> File:
        """Create the file, and hold it."""
        return self._adopt(self._storage.open(self._path(), create=True))

    def renamed(self) -> None:
        """Take over the changed path, which errors of the open file then name."""
        with _lock:
            if self._file is not None:
                self._file.path = self._path()

    def release(self) -> None:
        done: list[File] = []
        with _lock:
            self._holders -= 1
            if self._holders == 0 and self._file is not None:
                if self._retired:
                    done, self._file = [self._file], None
                else:
                    _idle[self] = None
                    done = _evict(_IDLE_MAX)
        for file in done:
            file.close()

    def retire(self) -> None:
        """Allow no new holders. The file is closed when the last one lets go. Idempotent."""
        done = None
        with _lock:
            self._retired = True
            _idle.pop(self, None)
            if self._holders == 0:
                done, self._file = self._file, None
        if done is not None:
            done.close()

    @contextmanager
    def held(self) -> Iterator[File]:
        file = self.hold()
        try:
            yield file
        finally:
            self.release()

    @contextmanager
    def window(self, position: int, size: int) -> Iterator[memoryview]:
        """Bytes of the file, mapped if that is faster. They do not change inside the block."""
        with self.held() as file:
            with _lock:
                mapped = not self._barred
                self._windows += mapped
            if not mapped:  # the file is about to be cut
                yield memoryview(file.read_at(position, size))
                return
            try:
                with file.view(position, size) as view:
                    yield view
            finally:
                with _lock:
                    self._windows -= 1

    def slice(self, position: int, size: int) -> FileSlice | None:
        """Bytes of the file for ``sendfile``; they do not change as long as the slice lives, nor
        later: the kernel may still be sending them.

        None: the medium has no descriptors, or too many are taken, or the file is about to be cut.
        The bytes must be read then.
        """
        with self.held() as file:
            descriptor = file.fileno()
            if descriptor < 0:
                return None
            with _lock:
                if self._barred or live_slices() >= _SLICES_MAX:
                    return None
                self._sliced_end = max(self._sliced_end, position + size)
            try:
                return FileSlice(file.path, descriptor, position, size)
            except OSError:
                return None

    def bar(self) -> None:
        """Give out neither windows nor slices any more: another process may cut the file."""
        self._barred = True

    @contextmanager
    def truncating(self, size: int) -> Iterator[bool]:
        """Whether somebody has a mapped window of the file, or was given a slice that ends behind
        its first ``size`` bytes; nobody gets one inside the block.

        Bytes that these show must not change, and touching a page that a truncation took away ends
        the process.
        """
        with _lock:
            self._barred = True
            shown = self._windows > 0 or self._sliced_end > size
        try:
            yield shown
        finally:
            with _lock:
                self._barred = False


def close_idle() -> None:
    """Close every file that is not held, because descriptors are short."""
    with _lock:
        done = _evict(0)
    for file in done:
        file.close()


def with_idle_closed(call: Callable[[], T]) -> T:
    """Run ``call``. If descriptors or memory are short, close idle files and run it once more."""
    try:
        return call()
    except ResourceBusyError:
        close_idle()
        return call()


def _evict(limit: int) -> list[File]:
    """Remove files until ``limit`` are idle. The caller closes them, without the lock."""
    done: list[File] = []
    while len(_idle) > limit:
        log_file, _ = _idle.popitem(last=False)
        if log_file._file is not None:
            done.append(log_file._file)
            log_file._file = None
    return done
