"""Replicas of one partition, compared below their high watermarks.

``replicas`` joins the digests, ``compare`` finds ranges that differ, ``range_diff`` reads those
again down to the record, ``verdict`` says which replica is wrong.
"""

__all__ = ["replicas"]
