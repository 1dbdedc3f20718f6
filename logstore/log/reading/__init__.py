"""Every way to read a log.

``snapshot_reader`` takes the log's snapshot and checks afterwards that it held; ``fetching``
decides what a read returns; ``iteration`` walks a whole log; ``following``, ``cursors`` and
``directory_reader`` wait for more.
"""

__all__ = ["cursors", "directory_reader", "fetching", "following", "iteration", "snapshot_reader"]
