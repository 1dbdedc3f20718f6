"""Commands of ``logstore`` that belong to replication."""
