"""Bytes <-> values of every file in a log directory. No I/O, no clock.

``filenames``, ``batch`` (headers and encoding), ``control``, ``compression``, ``legacy`` (magic 0
and 1), ``index_entry`` and ``producer_snapshot``; ``reader`` turns batches of any magic and codec
into records. Faults in bytes are ``CorruptDataError``s with an empty path and a position in the
buffer; callers add the file with ``located``.
"""

__all__ = [
    "arrow",
    "attributes",
    "batch",
    "codecs",
    "control",
    "filenames",
    "header",
    "index_entry",
    "legacy",
    "producer_snapshot",
    "reader",
]
