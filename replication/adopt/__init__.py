"""Directories that another cluster wrote, taken over.

``cluster_metadata`` reads what the controllers of a KRaft cluster decided, and ``found`` what lies
in log directories. ``plan`` makes a cluster of both, ``tree`` the coordinator's tree of that, and
``home`` the directory of it. ``adopting`` puts the first three together, and changes nothing.
"""

from __future__ import annotations

from replication.adopt.adopting import look
from replication.adopt.cluster_metadata import (
    ClusterImage,
    PartitionImage,
    TopicImage,
    read_cluster_metadata,
)
from replication.adopt.found import expanded
from replication.adopt.home import COORDINATOR, adopted_before, has_tree, make_home, read_home
from replication.adopt.plan import AdoptedCluster
from replication.adopt.report import Adoption, Remark
from replication.adopt.tree import write_tree

__all__ = [
    "COORDINATOR",
    "AdoptedCluster",
    "Adoption",
    "ClusterImage",
    "PartitionImage",
    "Remark",
    "TopicImage",
    "adopted_before",
    "expanded",
    "has_tree",
    "look",
    "make_home",
    "read_cluster_metadata",
    "read_home",
    "write_tree",
]
