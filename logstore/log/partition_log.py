"""``PartitionLog``: the log of one partition on one disk. Matches Kafka's ``UnifiedLog``.

Threads: every method may be called from any thread. Reads wait for nobody (``readers``), appends
only for each other (``writer``), and what waits for the disk waits apart (``maintenance``).

Durability: when an append returns, the bytes are in the page cache: they survive the end of the
process, not of the machine. After ``flush`` they survive both, and the recovery point says so.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any
from weakref import WeakValueDictionary

from checkpoints.errors import CheckpointError, CheckpointFailedError
from checkpoints.partition_metadata import PartitionMetadata, PartitionMetadataFile
from logstore.clock import Clock, SystemClock
from logstore.config import MAX_LONG, LogConfig
from logstore.errors import (
    InconsistentTopicIdError,
    InvalidRecordError,
    InvariantError,
    LogstoreError,
    OffsetOutOfRangeError,
    PartialAppendError,
    PolicyViolationError,
    ResourceBusyError,
    StorageFailedError,
)
from logstore.format import filenames
from logstore.format.batch import encode_batch, encode_batch_lists
from logstore.format.compression import Compression
from logstore.index import AbortedTxn, TimestampOffset
from logstore.kernels import AppendInfo
from logstore.locks import Rank, make_lock
from logstore.log.clean_stop import (
    StartPoint,
    keep_log_start,
    leave_start_point,
    take_start_point,
)
from logstore.log.core import LogCore, is_busy, logger
from logstore.log.cursors import Cursor, OnOutOfRange
from logstore.log.directory_reader import DirectoryReader
from logstore.log.extending import ExtendInfo, extend
from logstore.log.flushing import Background, LogFlusher
from logstore.log.following import Follower, LogSource
from logstore.log.holding import PartitionHold, hold_partition
from logstore.log.iteration import column_portions, fill_chunk, portions
from logstore.log.maintenance import LogMaintenance
from logstore.log.producing import LogProducer, check_producer_id
from logstore.log.readers import LogReaders
from logstore.log.reading import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    FetchData,
    Timestamp,
    timestamp_to_find,
)
from logstore.log.validation import level_of
from logstore.log.writer import CODECS, LogWriter
from logstore.producer_state import AppendOrigin, ProducerStateManager
from logstore.random_id import RandomId, random_id
from logstore.recovery import LoadedLog, RecoveryOptions, RecoveryReport, load_log
from logstore.segment import Segment
from logstore.storage.base import Storage
from logstore.storage.local import LocalStorage
from logstore.types import Buffer, Record, TopicPartition


def run_inline(task: Callable[[], None]) -> None:
    """The default for a log without a manager: what Kafka schedules happens before return."""
    task()


class PartitionLog:
    """Open with ``PartitionLog.open``; close with ``close`` (or use it as a context manager)."""

    def __init__(
        self,
        directory: str,
        loaded: LoadedLog,
        config: LogConfig,
        storage: Storage,
        clock: Clock,
        *,
        background: Background = run_inline,
        replicated: bool = False,
        on_failure: Callable[[StorageFailedError], None] | None = None,
        on_cut: Callable[[], None] | None = None,
        on_restart: Callable[[], None] | None = None,
        random_id: RandomId = random_id,
        hold: PartitionHold | None = None,
    ) -> None:
        self.directory = directory
        self.topic_partition: TopicPartition = loaded.topic_partition
        self.recovery_report: RecoveryReport = loaded.report
        self._topic_id: uuid.UUID | None = loaded.topic_id
        self._hold = hold
        self._core = LogCore(directory, config, storage, clock, on_failure)
        self._writer = LogWriter(self._core, loaded, replicated=replicated, random_id=random_id)
        if hold is not None and on_restart is None:
            on_restart = partial(self._keep_log_start, None)
        self._flusher = LogFlusher(self._core, self._writer, background, on_cut)
        self._maintenance = LogMaintenance(self._core, self._writer, self._flusher, on_restart)
        self._readers = LogReaders(self._core, self.name, self._maintenance.repair_indexes)
        for segment in self._writer.segments:
            segment.let_go()  # what loading opened
        self._producers_lock = make_lock(Rank.PRODUCERS)
        self._producers: WeakValueDictionary[int, LogProducer] = WeakValueDictionary()

    def reconfigure(self, config: LogConfig) -> None:
        """Take over another configuration of the topic, from the next operation on.

        Sizes of indexes that exist stay as they are until the next roll.
        """
        self._maintenance.reconfigure(config)

    # -- open and close ------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        config: LogConfig | None = None,
        *,
        storage: Storage | None = None,
        clock: Clock | None = None,
        managed: bool = False,
        clean_shutdown: bool | None = None,
        recovery_point: int | None = None,
        log_start_offset: int | None = None,
        topic_id: uuid.UUID | None = None,
        options: RecoveryOptions | None = None,
        producer_id_expiration_ms: int = MAX_LONG,
        background: Background = run_inline,
        replicated: bool = False,
        on_failure: Callable[[StorageFailedError], None] | None = None,
        on_cut: Callable[[], None] | None = None,
        on_restart: Callable[[], None] | None = None,
        random_id: RandomId = random_id,
    ) -> PartitionLog:
        """Open or create the log in ``directory`` (named ``topic-partition``, F-1).

        It locks the log directory around it, as Kafka and ``LogManager`` do; other partitions of
        the same directory may be open in this process. After ``close`` the next start is a clean
        one. After a crash it recovers; no record is lost that was acknowledged as durable.

        Args:
            managed: somebody else holds the lock, and keeps what a start needs; nothing is locked
                or left behind, and the next three count alone (unclean, 0 and 0 by default).
            clean_shutdown, recovery_point, log_start_offset: what is known of the last stop, if
                one of them is given; otherwise what the last owner left in the directory.
            clean_shutdown: trust the files; without it everything from the segment of
                ``recovery_point`` on is scanned, and cut at the first bad batch.
            producer_id_expiration_ms: forget a producer that is silent for so long; never by
                default.
            replicated: leave the high watermark to the caller; otherwise it follows the log end.
            background: runs what may happen later (the flush of a rolled segment).
            on_failure: told once when the disk fails. It may hold the lock under which appends
                happen: it hands the news on and comes back.
            on_cut: called when a truncation is durable, before the first new record: offsets that
                the owner keeps about the log by its name must be below its end, durably, on
                return.
            on_restart: called when a truncation has dropped all records, before the first new
                one; what the owner keeps about the log by its name must be gone, durably, on
                return.
            random_id: 32 hex digits, other ones each time; for ``segment.jitter.ms``.
        Raises:
            LogDirLockedError: the partition is open already, or its log directory is in use.
            StorageFailedError: the disk refused.
            ResourceBusyError: descriptors or memory are short.
            CorruptDataError: damage that recovery may not cut.
            InvalidTopicError: the directory's name is not ``topic-partition``.
        """
        path = os.fspath(directory)
        storage = storage or LocalStorage()
        clock = clock or SystemClock()
        config = config or LogConfig()
        given = (clean_shutdown, recovery_point, log_start_offset)
        hold = None if managed else hold_partition(storage, path)
        try:
            start = StartPoint(False, 0, 0) if hold is None else take_start_point(storage, path)
            if given != (None, None, None):
                start = StartPoint(bool(clean_shutdown), recovery_point or 0, log_start_offset or 0)
            loaded = load_log(
                storage, path, config, clock, clean_shutdown=start.clean,
                recovery_point=start.recovery_point, log_start_offset=start.log_start_offset,
                options=options or RecoveryOptions(),
                producer_id_expiration_ms=producer_id_expiration_ms,
            )  # fmt: skip
            log = cls(
                path, loaded, config, storage, clock,
                background=background, replicated=replicated, on_failure=on_failure,
                on_cut=on_cut, on_restart=on_restart, random_id=random_id, hold=hold,
            )  # fmt: skip
        except BaseException as error:
            if hold is not None:
                hold.release()
            if is_busy(error):
                raise ResourceBusyError(path, "open", str(error)) from error
            if isinstance(error, OSError | CheckpointFailedError):
                raise StorageFailedError(path, "open", str(error)) from error
            raise
        if topic_id is not None:
            try:
                log.assign_topic_id(topic_id)
            except BaseException:
                log.crash()  # nobody else could close its files
                raise
        return log

    def __enter__(self) -> PartitionLog:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"PartitionLog({self.directory}, [{self.log_start_offset}, {self.log_end_offset}))"

    def close(self) -> None:
        """Flush, snapshot the producers, trim the active segment and release all files.

        After this a start may be clean. A log that has failed is only released.
        """
        try:
            self._maintenance.close(self._leave_start_point)
        finally:
            self._let_go()

    def _leave_start_point(self) -> None:
        if self._hold is None:
            return
        snapshot = self._core.snapshot
        try:
            leave_start_point(
                self._core.storage, self.directory, self.topic_partition,
                self.segments[0].base_offset, snapshot.log_start_offset, snapshot.log_end_offset,
            )  # fmt: skip
        except (OSError, CheckpointError) as error:
            logger.error("%s: the next start will recover: %s", self.directory, error)

    def _let_go(self) -> None:
        if self._hold is not None:
            self._hold.release()

    def crash(self) -> None:
        """Release files without flushing or trimming, as the end of the process does."""
        try:
            self._maintenance.release()
        finally:
            self._let_go()

    # -- state ---------------------------------------------------------------------------------

    @property
    def config(self) -> LogConfig:
        return self._core.config

    @property
    def name(self) -> str:
        return str(self.topic_partition)

    @property
    def log_start_offset(self) -> int:
        return self._core.snapshot.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """Offset of the next record (LEO)."""
        return self._core.snapshot.log_end_offset

    @property
    def recovery_point(self) -> int:
        """All records below it are known to be on the disk (F-222)."""
        return self._writer.recovery_point

    @property
    def high_watermark(self) -> int:
        """Records below it are committed; without replicas that is the log end."""
        return self._core.snapshot.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Readers of committed data stop here (LSO)."""
        return self._core.snapshot.last_stable_offset

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of an open or unreplicated transaction, not below the log start (F-198)."""
        with self._writer.lock:
            first = self._writer.producers.first_unstable_offset
        return None if first is None else max(first, self.log_start_offset)

    @property
    def version(self) -> int:
        """How often something was removed: truncations, deletions of segments."""
        return self._core.snapshot.version

    @property
    def restarting(self) -> bool:
        """A truncation drops all records, and is not durable yet: a crash brings back the old."""
        return self._maintenance.restarting

    @property
    def topic_id(self) -> uuid.UUID | None:
        return self._topic_id

    @property
    def size(self) -> int:
        """Bytes of batches in all segments."""
        snapshot = self._core.snapshot
        sealed: int = sum(view.size for view in snapshot.sealed)
        return sealed + snapshot.size

    @property
    def segments(self) -> tuple[Segment, ...]:
        snapshot = self._core.snapshot
        return (*(view.segment for view in snapshot.sealed), snapshot.active)

    @property
    def active_segment(self) -> Segment:
        active: Segment = self._core.snapshot.active
        return active

    @property
    def unflushed(self) -> int:
        """Records above the recovery point."""
        return self.log_end_offset - self.recovery_point

    @property
    def last_flush_ms(self) -> int:
        return self._flusher.last_flush_ms

    @property
    def latest_epoch(self) -> int:
        return self._writer.epochs.latest_epoch

    @property
    def epoch_entries(self) -> tuple[tuple[int, int], ...]:
        with self._writer.lock:
            return self._writer.epochs.entries

    @property
    def producers(self) -> ProducerStateManager:
        return self._writer.producers

    @property
    def failed(self) -> bool:
        return self._core.failure is not None

    def mark_failed(self, failure: LogstoreError) -> None:
        """Refuse further work: another log of the same directory met a failure."""
        self._core.refuse(failure)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """``(epoch, end offset)`` for OffsetsForLeaderEpoch (F-208)."""
        with self._writer.lock:
            return self._writer.epochs.end_offset_for(epoch, self._writer.log_end_offset)

    def epoch_for_offset(self, offset: int) -> int | None:
        with self._writer.lock:
            return self._writer.epochs.epoch_for_offset(offset)

    def assign_epoch(self, epoch: int, start_offset: int | None = None) -> None:
        """Record a new leadership, before its first record; durable on return (F-219)."""
        writer = self._writer
        with writer.lock:
            self._core.check()
            start = writer.log_end_offset if start_offset is None else start_offset
            writer.epochs.assign(epoch, start, durable=False)
        self._flusher.save_epochs()

    def assign_topic_id(self, topic_id: uuid.UUID) -> None:
        """Write ``partition.metadata``, which must precede the first record (F-37).

        Raises:
            InconsistentTopicIdError: the log belongs to another topic id.
        """
        with self._maintenance.structure_lock:
            self._core.check()
            if self._topic_id is not None:
                if self._topic_id != topic_id:
                    raise InconsistentTopicIdError(
                        f"{self.directory} belongs to topic id {self._topic_id}, not {topic_id}"
                    )
                return
            path = os.path.join(self.directory, filenames.PARTITION_METADATA)
            with self._core.doing("write partition.metadata"):
                file = PartitionMetadataFile(path, self._core.storage)
                file.write(PartitionMetadata(topic_id))
            self._topic_id = topic_id

    # -- append --------------------------------------------------------------------------------

    def append(
        self,
        records: Sequence[tuple[Any, ...]],
        *,
        sync: bool = False,
        leader_epoch: int | None = None,
        compression: Compression | str | None = None,
    ) -> AppendInfo:
        """Append records as one batch.

        Args:
            records: ``(key, value)``, ``(key, value, timestamp_ms)``, ``(key, value,
                timestamp_ms, headers)`` or ``Record``; keys and values are bytes or None. A
                timestamp is in ms, or a ``datetime`` with its time zone; None is the present.
            sync: wait until the batch is durable. One sync serves all who wait for it.
            leader_epoch: epoch of this leader; the latest known one (at least 0) by default.
            compression: codec, or its name; the topic's ``compression.type`` by default.
        Raises:
            RecordRejectedError: a record breaks a rule; nothing was appended.
            StorageFailedError: the disk refused; the log is offline until opened again.
        """
        codec = self._codec(compression)
        batch = encode_batch(
            records,
            compression=codec,
            level=level_of(codec, self.config),
            default_timestamp=self._core.clock.wall_ms(),
            keys_required=self.config.compact,
        )
        info = self._writer.append_own(batch, leader_epoch)
        self._flusher.after_append(info.last_offset, sync=sync)
        return info

    def extend(
        self,
        records: Iterable[tuple[Any, ...]],
        *,
        batch_records: int | None = None,
        batch_bytes: int | None = None,
        sync: bool = False,
        leader_epoch: int | None = None,
        compression: Compression | str | None = None,
    ) -> ExtendInfo:
        """Append any number of records, in as many batches as they need.

        Args:
            records: as in ``append``; any iterable, which is read as it is appended.
            batch_records: at most so many records in a batch.
            batch_bytes: about so many bytes in a batch before compression, 128 KiB by default;
                never more than ``max.message.bytes`` and ``segment.bytes`` allow.
            sync: wait at the end until all batches are durable.
        Raises:
            PartialAppendError: it stopped in the middle, for a reason that is its cause; all
                records before are appended (with ``sync`` durably), and it says how many.
            ConfigError: a limit is below 1.
        """

        def append(batch: list[Any]) -> AppendInfo:
            return self.append(batch, leader_epoch=leader_epoch, compression=compression)

        try:
            done = extend(self.name, records, append, self.config, batch_records, batch_bytes)
        except PartialAppendError as error:
            if sync and error.record_count and not self.failed:
                self.flush(error.last_offset + 1)
            raise
        if sync and done.record_count:
            self._flusher.after_append(done.last_offset, sync=True)
        return done

    def append_columns(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        timestamps: Timestamp | Sequence[Timestamp] | None = None,
        headers: Sequence[Sequence[tuple[str, bytes | None]]] | None = None,
        *,
        sync: bool = False,
        leader_epoch: int | None = None,
        compression: Compression | str | None = None,
    ) -> AppendInfo:
        """As ``append``, from parallel sequences; the fastest way in for Python objects."""
        codec = self._codec(compression)
        batch = encode_batch_lists(
            keys,
            values,
            timestamps,
            headers,
            compression=codec,
            level=level_of(codec, self.config),
            default_timestamp=self._core.clock.wall_ms(),
            keys_required=self.config.compact,
        )
        info = self._writer.append_own(batch, leader_epoch)
        self._flusher.after_append(info.last_offset, sync=sync)
        return info

    def producer(self, producer: int | str) -> LogProducer:
        """An idempotent producer, by its id or by a name of which the id is made.

        After a restart it goes on where the log ends. One of the same id that is still there is
        fenced: from here on its appends fail.

        Raises:
            InvalidRecordError: neither an id in [0, 2^63) nor a name.
            InvalidProducerEpochError: all its epochs are used up.
        """
        producer_id = check_producer_id(producer)
        with self._producers_lock:
            self._core.check()
            made = LogProducer(
                self._core, self._writer, self._flusher.after_append, producer_id,
                self._producers.get(producer_id),
            )  # fmt: skip
            self._producers[producer_id] = made
        return made

    def append_as_leader(
        self,
        data: Buffer,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> AppendInfo:
        """Append ready-made batches: offsets and the leader epoch are placed in their headers.

        With origin CLIENT every record is validated, as a broker does with a produce request; the
        other origins are trusted beyond the checksum (F-192). Several batches become one write.

        Raises:
            RecordRejectedError: a batch breaks a rule; nothing was appended.
            StorageFailedError: the disk refused.
        """
        info = self._writer.append_as_leader(data, leader_epoch, origin)
        self._flusher.after_append(info.last_offset)
        return info

    def append_as_follower(self, data: Buffer, leader_epoch: int | None = None) -> AppendInfo:
        """Append batches fetched from a leader: offsets, epochs and bytes stay (F-164).

        A partial batch at the end of ``data`` is left out (F-163). ``leader_epoch`` of the leader
        that sent them: no batch may have a later one.

        Raises:
            UnexpectedAppendOffsetError: the first offset is below the log end offset.
            RecordRejectedError: offsets do not ascend, leader epochs fall, or a checksum is wrong.
        """
        info = self._writer.append_as_follower(data, leader_epoch)
        self._flusher.after_append(info.last_offset)
        return info

    def roll(self) -> None:
        """Begin a new segment at the log end offset; an empty active one is left alone."""
        self._flusher.roll()

    def flush(self, offset: int | None = None) -> None:
        """Make all records below ``offset`` (default: the log end) durable; advance the recovery
        point.

        Raises:
            StorageFailedError: a sync failed; it is never tried again (F-224).
        """
        self._flusher.flush(offset)

    # -- read ----------------------------------------------------------------------------------

    def read(
        self,
        start_offset: int,
        max_bytes: int = 1 << 20,
        *,
        minimum_one: bool = True,
        up_to: int | None = None,
        committed: bool = False,
    ) -> FetchData:
        """Bytes from the batch that holds ``start_offset`` on, of one segment (F-155 … F-160).

        Args:
            max_bytes: at most so many bytes, but at least one batch when ``minimum_one``.
            up_to: offsets at or after it are not for this reader; the log end by default. A
                consumer passes ``high_watermark``, or sets ``committed`` for the last stable
                offset and the aborted transactions in the range.
        Raises:
            OffsetOutOfRangeError: below the log start or above the log end.
            StorageFailedError: the disk refused; the log stays as it is (S-43).
        """
        return self._readers.read(start_offset, max_bytes, minimum_one, up_to, committed)

    def available_bytes(self, start_offset: int, end_offset: int) -> int:
        """Bytes of the batches that hold ``[start_offset, end_offset)``.

        Raises:
            OffsetOutOfRangeError: the start lies outside the log.
        """
        return self._readers.available_bytes(start_offset, end_offset)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> tuple[AbortedTxn, ...]:
        """Aborted transactions that overlap ``[start_offset, end_offset)`` (F-125).

        Raises:
            OffsetOutOfRangeError: the start lies outside the log.
        """
        return self._readers.aborted_transactions(start_offset, end_offset)

    def records(
        self, start_offset: int | None = None, end_offset: int | None = None
    ) -> Iterator[Record]:
        """All records of ``[start_offset, end_offset)``, one after the other, CRCs checked.

        Begins at the log start and ends at the log end by default.

        Raises:
            OffsetOutOfRangeError: the start lies outside the log; or, while reading, what comes
                next was deleted or cut off.
            CorruptBatchError: a batch is damaged; the records before it were given.
        """
        chunks = self.record_chunks(start_offset, end_offset)
        return (record for chunk in chunks for record in chunk)

    def record_chunks(
        self, start_offset: int | None = None, end_offset: int | None = None
    ) -> Iterator[list[Record]]:
        """As ``records``, in lists of some thousands: the fast way to read a whole log.

        Memory stays bounded by a window of 4 MiB and one list.
        """
        return portions(self._readers, start_offset, end_offset, fill_chunk)

    def to_arrow(
        self,
        start_offset: int | None = None,
        end_offset: int | None = None,
        *,
        headers: bool = False,
    ) -> Iterator[Any]:
        """``pyarrow.RecordBatch``es of all records in the range (see ``logstore.arrow``).

        Raises as ``records``; the record batches before the damage were given.
        """
        return column_portions(self._readers, start_offset, end_offset, headers=headers)

    def offset_for_timestamp(self, timestamp: Timestamp) -> TimestampOffset | None:
        """The first record at or after ``timestamp`` ms; or EARLIEST, LATEST, MAX_TIMESTAMP.

        A ``datetime`` needs its time zone. Source: F-149 … F-152. None when there is no such
        record.
        """
        return self._readers.offset_for_timestamp(timestamp_to_find(timestamp))

    # -- follow --------------------------------------------------------------------------------

    def follow(
        self, start: int | None = None, *, timeout: float | None = None, committed: bool = False
    ) -> Follower:
        """The records from ``start`` on, and then those to come: an iterator that waits.

        It sees an append at once, up to the high watermark.

        Args:
            start: an offset, EARLIEST or LATEST; the log start by default.
            timeout: end after so many seconds without a record; wait for ever if None.
            committed: up to the last stable offset, without what was aborted.
        Raises:
            OffsetOutOfRangeError: here or while reading: what comes next was deleted.
            LogTruncatedError: what was read before was cut off.
            LogClosedError: the log was closed, also while this waits.
            CorruptBatchError: a batch is damaged; the records before it were given.
        """
        source = LogSource(self._core, self._readers, self.name, committed)
        follower = Follower(source, start, timeout)
        source.check(follower.position)
        return follower

    def follow_async(
        self, start: int | None = None, *, timeout: float | None = None, committed: bool = False
    ) -> AsyncIterator[Record]:
        """As ``follow``, for ``async for``: nothing here holds up the event loop."""
        return self.follow(start, timeout=timeout, committed=committed).records_async()

    def cursor(
        self,
        name: str,
        *,
        start: int | None = None,
        on_out_of_range: str = "error",
        committed: bool = False,
    ) -> Cursor:
        """The place of a reader, kept under ``name`` in the log's directory (see ``Cursor``).

        Args:
            start: where it begins if there is none of this name: an offset, EARLIEST or LATEST;
                the log start by default.
            on_out_of_range: where it goes on if the records at its position were deleted:
                "earliest" or "latest"; "error" raises ``OffsetOutOfRangeError``.
            committed: as in ``follow``.
        Raises:
            CursorError: a bad name, a damaged file, or one of another topic.
        """
        return Cursor(
            self._core, self._readers, self.name, lambda: self._topic_id, self.flush, name,
            start=start, on_out_of_range=OnOutOfRange.of(on_out_of_range), committed=committed,
        )  # fmt: skip

    @staticmethod
    def open_reader(
        directory: str | os.PathLike[str],
        *,
        storage: Storage | None = None,
        clock: Clock | None = None,
    ) -> DirectoryReader:
        """Follow the log in a directory that another process writes (see ``DirectoryReader``)."""
        return DirectoryReader(directory, storage=storage, clock=clock)

    # -- watermarks ----------------------------------------------------------------------------

    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark, clamped to [log start, log end]; the value it has then (R-26)."""
        writer = self._writer
        with writer.lock:
            self._core.check()
            writer.set_high_watermark_locked(
                min(max(offset, writer.log_start_offset), writer.log_end_offset)
            )
            return writer.high_watermark

    def maybe_increment_high_watermark(self, offset: int) -> int | None:
        """Advance the high watermark; the old value if it moved (R-23)."""
        writer = self._writer
        with writer.lock:
            self._core.check()
            if offset > writer.log_end_offset:
                raise ValueError(
                    f"high watermark {offset} is above the log end {writer.log_end_offset}"
                )
            old = writer.committed_offset
            if offset <= old:
                return None
            writer.set_high_watermark_locked(offset)
            return old

    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        """Raise the log start; segments below it go with the next retention pass (F-286).

        Raises:
            OffsetOutOfRangeError: above the high watermark.
        """
        with self._writer.lock:
            return self._raise_log_start_locked(offset)

    def _raise_log_start_locked(self, offset: int) -> bool:
        writer = self._writer
        self._core.check()
        if not 0 <= offset <= writer.committed_offset:
            raise OffsetOutOfRangeError(
                self.name, offset, writer.log_start_offset, writer.committed_offset
            )
        if offset <= writer.log_start_offset:
            return False
        writer.raise_log_start_locked(offset)
        writer.epochs.truncate_from_start(offset)
        writer.publish_locked()
        return True

    def delete_records(self, before_offset: int) -> int:
        """Delete all records below ``before_offset`` (−1: the high watermark); the new log start.

        Durable on return where no manager keeps the log starts (it does so once a minute).

        Raises:
            OffsetOutOfRangeError, PolicyViolationError: see F-287.
        """
        if not self.config.delete:
            raise PolicyViolationError(f"{self.name}: cleanup.policy does not allow deletion")
        writer = self._writer
        with writer.lock:
            offset = writer.committed_offset if before_offset == -1 else before_offset
            self._raise_log_start_locked(offset)
            start = writer.log_start_offset
        if self._hold is not None:  # a manager does this from time to time
            self.flush(start)
            with self._maintenance.structure_lock, self._core.doing("keep the log start"):
                self._core.check()
                self._keep_log_start(self.log_start_offset)
        return start

    def _keep_log_start(self, start: int | None) -> None:
        keep_log_start(self._core.storage, self.directory, self.topic_partition, start)

    # -- truncate ------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> bool:
        """Drop all records at or after ``offset``; False when there were none (F-269 … F-278).

        A batch that contains ``offset`` goes whole, and the log ends where it began: stricter than
        Kafka, whose log end may lie inside a batch that is gone. The cut becomes durable before
        anything else is written (stricter than F-280): no crash puts old records behind what is
        appended next.
        """
        if offset < 0:
            raise ValueError(f"cannot truncate to offset {offset}")
        return self._maintenance.truncate_to(offset)

    def truncate_fully_and_start_at(self, offset: int, log_start_offset: int | None = None) -> None:
        """Drop everything; the log becomes empty at ``offset`` (F-269 … F-277).

        Raises:
            ValueError: below 0, or above 2**63 - 1.
        """
        start = offset if log_start_offset is None else log_start_offset
        if not (0 <= offset <= MAX_LONG and 0 <= start <= MAX_LONG):
            raise ValueError(f"cannot start at offset {offset} with log start {start}")
        self._maintenance.truncate_fully_and_start_at(offset, start)

    # -- housekeeping --------------------------------------------------------------------------

    def delete_old_segments(self) -> int:
        """Delete what retention allows (F-282 … F-285); the number of segments deleted."""
        return self._maintenance.delete_old_segments()

    def purge_deleted(self, now_ms: int) -> int:
        """Unlink ``.deleted`` files that are due; how many."""
        return self._maintenance.purge_deleted(now_ms)

    def take_producer_snapshot(self) -> None:
        """Write the state of the producers at the log end, durably."""
        writer = self._writer
        with self._flusher.flush_lock, self._core.doing("write producer snapshot"):
            with writer.lock:
                self._core.check()
                writer.producers.map_end_offset = writer.log_end_offset
                offset = writer.producers.take_snapshot(sync=False)
            if offset is not None:
                writer.producers.sync_snapshot(offset)
                self._core.storage.sync_dir(self.directory)

    def drop_old_snapshots(self, recovery_point: int) -> None:
        """Snapshots no recovery needs any more: below the segment of the recovery point but one."""
        writer = self._writer
        with writer.lock, self._core.doing("remove snapshot"):
            if self.failed:
                return  # what lies there may be of another log by now
            bases = [b for b in writer.segments.bases if b <= recovery_point][-2:]
            floor = bases[0] if bases else 0
            for offset in [o for o in writer.producers.snapshots if o < floor]:
                writer.producers.remove_snapshot(offset)

    def remove_expired_producers(self) -> int:
        with self._writer.lock:
            return self._writer.producers.remove_expired(self._core.clock.wall_ms())

    def flush_epochs(self) -> None:
        """Write the epoch file if the cache is ahead of it (F-207)."""
        self._flusher.save_epochs()

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` when the log contradicts itself; for tests after each step."""
        writer = self._writer
        with writer.lock:
            bases = writer.segments.bases
            entries = writer.epochs.entries
            snapshot = self._core.snapshot
            end = writer.log_end_offset
            rules = {
                "log start <= high watermark <= log end": (
                    writer.log_start_offset <= writer.committed_offset <= end
                ),
                "recovery point <= log end": writer.recovery_point <= end,
                "segments ascend": bases == sorted(set(bases)),
                "epochs ascend": all(
                    a.epoch < b.epoch and a.start_offset < b.start_offset
                    for a, b in pairwise(entries)
                ),
                "readers see the log as it is": self.failed
                or (
                    (snapshot.log_start_offset, snapshot.log_end_offset, snapshot.high_watermark)
                    == (writer.log_start_offset, end, writer.committed_offset)
                ),
            }
            broken = [rule for rule, holds in rules.items() if not holds]
            if broken:
                raise InvariantError(f"{self}: not {', not '.join(broken)}")

    def _codec(self, compression: Compression | str | None) -> Compression:
        if compression is None:
            return self._writer.compression
        if isinstance(compression, Compression):
            return compression
        if compression not in CODECS:
            raise InvalidRecordError(f"unknown compression {compression!r}")
        return CODECS[compression]


__all__ = ["EARLIEST", "LATEST", "MAX_TIMESTAMP", "AppendInfo", "PartitionLog", "run_inline"]
