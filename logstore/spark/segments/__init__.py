"""Segments as the data source reads them: indexes, windows, the log's end, aborted transactions.

Begin with ``windows``, which reads a segment piece by piece. Batch reads and streams both use
it.
"""

__all__ = [
    "batch_table",
    "log_end",
    "opened",
    "positions",
    "segment_index",
    "transactions",
    "windows",
]
