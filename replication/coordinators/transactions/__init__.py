"""The coordinator of transactions: which producer has a transactional id, which partitions its
transaction holds, and how it ends.

``state`` and ``transitions`` decide and change nothing. ``shard`` remembers and asks for effects.
``markers`` has the end of a transaction written into its partitions. See docs/transactions.md.
"""

__all__ = ["config", "coordinator", "records", "state", "transitions"]
