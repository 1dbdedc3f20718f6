"""The log manager: which logs there are, and who cares for them."""

from logstore.manager.compaction import DirectoryOutcome, PartitionOutcome, compact_directory
from logstore.manager.manager import LoadProgress, LogManager

__all__ = [
    "DirectoryOutcome",
    "LoadProgress",
    "LogManager",
    "PartitionOutcome",
    "compact_directory",
]
