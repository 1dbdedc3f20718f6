"""Salvage what can be read of damaged log directories, or of several replicas of one.

``rescue`` is the way in. The parts; each knows only those before it:

========== =====================================================================================
ranges     runs of good batches, damage: plain values
patchy     files on a medium that refuses some of their bytes
survey     which batches of a file are good
placing    where they belong: offsets and epochs that no checksum covers
lineage    which leader epoch wrote which offsets
sources    the small files of the sources
replica    all files of one replica
choosing   which of several batches for the same offsets is taken
merging    one log out of all replicas, batch by batch
witnesses  doubtful batches, judged by copies of them in other replicas
writing    new segments
partition  one partition; ``directory``: all of them, and the result under its name
========== =====================================================================================

docs/rescue.md has the rules.
"""

from __future__ import annotations

from logstore.rescue.directory import rescue
from logstore.rescue.report import Gap, PartitionRescue, RescueReport, SetAside

__all__ = ["Gap", "PartitionRescue", "RescueReport", "SetAside", "rescue"]
