"""The hot loops, twice: native, and in plain Python for machines without a build.

``LOGSTORE_KERNELS=native`` or ``=reference`` in the environment forces one; ``IMPLEMENTATION``
says which one is in use. ``LOGSTORE_CRC32C=portable`` keeps the native ones from the processor's
instructions for checksums. What each function promises is written in ``_reference.py``.
"""

from __future__ import annotations

import os
import warnings

from logstore.kernels._constants import (
    DECODE_END,
    DECODE_FULL,
    DECODE_LIMIT,
    DECODE_SPECIAL,
    HEADER_SIZE,
    PRODUCER_ROWS_MAX,
    RUN_END,
    RUN_FULL,
    RUN_SPECIAL,
    SCAN_BAD_CRC,
    SCAN_BAD_HEADER,
    SCAN_BAD_MAGIC,
    SCAN_BAD_OFFSET,
    SCAN_BAD_SIZE,
    SCAN_COLUMNS,
    SCAN_END,
    SCAN_FULL,
    SCAN_INCOMPLETE,
    SCAN_REASONS,
    SCAN_TAIL,
    BatchSurvey,
)

_wanted = os.environ.get("LOGSTORE_KERNELS", "")
if _wanted not in ("", "native", "reference"):
    raise ImportError(f"LOGSTORE_KERNELS={_wanted!r}: native and reference are possible")

IMPLEMENTATION = "native"
if _wanted != "reference":
    try:
        from logstore.kernels._append import AppendInfo, LogSnapshot, SegmentState
        from logstore.kernels._codec import (
            ColumnBuilder,
            Encoded,
            decode_records,
            decode_run,
            encode_columns,
            encode_lists,
            encode_records,
            seal_batch,
        )
        from logstore.kernels._compact import OffsetMap, RecordSieve
        from logstore.kernels._partition import partition_column
        from logstore.kernels._scan import (
            BatchAnalysis,
            RecoveryScan,
            analyse_batches,
            crc32,
            crc32c,
            decode_varint,
            decode_varlong,
            encode_varint,
            encode_varlong,
            scan_batches,
        )
        from logstore.kernels._times import late_batches
        from logstore.kernels._verify import (
            SequenceWatch,
            ascending_offset_entries,
            ascending_time_entries,
            fold_batches,
            match_offset_entries,
            match_time_entries,
            section_fits,
            survey_batches,
            unfit_batches,
        )
    except ImportError as error:
        if _wanted == "native":
            raise
        IMPLEMENTATION = "reference"
        # A worker that was handed the sources without the build would be slow and say nothing.
        warnings.warn(
            f"logstore runs without its native kernels, about a hundred times slower: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
else:
    IMPLEMENTATION = "reference"

if IMPLEMENTATION == "reference":
    from logstore.kernels._append_reference import (  # type: ignore[assignment]
        AppendInfo,
        LogSnapshot,
        SegmentState,
    )
    from logstore.kernels._compact_reference import (  # type: ignore[assignment]
        OffsetMap,
        RecordSieve,
    )
    from logstore.kernels._partition_reference import partition_column
    from logstore.kernels._reference import (  # type: ignore[assignment]
        BatchAnalysis,
        ColumnBuilder,
        Encoded,
        RecoveryScan,
        analyse_batches,
        crc32,
        crc32c,
        decode_records,
        decode_run,
        decode_varint,
        decode_varlong,
        encode_columns,
        encode_lists,
        encode_records,
        encode_varint,
        encode_varlong,
        scan_batches,
        seal_batch,
    )
    from logstore.kernels._times_reference import late_batches
    from logstore.kernels._verify_reference import (  # type: ignore[assignment]
        SequenceWatch,
        ascending_offset_entries,
        ascending_time_entries,
        fold_batches,
        match_offset_entries,
        match_time_entries,
        section_fits,
        survey_batches,
        unfit_batches,
    )

__all__ = [
    "DECODE_END",
    "DECODE_FULL",
    "DECODE_LIMIT",
    "DECODE_SPECIAL",
    "HEADER_SIZE",
    "IMPLEMENTATION",
    "PRODUCER_ROWS_MAX",
    "RUN_END",
    "RUN_FULL",
    "RUN_SPECIAL",
    "SCAN_BAD_CRC",
    "SCAN_BAD_HEADER",
    "SCAN_BAD_MAGIC",
    "SCAN_BAD_OFFSET",
    "SCAN_BAD_SIZE",
    "SCAN_COLUMNS",
    "SCAN_END",
    "SCAN_FULL",
    "SCAN_INCOMPLETE",
    "SCAN_REASONS",
    "SCAN_TAIL",
    "AppendInfo",
    "BatchAnalysis",
    "BatchSurvey",
    "ColumnBuilder",
    "Encoded",
    "LogSnapshot",
    "OffsetMap",
    "RecordSieve",
    "RecoveryScan",
    "SegmentState",
    "SequenceWatch",
    "analyse_batches",
    "ascending_offset_entries",
    "ascending_time_entries",
    "crc32",
    "crc32c",
    "decode_records",
    "decode_run",
    "decode_varint",
    "decode_varlong",
    "encode_columns",
    "encode_lists",
    "encode_records",
    "encode_varint",
    "encode_varlong",
    "fold_batches",
    "late_batches",
    "match_offset_entries",
    "match_time_entries",
    "partition_column",
    "scan_batches",
    "seal_batch",
    "section_fits",
    "survey_batches",
    "unfit_batches",
]
