"""Directories made by hand: logs in words, and copies of a disk to damage."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from logstore.common.config import LogConfig
from logstore.log import LogOwner, PartitionLog
from logstore.recovery.recovery import RecoveryOptions
from logstore.storage.base import Storage
from logstore.testing import FaultyStorage, ManualClock
from logstore.testing.faulty import CrashMode
from tests.crash.model import Batch, data_batch, segment_files

DIRECTORY = "/d/t-0"
CONFIG = LogConfig(segment_index_bytes=1200, index_interval_bytes=100, retention_ms=-1)
T0 = 1_700_000_000_000
Files = dict[str, bytes]
MODES: tuple[tuple[CrashMode, int], ...] = (
    ("all_lost", 0),
    ("all_kept", 0),
    *((("random", seed)) for seed in range(6)),
)


def batches_of(
    count: int, *, records: int = 3, size: int = 60, epoch: int = 0, base: int = 0
) -> list[Batch]:
    """``count`` batches one after the other; each value is unique."""
    found = []
    for at in range(count):
        rows = [
            (b"k", b"%08d" % (base + row) + b"v" * (size - 8), T0 + at * 10 + row)
            for row in range(records)
        ]
        found.append(data_batch(base, epoch, rows))
        base += records
    return found


def open_log(
    storage: Storage,
    config: LogConfig = CONFIG,
    *,
    clean: bool = False,
    recovery_point: int | None = None,
    log_start_offset: int = 0,
    options: RecoveryOptions | None = None,
) -> PartitionLog:
    return PartitionLog.open(
        DIRECTORY,
        config,
        storage=storage,
        clock=ManualClock(T0 + 100_000),
        options=options,
        owner=LogOwner(
            managed=True,
            clean_shutdown=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
        ),
    )


def tree(storage: Storage, path: str = "/") -> Iterator[tuple[str, bytes]]:
    for entry in storage.scan_dir(path):
        inner = f"{path.rstrip('/')}/{entry.name}"
        if entry.is_dir:
            yield from tree(storage, inner)
        else:
            yield inner, storage.read_file(inner)


class Disk(FaultyStorage):
    """A disk that can keep what it was before each change, cache and all."""

    def __init__(self, *, clock: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(clock=clock)
        self._images: list[Image] | None = None

    @contextmanager
    def recording(self) -> Iterator[list[Image]]:
        """Yields the list of the images, which gets one more at the end."""
        images = self._images = []
        try:
            yield images
            self._keep("after the whole")
        finally:
            self._images = None

    def change(self, operation: str, path: str) -> None:
        if self._images is not None:
            self._keep(f"at {operation} of {path}")
        super().change(operation, path)

    def _keep(self, place: str) -> None:
        assert self._images is not None
        root = pickle.dumps(self.root, pickle.HIGHEST_PROTOCOL)
        self._images.append(Image(place, root, self._change_number))

    @classmethod
    def of(cls, image: Image, clock: Callable[[], float] = lambda: 0.0) -> Disk:
        disk = cls(clock=clock)
        disk.root, disk._change_number = pickle.loads(image.root), image.changes
        return disk


class Image(NamedTuple):
    """A disk at some moment; ``changes`` numbers its last change of a name."""

    place: str
    root: bytes
    changes: int

    def crashed(
        self, mode: CrashMode, seed: int, *, clock: Callable[[], float] = lambda: 0.0
    ) -> Disk:
        disk = Disk.of(self, clock)
        disk.crash(random.Random(seed), mode)
        return disk


Content = frozenset[tuple[str, bytes]]


def content_of(storage: Storage) -> Content:
    return frozenset(tree(storage))


def disk_with(files: Files) -> Disk:
    """A disk on which ``files`` are durable."""
    storage = Disk()
    for path, data in files.items():
        storage.make_dir(path.rpartition("/")[0])
        storage.write_file(path, data)
    storage.make_dir(DIRECTORY)
    for path in {"/", "/d", DIRECTORY}:
        storage.sync_dir(path)
    return storage


def written(
    batches: list[Batch], config: LogConfig = CONFIG, *, closed: bool = True, rolls: int = 0
) -> Files:
    """The files of a log that holds ``batches``, with a roll after every ``rolls`` of them."""
    storage = FaultyStorage()
    log = open_log(storage, config)
    for at, batch in enumerate(batches):
        if rolls and at and at % rolls == 0:
            log.roll()
        log.replica.append_as_follower(batch.data)
    if closed:
        log.close()
    else:
        log.crash()
    return dict(tree(storage))


def last_log(files: Files) -> str:
    return max(path for path in files if path.endswith(".log"))


def log_bytes(storage: Storage) -> bytes:
    """All ``.log`` files in order."""
    return b"".join(storage.read_file(path) for _, path in segment_files(storage, DIRECTORY))


def joined(batches: list[Batch]) -> bytes:
    return b"".join(batch.data for batch in batches)


def logs_only(files: Files) -> Files:
    return {path: data for path, data in files.items() if path.endswith(".log")}


def segment_path(base: int, suffix: str = ".log") -> str:
    return f"{DIRECTORY}/{base:020}{suffix}"


def crashes(
    prepare: Callable[[], Disk], act: Callable[[Disk], object]
) -> Iterator[tuple[FaultyStorage, str]]:
    """The disk after a crash at each change that ``act`` makes to it, with its place in words, and
    after the whole. Many places and modes leave the same files; what was seen is left out."""
    seen: set[Content] = set()
    storage = prepare()
    with storage.recording() as images:
        act(storage)
    for image in images:
        for mode, seed in MODES:
            crashed = image.crashed(mode, seed)
            content = content_of(crashed)
            if content not in seen:
                seen.add(content)
                yield crashed, f"{mode} {seed}, {image.place}"


def opening_crashes(
    prepare: Callable[[], Disk], open_it: Callable[[Disk], PartitionLog]
) -> Iterator[tuple[FaultyStorage, str]]:
    return crashes(prepare, lambda storage: open_it(storage).crash())


def assert_nothing_gone(storage: Storage, batches: list[Batch], place: str = "") -> None:
    """Each batch is in some file of the log, whatever its name is by now."""
    contents = [data for _, data in tree(storage, DIRECTORY)]
    for batch in batches:
        assert any(batch.data in data for data in contents), f"{place}: {batch} is gone"
