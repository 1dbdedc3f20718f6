"""One pass over one log: map the keys of the dirty part, then rewrite all below its end.

Kafka's ``Cleaner``. A pass reads views that were current when it began, without a lock. At the end
of each group of segments ``LogReplacing`` says whether they still are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import TypeVar

from logstore.cleaner.cleanable import LogToClean, group_segments
from logstore.cleaner.transactions import PassTransactions
from logstore.common.bounds import UNPACKED_MAX
from logstore.common.errors import CorruptBatchError, InvariantError, LogCleaningAbortedError
from logstore.common.types import (
    NO_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    Buffer,
    Record,
)
from logstore.format import attributes as bits
from logstore.format.attributes import TimestampType
from logstore.format.batch import empty_batch, rebuild_batch, seal_as
from logstore.format.codecs.compression import Compression, compress
from logstore.format.control import parse_end_transaction_marker
from logstore.format.header import HEADER_SIZE, BatchHeader, check_batch_crc
from logstore.format.index_entry import AbortedTxn
from logstore.format.legacy import LegacyBatch, legacy_records
from logstore.format.reader import Batch, batch_records, parse_batch, payload_of
from logstore.kernels import RUN_END, RUN_FULL, OffsetMap, RecordSieve, crc32c
from logstore.log import PartitionLog
from logstore.log.reading.fetching import collect_aborted
from logstore.log.replacing import discard_cleaned
from logstore.log.snapshot import LogView
from logstore.recovery.replacements import CleanedSegment
from logstore.segments.rebuild import scan_segment
from logstore.segments.segment_view import SegmentView, no_whole_batch

T = TypeVar("T")


@dataclass(slots=True)
class PassStats:
    """The counts of a pass. ``bytes_*`` are of ``.log`` files. Record counts include markers."""

    first_dirty: int = 0
    end_offset: int = 0
    """The new checkpoint: everything below it is clean now."""
    segments_before: int = 0
    segments_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    map_bytes: int = 0
    """How many bytes were read to map the keys."""
    keys: int = 0
    map_full: bool = False
    """Whether the map was full. The next pass continues at ``end_offset``."""
    batches_read: int = 0
    batches_kept: int = 0
    batches_copied: int = 0
    batches_emptied: int = 0
    records_read: int = 0
    records_kept: int = 0
    records_without_key: int = 0
    records_aborted: int = 0
    tombstones_kept: int = 0
    markers_kept: int = 0
    elapsed_ns: int = 0

    def to_dict(self) -> dict[str, int | bool]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


def unlimited(_: int) -> None:
    """The throttle that never waits."""


@dataclass(slots=True)
class Cleaner:
    """
    Attributes:
        offset_map: cleared by each pass.
        io_buffer_size: how many bytes of a segment one call works on.
        throttle: called with the bytes of every read and write; may wait, with no lock held.
        check: called often; raises to stop the pass.
    """

    offset_map: OffsetMap
    io_buffer_size: int = 512 << 10
    throttle: Callable[[int], None] = unlimited
    check: Callable[[], None] = field(default=lambda: None)

    def clean(
        self, log: PartitionLog, to_clean: LogToClean, now_ms: int, view: LogView
    ) -> tuple[PassStats, list[SegmentView]]:
        """Clean the range of ``to_clean``, which was decided from ``view``.

        Returns:
            What was done, and the views that it depends on: if one of them is no longer in the log,
            ``end_offset`` is not valid.
        Raises:
            LogCleaningAbortedError: the log changed. Segments that were already replaced stay.
            CorruptBatchError: a batch is damaged; its segment stays as it is.
            OSError: a read failed, or the disk is full. Nothing is lost.
            StorageFailedError: the disk failed in the middle of a swap. The log is offline.
        """
        # A crash must not undo the record that superseded a removed one, nor the marker that
        # committed it, which may lie anywhere.
        log.flush(view.snapshot.log_end_offset)
        return _Pass(self, log, to_clean, now_ms, view).run()


class _Pass:
    def __init__(
        self, cleaner: Cleaner, log: PartitionLog, to_clean: LogToClean, now_ms: int, view: LogView
    ) -> None:
        self._cleaner = cleaner
        self._map = cleaner.offset_map
        self._log = log
        self._to_clean = to_clean
        self._now_ms = now_ms
        self._views = [v for v in view.snapshot.sealed if v.base_offset < to_clean.end]
        self._stats = PassStats(first_dirty=to_clean.first_dirty)

    def run(self) -> tuple[PassStats, list[SegmentView]]:
        stats, config = self._stats, self._log.config
        stats.end_offset = self._map_keys()
        todo = [view for view in self._views if view.base_offset < stats.end_offset]
        stats.segments_before = len(todo)
        stats.bytes_before = sum(view.size for view in todo)
        clean = [v for v in self._views if v.base_offset < self._to_clean.first_dirty]
        legacy_horizon = 0
        if clean:
            legacy_horizon = clean[-1].segment.modified_ms() - config.delete_retention_ms
        sieve = RecordSieve(
            self._map, self._now_ms, config.delete_retention_ms, self._to_clean.end, ()
        )
        transactions = PassTransactions()
        for group in group_segments(todo, config, self._to_clean.end):
            rewrite = _Rewrite(self, group, sieve, transactions, legacy_horizon)
            fresh = rewrite.run()
            stats.segments_after += 1
            stats.bytes_after += fresh.size
            at = self._views.index(group[0])
            self._views[at : at + len(group)] = [fresh]
        for name in (
            "batches_read",
            "batches_kept",
            "batches_copied",
            "batches_emptied",
            "records_read",
            "records_kept",
            "records_without_key",
            "tombstones_kept",
        ):
            setattr(stats, name, getattr(stats, name) + getattr(sieve, name))
        return stats, self._views

    # -- keys ----------------------------------------------------------------------------------

    def _map_keys(self) -> int:
        """Fill the map with the keys from the first dirty offset on. Returns where that ended."""
        self._map.clear()
        start, end = self._to_clean.first_dirty, self._to_clean.end
        dirty = [
            view
            for at, view in enumerate(self._views)
            if at + 1 == len(self._views) or self._views[at + 1].base_offset > start
        ]
        transactions = PassTransactions()
        transactions.add_aborted(collect_aborted(LogView(self._log.snapshot), start, end))
        for at, view in enumerate(dirty):
            if self._map_segment(view, start, transactions):
                self._stats.map_full = True
                break
            following = dirty[at + 1].base_offset if at + 1 < len(dirty) else end
            self._map.update_latest_offset(following - 1)  # over a gap at the end of the segment
        self._stats.keys = len(self._map)
        return max(self._map.latest_offset + 1, start)

    def _map_segment(self, view: SegmentView, start: int, transactions: PassTransactions) -> bool:
        """Map the keys of a segment. Returns whether the map was full before its end."""

        def work(window: memoryview) -> int | None:
            done, status, _ = self._map.add_run(window, 0, start)
            while status != RUN_END:
                if status == RUN_FULL:
                    return None
                batch = whole_batch(window, done)
                if self._map_batch(window, batch, start, transactions):
                    return None
                self._map.update_latest_offset(batch.last_offset)
                done, status, _ = self._map.add_run(window, batch.end_position, start)
            self._stats.map_bytes += done
            return done

        return not self.each_window(view, view.floor(start), work)

    def _map_batch(
        self, window: memoryview, batch: Batch, start: int, transactions: PassTransactions
    ) -> bool:
        if isinstance(batch, LegacyBatch):
            for record in legacy_records(window, batch):
                if record.key is None or record.offset < start:
                    continue
                if not self._map.put(record.key, record.offset):
                    return True
            return False
        check_batch_crc(window, batch)
        if batch.is_control:
            transactions.on_marker(batch.producer_id, _is_commit(window, batch), batch.last_offset)
            return False
        if transactions.on_data(batch.producer_id, batch.is_transactional, batch.last_offset):
            return False
        if batch.last_offset < start:
            return False
        section = payload_of(window, batch)
        return _in_batch(
            batch,
            lambda: self._map.add_section(
                section, batch.base_offset, batch.last_offset_delta, batch.record_count, start
            ),
        )

    # -- reading -------------------------------------------------------------------------------

    def each_window(
        self, view: SegmentView, start: int, work: Callable[[memoryview], int | None]
    ) -> bool:
        """Call ``work`` with windows of a segment, from a batch boundary on.

        ``work`` returns how many bytes it has processed, or None to stop. Returns whether the end
        was reached.

        Raises:
            CorruptBatchError: a batch is damaged, or the file does not end with a whole batch.
        """
        size, window = view.size, self._cleaner.io_buffer_size
        position = start
        while position < size:
            self._check()
            want = min(window, size - position)
            try:
                with view.window(position, want) as data:
                    done = work(data)
            except CorruptBatchError as error:
                raise error.located(view.log_path, position) from None
            if done is None:
                return False
            self._cleaner.throttle(done)
            if not done and want == size - position:
                raise no_whole_batch(view.log_path, position, size)
            window = self._cleaner.io_buffer_size if done else window * 2
            position += done
        return True

    def _check(self) -> None:
        self._cleaner.check()
        if not self._log.replacing.holds(self._views):
            raise LogCleaningAbortedError(f"{self._log.name}: segments were cut or removed")


class _Rewrite:
    """Rewrites one group of segments as one segment."""

    def __init__(
        self,
        owner: _Pass,
        group: Sequence[SegmentView],
        sieve: RecordSieve,
        transactions: PassTransactions,
        legacy_horizon: int,
    ) -> None:
        self._pass = owner
        self._group = group
        self._sieve = sieve
        self._transactions = transactions
        self._legacy_horizon = legacy_horizon
        self._log = owner._log
        self._stats = owner._stats
        self._size = 0
        self._crc = 0
        # What must stay for active producers: their last records, or the epoch of a last marker.
        producers = self._log.producers.entries()
        last_offsets = [p.batches[-1].last_offset for p in producers if p.batches]
        self._marker_epochs = {p.producer_id: p.producer_epoch for p in producers if not p.batches}
        self._last_offsets = frozenset(last_offsets)
        sieve.set_last_offsets(last_offsets)

    def run(self) -> SegmentView:
        """Returns the segment that the log has afterwards, the old one if nothing changed."""
        replacing = self._log.replacing
        base = self._group[0].base_offset
        cleaned = replacing.cleaned_segment(base)
        try:
            before = self._changed_batches
            aborted = self._write(cleaned)
            if (
                len(self._group) == 1
                and self._changed_batches == before
                and aborted == self._group[0].segment.txn_index.entries()
            ):
                discard_cleaned(cleaned)
                return self._group[0]
            cleaned = self._finish(cleaned, aborted)
            first = self._pass._views.index(self._group[0])
            guard = self._pass._views[first + len(self._group) :]
            return replacing.replace(self._group, cleaned, self._crc, guard)
        except BaseException:
            # After a swap that failed half way a start needs every file.
            if not self._log.failed:
                discard_cleaned(cleaned)
            raise

    @property
    def _changed_batches(self) -> int:
        """The number of batches of the pass that were not copied as they are."""
        sieve, stats = self._sieve, self._stats
        read = sieve.batches_read + stats.batches_read
        return read - sieve.batches_copied - stats.batches_copied

    def _write(self, cleaned: CleanedSegment) -> list[AbortedTxn]:
        """Write the ``.log``. Returns the entries of the transaction index."""
        self._transactions.kept = []
        file = cleaned.file.create()
        try:
            file.truncate(0)
            for at, view in enumerate(self._group):
                end = self._end_of(at, view)
                log = LogView(self._log.snapshot)
                self._transactions.add_aborted(collect_aborted(log, view.base_offset, end))
                self._sift_segment(view, cleaned)
            self._flush_output(cleaned)
        finally:
            cleaned.file.release()
        return self._transactions.kept

    def _end_of(self, at: int, view: SegmentView) -> int:
        if at + 1 < len(self._group):
            return self._group[at + 1].base_offset
        return max(view.read_next_offset()[0], view.base_offset)

    def _finish(self, cleaned: CleanedSegment, aborted: list[AbortedTxn]) -> CleanedSegment:
        """Write the indexes. Everything except the names is durable then."""
        copy = self._log.replacing.written(cleaned, self._size)
        scan = scan_segment(copy)
        if scan.valid_bytes != self._size:
            raise InvariantError(f"{copy.log_path}: a batch at {scan.valid_bytes} is not sound")
        copy.install_indexes(scan.offset_index, scan.time_index + scan.final_time_entry())
        if aborted:
            copy.txn_index.append(*aborted)
        copy.flush(indexes=True)
        copy.close()
        copy.set_modified_ms(self._group[-1].segment.modified_ms())
        return copy

    # -- batches -------------------------------------------------------------------------------

    def _sift_segment(self, view: SegmentView, cleaned: CleanedSegment) -> None:
        limit = self._pass._cleaner.io_buffer_size
        retain_legacy = view.segment.modified_ms() > self._legacy_horizon

        def work(window: memoryview) -> int:
            done, status = self._sieve.run(window, 0, limit)
            while status != RUN_END:
                if status == RUN_FULL:
                    self._flush_output(cleaned)
                else:
                    batch = whole_batch(window, done)
                    self._sift_batch(window, batch, retain_legacy)
                    done = batch.end_position
                done, status = self._sieve.run(window, done, limit)
            return done

        self._pass.each_window(view, 0, work)
        self._flush_output(cleaned)

    def _flush_output(self, cleaned: CleanedSegment) -> None:
        size = self._sieve.pending
        if not size:
            return
        with self._sieve.view() as output:
            self._crc = crc32c(output, self._crc)
            with cleaned.file.held() as file:
                file.write_at(self._size, output)
        self._size += size
        self._sieve.reset()
        self._pass._cleaner.throttle(size)

    def _sift_batch(self, window: memoryview, batch: Batch, retain_legacy: bool) -> None:
        """Filter a batch that the kernel returned undone."""
        raw = window[batch.position : batch.end_position]
        if isinstance(batch, LegacyBatch):
            self._sift_legacy(raw, window, batch, retain_legacy)
            return
        check_batch_crc(window, batch)
        if batch.is_control:
            self._sift_control(raw, window, batch)
        elif self._transactions.on_data(
            batch.producer_id, batch.is_transactional, batch.last_offset
        ):
            self._stats.records_read += batch.record_count
            self._stats.records_aborted += batch.record_count
            self._keep_empty(batch, self._must_stay(batch))
        else:
            self._sift_data(raw, window, batch)

    def _must_stay(self, batch: BatchHeader) -> bool:
        """Whether an empty batch stays, for the state of its producer or for its last offset."""
        if batch.next_offset == self._sieve.upper_bound:
            return True
        if not batch.has_producer_id:
            return False
        if batch.last_offset in self._last_offsets:
            return True
        epoch = self._marker_epochs.get(batch.producer_id)
        return batch.is_control and epoch == batch.producer_epoch

    def _keep_empty(self, batch: BatchHeader, stays: bool) -> None:
        self._stats.batches_read += 1
        if stays:
            self._put(empty_batch(batch))
            self._stats.batches_emptied += 1

    def _put(self, data: Buffer) -> None:
        self._sieve.put(data)
        self._stats.batches_kept += 1

    def _sift_control(self, raw: memoryview, window: memoryview, batch: BatchHeader) -> None:
        """A marker stays while its transaction has data, and then until its horizon (F-303)."""
        unused = not batch.record_count
        if not unused:
            unused = self._transactions.on_marker(
                batch.producer_id, _is_commit(window, batch), batch.last_offset
            )
        self._stats.records_read += batch.record_count
        horizon = batch.delete_horizon
        if unused and (not batch.record_count or (horizon is not None and horizon <= self._now)):
            self._keep_empty(batch, self._must_stay(batch))
            return
        self._stats.batches_read += 1
        self._stats.records_kept += batch.record_count
        self._stats.markers_kept += batch.record_count
        if unused and horizon is None:
            self._put(self._with_horizon(window, batch))
            return
        self._put(raw)
        self._stats.batches_copied += 1

    @property
    def _now(self) -> int:
        return self._sieve.now_ms

    def _with_horizon(self, window: memoryview, batch: BatchHeader) -> Buffer:
        records = batch_records(window, batch, check_crc=False)
        horizon = min(self._now + self._sieve.delete_retention_ms, 2**63 - 1)
        return rebuild_batch(batch, records, delete_horizon=horizon)

    def _sift_data(self, raw: memoryview, window: memoryview, batch: BatchHeader) -> None:
        section = payload_of(window, batch)
        kept, tombstones, rebuilt, base, largest = _in_batch(
            batch,
            lambda: self._sieve.sift_section(
                section,
                batch.base_offset,
                batch.last_offset_delta,
                batch.record_count,
                batch.attributes,
                batch.base_timestamp,
                batch.max_timestamp,
            ),
        )
        if not kept:
            self._keep_empty(batch, self._must_stay(batch))
            return
        self._stats.batches_read += 1
        # With a horizon as base, timestamps may take more bytes than a reader would unpack.
        if rebuilt is None or (batch.compression and len(rebuilt) > UNPACKED_MAX):
            self._put(raw)
            self._stats.batches_copied += 1
            return
        self._put(
            _rebuilt(
                batch,
                rebuilt,
                kept,
                base_timestamp=base,
                max_timestamp=largest,
                has_horizon=tombstones > 0 or batch.delete_horizon is not None,
            )
        )

    def _sift_legacy(
        self, raw: memoryview, window: memoryview, batch: LegacyBatch, retain_legacy: bool
    ) -> None:
        """Filter a message, or a wrapper of several.

        The rest of a wrapper becomes a batch of magic 2, as older formats are not written here.
        """
        records = legacy_records(window, batch)
        kept = [record for record in records if self._keeps_legacy(record, retain_legacy)]
        stats = self._stats
        stats.batches_read += 1
        stats.records_read += len(records)
        stats.records_without_key += sum(record.key is None for record in records)
        if not kept and batch.next_offset == self._sieve.upper_bound:
            kept = records  # an empty batch of an old format cannot mark the end of the range
        stats.records_kept += len(kept)
        if len(kept) == len(records):
            self._put(raw)
            stats.batches_copied += 1
        elif kept:
            self._put(_modern(batch, kept))

    def _keeps_legacy(self, record: Record, retain_legacy: bool) -> bool:
        """Whether a record stays.

        ``retain_legacy``: the segment still keeps its tombstones (F-301).
        """
        offset_map = self._pass._map
        if record.offset > offset_map.latest_offset:
            return True
        if record.key is None or record.offset < offset_map.get(record.key):
            return False
        return record.value is not None or retain_legacy


def whole_batch(window: memoryview, position: int) -> Batch:
    """The batch at which a kernel stopped. The kernel has checked that it is whole."""
    batch = parse_batch(window, position)
    if batch is None:
        raise InvariantError(f"no whole batch at byte {position} of a window")
    return batch


def _in_batch(batch: BatchHeader, call: Callable[[], T]) -> T:
    """Run ``call``, and report errors in the records section at the place of the batch."""
    try:
        return call()
    except CorruptBatchError as error:
        raise CorruptBatchError("", batch.position, error.reason) from None


def _is_commit(window: memoryview, batch: BatchHeader) -> bool | None:
    raw = window[batch.position : batch.end_position]
    marker = _in_batch(batch, lambda: parse_end_transaction_marker(raw))
    return None if marker is None else marker[0]


def _rebuilt(
    batch: BatchHeader,
    section: bytes,
    record_count: int,
    *,
    base_timestamp: int,
    max_timestamp: int,
    has_horizon: bool,
) -> bytearray:
    """A compressed or transactional batch with the section of the records that stay."""
    content: Buffer = section
    if batch.compression is not Compression.NONE:
        content = compress(batch.compression, section)
    return seal_as(
        bytearray(HEADER_SIZE) + content,
        batch,
        batch.attributes | (bits.DELETE_HORIZON if has_horizon else 0),
        base_timestamp,
        None if batch.is_log_append_time else max_timestamp,
        record_count,
    )


def _modern(batch: LegacyBatch, records: Sequence[Record]) -> bytearray:
    """The remaining records of a wrapper as a batch of magic 2, without epoch and producer."""
    base = records[0].offset
    append_time = batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    header = BatchHeader(
        position=0,
        base_offset=base,
        batch_length=0,
        leader_epoch=NO_EPOCH,
        magic=2,
        crc=0,
        attributes=batch.compression | (bits.LOG_APPEND_TIME if append_time else 0),
        last_offset_delta=batch.last_offset - base,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=batch.timestamp,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        record_count=0,
    )
    return rebuild_batch(header, records)
