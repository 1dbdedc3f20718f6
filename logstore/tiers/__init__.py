"""Segments in an object store: the seam to a store, the names and formats of what lies there, and
the view of it as a log directory.

Begin with ``object_store`` and ``manifest``.
"""

from __future__ import annotations

from logstore.tiers.errors import (
    BrokenTierError,
    MalformedManifestError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreDeniedError,
    StoreError,
    StoreThrottledError,
    StoreUnavailableError,
)
from logstore.tiers.keys import SegmentKey
from logstore.tiers.manifest import (
    BackupCommit,
    PartitionBackup,
    SegmentFacts,
    SegmentManifest,
    StoredSegment,
    TopicBackup,
)
from logstore.tiers.object_store import (
    LocalObjectStore,
    MemoryObjectStore,
    ObjectStore,
    StoredObject,
    open_store,
)
from logstore.tiers.view import TierStorage

__all__ = [
    "BackupCommit",
    "BrokenTierError",
    "LocalObjectStore",
    "MalformedManifestError",
    "MemoryObjectStore",
    "ObjectExistsError",
    "ObjectNotFoundError",
    "ObjectStore",
    "PartitionBackup",
    "SegmentFacts",
    "SegmentKey",
    "SegmentManifest",
    "StoreDeniedError",
    "StoreError",
    "StoreThrottledError",
    "StoreUnavailableError",
    "StoredObject",
    "StoredSegment",
    "TierStorage",
    "TopicBackup",
    "chunks",
    "keys",
    "manifest",
    "open_store",
]
