"""State that lives in internal topics: groups and their offsets, transactions.

Shards are pure state machines; ``runtime`` alone knows the broker. Begin with ``effects``: what
a shard is given, and what it asks for.
"""

__all__ = ["coordinator", "effects", "groups", "runtime", "transactions"]
