"""Messages, error codes, state, and the seams for transport and threads.

Begin with ``messages``, then ``transport`` and ``runtime``, which a simulation replaces. Brokers
exchange messages within one process only, so their fields may change; the numbers of
``error_codes`` are Kafka's and may not.
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
