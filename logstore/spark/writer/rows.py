"""From Arrow rows to Kafka batches of each partition, without a Python object for each row."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from logstore.common.errors import ConfigError, InvalidRecordError
from logstore.common.types import TopicPartition
from logstore.format.batch import encode_batch_columns
from logstore.format.filenames import validate_topic
from logstore.kernels import partition_column
from logstore.spark.writer.options import WriteOptions

CHUNK_BYTES = 16 << 20
"""Rows are collected up to this size: enough for full batches of a hundred partitions, and a small
part of a worker's memory.
"""

_RECORD_OVERHEAD = 10  # bytes of a record besides key, value and headers; for the cut into batches
_PARTITION_BITS = 32


class EncodedRun(NamedTuple):
    """Encoded batches of one partition, which have no final offsets yet."""

    topic_partition: TopicPartition
    batches: list[bytearray]
    records: int


def chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Regroup rows in batches of about ``CHUNK_BYTES``, whose buffers begin at row 0."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            size += batch.nbytes
        if size >= CHUNK_BYTES:
            yield _joined(held)
            held, size = [], 0
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    joined = pa.concat_batches(batches) if len(batches) > 1 else batches[0]
    if any(column.offset for column in joined.columns):
        joined = joined.take(pa.array(range(joined.num_rows)))
    return joined


class RowEncoder:
    """Encodes the rows of one task. Each partition keeps their order."""

    def __init__(
        self, options: WriteOptions, task: int, now_ms: int, counts: Mapping[str, int] | None = None
    ) -> None:
        """``task`` decides the partitions of rows without a key.

        ``now_ms`` is the timestamp of rows without one. ``counts`` are the numbers of partitions of
        existing topics.
        """
        self._options = options
        self._counts = counts or {}
        self._turn = task
        self._now_ms = now_ms

    def encode(self, rows: pa.RecordBatch) -> Iterator[EncodedRun]:
        """
        Raises:
            InvalidRecordError: a row without a topic, with a partition that does not exist, or with
                a timestamp or header that the format cannot hold.
            InvalidTopicError: a topic's name is invalid (F-2).
        """
        topics, codes = self._topics(rows)
        place = self._partitions(rows, topics, codes).cast(pa.int64())
        if codes is not None:
            place = pc.add(pc.shift_left(codes.cast(pa.int64()), _PARTITION_BITS), place)
        lowest, highest = pc.min_max(place).values()
        if not lowest.equals(highest):
            order = pc.sort_indices(place)  # stable: rows of a partition stay in order
            place, rows = place.take(order), rows.take(order)
        columns = _Columns(rows, self._now_ms)
        runs = pc.run_end_encode(place)
        start = 0
        for stop, value in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
            tp = TopicPartition(
                topics[value >> _PARTITION_BITS], value & ((1 << _PARTITION_BITS) - 1)
            )
            yield EncodedRun(tp, list(columns.encode(start, stop, self._options)), stop - start)
            start = stop

    def _topics(self, rows: pa.RecordBatch) -> tuple[list[str], pa.Array | None]:
        """The topics, and for each row the number of its topic; no numbers if there is only one
        topic.
        """
        if self._options.topic:
            return [self._options.topic], None
        column = rows.column("topic")
        if column.null_count:
            raise InvalidRecordError(f"{column.null_count} rows without a topic")
        encoded = column.dictionary_encode()
        topics = encoded.dictionary.to_pylist()
        for topic in topics:
            validate_topic(topic)
        return topics, encoded.indices

    def _partitions(
        self, rows: pa.RecordBatch, topics: list[str], codes: pa.Array | None
    ) -> pa.Array:
        """The partition of each row: the given one, or by its key, or the next one in turn.

        Rows without a key stay together for a chunk, as Kafka's sticky partitioning keeps them
        together for a batch. The turn depends only on the task, so a retry does the same.
        """
        by_topic = [self._count(topic) for topic in topics]
        given = rows.column("partition") if "partition" in rows.schema.names else None
        if given is not None:
            self._check_given(given, topics, by_topic, codes)
            if not given.null_count:
                return given
            if 0 in by_topic:
                raise InvalidRecordError(
                    f"{given.null_count} rows without a partition: the option numPartitions is "
                    "needed to place them by their keys"
                )
        placed = self._placed_by_topic(rows, [count or 1 for count in by_topic], codes)
        return placed if given is None else pc.coalesce(given, placed)

    def _count(self, topic: str) -> int:
        """The number of partitions of a topic; 0 if only the rows decide."""
        there, asked = self._counts.get(topic, 0), self._options.partition_count
        if there and asked and there != asked:
            raise ConfigError(f"{topic} has {there} partitions, not {asked} as numPartitions says")
        return there or asked

    @staticmethod
    def _check_given(
        given: pa.Array, topics: list[str], by_topic: list[int], codes: pa.Array | None
    ) -> None:
        limits = [count or 1 << 31 for count in by_topic]
        limit = limits[0] if codes is None else pa.array(limits, pa.int64()).take(codes)
        wrong = pc.or_(pc.less(given, 0), pc.greater_equal(given, limit))
        if pc.any(wrong).as_py():
            row = pc.index(wrong, True).as_py()
            code = 0 if codes is None else codes[row].as_py()
            raise InvalidRecordError(
                f"partition {given[row].as_py()} of a row is outside "
                f"[0, {by_topic[code] or '2^31'}) of {topics[code]}"
            )

    def _placed_by_topic(
        self, rows: pa.RecordBatch, counts: list[int], codes: pa.Array | None
    ) -> pa.Array:
        """The partition by key of each row, among the partitions of its topic."""
        turn = self._turn
        placed = self._placed(rows, counts[0], turn)
        for count in sorted({*counts[1:]} - {counts[0]}):
            mine = pa.array([other == count for other in counts]).take(codes)
            placed = pc.if_else(mine, self._placed(rows, count, turn), placed)
        return placed

    def _placed(self, rows: pa.RecordBatch, count: int, turn: int) -> pa.Array:
        placed: pa.Array = pa.nulls(rows.num_rows, pa.int32())
        if "key" in rows.schema.names:
            offsets, data, validity = _binary(rows.column("key"))
            found = partition_column(
                self._options.partitioner, count, rows.num_rows, offsets, data, validity
            )
            placed = pa.Array.from_buffers(pa.int32(), rows.num_rows, [None, pa.py_buffer(found)])
            placed = pc.if_else(pc.greater_equal(placed, 0), placed, None)
        if placed.null_count:
            placed = pc.fill_null(placed, pa.scalar(turn % count, pa.int32()))
            self._turn = turn + 1
        return placed


class _Columns:
    """The buffers of a chunk in the form for the kernels."""

    def __init__(self, rows: pa.RecordBatch, now_ms: int) -> None:
        names = rows.schema.names
        value = rows.column("value")
        self._values = _binary(value)
        self._keys: tuple[Any, Any, Any] = (None, None, None)
        self._times: Any = now_ms
        self._headers: tuple[Any, ...] | None = None
        sizes = _sizes(value)
        if "key" in names:
            self._keys = _binary(rows.column("key"))
            sizes = pc.add(sizes, _sizes(rows.column("key")))
        if "timestamp" in names:
            micros = rows.column("timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            self._times = pc.fill_null(_floor_ms(micros), now_ms).buffers()[1]
        ends = pc.cumulative_sum(pc.add(sizes, _RECORD_OVERHEAD))
        if "headers" in names:
            headers = rows.column("headers")
            self._headers = _header_buffers(headers)
            ends = pc.add(ends, _header_bytes(headers))
        self._ends = memoryview(ends.buffers()[1]).cast("q")

    def encode(self, start: int, stop: int, options: WriteOptions) -> Iterator[bytearray]:
        """Rows ``[start, stop)`` in batches of about ``batch.size`` bytes before compression."""
        while start < stop:
            before = self._ends[start - 1] if start else 0
            end = bisect_right(self._ends, before + options.batch_size, start, stop)
            end = max(end, start + 1)
            yield encode_batch_columns(
                start,
                end,
                self._keys,
                self._values,
                self._times,
                self._headers,
                compression=options.compression,
            )
            start = end


def _binary(column: pa.Array) -> tuple[Any, Any, Any]:
    """Offsets, data and validity of a column of strings or bytes that begins at row 0."""
    validity, offsets, data = column.cast(pa.binary()).buffers()
    return offsets, data, validity


def _floor_ms(micros: pa.Array) -> pa.Array:
    """Whole milliseconds, rounded down also before 1970, where a division would round up."""
    before = pc.subtract(micros, 999)
    return pc.divide(pc.if_else(pc.less(micros, 0), before, micros), 1000)


def _sizes(column: pa.Array) -> pa.Array:
    return pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())


def _header_buffers(headers: pa.Array) -> tuple[Any, ...]:
    names, values = headers.values.flatten()  # a null struct has a null name
    validity, offsets = headers.buffers()[:2]
    return offsets, validity, len(names), *_binary(names), *_binary(values)


def _header_bytes(headers: pa.Array) -> pa.Array:
    """The running sum of header bytes, including each row."""
    names, values = headers.values.flatten()
    sizes = pc.add(_sizes(names), _sizes(values))
    ends = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(sizes)])
    return ends.take(headers.offsets.slice(1))


__all__ = ["CHUNK_BYTES", "EncodedRun", "RowEncoder", "chunks"]
