"""Directories that another cluster wrote, taken over.

``cluster_metadata`` reads what the controllers of a KRaft cluster decided, ``kraft`` writes it, and
``found`` reads what lies in log directories. ``plan`` makes a cluster of both, and ``home`` the
directory of it with the coordinator's tree. ``adopting`` puts reading and planning together, and
changes nothing.
"""

from __future__ import annotations

from replication.adopt.adopting import plan_adoption
from replication.adopt.cluster_metadata import (
    TOPIC_RESOURCE,
    ClusterImage,
    TopicImage,
    electable,
    read_cluster_metadata,
)
from replication.adopt.found import expanded
from replication.adopt.home import (
    COORDINATOR,
    adopted_before,
    has_tree,
    make_home,
    read_home,
    write_tree,
)
from replication.adopt.kraft import metadata_dir, write_metadata_log
from replication.adopt.plan import AdoptedCluster, AdoptionRules
from replication.adopt.report import Adoption, Kind, Remark

__all__ = [
    "COORDINATOR",
    "TOPIC_RESOURCE",
    "AdoptedCluster",
    "Adoption",
    "AdoptionRules",
    "ClusterImage",
    "Kind",
    "Remark",
    "TopicImage",
    "adopted_before",
    "electable",
    "expanded",
    "has_tree",
    "make_home",
    "metadata_dir",
    "plan_adoption",
    "read_cluster_metadata",
    "read_home",
    "write_metadata_log",
    "write_tree",
]
