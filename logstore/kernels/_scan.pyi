"""Types of the native module; what each function promises is written here."""

from typing import Final, final

from logstore.common.types import Buffer

STATUSES: tuple[int, ...]

def crc32c(data: Buffer, value: int = 0) -> int:
    """Return the CRC-32C of ``data`` (F-53), continuing from ``value``."""

def crc32(data: Buffer, value: int = 0) -> int:
    """Return the CRC-32 (IEEE) of ``data``, as in magic 0 and 1 (F-98)."""

def crc32c_variant(number: int, data: Buffer, value: int = 0) -> int | None: ...
def crc32c_chosen() -> int: ...
def encode_varint(n: int) -> bytes:
    """Encode an i32 with zig-zag and base 128 (F-72)."""

def encode_varlong(n: int) -> bytes:
    """Encode an i64 with zig-zag and base 128 (F-72)."""

def scan_batches(
    data: Buffer,
    start: int,
    columns: object,
    check_crc: bool = True,
    stop_on_bad: bool = True,
) -> tuple[int, int, int]:
    """Fill ``columns`` with one row per batch from ``start`` on (F-106 to F-109).

    Args:
        columns: writable buffer of int64, ``len(SCAN_COLUMNS)`` columns of equal length one after
            the other; its size sets the capacity in rows.
        check_crc: without it, ``valid`` speaks of the header alone.
        stop_on_bad: False makes a batch with a bad crc, magic or header a row with ``valid`` 0,
            and goes on behind it. Its other fields are as read, or −1 where they are not there.
    Returns:
        Rows written; the position of the first batch not taken; and why it ended, a ``SCAN_``
        number. ``position`` in the rows counts from ``data[0]``.

    Legacy entries (F-98): first and last offset are both the stored one (F-103); no epoch
    and producer; ``record_count`` is 1, or −1 when compression hides it.
    """

@final
class RecoveryScan:
    """Recovery of one segment over consecutive windows of its ``.log`` (F-232, F-233).

    Args:
        base_offset: of the segment.
        index_interval_bytes: distance above which a sparse index entry is written (F-133).
        expected_offset: where the segment's first batch may start at the earliest, or, with
            ``contiguous``, must start; −1 when nothing is known.
        last_epoch: latest epoch known before this segment; only higher ones are collected.
        strict: offsets must ascend from the segment's base. No crc covers them (F-62), and Kafka
            does not look.
        contiguous: every batch must start at the offset that follows the one before, as in a log
            that was never compacted.

    ``feed`` it windows until ``status`` says why it ended. Memory: 20 bytes per index entry and
    up to 65,536 producer rows. One thread at a time.
    """
    def __init__(
        self,
        base_offset: int,
        index_interval_bytes: int,
        *,
        expected_offset: int = -1,
        last_epoch: int = -1,
        strict: bool = True,
        contiguous: bool = False,
    ) -> None: ...
    base_offset: Final[int]
    index_interval_bytes: Final[int]
    strict: Final[bool]
    contiguous: Final[bool]
    status: Final[int]
    valid_bytes: Final[int]
    needed_bytes: Final[int]
    next_offset: Final[int]
    max_timestamp: Final[int]
    offset_of_max_timestamp: Final[int]
    first_batch_max_timestamp: Final[int]
    batch_count: Final[int]
    record_count: Final[int]
    epoch_falls: Final[int]
    first_fall_offset: Final[int]
    @property
    def offset_index(self) -> bytes:
        """Entries of the offset index, as in the file (F-112)."""
    @property
    def time_index(self) -> bytes:
        """Entries of the time index, as in the file (F-116), without the closing one."""
    epochs: Final[list[tuple[int, int]]]
    def final_time_entry(self) -> bytes:
        """Return the entry that closes the time index (F-135), or nothing if it is there."""
    def take_producer_batches(self) -> list[tuple[int, ...]]:
        """Return the rows for the producer state since the last call.

        Batches with a producer id, and control batches: (producer_id, producer_epoch,
        base_sequence, last_offset_delta, base_offset, max_timestamp, attributes, position, size,
        record_count).
        """
    def feed(self, data: Buffer, position: int, end_of_file: bool) -> int:
        """Walk the whole batches of ``data``, which starts at ``position`` of the file.

        Returns:
            Bytes walked, up to the end of a batch. ``status`` is then SCAN_INCOMPLETE when the
            window ends inside a batch: feed again from ``position`` + that, at least
            ``needed_bytes``; at the end of the file it is torn. SCAN_FULL: take the producer
            rows, and feed on. SCAN_END: the window is used up. All else is damage.
        Raises:
            ValueError: ``position`` is not where the last window ended.
        """

@final
class BatchAnalysis:
    """The facts that an append needs of its bytes (F-161 to F-173). −1 where there is nothing.

    ``codec_mask`` has bit *n* for codec *n*. ``dense``: every magic-2 batch has records for all
    its offsets (F-167). ``ascending``: every batch starts above the last offset before it.
    ``record_count`` is −1 when a compressed legacy entry hides its number. The last four fields
    are about the records of uncompressed magic-2 batches, with ``deep`` alone; without records
    the times are −1.
    """

    batch_count: Final[int]
    record_count: Final[int]
    size: Final[int]
    first_offset: Final[int]
    last_offset: Final[int]
    base_timestamp: Final[int]
    max_timestamp: Final[int]
    offset_of_max_timestamp: Final[int]
    first_batch_max_timestamp: Final[int]
    min_epoch: Final[int]
    max_epoch: Final[int]
    last_epoch: Final[int]
    magic_min: Final[int]
    magic_max: Final[int]
    largest_batch_size: Final[int]
    attributes_or: Final[int]
    attributes_and: Final[int]
    codec_mask: Final[int]
    ascending: Final[bool]
    dense: Final[bool]
    has_producer: Final[bool]
    all_base_zero: Final[bool]
    too_large_position: Final[int]
    offsets_dense: Final[bool]
    has_null_key: Final[bool]
    min_timestamp: Final[int]
    record_max_timestamp: Final[int]

def analyse_batches(
    data: Buffer,
    *,
    max_batch_size: int = 2147483647,
    check_crc: bool = True,
    deep: bool = False,
) -> BatchAnalysis:
    """Check and summarise the whole batches in ``data``; a partial tail is left out (F-163).

    Args:
        max_batch_size: the first batch above it is reported in ``too_large_position``.
        deep: also walk the records of uncompressed magic-2 batches (F-73).
    Raises:
        CorruptBatchError: a size, crc, magic, header or record is bad; ``position`` counts from
            ``data[0]``, and for a record is where it starts.
    """
