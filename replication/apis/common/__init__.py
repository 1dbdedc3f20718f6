"""What several areas of the APIs share: what a handler is, refusals, waits, keys.

Begin with ``handlers``.
"""

__all__ = [
    "addresses",
    "batches",
    "broker_requests",
    "config",
    "handlers",
    "refusals",
    "topic_names",
    "waits",
]
