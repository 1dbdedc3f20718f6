"""Salvage what can be read of damaged log directories, or of several replicas of one.

``rescue`` is the way in. The parts; each knows only those before it:

========== =====================================================================================
placing    runs of good batches, and where they belong: offsets and epochs without a checksum
survey     which batches of a file are good, on a medium that refuses some bytes
lineage    which leader epoch wrote which offsets
sources    the small files of the sources
replica    all files of one replica
merging    one log out of all replicas, batch by batch
witnesses  doubtful batches, judged by copies of them in other replicas
partition  one partition; ``directory``: all of them, and the result under its name
========== =====================================================================================

docs/rescue.md has the rules.
"""

from __future__ import annotations

from logstore.rescue.directory import rescue
from logstore.rescue.report import Gap, PartitionRescue, RescueReport, SetAside

__all__ = ["Gap", "PartitionRescue", "RescueReport", "SetAside", "rescue"]
