"""Bytes that Apache Kafka wrote: read as Kafka reads them, and written again as Kafka wrote them.

``data`` holds segments with every batch header and record as Kafka printed them; see its README.
"""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from logstore.common.types import Record
from logstore.format import attributes as bits
from logstore.format.batch import encode_batch, end_transaction_marker, rebuild_batch
from logstore.format.codecs.compression import Compression
from logstore.format.control import ControlType, parse_control_key, parse_marker
from logstore.format.header import BatchHeader, batch_crc, parse_header
from logstore.format.index_entry import AbortedTxn, decode_aborted
from logstore.format.legacy import LegacyBatch, legacy_crc
from logstore.format.producer_snapshot import (
    ProducerSnapshotEntry,
    decode_snapshot,
    encode_snapshot,
)
from logstore.format.reader import batch_records, iter_batches, read_records
from tests.support.cases import for_each
from tests.support.index_entries import (
    decode_offset_entries,
    decode_time_entries,
    encode_aborted,
    encode_offset_entries,
    encode_time_entries,
)

DATA = Path(__file__).parent / "data"


def folders(pattern: str) -> list[Any]:
    return [pytest.param(path, id=path.name) for path in sorted(DATA.glob(pattern))]


def log_of(folder: Path) -> bytes:
    return next(folder.glob("*.log")).read_bytes()


def base_of(folder: Path) -> int:
    return int(next(folder.glob("*.log")).stem)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def unpack(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def record_of(line: dict[str, Any]) -> Record:
    headers = tuple((name, unpack(value)) for name, value in line.get("headers", ()))
    return Record(
        line["offset"], line["timestamp"], unpack(line["key"]), unpack(line["value"]), headers
    )


def expected_records(folder: Path) -> list[Record]:
    return [record_of(line) for line in lines(folder / "records.jsonl")]


def stored_records(data: bytes, batch: BatchHeader) -> list[Record]:
    """Records with the timestamps that are stored, also under LogAppendTime (F-74)."""
    shown_as_created = replace(batch, attributes=batch.attributes & ~bits.LOG_APPEND_TIME)
    return batch_records(data, shown_as_created)


@for_each("folder", folders("v2-*"))
def test_headers_are_those_that_kafka_printed(folder: Path) -> None:
    data = log_of(folder)
    batches = list(iter_batches(data))
    expected = lines(folder / "batches.jsonl")
    assert len(batches) == len(expected)
    for batch, line in zip(batches, expected, strict=True):
        assert isinstance(batch, BatchHeader)
        assert {
            "position": batch.position,
            "size": batch.size,
            "magic": batch.magic,
            "baseOffset": batch.base_offset,
            "lastOffset": batch.last_offset,
            "nextOffset": batch.next_offset,
            "crc": batch.crc,
            "compression": str(batch.compression),
            "timestampType": str(batch.timestamp_type),
            "maxTimestamp": batch.max_timestamp,
            "isValid": batch_crc(data, batch) == batch.crc,
            "attributes": batch.attributes,
            "partitionLeaderEpoch": batch.leader_epoch,
            "baseTimestamp": batch.base_timestamp,
            "producerId": batch.producer_id,
            "producerEpoch": batch.producer_epoch,
            "baseSequence": batch.base_sequence,
            "lastSequence": batch.last_sequence,
            "count": batch.record_count,
            "isTransactional": batch.is_transactional,
            "isControl": batch.is_control,
        } == {name: value for name, value in line.items() if name != "deleteHorizonMs"}
        assert batch.delete_horizon == line.get("deleteHorizonMs")


@pytest.mark.parametrize("folder", folders("v[01]-*"))
def test_legacy_entries_are_those_that_kafka_printed(folder: Path) -> None:
    data = log_of(folder)
    expected = lines(folder / "batches.jsonl")
    batches = list(iter_batches(data))
    assert len(batches) == len(expected)
    for batch, line in zip(batches, expected, strict=True):
        assert isinstance(batch, LegacyBatch)
        records = batch_records(data, batch)
        assert {
            "position": batch.position,
            "size": batch.size,
            "magic": batch.magic,
            "baseOffset": records[0].offset,
            "lastOffset": batch.last_offset,
            "nextOffset": batch.next_offset,
            "crc": batch.crc,
            "compression": str(batch.compression),
            "timestampType": str(batch.timestamp_type),
            "maxTimestamp": batch.max_timestamp,
            "isValid": legacy_crc(data, batch) == batch.crc,
            "attributes": batch.attributes,
        } == line


@for_each("folder", folders("v*"))
def test_records_are_those_that_kafka_printed(folder: Path) -> None:
    expected = expected_records(folder)
    assert read_records(log_of(folder), include_control=True) == expected


@for_each("folder", folders("v*"))
def test_columns_hold_the_same_records(folder: Path) -> None:
    pytest.importorskip("pyarrow")
    from logstore.format.arrow import read_columns

    columns = read_columns(log_of(folder), headers=True, include_control=True)
    columns.validate(full=True)
    got = [
        Record(
            row["offset"],
            row["timestamp"],
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"]),
        )
        for row in columns.to_pylist()
    ]
    assert got == expected_records(folder)


@for_each("folder", folders("v*"))
@for_each("spread", [(1, 1), (7, 3), (40, 25), (0, 10_000)])
def test_a_range_of_offsets_is_a_cut_of_all_records(folder: Path, spread: tuple[int, int]) -> None:
    pytest.importorskip("pyarrow")
    from logstore.format.arrow import read_columns

    low = base_of(folder) + spread[0]
    high = low + spread[1]
    data = log_of(folder)
    expected = [record for record in read_records(data) if low <= record.offset < high]
    assert read_records(data, from_offset=low, end_offset=high) == expected
    columns = read_columns(data, from_offset=low, end_offset=high)
    assert columns["offset"].to_pylist() == [record.offset for record in expected]


@for_each("folder", folders("v2-*"))
def test_every_batch_is_written_again(folder: Path) -> None:
    """Byte for byte where nothing is compressed; else equal records in an equal header."""
    data = log_of(folder)
    rewritten = bytearray()
    for batch in iter_batches(data):
        assert isinstance(batch, BatchHeader)
        records = stored_records(data, batch)
        ours = rebuild_batch(batch, records)
        if batch.compression is not Compression.NONE:
            header = parse_header(ours)
            assert batch_records(ours, header) == records
            assert replace(header, position=0, crc=0, batch_length=0) == replace(
                batch, position=0, crc=0, batch_length=0
            )
            ours = bytearray(data[batch.position : batch.end_position])
        rewritten += ours
    assert bytes(rewritten) == data


@for_each("folder", folders("v2-*"))
def test_batches_without_gaps_come_out_of_the_fast_encoder_the_same(folder: Path) -> None:
    data = log_of(folder)
    count = 0
    for batch in iter_batches(data):
        assert isinstance(batch, BatchHeader)
        dense = batch.record_count == batch.last_offset_delta + 1
        if batch.compression is not Compression.NONE or not dense or batch.delete_horizon:
            continue
        count += 1
        ours = encode_batch(
            stored_records(data, batch),
            base_offset=batch.base_offset,
            leader_epoch=batch.leader_epoch,
            log_append_time=batch.log_append_time,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            transactional=batch.is_transactional,
            control=batch.is_control,
        )
        assert ours == data[batch.position : batch.end_position]
    assert count or "none" not in folder.name or "compacted" in folder.name


@pytest.mark.parametrize("name", ["gzip", "snappy", "lz4"])
def test_small_batches_compress_to_the_same_bytes(name: str) -> None:
    """Not promised for all content: two compressors may differ, as those of two Javas do."""
    data = log_of(DATA / f"v2-{name}")
    batches = [batch for batch in iter_batches(data) if isinstance(batch, BatchHeader)]
    same = [
        rebuild_batch(batch, batch_records(data, batch))
        == data[batch.position : batch.end_position]
        for batch in batches
        if batch.size < 100
    ]
    assert same
    assert all(same)


def test_control_records_of_the_raft_log_are_named() -> None:
    folder = DATA / "v2-kraft-control"
    expected = [line["controlType"] for line in lines(folder / "records.jsonl")]
    records = read_records(log_of(folder), include_control=True)
    assert [parse_control_key(record.key).name for record in records] == expected
    assert read_records(log_of(folder)) == []


def test_transaction_markers_are_written_again() -> None:
    folder = DATA / "v2-txn"
    data = log_of(folder)
    names = {line["offset"]: line.get("controlType") for line in lines(folder / "records.jsonl")}
    seen = set()
    for batch in iter_batches(data):
        if not batch.is_control:
            continue
        assert isinstance(batch, BatchHeader)
        (record,) = batch_records(data, batch)
        marker = parse_marker(record.key, record.value)
        assert marker is not None
        assert marker.control_type.name == names[record.offset]
        seen.add(marker.control_type)
        ours = end_transaction_marker(
            marker.control_type,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp=record.timestamp,
            base_offset=batch.base_offset,
            leader_epoch=batch.leader_epoch,
        )
        assert ours == data[batch.position : batch.end_position]
    assert seen == {ControlType.COMMIT, ControlType.ABORT}


def test_aborted_transactions_are_left_out() -> None:
    folder = DATA / "v2-txn"
    data = log_of(folder)
    index = decode_aborted(next(folder.glob("*.txnindex")).read_bytes())
    aborted = [(entry.producer_id, entry.first_offset, entry.last_offset) for entry in index]
    committed = read_records(data, aborted=aborted)
    assert committed == read_records(data, aborted=aborted, from_offset=5000)
    gone = {record.offset for record in read_records(data)} - {r.offset for r in committed}
    assert gone
    for batch in iter_batches(data):
        assert isinstance(batch, BatchHeader)
        inside = any(
            batch.producer_id == producer_id and first <= batch.base_offset < marker
            for producer_id, first, marker in aborted
        )
        offsets = {record.offset for record in batch_records(data, batch)}
        if not batch.is_control:
            assert offsets <= gone if inside and batch.is_transactional else not offsets & gone


def test_transaction_indexes() -> None:
    paths = sorted(DATA.rglob("*.txnindex"))
    assert paths
    for path in paths:
        data = path.read_bytes()
        entries = decode_aborted(data, str(path))
        assert all(isinstance(entry, AbortedTxn) for entry in entries)
        assert encode_aborted(entries) == data


def test_the_transaction_index_of_a_segment_is_the_one_kafka_would_rebuild() -> None:
    folder = DATA / "v2-txn"
    rebuilt = json.loads((folder / "segment.json").read_text())["recover"]["abortedTxns"]
    assert decode_aborted(next(folder.glob("*.txnindex")).read_bytes()) == [
        AbortedTxn(
            entry["producerId"],
            entry["firstOffset"],
            entry["lastOffset"],
            entry["lastStableOffset"],
        )
        for entry in rebuilt
    ]


@for_each("folder", folders("v*"))
def test_offset_and_time_indexes(folder: Path) -> None:
    segment = json.loads((folder / "segment.json").read_text())
    base = base_of(folder)
    rolled = segment["indexAfterRoll"]
    raw = next(folder.glob("*.index")).read_bytes()
    offsets = decode_offset_entries(raw, base)
    assert [[e.offset, e.position] for e in offsets] == pairs(rolled["offsetIndex"], "position")
    assert encode_offset_entries(offsets, base) == raw
    raw = next(folder.glob("*.timeindex")).read_bytes()
    times = decode_time_entries(raw, base)
    assert [[e.offset, e.timestamp] for e in times] == pairs(rolled["timeIndex"], "timestamp")
    assert encode_time_entries(times, base) == raw


def pairs(entries: list[Any], other: str) -> list[list[int]]:
    return [[entry["offset"], entry[other]] for entry in entries]


def test_producer_snapshots() -> None:
    for line in lines(DATA / "checkpoints" / "snapshots.jsonl"):
        data = bytes.fromhex(line["hex"])
        assert (DATA / "checkpoints" / "topic-0" / line["file"]).read_bytes() == data
        entries = decode_snapshot(data)
        assert entries == [
            ProducerSnapshotEntry(
                producer["producerId"],
                producer["producerEpoch"],
                producer["lastSeq"],
                producer["lastDataOffset"],
                producer["lastOffsetDelta"],
                producer["lastTimestamp"],
                producer["coordinatorEpoch"],
                producer["currentTxnFirstOffset"],
            )
            for producer in line["producers"]
        ]
        assert encode_snapshot(entries) == data
    raw = next((DATA / "v2-txn").glob("*.snapshot")).read_bytes()
    assert encode_snapshot(decode_snapshot(raw)) == raw


def test_the_golden_data_has_what_the_tests_are_about() -> None:
    kinds: dict[str, int] = defaultdict(int)
    for folder in DATA.glob("v2-*"):
        for line in lines(folder / "batches.jsonl"):
            kinds["control"] += line["isControl"]
            kinds["empty"] += line["count"] == 0
            kinds["transactional"] += line["isTransactional"]
            kinds["horizon"] += bool(line["attributes"] & bits.DELETE_HORIZON)
    assert min(kinds.values()) > 0
    assert set(kinds) == {"control", "empty", "transactional", "horizon"}
