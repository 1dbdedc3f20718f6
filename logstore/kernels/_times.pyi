"""Types of the native module; what it promises is written in the stub."""

from logstore.common.types import Buffer

def batches_entirely_after(data: Buffer, columns: object, rows: int, timestamp: int) -> bytearray:
    """1 for each batch that is known to have no record earlier than ``timestamp``, in ms, else 0.

    A header has only the largest time of its records (F-57), so the records are walked, of each
    the length and the time. Compressed and older batches, and those with a malformed record, are
    0: who decodes them will see.

    Args:
        columns: the table of ``scan_batches``, filled from ``data``; ``rows`` of it are in use.
    Raises:
        ValueError: the table has fewer rows.
    """
