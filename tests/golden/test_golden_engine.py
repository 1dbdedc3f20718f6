"""Logs that Apache Kafka wrote, in our engine: looked up, rebuilt, damaged, recovered, truncated.

Kafka's own answers are in ``data``; see its README. Where ours differ on purpose the test says why.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from logstore.config import LogConfig
from logstore.index import OffsetPosition, TimestampOffset
from logstore.log import PartitionLog
from logstore.segment import Segment
from logstore.storage.memory import MemoryStorage
from logstore.testing import ManualClock

DATA = Path(__file__).parent / "data"
FOLDERS = sorted(DATA.glob("v*"))
NOW = 1_700_000_100_000  # after all records, before any producer expires
CONFIG = LogConfig(index_interval_bytes=1024, segment_index_bytes=4096)
DIRECTORY = "/topic-0"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def segment_facts(folder: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((folder / "segment.json").read_text())
    return facts


def names_of(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if not path.name.endswith((".json", ".jsonl"))]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def of_files(storage: MemoryStorage, log: PartitionLog, suffix: str) -> str:
    return sha256(storage.read_file(log.active_segment.path(suffix)))


@contextmanager
def opened(
    files: dict[str, bytes], *, clean: bool = False, interval: int = 1024
) -> Iterator[tuple[MemoryStorage, PartitionLog]]:
    """A log of these files on a disk in memory."""
    storage = MemoryStorage()
    storage.make_dir(DIRECTORY)
    for name, data in files.items():
        storage.write_file(f"{DIRECTORY}/{name}", data)
    config = LogConfig(index_interval_bytes=interval, segment_index_bytes=4096)
    log = PartitionLog.open(
        DIRECTORY, config, storage=storage, clock=ManualClock(NOW), clean_shutdown=clean
    )
    with log:
        yield storage, log


def files_of(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names_of(folder)}


def bare_log(folder: Path) -> dict[str, bytes]:
    path = next(folder.glob("*.log"))
    return {path.name: path.read_bytes()}


def offset_entries(segment: Segment) -> list[OffsetPosition]:
    index, base = segment.offset_index, segment.base_offset
    entries = [index.read_entry(at) for at in range(segment.state.offset_entries)]
    return [OffsetPosition(base + relative, position) for relative, position in entries]


def time_entries(segment: Segment) -> list[TimestampOffset]:
    index = segment.time_index
    return [index.entry_at(at) for at in range(segment.state.time_entries)]


def producers_of(log: PartitionLog) -> list[dict[str, int]]:
    return [
        {
            "producerId": entry.producer_id,
            "producerEpoch": entry.producer_epoch,
            "lastSeq": entry.last_sequence,
            "lastDataOffset": entry.batches[-1].last_offset if entry.batches else -1,
            "lastOffsetDelta": entry.batches[-1].offset_delta if entry.batches else 0,
            "lastTimestamp": entry.last_timestamp,
            "coordinatorEpoch": entry.coordinator_epoch,
            "currentTxnFirstOffset": entry.current_txn_first_offset,
        }
        for _, entry in sorted(log.producers.producers.items())
    ]


def by_id(producers: list[dict[str, int]]) -> list[dict[str, int]]:
    return sorted(producers, key=lambda producer: producer["producerId"])


def aborted_of(log: PartitionLog) -> list[dict[str, int]]:
    return [
        {
            "producerId": txn.producer_id,
            "firstOffset": txn.first_offset,
            "lastOffset": txn.last_offset,
            "lastStableOffset": txn.last_stable_offset,
        }
        for txn in log.active_segment.txn_index.entries()
    ]


def epochs_of(log: PartitionLog) -> list[dict[str, int]]:
    return [{"epoch": e, "startOffset": start} for e, start in log.epoch_entries]


# -- as Kafka left it ------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_folder_of_kafka_opens_as_a_partition(folder: Path, tmp_path: Path) -> None:
    """With Kafka's indexes, after a clean stop: same end, same lookups; no byte is touched."""
    directory = tmp_path / "topic-0"
    directory.mkdir()
    for name in names_of(folder):
        shutil.copyfile(folder / name, directory / name)
    with PartitionLog.open(directory, CONFIG, clock=ManualClock(NOW), clean_shutdown=True) as log:
        assert log.log_start_offset == segment_facts(folder)["baseOffset"]
        assert log.log_end_offset == segment_facts(folder)["nextOffset"]
        assert log.recovery_report.bytes_cut == 0
        check_lookups(log, folder)
    for name in names_of(folder):
        assert (directory / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_rebuilt_indexes_are_those_that_kafka_rebuilds(folder: Path) -> None:
    """From the bare ``.log``: indexes byte for byte, epochs, producers, aborted transactions."""
    facts = segment_facts(folder)
    rebuilt = facts["recover"]
    with opened(bare_log(folder), interval=facts["indexIntervalBytes"]) as (storage, log):
        segment = log.active_segment
        assert [[*e] for e in offset_entries(segment)] == [
            [e["offset"], e["position"]] for e in rebuilt["offsetIndex"]
        ]
        assert [[*e] for e in time_entries(segment)] == [
            [e["timestamp"], e["offset"]] for e in rebuilt["timeIndex"]
        ]
        assert of_files(storage, log, ".index") == rebuilt["indexFileSha256"]
        assert of_files(storage, log, ".timeindex") == rebuilt["timeindexFileSha256"]
        assert epochs_of(log) == rebuilt["leaderEpochs"]
        assert producers_of(log) == by_id(rebuilt["producers"])
        assert aborted_of(log) == rebuilt["abortedTxns"]
        assert log.first_unstable_offset == rebuilt.get("firstUnstableOffset")
        assert log.log_end_offset == rebuilt["nextOffset"]
        check_lookups(log, folder)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_appended_again_the_indexes_are_those_that_kafka_appended(folder: Path) -> None:
    """The same append calls give the same ``.log``, ``.index``, ``.timeindex`` (F-131, F-135)."""
    facts = segment_facts(folder)
    files = files_of(folder)
    data = next(content for name, content in files.items() if name.endswith(".log"))
    storage = MemoryStorage()
    config = LogConfig(index_interval_bytes=facts["indexIntervalBytes"], segment_index_bytes=4096)
    log = PartitionLog.open(
        DIRECTORY, config, storage=storage, clock=ManualClock(NOW), replicated=True,
        log_start_offset=facts["baseOffset"],
    )  # fmt: skip
    with log:
        for call in facts["appends"]:
            start, size = call["position"], call["bytes"]
            log.append_as_follower(data[start : start + size])
        log.roll()
    for name, content in files.items():
        if name.endswith((".log", ".index", ".timeindex", ".txnindex")):
            assert storage.read_file(f"{DIRECTORY}/{name}") == content, name


def check_lookups(log: PartitionLog, folder: Path) -> None:
    segment = log.active_segment
    questions = lines(folder / "lookups.jsonl")
    assert questions
    for question in questions:
        if question["q"] == "read":
            found = segment.read(
                question["startOffset"], question["maxSize"], segment.size,
                question["minOneMessage"],
            )  # fmt: skip
            if question["position"] is None:
                assert found is None, question
                continue
            assert found is not None, question
            assert found.position == question["position"], question
            assert found.size == question["size"], question
        else:
            check_timestamp_lookup(log, question)


def check_timestamp_lookup(log: PartitionLog, question: dict[str, Any]) -> None:
    """A log asks from its start on: other starting offsets are asked of a log that starts there."""
    timestamp, start = question["timestamp"], question["startingOffset"]
    before = log.log_start_offset
    log._log_start_offset = start
    try:
        found = log.offset_for_timestamp(timestamp)
    finally:
        log._log_start_offset = before
    expected = (
        TimestampOffset(question["foundTimestamp"], question["foundOffset"])
        if question["foundOffset"] is not None
        else None
    )
    assert found == expected, question


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_the_largest_timestamp_has_an_offset(folder: Path) -> None:
    """F-152: the first record that carries the largest timestamp of its batch, none for magic 0."""
    records = lines(folder / "records.jsonl")
    largest = max(record["timestamp"] for record in records)
    with opened(files_of(folder), clean=True) as (_, log):
        found = log.offset_for_timestamp(-3)
    if largest < 0:
        assert found is None
        return
    first = next(record["offset"] for record in records if record["timestamp"] == largest)
    assert found == TimestampOffset(largest, first)


def test_the_transactions_of_kafka_are_known_from_its_snapshot() -> None:
    """v2-txn, clean: producers from the ``.snapshot``, epochs and aborts from their files."""
    folder = DATA / "v2-txn"
    rebuilt = segment_facts(folder)["recover"]
    with opened(files_of(folder), clean=True) as (_, log):
        assert producers_of(log) == by_id(rebuilt["producers"])
        assert epochs_of(log) == rebuilt["leaderEpochs"]
        assert aborted_of(log) == rebuilt["abortedTxns"]
        assert log.first_unstable_offset == log.last_stable_offset == 5008
        fetched = log.read(log.log_start_offset, committed=True)
        assert {record.offset for record in fetched.records()} < set(range(5000, 5008))


# -- damaged ---------------------------------------------------------------------------------------

CASES = lines(DATA / "recovery" / "cases.jsonl")
_MAGIC, _EPOCH = range(16, 17), range(12, 16)


def damaged(data: bytes, op: list[Any]) -> bytes:
    """``data`` after the operation of a case."""
    name, *arguments = op
    out = bytearray(data)
    match name, arguments:
        case "none", []:
            pass
        case "truncate", [size]:
            del out[size:]
        case "flip", [position, mask]:
            out[position] ^= mask
        case "append_zeros", [count]:
            out += bytes(count)
        case "append_ff", [count]:
            out += b"\xff" * count
        case "zero_range", [position, size]:
            out[position : position + size] = bytes(size)
        case "set_i32", [position, value]:
            out[position : position + 4] = value.to_bytes(4, "big", signed=True)
        case "duplicate_tail", [position, size]:
            out += out[position : position + size]
        case "swap_base", [position, other]:
            base = int.from_bytes(out[other : other + 8], "big")
            out[position : position + 8] = base.to_bytes(8, "big")
        case _:
            raise AssertionError(op)
    return bytes(out)


def batch_positions(source: str) -> list[int]:
    return [line["position"] for line in lines(DATA / source / "batches.jsonl")]


def stricter_because(case: dict[str, Any]) -> str | None:
    """Why our recovery cuts where Kafka's does not: no checksum covers these fields (F-62)."""
    source, (op, *arguments) = case["source"], case["op"]
    if "exception" in case:
        return "a base offset outside the segment: Kafka splits the segment, we cut (F-243)"
    if op == "duplicate_tail":
        return "the same offsets twice: an append could never have written them (F-164)"
    if op == "swap_base":
        return "an offset below the one before: an append could never have written it (F-164)"
    if op == "flip" and case["truncatedBytes"] == 0 and source.startswith("v2"):
        within = arguments[0] - max(p for p in batch_positions(source) if p <= arguments[0])
        if within in _MAGIC:
            return "a magic above 2: nobody could read the batch (F-108)"
    return None


def case_id(case: dict[str, Any]) -> str:
    return f"{case['source']}-{'-'.join(map(str, case['op']))}"


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_recovery_has_the_outcome_that_kafka_has(case: dict[str, Any]) -> None:
    folder = DATA / case["source"]
    ((name, data),) = bare_log(folder).items()
    data = damaged(data, case["op"])
    with opened({name: data}) as (storage, log):
        report = log.recovery_report
        if stricter_because(case) is not None:
            check_stricter(case, log, len(data))
            return
        assert report.bytes_cut == case["truncatedBytes"]
        assert log.size == case["validBytes"]
        assert storage.read_file(f"{DIRECTORY}/{name}") == data[: case["validBytes"]]
        assert log.log_end_offset == case["nextOffset"]
        assert epochs_of(log) == case["leaderEpochs"]
        assert producers_of(log) == by_id(case["producers"])
        assert aborted_of(log) == case["abortedTxns"]
        assert log.first_unstable_offset == case.get("firstUnstableOffset")
        assert of_files(storage, log, ".index") == case["indexFileSha256"]
        assert of_files(storage, log, ".timeindex") == case["timeindexFileSha256"]


def check_stricter(case: dict[str, Any], log: PartitionLog, size: int) -> None:
    """Everything up to a batch boundary before the damage stays, nothing behind it."""
    positions = batch_positions(case["source"])
    at = case["op"][1]
    if case["op"][0] == "duplicate_tail":
        at = size - case["op"][2]
    expected = max(p for p in [*positions, size - case["op"][-1]] if p <= at)
    assert log.size == expected
    assert log.recovery_report.bytes_cut == size - expected
    assert log.recovery_report.cut_reason


def test_the_cases_in_which_we_are_stricter_are_few_and_known() -> None:
    found = {case_id(case): why for case in CASES if (why := stricter_because(case)) is not None}
    assert sorted(found) == STRICTER


STRICTER: list[str] = []


# -- truncated -------------------------------------------------------------------------------------

TRUNCATIONS = lines(DATA / "recovery" / "truncate.jsonl")


@pytest.mark.parametrize("case", TRUNCATIONS, ids=lambda c: f"{c['source']}-{c['truncateTo']}")
def test_a_truncation_leaves_what_kafka_leaves(case: dict[str, Any]) -> None:
    """F-235. The largest timestamp is that of the batches left: here Kafka has the last entry of
    the time index alone, which may be lower."""
    folder = DATA / case["source"]
    ((_, data),) = bare_log(folder).items()
    with opened(files_of(folder), clean=True) as (_, log):
        segment = log.active_segment
        assert segment.truncate_to(case["truncateTo"]) == case["bytesTruncated"]
        assert segment.size == case["size"]
        assert segment.read_next_offset()[0] == case["nextOffset"]
        assert segment.log.read_at(0, len(data)) == data[: case["size"]]
        assert segment.state.offset_entries == case["offsetIndexEntries"]
        assert len(segment.txn_index.entries()) == case["abortedTxns"]
        left = [b for b in lines(folder / "batches.jsonl") if b["position"] < case["size"]]
        largest = max((b["maxTimestamp"] for b in left), default=-1)
        assert segment.state.max_timestamp == largest >= case["largestTimestamp"]
        assert segment.state.time_entries == case["timeIndexEntries"]
