"""What opening a log is asked to do with damage, and what it tells of its work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from logstore.common.json_fields import json_fields


@dataclass(frozen=True, slots=True)
class RecoveryOptions:
    """``keep_cut``: what to do with bytes that recovery takes out of a log.

    ``"never"``, ``"always"``, or ``"valid"`` (default): keep them aside, as
    ``<segment>.log.<position>.cut``, when a whole valid batch is among them, so that nothing good
    is lost without an operator's word. ``contiguous`` also ends the scan at a gap between offsets,
    which only a log that was never compacted can promise. ``scan_all`` takes no clean stop
    and no recovery point for granted: every segment is scanned.
    """

    keep_cut: str = "valid"
    contiguous: bool = False
    scan_all: bool = False


@dataclass(slots=True)
class RecoveryReport:
    """Everything that opening one log did. Bytes, counts and seconds; ``actions`` in order.

    Attributes:
        clean: the log was left by a clean stop, and was believed to be.
        clean_doubt: why a clean stop was not believed; else empty.
        bytes_cut: taken out of the log: cut off a ``.log``, or with a whole segment.
        bytes_valid_behind_cut: of what was cut off a ``.log``, bytes of whole batches whose
            checksum matches, the first one cut included.
        bytes_set_aside: kept in ``.cut`` files: of ``bytes_cut``, and replacements that were not
            believed.
        offsets_lost: ``(log end, recovery point)`` when the log comes out shorter than what was
            flushed once, unless a truncation made it so; else None.
        epoch_falls: batches kept although their leader epoch is below the one before.
        segments_split: segments divided because their offsets span more than 2³¹−1.
        warnings: what an operator should look at: whatever valid was taken out, and where two
            sources disagreed.
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
        """Whether something was cut, or an operator should look at something."""
        return bool(self.bytes_cut or self.warnings)

    def to_dict(self) -> dict[str, Any]:
        """As ``logstore recover --json`` prints it."""
        return json_fields(self)
