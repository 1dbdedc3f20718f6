"""Read log directories that another process writes, ours or a Kafka broker, by their files alone.

No lock is taken, nothing is written, and no code of the log itself is used. Begin with ``layout``,
which goes from paths to partitions, and ``windows``, which reads a segment piece by piece;
``splits`` are the parts that a task reads. Indexes and snapshots are hints here: what they say
counts only where the ``.log`` confirms it. ``columns``, ``rows`` and ``split_reader`` need pyarrow,
the other modules do not. Nothing here may import ``log``,
``recovery`` or ``segments``, beyond the few modules that all readers share.
"""

__all__ = [
    "columns",
    "errors",
    "layout",
    "listing",
    "planning",
    "positions",
    "rows",
    "segment_index",
    "split_reader",
    "splits",
    "tiered",
    "transactions",
    "windows",
]
