"""Every column of what Apache Kafka wrote, in all formats and codecs, against Kafka's reading."""

from __future__ import annotations

import base64
import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from logstore.spark.columns import BATCH_COLUMNS, RECORD_COLUMNS
from tests.spark.reading import read
from tests.support.cases import for_each

DATA = Path(__file__).parents[1] / "golden" / "data"
FOLDERS = sorted(DATA.glob("v*"))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ALL = ",".join(RECORD_COLUMNS)
TYPES = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def directory_of(folder: Path, tmp_path: Path) -> Path:
    """A log directory with the segment."""
    shutil.copytree(folder, tmp_path / "logs" / "golden-7")
    return tmp_path / "logs"


def time_of(milliseconds: int) -> datetime:
    return EPOCH + timedelta(milliseconds=milliseconds)


def expected_row(record: dict[str, Any], batch: dict[str, Any], segment: int, broker: str) -> Any:
    def decoded(text: str | None) -> bytes | None:
        return None if text is None else base64.b64decode(text)

    def batch_number(name: str) -> int:
        return int(batch.get(name, -1))

    headers = [{"key": k, "value": decoded(v)} for k, v in record.get("headers", ())]
    return {
        "key": decoded(record["key"]),
        "value": decoded(record["value"]),
        "topic": "golden",
        "partition": 7,
        "offset": record["offset"],
        "timestamp": time_of(record["timestamp"]),
        "timestampType": TYPES[batch["timestampType"]],
        "headers": headers or None,
        "leaderEpoch": batch_number("partitionLeaderEpoch"),
        "producerId": batch_number("producerId"),
        "producerEpoch": batch_number("producerEpoch"),
        "sequence": record.get("sequence", -1),
        "isTransactional": batch.get("isTransactional", False),
        "isControl": batch.get("isControl", False),
        "compression": batch["compression"],
        "segment": segment,
        "position": batch["position"],
        "broker": broker,
    }


@for_each("folder", FOLDERS)
def test_records_are_those_that_kafka_reads(folder: Path, tmp_path: Path) -> None:
    logs = directory_of(folder, tmp_path)
    segment = int(next(folder.glob("*.log")).stem)
    batches = {batch["position"]: batch for batch in lines(folder / "batches.jsonl")}
    expected = [
        expected_row(record, batches[record["batch"]], segment, str(logs))
        for record in lines(folder / "records.jsonl")
    ]
    assert read(logs, columns=ALL, includeControl=True) == expected


@for_each("folder", FOLDERS)
def test_control_records_are_left_out_unless_asked_for(folder: Path, tmp_path: Path) -> None:
    logs = directory_of(folder, tmp_path)
    control = {b["position"] for b in lines(folder / "batches.jsonl") if b.get("isControl")}
    expected = [r["offset"] for r in lines(folder / "records.jsonl") if r["batch"] not in control]
    assert [row["offset"] for row in read(logs, columns="offset")] == expected


@for_each("folder", FOLDERS)
def test_small_splits_lose_and_double_nothing(folder: Path, tmp_path: Path) -> None:
    logs = directory_of(folder, tmp_path)
    expected = [record["offset"] for record in lines(folder / "records.jsonl")]
    rows = read(logs, columns="offset", splitBytes=1024, includeControl=True)
    assert [row["offset"] for row in rows] == expected


@for_each("folder", FOLDERS)
def test_batches_are_those_that_kafka_lists(folder: Path, tmp_path: Path) -> None:
    logs = directory_of(folder, tmp_path)
    rows = read(logs, granularity="batch")
    assert list(rows[0]) == list(BATCH_COLUMNS)
    for row, batch in zip(rows, lines(folder / "batches.jsonl"), strict=True):
        assert (row["position"], row["size"]) == (batch["position"], batch["size"])
        assert (row["lastOffset"], row["crc"]) == (batch["lastOffset"], batch["crc"])
        assert row["crcOk"] is True
        assert (row["magic"], row["compression"]) == (batch["magic"], batch["compression"])
        assert row["timestampType"] == TYPES[batch["timestampType"]]
        assert row["maxTimestamp"] == time_of(batch["maxTimestamp"])
        assert row["producerId"] == batch.get("producerId", -1)
        assert row["leaderEpoch"] == batch.get("partitionLeaderEpoch", -1)
        if batch["magic"] == 2:
            assert row["recordCount"] == batch["count"]
            assert row["baseOffset"] == batch["baseOffset"]


@pytest.mark.slow
@for_each("folder", FOLDERS, at_once=4)
def test_unused_columns_change_no_other(folder: Path, tmp_path: Path) -> None:
    logs = directory_of(folder, tmp_path)
    whole = read(logs, columns=ALL, includeControl=True)
    for name in RECORD_COLUMNS:
        assert read(logs, columns=name, includeControl=True) == [{name: r[name]} for r in whole]
