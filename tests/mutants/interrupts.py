"""Broken logs, each with one thing left out that an interrupt needs."""

from __future__ import annotations

from typing import Any

from logstore.log.maintenance import LogMaintenance
from logstore.log.partition_log import PartitionLog
from logstore.log.writing.flushing import LogFlusher
from logstore.log.writing.writer import LogWriter
from tests.mutants import MonkeyPatch, mutant


def _bare(patch: MonkeyPatch, owner: Any, name: str) -> None:
    patch.setattr(owner, name, getattr(owner, name).__wrapped__)


@mutant(interrupts="PartitionLog.roll")
def a_roll_is_not_shielded(patch: MonkeyPatch) -> None:
    _bare(patch, LogFlusher, "roll")


@mutant(interrupts="PartitionLog.truncate_to")
def a_truncation_is_not_shielded(patch: MonkeyPatch) -> None:
    _bare(patch, LogMaintenance, "truncate_to")


@mutant(interrupts="PartitionLog.close")
def a_close_is_not_shielded(patch: MonkeyPatch) -> None:
    _bare(patch, PartitionLog, "close")


@mutant(interrupts="LogProducer.append")
def what_was_written_is_not_taken_over(patch: MonkeyPatch) -> None:
    patch.setattr(LogWriter, "_finish_locked", lambda self, updates: None)


@mutant(interrupts="PartitionLog.append, that rolls")
def every_append_counts_as_repeatable(patch: MonkeyPatch) -> None:
    patch.setattr(LogWriter, "_repeats_locked", lambda *_: True)
