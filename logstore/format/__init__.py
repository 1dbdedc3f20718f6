"""Bytes <-> values of every file in a log directory. No clock, no storage.

``filenames``, ``batch`` (headers and encoding), ``control``, ``compression``, ``legacy`` (magic 0
and 1), ``index_entry`` and ``producer_snapshot``; ``reader`` turns batches of any magic and codec
into records. Three modules look at an open file in pieces, whatever is in it: ``batch_search``
finds whole batches, ``large_batch`` and ``second_opinion`` check checksums. Faults in bytes are
``CorruptDataError``s with an empty path and a position in the buffer; callers add the file with
``located``.
"""

__all__ = [
    "arrow",
    "attributes",
    "batch",
    "batch_search",
    "codecs",
    "control",
    "filenames",
    "header",
    "index_entry",
    "large_batch",
    "legacy",
    "producer_snapshot",
    "reader",
    "second_opinion",
]
