"""``PartitionLog``: the log of one partition on one disk. Matches Kafka's ``UnifiedLog``.

Threads: every method may be called from any thread. Reads never wait (``readers``), appends wait
only for each other (``writer``), and disk waits hold up neither (``maintenance``).

Durability: when an append returns, the bytes are in the page cache: they survive the end of the
process, not of the machine. After ``flush`` they survive both, and the recovery point says so.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from operator import index
from typing import Any, Self, TypeVar, cast

from checkpoints.errors import CheckpointFailedError
from checkpoints.files import UnusableFileError
from checkpoints.partition_metadata import PartitionMetadata, PartitionMetadataFile
from logstore.common.clock import Clock, SystemClock
from logstore.common.config import MAX_LONG, LogConfig
from logstore.common.disk_errors import is_busy
from logstore.common.errors import (
    InconsistentTopicIdError,
    InvalidRecordError,
    OffsetOutOfRangeError,
    PartialAppendError,
    PolicyViolationError,
    StorageFailedError,
)
from logstore.common.random_id import RandomId, random_id
from logstore.common.shield import shielded
from logstore.common.types import Buffer
from logstore.format import filenames
from logstore.format.batch import encode_batch, encode_batch_lists
from logstore.format.codecs.compression import Compression
from logstore.kernels import AppendInfo
from logstore.log.core.core import medium_error, unusable
from logstore.log.core.holding import hold_partition
from logstore.log.reading.cursors import Cursor, OnOutOfRange
from logstore.log.reading.reading import (
    Timestamp,
)
from logstore.log.reads import LogReads
from logstore.log.state import run_inline
from logstore.log.upkeep.clean_stop import (
    StartPoint,
    take_start_point,
)
from logstore.log.writing.extending import BATCH_BYTES, BATCH_RECORDS, ExtendInfo, extend
from logstore.log.writing.flushing import Background
from logstore.log.writing.producing import LogProducer, check_producer_id
from logstore.log.writing.validation import level_of
from logstore.log.writing.writer import CODECS
from logstore.recovery import RecoveryOptions, load_log
from logstore.segments.producer_state import AppendOrigin, TransactionCheck
from logstore.storage.base import Storage
from logstore.storage.local import LocalStorage
from logstore.storage.paths import absolute_path

T = TypeVar("T", bound="PartitionLog")


class PartitionLog(LogReads):
    """The log of one partition. Open it with ``PartitionLog.open``; use it as a context manager.

    Any thread may call any method. Reads never wait, appends wait only for each other, and disk
    waits hold up neither. When an append returns, the records survive the end of the process; after
    ``flush`` they survive the end of the machine too.
    """

    def reconfigure(self, config: LogConfig) -> None:
        """Use another configuration of the topic, from the next operation on.

        Existing indexes keep their sizes until the next roll. Records that ``flush.messages`` no
        longer allows to be unsynced are durable on return.

        Raises:
            StorageFailedError, ResourceBusyError: the sync failed.
        """
        self._maintenance.reconfigure(config)
        self._flusher.flush_what_is_due()

    @classmethod
    @shielded
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
        keep_name: bool = True,
        topic_id: uuid.UUID | None = None,
        options: RecoveryOptions | None = None,
        producer_id_expiration_ms: int = MAX_LONG,
        background: Background = run_inline,
        replicated: bool = False,
        on_failure: Callable[[StorageFailedError], None] | None = None,
        on_cut: Callable[[], None] | None = None,
        on_restart: Callable[[int | None], None] | None = None,
        random_id: RandomId = random_id,
    ) -> Self:
        """Open or create the log in ``directory`` (named ``topic-partition``, F-1).

        It locks the log directory around it, as Kafka and ``LogManager`` do; other partitions of
        the same directory may be open in this process. After ``close`` the next start is a clean
        one. After a crash it recovers; no record is lost that was acknowledged as durable. A
        relative path is that of the present working directory, also after the process leaves it.

        Args:
            managed: the caller holds the lock and keeps what a start needs. Nothing is locked or
                left behind, and only the next three arguments count (unclean, 0 and 0 by default).
            clean_shutdown, recovery_point, log_start_offset: what is known about the last stop. If
                none is given, it comes from what the last owner left in the directory.
            clean_shutdown: trust the files if headers and ``recovery_point`` agree. Otherwise
                everything from the segment of ``recovery_point`` on is scanned, and cut at the
                first bad batch.
            keep_name: make the name of a new directory durable. Otherwise the caller does it before
                the first record, for many logs at once.
            producer_id_expiration_ms: forget a producer that is silent for this long; never by
                default.
            replicated: the caller moves the high watermark; otherwise it follows the log end. Use
                `ReplicaLog`, which has the methods for it.
            background: runs tasks that may happen later, such as the flush of a rolled segment.
            on_failure: called once when the log goes offline. The cause of the error says whether
                the disk may have failed, or only a file (`disk_errors`). The lock of appends may be
                held, so it must return at once.
            on_cut: called when a truncation is durable, before the first new record. On return the
                offsets that the owner stores for the log must durably not exceed its end.
            on_restart: called when a truncation has dropped all records, before the first new one.
                On return everything that the owner stores for the log must be durably gone, except
                the log start that is given, if records below it are left in the files.
            random_id: returns 32 new hex digits, for ``segment.jitter.ms``.
        Raises:
            LogDirLockedError: the partition is open already, or its log directory is in use.
            StorageFailedError: the disk refused.
            ResourceBusyError: descriptors or memory are short.
            CorruptDataError: damage that recovery may not cut.
            InvalidTopicError: the directory's name is not ``topic-partition``.
        """
        storage = storage or LocalStorage()
        path = absolute_path(storage, directory)
        clock = clock or SystemClock()
        config = config or LogConfig()
        given = (clean_shutdown, recovery_point, log_start_offset)
        hold = None if managed else hold_partition(storage, path)
        try:
            start = StartPoint(False, None, 0) if hold is None else take_start_point(storage, path)
            if given != (None, None, None):
                start = StartPoint(bool(clean_shutdown), recovery_point, log_start_offset or 0)
            loaded = load_log(
                storage,
                path,
                config,
                clock,
                clean_shutdown=start.clean,
                recovery_point=start.recovery_point,
                log_start_offset=start.log_start_offset,
                options=options or RecoveryOptions(),
                producer_id_expiration_ms=producer_id_expiration_ms,
                keep_name=keep_name,
            )
            log = _kind(cls, replicated)(
                path,
                loaded,
                config,
                storage,
                clock,
                background=background,
                replicated=replicated,
                on_failure=on_failure,
                on_cut=on_cut,
                on_restart=on_restart,
                random_id=random_id,
                hold=hold,
            )
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
        try:
            if topic_id is not None:
                log.assign_topic_id(topic_id)
            log._flusher.flush_what_is_due()
        except BaseException:
            log._abandon()  # no other code could close its files
            raise
        return log

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
            self._maintenance.close(self._leave_start_point)
        finally:
            self._let_go()

    @shielded
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
        codec = _codec(compression, self._writer.compression)
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
        self._core.check_owner()  # before a record is taken

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
        codec = _codec(compression, self._writer.compression)
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

    @shielded
    def producer(self, producer: int | str) -> LogProducer:
        """An idempotent producer, by its id or by a name from which the id is made.

        After a restart it continues where the log ends. An earlier producer with the same id is
        fenced: its appends fail from now on.

        Raises:
            InvalidRecordError: neither an id in [0, 2^63) nor a name.
            InvalidProducerEpochError: all its epochs are used up.
        """
        producer_id = check_producer_id(producer)
        with self._producers_lock:
            self._core.check()
            made = LogProducer(
                self._core,
                self._writer,
                self._flusher.after_append,
                producer_id,
                self._producers.get(producer_id),
            )
            self._producers[producer_id] = made
        return made

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
        info = self._writer.append_as_leader(data, leader_epoch, origin, check)
        self._flusher.after_append(info.last_offset)
        return info

    def roll(self) -> None:
        """Begin a new segment at the log end offset, unless the active one is empty."""
        self._flusher.roll()

    def flush(self, offset: int | None = None) -> None:
        """Make all records below ``offset`` (default: the log end) durable; advance the recovery
        point.

        Raises:
            StorageFailedError: a sync failed; it is never tried again (F-224).
        """
        self._flusher.flush(offset)

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
            self._core,
            self._readers,
            self.name,
            lambda: self._topic_id,
            self.flush,
            name,
            start=start,
            on_out_of_range=OnOutOfRange.of(on_out_of_range),
            committed=committed,
        )

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
        writer = self._writer
        with writer.lock:
            offset = writer.committed_offset if before_offset == -1 else index(before_offset)
            self._raise_log_start_locked(offset)
            start = writer.log_start_offset
        if self._hold is not None:  # a manager does this periodically
            self.flush(start)
            with self._maintenance.structure_lock, self._core.doing("keep the log start"):
                self._core.check()
                self._keep_log_start(self.log_start_offset)
        return start

    def truncate_to(self, offset: int) -> bool:
        """Drop all records at or after ``offset``; False when there were none (F-269 … F-278).

        A batch that contains ``offset`` is dropped whole, and the log ends where it began. Kafka's
        log end may lie inside a dropped batch. The truncation becomes durable before anything else
        is written (stricter than F-280), so that a crash never puts old records after new ones.
        """
        if index(offset) < 0:
            raise ValueError(f"cannot truncate to offset {offset}")
        return self._maintenance.truncate_to(offset)

    def delete_old_segments(self) -> int:
        """Delete what retention allows (F-282 … F-285). Returns the number of segments."""
        return self._maintenance.delete_old_segments()

    def purge_deleted(self, now_ms: int) -> int:
        """Unlink ``.deleted`` files that are due. Returns how many."""
        return self._maintenance.purge_deleted(now_ms)


def _codec(compression: Compression | str | None, default: Compression) -> Compression:
    if compression is None:
        return default
    if isinstance(compression, Compression):
        return compression
    if compression not in CODECS:
        raise InvalidRecordError(f"unknown compression {compression!r}")
    return CODECS[compression]


__all__ = ["PartitionLog", "run_inline"]


def _kind(cls: type[T], replicated: bool) -> type[T]:
    from logstore.log.replica import ReplicaLog

    if replicated and issubclass(ReplicaLog, cls):
        return cast(type[T], ReplicaLog)
    return cls
