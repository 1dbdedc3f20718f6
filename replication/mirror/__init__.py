"""A mirror of a live Kafka: byte for byte, offset for offset, by READ rights alone.

A mirror is a log directory that a `LogManager` owns, and whose partitions follow those of the
source by the fetchers of a broker, only as a consumer (X-170). Begin with ``mirror``, which has the
life of all parts. ``watch`` looks at the topics of the ``source``; ``decisions`` says, as a pure
function, what follows from that, and ``following`` carries it out. ``follower`` is what a mirrored
partition does other than a broker's. What was not mirrored as it came is in the ``report``, and
``identity`` says whose mirror a directory is. ``promotion`` makes a cluster of it; ``endings``
decides how its open transactions end.
"""

from __future__ import annotations

from replication.mirror.config import MirrorConfig
from replication.mirror.endings import Ending, Why
from replication.mirror.errors import (
    MirrorRefusedError,
    SourceContradictsError,
    SourceUnreachableError,
)
from replication.mirror.identity import MIRROR_JSON, MirrorFile, MirrorIdentity, MirrorState
from replication.mirror.mirror import Mirror
from replication.mirror.promotion import Promotion, PromotionRules, promote
from replication.mirror.report import REPORT, MirrorEvent, MirrorEventKind, MirrorReport
from replication.mirror.server_properties import Listeners
from replication.mirror.status import MirroredStatus, MirrorStatus, PartitionState

__all__ = [
    "MIRROR_JSON",
    "REPORT",
    "Ending",
    "Listeners",
    "Mirror",
    "MirrorConfig",
    "MirrorEvent",
    "MirrorEventKind",
    "MirrorFile",
    "MirrorIdentity",
    "MirrorRefusedError",
    "MirrorReport",
    "MirrorState",
    "MirrorStatus",
    "MirroredStatus",
    "PartitionState",
    "Promotion",
    "PromotionRules",
    "SourceContradictsError",
    "SourceUnreachableError",
    "Why",
    "checking",
    "continuous_backup",
    "observing",
    "promote",
]
