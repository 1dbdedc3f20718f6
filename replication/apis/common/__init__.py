"""What several areas of the APIs share: what a handler is, refusals, waits, keys,
patterns, what a client may do.

Begin with ``handlers``.
"""

__all__ = [
    "addresses",
    "broker_requests",
    "config",
    "handlers",
    "operations",
    "patterns",
    "refusals",
    "topic_names",
    "waits",
]
