"""The way of an append, in reading order: ``producing`` or ``extending``, then ``validation``
and ``producer_checks`` (decisions), ``writer`` (the file), ``flushing`` (the disk), ``recent``
(the copy in memory that followers are served from).
"""

__all__ = [
    "extending",
    "flushing",
    "producing",
    "recent",
    "validation",
    "writer",
]
