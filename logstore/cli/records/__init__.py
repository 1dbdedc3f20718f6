"""Records on their way between a log and a pipe or a file: for read, append, export and import, and
those of a running cluster.

Begin with ``reading``, which needs no lock, and ``loading``, which writes. ``format`` and
``input`` turn records into text and back, ``columns`` and ``files`` into rows of a file;
``output`` and ``batching`` write them. ``table`` asks Spark to.
"""

__all__ = [
    "batching",
    "files",
    "format",
    "input",
    "loading",
    "output",
    "positions",
    "reading",
    "table",
]
