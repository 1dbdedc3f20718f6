"""The rules of replication as pure functions.

``isr`` moves the high watermark, ``truncation`` says where a follower cuts its log, ``election``
chooses a leader, ``replica_selector`` the replica that a consumer reads from, ``strays`` the logs
that have no place any more. Nothing here has state or does I/O, so that the exhaustive check can
run every interleaving of them.
"""

__all__ = ["election", "isr", "replica_selector", "strays", "truncation"]
