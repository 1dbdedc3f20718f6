"""All partitions of a broker, for producers, consumers, followers and the controller.

``replica_manager`` is the facade; begin there. ``writes`` has produce requests, markers and
deletions. Fetches go through ``fetch_service``, ``fetch_contexts`` and ``fetch_reader``. A request
that cannot be answered yet waits in ``waiting``, in a ``purgatory``. ``role_changes`` carries out
orders of the controller. No lock is held during an answer.
"""

from __future__ import annotations

from replication.replica_manager.metadata_cache import MetadataCache
from replication.replica_manager.replica_manager import ReplicaManager

__all__ = [
    "MetadataCache",
    "ReplicaManager",
    "fetch_service",
    "metadata_cache",
    "purgatory",
    "replica_manager",
    "transaction_verification",
    "writes",
]
