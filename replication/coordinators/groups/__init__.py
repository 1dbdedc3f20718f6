"""Groups: members that share partitions, and the offsets that they commit.

Begin with ``coordinator``, the way in, then ``shard``. ``classic`` is the protocol of members,
``offsets`` has what they commit. See docs/groups.md.
"""

__all__ = ["classic", "config", "coordinator", "shard", "states"]
