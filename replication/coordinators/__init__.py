"""State that lives in internal topics: groups and their offsets, transactions.

Shards are pure state machines; ``runtime`` and ``coordinator`` alone know the broker. Begin with
``effects``: what a shard is given, and what it asks for. Requests and answers are messages of
``replication.protocol``; a shard must not wait, look at a clock or touch a log.
"""

__all__ = ["coordinator", "effects", "groups", "runtime", "transactions", "verification"]
