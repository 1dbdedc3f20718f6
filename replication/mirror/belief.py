"""What a mirror believes of an answer: what agrees with itself (X-178).

A follower trusts its leader, because one controller rules both. A mirror does not know who answers,
and what it keeps of a false answer nobody corrects: the source never cuts what it never had.
"""

from __future__ import annotations

from logstore.common.errors import InvalidRecordError
from logstore.common.types import Buffer
from logstore.directory.windows import BatchTable
from logstore.kernels import SCAN_FULL

_ROWS = 512


def check_watermarks(high_watermark: int, log_start: int) -> None:
    """
    Args:
        log_start: of the source's log; −1 if it is not known.
    Raises:
        InvalidRecordError: no log of Kafka's is like that.
    """
    if high_watermark < 0:
        raise InvalidRecordError(f"the source answers with the high watermark {high_watermark}")
    if log_start > high_watermark:
        raise InvalidRecordError(
            f"the source's log starts at {log_start}, above its high watermark {high_watermark}"
        )


def committed(records: Buffer, high_watermark: int) -> Buffer:
    """The batches below the high watermark: a consumer is given no others.

    A leader looks at its high watermark before it reads, so it may honestly send more than it says.
    What is no batch stays for who appends, who refuses it with a reason.
    """
    view, start, status = memoryview(records), 0, SCAN_FULL
    while status == SCAN_FULL:
        table = BatchTable(view[start:], rows=_ROWS)
        lasts = table.cells("last_offset").tolist()
        if lasts and max(lasts) >= high_watermark:
            at = next(row for row, last in enumerate(lasts) if last >= high_watermark)
            return view[: start + table.cells("position")[at]]
        start, status = start + table.end, table.status
    return records


__all__ = ["check_watermarks", "committed"]
