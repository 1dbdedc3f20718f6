"""The hot loops, in native code that needs no GIL.

Begin with the stubs (``_scan.pyi`` and the others), which say what each function promises.
``tests/reference`` has the same functions in plain Python, as the oracle of their tests: change
both. Bytes are hostile here, and a length is read once and compared with the end of the buffer.
``LOGSTORE_CRC32C=portable`` computes checksums without the processor's CRC instructions.
"""

from __future__ import annotations

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
    timestamp_ms,
)

try:
    from logstore.kernels._append import (
        AppendInfo,
        AppendState,
        EpochCell,
        ListenerCell,
        LogCell,
        LogSnapshot,
        SegmentState,
        WriteLock,
    )
    from logstore.kernels._codec import (
        ColumnBuilder,
        Encoded,
        ReadBounds,
        RecordCount,
        decode_records,
        decode_run,
        encode_columns,
        encode_lists,
        encode_records,
        partition_column,
        seal_batch,
    )
    from logstore.kernels._compact import OffsetMap, RecordSieve
    from logstore.kernels._directory import read_small, scan_directory
    from logstore.kernels._scan import (
        BatchAnalysis,
        RecoveryScan,
        analyse_batches,
        crc32,
        crc32c,
        encode_varint,
        encode_varlong,
        scan_batches,
    )
    from logstore.kernels._verify import (
        SequenceWatch,
        ascending_offset_entries,
        ascending_time_entries,
        fits_in_section,
        fold_batches,
        irregular_batches,
        match_offset_entries,
        match_time_entries,
        survey_batches,
    )
    from logstore.kernels._window import MappedWindow, ReadWindow
except ImportError as error:
    raise ImportError(
        f"logstore has no native kernels for this Python here: {error}. Install a wheel, or build "
        "them where the sources are: python setup.py build_ext --inplace"
    ) from error

__all__ = [
    "DECODE_END",
    "DECODE_FULL",
    "DECODE_LIMIT",
    "DECODE_SPECIAL",
    "HEADER_SIZE",
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
    "AppendState",
    "BatchAnalysis",
    "BatchSurvey",
    "ColumnBuilder",
    "Encoded",
    "EpochCell",
    "ListenerCell",
    "LogCell",
    "LogSnapshot",
    "MappedWindow",
    "OffsetMap",
    "ReadBounds",
    "ReadWindow",
    "RecordCount",
    "RecordSieve",
    "RecoveryScan",
    "SegmentState",
    "SequenceWatch",
    "WriteLock",
    "analyse_batches",
    "ascending_offset_entries",
    "ascending_time_entries",
    "crc32",
    "crc32c",
    "decode_records",
    "decode_run",
    "encode_columns",
    "encode_lists",
    "encode_records",
    "encode_varint",
    "encode_varlong",
    "fits_in_section",
    "fold_batches",
    "irregular_batches",
    "match_offset_entries",
    "match_time_entries",
    "partition_column",
    "read_small",
    "scan_batches",
    "scan_directory",
    "seal_batch",
    "survey_batches",
    "timestamp_ms",
]
