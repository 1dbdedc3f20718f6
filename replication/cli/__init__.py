"""Commands of ``logstore`` that belong to replication, one module for each.

They are found as entry points, so no other room imports them.
"""

__all__ = []
