"""What both sides of a request share: messages, error codes, state, and the seams for transport and
threads.

Begin with ``messages``, then ``transport`` and ``runtime``, which a simulation replaces.
"""

__all__ = [
    "addresses",
    "background",
    "config",
    "error_codes",
    "errors",
    "gathering",
    "internal_topics",
    "limited_log",
    "messages",
    "quota",
    "retrying",
    "runtime",
    "state",
    "topic_configs",
    "transport",
]
