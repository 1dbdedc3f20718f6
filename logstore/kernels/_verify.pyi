"""Types of the native module; see the stub for what each function promises."""

from logstore.common.types import Buffer
from logstore.kernels._constants import BatchSurvey

def survey_batches(
    columns: Buffer, rows: int, expected: int, segment_base: int, next_base: int
) -> BatchSurvey:
    """Survey a table of at least one row at a glance.

    ``expected`` is the offset due at its first row, −1 if unknown; the segment's offsets lie in
    ``[segment_base, next_base)``, where −1 is no end.
    """

def ascending_offset_entries(data: Buffer, log_size: int) -> int:
    """Count the first entries that ascend in both numbers, with positions in ``[0, log_size)``."""

def ascending_time_entries(data: Buffer) -> int:
    """Count the entries at the start with rising timestamps, and offsets that never fall."""

def match_offset_entries(
    data: Buffer,
    first: int,
    end: int,
    columns: Buffer,
    rows: int,
    start: int,
    segment_base: int,
    largest: int,
    covered: int,
) -> tuple[int, int, list[tuple[int, int]]]:
    """Compare entries ``[first, end)`` with the batches of the table.

    An entry fits when it leads to the start of a batch, though not to that of the log, behind byte
    ``covered``, and its offset is the last one of a batch from there on: then that batch is covered
    too. ``largest`` is the largest timestamp before the table. Entries and batches ascend;
    positions of the table count from byte ``start`` of the log.

    Returns:
        The first entry that does not fit, ``end`` if all do; the start of the last batch covered;
        of each entry that covers several batches the number, and the largest timestamp up to its
        offset.
    """

def match_time_entries(
    data: Buffer,
    first: int,
    end: int,
    columns: Buffer,
    rows: int,
    segment_base: int,
    trusted: bool,
    done: int,
    largest: int,
) -> tuple[int, int, int]:
    """Compare entries ``[first, end)`` with the largest timestamps up to their offsets (F-117).

    ``largest`` is that of everything before the table and of its first ``done`` rows. Ends at an
    entry above the table, and, when ``trusted``, at one whose timestamp is not that of its batch,
    was reached before it, or whose offset is not the batch's last. Entries and batches ascend.

    Returns:
        The entry that it ended at, rows done, and the largest timestamp in them and before.
    """

def irregular_batches(data: Buffer, columns: Buffer, rows: int) -> list[int]:
    """Rows whose records want a closer look: not plain, or not as ``fits_in_section`` asks."""

def fits_in_section(payload: Buffer, columns: Buffer, row: int) -> bool:
    """Whether the records of an unpacked section are sound (F-73) and as the header in ``row``
    says: offsets inside the batch, the largest timestamp, none negative."""

def fold_batches(
    data: Buffer,
    columns: Buffer,
    offsets: Buffer,
    first: int,
    end: int,
    factor: int,
    offset_factor: int,
    heads: bool = False,
) -> tuple[int, int]:
    """Fold the content of batches ``[first, end)``, of the bytes that their checksum covers.

    For each, with its offset from ``offsets`` (int64, one for each row):
    ``value = value · factor + hash + offset · offset_factor``, modulo 2¹²⁸, from 0 on. The hash
    is murmur3 of 128 bits for x64 with seed 0.

    Args:
        heads: the checksum with the rest of the header stands for all that it covers.
    Returns:
        The value, and ``factor`` to the number of batches.
    """

class SequenceWatch:
    """Follows the sequences of at most ``most`` producers over the tables of a segment (F-188).

    In an epoch each batch of a producer begins with the sequence behind that of the one before;
    in a new one with 0. Batches of magic 2 with a producer id count alone, and no control batch
    that compaction emptied.
    """
    def __init__(self, most: int) -> None: ...
    @property
    def full(self) -> bool:
        """Whether there may be producers that are not followed."""
    def take(self, columns: Buffer, rows: int) -> tuple[list[int], list[tuple[int, int, int]]]:
        """The next table.

        Returns:
            Rows of the first batch of a producer that has only shown markers of its epoch
            before; and of each batch with another sequence than the one due its row, that
            sequence, and the last offset of the batch before. Where the epoch fell, −1 stands for
            the sequence, and the batch may be a marker.
        """
