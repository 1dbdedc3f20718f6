"""One segment of the source: every batch checked, and everything beside it made from the batches.

Indexes of a running broker are half written, and none has a checksum. So those of a backup are
built anew from the ``.log``, as recovery does, while its checksums are checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from logstore.common.config import MAX_LONG, LogConfig
from logstore.common.errors import CorruptBatchError, CorruptSnapshotError, LogstoreError
from logstore.directory.listing import ListedSegment, PartitionLayout
from logstore.directory.segment_index import SegmentIndex
from logstore.directory.windows import BatchTable, Windows
from logstore.format import filenames
from logstore.format.index_entry import OFFSET_ENTRY, TXN_ENTRY, TXN_INDEX_VERSION, AbortedTxn
from logstore.format.producer_snapshot import SIZE_MAX, decode_snapshot, encode_snapshot
from logstore.kernels import HEADER_SIZE, SCAN_REASONS, crc32c
from logstore.segments.producer_state import ProducerStateManager
from logstore.segments.rebuild import scan_segment
from logstore.storage.base import File
from logstore.storage.memory import MemoryStorage
from logstore.storage.uri import join_uri, open_storage

WINDOW = 1 << 20
_UNBOUNDED = nullcontext()
_DIRECTORY = "/producers"
_NO_PRODUCERS = encode_snapshot([])


class SourceChangedError(LogstoreError):
    """A file of the source was cut, replaced or removed while it was read."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def _text(self) -> str:
        return f"{self.path}: {self.reason}"


class Ends(NamedTuple):
    """The checksums in the first and the last batch, −1 where there is none.

    They cover times, producers and records. So a log that was cut and grew again to the same size
    differs here, or in its leader epochs.
    """

    first: int
    last: int


class SourceDamage(NamedTuple):
    """Where a segment stops being sound, and why."""

    position: int
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class ScannedSegment:
    """A segment, or its part below the high watermark, as its batches show it.

    It is bytes ``[0, size)`` of the ``.log``, offsets ``[base_offset, end_offset)``. With
    ``damage`` these are what lies before it.
    """

    path: str
    base_offset: int
    end_offset: int
    size: int
    crc: int
    ends: Ends
    batches: int
    records: int
    max_timestamp: int
    epochs: tuple[tuple[int, int], ...]
    offset_index: bytes
    time_index: bytes
    txn_index: bytes
    snapshot: bytes
    damage: SourceDamage | None = None


@dataclass(slots=True)
class _Aborted:
    entries: list[bytes] = field(default_factory=list)

    def append(self, *txns: AbortedTxn) -> None:
        self.entries += (TXN_ENTRY.pack(TXN_INDEX_VERSION, *txn) for txn in txns)


@dataclass(slots=True)
class _ScannedFile:
    """The segment for the scan of recovery; each byte that is shown is counted in ``crc`` once."""

    log: File
    log_path: str
    base_offset: int
    size: int
    config: LogConfig
    txn_index: _Aborted = field(default_factory=_Aborted)
    crc: int = 0
    hashed: int = 0

    @contextmanager
    def view(self, position: int, size: int) -> Iterator[memoryview]:
        with self.log.view(position, size) as window:
            if len(window) < size:
                raise SourceChangedError(self.log_path, "it became shorter while it was read")
            fresh = position + size - self.hashed
            if fresh > 0:
                self.crc = crc32c(window[size - fresh :], self.crc)
                self.hashed += fresh
            yield window


class Producers:
    """The producers of a log, batch after batch; the state is in memory alone."""

    def __init__(self) -> None:
        self._storage = MemoryStorage()
        self._storage.make_dir(_DIRECTORY)
        self.state = ProducerStateManager(self._storage, _DIRECTORY, MAX_LONG)
        self.offset = -1
        """Up to where the state is known; −1 before the first segment."""

    def start(self, offset: int, snapshot: bytes | None) -> None:
        """Begin with a snapshot at ``offset``, or with no producer."""
        state = self.state
        state.truncate_fully_and_start_at(offset)
        self.offset = offset
        if snapshot is None:
            return
        self._storage.write_file(state.snapshot_path(offset), snapshot)
        state.set_snapshots([offset])
        state.load_for_replay(offset, 0)
        state.remove_snapshot(offset)

    def snapshot_at(self, offset: int) -> bytes:
        """The snapshot of the state, which is now that at ``offset``."""
        state = self.state
        self.offset = state.map_end_offset = offset
        state.on_high_watermark(offset)  # which forgets the transactions that ended
        if state.empty:
            return _NO_PRODUCERS
        state.last_snapshot_offset = -1
        state.take_snapshot(sync=False)
        data = self._storage.read_file(state.snapshot_path(offset))
        state.remove_snapshot(offset)
        return data


def read_snapshot(layout: PartitionLayout, offset: int) -> bytes | None:
    """The producer snapshot of the source at ``offset``; None where there is no sound one."""
    if offset not in layout.snapshots:
        return None
    name = filenames.segment_file_name(offset, filenames.SNAPSHOT_SUFFIX)
    storage, path = open_storage(join_uri(layout.uri, name))
    try:
        data = storage.read_file(path, SIZE_MAX)
        decode_snapshot(data, path)
    except (OSError, CorruptSnapshotError):
        return None
    return data


def scan_source(
    file: File,
    path: str,
    base_offset: int,
    size: int,
    config: LogConfig,
    producers: Producers,
) -> ScannedSegment:
    """Check bytes ``[0, size)`` of a segment, and make what goes with them into a backup.

    ``producers`` is the state at its base, and afterwards that at its end.

    Raises:
        SourceChangedError: the file was cut meanwhile.
        OSError: the medium refused.
    """
    source = _ScannedFile(file, path, base_offset, size, config)
    scan = scan_segment(source, producers=producers.state)
    end = scan.next_offset if scan.batch_count else base_offset
    damage, crc, whole = None, source.crc, scan.valid_bytes
    if whole < size:
        damage = SourceDamage(whole, end, SCAN_REASONS[scan.status])
        crc = crc_of(file, path, whole)
    elif source.hashed != size:
        raise SourceChangedError(path, "it was not read to its end")
    offset_index = scan.offset_index
    return ScannedSegment(
        path,
        base_offset,
        end,
        whole,
        crc,
        _ends(file, path, whole, offset_index),
        scan.batch_count,
        scan.record_count,
        scan.max_timestamp,
        tuple(scan.epochs),
        offset_index,
        scan.time_index + scan.final_time_entry(),
        b"".join(source.txn_index.entries),
        producers.snapshot_at(end),
        damage,
    )


def replay_source(file: File, path: str, base_offset: int, size: int, producers: Producers) -> None:
    """Bring the state of producers from the base of a segment to its end, as far as it is sound."""
    source = _ScannedFile(file, path, base_offset, size, LogConfig())
    with suppress(CorruptBatchError):
        scan_segment(source, producers=producers.state)
    producers.state.on_high_watermark(MAX_LONG)


def crc_of(file: File, path: str, size: int) -> int:
    crc = 0
    for part in parts_of(file, path, size):
        crc = crc32c(part, crc)
    return crc


def parts_of(
    file: File,
    path: str,
    size: int,
    window: int = WINDOW,
    memory: AbstractContextManager[object] = _UNBOUNDED,
) -> Iterator[memoryview]:
    """Bytes ``[0, size)`` of a file, piece by piece. ``memory`` is held with each.

    Raises:
        SourceChangedError: it has fewer, or cannot be read any more.
    """
    for position in range(0, size, window):
        want = min(window, size - position)
        try:
            with memory, file.view(position, want) as part:
                if len(part) < want:
                    raise SourceChangedError(path, "it became shorter while it was read")
                yield part
        except OSError as error:
            raise SourceChangedError(path, f"cannot be read: {error.strerror}") from error


def _ends(file: File, path: str, size: int, offset_index: bytes) -> Ends:
    near = 0
    if offset_index:
        near = OFFSET_ENTRY.unpack_from(offset_index, len(offset_index) - OFFSET_ENTRY.size)[1]
    return ends_at(file, last_position(file, path, near, size))


def ends_at(file: File, last: int | None) -> Ends:
    """The ends of a segment whose last batch is at byte ``last``."""
    if last is None:
        return Ends(-1, -1)
    return Ends(_crc_in(file.read_at(0, HEADER_SIZE)), _crc_in(file.read_at(last, HEADER_SIZE)))


def _crc_in(header: bytes) -> int:
    """The checksum that a batch has of itself; in the formats before it is 5 bytes further up."""
    magic = header[16] if len(header) > 16 else 0
    return int.from_bytes(header[17:21] if magic == 2 else header[12:16], "big")


def last_position(file: File, path: str, near: int, size: int) -> int | None:
    """The byte where the last batch before ``size`` begins; ``near`` is the start of an earlier."""
    last: int | None = None
    with suppress(CorruptBatchError):
        for _, position, table in Windows(file, path, near, size, window=WINDOW).tables(BatchTable):
            last = position + table.cells("position")[-1]
    return last


def size_below(layout: PartitionLayout, segment: ListedSegment, offset: int) -> int:
    """How many bytes of a segment are whole batches below ``offset``.

    Raises:
        OSError: the medium refused.
    """
    index = SegmentIndex(layout, segment)
    size = start = index.floor(offset)
    with suppress(CorruptBatchError), index.windows(position=start, open_end=True) as windows:
        for _, position, table in windows.tables(BatchTable):
            for at, length, last in zip(
                *map(table.cells, ("position", "size", "last_offset")), strict=True
            ):
                if last >= offset:
                    return size
                size = position + at + length
    return size


__all__ = [
    "WINDOW",
    "Ends",
    "Producers",
    "ScannedSegment",
    "SourceChangedError",
    "SourceDamage",
    "crc_of",
    "ends_at",
    "last_position",
    "parts_of",
    "read_snapshot",
    "replay_source",
    "scan_source",
    "size_below",
]
