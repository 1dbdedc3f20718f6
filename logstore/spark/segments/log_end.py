"""Where a partition's log ends."""

from __future__ import annotations

from logstore.format.reader import MAX_OFFSET
from logstore.spark.layout.types import PartitionLayout
from logstore.spark.segments.segment_index import SegmentIndex


def log_end_offset(layout: PartitionLayout) -> int:
    """One past the last record of the log as it was listed.

    Walks the headers after the last index entry of the last segment.

    Raises:
        CorruptBatchError: a header that makes no sense.
        OSError: the medium refused.
    """
    end = layout.log_start_offset
    if not layout.segments:
        return end
    segment = layout.segments[-1]
    index = SegmentIndex(layout, segment)
    with index.windows(MAX_OFFSET, open_end=True) as windows:
        end = max(end, segment.base_offset)
        for _, _, table in windows.tables():
            end = max(end, table.cells("last_offset")[-1] + 1)
    return end
