"""A second, independent reader that checks everything a log directory holds (docs/verify.md).

It shares the definition of the format with the log, and none of its read path: a mistake in one is
not repeated in the other. ``verify`` takes paths and gives a `VerifyReport`; ``verify_segment`` is
the part that runs per segment, on any machine.
"""

from __future__ import annotations

from logstore.verify.common.report import Finding, PartitionReport, Severity, VerifyReport
from logstore.verify.run import Progress, verify
from logstore.verify.segment.scan import verify_segment
from logstore.verify.segment.segment_check import SegmentJob, SegmentResult, VerifyOptions

__all__ = [
    "Finding",
    "PartitionReport",
    "Progress",
    "SegmentJob",
    "SegmentResult",
    "Severity",
    "VerifyOptions",
    "VerifyReport",
    "common",
    "html",
    "partition",
    "plan",
    "replicas",
    "segment",
    "verify",
    "verify_segment",
]
