"""Rows of an export as JSON Lines. Imports pyarrow."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from logstore.cli.records.columns import HEADERS, SCHEMA
from logstore.cli.records.input import BadInputError, parse_json

_ROWS = 4096
_LINE_BYTES_MAX = 64 << 20

_encode = json.JSONEncoder(separators=(",", ":")).encode


def json_lines(rows: pa.RecordBatch) -> bytes:
    """An object a line, as ``logstore read --json`` prints it, with the timestamp type."""
    return b"".join([_encode(record).encode("ascii") + b"\n" for record in _objects(rows)])


def _objects(rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    columns = [rows.column(name).to_pylist() for name in ("topic", "partition", "offset")] + [
        rows.column("timestamp").view(pa.int64()).to_pylist()
    ]
    rest = [rows.column(name).to_pylist() for name in ("timestampType", "key", "value", "headers")]
    for topic, partition, offset, timestamp, kind, key, value, headers in zip(
        *columns, *rest, strict=True
    ):
        yield {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "timestamp": timestamp,
            "timestampType": kind,
            "key": _text(key),
            "value": _text(value),
            "headers": [[each["key"], _text(each["value"])] for each in headers or ()],
        }


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


def read_json_rows(path: str) -> Iterator[pa.RecordBatch]:
    """
    Raises:
        BadInputError: a line is malformed; it names the line.
    """
    rows: list[tuple[Any, ...]] = []
    number = 0
    with open(path, "rb") as file:
        while line := file.readline(_LINE_BYTES_MAX):
            number += 1
            try:
                if not line.endswith(b"\n"):
                    raise BadInputError("ends in the middle")
                parsed = parse_json(line)
                if parsed is None:
                    raise BadInputError("a control record")
                rows.append((parsed, *_place_of(json.loads(line))))
            except BadInputError as error:
                raise BadInputError(f"line {number}: {error}") from None
            if len(rows) == _ROWS:
                yield _table(rows)
                rows = []
    if rows:
        yield _table(rows)


def _place_of(fields: dict[str, Any]) -> tuple[str, int, int, int]:
    topic = fields.get("topic")
    if not isinstance(topic, str) or not topic.isprintable():
        raise BadInputError("topic is no name")
    if not isinstance(fields.get("timestamp"), int):
        raise BadInputError("timestamp is no number of milliseconds")
    return (
        topic,
        _number(fields, "partition", 0, 2**31 - 1),
        _number(fields, "offset", 0, 2**63 - 1),
        _number(fields, "timestampType", -1, 1),
    )


def _number(fields: dict[str, Any], name: str, low: int, high: int) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise BadInputError(f"{name} is no number from {low} to {high}")
    return value


def _table(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    arrays = [
        pa.array([row[0].key for row in rows], pa.binary()),
        pa.array([row[0].value for row in rows], pa.binary()),
        pa.array([row[1] for row in rows], pa.string()),
        pa.array([row[2] for row in rows], pa.int32()),
        pa.array([row[3] for row in rows], pa.int64()),
        pa.array([row[0].timestamp for row in rows], pa.int64()).view(pa.timestamp("ms", "UTC")),
        pa.array([row[4] for row in rows], pa.int32()),
        pa.array(
            [[{"key": n, "value": v} for n, v in row[0].headers] or None for row in rows], HEADERS
        ),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
