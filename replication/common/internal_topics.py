"""The topics in which coordinators keep their state, and where a key has its place in them."""

from __future__ import annotations

GROUP_METADATA = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
INTERNAL_TOPICS = frozenset({GROUP_METADATA, TRANSACTION_STATE})
SMALLEST_HASH = -(2**31)  # which has no absolute value in 32 bits


def java_hash(text: str) -> int:
    """``String.hashCode`` of Java: over UTF-16 units, as a signed number of 32 bits."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for(key: str, partitions: int) -> int:
    """The partition of a group or a transactional id in its internal topic (W-100)."""
    value = java_hash(key)
    return 0 if value == SMALLEST_HASH else abs(value) % partitions


def masked_partition_for(key: str, partitions: int) -> int:
    """The partition in which earlier versions put a key (W-100). It differs for
    hashes below 0 and more than two partitions."""
    return (java_hash(key) & 0x7FFFFFFF) % partitions
