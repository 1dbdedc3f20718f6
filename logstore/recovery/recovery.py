"""Opening a log: after a clean stop without reading records, after a crash by scanning.

Matches Kafka's ``LogLoader`` and ``LogSegment.recover`` (F-232 … F-268). It is stricter in four
points (docs/recovery.md has the reasons). A clean stop is trusted only if everything read agrees
with it, so a torn tail is cut in any case (F-268). Offsets that go backwards end the scan. The
epoch cache above the recovery point is derived from the batches alone. Valid bytes that are removed
from a log are kept aside.
"""

from __future__ import annotations

import os
import uuid
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from checkpoints.checkpoint_file import FileState
from checkpoints.errors import MalformedCheckpointError
from checkpoints.leader_epoch_checkpoint import LeaderEpochCheckpoint
from checkpoints.loggers import get_logger
from checkpoints.partition_metadata import PartitionMetadataFile
from logstore.common.clock import Clock
from logstore.common.config import MAX_LONG, LogConfig
from logstore.common.errors import CorruptBatchError
from logstore.common.types import TopicPartition
from logstore.format import filenames
from logstore.kernels import SCAN_COLUMNS
from logstore.recovery.clean_start import clean_end, ends_beyond, hollow_segments
from logstore.recovery.crash_recovery import CrashRecovery
from logstore.recovery.log_files import LogFiles
from logstore.recovery.replacements import Replacements
from logstore.recovery.report import RecoveryOptions, RecoveryReport
from logstore.recovery.set_aside import Remover
from logstore.segments.leader_epochs import EpochEntry, LeaderEpochCache
from logstore.segments.producer_state import ProducerStateManager
from logstore.segments.rebuild import rebuild_producers
from logstore.segments.segment import Segment
from logstore.segments.segment_list import Segments
from logstore.storage.base import Storage

logger = get_logger(__name__)


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


class DurableNames(NamedTuple):
    """The names that a load makes durable; the others are left to the owner (see ``LogOwner``)."""

    keep_name: bool = True
    sync_names: bool = True


def load_log(
    storage: Storage,
    directory: str,
    config: LogConfig,
    clock: Clock,
    *,
    clean_shutdown: bool,
    recovery_point: int | None,
    log_start_offset: int,
    options: RecoveryOptions,
    producer_id_expiration_ms: int,
    names: DurableNames | None = None,
) -> LoadedLog:
    """Open the partition directory, creating it when missing; see ``PartitionLog.open``.

    ``recovery_point`` is None if none is on file.
    """
    names = names or DurableNames()
    loader = _Loader(storage, directory, config, clock, options, producer_id_expiration_ms, names)
    loaded = loader.load(_Stop(clean_shutdown, recovery_point, log_start_offset))
    for warning in loaded.report.warnings:
        logger.warning("%s: %s", directory, warning)
    return loaded


class _Stop(NamedTuple):
    """The last stop of the log, by what is on file; ``recovery_point`` is None if none is.

    Segments from the one of ``scanned_from`` on are scanned whatever else is said of them.
    """

    clean: bool
    recovery_point: int | None
    log_start_offset: int
    scanned_from: int = MAX_LONG

    @property
    def point(self) -> int:
        return self.recovery_point or 0

    @property
    def flushed(self) -> int:
        """The offset below which everything is on the disk.

        A recovery point that only follows the log start was never reached by a flush (F-222).
        """
        return self.point if self.point > self.log_start_offset else 0


class _Recovered(NamedTuple):
    """The segments that the log has, its end, and whether a clean stop was believed."""

    segments: list[Segment]
    end: int
    clean: bool


@dataclass
class _Loader:
    """The passes of F-238 … F-252 over one directory: find, recover, derive, report."""

    storage: Storage
    directory: str
    config: LogConfig
    clock: Clock
    options: RecoveryOptions
    producer_id_expiration_ms: int
    names: DurableNames

    def __post_init__(self) -> None:
        name = os.path.basename(os.path.normpath(self.directory))
        self.parsed = filenames.parse_partition_dir(name)
        self.deleting = self.parsed.suffix == filenames.DELETE_DIR_SUFFIX

    def load(self, stop: _Stop) -> LoadedLog:
        """Load the log.

        If a segment that was not scanned turns out to be damaged, load again and scan all segments
        from that one on.
        """
        started = self.clock.monotonic_ns()
        self.report = report = RecoveryReport(self.directory, stop.clean)
        if self.options.scan_all:
            report.clean = False
            stop = stop._replace(clean=False, scanned_from=0)
        while True:
            try:
                loaded = self._load(stop)
                break
            except CorruptBatchError as damage:
                base = _segment_of(damage)
                if base is None or base >= stop.scanned_from:
                    raise
                if stop.clean:
                    self._disbelieve(str(damage))
                else:
                    report.warnings.append(f"scanned from segment {base} on: {damage}")
                stop = stop._replace(clean=False, scanned_from=base)
        report.warnings = list(dict.fromkeys(report.warnings))
        report.seconds = (self.clock.monotonic_ns() - started) / 1e9
        return loaded

    def _load(self, stop: _Stop) -> LoadedLog:
        self.files = LogFiles(self.storage, self.directory, self.config, self.clock, self.report)
        try:
            found = self._find(stop)
            recovered = self._recover(found, stop)
            start, end = self._derive(recovered, stop)
            point = self._report(recovered, start, end, stop)
        except BaseException:
            self.files.close()  # nobody else knows the segments
            raise
        return LoadedLog(
            self.parsed.topic_partition,
            self.segments,
            self.epochs,
            self.producers,
            start,
            point,
            end,
            self.topic_id,
            self.report,
        )

    def _find(self, stop: _Stop) -> list[Segment]:
        """Settle what a crash interrupted, and open what then lies there."""
        files = self.files
        self.remover = Remover(files, self.options.keep_cut)
        self.replacements = Replacements(files, self.remover)
        self.replacements.finish_interrupted(2**63 if self.deleting else stop.flushed)
        if filenames.CLEAN_STOP in files.others:  # no longer true once the log is opened
            self.storage.remove(files.path(filenames.CLEAN_STOP))
            self.files.sync()
        self.producers = ProducerStateManager(
            self.storage, self.directory, self.producer_id_expiration_ms
        )
        self.producers.set_snapshots(files.snapshots)
        self.topic_id = self._read_topic_id()
        return self._without_hollow(files.open_segments(), 2**63)

    def _recover(self, segments: list[Segment], stop: _Stop) -> _Recovered:
        """Believe a clean stop with which all agrees, or scan what a crash may have left.

        Of a log that will be deleted nothing is scanned.
        """
        end, clean = 0, stop.clean
        if clean and not self.deleting:
            end, clean = self._believe_clean_stop(segments, stop.recovery_point)
        trusted = clean or self.deleting
        suspect = min((stop.point, stop.scanned_from, *self.replacements.damaged))
        if not trusted:
            segments = self._without_hollow(segments, _floor(segments, suspect))
        recovery = CrashRecovery(
            segments, self.producers, self.replacements, self.options, stop.flushed
        )
        if clean and not self.deleting:
            recovery.split_wide_segments()
        segments = recovery.segments
        first_suspect = len(segments)
        if not trusted:
            first_suspect = _before_overlap(segments, _floor(segments, suspect))
        for segment in segments[:first_suspect]:  # recovery rebuilds the rest in any case
            recovery.check_indexes(segment)
        self.epochs = self._load_epochs(segments, is_new=not trusted and not stop.flushed)
        if first_suspect < len(segments) or self.files.rolled:
            segments = recovery.recover(first_suspect, self.epochs, stop.log_start_offset)
        if not clean:
            end = self._end_of_log(segments)
        return _Recovered(segments, end, clean)

    def _derive(self, recovered: _Recovered, stop: _Stop) -> tuple[int, int]:
        """The log start and end; epochs and producers follow from them and from the segments."""
        segments, end, clean = recovered
        if segments and end < stop.log_start_offset:
            segments = self._empty(segments, end, stop.log_start_offset)
        if not segments:
            segments, end = [self._begin(stop.log_start_offset)], stop.log_start_offset
        start = max(stop.log_start_offset, segments[0].base_offset)
        end = max(end, start)
        segments[-1].state.next_offset = end
        self.epochs.truncate_from_end(end)
        self._derive_epochs(segments, start, end)
        self.epochs.truncate_from_start(stop.log_start_offset)
        self.epochs.truncate_from_end(end)  # of an empty log: the next start would drop it
        if self.epochs_lacking and self.epochs.entries:  # batches below magic 2 have no epoch
            self.report.warnings.append(self.epochs_lacking)
        self.epochs.flush()
        self.segments = Segments(segments)
        self.producers.remove_stray_snapshots(self.segments.bases)
        self._load_producers(self.segments, start, end, clean)
        # The process that died may have cut the log, and only the cache may show that.
        segments[-1].state.cut_pending = not clean
        return start, end

    def _report(self, recovered: _Recovered, start: int, end: int, stop: _Stop) -> int:
        """The recovery point; the report says what was found and what is lost."""
        report, point = self.report, stop.point
        if recovered.clean:
            point = end
        elif point > end:  # it described other records: a cut came between
            point = self.segments.bases[-1]
        # What lies below the start was deleted.
        first_lost = max(recovered.end, stop.log_start_offset)
        if stop.point > first_lost and not self.deleting:
            report.offsets_lost = (first_lost, stop.point)
            report.warnings.append(
                f"recovery point {stop.point} is above the log end {recovered.end}: offsets "
                f"[{first_lost}, {stop.point}) are lost, unless the log was truncated"
            )
        # What was removed must not come back later.
        if report.actions or (self.names.sync_names and not recovered.clean):
            self.files.sync()
        report.recovery_point = min(max(point, start), end)
        report.log_start_offset, report.log_end_offset = start, end
        report.segments = len(self.segments)
        return report.recovery_point

    def _without_hollow(self, segments: list[Segment], first: int) -> list[Segment]:
        """Remove segments that are only a name inside another one, and return the rest.

        From index ``first`` on the files are read for that.
        """
        files, gone = self.files, set[Segment]()
        rolled = [files.open_rolled(base, filenames.SWAP_SUFFIX) for base in files.rolled]
        for segment, around in list(hollow_segments([*segments, *rolled], first)):
            self._remove_hollow(segment, f"begins inside {os.path.basename(around.log_path)}")
            gone.add(segment)
        files.rolled = deque(s.base_offset for s in rolled if s not in gone)
        return [segment for segment in segments if segment not in gone]

    def _remove_hollow(self, segment: Segment, where: str) -> None:
        name, why = os.path.basename(segment.log_path), f"it holds no batch, and {where}"
        self.report.warnings.append(f"{name} was removed: {why}")
        self.remover.remove(segment, why, flushed=True)

    # -- epochs, topic id ----------------------------------------------------------------------

    def _read_topic_id(self) -> uuid.UUID | None:
        if filenames.PARTITION_METADATA not in self.files.others:
            return None
        path = os.path.join(self.directory, filenames.PARTITION_METADATA)
        metadata = PartitionMetadataFile(path, self.storage).read()
        return metadata.topic_id if metadata else None

    def _load_epochs(self, segments: list[Segment], *, is_new: bool) -> LeaderEpochCache:
        """The epoch file, or if it cannot be read, the epochs of the batches (S-54).

        ``epochs_lacking`` is the warning for a file without entries beside batches with epochs. The
        first flush makes the file, so it may be missing where nothing says that one was completed.
        """
        self.epochs_lacking = ""
        path = os.path.join(self.directory, filenames.LEADER_EPOCH_CHECKPOINT)
        checkpoint = LeaderEpochCheckpoint(path, self.storage)
        try:
            state, entries = checkpoint.inspect()
        except MalformedCheckpointError as error:
            self.report.warnings.append(f"{error}; rebuilt from the batches")
            return LeaderEpochCache(checkpoint, [], saved=False)
        is_due = state is not FileState.MISSING or not is_new
        if not entries and is_due and any(s.size for s in segments):
            what = "missing" if state is FileState.MISSING else "empty"
            self.epochs_lacking = (
                f"{filenames.LEADER_EPOCH_CHECKPOINT} is {what} although the log holds data; "
                "rebuilt from the batches"
            )
        cache = LeaderEpochCache(checkpoint, [EpochEntry(*entry) for entry in entries])
        if [tuple(entry) for entry in cache.entries] != entries:
            self.report.warnings.append(
                f"{filenames.LEADER_EPOCH_CHECKPOINT} does not ascend; rebuilt from the batches"
            )
            cache.clear(durable=False)
        return cache

    def _derive_epochs(self, segments: list[Segment], start: int, leo: int) -> None:
        """Derive the epochs below the first entry of the file from the headers of the batches.

        The file may lack them because it is damaged (S-54), or because a crash brought deleted
        records back.
        """
        known = self.epochs.entries
        end = known[0].start_offset if known else leo
        if start >= end or not any(s.size for s in segments if s.base_offset < end):
            return
        self.epochs.clear(durable=False)
        for segment in segments:
            if segment.base_offset >= end:
                break
            for rows, columns, capacity in segment.live().scan(0, check_crc=False):
                at = _EPOCH * capacity
                epochs = columns[at : at + rows]
                if max(epochs) <= self.epochs.latest_epoch:
                    continue
                for row, epoch in enumerate(epochs):
                    base = columns[_BASE * capacity + row]
                    if epoch > self.epochs.latest_epoch and 0 <= base < end:
                        self.epochs.assign(epoch, base, durable=False)
        derived = len(self.epochs.entries)
        for entry in known:
            self.epochs.assign(*entry, durable=False)
        if derived:
            self.files.act(f"{derived} entries of the epoch cache derived from batches")

    # -- end, producers ------------------------------------------------------------------------

    def _believe_clean_stop(
        self, segments: list[Segment], point_on_file: int | None
    ) -> tuple[int, bool]:
        """The log end after a clean stop, and whether everything agrees with it (F-252)."""
        end, doubt = 0, ""
        if self.files.rolled:
            doubt = "a roll is unsettled"
        elif self.replacements.damaged:
            doubt = "a replacement is damaged"
        elif segments:
            while point_on_file is not None and ends_beyond(segments, point_on_file):
                self._remove_hollow(segments.pop(), f"lies beyond the log end {point_on_file}")
            end, doubt = clean_end(segments[-1], point_on_file)
            if doubt.startswith("at byte"):
                doubt = f"{os.path.basename(segments[-1].log_path)} {doubt}"
        if doubt:
            self._disbelieve(doubt)
        return end, not doubt

    def _disbelieve(self, doubt: str) -> None:
        self.report.clean, self.report.clean_doubt = False, doubt
        self.report.warnings.append(f"clean stop disbelieved: {doubt}")

    def _end_of_log(self, segments: list[Segment]) -> int:
        """The log end after recovery (F-252).

        For a log that will be deleted only headers are read.
        """
        if not segments:
            return 0
        active = segments[-1]
        if self.deleting:
            with suppress(CorruptBatchError):
                active.state.next_offset, _ = active.live().read_next_offset()
        return active.state.next_offset

    def _empty(self, segments: list[Segment], leo: int, log_start_offset: int) -> list[Segment]:
        """Remove all segments, because nothing at or above the log start is left (F-246)."""
        self.files.act(f"log ends at {leo}, below its start {log_start_offset}: emptied")
        for segment in segments:
            self.remover.remove(
                segment, f"the log ends at {leo}, below its start {log_start_offset}"
            )
        self.epochs.clear(durable=False)
        return []

    def _load_producers(self, segments: Segments, start: int, leo: int, clean: bool) -> None:
        """Rebuild up to the log end (F-251). A clean start without snapshots forgets (F-253).

        There is never one at offset 0 (F-130).
        """
        producers = self.producers
        if clean and not producers.snapshots:
            for base in [*segments.bases[-2:], leo]:
                if base and (base > start or base == leo):
                    producers.take_empty_snapshot(base)
            producers.map_end_offset = leo
            producers.last_snapshot_offset = leo
            return
        rebuild_producers(producers, segments.snapshot(), start, leo, self.clock.wall_ms())

    def _begin(self, base_offset: int) -> Segment:
        """The first segment of a log that has none."""
        if self.report.actions:  # what was removed must not come back beside the new segment
            self.files.sync()
        # Otherwise a flush of a new log would be durable in a directory that has no durable name.
        if self.names.keep_name:
            self.storage.sync_dir(os.path.dirname(os.path.normpath(self.directory)) or ".")
        segment = self.files.segment(base_offset)
        self.files.opened.append(segment)
        segment.create()
        return segment


def _segment_of(damage: CorruptBatchError) -> int | None:
    """Base offset of the segment whose ``.log`` is damaged."""
    parsed = filenames.parse_segment_file(os.path.basename(damage.path))
    is_log = parsed is not None and parsed.suffix == filenames.LOG_SUFFIX
    return parsed.offset if parsed is not None and is_log else None


def _floor(segments: list[Segment], offset: int) -> int:
    """Index of the segment that holds ``offset``; at most the last one, which is always a suspect
    (S-35).
    """
    at = sum(segment.base_offset <= offset for segment in segments) - 1
    return max(at, 0)


def _before_overlap(segments: list[Segment], first: int) -> int:
    """``first``, or the index of an earlier segment whose batches reach into the next one.

    No checksum covers names, and a log must not assign offsets that it already has.
    """
    with suppress(CorruptBatchError):  # damage below the recovery point stays as it is
        while first > 0:
            end, _ = segments[first - 1].live().read_next_offset()
            if end <= segments[first].base_offset:
                break
            first -= 1
    return first


_COLUMN = {name: index for index, name in enumerate(SCAN_COLUMNS)}
_BASE, _LAST = _COLUMN["base_offset"], _COLUMN["last_offset"]
_EPOCH = _COLUMN["leader_epoch"]
__all__ = ["LoadedLog", "RecoveryOptions", "RecoveryReport", "load_log"]
