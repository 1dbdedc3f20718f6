"""Types of the native module; what each function promises is written here."""

from array import array
from collections.abc import Iterable
from typing import Any, Final, final

from logstore.common.types import Buffer, Record

STATUSES: tuple[int, ...]

@final
class Encoded:
    """Records behind room for their batch header.

    ``buffer``: 61 zero bytes, then the records section; hand it to ``seal_batch``.
    ``offset_of_max``: offset delta of the first record with the largest timestamp. Both times
    and ``offset_of_max`` are −1 when there is no record.
    """

    buffer: Final[bytearray]
    base_timestamp: Final[int]
    max_timestamp: Final[int]
    offset_of_max: Final[int]
    count: Final[int]

@final
class NativeBuffer:
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def encode_records(
    records: Iterable[Any], default_timestamp: Any = -1, *, keys_required: bool = False
) -> Encoded:
    """Encode records with offset deltas 0, 1, 2, … (F-71, F-75).

    Args:
        records: tuples ``(key, value)``, with a timestamp and headers if there are any, or
            ``Record``s, whose offsets are ignored. Keys and values are bytes-like or None.
            Headers are pairs of str and bytes-like or None. Walked once.
        default_timestamp: for records without one (None). Timestamps are ms since the epoch, or
            aware datetimes.
        keys_required: refuse records without a key, as a compacted topic does.
    Raises:
        InvalidRecordError: a field has another type or is out of range, with the index of the
            record and why; or the whole is above 2³¹ − 1 bytes with its header.
    """

def encode_lists(
    keys: Iterable[Any] | None,
    values: Iterable[Any],
    timestamps: Any = None,
    headers: Iterable[Any] | None = None,
    default_timestamp: Any = -1,
    *,
    keys_required: bool = False,
) -> Encoded:
    """Encode parallel lists; as ``encode_records``.

    Args:
        keys: None when all are null.
        timestamps: None, one for all, a list or tuple, or a buffer of int64.
        headers: one entry per record, each None or a sequence of pairs.
    Raises:
        InvalidRecordError: also when the lengths differ.
    """

def encode_columns(
    start: int,
    stop: int,
    key_offsets: Any,
    key_data: Any,
    key_validity: Any,
    value_offsets: Any,
    value_data: Any,
    value_validity: Any,
    timestamps: Any = None,
    default_timestamp: Any = -1,
    *,
    headers: tuple[Any, ...] | None = None,
    key_offset_size: int = 4,
    value_offset_size: int = 4,
) -> Encoded:
    """Encode rows ``start`` to ``stop`` of Arrow columns, without the GIL.

    Args:
        start: row number in the buffers; a sliced array adds its ``offset``.
        key_offsets: int32 or int64 offsets, or None when all keys are null. A buffer that does
            not say how wide its items are, as pyarrow's, has items of ``key_offset_size`` bytes.
        key_validity: bitmap, lowest bit first, or None when no key is null.
        timestamps: None, one for all, or a buffer of int64.
        headers: the buffers of an Arrow list<struct<key: string, value: binary>>, all with int32
            offsets: offsets and validity of the lists, the number of structs, then offsets, data
            and validity of the keys and of the values. Each begins at row 0.
    Raises:
        ValueError: a buffer is too short, offsets do not ascend, a timestamp is below −1, a header
            has no key.
    """

def seal_batch(
    buffer: Any,
    *,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    record_count: int,
) -> None:
    """Write the batch header (F-49 … F-61) over the first 61 bytes of ``buffer``, crc included.

    Raises:
        OverflowError: a value does not fit its field.
        ValueError: the buffer has no room for a header, or is too large for one batch.
    """

def partition_column(
    partitioner: str, partition_count: int, stop: int, offsets: Any, data: Any, validity: Any
) -> bytearray:
    """Partition of each of ``stop`` keys, as ``logstore.common.partitioner`` places one key.

    Args:
        partitioner: ``murmur2`` or ``murmur3``.
        offsets: int32 offsets of an Arrow column of binary values that begins at row 0; with
            ``data`` and the ``validity`` bitmap, which are buffers or None.
    Returns:
        Native int32 numbers; −1 for a null key.
    Raises:
        ValueError: another partitioner, a buffer is too short, or offsets do not ascend.
    """

def decode_records(
    payload: Buffer,
    base_offset: int,
    base_timestamp: int,
    record_count: int,
    log_append_time: int | None = None,
    from_offset: int = 0,
) -> list[Record]:
    """Return the records of one uncompressed records section (F-71 to F-74).

    Args:
        log_append_time: timestamp of all records, when the batch has bit 3 of its attributes.
        from_offset: records below are checked, and left out.
    Raises:
        CorruptBatchError: the structure is bad, bytes remain, or offset deltas do not ascend;
            ``position`` is where the record starts in ``payload``.
    """

@final
class ReadBounds:
    """The choice of what to read: offsets in ``[from_offset, end_offset)`` and timestamps in
    ``[start_timestamp, end_timestamp)``, in ms; ``None`` is no bound.

    Control records are left out unless asked for. ``aborted`` lists transactions whose data is
    left out, ``(producer id, first offset, offset of the marker)``; it is kept sorted.

    A batch whose largest timestamp, by its header, is below ``start_timestamp`` is passed over
    unseen, like one that ends below ``from_offset``. In a batch that may hold records in time, of
    the others only the length and the deltas are checked.
    """
    def __init__(
        self,
        from_offset: int = 0,
        end_offset: int = ...,
        check_crc: bool = True,
        include_control: bool = False,
        aborted: Iterable[tuple[int, int, int]] = (),
        start_timestamp: int | None = None,
        end_timestamp: int | None = None,
    ) -> None: ...
    from_offset: Final[int]
    end_offset: Final[int]
    check_crc: Final[bool]
    include_control: Final[bool]
    aborted: Final[tuple[tuple[int, int, int], ...]]
    start_timestamp: Final[int]
    """−2⁶³ without a bound; ``end_timestamp`` is 2⁶³ − 1 then."""
    end_timestamp: Final[int]
    def is_in_time(self, timestamp: int) -> bool: ...

def decode_run(
    data: Buffer, position: int, out: list[Record], max_records: int, bounds: ReadBounds
) -> tuple[int, int]:
    """Append to ``out`` the records of consecutive plain batches: ``(next position, status)``.

    A compressed batch, or one below magic 2, ends the run with DECODE_SPECIAL, so that the caller
    can deal with that one. Batches that are left out are passed, but their checksum is checked.

    Args:
        max_records: DECODE_FULL at the first batch boundary with at least so many appended.
        bounds: DECODE_LIMIT when its end offset is reached. A batch that reaches past it is the
            next position, so that a later run finds the rest.
    Raises:
        CorruptBatchError: the crc, header or structure is bad. Records of the batches before it
            are in ``out``; ``position`` counts from ``data[0]``.
    """

@final
class ColumnBuilder:
    """Records as columns in Arrow's layout.

    ``max_rows`` and ``max_bytes`` of ``add_run`` speak of all that the builder holds, so runs can
    be mixed with unpacked sections. No column grows beyond ``column_bytes_max`` bytes, which its
    offsets of 32 bits bound. One thread at a time.
    """
    def __init__(
        self,
        keys: bool = True,
        values: bool = True,
        timestamps: bool = True,
        headers: bool = False,
        column_bytes_max: int = ...,
        runs: bool = False,
    ) -> None: ...
    rows: Final[int]
    def add_run(
        self, data: Buffer, position: int, max_rows: int, max_bytes: int, bounds: ReadBounds
    ) -> tuple[int, int]:
        """Append the records of consecutive plain batches: ``(next position, status)``.

        As ``decode_run``. DECODE_FULL when the builder holds at least ``max_rows`` rows or
        ``max_bytes`` bytes of keys and values, and before an int32 offset could overflow.
        """
    def add_payload(
        self,
        payload: Buffer,
        base_offset: int,
        base_timestamp: int,
        record_count: int,
        log_append_time: int | None,
        bounds: ReadBounds,
        batch_position: int = 0,
    ) -> int:
        """Append one unpacked section: DECODE_END, or DECODE_FULL when it does not fit.

        Of ``bounds`` only those of offset and time count. ``batch_position`` is for ``runs``.
        """
    def runs(self) -> tuple[array[int], array[int]]:
        """Return, for each batch that gave rows, the number of rows up to its end and its position
        in ``data``. Both are empty without ``runs``.
        """
    def finish(self) -> dict[str, Any]:
        """Return the columns as buffers; the builder is empty afterwards.

        ``offsets`` and ``timestamps`` are int64 (ms). ``key_offsets`` (int32, rows + 1),
        ``key_data`` and ``key_validity`` (bitmap, or None when nothing is null), and the same for
        ``value``. With headers: ``header_list_offsets``, ``header_name_offsets``,
        ``header_name_data`` (bytes as stored natively, UTF-8), and ``header_value_…``.
        Columns that were not asked for are absent.
        """

@final
class RecordCount:
    """The number of records, and the extremes of them that are asked for; None without a record.

    The number and the largest timestamp in a header are believed where all records of the batch are
    wanted. Otherwise its records are walked, of each the length and the deltas.
    """
    def __init__(
        self,
        min_offset: bool = False,
        max_offset: bool = False,
        min_timestamp: bool = False,
        max_timestamp: bool = False,
    ) -> None: ...
    rows: Final[int]
    min_offset: Final[int | None]
    max_offset: Final[int | None]
    min_timestamp: Final[int | None]
    max_timestamp: Final[int | None]
    def add_run(self, data: Buffer, position: int, bounds: ReadBounds) -> tuple[int, int]:
        """Add the records of consecutive batches: ``(next position, status)``.

        As ``ColumnBuilder.add_run``, but never full. DECODE_SPECIAL only at a batch that must be
        unpacked, for its header does not say what is asked.
        """
    def add_payload(
        self,
        payload: Buffer,
        base_offset: int,
        base_timestamp: int,
        record_count: int,
        log_append_time: int | None,
        bounds: ReadBounds,
        batch_position: int = 0,
    ) -> int:
        """Add one unpacked section, as ``ColumnBuilder.add_payload``: DECODE_END."""
