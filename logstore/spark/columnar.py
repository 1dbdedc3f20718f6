"""The Python side of the columnar source, which runs in the JVM (docs/spark.md).

A request names an operation and carries all that it needs; no state is kept between requests. That
of a stream is a conversation, which lasts as long as the query or until the first error.
``java/logstore/Request.java`` and ``Worker.java`` are the JVM's side of the format: big-endian
int32 numbers, and texts and bytes after their length.
"""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import chain, groupby, repeat
from typing import Any, BinaryIO, TypeAlias

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
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from logstore.common.errors import LogstoreError
from logstore.directory.columns import SplitColumns
from logstore.directory.rows import Extreme, RowSummary
from logstore.directory.split_reader import Checks, count_splits, read_splits, summarize_splits
from logstore.directory.splits import ReadSettings, Split
from logstore.directory.transactions import MarkerCheck
from logstore.spark.columns import ddl
from logstore.spark.data_source import BatchReader, arrow_schema, read_options
from logstore.spark.filters import Microseconds, PushedFilters
from logstore.spark.native_plan import native_plan
from logstore.spark.options import Options, chosen_columns
from logstore.spark.planning import ReadTask, TopOffsets
from logstore.spark.stream.stream import LogstoreStreamReader, stream_reader

_INT = struct.Struct(">i")
_SIZE_MAX = 1 << 30
_NO_LIMIT = -1
_ANY_ORDER, _HIGHEST = "ANY", "HIGHEST_OFFSETS"


class AnswerKind(IntEnum):
    """The first number of an answer, and of each part of one to ``read``."""

    END = 0
    """The end of the answer to ``read``. For other operations the result follows."""
    BATCH = 1
    """A message of Arrow's stream format, the first one with its schema before it."""
    ROWS = 2
    """A number of rows without a column."""
    ERROR = 3
    """A text."""


@dataclass(frozen=True, slots=True)
class TaskReader:
    """The reader of each task of a query.

    The last columns of ``schema`` are ``aggregates``, if there are any, for each value of the
    columns before them. A task gives at most ``limit`` rows, or so many ``of_each_log``; −1 means
    no limit.
    """

    settings: ReadSettings
    schema: pa.Schema
    aggregates: tuple[str, ...]
    limit: int
    of_each_log: bool


# ---- messages ----------------------------------------------------------------------------------


class Wire:
    """Both directions of one request.

    Raises:
        EOFError: the other side has gone.
    """

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source, self.sink = source, sink

    def number(self) -> int:
        value: int = _INT.unpack(self._exactly(_INT.size))[0]
        return value

    def block(self) -> bytes:
        size = self.number()
        if not 0 <= size <= _SIZE_MAX:
            raise ValueError(f"a size of {size} in a request")
        return self._exactly(size)

    def text(self) -> str:
        return self.block().decode()

    def texts(self) -> list[str]:
        return [self.text() for _ in range(self.number())]

    def options(self) -> dict[str, str]:
        return {self.text(): self.text() for _ in range(self.number())}

    def schema(self) -> StructType:
        return StructType.fromJson(json.loads(self.text()))

    def json(self) -> Any:
        return json.loads(self.text())

    def filters(self) -> list[Filter | None]:
        """The filters; ``None`` for one that cannot be evaluated here."""
        found = [self._expression() for _ in range(self.number())]
        return [each if isinstance(each, Filter) else None for each in found]

    def _exactly(self, size: int) -> bytes:
        data = self._source.read(size)
        if len(data) < size:
            raise EOFError
        return data

    def _expression(self) -> Expression:
        match chr(self.number()):
            case "C":
                return tuple(self.texts())
            case "L":
                return _literal(self.text(), self.text())
            case "F":
                name = self.text()
                return _filter(name, [self._expression() for _ in range(self.number())])
        return None

    def put(self, *values: int | str | bytes) -> None:
        for value in values:
            if isinstance(value, int):
                self.sink.write(_INT.pack(value))
                continue
            data = value.encode(errors="replace") if isinstance(value, str) else value
            self.sink.write(_INT.pack(len(data)))
            self.sink.write(data)


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer one request.

    Raises:
        EOFError: there was no request.
        OSError: the connection is closed.
    """
    wire = Wire(source, sink)
    operation = wire.text()
    try:
        _OPERATIONS[operation](wire)
    except (BrokenPipeError, ConnectionResetError, EOFError):
        raise
    except Exception as error:
        known = isinstance(error, LogstoreError)
        wire.put(AnswerKind.ERROR, str(error) if known else f"{type(error).__name__}: {error}")
    sink.flush()


# ---- operations --------------------------------------------------------------------------------


def _schema(wire: Wire) -> None:
    """Options; the columns as DDL."""
    given = wire.options()
    wire.put(AnswerKind.END, ddl(*chosen_columns(Options(given))))


def _exact_filters(wire: Wire) -> None:
    """Takes options, the schema and filters.

    Answers for each filter whether it then holds for every row.
    """
    options, schema, wanted = wire.options(), wire.schema(), wire.filters()
    reader = BatchReader(read_options(options, note=False), schema)
    exact = [_push(reader.filters, condition) for condition in wanted]
    wire.put(AnswerKind.END, *map(int, exact))


def _plan(wire: Wire) -> None:
    """As ``Requests.plan`` sends it.

    Answers with a ``TaskReader``, and for each task a ``ReadTask``, pickled, and what the JVM needs
    to read it itself.
    """
    options, schema, required = wire.options(), wire.schema(), wire.schema()
    aggregates, limit, order, wanted = wire.texts(), wire.number(), wire.text(), wire.filters()
    in_jvm = bool(wire.number())
    reader = BatchReader(read_options(options), schema)
    for condition in wanted:
        _push(reader.filters, condition)
    if order != _ANY_ORDER:
        reader.top = TopOffsets(limit, order == _HIGHEST)
    tasks = reader.partitions()
    task_reader = TaskReader(
        reader.settings(),
        arrow_schema(required),
        tuple(aggregates),
        _NO_LIMIT if order == _HIGHEST else limit,  # rows come in the order of the log
        order != _ANY_ORDER,
    )
    in_jvm = in_jvm and not (task_reader.of_each_log and task_reader.limit != _NO_LIMIT)
    wire.put(AnswerKind.END, pickle.dumps(task_reader), *_tasks(tasks, task_reader, in_jvm))


def _tasks(tasks: list[ReadTask], reader: TaskReader, in_jvm: bool) -> Iterator[int | bytes | str]:
    """Their number; and each of them, pickled, with what the JVM needs to read it itself."""
    yield len(tasks)
    for task in tasks:
        yield pickle.dumps(task)
        given = (reader.settings, reader.limit, reader.aggregates)
        yield native_plan(task, *given) if in_jvm else ""


def _push(filters: PushedFilters, condition: Filter | None) -> bool:
    return condition is not None and not list(filters.push([condition]))


def _read(wire: Wire) -> None:
    """A ``TaskReader``, a ``ReadTask`` and how far the JVM came, "" for no way; the rows."""
    # Both were pickled by this code, and come from the JVM that started this process.
    reader, task = pickle.loads(wire.block()), pickle.loads(wire.block())
    assert isinstance(reader, TaskReader)
    assert isinstance(task, ReadTask)
    checks: Checks = {}
    if position := wire.text():
        reader, task, checks = _rest(reader, task, json.loads(position))
    if reader.schema.names:
        _send_batches(wire, reader, task, checks)
    else:
        _send_row_numbers(wire, reader, task, checks)
    wire.put(AnswerKind.END)


def _rest(
    reader: TaskReader, task: ReadTask, at: Mapping[str, Any]
) -> tuple[TaskReader, ReadTask, Checks]:
    """What is left of a task at ``NativeReader.Position``."""
    first, *others = task.splits[at["split"] :]
    checks = {
        uri: MarkerCheck({int(producer): offset for producer, offset in since.items()})
        for uri, since in at["open_since"].items()
    }
    rest = ReadTask((replace(first, position=at["position"], above=at["above"]), *others))
    return replace(reader, limit=at["limit"]), rest, checks


def _send_batches(wire: Wire, reader: TaskReader, task: ReadTask, checks: Checks) -> None:
    # Never closed: the end of the stream is our own message.
    stream = pa.ipc.new_stream(wire.sink, reader.schema)
    for batch in _batches(reader, task, checks):
        wire.put(AnswerKind.BATCH)
        stream.write_batch(batch)
        wire.sink.flush()  # the JVM works on while the next one is made


def _batches(reader: TaskReader, task: ReadTask, checks: Checks) -> Iterator[pa.RecordBatch]:
    if reader.aggregates:
        yield aggregated(reader, task)
        return
    for splits in _limited_together(reader, task):
        batches = read_splits(splits, reader.settings, reader.schema, checks)
        for batch, rows in _up_to(reader.limit, batches, lambda batch: batch.num_rows):
            yield batch.slice(0, rows)


def _send_row_numbers(wire: Wire, reader: TaskReader, task: ReadTask, checks: Checks) -> None:
    for splits in _limited_together(reader, task):
        counts = (count for _, count in count_splits(splits, reader.settings, checks))
        for _, rows in _up_to(reader.limit, counts, lambda count: count):
            wire.put(AnswerKind.ROWS, rows)


def _limited_together(reader: TaskReader, task: ReadTask) -> Iterable[Iterable[Split]]:
    """The splits for which the limit is one."""
    if reader.of_each_log:
        return (splits for _, splits in groupby(task.splits, lambda split: split.log_uri))
    return [task.splits]


def _up_to(
    limit: int, parts: Iterator[Any], size: Callable[[Any], int]
) -> Iterator[tuple[Any, int]]:
    """Yield each part with the number of its rows to take, until there are ``limit``."""
    left = limit
    for part in parts:
        rows = size(part) if limit == _NO_LIMIT else min(size(part), left)
        if rows:
            yield part, rows
        left -= rows
        if limit != _NO_LIMIT and left <= 0:
            return


_AGGREGATES: Mapping[str, Extreme | None] = {
    "count(*)": None,
    "min(offset)": Extreme("offset", min),
    "max(offset)": Extreme("offset", max),
    "min(timestamp)": Extreme("timestamp", min),
    "max(timestamp)": Extreme("timestamp", max),
}
"""By Spark's names. ``None`` is the number of rows."""


def aggregated(reader: TaskReader, task: ReadTask) -> pa.RecordBatch:
    """A row of aggregates for each value of the columns before them.

    Without such columns there is one row. An extreme of no row is null.
    """
    wanted = [_AGGREGATES[name] for name in reader.aggregates]
    extremes = tuple({each: None for each in wanted if each is not None})
    groups = [reader.schema.field(i) for i in range(len(reader.schema) - len(wanted))]
    found: dict[tuple[Any, ...], RowSummary] = {}
    if not groups:
        found[()] = RowSummary()
    for split, summary in summarize_splits(task.splits, reader.settings, extremes):
        if summary.rows:
            found.setdefault(_values(groups, split), RowSummary()).add(summary)
    keys = zip(*found, strict=True) if groups and found else repeat((), len(groups))
    arrays = [pa.array(values, group.type) for values, group in zip(keys, groups, strict=False)]
    for field, each in zip(list(reader.schema)[len(groups) :], wanted, strict=True):
        values = [one.rows if each is None else one.extremes.get(each) for one in found.values()]
        arrays.append(pa.array(values, pa.int64()).cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=reader.schema)


def _values(groups: list[pa.Field], split: Split) -> tuple[Any, ...]:
    columns = SplitColumns(split)
    return tuple(columns.rows(group, 1)[0].as_py() for group in groups)


# ---- streams -----------------------------------------------------------------------------------


def _stream(wire: Wire) -> None:
    """Options, the schema, and whether to end where the logs end now; a ``TaskReader``, pickled.

    Questions follow, which share what the reader knows of the logs. The JVM ends it by closing the
    connection.
    """
    reader = stream_reader(wire.options(), wire.schema())
    if wire.number():
        reader.prepareForTriggerAvailableNow()
    wire.put(AnswerKind.END, pickle.dumps(_of_stream(reader)))
    while True:
        wire.sink.flush()
        answer = _QUESTIONS[wire.text()](wire, reader)
        wire.put(AnswerKind.END, *answer)


def _of_stream(reader: LogstoreStreamReader) -> TaskReader:
    return TaskReader(reader.settings, reader.schema, (), _NO_LIMIT, False)


def _next(wire: Wire, reader: LogstoreStreamReader) -> list[str]:
    """Where the last micro-batch ended, and whether the options limit the next one; its end, and
    those of the logs.
    """
    start, is_limited = wire.json(), wire.number()
    limit = reader.getDefaultReadLimit() if is_limited else ReadAllAvailable()
    end = reader.latestOffset(start, limit)
    return [json.dumps(end), json.dumps(reader.reportLatestOffset())]


def _micro_batch(wire: Wire, reader: LogstoreStreamReader) -> Iterator[int | bytes | str]:
    """Where it starts and ends, and whether the JVM can read; tasks as those of ``plan``."""
    tasks = reader.partitions(wire.json(), wire.json())
    return _tasks(tasks, _of_stream(reader), bool(wire.number()))


def _behind(wire: Wire, reader: LogstoreStreamReader) -> list[int | str]:
    """Where the last micro-batch ended; names and values."""
    found = reader.behind_latest(wire.json())
    return [len(found), *chain.from_iterable(found.items())]


_QUESTIONS: Mapping[str, Callable[[Wire, LogstoreStreamReader], Iterable[Any]]] = {
    "initial": lambda _, reader: [json.dumps(reader.initialOffset())],
    "next": _next,
    "plan": _micro_batch,
    "behind": _behind,
}

_OPERATIONS: Mapping[str, Callable[[Wire], None]] = {
    "schema": _schema,
    "filters": _exact_filters,
    "plan": _plan,
    "read": _read,
    "stream": _stream,
}


# ---- filters -----------------------------------------------------------------------------------


Path: TypeAlias = tuple[str, ...]
Expression: TypeAlias = Path | int | str | Microseconds | Filter | None
"""A column, a literal or a filter as Spark's connectors send it; ``None`` for any other kind."""

_BINARY: Mapping[str, Callable[[Any, Any], Filter]] = {
    "=": EqualTo,
    "<=>": EqualNullSafe,
    "<>": lambda column, value: Not(EqualTo(column, value)),
    ">": GreaterThan,
    ">=": GreaterThanOrEqual,
    "<": LessThan,
    "<=": LessThanOrEqual,
    "STARTS_WITH": StringStartsWith,
    "ENDS_WITH": StringEndsWith,
    "CONTAINS": StringContains,
}
_TURNED = {"=": "=", "<=>": "<=>", "<>": "<>", ">": "<", ">=": "<=", "<": ">", "<=": ">="}
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_LITERALS = (int, str, Microseconds)


def _literal(kind: str, text: str) -> Expression:
    if kind == "string":
        return text
    if kind in _WHOLE:
        return int(text)
    return Microseconds(int(text)) if kind == "timestamp" else None


def _filter(name: str, arguments: list[Expression]) -> Filter | None:
    match name, arguments:
        case "NOT", [Filter() as child]:
            return None if isinstance(child, Not) else Not(child)
        case "IS_NULL", [tuple(path)]:
            return IsNull(path)
        case "IS_NOT_NULL", [tuple(path)]:
            return IsNotNull(path)
        case "IN", [tuple(path), *choice]:
            literals = choice and all(isinstance(one, _LITERALS) for one in choice)
            return In(path, tuple(choice)) if literals else None
        case _, [int() | str() | Microseconds() as value, tuple(path)] if name in _TURNED:
            return _BINARY[_TURNED[name]](path, value)
        case _, [tuple(path), int() | str() | Microseconds() as value] if name in _BINARY:
            return _BINARY[name](path, value)
    return None


__all__ = ["AnswerKind", "TaskReader", "aggregated", "serve"]
