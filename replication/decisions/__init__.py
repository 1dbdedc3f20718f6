"""The rules of replication as pure functions: who is in sync, where to truncate, whom to elect.

Nothing here has state or does I/O, so that the exhaustive check can run every interleaving of them.
"""
