"""The log manager: the logs of a set of directories, and the periodic work on them.

Begin with ``manager``, the calls of a user. ``loading`` is its start, ``log_dir`` one directory
with its lock and checkpoints, ``topics`` creates and deletes topics, ``opener`` opens and creates
their logs, and ``duties`` is the periodic work. Only ``directories`` says which logs are here: what
is found, registered or taken out goes through it.
"""

from logstore.manager.compaction import DirectoryOutcome, PartitionOutcome, compact_directory
from logstore.manager.loading import LastStop
from logstore.manager.log_dir import DirectoryContent, peek
from logstore.manager.manager import LogManager
from logstore.manager.opener import LoadProgress, ManagerOwner
from logstore.manager.topics import WantedLog

__all__ = [
    "DirectoryContent",
    "DirectoryOutcome",
    "LastStop",
    "LoadProgress",
    "LogManager",
    "ManagerOwner",
    "PartitionOutcome",
    "WantedLog",
    "compact_directory",
    "duties",
    "log_dir",
    "peek",
]
