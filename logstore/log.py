"""``PartitionLog``: the log of one partition on one disk. Matches Kafka's ``UnifiedLog``.

Threads: any number of readers beside one writer at a time; every method may be called from any
thread. Order of locks: ``_flush_lock`` (files are not cut or closed under an fsync) before
``_lock`` (offsets, segments, producers). Reads take ``_lock`` only to pick their slice.

Durability: when an append returns, the bytes are in the page cache: they survive the end of the
process, not of the machine. After ``flush`` they survive both, and the recovery point says so.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from checkpoints.errors import CheckpointError, CheckpointFailedError
from checkpoints.partition_metadata import PartitionMetadata, PartitionMetadataFile
from logstore.append import (
    Prepared,
    analyse,
    check_batch_size,
    check_follower,
    corrupt_message,
    prepare_leader,
    producer_batches,
)
from logstore.clock import Clock, SystemClock
from logstore.config import MAX_LONG, LogConfig
from logstore.epochs import LeaderEpochCache
from logstore.errors import (
    CorruptBatchError,
    InconsistentTopicIdError,
    InvalidRecordError,
    InvalidTimestampError,
    InvariantError,
    LogClosedError,
    LogstoreError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    RecordListTooLargeError,
    StorageFailedError,
)
from logstore.fetch import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    FetchData,
    LogSnapshot,
    collect_aborted,
    count_bytes,
    fetch,
    find_timestamp,
)
from logstore.format import filenames
from logstore.format.batch import encode_batch, encode_batch_lists
from logstore.format.compression import Compression
from logstore.index import AbortedTxn, TimestampOffset
from logstore.kernels import AppendInfo, analyse_batches
from logstore.producer_state import (
    AppendOrigin,
    CompletedTxn,
    ProducerAppend,
    ProducerStateManager,
)
from logstore.random_id import RandomId, random_id
from logstore.recovery import LoadedLog, RecoveryOptions, RecoveryReport, load_log
from logstore.replay import rebuild_indexes, rebuild_producers
from logstore.retention import deletable_segments
from logstore.scan import Source, column_portions, fill_chunk, portions
from logstore.segment import Segment
from logstore.segments import Segments
from logstore.storage.base import Storage
from logstore.storage.local import LocalStorage
from logstore.types import Buffer, Record, TopicPartition

logger = logging.getLogger(__name__)

_CODECS = {c.name.lower(): c for c in Compression} | {"producer": Compression.NONE,
                                                      "uncompressed": Compression.NONE}  # fmt: skip

Background = Callable[[Callable[[], None]], None]


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
        on_restart: Callable[[], None] | None = None,
        random_id: RandomId = random_id,
    ) -> None:
        self.directory = directory
        self.topic_partition: TopicPartition = loaded.topic_partition
        self.recovery_report: RecoveryReport = loaded.report
        self._storage = storage
        self._clock = clock
        self._background = background
        self._replicated = replicated
        self._on_failure = on_failure
        self._on_restart = on_restart
        self._restarts = 0
        self._random_id = random_id
        self._segments: Segments = loaded.segments
        self._epochs: LeaderEpochCache = loaded.epochs
        self._producers: ProducerStateManager = loaded.producers
        self._log_start_offset = loaded.log_start_offset
        self._recovery_point = loaded.recovery_point
        self._hw = loaded.log_start_offset  # of a replicated log; else it follows the log end
        self._topic_id: uuid.UUID | None = loaded.topic_id
        self._lock = threading.RLock()
        self._flush_lock = threading.RLock()
        self._gate = loaded.gate
        self._failed: LogstoreError | None = None
        self._deleted: list[tuple[int, str]] = []  # (due ms, path) of files marked .deleted
        self._cut_count = 0  # truncations so far: a reader that saw another number reads again
        self._last_flush_ms = clock.wall_ms()
        self._timestamp_limit = 0  # record timestamps up to here need no look at the clock
        self._flush_at = 0  # last offset that may stay unflushed
        self._configure(config)

    def _configure(self, config: LogConfig) -> None:
        self.config = config
        self._compression = _CODECS[config.compression_type]
        # Whether the largest timestamp of a batch says all that is asked of its timestamps.
        self._largest_decides = (
            config.message_timestamp_type == "CreateTime"
            and config.message_timestamp_before_max_ms == MAX_LONG
        )
        self._plain_topic = (
            self._largest_decides
            and config.compression_type in ("producer", "uncompressed")
            and not config.compact
        )
        self._flush_at = self._recovery_point + config.flush_messages - 1

    def reconfigure(self, config: LogConfig) -> None:
        """Take over another configuration of the topic, from the next operation on.

        Sizes of indexes that exist stay as they are until the next roll.
        """
        with self._flush_lock, self._lock:
            self._check()
            self._configure(config)
            self._timestamp_limit = 0
            for segment in self._segments:
                segment.config = config
            state = self._segments.active.state
            state.segment_bytes = config.segment_bytes
            state.max_segment_ms = config.max_segment_ms

    # -- open and close ------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        config: LogConfig | None = None,
        *,
        storage: Storage | None = None,
        clock: Clock | None = None,
        clean_shutdown: bool = False,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        topic_id: uuid.UUID | None = None,
        options: RecoveryOptions | None = None,
        producer_id_expiration_ms: int = 86_400_000,
        background: Background = run_inline,
        replicated: bool = False,
        on_failure: Callable[[StorageFailedError], None] | None = None,
        on_restart: Callable[[], None] | None = None,
        random_id: RandomId = random_id,
    ) -> PartitionLog:
        """Open or create the log in ``directory`` (named ``topic-partition``, F-1).

        Args:
            clean_shutdown: trust the files; without it everything from the segment of
                ``recovery_point`` on is scanned, and cut at the first bad batch.
            replicated: leave the high watermark to the caller; otherwise it follows the log end.
            background: runs what may happen later (the flush of a rolled segment).
            on_restart: called before a truncation that reaches the log start changes anything:
                what the caller stores of this log by its name must be gone when it returns.
            random_id: 32 hex digits, other ones each time; for ``segment.jitter.ms``.
        Raises:
            StorageFailedError: the disk refused.
            CorruptDataError: damage that recovery may not cut.
            InvalidTopicError: the directory's name is not ``topic-partition``.
        """
        path = os.fspath(directory)
        storage = storage or LocalStorage()
        clock = clock or SystemClock()
        config = config or LogConfig()
        try:
            loaded = load_log(
                storage, path, config, clock, clean_shutdown=clean_shutdown,
                recovery_point=recovery_point, log_start_offset=log_start_offset,
                options=options or RecoveryOptions(),
                producer_id_expiration_ms=producer_id_expiration_ms,
            )  # fmt: skip
        except (OSError, CheckpointFailedError) as error:
            raise StorageFailedError(path, "open", str(error)) from error
        log = cls(
            path, loaded, config, storage, clock,
            background=background, replicated=replicated, on_failure=on_failure,
            on_restart=on_restart, random_id=random_id,
        )  # fmt: skip
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
        return f"PartitionLog({self.directory}, [{self._log_start_offset}, {self._leo}))"

    def close(self) -> None:
        """Flush, snapshot the producers, trim the active segment and release all files.

        After this a start may be clean. A log that has failed is only released.
        """
        with self._flush_lock, self._lock:
            if isinstance(self._failed, LogClosedError):
                return
            if self._failed is None:
                try:
                    self._settle_cut()
                    self._snapshot_producers()
                    for segment in self._segments:
                        segment.deactivate()
                    self._flush(self._leo, everything=True)
                    self._epochs.flush()
                    self._storage.sync_dir(self.directory)  # the snapshot's name too
                    self._failed = LogClosedError(f"{self.directory} is closed")
                    self.purge_deleted(2**63)
                except (OSError, CheckpointError) as error:
                    raise self._fail("close", error) from error
                finally:
                    self._release()
            self._release()

    def _release(self) -> None:
        if self._failed is None:
            self._failed = LogClosedError(f"{self.directory} is closed")
        self._cut_count += 1  # who reads meanwhile begins again, and meets that
        for segment in self._segments:
            segment.close()

    def crash(self) -> None:
        """Release files without flushing or trimming, as the end of the process does; for tests."""
        with self._flush_lock, self._lock:
            self._release()

    # -- state ---------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return str(self.topic_partition)

    @property
    def log_start_offset(self) -> int:
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """Offset of the next record (LEO)."""
        return self._segments.active.state.next_offset

    _leo = log_end_offset

    @property
    def recovery_point(self) -> int:
        """All records below it are known to be on the disk (F-222)."""
        return self._recovery_point

    @property
    def high_watermark(self) -> int:
        """Records below it are committed; without replicas that is the log end."""
        return self._hw if self._replicated else self.log_end_offset

    _high_watermark = high_watermark

    @property
    def restarts(self) -> int:
        """How often a truncation reached the log start; counts once all of it is published."""
        return self._restarts

    @property
    def topic_id(self) -> uuid.UUID | None:
        return self._topic_id

    @property
    def size(self) -> int:
        """Bytes of batches in all segments."""
        return self._segments.size

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self._segments.snapshot()

    @property
    def active_segment(self) -> Segment:
        return self._segments.active

    @property
    def unflushed(self) -> int:
        """Records above the recovery point."""
        return self._leo - self._recovery_point

    @property
    def last_flush_ms(self) -> int:
        return self._last_flush_ms

    @property
    def latest_epoch(self) -> int:
        return self._epochs.latest_epoch

    @property
    def epoch_entries(self) -> tuple[tuple[int, int], ...]:
        return self._epochs.entries

    @property
    def producers(self) -> ProducerStateManager:
        return self._producers

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of an open or unreplicated transaction, not below the log start (F-198)."""
        first = self._producers.first_unstable_offset
        return None if first is None else max(first, self._log_start_offset)

    @property
    def last_stable_offset(self) -> int:
        """Readers of committed data stop here (LSO)."""
        first = self.first_unstable_offset
        return self._high_watermark if first is None else min(first, self._high_watermark)

    @property
    def failed(self) -> bool:
        return self._failed is not None

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """``(epoch, end offset)`` for OffsetsForLeaderEpoch (F-208)."""
        with self._lock:
            return self._epochs.end_offset_for(epoch, self._leo)

    def epoch_for_offset(self, offset: int) -> int | None:
        with self._lock:
            return self._epochs.epoch_for_offset(offset)

    def assign_epoch(self, epoch: int, start_offset: int | None = None) -> None:
        """Record a new leadership, before its first record; durable on return (F-219)."""
        with self._lock:
            self._check()
            self._guard("assign epoch", self._epochs.assign, epoch,
                        self._leo if start_offset is None else start_offset)  # fmt: skip

    def assign_topic_id(self, topic_id: uuid.UUID) -> None:
        """Write ``partition.metadata``, which must precede the first record (F-37).

        Raises:
            InconsistentTopicIdError: the log belongs to another topic id.
        """
        with self._lock:
            self._check()
            if self._topic_id is not None:
                if self._topic_id != topic_id:
                    raise InconsistentTopicIdError(
                        f"{self.directory} belongs to topic id {self._topic_id}, not {topic_id}"
                    )
                return
            path = os.path.join(self.directory, filenames.PARTITION_METADATA)
            file = PartitionMetadataFile(path, self._storage)
            self._guard("write partition.metadata", file.write, PartitionMetadata(topic_id))
            self._topic_id = topic_id

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _guard(self, operation: str, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(*args)
        except (OSError, CheckpointError) as error:
            raise self._fail(operation, error) from error

    def _fail(self, operation: str, error: Exception) -> LogstoreError:
        """The medium failed: refuse all further work until opened again (F-224, F-315)."""
        failure = StorageFailedError(self.directory, operation, str(error))
        if self._failed is None:
            self._failed = failure
            logger.error("%s", failure)
            if self._on_failure is not None:
                self._on_failure(failure)
        return failure

    def mark_failed(self, failure: LogstoreError) -> None:
        """Refuse further work: another log of the same directory met a failure."""
        if self._failed is None:
            self._failed = failure

    # -- append --------------------------------------------------------------------------------

    def append(
        self,
        records: Sequence[tuple[Any, ...]],
        *,
        leader_epoch: int | None = None,
        compression: Compression | str | None = None,
    ) -> AppendInfo:
        """Append records as one batch.

        Args:
            records: ``(key, value)``, ``(key, value, timestamp_ms)``, ``(key, value,
                timestamp_ms, headers)`` or ``Record``; keys and values are bytes or None. A
                timestamp of None is the present.
            leader_epoch: epoch of this leader; the latest known one (at least 0) by default.
            compression: codec, or its name; the topic's ``compression.type`` by default.
        Raises:
            RecordRejectedError: a record breaks a rule; nothing was appended.
            StorageFailedError: the disk refused; the log is offline until opened again.
        """
        batch = encode_batch(
            records,
            compression=self._codec(compression),
            default_timestamp=self._clock.wall_ms(),
        )
        return self._append_own(batch, leader_epoch, _may_lack_key(records, self.config))

    def append_columns(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        timestamps: int | Sequence[int] | None = None,
        headers: Sequence[Sequence[tuple[str, bytes | None]]] | None = None,
        *,
        leader_epoch: int | None = None,
        compression: Compression | str | None = None,
    ) -> AppendInfo:
        """As ``append``, from parallel sequences; the fastest way in for Python objects."""
        batch = encode_batch_lists(
            keys,
            values,
            timestamps,
            headers,
            compression=self._codec(compression),
            default_timestamp=self._clock.wall_ms(),
        )
        lacks_key = self.config.compact and (keys is None or None in keys)
        return self._append_own(batch, leader_epoch, lacks_key)

    def _append_own(
        self, batch: bytearray, leader_epoch: int | None, lacks_key: bool
    ) -> AppendInfo:
        """A batch this library encoded itself: its records and checksum need no second look."""
        if not batch:
            raise InvalidRecordError("an append without records")
        if lacks_key:
            raise InvalidRecordError("a compacted topic needs a key in every record")
        max_size = self.config.max_message_bytes
        analysis = analyse(batch, max_batch_size=max_size, deep=False, check_crc=False)
        with self._lock:
            self._check()
            epoch = max(self._epochs.latest_epoch, 0) if leader_epoch is None else leader_epoch
            if self._largest_decides:
                check_batch_size(analysis, self.config)
                self._check_timestamps(analysis.max_timestamp)
                prepared = Prepared(batch, analysis)
            else:
                prepared = prepare_leader(
                    batch, analysis, self.config, AppendOrigin.CLIENT, self._clock.wall_ms()
                )
            return self._append_prepared(prepared, epoch, AppendOrigin.CLIENT)

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
        config = self.config
        deep = origin is AppendOrigin.CLIENT
        with self._lock:
            if self._failed is not None:
                raise self._failed
            try:
                if self._plain_topic and 0 <= leader_epoch == self._epochs.latest_epoch:
                    found = self._segments.active.state.append_plain(
                        data,
                        deep,
                        leader_epoch,
                        config.max_message_bytes,
                        self._timestamp_limit,
                        self._log_start_offset,
                    )
                    if type(found) is AppendInfo:
                        if found.last_offset >= self._flush_at:
                            self.flush()
                        return found
                    analysis = found
                else:
                    analysis = analyse_batches(
                        data, max_batch_size=config.max_message_bytes, deep=deep
                    )
            except CorruptBatchError as error:
                raise corrupt_message(error) from None
            except OSError as error:
                raise self._fail("append", error) from error
            if analysis.batch_count == 0:
                raise InvalidRecordError("no whole batch in the append")
            now_ms = self._clock.wall_ms()
            self._timestamp_limit = min(now_ms + config.message_timestamp_after_max_ms, MAX_LONG)
            prepared = prepare_leader(data, analysis, config, origin, now_ms)
            return self._append_prepared(prepared, leader_epoch, origin)

    def append_as_follower(self, data: Buffer) -> AppendInfo:
        """Append batches fetched from a leader: offsets, epochs and bytes stay (F-164).

        A partial batch at the end of ``data`` is left out (F-163).

        Raises:
            UnexpectedAppendOffsetError: the first offset is below the log end offset.
            RecordRejectedError: offsets do not ascend, or a checksum is wrong.
        """
        analysis = analyse(data, max_batch_size=2**31 - 1, deep=False)
        with self._lock:
            self._check()
            if analysis.batch_count == 0:
                return AppendInfo(-1, -1, -1, -1, self._log_start_offset, 0, 0)
            check_follower(analysis, self._leo)
            return self._append_prepared(Prepared(data, analysis), None, AppendOrigin.REPLICATION)

    def _check_timestamps(self, max_timestamp: int) -> None:
        if max_timestamp > self._timestamp_limit:
            after_max_ms = self.config.message_timestamp_after_max_ms
            limit = min(self._clock.wall_ms() + after_max_ms, MAX_LONG)
            self._timestamp_limit = limit
            if max_timestamp > limit:
                raise InvalidTimestampError(
                    f"timestamp {max_timestamp} is above the largest allowed, {limit}"
                )

    def _append_prepared(
        self, prepared: Prepared, leader_epoch: int | None, origin: AppendOrigin
    ) -> AppendInfo:
        """Steps 5 to 12 of F-161. ``leader_epoch`` None keeps offsets and epochs (a follower)."""
        data, analysis, append_time = prepared
        size, leo, config = analysis.size, self._leo, self.config
        if leader_epoch is None:
            first, last = analysis.first_offset, analysis.last_offset
            if analysis.magic_max < 2:
                self._epochs.clear()
            elif (
                analysis.min_epoch < 0
                or analysis.max_epoch != analysis.min_epoch
                or analysis.last_epoch != self._epochs.latest_epoch
            ):
                self._assign_epochs(data, size)
        else:
            first, last = leo, leo + analysis.record_count - 1
            if leader_epoch < 0:
                raise InvalidRecordError(f"leader epoch {leader_epoch} is not valid")
            if leader_epoch != self._epochs.latest_epoch:
                self._guard("assign epoch", self._epochs.assign, leader_epoch, leo)
        if size > config.segment_bytes:
            raise RecordListTooLargeError(
                f"an append of {size} bytes is above segment.bytes {config.segment_bytes}"
            )
        segment = self._segments.active
        state = segment.state
        now_ms = self._clock.wall_ms() if state.rolling_timestamp < 0 else 0
        try:
            if not state.attached:
                self._activate(segment)
            if state.cut_pending:
                self._settle_cut()
            if state.must_roll(size, last, analysis.max_timestamp, now_ms):
                self._roll(max(leo, first))
                segment = self._segments.active
                state = segment.state
            updates: tuple[list[ProducerAppend], list[CompletedTxn]] | None = None
            if analysis.has_producer:
                checked = self._check_producers(data, size, -1 if leader_epoch is None else leo,
                                                origin)  # fmt: skip
                if isinstance(checked, AppendInfo):
                    return checked
                updates = checked
            if leader_epoch is None:
                segment.append(data, size, -1, -1)
            else:
                segment.append(data, size, leo, leader_epoch)
        except OSError as error:
            raise self._fail("append", error) from error
        if updates is not None:
            self._update_producers(updates, segment)
            if not self._replicated:
                self._producers.on_high_watermark(last + 1)
        if last >= self._flush_at:
            self.flush()
        return AppendInfo(
            first, last, analysis.max_timestamp, append_time, self._log_start_offset,
            analysis.record_count, size,
        )  # fmt: skip

    def _assign_epochs(self, data: Buffer, size: int) -> None:
        from logstore.append import headers

        for header in headers(data, size):
            if header.leader_epoch < 0:
                raise InvalidRecordError("a fetched batch without leader epoch")
            if header.leader_epoch != self._epochs.latest_epoch:
                self._guard(
                    "assign epoch", self._epochs.assign, header.leader_epoch, header.base_offset
                )

    def _check_producers(
        self, data: Buffer, size: int, first_offset: int, origin: AppendOrigin
    ) -> AppendInfo | tuple[list[ProducerAppend], list[CompletedTxn]]:
        """Sequence and transaction checks (F-183 … F-195); the old offsets if it is a duplicate."""
        appends: dict[int, ProducerAppend] = {}
        completed: list[CompletedTxn] = []
        for batch in producer_batches(data, size, first_offset):
            append = appends.get(batch.producer_id)
            if append is None:
                append = self._producers.prepare(batch.producer_id, origin)
                appends[batch.producer_id] = append
                if origin is AppendOrigin.CLIENT:
                    known = append.entry.find_duplicate(batch)
                    if known is not None:
                        return AppendInfo(
                            known.first_offset, known.last_offset, known.timestamp, -1,
                            self._log_start_offset, 0, 0, True,
                        )  # fmt: skip
            transaction = append.append(batch)
            if transaction is not None:
                completed.append(transaction)
        return list(appends.values()), completed

    def _update_producers(
        self, updates: tuple[list[ProducerAppend], list[CompletedTxn]], segment: Segment
    ) -> None:
        appends, completed = updates
        for append in appends:
            self._producers.update(append)
        for transaction in completed:
            stable = self._producers.last_stable_offset(transaction)
            if transaction.is_aborted:
                self._guard(
                    "append to the transaction index",
                    segment.txn_index.append,
                    AbortedTxn(
                        transaction.producer_id,
                        transaction.first_offset,
                        transaction.last_offset,
                        stable,
                    ),
                )
            self._producers.complete(transaction)

    def _activate(self, segment: Segment) -> None:
        segment.activate()
        self._draw_jitter(segment)

    def _draw_jitter(self, segment: Segment) -> None:
        jitter = min(self.config.segment_jitter_ms, self.config.segment_ms)
        if jitter:
            drawn = int(self._random_id(), 16) % jitter
            segment.state.max_segment_ms = self.config.max_segment_ms - drawn

    # -- roll and flush ------------------------------------------------------------------------

    def roll(self) -> None:
        """Begin a new segment at the log end offset; an empty active one is left alone."""
        with self._lock:
            self._check()
            try:
                if self._segments.active.size:
                    self._roll(self._leo)
            except OSError as error:
                raise self._fail("roll", error) from error

    def _roll(self, new_base: int) -> None:
        """F-146, F-147."""
        self._settle_cut()
        active, leo = self._segments.active, self._leo
        if active.base_offset == new_base:
            if active.size:
                raise InvariantError(f"{self.directory}: a segment at {new_base} exists already")
            # Only its index was full (or has no slots): begin it afresh.
            self._discard([active])
        else:
            active.deactivate()
            # Before the new name exists: else a crash may keep it and lose the end of the old
            # segment, or all of it, which would leave a hole (S-36).
            active.log.sync()
            if not active.name_durable:
                self._storage.sync_dir(self.directory)
                active.name_durable = True
            if self._recovery_point >= new_base:
                active.flush_indexes()  # after a crash nothing will scan it again
        segment = self._new_segment(new_base)
        segment.state.next_offset = leo  # a base above it leaves a gap, not a new log end (F-145)
        if active.base_offset == new_base:
            self._segments.replace_all([s for s in self._segments if s is not active] + [segment])
        else:
            self._segments.add(segment)
        self._producers.map_end_offset = max(self._producers.map_end_offset, new_base)
        snapshot = self._producers.take_snapshot(sync=False)
        self._activate(segment)
        self._background(partial(self._flush_rolled, new_base, snapshot))

    def _new_segment(self, base_offset: int) -> Segment:
        segment = Segment(
            self._storage, self.directory, base_offset, self.config, self._clock, gate=self._gate
        )
        for suffix in filenames.SEGMENT_SUFFIXES:  # stale files of the new name
            try:
                self._storage.remove(segment.path(suffix))
            except FileNotFoundError:
                continue
        segment.create()
        return segment

    def _flush_rolled(self, offset: int, snapshot: int | None) -> None:
        try:
            if self._failed is not None:
                return
            if snapshot is not None:
                self._producers.sync_snapshot(snapshot)
        except OSError as error:  # the recovery point stays (KAFKA-9892)
            raise self._fail("flush producer snapshot", error) from error
        self.flush(offset)

    def flush(self, offset: int | None = None) -> None:
        """Make all records below ``offset`` (default: the log end) durable; advance the recovery
        point.

        Raises:
            StorageFailedError: a sync failed; it is never tried again (F-224).
        """
        with self._flush_lock:
            self._check()
            try:
                self._flush(self._leo if offset is None else offset)
            except OSError as error:
                raise self._fail("flush", error) from error

    def _set_recovery_point(self, offset: int) -> None:
        self._recovery_point = offset
        self._flush_at = offset + self.config.flush_messages - 1

    def _flush(self, offset: int, *, everything: bool = False) -> None:
        """F-220. The caller holds ``_flush_lock``: no file is cut or closed meanwhile.

        Of the active segment only the ``.log`` is synced: a crash rebuilds its indexes anyway,
        because the segment that holds the recovery point is always recovered whole. They are
        synced once the segment is no longer active (``everything``, a roll or the flush after it).
        """
        with self._lock:
            start = self._recovery_point
            segments = self._segments.between(start, max(offset, start + 1))
            active = self._segments.active
        if offset > start or everything:
            for segment in segments:
                segment.flush(indexes=everything or segment is not active)
        if any(not segment.name_durable for segment in segments):
            self._storage.sync_dir(self.directory)
            for segment in segments:
                segment.name_durable = True
        with self._lock:
            if offset > self._recovery_point:
                self._set_recovery_point(min(offset, self._leo))
            self._last_flush_ms = self._clock.wall_ms()

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
        while True:
            snapshot = self._snapshot()
            start, end = snapshot.log_start_offset, snapshot.log_end_offset
            if not start <= start_offset <= end:
                raise OffsetOutOfRangeError(self.name, start_offset, start, end)
            limit = end if up_to is None else min(up_to, end)
            if committed:
                limit = min(limit, snapshot.last_stable_offset)
            try:
                with self._gate.reading():
                    fetched = fetch(
                        snapshot, start_offset, limit, max_bytes,
                        minimum_one=minimum_one, committed=committed,
                    )  # fmt: skip
            except OSError as error:
                if snapshot.cuts != self._cut_count:
                    continue  # something was removed under the read: begin again
                # An unreadable block is not a torn write: nothing is cut, the caller is told.
                raise StorageFailedError(self.directory, "read", str(error)) from error
            self._repair_indexes(snapshot.segments)
            if snapshot.cuts == self._cut_count:
                return fetched

    def available_bytes(self, start_offset: int, end_offset: int) -> int:
        """Bytes of the batches that hold ``[start_offset, end_offset)``."""
        snapshot = self._snapshot()
        with self._gate.reading():
            return count_bytes(snapshot, start_offset, end_offset)

    def _snapshot(self) -> LogSnapshot:
        with self._lock:
            self._check()
            return LogSnapshot(
                self._segments.snapshot(), self._log_start_offset, self._leo,
                self._high_watermark, self.last_stable_offset, self._cut_count,
            )  # fmt: skip

    @property
    def source(self) -> Source:
        """For readers of whole logs (``scan``, ``arrow``)."""
        return Source(self._snapshot, self._gate)

    def _repair_indexes(self, segments: tuple[Segment, ...]) -> None:
        """Rebuild what a reader found misleading; its own answer came from a scan (S-32, S-33)."""
        if not any(segment.index_suspect for segment in segments):
            return
        with self._flush_lock, self._lock:
            for segment in segments:
                if segment.index_suspect and self._failed is None:
                    logger.warning("%s: index rebuilt", segment.log_path)
                    self._guard("rebuild an index", rebuild_indexes, segment)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> tuple[AbortedTxn, ...]:
        """Aborted transactions that overlap ``[start_offset, end_offset)`` (F-125)."""
        with self._lock:
            self._check()
            segments = self._segments.from_floor(start_offset)
        return collect_aborted(segments, start_offset, end_offset)

    def records(
        self, start_offset: int | None = None, end_offset: int | None = None
    ) -> Iterator[Record]:
        """All records of ``[start_offset, end_offset)``, one after the other, CRCs checked."""
        for chunk in self.record_chunks(start_offset, end_offset):
            yield from chunk

    def record_chunks(
        self, start_offset: int | None = None, end_offset: int | None = None
    ) -> Iterator[list[Record]]:
        """As ``records``, in lists of some thousands: the fast way to read a whole log.

        Memory stays bounded by a window of 4 MiB and one list.
        """
        start = self._log_start_offset if start_offset is None else start_offset
        return portions(self.source, start, end_offset, fill_chunk)

    def to_arrow(
        self,
        start_offset: int | None = None,
        end_offset: int | None = None,
        *,
        headers: bool = False,
    ) -> Iterator[Any]:
        """``pyarrow.RecordBatch``es of all records in the range (see ``logstore.arrow``).

        Raises:
            CorruptBatchError: a batch is damaged; the record batches before it were given.
        """
        start = self.log_start_offset if start_offset is None else start_offset
        return column_portions(self.source, start, end_offset, headers=headers)

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record at or after ``timestamp`` ms; or EARLIEST, LATEST, MAX_TIMESTAMP.

        Source: F-149 … F-152. None when there is no such record.
        """
        snapshot = self._snapshot()
        with self._gate.reading():
            found = find_timestamp(snapshot, timestamp)
        self._repair_indexes(snapshot.segments)
        return found

    # -- watermarks ----------------------------------------------------------------------------

    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark, clamped to [log start, log end]; the value it has then (R-26)."""
        with self._lock:
            self._check()
            self._hw = min(max(offset, self._log_start_offset), self._leo)
            self._producers.on_high_watermark(self._hw)
            return self._hw

    def maybe_increment_high_watermark(self, offset: int) -> int | None:
        """Advance the high watermark; the old value if it moved (R-23)."""
        with self._lock:
            self._check()
            if offset > self._leo:
                raise ValueError(f"high watermark {offset} is above the log end {self._leo}")
            old = self._high_watermark
            if offset <= old:
                return None
            self._hw = offset
            self._producers.on_high_watermark(offset)
            return old

    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        """Raise the log start; segments below it go with the next retention pass (F-286).

        Raises:
            OffsetOutOfRangeError: above the high watermark.
        """
        with self._lock:
            self._check()
            if offset > self._high_watermark:
                raise OffsetOutOfRangeError(
                    self.name, offset, self._log_start_offset, self._high_watermark
                )
            if offset <= self._log_start_offset:
                return False
            self._log_start_offset = offset
            # Nothing below it will be read again, so nothing there needs to be durable (F-222).
            self._set_recovery_point(max(self._recovery_point, offset))
            self._epochs.truncate_from_start(offset)
            self._producers.on_log_start_changed(offset)
            return True

    def delete_records(self, before_offset: int) -> int:
        """Delete all records below ``before_offset`` (−1: the high watermark); the new log start.

        Raises:
            OffsetOutOfRangeError, PolicyViolationError: see F-287.
        """
        with self._lock:
            self._check()
            if not self.config.delete:
                raise PolicyViolationError(f"{self.name}: cleanup.policy does not allow deletion")
            offset = self._high_watermark if before_offset == -1 else before_offset
            if offset < 0:
                raise OffsetOutOfRangeError(
                    self.name, offset, self._log_start_offset, self._high_watermark
                )
            self.maybe_increment_log_start_offset(offset)
            return self._log_start_offset

    # -- truncate ------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> bool:
        """Drop all records at or after ``offset``; False when there were none (F-269 … F-278).

        The log end becomes ``offset`` even where a batch contained it. The cut becomes durable
        before anything else is written (stricter than F-280): no crash puts old records behind
        what is appended next.
        """
        if offset < 0:
            raise ValueError(f"cannot truncate to offset {offset}")
        with self._flush_lock, self._lock:
            self._check()
            try:
                if offset >= self._leo:
                    # A leadership that began here and wrote nothing must be forgotten (F-278).
                    self._epochs.truncate_from_end(self._leo)
                    return False
                restart = offset <= self._log_start_offset
                if restart and self._on_restart is not None:
                    self._on_restart()
                if offset < self._segments[0].base_offset:
                    self._truncate_fully(offset, offset)
                else:
                    self._truncate(offset)
                self._restarts += restart
                return True
            except (OSError, CheckpointError) as error:
                raise self._fail("truncate", error) from error

    def _truncate(self, offset: int) -> None:
        self._cut_count += 1
        self._producers.map_end_offset = self._leo  # appends do not keep it up to date
        keep = [s for s in self._segments if s.base_offset <= offset]
        gone = [s for s in self._segments if s.base_offset > offset]
        self._discard_tail(gone)
        self._segments.replace_all(keep)
        active = self._segments.active
        active.truncate_to(offset)
        active.activate()  # a segment that was rolled before gets its last time entry on close
        active.state.next_offset = offset
        active.state.cut_pending = True
        self._set_recovery_point(min(self._recovery_point, offset))
        self._log_start_offset = min(self._log_start_offset, offset)
        self._epochs.truncate_from_end(offset)
        self._rebuild_producers(offset)
        self._hw = min(self._hw, offset)

    def _settle_cut(self) -> None:
        """Make a truncation durable, names and all, before the next write."""
        active = self._segments.active
        if active.state.cut_pending:
            active.log.sync()
            self._storage.sync_dir(self.directory)
            active.state.cut_pending = False

    def truncate_fully_and_start_at(self, offset: int, log_start_offset: int | None = None) -> None:
        """Drop everything; the log becomes empty at ``offset`` (F-269 … F-277)."""
        if offset < 0:
            raise ValueError(f"cannot start at offset {offset}")
        with self._flush_lock, self._lock:
            self._check()
            try:
                start = offset if log_start_offset is None else log_start_offset
                if self._on_restart is not None:
                    self._on_restart()
                self._truncate_fully(offset, start)
                self._restarts += 1
            except (OSError, CheckpointError) as error:
                raise self._fail("truncate", error) from error

    def _truncate_fully(self, offset: int, log_start_offset: int) -> None:
        self._cut_count += 1
        self._discard_tail(self._segments)
        self._segments.replace_all([self._new_segment(offset)])
        self._set_recovery_point(min(self._recovery_point, offset))
        self._log_start_offset = log_start_offset
        self._epochs.clear()
        self._producers.truncate_fully_and_start_at(offset)
        self._segments.active.state.cut_pending = True
        self._hw = max(offset, log_start_offset)

    def _rebuild_producers(self, offset: int) -> None:
        rebuild_producers(
            self._producers, self._segments.snapshot(), self._log_start_offset, offset,
            self._clock.wall_ms(),
        )  # fmt: skip

    # -- retention -----------------------------------------------------------------------------

    def delete_old_segments(self) -> int:
        """Delete what retention allows (F-282 … F-285); the number of segments deleted."""
        with self._flush_lock, self._lock:
            self._check()
            now_ms = self._clock.wall_ms()
            try:
                doomed = deletable_segments(
                    self._segments, self.config, self._log_start_offset, self._high_watermark,
                    self._leo, now_ms,
                )  # fmt: skip
                if not doomed:
                    self.purge_deleted(now_ms)
                    return 0
                if len(doomed) == len(self._segments):
                    self._roll(self._leo)
                rest = [s for s in self._segments if s not in doomed]
                self._log_start_offset = max(self._log_start_offset, rest[0].base_offset)
                # The oldest first, and durably one by one: a crash leaves no hole in the log. The
                # epochs of a segment may be forgotten once a crash cannot bring it back.
                for segment in doomed:
                    self._discard([segment])
                    self._storage.sync_dir(self.directory)
                self._segments.replace_all(rest)
                self._epochs.truncate_from_start(self._log_start_offset)
                self._epochs.flush()
                self._producers.on_log_start_changed(self._log_start_offset)
                self.purge_deleted(now_ms)
                return len(doomed)
            except (OSError, CheckpointError) as error:
                raise self._fail("delete segments", error) from error

    def _discard(self, segments: Iterable[Segment]) -> None:
        """Rename to ``.deleted`` now, unlink after ``file.delete.delay.ms`` (F-288)."""
        self._cut_count += 1
        due = self._clock.wall_ms() + self.config.file_delete_delay_ms
        for segment in segments:
            paths = segment.mark_deleted()
            snapshot = self._producers.detach_snapshot(segment.base_offset)
            self._deleted += [(due, path) for path in (*paths, *([snapshot] if snapshot else []))]

    def _discard_tail(self, segments: Iterable[Segment]) -> None:
        """The newest first, and durably one by one: a crash leaves no hole in the log (S-37)."""
        for segment in reversed(tuple(segments)):
            self._discard([segment])
            self._storage.sync_dir(self.directory)

    def purge_deleted(self, now_ms: int) -> int:
        """Unlink ``.deleted`` files that are due; how many."""
        with self._lock:
            due = [path for when, path in self._deleted if when <= now_ms]
            self._deleted = [entry for entry in self._deleted if entry[0] > now_ms]
        for path in due:
            try:
                self._storage.remove(path)
            except FileNotFoundError:
                continue
        return len(due)

    # -- snapshots, invariants -----------------------------------------------------------------

    def take_producer_snapshot(self) -> None:
        with self._lock:
            self._check()
            self._guard("write producer snapshot", self._snapshot_producers)

    def _snapshot_producers(self) -> None:
        self._producers.map_end_offset = self._leo
        self._producers.take_snapshot(sync=True)

    def drop_old_snapshots(self, recovery_point: int) -> None:
        """Snapshots no recovery needs any more: below the segment of the recovery point but one."""
        with self._lock:
            bases = [b for b in self._segments.bases if b <= recovery_point][-2:]
            floor = bases[0] if bases else 0
            for offset in [o for o in self._producers.snapshots if o < floor]:
                self._guard("remove snapshot", self._producers.remove_snapshot, offset)

    def remove_expired_producers(self) -> int:
        with self._lock:
            return self._producers.remove_expired(self._clock.wall_ms())

    def flush_epochs(self) -> None:
        """Write the epoch file if a truncation left it behind (F-207)."""
        with self._lock:
            self._check()
            self._guard("write leader-epoch-checkpoint", self._epochs.flush)

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` when the log contradicts itself; for tests after each step."""
        with self._lock:
            bases = self._segments.bases
            entries = self._epochs.entries
            rules = {
                "log start <= high watermark <= log end": (
                    self._log_start_offset <= self._high_watermark <= self._leo
                ),
                "recovery point <= log end": self._recovery_point <= self._leo,
                "segments ascend": bases == sorted(set(bases)),
                "epochs ascend": all(
                    a.epoch < b.epoch and a.start_offset < b.start_offset
                    for a, b in pairwise(entries)
                ),
            }
            broken = [rule for rule, holds in rules.items() if not holds]
            if broken:
                raise InvariantError(f"{self}: not {', not '.join(broken)}")

    def _codec(self, compression: Compression | str | None) -> Compression:
        if compression is None:
            return self._compression
        if isinstance(compression, Compression):
            return compression
        if compression not in _CODECS:
            raise InvalidRecordError(f"unknown compression {compression!r}")
        return _CODECS[compression]


def _may_lack_key(records: Sequence[tuple[Any, ...]], config: LogConfig) -> bool:
    if not config.compact:
        return False
    return any((r.key if isinstance(r, Record) else r[0]) is None for r in records)


__all__ = ["EARLIEST", "LATEST", "MAX_TIMESTAMP", "AppendInfo", "PartitionLog", "run_inline"]
