"""Export files in one of three formats, written whole or not at all, and read with all checks.

``FILE.sha256`` beside FILE, in the form of ``sha256sum``, shows whether the file is whole and
undamaged. Imports pyarrow.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from checkpoints.printable import printable
from logstore.cli.records.input import BadInputError, parse_json
from logstore.common.errors import LogstoreError

_GROUP_BYTES = 32 << 20  # bytes of rows that wait for the next row group
_PIECE = 1 << 20
_ROWS = 4096
_LINE_BYTES_MAX = 64 << 20
_DIGEST = re.compile(rb"\\?([0-9a-f]{64})  ")

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("ms", "UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS),
    ]
)
"""The columns of the Spark source. The timestamp is in milliseconds, as in the log, because Spark's
microseconds cannot hold every one.
"""

_NUMBERS = (("partition", 0, 2**31 - 1), ("offset", 0, 2**63 - 1), ("timestampType", -1, 1))
_encode = json.JSONEncoder(separators=(",", ":")).encode


class ExportFileError(LogstoreError):
    """An export file cannot be read or written."""


class Format(StrEnum):
    PARQUET = "parquet"
    ARROW = "arrow"
    JSONL = "jsonl"


class Writer(Protocol):
    def write(self, rows: pa.RecordBatch) -> None: ...

    def close(self) -> None: ...


class _ParquetWriter:
    """Collects rows for a row group, because the record batches of a log are small."""

    def __init__(self, path: str) -> None:
        self._writer = pq.ParquetWriter(
            path, SCHEMA, compression="zstd", version="2.6", write_page_checksum=True
        )
        self._waiting: list[pa.RecordBatch] = []
        self._size = 0

    def write(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._size += rows.nbytes
        if self._size >= _GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting))
        self._waiting, self._size = [], 0

    def close(self) -> None:
        self._write_group()
        self._writer.close()


class _ArrowWriter:
    def __init__(self, path: str) -> None:
        self._file = pa.OSFile(path, "wb")
        self._writer = pa.ipc.new_file(self._file, SCHEMA)

    def write(self, rows: pa.RecordBatch) -> None:
        self._writer.write_batch(rows)

    def close(self) -> None:
        self._writer.close()
        self._file.close()


class _JsonWriter:
    def __init__(self, path: str) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 - closed by close

    def write(self, rows: pa.RecordBatch) -> None:
        self._file.write(json_lines(rows))

    def close(self) -> None:
        self._file.close()


_WRITERS: dict[Format, Callable[[str], Writer]] = {
    Format.PARQUET: _ParquetWriter,
    Format.ARROW: _ArrowWriter,
    Format.JSONL: _JsonWriter,
}


class Export:
    """A file that gets its name when it is complete. ``rows`` is how many were written."""

    def __init__(self, path: str, form: Format) -> None:
        self._path, self._form = path, form
        self.temporary = f"{path}.{os.getpid()}.part"
        self.rows = 0
        self._writer: Writer = _WRITERS[form](self.temporary)

    def write(self, rows: pa.RecordBatch) -> None:
        self._writer.write(rows)
        self.rows += rows.num_rows

    def finish(self, *, overwrite: bool) -> None:
        """Make the file durable, count its rows again, and rename it to its name.

        Raises:
            ExportFileError: it does not hold what was written, or the name is now taken.
        """
        self._writer.close()
        _sync(self.temporary)
        held = count_rows(self.temporary, self._form)
        if held != self.rows:
            reason = f"{held} rows can be read back, {self.rows} were written"
            raise ExportFileError(f"{printable(self._path)}: {reason}")
        digest = sha256_of(self.temporary)
        _publish(self.temporary, self._path, overwrite=overwrite)
        _write_digest(self._path, digest)

    def discard(self) -> None:
        """Remove the unfinished file. Does nothing after ``finish``."""
        with suppress(OSError, pa.ArrowException):
            self._writer.close()
        with suppress(OSError):
            os.unlink(self.temporary)


@contextmanager
def exporting(path: str, form: Format) -> Iterator[Export]:
    """
    Raises:
        OSError: the file cannot be written.
    """
    export = Export(path, form)
    try:
        yield export
    finally:
        export.discard()


def _publish(temporary: str, path: str, *, overwrite: bool) -> None:
    if overwrite:
        with suppress(FileNotFoundError):
            os.unlink(digest_path(path))  # the old file's digest must not stay
        os.replace(temporary, path)
    else:
        try:
            os.link(temporary, path)  # fails if the name is now taken, unlike a rename
        except FileExistsError:
            raise ExportFileError(
                f"{printable(path)} was created by something else during the export"
            ) from None
    _sync_dir(path)


def _write_digest(path: str, digest: str) -> None:
    name = os.path.basename(path)
    escaped = name.replace("\\", "\\\\").replace("\n", "\\n")
    mark = "" if escaped == name else "\\"  # as sha256sum does
    line = f"{mark}{digest}  {escaped}\n"
    target, temporary = digest_path(path), f"{digest_path(path)}.{os.getpid()}.part"
    try:
        with open(temporary, "wb") as file:
            file.write(os.fsencode(line))
        _sync(temporary)
        os.replace(temporary, target)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
    _sync_dir(target)


def digest_path(path: str) -> str:
    return path + ".sha256"


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_dir(path: str) -> None:
    _sync(os.path.dirname(os.path.abspath(path)))


# -- reading ---------------------------------------------------------------------------------------


def sha256_of(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def check_digest(path: str) -> None:
    """
    Raises:
        ExportFileError: the file is not the exported one, or has no digest.
    """
    try:
        with open(digest_path(path), "rb") as file:
            match = _DIGEST.match(file.read(4096))
    except FileNotFoundError:
        reason = "is missing, so the file may not be whole (--unchecked takes it all the same)"
        raise ExportFileError(f"{printable(digest_path(path))} {reason}") from None
    if match is None:
        raise ExportFileError(f"{printable(digest_path(path))} holds no SHA-256")
    if sha256_of(path) != match.group(1).decode():
        raise ExportFileError(
            f"{printable(path)} is damaged or not whole: its SHA-256 is not that of "
            f"{printable(digest_path(path))}"
        )


def count_rows(path: str, form: Format) -> int:
    if form is Format.JSONL:
        with open(path, "rb") as file:
            return sum(piece.count(b"\n") for piece in iter(lambda: file.read(_PIECE), b""))
    if form is Format.PARQUET:
        with pq.ParquetFile(path) as parquet:
            return int(parquet.metadata.num_rows)
    return sum(rows.num_rows for rows in read_rows(path, form))


def read_rows(path: str, form: Format) -> Iterator[Any]:
    """Yield record batches of ``SCHEMA``. Memory does not grow with the file.

    Raises:
        ExportFileError: the file is damaged or lacks a column.
    """
    try:
        match form:
            case Format.PARQUET:
                yield from _parquet_rows(path)
            case Format.ARROW:
                yield from _arrow_rows(path)
            case _:
                yield from read_json_rows(path)
    except BadInputError as error:
        raise ExportFileError(f"{printable(path)}: {error}") from None
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
            raise
        raise ExportFileError(f"{printable(path)} is damaged: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _parquet_rows(path: str) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        _check_schema(path, file.schema_arrow)
        for group in range(file.num_row_groups):  # all at once would stay in memory
            yield from file.iter_batches(_ROWS, row_groups=[group], columns=SCHEMA.names)


def _arrow_rows(path: str) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(path, "rb") as file, pa.ipc.open_file(file) as reader:
        _check_schema(path, reader.schema)
        for number in range(reader.num_record_batches):
            rows = reader.get_batch(number)
            rows.validate(full=True)
            yield rows.select(SCHEMA.names)


def _check_schema(path: str, schema: pa.Schema) -> None:
    for field in SCHEMA:
        at = schema.get_field_index(field.name)
        if at < 0:
            raise ExportFileError(f"{printable(path)} has no column {field.name}")
        kind = schema.field(at).type
        same = kind.equals(field.type) or (
            field.name == "headers" and _is_headers(kind)  # parquet names the elements otherwise
        )
        if not same:
            reason = f"column {field.name} is {kind}, not {field.type}"
            raise ExportFileError(f"{printable(path)}: {reason}")


def _is_headers(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) and kind.value_type.equals(HEADERS.value_type))


# -- JSON Lines ------------------------------------------------------------------------------------


def json_lines(rows: pa.RecordBatch) -> bytes:
    """An object a line, as ``logstore read --json`` prints it, with the timestamp type."""
    return b"".join([_encode(record).encode("ascii") + b"\n" for record in _objects(rows)])


def _objects(rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    columns["timestamp"] = columns["timestamp"].view(pa.int64())
    values = (columns[name].to_pylist() for name in SCHEMA.names)
    for key, value, topic, partition, offset, timestamp, kind, headers in zip(*values, strict=True):
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
    rows: list[dict[str, Any]] = []
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
                pairs = [{"key": name, "value": value} for name, value in parsed.headers]
                rows.append(
                    {
                        **_place_of(json.loads(line)),
                        "key": parsed.key,
                        "value": parsed.value,
                        "timestamp": parsed.timestamp,
                        "headers": pairs or None,
                    }
                )
            except BadInputError as error:
                raise BadInputError(f"line {number}: {error}") from None
            if len(rows) == _ROWS:
                yield pa.RecordBatch.from_pylist(rows, SCHEMA)
                rows = []
    if rows:
        yield pa.RecordBatch.from_pylist(rows, SCHEMA)


def _place_of(fields: dict[str, Any]) -> dict[str, Any]:
    topic = fields.get("topic")
    if not isinstance(topic, str) or not topic.isprintable():
        raise BadInputError("topic is no name")
    if not isinstance(fields.get("timestamp"), int):
        raise BadInputError("timestamp is no number of milliseconds")
    numbers = {name: _number(fields, name, low, high) for name, low, high in _NUMBERS}
    return {"topic": topic, **numbers}


def _number(fields: dict[str, Any], name: str, low: int, high: int) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise BadInputError(f"{name} is no number from {low} to {high}")
    return value
