"""Options for opening a damaged log, and the report of what was done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from logstore.common.json_fields import json_fields


@dataclass(frozen=True, slots=True)
class RecoveryOptions:
    """The treatment of damage.

    ``keep_cut`` says when to keep bytes that recovery removes from a log, as
    ``<segment>.log.<position>.cut``: ``"never"``, ``"always"``, or ``"valid"`` (default), which
    keeps them if they hold a whole valid batch, so that nothing good is lost without an operator's
    decision. ``contiguous`` also ends the scan at a gap between offsets, which is right only for a
    log that was never compacted. ``scan_all`` scans every segment, even after a clean stop and
    below the recovery point.
    """

    keep_cut: str = "valid"
    contiguous: bool = False
    scan_all: bool = False


@dataclass(slots=True)
class RecoveryReport:
    """Everything that opening one log did, in bytes, counts and seconds. ``actions`` are in order.

    Attributes:
        clean: the log was left by a clean stop, and the stop was trusted.
        clean_doubt: why a clean stop was not trusted; otherwise empty.
        bytes_cut: removed from the log: cut off a ``.log``, or with a whole segment.
        bytes_valid_behind_cut: how many of the bytes cut off a ``.log`` are whole batches with a
            matching checksum, the first cut batch included.
        bytes_set_aside: kept in ``.cut`` files: a part of ``bytes_cut``, and refused replacements.
        offsets_lost: ``(log end, recovery point or high watermark)`` if the log is now shorter than
            what was once flushed or committed, and no truncation explains it; otherwise None.
        epoch_falls: batches kept although their leader epoch is below the one before.
        segments_split: segments divided because their offsets span more than 2³¹−1.
        warnings: what an operator should look at: valid bytes that were removed, and sources that
            disagree.
    """

    directory: str
    clean: bool
    recovery_point: int = 0
    log_start_offset: int = 0
    log_end_offset: int = 0
    segments: int = 0
    segments_scanned: int = 0
    segments_split: int = 0
    bytes_scanned: int = 0
    batches_scanned: int = 0
    records_scanned: int = 0
    epoch_falls: int = 0
    bytes_cut: int = 0
    cut_reason: str = ""
    bytes_valid_behind_cut: int = 0
    bytes_set_aside: int = 0
    offsets_lost: tuple[int, int] | None = None
    clean_doubt: str = ""
    seconds: float = 0.0
    actions: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def has_findings(self) -> bool:
        """Whether something was cut, or a warning was given."""
        return bool(self.bytes_cut or self.warnings)

    def to_dict(self) -> dict[str, Any]:
        """As ``logstore recover --json`` prints it."""
        return json_fields(self)
