"""A verification as Arrow tables, with null for unknown values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from logstore.verify import VerifyReport
from logstore.verify.common.report import UNKNOWN, Finding, Severity

_COUNTS = ("segments", "bytes", "batches", "records", "log_start_offset", "log_end_offset")
_OFFSETS = ("high_watermark", "recovery_point", "compared_from", "compared_end")
_TIME = pa.timestamp("us", tz="UTC")
_FINDINGS = pa.schema(
    [
        pa.field("severity", pa.string(), nullable=False),
        pa.field("rule", pa.string(), nullable=False),
        pa.field("broker", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("segment", pa.int64()),
        pa.field("position", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("file", pa.string(), nullable=False),
        pa.field("message", pa.string(), nullable=False),
    ]
)
_PARTITIONS = pa.schema(
    [
        pa.field("broker", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("directory", pa.string(), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in _COUNTS),
        *(pa.field(name, pa.int64()) for name in _OFFSETS),
        pa.field("min_timestamp", _TIME),
        pa.field("max_timestamp", _TIME),
        pa.field("fingerprint", pa.string()),
    ]
)


def findings_table(report: VerifyReport) -> pa.Table:
    names = {"segment": "segment_base"}
    unusable = [
        Finding(Severity.ERROR, "unusable", line.partition(": ")[0], line)
        for line in report.unusable
    ]
    return _table([*report.findings, *unusable], _FINDINGS, names)


def partitions_table(report: VerifyReport) -> pa.Table:
    return _table(report.partitions, _PARTITIONS, {})


def _table(rows: Sequence[Any], schema: pa.Schema, names: dict[str, str]) -> pa.Table:
    return pa.table(
        [
            pa.array(_column(rows, names.get(field.name, field.name), field), field.type)
            for field in schema
        ],
        schema=schema,
    )


def _column(rows: Iterable[Any], name: str, field: pa.Field) -> list[Any]:
    values = (getattr(row, name) for row in rows)
    if not field.nullable:
        return [str(value) if pa.types.is_string(field.type) else value for value in values]
    scale = 1000 if field.type == _TIME else 1
    if pa.types.is_string(field.type):
        return [value or None for value in values]
    return [None if value == UNKNOWN else value * scale for value in values]


__all__ = ["findings_table", "partitions_table"]
