"""Opening a log: after a clean stop without reading records, after a crash by scanning.

Matches Kafka's ``LogLoader`` and ``LogSegment.recover`` (F-232 … F-268). Where this is stricter
(docs/recovery.md has the reasons): a torn tail is cut on a clean start too (F-268); offsets that go
backwards end the scan; the epoch cache above the recovery point is derived from the batches alone;
whatever valid is taken out of a log is kept aside.
"""

from __future__ import annotations

import os
import uuid
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from checkpoints.checkpoint_file import FileState
from checkpoints.errors import MalformedCheckpointError
from checkpoints.leader_epoch_checkpoint import LeaderEpochCheckpoint
from checkpoints.partition_metadata import PartitionMetadataFile
from logstore.clock import Clock
from logstore.config import MAX_INT, LogConfig
from logstore.epochs import EpochEntry, LeaderEpochCache
from logstore.errors import CorruptBatchError, CorruptDataError, CorruptIndexError
from logstore.format import filenames
from logstore.kernels import SCAN_BAD_OFFSET, SCAN_COLUMNS, SCAN_REASONS, RecoveryScan
from logstore.producer_state import ProducerStateManager
from logstore.recovery_report import RecoveryOptions, RecoveryReport
from logstore.replacements import Replacements, plan_split, roll_marks
from logstore.replay import rebuild_producers, replay_from, scan_segment
from logstore.segment import Segment
from logstore.segments import Segments
from logstore.set_aside import UNFINISHED_SUFFIX, Remover
from logstore.storage.base import FileInfo, Storage
from logstore.types import TopicPartition


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
        self.remover = Remover(self.storage, self.directory, self.options.keep_cut, report)
        self.replacements = Replacements(
            self.storage, self.directory, self.config, self.clock, self._act
        )
        deleting = self.parsed.suffix == filenames.DELETE_DIR_SUFFIX
        files = self._list_files(self._flushed, deleting)
        self.producers = ProducerStateManager(self.storage, self.directory, expiration_ms)
        topic_id = self._read_topic_id(files)
        self._segments = self._open_segments(files)
        trusted = clean or deleting
        if trusted and not deleting:
            self._split_wide_segments()
        segments = self._segments
        first_suspect = len(segments) if trusted else _floor(segments, recovery_point)
        if self._rolled:  # they stand only where they follow what a scan finds
            first_suspect = min(first_suspect, max(len(segments) - 1, 0))
        for segment in segments[:first_suspect]:  # the rest is rebuilt by recovery in any case
            self._check_indexes(segment)
        self.epochs = self._load_epochs(files, segments)
        if first_suspect < len(segments) or self._rolled:
            segments = self._recover(first_suspect, log_start_offset)
        leo = self._end_of_log(segments, trusted)
        end_found = leo
        if segments and leo < log_start_offset:
            segments = self._empty(segments, leo, log_start_offset)
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
            point = container.bases[-1]
        point = min(max(point, start), leo)
        if recovery_point > end_found and not deleting:
            report.offsets_lost = (end_found, recovery_point)
            report.warnings.append(
                f"recovery point {recovery_point} is above the log end {end_found}: offsets "
                f"[{end_found}, {recovery_point}) are lost, unless the log was truncated"
            )
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

    def _list_files(self, flushed: int, deleting: bool) -> dict[str, FileInfo]:
        """What is in the directory once interrupted replacements are finished; rolls that wait
        for the segment before them are put apart."""
        files = self._scan_dir()
        rolled = [] if deleting else roll_marks(files, flushed)
        self._rolled = deque(rolled)
        waiting = {_rolled_name(base) for base in rolled}
        if self.replacements.finish({n: f for n, f in files.items() if n not in waiting}):
            files = self._scan_dir()
        for name in [n for n in files if n.endswith(UNFINISHED_SUFFIX)]:
            self._remove(name, "what it was to keep is still in the log")
            del files[name]
        return files

    def _open_segments(self, files: dict[str, FileInfo]) -> list[Segment]:
        """Pass 4: indexes without a log go, every log becomes a segment (F-241, F-242)."""
        self._found: dict[int, dict[str, int]] = {}
        self._rolled_files: dict[int, dict[str, int]] = {}
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
        for base in self._rolled:
            sizes.setdefault(base, {})[_ROLLED] = files[_rolled_name(base)].size
        segments = []
        for base in sorted(sizes):
            found = sizes[base]
            if filenames.LOG_SUFFIX in found:
                segments.append(self._open_segment(base, found))
            elif _ROLLED in found:
                self._rolled_files[base] = found
            else:
                for suffix in found:
                    self._remove(filenames.segment_file_name(base, suffix), "there is no .log")
        return segments

    def _open_segment(self, base: int, found: dict[str, int], suffix: str = "") -> Segment:
        size = found[filenames.LOG_SUFFIX]
        if size > MAX_INT:  # no position in it would fit an index
            path = os.path.join(self.directory, filenames.segment_file_name(base, ".log"))
            raise CorruptBatchError(path, MAX_INT, f"{size} bytes are too many for a segment")
        segment = Segment(
            self.storage, self.directory, base, self.config, self.clock, found, suffix
        )
        segment.name_durable = True  # once the directory is synced, at the end of the load
        self._found[base] = found
        return segment

    def _open_rolled(self, base: int, suffix: str) -> Segment:
        """A segment that waits for the one before it, under the name its ``.log`` has now."""
        found = dict(self._rolled_files[base])
        found[filenames.LOG_SUFFIX] = found.pop(_ROLLED)
        return self._open_segment(base, found, suffix)

    # -- segments that span too many offsets ---------------------------------------------------

    def _split_wide_segments(self) -> None:
        """F-243 without a scan of records: only a segment far from the next one is looked at."""
        segments = self._segments
        for at in reversed(range(len(segments) - 1)):
            segment, limit = segments[at], segments[at + 1].base_offset
            if limit - segment.base_offset > MAX_INT + 1 and _is_too_wide(segment):
                segments[at : at + 1] = self._split(segment, scan_segment(segment), limit)

    def _split(
        self, segment: Segment, scan: RecoveryScan, limit: int, later: deque[Segment] | None = None
    ) -> list[Segment]:
        """Divide a segment whose batches span more than 2³¹−1 offsets (F-243); else it alone.

        Damage behind them is cut first, which takes the ``later`` segments along; without these,
        on a clean start, the segment stays as it is.
        """
        if scan.status != SCAN_BAD_OFFSET or self.options.contiguous:
            return [segment]
        plan = plan_split(segment, scan, limit)
        if len(plan.pieces) == 1 or (later is None and plan.end < segment.size):
            return [segment]
        if plan.end < segment.size and later is not None:
            self._remove_later(f"it follows a cut in segment {segment.base_offset}", later)
            later.clear()
            self.remover.cut(segment, plan.end, SCAN_REASONS[plan.status])
            segment.state.size = plan.end
        self._scratch = None  # it holds what a scan has replayed
        producers = self._scratch_producers(segment.base_offset)
        name = os.path.basename(segment.log_path)
        bases = [piece.base_offset for piece in plan.pieces]
        self._act(f"split {name}, which spans too many offsets, into segments {bases}")
        self.report.segments_split += 1
        self.replacements.split(segment, plan.pieces, producers)
        self._scratch = None
        files = self._scan_dir()
        snapshots = [o for o in self.producers.snapshots if self._snapshot_name(o) in files]
        self.producers.set_snapshots(snapshots)
        return [self._open_segment(base, _sizes(files, base)) for base in bases]

    @staticmethod
    def _snapshot_name(offset: int) -> str:
        return filenames.segment_file_name(offset, filenames.SNAPSHOT_SUFFIX)

    # -- indexes -------------------------------------------------------------------------------

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
            for offset in scratch.load_for_replay(0, self.clock.wall_ms()):
                self._act(f"removed {self._snapshot_name(offset)}: it cannot be read")
                self.producers.remove_snapshot(offset)  # its name is in the list of this one
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

    def _recover(self, first: int, log_start_offset: int) -> list[Segment]:
        """F-245: recover the segments from ``first`` on, in order, up to the first cut.

        Then the segments of rolls that the crash left unsettled, as long as each begins where the
        one before it ends.
        """
        done, pending = self._segments[:first], deque(self._segments[first:])
        base = pending[0].base_offset if pending else self._rolled[0]
        # What the file says of these segments may be older than their batches, or younger (S-37).
        self.epochs.truncate_from_end(base)
        producers = self._scratch_producers(base)
        while pending or self._settle_roll(done, pending, log_start_offset):
            segment = pending.popleft()
            following = pending[0].base_offset if pending else next(iter(self._rolled), 2**63)
            scan = self._scan(segment, producers)
            split = self._split(segment, scan, following, pending)
            if len(split) > 1:
                pending.extendleft(reversed(split))
                self._segments = [*done, *pending]
                producers = self._scratch_producers(segment.base_offset)
                continue
            done.append(segment)
            if self._recover_segment(segment, scan, producers, pending):
                break
        return done

    def _settle_roll(
        self, done: list[Segment], pending: deque[Segment], log_start_offset: int
    ) -> bool:
        """Take the next rolled segment into the log, or set it and all later ones aside.

        What lies below the log start may be missing: those records are deleted.
        """
        if not self._rolled:
            return False
        base = self._rolled[0]
        end = done[-1].state.next_offset if done else -1
        if base != end and base > log_start_offset:
            self._remove_later(f"the segment before it ends at {end}" if done else
                               "the segment before it is missing")  # fmt: skip
            return False
        self._rolled.popleft()
        if done:
            done[-1].log.sync()  # else its end may be lost while the next segment stays
        self.replacements.settle_roll(base)
        pending.append(self._open_rolled(base, ""))
        self._segments = [*done, *pending]
        return True

    def _remove_later(self, why: str, later: Iterable[Segment] = ()) -> None:
        """Take out what follows the end of the log, durably before that end is cut: a crash in
        between must not leave these segments behind one that looks whole."""
        rolled = [self._open_rolled(base, filenames.SWAP_SUFFIX) for base in self._rolled]
        self._rolled.clear()
        segments = [*later, *rolled]
        for segment in segments:
            self.remover.remove(segment, why)
            self.producers.remove_snapshot(segment.base_offset)
        if segments:
            self.storage.sync_dir(self.directory)

    def _scan(self, segment: Segment, producers: ProducerStateManager) -> RecoveryScan:
        """F-232: look at every batch, and replay producers and transactions."""
        producers.map_end_offset = segment.base_offset
        segment.txn_index.reset()
        return scan_segment(
            segment,
            last_epoch=self.epochs.latest_epoch,
            contiguous=self.options.contiguous,
            producers=producers,
        )

    def _recover_segment(
        self,
        segment: Segment,
        scan: RecoveryScan,
        producers: ProducerStateManager,
        later: Iterable[Segment],
    ) -> int:
        """F-233: rebuild, cut; the bytes cut. A cut takes the ``later`` segments along."""
        report = self.report
        report.segments_scanned += 1
        report.bytes_scanned += segment.size
        report.batches_scanned += scan.batch_count
        report.records_scanned += scan.record_count
        for epoch, start in scan.epochs:
            self.epochs.assign(epoch, start, durable=False)
        if scan.epoch_falls:
            report.epoch_falls += scan.epoch_falls
            report.warnings.append(
                f"{os.path.basename(segment.log_path)}: leader epochs fall in {scan.epoch_falls} "
                f"places, first at offset {scan.first_fall_offset}; the batches are kept"
            )
        cut = segment.size - scan.valid_bytes
        if cut:
            self._remove_later(f"it follows a cut in segment {segment.base_offset}", later)
            self.remover.cut(segment, scan.valid_bytes, SCAN_REASONS[scan.status])
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
            self.remover.cut(active, end, "torn tail")
            active.state.size = end
        active.state.next_offset = next_offset
        return next_offset

    def _empty(self, segments: list[Segment], leo: int, log_start_offset: int) -> list[Segment]:
        """F-246: nothing at or above the log start is left. What there is goes out of the log."""
        self._act(f"log ends at {leo}, below its start {log_start_offset}: emptied")
        for segment in segments:
            self.remover.remove(
                segment, f"the log ends at {leo}, below its start {log_start_offset}"
            )
        self.epochs.clear(durable=False)
        return []

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


def _floor(segments: list[Segment], offset: int) -> int:
    """Index of the segment that holds ``offset``: at least the last one is a suspect (S-35)."""
    at = sum(segment.base_offset <= offset for segment in segments) - 1
    return max(at, 0)


def _is_too_wide(segment: Segment) -> bool:
    """Whether an offset lies more than 2³¹−1 above the base, going by headers."""
    largest = segment.base_offset + MAX_INT
    return any(
        max(columns[_LAST * capacity : _LAST * capacity + rows]) > largest
        for rows, columns, capacity in segment.scan(0, check_crc=False)
    )


def _rolled_name(base: int) -> str:
    return filenames.segment_file_name(base, filenames.LOG_SUFFIX, filenames.SWAP_SUFFIX)


def _sizes(files: dict[str, FileInfo], base: int) -> dict[str, int]:
    names = {s: filenames.segment_file_name(base, s) for s in filenames.SEGMENT_SUFFIXES}
    return {suffix: files[name].size for suffix, name in names.items() if name in files}


_ROLLED = filenames.LOG_SUFFIX + filenames.SWAP_SUFFIX
_COLUMN = {name: index for index, name in enumerate(SCAN_COLUMNS)}
_BASE, _LAST = _COLUMN["base_offset"], _COLUMN["last_offset"]
_EPOCH = _COLUMN["leader_epoch"]
__all__ = ["LoadedLog", "RecoveryOptions", "RecoveryReport", "load_log"]
