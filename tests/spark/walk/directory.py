"""A log directory with all that a log may hold, and its rows as the plain twins decode them."""

from __future__ import annotations

import random
import shutil
import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from logstore.common.config import LogConfig
from logstore.format.batch import encode_batch
from logstore.format.codecs.compression import Compression, decompress
from logstore.format.control import ControlType
from logstore.kernels._constants import HEADER_SIZE, SCAN_COLUMNS
from logstore.log import PartitionLog
from logstore.segments.producer_state import AppendOrigin
from logstore.spark.columns import RECORD_COLUMNS
from tests.reference.records import decode_records, scan_batches
from tests.spark.reading import Broker
from tests.spark.test_golden_source import FOLDERS, expected_row, lines, time_of
from tests.support.builders import marker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ALL = ",".join(RECORD_COLUMNS)
BATCH_ROWS = 1000
START_MS = 1_700_000_000_000
FAR_MS = 1 << 62  # beyond what Spark's timestamps reach: null
MIB = 1 << 20
BROKER = "0"  # in its meta.properties
CODECS = tuple(Compression)
_TIMES_MAX = (1 << 63) // 1000
_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("leaderEpoch", pa.int32()),
        ("producerId", pa.int64()),
        ("producerEpoch", pa.int32()),
        ("sequence", pa.int32()),
        ("isTransactional", pa.bool_()),
        ("isControl", pa.bool_()),
        ("compression", pa.string()),
        ("segment", pa.int64()),
        ("position", pa.int64()),
        ("broker", pa.string()),
    ]
)
assert _SCHEMA.names == list(RECORD_COLUMNS)


@dataclass(frozen=True)
class Walked:
    """A log directory, and its rows in Parquet: all of them, control records too."""

    logs: Path
    rows: Path
    committed: Path
    """What ``read_committed`` leaves of them."""

    def frame(self, spark: SparkSession, source: str, **options: str) -> DataFrame:
        """All columns of a source, or of the rows for the source ``rows``.

        ``options`` are those of reading; of them the rows know ``isolation`` and
        ``includeControl``.
        """
        if source != "rows":
            reader = spark.read.format(source).options(columns=ALL, **options)
            return reader.load(str(self.logs))
        committed = options.get("isolation") == "read_committed"
        rows = spark.read.parquet(str(self.committed if committed else self.rows))
        return rows if options.get("includeControl") == "true" else rows.where("NOT isControl")


# ---- writing -----------------------------------------------------------------------------------


def write(directory: Path, rows: int = 120_000, seed: int = 1) -> Walked:
    """``rows`` of them in one partition, and some hundreds in each of the others."""
    logs = directory / "logs"
    config = LogConfig(retention_ms=-1, segment_bytes=64 * MIB)
    rng = random.Random(seed)
    with Broker(logs, config, big=1, mixed=3, large=1, transactions=2, nothing=1) as broker:
        _write_big(broker.logs["big"][0], rows)
        for log in broker.logs["mixed"]:
            _write_mixed(log, rng)
        _write_large(broker.logs["large"][0])
        for number, log in enumerate(broker.logs["transactions"]):
            _write_transactions(log, rng, left_open=number == 1)
        written = [(t, p, log) for t, all in broker.logs.items() for p, log in enumerate(all)]
        places = [(topic, number, Path(str(log.directory))) for topic, number, log in written]
    found = [row for place in places for row in _rows_of(*place)]
    for folder in FOLDERS:
        topic = folder.name
        shutil.copytree(folder, logs / f"{topic}-7")
        found += _golden_rows(folder, topic)
    pq.write_table(_table(found), directory / "rows.parquet", row_group_size=50_000)
    pq.write_table(_table(_committed(found)), directory / "committed.parquet")
    return Walked(logs, directory / "rows.parquet", directory / "committed.parquet")


def _append(log: PartitionLog, records: list[Any], gap: int = 0, **fields: Any) -> None:
    fields = {"leader_epoch": 0, **fields}
    data = encode_batch(records, base_offset=log.log_end_offset + gap, **fields)
    log.replica.append_as_follower(bytes(data))


def _write_big(log: PartitionLog, rows: int) -> None:
    for number in range(rows // BATCH_ROWS):
        first = number * BATCH_ROWS
        records = [
            (b"key-%d" % (n % 997) if n % 7 else None, b"value %d " % n * (n % 11), START_MS + n)
            for n in range(first, first + BATCH_ROWS)
        ]
        _append(log, records, compression=CODECS[number % len(CODECS)], leader_epoch=number // 40)


_NAMES = ("a", "trace-id", "", "größe", "日本", "🜁", "a")
_CONTENTS = (None, b"", b"\x00\xff", "é".encode(), b"x" * 300)


def _write_mixed(log: PartitionLog, rng: random.Random) -> None:
    """Nulls, empty values, tombstones, headers, all codecs; times fall, are −1, or out of reach."""
    for number in range(40):
        records: list[Any] = []
        for _ in range(rng.choice((1, 2, 30))):
            key = rng.choice((None, b"", b"k%d" % rng.randrange(9), rng.randbytes(5)))
            value = rng.choice((None, b"", b"%d" % rng.randrange(99), rng.randbytes(40)))
            time = rng.choice((-1, 0, START_MS + rng.randrange(10**6), START_MS - 10**9))
            time = FAR_MS if rng.random() < 0.01 else time
            headers = [
                (rng.choice(_NAMES), rng.choice(_CONTENTS))
                for _ in range(rng.choice((0, 0, 1, 2, 5)))
            ]
            records.append((key, value, time, headers))
        _append(
            log,
            records,
            gap=rng.choice((0, 0, 0, 17)),
            compression=CODECS[number % len(CODECS)],
            leader_epoch=number // 8,
            log_append_time=START_MS if number % 9 == 8 else None,
        )


def _write_large(log: PartitionLog) -> None:
    for number in range(6):
        value = bytes([65 + number]) * MIB
        records = [(b"large", value, START_MS, [("h", value[: 1000 * number])])]
        _append(log, records, compression=CODECS[number % len(CODECS)])
        _append(log, [(None, None, START_MS + 1)])


def _write_transactions(log: PartitionLog, rng: random.Random, *, left_open: bool) -> None:
    """Of three producers side by side, a third aborted; the last one may be open."""
    sequences = dict.fromkeys((1, 2, 3), 0)
    begun: set[int] = set()
    for _ in range(60):
        producer = rng.choice(list(sequences))
        if producer in begun and rng.random() < 0.4:
            end = marker(commit=rng.random() < 0.6, producer_id=producer)
            log.append_as_leader(end, 0, AppendOrigin.COORDINATOR)
            begun.discard(producer)
            continue
        records = [(b"t", b"%d" % n, START_MS + n) for n in range(rng.randrange(1, 5))]
        data = encode_batch(
            records,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequences[producer],
            transactional=True,
            compression=rng.choice(CODECS),
        )
        log.append_as_leader(bytes(data), 0)
        sequences[producer] += len(records)
        begun.add(producer)
    assert begun
    for producer in sorted(begun)[: -1 if left_open else None]:
        log.append_as_leader(marker(commit=True, producer_id=producer), 0, AppendOrigin.COORDINATOR)


# ---- what is there -----------------------------------------------------------------------------


def _rows_of(topic: str, partition: int, directory: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(directory.glob("*.log")):
        data = memoryview(path.read_bytes())
        capacity = len(data) // HEADER_SIZE + 1
        cells = array("q", bytes(8 * capacity * len(SCAN_COLUMNS)))
        count, end, _ = scan_batches(data, 0, cells)
        assert end == len(data)
        for row in range(count):
            header = {name: cells[n * capacity + row] for n, name in enumerate(SCAN_COLUMNS)}
            fixed = {"topic": topic, "partition": partition, "broker": BROKER}
            yield from _rows_of_batch(data, header, fixed | {"segment": int(path.stem)})


def _rows_of_batch(
    data: memoryview, header: dict[str, int], fixed: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    position, attributes = header["position"], header["attributes"]
    payload = data[position + HEADER_SIZE : position + header["size"]]
    codec = Compression(attributes & 7)
    if codec is not Compression.NONE:
        payload = memoryview(decompress(codec, payload))
    appended = header["max_timestamp"] if attributes & 8 else None
    of_batch = {
        **fixed,
        "timestampType": attributes >> 3 & 1,
        "leaderEpoch": header["leader_epoch"],
        "producerId": header["producer_id"],
        "producerEpoch": header["producer_epoch"],
        "isTransactional": bool(attributes & 16),
        "isControl": bool(attributes & 32),
        "compression": str(codec),
        "position": position,
    }
    base, sequence = header["base_offset"], header["base_sequence"]
    for record in decode_records(
        payload, base, header["base_timestamp"], header["record_count"], appended
    ):
        yield {
            **of_batch,
            "key": record.key,
            "value": record.value,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "headers": [{"key": k, "value": v} for k, v in record.headers] or None,
            "sequence": sequence + record.offset - base if sequence >= 0 else -1,
        }


def _golden_rows(folder: Path, topic: str) -> Iterator[dict[str, Any]]:
    segment = int(next(folder.glob("*.log")).stem)
    batches = {batch["position"]: batch for batch in lines(folder / "batches.jsonl")}
    for record in lines(folder / "records.jsonl"):
        row = expected_row(record, batches[record["batch"]], segment, BROKER)
        milliseconds = record["timestamp"]
        assert row["timestamp"] == time_of(milliseconds)
        yield {**row, "topic": topic, "timestamp": milliseconds}


def _committed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what transactions aborted, and what follows the first one that is open."""
    gone: set[int] = set()
    pending: dict[tuple[Any, ...], list[int]] = {}
    for number, row in enumerate(rows):
        producer = (row["topic"], row["partition"], row["producerId"])
        if row["isControl"] and row["isTransactional"]:
            (kind,) = struct.unpack_from(">h", row["key"], 2)
            of_it = pending.pop(producer, [])
            gone.update(of_it if kind == ControlType.ABORT else ())
        elif row["isTransactional"]:
            pending.setdefault(producer, []).append(number)
    stable = {key[:2]: min(rows[n]["offset"] for n in left) for key, left in pending.items()}
    return [
        row
        for number, row in enumerate(rows)
        if number not in gone
        and row["offset"] < stable.get((row["topic"], row["partition"]), row["offset"] + 1)
    ]


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in _SCHEMA.names}
    columns["timestamp"] = [
        time * 1000 if time < _TIMES_MAX else None for time in columns["timestamp"]
    ]
    return pa.table(columns, schema=_SCHEMA)
