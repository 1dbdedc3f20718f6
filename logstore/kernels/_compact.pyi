"""Types of the native module; what each function promises is written in
the stub."""

from collections.abc import Iterable
from typing import Final, final

from logstore.common.types import Buffer

STATUSES: tuple[int, ...]

@final
class OffsetMap:
    """Digest of a key -> the newest offset at which it was seen. Kafka's ``SkimpyOffsetMap``.

    Keys are compared by their digest alone, murmur3 of 128 bits, so a key costs the same whatever
    its length. It takes up to ``memory`` bytes, at 24 a key, and an eighth more while it grows to
    that; ``load_factor`` of them may be in use, because a table that is nearly full is slow.

    Attributes:
        slots: how many keys have room; limit: how many may be entered; size: how many are.
        room: the slots of the table so far.
        latest_offset: all records up to it were entered, as far as they have keys; −1: none.

    Raises:
        ValueError: no room for a single key.
    """
    def __init__(self, memory: int, load_factor: float) -> None: ...
    def __len__(self) -> int: ...
    slots: Final[int]
    limit: Final[int]
    room: Final[int]
    size: Final[int]
    latest_offset: Final[int]
    full: Final[bool]
    def clear(self) -> None:
        """Forget all keys."""
    def put(self, key: Buffer, offset: int) -> bool:
        """Note the newest offset of a key. False where the map is full, and nothing was noted:
        also for a key that is in it, as Kafka does it."""
    def get(self, key: Buffer) -> int:
        """The newest offset of a key; −1 where it is not in the map."""
    def update_latest_offset(self, offset: int) -> None:
        """All up to ``offset`` was seen; a smaller one than before changes nothing."""
    def add_section(
        self,
        payload: Buffer,
        base_offset: int,
        last_offset_delta: int,
        record_count: int,
        start_offset: int,
    ) -> bool:
        """Enter the records from ``start_offset`` on of one batch; whether the map was full first.

        ``latest_offset`` is then that of the last record that went in, inside the batch.

        Raises:
            CorruptBatchError: a record is malformed; ``position`` in the payload.
        """
    def add_run(self, data: Buffer, position: int, start_offset: int) -> tuple[int, int, int]:
        """Enter plain batches of ``data`` from ``position`` on, their checksums checked.

        Returns:
            Where it stopped and why: ``RUN_END``, no whole batch is left; ``RUN_SPECIAL``, the
            batch there is compressed, of an old format, transactional or control; ``RUN_FULL``,
            the map was full inside the batch there. And the number of records in whole batches.
        Raises:
            CorruptBatchError: ``position`` in ``data``.
        """

@final
class RecordSieve:
    """Which records stay in a pass, and the bytes that they become. Kafka's ``RecordFilter``.

    The output grows until ``reset``. A view of it must be released before.

    Args:
        now_ms: the time of the pass; tombstones go from their batch's delete horizon on.
        delete_retention_ms: from now to the horizon of a batch that has none yet.
        upper_bound: end of what may be cleaned: the batch that ends there stays, even empty, so
            that the end of the range is known afterwards.
        last_offsets: last data offsets of the active producers; their batches stay, even empty,
            because the last sequence numbers are in their headers.
    """
    def __init__(
        self,
        offset_map: OffsetMap,
        now_ms: int,
        delete_retention_ms: int,
        upper_bound: int,
        last_offsets: Iterable[int],
    ) -> None: ...
    now_ms: Final[int]
    delete_retention_ms: Final[int]
    upper_bound: Final[int]
    batches_read: Final[int]
    batches_kept: Final[int]
    batches_copied: Final[int]
    batches_emptied: Final[int]
    records_read: Final[int]
    records_kept: Final[int]
    records_without_key: Final[int]
    tombstones_kept: Final[int]
    @property
    def pending(self) -> int:
        """Bytes of output."""
    def set_last_offsets(self, offsets: Iterable[int]) -> None: ...
    def run(self, data: Buffer, position: int, limit: int) -> tuple[int, int]:
        """Sift plain batches of ``data`` from ``position`` on, their checksums checked, until the
        output has ``limit`` bytes (``RUN_FULL``). Else it stops, and raises, as
        ``OffsetMap.add_run``."""
    def sift_section(
        self,
        payload: Buffer,
        base_offset: int,
        last_offset_delta: int,
        record_count: int,
        attributes: int,
        base_timestamp: int,
        max_timestamp: int,
    ) -> tuple[int, int, bytes | None, int, int]:
        """Judge the records of one unpacked batch.

        Returns:
            How many stay, how many of these are tombstones; the section of those that stay, None
            if there is none or the old one serves; its base timestamp (the delete horizon, if one
            of both is set), and the largest timestamp of a record in it.
        Raises:
            CorruptBatchError: a record is malformed; ``position`` in the payload.
        """
    def put(self, data: Buffer) -> None:
        """Put a finished batch behind the output."""
    def reset(self) -> None: ...
    def view(self) -> memoryview:
        """The output, without a copy; to be released before the next call."""
