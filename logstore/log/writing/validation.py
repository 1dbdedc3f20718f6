"""Decide which appends a log accepts, what they become, and what they change of their producers.

No disk. Matches Kafka's ``LogValidator`` and ``UnifiedLog.analyzeAndValidateRecords`` (F-163 …
F-181).
One native pass (``analyse_batches``) is enough for plain data. Everything else (compression,
LogAppendTime, producers, legacy magic) is handled here, batch by batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from logstore.common.config import LogConfig
from logstore.common.errors import (
    CorruptBatchError,
    CorruptMessageError,
    InvalidRecordError,
    InvalidTimestampError,
    OffsetsOutOfOrderError,
    RecordRejectedError,
    RecordTooLargeError,
    UnexpectedAppendOffsetError,
    UnsupportedForMessageFormatError,
)
from logstore.common.types import NO_TIMESTAMP, Buffer, Record
from logstore.format.batch import encode_batch
from logstore.format.codecs.compression import Compression, decompress, is_above_limit
from logstore.format.control import parse_end_transaction_marker
from logstore.format.header import (
    BatchHeader,
    batch_crc,
    parse_header,
    set_create_time,
    set_log_append_time,
)
from logstore.format.index_entry import AbortedTxn
from logstore.format.reader import read_records
from logstore.kernels import AppendInfo, BatchAnalysis, analyse_batches, decode_records
from logstore.segments.leader_epochs import LeaderEpochCache
from logstore.segments.producer_state import (
    AppendOrigin,
    CompletedTxn,
    ProducerAppend,
    ProducerBatch,
    ProducerStateManager,
    TransactionCheck,
)

CODECS = {codec.name.lower(): codec for codec in Compression} | {
    "producer": Compression.NONE,
    "uncompressed": Compression.NONE,
}


class Prepared(NamedTuple):
    """Batches that may be written; ``analysis`` describes ``data``."""

    data: Buffer
    analysis: BatchAnalysis
    log_append_time: int = NO_TIMESTAMP


def analyse(
    data: Buffer, *, max_batch_size: int, deep: bool, check_crc: bool = True
) -> BatchAnalysis:
    """One native pass over the batches of an append (F-163).

    Raises:
        CorruptMessageError: a checksum, size or record structure is wrong.
    """
    try:
        return analyse_batches(data, max_batch_size=max_batch_size, check_crc=check_crc, deep=deep)
    except CorruptBatchError as error:
        raise corrupt_message(error) from None


def corrupt_message(error: CorruptBatchError) -> CorruptMessageError:
    """The error for the sender of an append with damaged bytes."""
    return CorruptMessageError(f"batch at byte {error.position}: {error.reason}")


def refusal_of_damaged(
    data: Buffer, error: CorruptBatchError, config: LogConfig, origin: AppendOrigin
) -> RecordRejectedError:
    """The error for a leader's client, in the order of Kafka's checks: the base offset, the size,
    the checksum, then what is under the checksum."""
    try:
        header = parse_header(data)
    except CorruptBatchError:
        return corrupt_message(error)
    if origin is AppendOrigin.CLIENT and header.base_offset != 0:
        return InvalidRecordError("a client's batch must have base offset 0")
    if header.size > config.max_message_bytes:
        return RecordTooLargeError(
            f"a batch of {header.size} bytes is above max.message.bytes {config.max_message_bytes}"
        )
    if header.size > len(data) or batch_crc(data, header) != header.crc:
        return corrupt_message(error)
    return InvalidRecordError(error.reason)


def prepare_leader(
    data: Buffer, analysis: BatchAnalysis, config: LogConfig, origin: AppendOrigin, now_ms: int
) -> Prepared:
    """Validate a leader's append that is not plain, and rewrite it where the topic demands.

    Raises:
        RecordRejectedError: a rule of F-165 … F-181 is broken; nothing was changed.
    """
    if origin is AppendOrigin.CLIENT and analysis.magic_min >= 2 and not analysis.all_base_zero:
        raise InvalidRecordError("a client's batch must have base offset 0")
    check_batch_size(analysis, config)
    if analysis.magic_max < 2:
        data = _convert_legacy(data)
        analysis = analyse(data, max_batch_size=config.max_message_bytes, deep=True)
    if analysis.magic_min != analysis.magic_max:
        raise InvalidRecordError("batches of different magic in one append")
    if origin is AppendOrigin.CLIENT:
        if analysis.has_producer and analysis.batch_count > 1:
            # A retry must be a whole append or no part of one (F-165, F-183).
            raise InvalidRecordError("an append of a producer must be one batch")
        if not analysis.dense:
            raise InvalidRecordError("record count and last offset delta of a batch disagree")
    append_time = now_ms if config.message_timestamp_type == "LogAppendTime" else NO_TIMESTAMP
    view = memoryview(data)
    joined = bytearray()
    changed = False
    for header in headers(data, analysis.size):
        batch = view[header.position : header.end_position]
        rewritten_batch = _prepare_batch(batch, header, config, origin, now_ms)
        changed |= rewritten_batch is not None
        joined += batch if rewritten_batch is None else rewritten_batch
    if not changed:
        return Prepared(data, analysis, append_time)
    limit = config.max_message_bytes
    rewritten = analyse(joined, max_batch_size=limit, deep=False, check_crc=False)
    check_batch_size(rewritten, config)  # a rebuilt batch may have grown (F-180)
    return Prepared(joined, rewritten, append_time)


def check_batch_size(analysis: BatchAnalysis, config: LogConfig) -> None:
    if analysis.largest_batch_size > config.max_message_bytes:
        raise RecordTooLargeError(
            f"a batch of {analysis.largest_batch_size} bytes is above max.message.bytes "
            f"{config.max_message_bytes}"
        )


def headers(data: Buffer, size: int) -> Iterator[BatchHeader]:
    """Headers of the whole magic 2 batches in ``data[:size]``."""
    position = 0
    while position < size:
        header = parse_header(data, position)
        yield header
        position += header.size


def _prepare_batch(
    batch: memoryview, header: BatchHeader, config: LogConfig, origin: AppendOrigin, now_ms: int
) -> bytes | bytearray | None:
    """The batch as it will be stored, or None if it stays as it is."""
    client = origin is AppendOrigin.CLIENT
    if client:
        if header.is_control:
            raise InvalidRecordError("clients may not append control batches")
        if header.producer_id >= 0 and header.base_sequence < 0:
            raise InvalidRecordError(f"producer {header.producer_id} without a base sequence")
        if header.is_transactional and header.producer_id < 0:
            raise InvalidRecordError("a transactional batch without a producer id")
    codec = header.compression
    target = _target_codec(codec, config)
    if header.is_control:
        target = codec
    records = _records_of(batch, header) if client or target is not codec else []
    append_time_topic = config.message_timestamp_type == "LogAppendTime"
    if client:
        _validate_records(records, header, config, now_ms)
    if target is not codec:
        return _recompress(records, header, target, config, now_ms if append_time_topic else None)
    if append_time_topic:
        copy = bytearray(batch)
        set_log_append_time(copy, now_ms)
        return copy
    if records:
        # A client's wrong maximum is corrected (F-179), and its claim to be the broker (F-173).
        true_maximum = max(record.timestamp for record in records)
        if true_maximum != header.max_timestamp or header.is_log_append_time:
            copy = bytearray(batch)
            set_create_time(copy, true_maximum)
            return copy
    return None


def _target_codec(codec: Compression, config: LogConfig) -> Compression:
    return codec if config.compression_type == "producer" else CODECS[config.compression_type]


def level_of(codec: Compression, config: LogConfig) -> int | None:
    return {
        Compression.GZIP: config.compression_gzip_level,
        Compression.LZ4: config.compression_lz4_level,
        Compression.ZSTD: config.compression_zstd_level,
    }.get(codec)


def _records_of(batch: memoryview, header: BatchHeader) -> list[Record]:
    payload: Buffer = batch[61:]
    try:
        if header.compression is not Compression.NONE:
            payload = decompress(header.compression, payload)
        # A claim to be the broker's time counts for each record, should they be rewritten.
        time, count = header.log_append_time, header.record_count
        records = decode_records(payload, 0, header.base_timestamp, count, time, 0)
    except CorruptBatchError as error:
        kind = RecordTooLargeError if is_above_limit(error) else InvalidRecordError
        raise kind(error.reason) from None
    if [record.offset for record in records] != list(range(header.record_count)):
        raise InvalidRecordError("offset deltas of the records are not 0, 1, 2, …")
    return records


def _validate_records(
    records: list[Record], header: BatchHeader, config: LogConfig, now_ms: int
) -> None:
    """One bad record fails the whole batch (F-171 … F-176)."""
    if config.compact:
        why = "a compacted topic needs a key"
        missing = [(i, why) for i, record in enumerate(records) if record.key is None]
        if missing:
            raise InvalidRecordError("records without key", tuple(missing))
    if config.message_timestamp_type == "LogAppendTime" and header.is_log_append_time:
        why = "the time of the append is the leader's to set"
        raise InvalidTimestampError(why, tuple((i, why) for i in range(len(records))))
    if config.message_timestamp_type == "CreateTime":
        earliest = now_ms - config.message_timestamp_before_max_ms
        latest = now_ms + config.message_timestamp_after_max_ms
        wrong = [
            (i, f"timestamp {r.timestamp} is outside [{earliest}, {latest}]")
            for i, r in enumerate(records)
            if r.timestamp != NO_TIMESTAMP and not earliest <= r.timestamp <= latest
        ]
        if wrong:
            raise InvalidTimestampError("timestamps out of range", tuple(wrong))


def _recompress(
    records: list[Record],
    header: BatchHeader,
    target: Compression,
    config: LogConfig,
    log_append_time: int | None,
) -> bytearray:
    return encode_batch(
        records,
        compression=target,
        level=level_of(target, config),
        log_append_time=log_append_time,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        control=header.is_control,
    )


def _convert_legacy(data: Buffer) -> bytes:
    """Magic 0 and 1 become one magic 2 batch: new data is always magic 2 (F-105)."""
    try:
        records = read_records(data)
    except CorruptBatchError as error:
        kind = RecordTooLargeError if is_above_limit(error) else CorruptMessageError
        raise kind(error.reason) from None
    if not records:
        raise InvalidRecordError("an append without records")
    first = parse_legacy_codec(data)
    return bytes(encode_batch(records, compression=first))


def parse_legacy_codec(data: Buffer) -> Compression:
    codec = memoryview(data)[17] & 7
    if codec > Compression.LZ4:
        raise UnsupportedForMessageFormatError(f"codec {codec} in a legacy message")
    return Compression(codec)


def check_follower(
    data: Buffer,
    analysis: BatchAnalysis,
    log_end_offset: int,
    epochs: LeaderEpochCache,
    leader_epoch: int | None,
) -> None:
    """Check a follower's append against the log that it continues.

    Offsets ascend, and none is below the log end offset (F-163, F-164). Leader epochs never fall
    and are not above ``leader_epoch`` (KAFKA-18723): the checksum does not cover them, and a
    flipped bit would make the epoch cache differ from the leader's.
    """
    if not analysis.ascending:
        raise OffsetsOutOfOrderError("offsets of the batches do not ascend")
    if analysis.first_offset < log_end_offset:
        raise UnexpectedAppendOffsetError(
            f"append begins at offset {analysis.first_offset}, the log ends at {log_end_offset}",
            analysis.first_offset,
            analysis.last_offset,
        )
    if analysis.magic_max < 2:
        return
    written = (e.epoch for e in reversed(epochs.entries) if e.start_offset < log_end_offset)
    known = next(written, -1)  # of the last batch in the log
    above = 2**31 if leader_epoch is None else leader_epoch
    first, last = analysis.min_epoch, analysis.max_epoch
    if 0 <= first == last and known <= first <= above and analysis.magic_min >= 2:
        return  # all of one epoch, the usual case
    for header in headers(data, analysis.size):
        epoch = header.leader_epoch
        if epoch < 0:
            raise InvalidRecordError("a fetched batch without leader epoch")
        if not known <= epoch <= above:
            raise CorruptMessageError(
                f"batch at offset {header.base_offset} has leader epoch {epoch}, which is not in "
                f"[{known}, {above}]"
            )
        known = epoch


class ProducerUpdates(NamedTuple):
    """The changes of an append to the state of its producers, in the order of its batches."""

    appends: list[ProducerAppend]
    completed: list[CompletedTxn]
    aborted: list[AbortedTxn]

    @property
    def idempotent(self) -> bool:
        """Whether they may be applied twice, which no transaction may."""
        return not self.completed and not any(append.started for append in self.appends)


def check_producers(
    producers: ProducerStateManager,
    data: Buffer,
    size: int,
    first_offset: int,
    origin: AppendOrigin,
    log_start_offset: int,
    check: TransactionCheck,
) -> AppendInfo | ProducerUpdates:
    """Check sequences and transactions (F-183 … F-195). A duplicate returns its old offsets."""
    appends: dict[int, ProducerAppend] = {}
    updates = ProducerUpdates([], [], [])
    open_transactions: dict[int, int] | None = None  # producer → first offset, at this batch
    for batch in _producer_batches(data, size, first_offset):
        append = appends.get(batch.producer_id)
        if append is None:
            append = producers.prepare(batch.producer_id, origin, check)
            appends[batch.producer_id] = append
            if origin is AppendOrigin.CLIENT:
                known = append.entry.find_duplicate(batch)
                if known is not None:
                    return AppendInfo(
                        known.first_offset,
                        known.last_offset,
                        known.timestamp,
                        known.timestamp,  # as Kafka answers, whatever the topic's timestamps are
                        log_start_offset,
                        0,
                        0,
                        True,
                    )
        if open_transactions is None:
            open_transactions = producers.open_transactions()
        completed = append.append(batch)
        if append.entry.current_txn_first_offset >= 0:
            open_transactions[batch.producer_id] = append.entry.current_txn_first_offset
        else:
            open_transactions.pop(batch.producer_id, None)
        if completed is not None:
            updates.completed.append(completed)
            if completed.is_aborted:
                stable = min(open_transactions.values(), default=completed.last_offset + 1)
                aborted = AbortedTxn(
                    completed.producer_id, completed.first_offset, completed.last_offset, stable
                )
                updates.aborted.append(aborted)
    updates.appends.extend(appends.values())
    return updates


def _producer_batches(data: Buffer, size: int, first_offset: int) -> Iterator[ProducerBatch]:
    """The batches of producers in ``data``, with offsets from ``first_offset`` on if it is ≥ 0."""
    next_offset = first_offset
    for header in headers(data, size):
        base = header.base_offset if first_offset < 0 else next_offset
        last = base + header.last_offset_delta
        next_offset = last + 1
        if header.producer_id < 0:
            continue
        marker = None
        if header.is_control and header.record_count:
            marker = parse_end_transaction_marker(
                memoryview(data)[header.position : header.end_position]
            )
        yield ProducerBatch(
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            base,
            last,
            header.max_timestamp,
            header.is_transactional,
            marker,
            header.is_control,
        )
