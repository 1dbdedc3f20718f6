"""Opening a log: after a clean stop without reading records, after a crash by scanning.

Matches Kafka's ``LogLoader`` and ``LogSegment.recover`` (F-232 … F-268). Where this is stricter
(docs/recovery.md has the reasons): a torn tail is cut on a clean start too (F-268); offsets and
epochs that go backwards end the scan; the epoch cache above the recovery point is derived from the
batches alone; the cut bytes are kept aside when whole batches lie behind the damage.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import asdict, dataclass, field
from typing import Any

from checkpoints.checkpoint_file import FileState
from checkpoints.errors import MalformedCheckpointError
from checkpoints.leader_epoch_checkpoint import LeaderEpochCheckpoint
from checkpoints.partition_metadata import PartitionMetadataFile
from logstore.clock import Clock
from logstore.config import MAX_INT, LogConfig
from logstore.epochs import EpochEntry, LeaderEpochCache
from logstore.errors import CorruptBatchError, CorruptDataError, CorruptIndexError
from logstore.format import filenames
from logstore.kernels import (
    SCAN_COLUMNS,
    SCAN_REASONS,
    RecoveryScan,
)
from logstore.producer_state import ProducerStateManager
from logstore.replay import rebuild_producers, replay_from, scan_segment
from logstore.segment import Segment
from logstore.segment_view import WINDOW
from logstore.segments import Segments
from logstore.storage.base import FileInfo, Storage
from logstore.types import TopicPartition

CUT_SUFFIX = ".cut"


@dataclass(frozen=True, slots=True)
class RecoveryOptions:
    """``keep_cut``: what to do with bytes that recovery cuts off a ``.log``.

    ``"never"``, ``"always"``, or ``"valid"`` (default): keep them aside, as
    ``<segment>.log.<position>.cut``, when whole valid batches lie behind the damage, so that
    nothing good is lost without an operator's word. ``contiguous`` also ends the scan at a gap
    between offsets, which only a log that was never compacted can promise.
    """

    keep_cut: str = "valid"
    contiguous: bool = False


@dataclass(slots=True)
class RecoveryReport:
    """Everything that opening one log did. Bytes, counts and seconds; ``actions`` in order."""

    directory: str
    clean: bool
    recovery_point: int = 0
    log_start_offset: int = 0
    log_end_offset: int = 0
    segments: int = 0
    segments_scanned: int = 0
    bytes_scanned: int = 0
    batches_scanned: int = 0
    records_scanned: int = 0
    bytes_cut: int = 0
    cut_reason: str = ""
    bytes_valid_behind_cut: int = 0
    seconds: float = 0.0
    actions: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class LoadedLog:
    topic_partition: TopicPartition
    segments: Segments
    epochs: LeaderEpochCache
    producers: ProducerStateManager
    log_start_offset: int
    recovery_point: int
    log_end_offset: int
    topic_id: uuid.UUID | None
    report: RecoveryReport


def load_log(
    storage: Storage,
    directory: str,
    config: LogConfig,
    clock: Clock,
    *,
    clean_shutdown: bool,
    recovery_point: int,
    log_start_offset: int,
    options: RecoveryOptions,
    producer_id_expiration_ms: int,
) -> LoadedLog:
    """Open the partition directory, creating it when missing; see ``PartitionLog.open``."""
    loader = _Loader(storage, directory, config, clock, options)
    return loader.load(clean_shutdown, recovery_point, log_start_offset, producer_id_expiration_ms)


class _Loader:
    """The passes of F-238 … F-252 over one directory."""

    def __init__(
        self,
        storage: Storage,
        directory: str,
        config: LogConfig,
        clock: Clock,
        options: RecoveryOptions,
    ) -> None:
        self.storage = storage
        self.directory = directory
        self.config = config
        self.clock = clock
        self.options = options
        name = os.path.basename(os.path.normpath(directory))
        self.parsed = filenames.parse_partition_dir(name)
        self._segments: list[Segment] = []
        self._scratch: ProducerStateManager | None = None
        self._flushed = 0  # what lies below it is on the disk

    def load(
        self, clean: bool, recovery_point: int, log_start_offset: int, expiration_ms: int
    ) -> LoadedLog:
        started = self.clock.monotonic_ns()
        self.report = report = RecoveryReport(self.directory, clean, recovery_point)
        # A recovery point that only follows the log start was never reached by a flush (F-222).
        self._flushed = recovery_point if recovery_point > log_start_offset else 0
        if self.storage.info(self.directory) is None:
            self.storage.make_dir(self.directory)
        files = self._finish_swaps(self._scan_dir())
        self.producers = ProducerStateManager(self.storage, self.directory, expiration_ms)
        topic_id = self._read_topic_id(files)
        self._segments = segments = self._open_segments(files)
        deleting = self.parsed.suffix == filenames.DELETE_DIR_SUFFIX
        first_suspect = len(segments) if clean or deleting else _floor(segments, recovery_point)
        for segment in segments[:first_suspect]:  # the rest is rebuilt by recovery in any case
            self._check_indexes(segment)
        self.epochs = self._load_epochs(files, segments)
        if first_suspect < len(segments):
            segments = self._recover(segments, first_suspect)
        leo = self._end_of_log(segments, clean or deleting)
        if segments and leo < log_start_offset:
            self._act(f"log ends at {leo}, below its start {log_start_offset}: emptied")
            for segment in segments:
                segment.mark_deleted()
            self.epochs.clear(durable=False)
            segments = []
        if not segments:
            if report.actions:  # what was removed must not come back beside the new segment
                self.storage.sync_dir(self.directory)
            # Else a flush of a new log would be durable in a directory that nobody finds.
            self.storage.sync_dir(os.path.dirname(os.path.normpath(self.directory)) or ".")
            leo = log_start_offset
            segments = [self._create_segment(leo)]
        start = max(log_start_offset, segments[0].base_offset)
        leo = max(leo, start)
        segments[-1].state.next_offset = leo
        self.epochs.truncate_from_end(leo)
        self._derive_epochs(segments, start)
        self.epochs.truncate_from_start(log_start_offset)
        self.epochs.flush()
        container = Segments(segments)
        self.producers.remove_stray_snapshots(container.bases)
        self._load_producers(container, start, leo, clean)
        point = recovery_point
        if clean:
            point = leo
        elif recovery_point > leo:  # it was of other records: a cut came between
            report.warnings.append(f"recovery point {recovery_point} is above the log end {leo}")
            point = container.bases[-1]
        point = min(max(point, start), leo)
        if not clean or report.actions:  # nothing that was removed here may come back later
            self.storage.sync_dir(self.directory)
        # The process that died may have cut the log, and only the cache may know of it.
        segments[-1].state.cut_pending = not clean
        report.recovery_point = point
        report.log_start_offset, report.log_end_offset = start, leo
        report.segments = len(container)
        report.seconds = (self.clock.monotonic_ns() - started) / 1e9
        return LoadedLog(
            self.parsed.topic_partition, container, self.epochs, self.producers, start, point,
            leo, topic_id, report,
        )  # fmt: skip

    # -- files ---------------------------------------------------------------------------------

    def _scan_dir(self) -> dict[str, FileInfo]:
        return {f.name: f for f in self.storage.scan_dir(self.directory) if not f.is_dir}

    def _act(self, action: str) -> None:
        self.report.actions.append(action)

    def _remove(self, name: str, why: str) -> None:
        self._act(f"removed {name}: {why}")
        self.storage.remove(os.path.join(self.directory, name))

    def _finish_swaps(self, files: dict[str, FileInfo]) -> dict[str, FileInfo]:
        """Passes 1 to 3: leftovers of deletions, and of replacements that a crash cut short."""
        if not any(name.endswith(filenames.TRANSITIONAL_SUFFIXES) for name in files):
            return files
        parsed = {n: p for n in files if (p := filenames.parse_segment_file(n)) is not None}
        cleaned = [p.offset for p in parsed.values() if p.transition == filenames.CLEANED_SUFFIX]
        smallest = min(cleaned, default=2**63)
        gone: set[str] = set()
        for name, p in parsed.items():
            if p.transition == filenames.DELETED_SUFFIX:
                self._remove(name, "deletion was under way")
            elif p.transition == filenames.CLEANED_SUFFIX or (
                p.transition == filenames.SWAP_SUFFIX and p.offset >= smallest
            ):
                self._remove(name, "its replacement was never complete")
            else:
                continue
            gone.add(name)
        swaps = {
            n: p
            for n, p in parsed.items()
            if p.transition == filenames.SWAP_SUFFIX and n not in gone
        }
        if not swaps:
            if not gone:
                return files
            return {n: f for n, f in files.items() if n not in gone}
        self._replace_swapped(parsed, swaps, gone)
        return self._scan_dir()

    def _replace_swapped(
        self,
        parsed: dict[str, filenames.SegmentFile],
        swaps: dict[str, filenames.SegmentFile],
        gone: set[str],
    ) -> None:
        """F-239, F-240: drop what the complete ``.swap`` files replace, then rename them."""
        ranges = []
        for name, p in swaps.items():
            if p.suffix == filenames.LOG_SUFFIX:
                ranges.append((p.offset, self._next_offset_of_file(name, p.offset)))
        if ranges:
            low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
            for name, p in parsed.items():
                if name in gone or name in swaps or not low <= p.offset < high:
                    continue
                self._remove(name, f"replaced by the segments [{low}, {high})")
            self.storage.sync_dir(self.directory)  # no original comes back beside its replacement
        for name in sorted(swaps):
            final = name.removesuffix(filenames.SWAP_SUFFIX)
            self._act(f"renamed {name} to {final}")
            self.storage.rename(
                os.path.join(self.directory, name), os.path.join(self.directory, final)
            )
        self.storage.sync_dir(self.directory)

    def _next_offset_of_file(self, name: str, base_offset: int) -> int:
        path = os.path.join(self.directory, name)
        info = self.storage.info(path)
        segment = Segment(
            self.storage, self.directory, base_offset, self.config, self.clock,
            {filenames.LOG_SUFFIX: info.size if info else 0},
        )  # fmt: skip
        segment.suffix = filenames.SWAP_SUFFIX
        try:
            return segment.read_next_offset()[0]
        finally:
            segment.close()

    def _open_segments(self, files: dict[str, FileInfo]) -> list[Segment]:
        """Pass 4: indexes without a log go, every log becomes a segment (F-241, F-242)."""
        self._found: dict[int, dict[str, int]] = {}
        sizes: dict[int, dict[str, int]] = {}
        snapshots = []
        for name, info in files.items():
            p = filenames.parse_segment_file(name)
            if p is None or p.transition:
                continue
            if len(name) != 20 + len(p.suffix):
                self.report.warnings.append(f"{name}: not a canonical segment name, ignored")
            elif p.suffix == filenames.SNAPSHOT_SUFFIX:
                snapshots.append(p.offset)
            else:
                sizes.setdefault(p.offset, {})[p.suffix] = info.size
        self.producers.set_snapshots(snapshots)
        segments = []
        for base in sorted(sizes):
            found = sizes[base]
            if filenames.LOG_SUFFIX not in found:
                for suffix in found:
                    self._remove(filenames.segment_file_name(base, suffix), "there is no .log")
                continue
            if found[filenames.LOG_SUFFIX] > MAX_INT:  # no position in it would fit an index
                path = os.path.join(self.directory, filenames.segment_file_name(base, ".log"))
                size = found[filenames.LOG_SUFFIX]
                raise CorruptBatchError(path, MAX_INT, f"{size} bytes are too many for a segment")
            segment = Segment(self.storage, self.directory, base, self.config, self.clock, found)
            segment.name_durable = True  # once the directory is synced, at the end of the load
            self._found[base] = found
            segments.append(segment)
        return segments

    def _check_indexes(self, segment: Segment) -> None:
        """F-242: a missing offset index, or a bad transaction index, means a rebuild."""
        bad = None
        found = self._found[segment.base_offset]
        if filenames.INDEX_SUFFIX not in found:
            bad = "the offset index is missing" if segment.size else None
        elif filenames.TIME_INDEX_SUFFIX not in found and segment.size:
            bad = "the time index is missing"
        else:
            state = segment.state
            widths = {".index": 8, ".timeindex": 12, ".txnindex": 34}
            if any(size % widths.get(suffix, 1) for suffix, size in found.items()):
                bad = "the length of an index is not a multiple of its entry"
            elif state.offset_entries > segment.size // 61 + 1:
                bad = "the offset index has more entries than the log has batches"
        if bad is None and found.get(filenames.TXN_INDEX_SUFFIX):
            try:
                segment.txn_index.entries()
            except CorruptIndexError as error:
                bad = f"the transaction index is corrupt at byte {error.position}: {error.reason}"
        if bad is not None:
            self._act(f"rebuilt the indexes of {os.path.basename(segment.log_path)}: {bad}")
            self._rebuild(segment)

    def _rebuild(self, segment: Segment) -> None:
        """Indexes anew, the ``.log`` untouched; the transaction index from the snapshot before."""
        scratch = self._scratch_producers(segment.base_offset)
        segment.txn_index.reset()
        scan = scan_segment(segment, producers=scratch)
        scratch.map_end_offset = max(scan.next_offset, segment.base_offset)
        segment.install_indexes(scan.offset_index, scan.time_index + scan.final_time_entry())

    def _scratch_producers(self, base_offset: int) -> ProducerStateManager:
        """Producer state as it was at the segment's base, for replay only (F-234).

        From the newest readable snapshot, and a replay of the batches between it and the base.
        """
        snapshots = [offset for offset in self.producers.snapshots if offset <= base_offset]
        scratch = self._scratch
        newest = max(snapshots, default=0)
        if scratch is None or not newest <= scratch.map_end_offset <= base_offset:
            scratch = self._scratch = ProducerStateManager(
                self.storage, self.directory, self.producers.expiration_ms
            )
            scratch.set_snapshots(snapshots)
            scratch.load_for_replay(0, self.clock.wall_ms())
        for segment in self._segments:
            if segment.base_offset < base_offset:
                replay_from(scratch, segment, scratch.map_end_offset, base_offset)
        scratch.map_end_offset = base_offset
        return scratch

    # -- epochs, topic id ----------------------------------------------------------------------

    def _read_topic_id(self, files: dict[str, FileInfo]) -> uuid.UUID | None:
        if filenames.PARTITION_METADATA not in files:
            return None
        path = os.path.join(self.directory, filenames.PARTITION_METADATA)
        metadata = PartitionMetadataFile(path, self.storage).read()
        return metadata.topic_id if metadata else None

    def _load_epochs(self, files: dict[str, FileInfo], segments: list[Segment]) -> LeaderEpochCache:
        """The epoch file; when it cannot be read, what the batches say (S-54)."""
        path = os.path.join(self.directory, filenames.LEADER_EPOCH_CHECKPOINT)
        checkpoint = LeaderEpochCheckpoint(path, self.storage)
        has_data = any(s.size for s in segments)
        try:
            state, entries = checkpoint.inspect()
        except MalformedCheckpointError as error:
            self.report.warnings.append(f"{error}; rebuilt from the batches")
            state, entries = FileState.MISSING, []
        else:
            if state is FileState.MISSING:
                # Kafka creates it empty when a log is first opened (F-33).
                self.storage.write_file(path, b"")
            if has_data and not entries:
                self.report.warnings.append(
                    f"{filenames.LEADER_EPOCH_CHECKPOINT} is {state.name.lower()} "
                    "although the log holds data; rebuilt from the batches"
                )
        cache = LeaderEpochCache(checkpoint, [EpochEntry(*entry) for entry in entries])
        if [tuple(entry) for entry in cache.entries] != entries:
            self.report.warnings.append(
                f"{filenames.LEADER_EPOCH_CHECKPOINT} does not ascend; rebuilt from the batches"
            )
            cache.clear(durable=False)
        return cache

    def _derive_epochs(self, segments: list[Segment], start: int) -> None:
        """Epochs of the batches in front of what the file knows, from their headers alone.

        The file may know less than the log holds: it is damaged (S-54), or a crash brought back
        records that were deleted.
        """
        known = self.epochs.entries
        end = known[0].start_offset if known else 2**63
        if start >= end or not any(s.size for s in segments if s.base_offset < end):
            return
        self.epochs.clear(durable=False)
        for segment in segments:
            if segment.base_offset >= end:
                break
            for rows, columns, capacity in segment.scan(0, check_crc=False):
                at = _EPOCH * capacity
                epochs = columns[at : at + rows]
                if max(epochs) <= self.epochs.latest_epoch:
                    continue
                for row, epoch in enumerate(epochs):
                    base = columns[_BASE * capacity + row]
                    if epoch > self.epochs.latest_epoch and base < end:
                        self.epochs.assign(epoch, base, durable=False)
        derived = len(self.epochs.entries)
        for entry in known:
            self.epochs.assign(*entry, durable=False)
        if derived:
            self._act(f"{derived} entries of the epoch cache derived from batches")

    # -- recovery ------------------------------------------------------------------------------

    def _recover(self, segments: list[Segment], first: int) -> list[Segment]:
        """F-245: recover the segments from ``first`` on, in order, up to the first cut."""
        suspects = segments[first:]
        base = suspects[0].base_offset
        # What the file says of these segments may be older than their batches, or younger (S-37).
        self.epochs.truncate_from_end(base)
        producers = self._scratch_producers(base)
        for at, segment in enumerate(suspects):
            if self._recover_segment(segment, producers, suspects[at + 1 :]):
                return segments[: first + at + 1]
        return segments

    def _discard_later(self, segment: Segment, later: list[Segment]) -> None:
        """Remove what follows a cut, durably before the cut: a crash in between must not leave
        these segments behind one that looks whole."""
        for other in later:
            self._act(
                f"removed segment {other.base_offset}: it follows a cut in segment "
                f"{segment.base_offset}"
            )
            self.report.bytes_cut += other.size
            self._discard(other)
        if later:
            self.storage.sync_dir(self.directory)

    def _discard(self, segment: Segment) -> None:
        """Set a whole segment aside or delete it; its files are gone from the log."""
        keep = self.options.keep_cut == "always" or (
            self.options.keep_cut == "valid" and _has_valid_batch(segment)
        )
        if keep:
            target = f"{segment.log_path}.0{CUT_SUFFIX}"
            segment.close()
            self.storage.rename(segment.log_path, target)
            self._act(f"kept {os.path.basename(target)}")
        for path in segment.mark_deleted():
            self.storage.remove(path)
        self.producers.remove_snapshot(segment.base_offset)

    def _recover_segment(
        self, segment: Segment, producers: ProducerStateManager, later: list[Segment]
    ) -> int:
        """F-232, F-233: scan, rebuild, cut; the bytes cut. A cut takes the ``later`` ones along."""
        producers.map_end_offset = segment.base_offset
        segment.txn_index.reset()
        scan = scan_segment(
            segment,
            last_epoch=self.epochs.latest_epoch,
            contiguous=self.options.contiguous,
            producers=producers,
        )
        report = self.report
        report.segments_scanned += 1
        report.bytes_scanned += segment.size
        report.batches_scanned += scan.batch_count
        report.records_scanned += scan.record_count
        for epoch, start in scan.epochs:
            self.epochs.assign(epoch, start, durable=False)
        cut = segment.size - scan.valid_bytes
        if cut:
            self._discard_later(segment, later)
            self._cut(segment, scan)
        state = segment.state
        state.max_timestamp = scan.max_timestamp
        state.offset_of_max_timestamp = scan.offset_of_max_timestamp
        state.rolling_timestamp = scan.first_batch_max_timestamp if scan.batch_count else -1
        state.size = scan.valid_bytes
        state.next_offset = scan.next_offset if scan.batch_count else segment.base_offset
        segment.install_indexes(scan.offset_index, scan.time_index + scan.final_time_entry())
        self._write_again(segment)
        producers.map_end_offset = state.next_offset
        producers.snapshots = self.producers.snapshots
        producers.take_snapshot(sync=False)
        return cut

    def _write_again(self, segment: Segment) -> None:
        """Have the next flush write whatever no flush has reached.

        After a failed sync the kernel shows pages that never reached the disk, and takes them for
        clean: the sync of the process that comes next would succeed without them.
        """
        position, size = 0, segment.size
        if segment.base_offset < self._flushed <= segment.state.next_offset:
            span = segment.find(self._flushed)
            position = size if span is None else span.position
        if position < size:
            segment.log.rewrite(position, size - position)

    def _cut(self, segment: Segment, scan: RecoveryScan) -> None:
        position, size = scan.valid_bytes, segment.size
        name = os.path.basename(segment.log_path)
        reason = SCAN_REASONS[scan.status]
        valid = _valid_bytes_behind(segment, position)
        report = self.report
        report.bytes_cut += size - position
        report.cut_reason = report.cut_reason or f"{name} at byte {position}: {reason}"
        report.bytes_valid_behind_cut += valid
        self._act(f"cut {size - position} bytes off {name} at byte {position}: {reason}")
        if valid:
            report.warnings.append(
                f"{name}: {valid} bytes of whole batches lie behind the damage at byte {position}"
            )
        if self.options.keep_cut == "always" or (valid and self.options.keep_cut == "valid"):
            target = f"{segment.log_path}.{position}{CUT_SUFFIX}"
            self._copy(segment, position, target)
            self._act(f"kept {os.path.basename(target)}")
        segment.log.truncate(position)
        segment.log.sync()  # else the next append may find its way to the disk without the cut
        segment.file_size = position

    def _copy(self, segment: Segment, position: int, target: str) -> None:
        copy = self.storage.open(target, create=True)
        try:
            copy.truncate(0)
            for at in range(position, segment.size, WINDOW):
                data = segment.log.read_at(at, min(WINDOW, segment.size - at))
                copy.write_at(at - position, data)
            copy.sync()
        finally:
            copy.close()
        self.storage.sync_dir(self.directory)  # the copy is safe before anything is cut

    # -- end, producers ------------------------------------------------------------------------

    def _end_of_log(self, segments: list[Segment], clean: bool) -> int:
        """F-252; on a clean start a torn tail behind the last whole batch is cut (F-268)."""
        if not segments:
            return 0
        active = segments[-1]
        if not clean:
            return active.state.next_offset
        try:
            next_offset, end = active.read_next_offset()
        except CorruptBatchError as error:
            next_offset, end = self._end_before(active, error)
        if end < active.size:
            torn = active.size - end
            self.report.bytes_cut += torn
            self.report.cut_reason = f"{os.path.basename(active.log_path)} at byte {end}: torn tail"
            self._act(f"cut {torn} bytes off {os.path.basename(active.log_path)}: torn tail")
            if self.options.keep_cut == "always":
                self._copy(active, end, f"{active.log_path}.{end}{CUT_SUFFIX}")
            active.log.truncate(end)
            active.log.sync()
            active.file_size = active.state.size = end
        active.state.next_offset = next_offset
        return next_offset

    @staticmethod
    def _end_before(segment: Segment, error: CorruptDataError) -> tuple[int, int]:
        end, next_offset = 0, segment.base_offset
        try:
            for span in segment.walk(0):
                next_offset, end = span.last_offset + 1, span.position + span.size
        except CorruptBatchError:
            pass
        return next_offset, min(end, error.position)

    def _load_producers(self, segments: Segments, start: int, leo: int, clean: bool) -> None:
        """F-251, F-253: rebuild to the log end; a clean start without snapshots forgets."""
        producers = self.producers
        if clean and not producers.snapshots:
            for base in [*segments.bases[-2:], leo]:
                if base > start or base == leo:
                    producers.take_empty_snapshot(base)
            producers.map_end_offset = leo
            producers.last_snapshot_offset = leo
            return
        rebuild_producers(producers, segments.snapshot(), start, leo, self.clock.wall_ms())

    def _create_segment(self, base_offset: int) -> Segment:
        segment = Segment(self.storage, self.directory, base_offset, self.config, self.clock)
        segment.create()
        return segment


def _valid_bytes_behind(segment: Segment, position: int) -> int:
    """Bytes of whole, CRC-valid batches behind a bad one whose size field can be believed."""
    head = segment.log.read_at(position, 12)
    if len(head) < 12:
        return 0
    size = int.from_bytes(head[8:12], "big", signed=True) + 12
    if not 61 <= size <= segment.size - position:
        return 0
    valid = 0
    for rows, columns, capacity in segment.scan(position + size, check_crc=True):
        sizes = columns[_SIZE * capacity : _SIZE * capacity + rows]
        flags = columns[_VALID * capacity : _VALID * capacity + rows]
        valid += sum(s for s, ok in zip(sizes, flags, strict=True) if ok)
    return valid


def _floor(segments: list[Segment], offset: int) -> int:
    """Index of the segment that holds ``offset``: at least the last one is a suspect (S-35)."""
    at = sum(segment.base_offset <= offset for segment in segments) - 1
    return max(at, 0)


def _has_valid_batch(segment: Segment) -> bool:
    return any(rows for rows, _, _ in segment.scan(0, check_crc=True))


_COLUMN = {name: index for index, name in enumerate(SCAN_COLUMNS)}
_SIZE, _VALID = _COLUMN["size"], _COLUMN["valid"]
_BASE, _EPOCH = _COLUMN["base_offset"], _COLUMN["leader_epoch"]
__all__ = ["LoadedLog", "RecoveryOptions", "RecoveryReport", "load_log"]
