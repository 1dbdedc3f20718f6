"""Replicas of one partition, compared below their high watermarks.

``replicas`` joins the digests, ``compare`` finds ranges that differ and says which replica is
wrong, ``range_diff`` reads those ranges again down to the record.
"""

__all__ = ["range_diff", "replicas"]
