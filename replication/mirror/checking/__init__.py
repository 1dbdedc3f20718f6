"""A mirror, or a backup of one, beside its source: the same batches, byte for byte.

Begin with ``check``. ``partition_check`` compares one partition, ``source_batches`` has the batches
of the source as a consumer gets them, ``local_batches`` those of the files, ``report`` what was
found. No time stamp, checksum or index decides: the bytes of both sides lie side by side.
"""

from replication.mirror.checking.check import MirrorCheckOptions, check
from replication.mirror.checking.report import (
    DifferenceKind,
    MirrorCheckReport,
    OffsetDifference,
    PartitionComparison,
    Uncompared,
    UncomparedReason,
)

__all__ = [
    "DifferenceKind",
    "MirrorCheckOptions",
    "MirrorCheckReport",
    "OffsetDifference",
    "PartitionComparison",
    "Uncompared",
    "UncomparedReason",
    "check",
]
