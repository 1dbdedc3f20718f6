"""Recovery of the segments that a crash may have left behind (F-232 … F-234, F-243, F-245)."""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from operator import attrgetter

from logstore.common.config import MAX_INT, MAX_LONG
from logstore.common.errors import CorruptBatchError, CorruptIndexError
from logstore.format import filenames
from logstore.format.header import HEADER_SIZE
from logstore.format.index_entry import OFFSET_ENTRY, TIME_ENTRY, TXN_ENTRY
from logstore.format.second_opinion import confirm_bad_checksum
from logstore.kernels import SCAN_BAD_CRC, SCAN_BAD_OFFSET, SCAN_COLUMNS, SCAN_REASONS, RecoveryScan
from logstore.recovery.replacements import Replacements, plan_split
from logstore.recovery.report import RecoveryOptions
from logstore.segments.leader_epochs import EpochEntry, LeaderEpochCache
from logstore.segments.producer_state import ProducerStateManager
from logstore.segments.rebuild import replay_from, scan_segment
from logstore.segments.segment import Segment
from logstore.segments.unwritten import Unwritten

_LAST = SCAN_COLUMNS.index("last_offset")
_base_of, _epoch_of = attrgetter("base_offset"), attrgetter("epoch")


class CrashRecovery:
    """Works on the segments of one log that is not in use yet.

    ``flushed`` is the offset below which everything is on the disk.
    """

    def __init__(
        self,
        segments: list[Segment],
        producers: ProducerStateManager,
        replacements: Replacements,
        options: RecoveryOptions,
        flushed: int,
    ) -> None:
        self.segments = segments
        self._files = replacements.files
        self._report = replacements.files.report
        self._producers = producers
        self._replacements = replacements
        self._remover = replacements.remover
        self._options = options
        self._flushed = flushed
        self._scratch: ProducerStateManager | None = None

    # -- indexes -------------------------------------------------------------------------------

    def check_indexes(self, segment: Segment) -> None:
        """Rebuild if the offset index is missing or the transaction index is bad (F-242)."""
        found = self._files.segments[segment.base_offset]
        bad = _why_unfit(segment, found)
        if bad is None and found.get(filenames.TXN_INDEX_SUFFIX):
            try:
                segment.txn_index.entries()
            except CorruptIndexError as error:
                bad = f"the transaction index is corrupt at byte {error.position}: {error.reason}"
        if bad is not None:
            self._files.act(f"rebuilt the indexes of {os.path.basename(segment.log_path)}: {bad}")
            self._rebuild(segment)

    def _rebuild(self, segment: Segment) -> None:
        """Rebuild the indexes from the ``.log``.

        The transaction index also needs the producer snapshot before the segment.
        """
        self._announce_rebuild(segment)
        scratch = self._scratch_producers(segment.base_offset)
        segment.txn_index.reset()
        scan = scan_segment(segment, producers=scratch)
        segment.txn_index.sync()
        self._files.sync()
        scratch.map_end_offset = max(scan.next_offset, segment.base_offset)
        segment.install_indexes(scan.offset_index, scan.time_index + scan.final_time_entry())
        if scan.valid_bytes < segment.size:
            reason = SCAN_REASONS[scan.status]
            if self._report.clean and segment is self.segments[-1]:
                raise CorruptBatchError(segment.log_path, scan.valid_bytes, reason)
            self._report.warnings.append(
                f"{os.path.basename(segment.log_path)} is damaged at byte {scan.valid_bytes}: "
                f"{reason}; it is left as it is"
            )

    def _announce_rebuild(self, segment: Segment) -> None:
        """Let the next start rebuild the indexes of a segment that it will not scan, if this one is
        cut short.

        Nothing else shows that a transaction index is half written. So the offset index goes first,
        and comes back last.
        """
        if self._files.segments[segment.base_offset].pop(filenames.INDEX_SUFFIX, None) is not None:
            self._files.storage.remove(segment.path(filenames.INDEX_SUFFIX))
            self._files.sync()

    def _scratch_producers(self, base_offset: int) -> ProducerStateManager:
        """Producer state as it was at the segment's base, for replay only (F-234).

        It comes from the newest readable snapshot and a replay of the batches from there to the
        base. A snapshot may know producers whose batches are deleted, so a replay up to its offset
        does not replace it.
        """
        snapshots = [offset for offset in self._producers.snapshots if offset <= base_offset]
        scratch = self._scratch
        newest = max(snapshots, default=0)
        if scratch is None or not newest < scratch.map_end_offset <= base_offset:
            scratch = self._scratch = ProducerStateManager(
                self._files.storage, self._files.directory, self._producers.expiration_ms
            )
            scratch.set_snapshots(snapshots)
            for offset in scratch.load_for_replay(0, self._files.clock.wall_ms()):
                name = os.path.basename(self._producers.snapshot_path(offset))
                self._files.act(f"removed {name}: it cannot be read")
                self._producers.remove_snapshot(offset)  # the list of this segment has its name
        first = bisect_right(self.segments, scratch.map_end_offset, key=_base_of) - 1
        end = bisect_left(self.segments, base_offset, key=_base_of)
        for segment in self.segments[max(first, 0) : end]:
            replay_from(scratch, segment, scratch.map_end_offset, base_offset)
        scratch.map_end_offset = base_offset
        return scratch

    # -- segments that span too many offsets ---------------------------------------------------

    def split_wide_segments(self) -> None:
        """Split segments that span too many offsets (F-243).

        Only one far from the next is checked.
        """
        segments = self.segments
        for at in reversed(range(len(segments) - 1)):
            segment, limit = segments[at], segments[at + 1].base_offset
            if limit - segment.base_offset > MAX_INT + 1 and _is_too_wide(segment):
                segments[at : at + 1] = self._split(segment, scan_segment(segment), limit)

    def _split(
        self, segment: Segment, scan: RecoveryScan, limit: int, later: deque[Segment] | None = None
    ) -> list[Segment]:
        """Split a segment whose batches span more than 2³¹−1 offsets (F-243), or return it alone.

        Damage after them is cut first, together with the ``later`` segments. Without ``later``, on
        a clean start, a damaged segment stays as it is.
        """
        if scan.status != SCAN_BAD_OFFSET or self._options.contiguous:
            return [segment]
        plan = plan_split(segment, scan, limit, self._flushed)
        if len(plan.pieces) == 1 or (later is None and plan.end < segment.size):
            return [segment]
        if plan.end < segment.size and later is not None:
            self._remove_later(f"it follows a cut in segment {segment.base_offset}", later)
            later.clear()
            self._remover.cut(segment, plan.end, SCAN_REASONS[plan.status])
            segment.state.size = plan.end
        self._scratch = None  # the transaction index holds what a scan has replayed
        producers = self._scratch_producers(segment.base_offset)
        name = os.path.basename(segment.log_path)
        bases = [piece.base_offset for piece in plan.pieces]
        self._files.act(f"split {name}, which spans too many offsets, into segments {bases}")
        self._report.segments_split += 1
        self._replacements.split(segment, plan.pieces, producers)
        self._scratch = None
        self._files.read()
        self._producers.set_snapshots(self._files.snapshots)
        return [self._files.open_segment(base) for base in bases]

    # -- after a crash -------------------------------------------------------------------------

    def recover(self, first: int, epochs: LeaderEpochCache, log_start_offset: int) -> list[Segment]:
        """Recover the segments from ``first`` on, in order, up to the first cut (F-245).

        Then accept the rolls that the crash left unsettled, as long as each segment begins where
        the one before it ends.
        """
        self._epochs = epochs
        done, pending = self.segments[:first], deque(self.segments[first:])
        base = pending[0].base_offset if pending else self._files.rolled[0]
        # The entries of these segments may be older than their batches, or younger (S-37).
        named = [entry for entry in self._epochs.entries if entry.start_offset >= base]
        self._epochs.truncate_from_end(base)
        producers = self._scratch_producers(base)
        while pending or self._settle_roll(done, pending, log_start_offset):
            segment = pending.popleft()
            following = pending[0].base_offset if pending else next(iter(self._files.rolled), 2**63)
            if following <= self._flushed:
                self._announce_rebuild(segment)
            scan = self._scan(segment, producers)
            split = self._split(segment, scan, following, pending)
            if len(split) > 1:
                pending.extendleft(reversed(split))
                self.segments = [*done, *pending]
                producers = self._scratch_producers(segment.base_offset)
                continue
            done.append(segment)
            reason = SCAN_REASONS[scan.status]
            end = disproved_from(segment, scan, following)
            if end < scan.valid_bytes:
                reason = "what follows has lower offsets"
                self._scratch = None  # the transaction index holds what the scan has replayed
                producers = self._scratch_producers(segment.base_offset)
                scan = self._scan(segment, producers, end)
            if self._recover_segment(segment, scan, reason, producers, pending):
                break
        self._keep_epochs(named, done)
        return done

    def _keep_epochs(self, named: Iterable[EpochEntry], segments: list[Segment]) -> None:
        """Keep the entries of the file that no batch contradicts (F-232).

        Compaction may have removed the first batches of an epoch, or all of them. A follower that
        asks where the epoch before ends must not learn a later offset: it would keep records that
        the leader does not have.
        """
        derived = self._epochs.entries
        kept = {entry.epoch: entry for entry in derived}
        for entry in named:
            later = bisect_left(derived, entry.epoch, key=_epoch_of)
            begin = derived[later].start_offset if later < len(derived) else MAX_LONG
            if entry.start_offset < begin == _first_batch_from(segments, entry.start_offset):
                kept[entry.epoch] = entry
        self._epochs.clear(durable=False)
        for epoch in sorted(kept):
            self._epochs.assign(*kept[epoch], durable=False)

    def _settle_roll(
        self, done: list[Segment], pending: deque[Segment], log_start_offset: int
    ) -> bool:
        """Take the next rolled segment into the log, or set it and all later ones aside.

        Records below the log start may be missing, because they are deleted.
        """
        if not self._files.rolled:
            return False
        base = self._files.rolled[0]
        end = done[-1].state.next_offset if done else -1
        if base != end and base > log_start_offset:
            self._remove_later(
                f"the segment before it ends at {end}"
                if done
                else "the segment before it is missing"
            )
            return False
        self._files.rolled.popleft()
        if done:
            done[-1].flush(indexes=False)  # else its end may be lost while the next segment stays
        self._replacements.settle_roll(base)
        pending.append(self._files.open_rolled(base, ""))
        self.segments = [*done, *pending]
        return True

    def _remove_later(self, why: str, later: Iterable[Segment] = ()) -> None:
        """Remove the segments after the end of the log, durably before that end is cut.

        Otherwise a crash in between could leave them after a segment that looks whole.
        """
        rolled = [
            self._files.open_rolled(base, filenames.SWAP_SUFFIX) for base in self._files.rolled
        ]
        self._files.rolled.clear()
        segments = [*later, *rolled]
        for segment in segments:
            self._remover.remove(segment, why)
            self._producers.remove_snapshot(segment.base_offset)
        if segments:
            self._files.sync()

    def _scan(
        self, segment: Segment, producers: ProducerStateManager, end: int | None = None
    ) -> RecoveryScan:
        """Look at every batch, and replay producers and transactions (F-232)."""
        producers.map_end_offset = segment.base_offset
        producers.snapshots = self._producers.snapshots
        if producers.take_snapshot(sync=True) is None:  # due after a gap, or if one was unreadable
            producers.sync_snapshot(segment.base_offset)  # a process that died may not have
        segment.txn_index.reset()
        scan = scan_segment(
            segment,
            end=end,
            last_epoch=self._epochs.latest_epoch,
            contiguous=self._options.contiguous,
            producers=producers,
        )
        # A recovery point above the segment stays, and no later start reads here again.
        segment.txn_index.sync()
        if filenames.INDEX_SUFFIX not in self._files.segments[segment.base_offset]:
            self._files.sync()
        return scan

    def _recover_segment(
        self,
        segment: Segment,
        scan: RecoveryScan,
        reason: str,
        producers: ProducerStateManager,
        later: Iterable[Segment],
    ) -> int:
        """Rebuild and cut; returns the bytes cut (F-233). A cut also removes ``later`` segments."""
        report = self._report
        report.segments_scanned += 1
        report.bytes_scanned += segment.size
        report.batches_scanned += scan.batch_count
        report.records_scanned += scan.record_count
        for epoch, start in scan.epochs:
            self._epochs.assign(epoch, start, durable=False)
        if scan.epoch_falls:
            report.epoch_falls += scan.epoch_falls
            report.warnings.append(
                f"{os.path.basename(segment.log_path)}: leader epochs fall in {scan.epoch_falls} "
                f"places, first at offset {scan.first_fall_offset}; the batches are kept"
            )
        cut = segment.size - scan.valid_bytes
        if cut:
            if scan.status == SCAN_BAD_CRC:
                confirm_bad_checksum(segment.log, segment.log_path, scan.valid_bytes, segment.size)
            self._remove_later(f"it follows a cut in segment {segment.base_offset}", later)
            flushed = scan.next_offset < self._flushed or bool(report.clean_doubt)
            self._remover.cut(segment, scan.valid_bytes, reason, flushed=flushed)
        state = segment.state
        state.max_timestamp = scan.max_timestamp
        state.offset_of_max_timestamp = scan.offset_of_max_timestamp
        state.rolling_timestamp = scan.first_batch_max_timestamp if scan.batch_count else -1
        state.size = scan.valid_bytes
        state.next_offset = scan.next_offset if scan.batch_count else segment.base_offset
        segment.install_indexes(scan.offset_index, scan.time_index + scan.final_time_entry())
        self._expect_unwritten(segment)
        producers.map_end_offset = state.next_offset
        producers.take_snapshot(sync=True)
        return cut

    def _expect_unwritten(self, segment: Segment) -> None:
        """Leave everything that no flush has reached to ``Segment.write_again``."""
        position = 0
        if segment.base_offset < self._flushed <= segment.state.next_offset:
            span = segment.live().find(self._flushed)
            position = segment.size if span is None else span.position
        segment.unwritten = Unwritten(position, segment.size)


def _first_batch_from(segments: list[Segment], offset: int) -> int:
    """The base offset of the first batch that reaches ``offset``; ``MAX_LONG`` if none does."""
    first = bisect_right(segments, offset, key=_base_of) - 1
    for segment in segments[max(first, 0) :]:
        span = segment.live().find(offset)
        if span is not None:
            return span.base_offset
    return MAX_LONG


_INDEXES = (
    (filenames.INDEX_SUFFIX, OFFSET_ENTRY.size, "offset", 0),
    (filenames.TIME_INDEX_SUFFIX, TIME_ENTRY.size, "time", 1),  # the last one may come twice
    (filenames.TXN_INDEX_SUFFIX, TXN_ENTRY.size, "transaction", 0),
)


def _why_unfit(segment: Segment, found: Mapping[str, int]) -> str | None:
    """Say why an index of the segment cannot serve, by the sizes ``found``; None if all may.

    One that is larger than its ``.log`` can need, as a crash leaves it preallocated, is not read.
    """
    batches = segment.size // HEADER_SIZE + 1
    for suffix, width, name, spare in _INDEXES:
        if suffix not in found and segment.size and suffix != filenames.TXN_INDEX_SUFFIX:
            return f"the {name} index is missing"
        size = found.get(suffix, 0)
        if size % width:
            return "the length of an index is not a multiple of its entry"
        if size // width > batches + spare:
            return f"the {name} index has more entries than the log has batches"
    return None


def disproved_from(segment: Segment, scan: RecoveryScan, following: int) -> int:
    """Position of the first scanned batch that later bytes disprove, or else where the scan ended.

    No checksum covers base offsets, and gaps between them are legal, so only what follows can show
    that an offset is too high. That is the next segment, whose base is ``following``, or the batch
    that ended the scan, if it continues exactly where the batch before would end without a gap. A
    batch that lies there twice disproves nothing.
    """
    end = scan.valid_bytes
    if end == segment.size:
        if scan.next_offset <= following:
            return end
        return next(s.position for s in segment.live().walk(0) if s.last_offset >= following)
    behind = next(segment.live().walk(end), None) if scan.status == SCAN_BAD_OFFSET else None
    spans = deque(segment.live().walk(0, end), 2)
    if behind is None or not spans:
        return end
    last = spans[-1]
    head = min(last.size, HEADER_SIZE)  # with length and checksum
    if last.size == behind.size and (
        segment.log.read_at(last.position, head) == segment.log.read_at(end, head)
    ):
        return end
    expected = spans[0].last_offset + 1 if len(spans) == 2 else segment.base_offset
    gap = last.base_offset - expected
    return last.position if gap > 0 and last.last_offset + 1 - gap == behind.base_offset else end


def _is_too_wide(segment: Segment) -> bool:
    """Whether a header has an offset more than 2³¹−1 above the base."""
    largest = segment.base_offset + MAX_INT
    return any(
        max(columns[_LAST * capacity : _LAST * capacity + rows]) > largest
        for rows, columns, capacity in segment.live().scan(0, check_crc=False)
    )
