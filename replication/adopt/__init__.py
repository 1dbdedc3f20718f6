"""Directories that another cluster wrote, taken over.

``cluster_metadata`` reads what the controllers of a KRaft cluster decided.
"""

from __future__ import annotations

from replication.adopt.cluster_metadata import (
    BrokerImage,
    ClusterImage,
    PartitionImage,
    TopicImage,
    read_cluster_metadata,
)

__all__ = [
    "BrokerImage",
    "ClusterImage",
    "PartitionImage",
    "TopicImage",
    "read_cluster_metadata",
]
