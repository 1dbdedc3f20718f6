"""Every way to read a log.

``readers`` takes the log's snapshot and checks afterwards that it held; ``reading`` decides what a
read returns; ``iteration`` walks a whole log; ``following``, ``cursors`` and ``directory_reader``
wait for more.
"""

__all__ = ["cursors", "directory_reader", "following", "iteration", "readers", "reading"]
