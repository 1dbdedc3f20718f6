"""The columnar source without the JVM: its requests, asked in this process."""

from __future__ import annotations

import io
import socket
import struct
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from logstore.spark.columnar import AnswerKind, serve
from logstore.spark.filters import Microseconds

NAMES: dict[type[Filter], str] = {
    EqualTo: "=",
    EqualNullSafe: "<=>",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    StringStartsWith: "STARTS_WITH",
    StringEndsWith: "ENDS_WITH",
    StringContains: "CONTAINS",
}


class Refused(Exception):
    """The text of an ERROR answer."""


def number(value: int) -> bytes:
    return struct.pack(">i", value)


def block(value: bytes) -> bytes:
    return number(len(value)) + value


def text(value: str) -> bytes:
    return block(value.encode())


def texts(values: Sequence[str]) -> bytes:
    return number(len(values)) + b"".join(map(text, values))


def options(given: Mapping[str, str]) -> bytes:
    return number(len(given)) + b"".join(text(name) + text(v) for name, v in given.items())


def column(path: Sequence[str]) -> bytes:
    return number(ord("C")) + texts(path)


def literal(value: Any) -> bytes:
    if isinstance(value, Microseconds):
        return number(ord("L")) + text("timestamp") + text(str(value.value))
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return number(ord("?"))
        micros = (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        return number(ord("L")) + text("timestamp") + text(str(micros))
    kinds = {bool: "boolean", int: "bigint", str: "string", bytes: "binary", float: "double"}
    return number(ord("L")) + text(kinds[type(value)]) + text(str(value))


def call(name: str, *arguments: bytes) -> bytes:
    return number(ord("F")) + text(name) + number(len(arguments)) + b"".join(arguments)


def expression(condition: Filter) -> bytes:
    match condition:
        case Not(child):
            return call("NOT", expression(child))
        case IsNull(path):
            return call("IS_NULL", column(path))
        case IsNotNull(path):
            return call("IS_NOT_NULL", column(path))
        case In(path, values):
            return call("IN", column(path), *map(literal, values))
    plain: Any = condition
    return call(NAMES[type(condition)], column(plain.attribute), literal(plain.value))


def expressions(filters: Iterable[Filter]) -> bytes:
    encoded = [expression(condition) for condition in filters]
    return number(len(encoded)) + b"".join(encoded)


class Answered:
    """What came back, read on as the JVM reads it."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def number(self) -> int:
        found: int = struct.unpack(">i", self._data.read(4))[0]
        return found

    def block(self) -> bytes:
        return bytes(self._data.read(self.number()))

    def tasks(self) -> list[tuple[bytes, bytes]]:
        """Each, and what the JVM needs to read it itself."""
        return [(self.block(), self.block()) for _ in range(self.number())]

    def answer(self) -> AnswerKind:
        found = AnswerKind(self.number())
        if found is AnswerKind.ERROR:
            raise Refused(self.block().decode())
        return found

    def rows(self, micros: Sequence[str] = ()) -> tuple[list[dict[str, Any]], int]:
        """Of a task: those with columns, and how many there are with none."""
        schema, rows, bare = None, [], 0
        while (found := self.answer()) is not AnswerKind.END:
            if found is AnswerKind.ROWS:
                bare += self.number()
                continue
            schema = schema or pa.ipc.read_schema(pa.ipc.read_message(self._data))
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(self._data), schema)
            batch.validate(full=True)
            for name in micros:
                column = batch.column(name).cast(pa.int64())
                batch = batch.set_column(batch.schema.names.index(name), name, column)
            rows += batch.to_pylist()
        assert not self._data.read()
        return rows, bare


def ask(operation: str, *parts: bytes) -> Answered:
    """
    Raises:
        Refused: with what the JVM would say.
    """
    sink = io.BytesIO()
    serve(io.BytesIO(text(operation) + b"".join(parts)), sink)
    return Answered(pa.BufferReader(sink.getvalue()))


class Conversation:
    """The requests of one stream, until it is closed, as the JVM does."""

    def __init__(
        self, given: Mapping[str, str], schema: StructType, *, available_now: bool = False
    ) -> None:
        self._socket, theirs = socket.socketpair()
        self._source = self._socket.makefile("rb")
        self._worker = threading.Thread(target=self._serve, args=[theirs])
        self._worker.start()
        try:
            now = number(int(available_now))
            self.reader = self._ask("stream", options(given), text(schema.json()), now).block()
        except Refused:
            self.close()
            raise

    @staticmethod
    def _serve(theirs: socket.socket) -> None:
        with (
            theirs,
            theirs.makefile("rb") as source,
            theirs.makefile("wb") as sink,
            suppress(EOFError),
        ):
            serve(source, sink)

    def _ask(self, question: str, *parts: bytes) -> Answered:
        self._socket.sendall(text(question) + b"".join(parts))
        answered = Answered(self._source)
        answered.answer()
        return answered

    def initial(self) -> str:
        return self._ask("initial").block().decode()

    def next(self, start: str, *, limited: bool = False) -> tuple[str, str]:
        """The end of the next micro-batch, and the ends of the logs."""
        answered = self._ask("next", text(start), number(int(limited)))
        return answered.block().decode(), answered.block().decode()

    def rows(self, start: str, end: str) -> list[dict[str, Any]]:
        tasks = self._ask("plan", text(start), text(end), number(1)).tasks()
        read = (
            ask("read", block(self.reader), block(task), text("")).rows()[0] for task, _ in tasks
        )
        return [row for rows in read for row in rows]

    def behind(self, consumed: str) -> dict[str, str]:
        answered = self._ask("behind", text(consumed))
        return {
            answered.block().decode(): answered.block().decode() for _ in range(answered.number())
        }

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)
        self._worker.join()
        self._source.close()
        self._socket.close()


def exact(given: Mapping[str, str], schema: StructType, filters: Sequence[Filter]) -> list[bool]:
    found = ask("filters", options(given), text(schema.json()), expressions(filters))
    found.answer()
    return [bool(found.number()) for _ in filters]


def plan(
    given: Mapping[str, str],
    schema: StructType,
    required: StructType,
    filters: Sequence[Filter] = (),
    aggregates: Sequence[str] = (),
    limit: int = -1,
    order: str = "ANY",
) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """The reader, and each task with what the JVM needs to read it."""
    planned = ask(
        "plan",
        options(given),
        text(schema.json()),
        text(required.json()),
        texts(aggregates),
        number(limit),
        text(order),
        expressions(filters),
        number(1),
    )
    planned.answer()
    reader = planned.block()
    return reader, planned.tasks()


def query(
    given: Mapping[str, str],
    schema: StructType,
    required: StructType,
    filters: Sequence[Filter] = (),
    *,
    aggregates: Sequence[str] = (),
    limit: int = -1,
    order: str = "ANY",
    micros: Sequence[str] = (),
) -> tuple[list[dict[str, Any]], int]:
    """As ``Answered.rows``, of all tasks; ``micros``: timestamps to give as numbers."""
    reader, tasks = plan(given, schema, required, filters, aggregates, limit, order)
    rows, bare = [], 0
    for task, _ in tasks:
        found, more = ask("read", block(reader), block(task), text("")).rows(micros)
        rows += found
        bare += more
    return rows, bare
