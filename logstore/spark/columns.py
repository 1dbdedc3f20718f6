"""The columns of the data source, and where their values come from.

The columns of Spark's own Kafka source come first. They are the default, and have its names and
types, so a query written for Kafka runs unchanged. The others come on request. All are nullable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from logstore.common.errors import ConfigError
from logstore.common.suggestions import unknown

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class Origin(Enum):
    """The rate at which a column's value changes, which decides its cost."""

    RECORD = "decoded from every record"
    BATCH = "one value in the header of a batch"
    SPLIT = "one value in a partition or a segment"


@dataclass(frozen=True, slots=True)
class Column:
    """``kind`` is Spark's type as DDL."""

    name: str
    kind: str
    origin: Origin


def _columns(origin: Origin, **kinds: str) -> dict[str, Column]:
    return {name: Column(name, kind, origin) for name, kind in kinds.items()}


HEADERS = "headers"
RECORD_COLUMNS = {
    **_columns(Origin.RECORD, key="binary", value="binary"),
    **_columns(Origin.SPLIT, topic="string", partition="int"),
    **_columns(Origin.RECORD, offset="bigint", timestamp="timestamp"),
    **_columns(Origin.BATCH, timestampType="int"),
    **_columns(Origin.RECORD, headers="array<struct<key:string,value:binary>>"),
    **_columns(
        Origin.BATCH,
        leaderEpoch="int",
        producerId="bigint",
        producerEpoch="int",
        sequence="int",
        isTransactional="boolean",
        isControl="boolean",
        compression="string",
    ),
    **_columns(Origin.SPLIT, segment="bigint"),
    **_columns(Origin.BATCH, position="bigint"),
    **_columns(Origin.SPLIT, broker="string"),
}
DEFAULT_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")

BATCH_COLUMNS = {
    **_columns(Origin.SPLIT, topic="string", partition="int", broker="string", segment="bigint"),
    **_columns(
        Origin.BATCH,
        position="bigint",
        size="int",
        baseOffset="bigint",
        lastOffset="bigint",
        leaderEpoch="int",
        crc="bigint",
        crcOk="boolean",
        magic="int",
        compression="string",
        timestampType="int",
        isTransactional="boolean",
        isControl="boolean",
        producerId="bigint",
        producerEpoch="int",
        baseSequence="int",
        baseTimestamp="timestamp",
        maxTimestamp="timestamp",
        recordCount="int",
    ),
}


def known_columns(granularity: str) -> dict[str, Column]:
    return BATCH_COLUMNS if granularity == "batch" else RECORD_COLUMNS


def choose(granularity: str, names: Sequence[str], include_headers: bool) -> tuple[str, ...]:
    """The columns to read: ``names`` in any order, or the default ones when it is empty.

    Raises:
        ConfigError: an unknown or repeated name.
    """
    known = known_columns(granularity)
    by_lower = {name.lower(): name for name in known}
    chosen: list[str] = []
    for name in names:
        column = by_lower.get(name.lower())
        if column is None:
            raise unknown("column", name, known)
        if column in chosen:
            raise ConfigError(f"column {column} is asked for twice")
        chosen.append(column)
    if chosen:
        return tuple(chosen)
    if granularity == "batch":
        return tuple(known)
    return (*DEFAULT_COLUMNS, HEADERS) if include_headers else DEFAULT_COLUMNS


def ddl(granularity: str, names: Sequence[str]) -> str:
    """The schema of ``names`` as Spark reads it."""
    known = known_columns(granularity)
    return ", ".join(f"`{name}` {known[name].kind}" for name in names)


def check_schema(granularity: str, schema: StructType) -> tuple[str, ...]:
    """The names of a schema that a user gave: any subset of the columns, in any order.

    Raises:
        ConfigError: a column that does not exist, or exists with another type.
    """
    known = known_columns(granularity)
    spelled = {name.lower(): name for name in known}
    names = [field.name for field in schema.fields]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"column {name!r} is there twice in the schema")
        if name not in known and name.lower() in spelled:
            raise ConfigError(f"column {name!r} is spelled {spelled[name.lower()]}")
    for field in schema.fields:
        column = known.get(field.name)
        allowed = ", ".join(f"{c.name} {c.kind}" for c in known.values())
        if column is None:
            raise ConfigError(f"column {field.name!r} does not exist; the columns are: {allowed}")
        kind = field.dataType.simpleString()
        if kind != column.kind:
            raise ConfigError(
                f"column {field.name} is {column.kind}, not {kind}; the columns are: {allowed}"
            )
    return tuple(field.name for field in schema.fields)
