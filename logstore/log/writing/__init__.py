"""The way of an append, in reading order: ``producing`` or ``extending``, then ``validation``
(decisions), ``writer`` (the file), ``state`` (what the WRITE lock guards), ``flushing`` (the disk),
``recent`` (the copy in memory that followers are served from).
"""

__all__ = [
    "extending",
    "flushing",
    "producing",
    "recent",
    "state",
    "validation",
    "writer",
]
