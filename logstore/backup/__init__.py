"""Backups of log directories in an object store: made, checked, and brought back.

Begin with ``engine``, one run of a backup; ``check`` compares a store with its commits, and
``restoring`` makes a log directory of one. ``scan`` reads a segment of the source, ``writer`` puts
it, ``content`` is what a store has, and ``patience`` asks it again (docs/backup.md).
"""

from __future__ import annotations

from logstore.backup.check import StoreCheckOptions, StoreCheckReport, check_store
from logstore.backup.content import NoBackupError
from logstore.backup.engine import Backup, BackupOptions, BackupRefusedError
from logstore.backup.report import BackupFault, BackupFinding, BackupReport, PartitionResult
from logstore.backup.restoring import (
    DamagedObjectError,
    RestoredPartition,
    RestoreError,
    RestoreOptions,
    RestoreReport,
    restore,
)
from logstore.backup.writer import ReadBack

__all__ = [
    "Backup",
    "BackupFault",
    "BackupFinding",
    "BackupOptions",
    "BackupRefusedError",
    "BackupReport",
    "DamagedObjectError",
    "NoBackupError",
    "PartitionResult",
    "ReadBack",
    "RestoreError",
    "RestoreOptions",
    "RestoreReport",
    "RestoredPartition",
    "StoreCheckOptions",
    "StoreCheckReport",
    "check_store",
    "restore",
]
