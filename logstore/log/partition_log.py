"""``PartitionLog``: the log of one partition on one disk. Matches Kafka's ``UnifiedLog``.

Threads: every method may be called from any thread. Reads never wait (``LogReader``), appends wait
only for each other (``LogWriter``), and disk waits hold up neither (``LogFlusher``,
``LogMaintenance``).

Durability: when an append returns, the bytes are in the page cache: they survive the end of the
process, not of the machine. After ``flush`` they survive both, and the recovery point says so.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import index
from typing import Any, Self, TypeVar

from checkpoints.errors import CheckpointFailedError
from checkpoints.files import UnusableFileError
from logstore.common.clock import Clock, SystemClock
from logstore.common.config import LogConfig
from logstore.common.disk_errors import is_busy
from logstore.common.errors import (
    InvalidRecordError,
    PartialAppendError,
    PolicyViolationError,
    StorageFailedError,
)
from logstore.common.shield import shielded
from logstore.common.types import Buffer, Record
from logstore.format.batch import encode_batch, encode_batch_lists
from logstore.format.codecs.compression import Compression
from logstore.kernels import AppendInfo, LogSnapshot
from logstore.log.core import ALONE, LogCore, LogOwner, medium_error, unusable
from logstore.log.maintenance import LogMaintenance
from logstore.log.reading.cursors import Cursor, OnOutOfRange
from logstore.log.reading.directory_reader import DirectoryReader
from logstore.log.reading.fetching import FetchData, Timestamp, timestamp_to_find
from logstore.log.reading.following import Follower, LogSource
from logstore.log.reading.iteration import column_portions, fill_chunk, portions
from logstore.log.reading.snapshot_reader import LogReader
from logstore.log.replacing import LogReplacing
from logstore.log.replica import LogEpochs, LogReplica
from logstore.log.standalone import PartitionHold, StartPoint, hold_partition
from logstore.log.writing.extending import BATCH_BYTES, BATCH_RECORDS, ExtendInfo, extend
from logstore.log.writing.flushing import LogFlusher
from logstore.log.writing.producing import LogProducer, LogProducers
from logstore.log.writing.state import LogState
from logstore.log.writing.validation import CODECS, level_of
from logstore.log.writing.writer import LogWriter
from logstore.recovery import DurableNames, LoadedLog, RecoveryOptions, load_log
from logstore.segments.index import TimestampOffset
from logstore.segments.producer_state import AppendOrigin, TransactionCheck
from logstore.segments.segment import Segment
from logstore.storage.base import Storage
from logstore.storage.local import LocalStorage
from logstore.storage.paths import absolute_path

CLIENT = AppendOrigin.CLIENT  # a name of an enum takes longer than all else before the write
T = TypeVar("T", bound="PartitionLog")


class PartitionLog:
    """The log of one partition. Open it with ``PartitionLog.open``; use it as a context manager.

    Any thread may call any method. Reads never wait, appends wait only for each other, and disk
    waits hold up neither. Appended records survive the process, and after ``flush`` the machine.
    """

    def __init__(self, core: LogCore, loaded: LoadedLog, hold: PartitionHold | None) -> None:
        self.core = core
        self.directory = core.directory
        self.topic_partition = core.topic_partition = loaded.topic_partition
        self.name = core.name = str(loaded.topic_partition)
        self.recovery_report = loaded.report
        self._hold = hold
        core.topic_id = loaded.topic_id
        self.state = LogState(core, loaded)
        self.writer = LogWriter(core, self.state)
        self.flusher = LogFlusher(core, self.state, self.writer)
        self.maintenance = LogMaintenance(core, self.state, self.writer, self.flusher)
        self.replacing = LogReplacing(core, self.state, self.maintenance)
        self.reader = LogReader(core, self.maintenance.repair_indexes)
        self.epochs = LogEpochs(core, self.state, self.flusher)
        self.producers = LogProducers(core, self.state, self.writer, self.flusher)
        self.replica = LogReplica(core, self.state, self.writer, self.flusher)
        for segment in self.state.segments:
            segment.release()  # what loading opened

    @classmethod
    @shielded
    def open(
        cls,
        directory: str | os.PathLike[str],
        config: LogConfig | None = None,
        *,
        storage: Storage | None = None,
        clock: Clock | None = None,
        topic_id: uuid.UUID | None = None,
        options: RecoveryOptions | None = None,
        owner: LogOwner = ALONE,
    ) -> Self:
        """Open or create the log in ``directory`` (named ``topic-partition``, F-1).

        It locks the log directory around it, as Kafka and ``LogManager`` do; other partitions of
        the same directory may be open in this process. After ``close`` the next start is a clean
        one. After a crash it recovers; no record is lost that was acknowledged as durable. A
        relative path is that of the present working directory, also after the process leaves it.

        Args:
            owner: for a log that is one of many, what their owner decides.
        Raises:
            LogDirLockedError: the partition is open already, or its log directory is in use.
            StorageFailedError: the disk refused.
            ResourceBusyError: descriptors or memory are short.
            CorruptDataError: damage that recovery may not cut.
            InvalidTopicError: the directory's name is not ``topic-partition``.
        """
        storage = storage or LocalStorage()
        path = absolute_path(storage, directory)
        core = LogCore(path, config or LogConfig(), storage, clock or SystemClock(), owner)
        log = _load(cls, core, options or RecoveryOptions())
        try:
            if topic_id is not None:
                log.assign_topic_id(topic_id)
            log.flusher.flush_overdue()
        except BaseException:
            log.crash()  # no other code could close its files
            raise
        return log

    def __repr__(self) -> str:
        start, end = self.log_start_offset, self.log_end_offset
        closed = ", closed" if self.core.closed else ""
        return f"PartitionLog({self.directory}, [{start}, {end}){closed})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @shielded
    def close(self) -> None:
        """Flush, snapshot the producers, trim the active segment and release all files.

        After this a start may be clean. A log that has failed is only released, and so is that of
        a parent in a forked child.
        """
        try:
            self.maintenance.close(self._leave_start_point)
        finally:
            if self._hold is not None:
                self._hold.release()

    def _leave_start_point(self) -> None:
        if self._hold is not None:
            self._hold.leave_start_point(self.snapshot, self.segments[0].base_offset)

    def crash(self) -> None:
        """Release files without flushing or trimming, as the end of the process does."""
        try:
            self.maintenance.release()
        finally:
            if self._hold is not None:
                self._hold.release()

    # -- what it is ----------------------------------------------------------------------------

    @property
    def config(self) -> LogConfig:
        return self.core.config

    @property
    def topic_id(self) -> uuid.UUID | None:
        return self.core.topic_id

    @property
    def snapshot(self) -> LogSnapshot:
        """Start, end and committed end of the log, all at one moment."""
        return self.core.snapshot

    @property
    def log_start_offset(self) -> int:
        return self.core.snapshot.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """Offset of the next record (LEO)."""
        return self.core.snapshot.log_end_offset

    @property
    def recovery_point(self) -> int:
        """All records below it are known to be on the disk (F-222)."""
        return self.state.recovery_point

    @property
    def high_watermark(self) -> int:
        """Records below it are committed; without replicas that is the log end."""
        return self.core.snapshot.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Readers of committed data stop here (LSO)."""
        return self.core.snapshot.last_stable_offset

    @property
    def size(self) -> int:
        """Bytes of batches in all segments."""
        snapshot = self.core.snapshot
        sealed: int = sum(view.size for view in snapshot.sealed)
        return sealed + snapshot.size

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, of which the last one is active."""
        snapshot = self.core.snapshot
        return (*(view.segment for view in snapshot.sealed), snapshot.active)

    @property
    def failed(self) -> bool:
        return self.core.failure is not None

    # -- changes of the whole ------------------------------------------------------------------

    def reconfigure(self, config: LogConfig) -> None:
        """Use another configuration of the topic, from the next operation on.

        Existing indexes keep their sizes until the next roll. Records that ``flush.messages`` no
        longer allows to be unsynced are durable on return.

        Raises:
            StorageFailedError, ResourceBusyError: the sync failed.
        """
        self.maintenance.configure(config)
        self.flusher.flush_overdue()

    def assign_topic_id(self, topic_id: uuid.UUID) -> None:
        """Write ``partition.metadata``, which must precede the first record (F-37).

        Raises:
            InconsistentTopicIdError: the log belongs to another topic id.
        """
        self.maintenance.assign_topic_id(topic_id)

    def roll(self) -> None:
        """Begin a new segment at the log end offset, unless the active one is empty."""
        self.flusher.roll()

    def flush(self, offset: int | None = None) -> None:
        """Make all records below ``offset`` (default: the log end) durable.

        Raises:
            StorageFailedError: a sync failed; it is never tried again (F-224).
        """
        self.flusher.flush(offset)

    @shielded
    def delete_records(self, before_offset: int) -> int:
        """Delete all records below ``before_offset`` (−1: the high watermark).

        Returns the log start.

        It is durable on return, unless a manager writes the log starts, once a minute.

        Raises:
            OffsetOutOfRangeError, PolicyViolationError: see F-287.
        """
        if not self.config.delete:
            raise PolicyViolationError(f"{self.name}: cleanup.policy does not allow deletion")
        state = self.state
        with state.lock:
            offset = state.committed_offset if before_offset == -1 else index(before_offset)
            state.delete_records_locked(offset)
            start = state.log_start_offset
        if self._hold is not None:  # a manager does this periodically
            self.flush(start)
            with self.maintenance.structure_lock, self.core.doing("keep the log start"):
                self.core.check()
                self._hold.keep_log_start(self.log_start_offset)
        return start

    def truncate_to(self, offset: int) -> bool:
        """Drop all records at or after ``offset``; False when there were none (F-269 … F-278).

        A batch that contains ``offset`` is dropped whole, and the log ends where it began. Kafka's
        log end may lie inside a dropped batch. The truncation becomes durable before anything else
        is written (stricter than F-280), so that a crash never puts old records after new ones.
        """
        return self.maintenance.truncate_to(offset)

    # -- appends -------------------------------------------------------------------------------

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
                timestamp is in ms, or a ``datetime`` with its time zone; None means now.
            sync: wait until the batch is durable. One sync serves all waiting appends.
            leader_epoch: epoch of this leader; the latest known one (at least 0) by default.
            compression: codec, or its name; the topic's ``compression.type`` by default.
        Raises:
            RecordRejectedError: a record breaks a rule; nothing was appended.
            StorageFailedError: the disk refused; the log is offline until opened again.
        """
        codec = _codec(compression, self.state.compression)
        batch = encode_batch(
            records,
            compression=codec,
            level=level_of(codec, self.config),
            default_timestamp=self.core.clock.wall_ms(),
            keys_required=self.config.compact,
        )
        info = self.writer.append_own(batch, leader_epoch)
        self.flusher.after_append(info.last_offset, sync=sync)
        return info

    def extend(
        self,
        records: Iterable[tuple[Any, ...]],
        *,
        batch_records: int = BATCH_RECORDS,
        batch_bytes: int = BATCH_BYTES,
        sync: bool = False,
        leader_epoch: int | None = None,
        compression: Compression | str | None = None,
    ) -> ExtendInfo:
        """Append any number of records, in as many batches as they need.

        Args:
            records: as in ``append``; any iterable, which is read as it is appended.
            batch_records: at most so many records in a batch.
            batch_bytes: about so many bytes in a batch, estimated from the one before it, and never
                more than ``max.message.bytes`` and ``segment.bytes`` allow.
            sync: wait at the end until all batches are durable.
        Raises:
            PartialAppendError: it stopped in the middle; ``__cause__`` has the reason. All records
                before are appended (with ``sync`` durably), and it says how many.
            ConfigError: a limit is below 1.
        """
        self.core.check_owner()  # before a record is taken

        def append(batch: list[Any]) -> AppendInfo:
            return self.append(batch, leader_epoch=leader_epoch, compression=compression)

        try:
            done = extend(self.name, records, append, self.config, batch_records, batch_bytes)
        except PartialAppendError as error:
            if sync and error.record_count and not self.failed:
                self.flush(error.last_offset + 1)
            raise
        if sync and done.record_count:
            self.flusher.after_append(done.last_offset, sync=True)
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
        codec = _codec(compression, self.state.compression)
        batch = encode_batch_lists(
            keys,
            values,
            timestamps,
            headers,
            compression=codec,
            level=level_of(codec, self.config),
            default_timestamp=self.core.clock.wall_ms(),
            keys_required=self.config.compact,
        )
        info = self.writer.append_own(batch, leader_epoch)
        self.flusher.after_append(info.last_offset, sync=sync)
        return info

    def producer(self, producer: int | str) -> LogProducer:
        """An idempotent producer, by its id or by a name from which the id is made.

        After a restart it continues where the log ends. An earlier producer with the same id is
        fenced: its appends fail from now on.

        Raises:
            InvalidRecordError: neither an id in [0, 2^63) nor a name.
            InvalidProducerEpochError: all its epochs are used up.
        """
        return self.producers.open(producer)

    def append_as_leader(
        self,
        data: Buffer,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        check: TransactionCheck = TransactionCheck.NONE,
    ) -> AppendInfo:
        """Append complete batches, and write offsets and leader epoch into their headers.

        With origin CLIENT every record is validated, as a broker does with a produce request; the
        other origins are trusted beyond the checksum (F-192). Several batches become one write.

        Raises:
            RecordRejectedError: a batch breaks a rule; nothing was appended.
            StorageFailedError: the disk refused.
        """
        info = self.state.append_plain_as_leader(data, leader_epoch, origin is CLIENT)
        if info is None:
            info = self.writer.append_as_leader(data, leader_epoch, origin, check)
            self.flusher.after_append(info.last_offset)
        return info

    # -- reads ---------------------------------------------------------------------------------

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
        return self.reader.read(start_offset, max_bytes, minimum_one, up_to, committed)

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
        return portions(self.reader, start_offset, end_offset, fill_chunk)

    def to_arrow(
        self,
        start_offset: int | None = None,
        end_offset: int | None = None,
        *,
        headers: bool = False,
    ) -> Iterator[Any]:
        """All records in the range, as ``pyarrow.RecordBatch`` objects.

        Raises as ``records``; the record batches before the damage were given. Without the extra
        ``arrow`` it is a ``ConfigError``.
        """
        return column_portions(self.reader, start_offset, end_offset, headers=headers)

    def offset_for_timestamp(self, timestamp: Timestamp) -> TimestampOffset | None:
        """The first record at or after ``timestamp`` ms; or EARLIEST, LATEST, MAX_TIMESTAMP.

        A ``datetime`` needs its time zone. Source: F-149 … F-152. None when there is no such
        record.
        """
        return self.reader.offset_for_timestamp(timestamp_to_find(timestamp))

    def follow(
        self, start: int | None = None, *, timeout: float | None = None, committed: bool = False
    ) -> Follower:
        """The records from ``start`` on, and then those to come: an iterator that waits.

        It sees an append at once, up to the high watermark.

        Args:
            start: an offset, EARLIEST or LATEST; the log start by default.
            timeout: end after so many seconds without a record; None waits forever.
            committed: up to the last stable offset, without what was aborted.
        Raises:
            OffsetOutOfRangeError: here or while reading: what comes next was deleted.
            LogTruncatedError: what was read before was cut off.
            LogClosedError: the log was closed, also while this waits.
            CorruptBatchError: a batch is damaged; the records before it were given.
        """
        source = LogSource(self.core, self.reader, self.name, committed)
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
        """The position of a reader, stored under ``name`` in the log's directory (see ``Cursor``).

        Args:
            start: where a new cursor begins: an offset, EARLIEST or LATEST; the log start by
                default.
            on_out_of_range: where it continues if the records at its position were deleted:
                "earliest" or "latest"; "error" raises ``OffsetOutOfRangeError``.
            committed: as in ``follow``.
        Raises:
            CursorError: the name is invalid, or the file is damaged or belongs to another topic.
        """
        return Cursor(
            self.core,
            self.reader,
            self.flush,
            name,
            start=start,
            on_out_of_range=OnOutOfRange.of(on_out_of_range),
            committed=committed,
        )

    @staticmethod
    def open_reader(
        directory: str | os.PathLike[str],
        *,
        storage: Storage | None = None,
        clock: Clock | None = None,
    ) -> DirectoryReader:
        """Follow the log in a directory that another process writes (see ``DirectoryReader``)."""
        return DirectoryReader(directory, storage=storage, clock=clock)


def _load(kind: type[T], core: LogCore, options: RecoveryOptions) -> T:
    """The log of the files as they are. Its directory is locked if no owner does that."""
    path, owner = core.directory, core.owner
    hold = None if owner.managed else hold_partition(core.storage, path)
    try:
        start = StartPoint(False, None, 0) if hold is None else hold.take_start_point()
        known = (owner.clean_shutdown, owner.recovery_point, owner.log_start_offset)
        if known != (None, None, None):
            first = owner.log_start_offset or 0
            start = StartPoint(bool(owner.clean_shutdown), owner.recovery_point, first)
        loaded = load_log(
            core.storage,
            path,
            core.config,
            core.clock,
            clean_shutdown=start.clean,
            recovery_point=start.recovery_point,
            log_start_offset=start.log_start_offset,
            options=options,
            producer_id_expiration_ms=owner.producer_id_expiration_ms,
            names=DurableNames(owner.keep_name, owner.sync_names),
        )
        if hold is not None and owner.on_restart is None:
            core.owner = replace(owner, on_restart=hold.keep_log_start)
        return kind(core, loaded, hold)
    except BaseException as error:
        if hold is not None:
            hold.release()
        if is_busy(error):
            raise medium_error(path, "open", error) from error
        if isinstance(error, UnusableFileError):
            raise unusable(error) from error
        if isinstance(error, OSError | CheckpointFailedError):
            raise StorageFailedError(path, "open", str(error)) from error
        raise


def _codec(compression: Compression | str | None, default: Compression) -> Compression:
    if compression is None:
        return default
    if isinstance(compression, Compression):
        return compression
    if compression not in CODECS:
        raise InvalidRecordError(f"unknown compression {compression!r}")
    return CODECS[compression]
