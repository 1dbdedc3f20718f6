"""The shared part of the areas of the APIs: handlers, refusals, waits, keys, patterns.

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
