"""Logs that Apache Kafka wrote, in our engine: looked up, rebuilt, damaged, recovered, truncated.

Kafka's own answers are in ``data``; see its README. Where ours differ on purpose the test says why.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from logstore.common.config import LogConfig
from logstore.format.filenames import LEADER_EPOCH_CHECKPOINT
from logstore.log import LogOwner, PartitionLog
from logstore.segments.index import TimestampOffset
from logstore.storage.memory import MemoryStorage
from logstore.testing import ManualClock
from tests.support.cases import differences, for_each
from tests.support.index_entries import decode_offset_entries, decode_time_entries
from tests.support.segments import truncate_segment

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


def file_of(storage: MemoryStorage, log: PartitionLog, suffix: str) -> bytes:
    return storage.read_file(log.segments[-1].path(suffix))


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
        DIRECTORY,
        config,
        storage=storage,
        clock=ManualClock(NOW),
        owner=LogOwner(clean_shutdown=clean),
    )
    with log:
        yield storage, log


def files_of(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names_of(folder)}


def bare_log(folder: Path) -> dict[str, bytes]:
    path = next(folder.glob("*.log"))
    return {path.name: path.read_bytes()}


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
        for _, entry in sorted(log.producers.known.producers.items())
    ]


def by_id(producers: list[dict[str, int]]) -> list[dict[str, int]]:
    return sorted(producers, key=lambda producer: producer["producerId"])


def first_open(facts: dict[str, Any]) -> int | None:
    """First offset of the oldest transaction without a marker.

    ``firstUnstableOffset`` of the data is lower: it counts transactions whose marker is not yet
    below the high watermark (F-197), which no log knows any more once it was opened again.
    """
    open_at = [producer["currentTxnFirstOffset"] for producer in facts["producers"]]
    return min((offset for offset in open_at if offset >= 0), default=None)


def aborted_of(log: PartitionLog) -> list[dict[str, int]]:
    return [
        {
            "producerId": txn.producer_id,
            "firstOffset": txn.first_offset,
            "lastOffset": txn.last_offset,
            "lastStableOffset": txn.last_stable_offset,
        }
        for txn in log.segments[-1].txn_index.entries()
    ]


def epochs_of(log: PartitionLog) -> list[dict[str, int]]:
    return [{"epoch": e, "startOffset": start} for e, start in log.epochs.entries]


# -- as Kafka left it ------------------------------------------------------------------------------


@for_each("folder", FOLDERS, name=lambda path: path.name)
def test_a_folder_of_kafka_opens_as_a_partition(folder: Path, tmp_path: Path) -> None:
    """With Kafka's indexes, after a clean stop: same end, same lookups; no byte is touched."""
    directory = tmp_path / "topic-0"
    directory.mkdir()
    for name in names_of(folder):
        shutil.copyfile(folder / name, directory / name)
    with PartitionLog.open(
        directory, CONFIG, clock=ManualClock(NOW), owner=LogOwner(clean_shutdown=True)
    ) as log:
        assert log.log_start_offset == segment_facts(folder)["baseOffset"]
        assert log.log_end_offset == segment_facts(folder)["nextOffset"]
        assert log.recovery_report.bytes_cut == 0
        check_lookups(log, folder)
    for name in names_of(folder):
        if name != LEADER_EPOCH_CHECKPOINT:  # it follows the log start
            assert (directory / name).read_bytes() == (folder / name).read_bytes()


@for_each("folder", FOLDERS, name=lambda path: path.name)
def test_rebuilt_indexes_are_those_that_kafka_rebuilds(folder: Path) -> None:
    """From the bare ``.log``: indexes byte for byte, epochs, producers, aborted transactions."""
    facts = segment_facts(folder)
    rebuilt = facts["recover"]
    with opened(bare_log(folder), interval=facts["indexIntervalBytes"]) as (storage, log):
        segment = log.segments[-1]
        assert [
            [*entry]
            for entry in decode_offset_entries(file_of(storage, log, ".index"), segment.base_offset)
        ] == [[e["offset"], e["position"]] for e in rebuilt["offsetIndex"]]
        assert [
            [*entry]
            for entry in decode_time_entries(
                file_of(storage, log, ".timeindex"), segment.base_offset
            )
        ] == [[e["timestamp"], e["offset"]] for e in rebuilt["timeIndex"]]
        assert sha256(file_of(storage, log, ".index")) == rebuilt["indexFileSha256"]
        assert sha256(file_of(storage, log, ".timeindex")) == rebuilt["timeindexFileSha256"]
        assert epochs_of(log) == rebuilt["leaderEpochs"]
        assert producers_of(log) == by_id(rebuilt["producers"])
        assert aborted_of(log) == rebuilt["abortedTxns"]
        assert log.replica.first_unstable_offset == first_open(rebuilt)
        assert log.log_end_offset == rebuilt["nextOffset"]
        check_lookups(log, folder)


@for_each("folder", FOLDERS, name=lambda path: path.name)
def test_appended_again_every_index_entry_names_a_batch(folder: Path) -> None:
    """The same append calls give the same ``.log``, and the indexes that Kafka rebuilds (F-133).

    The writer of these files made at most one entry a call (F-132), and its own dump tool finds
    fault with those of calls of several batches. Kafka makes one for every batch since 4.1, and so
    do we; then an index that was appended and one that was rebuilt are the same.
    """
    facts = segment_facts(folder)
    files = files_of(folder)
    data = next(content for name, content in files.items() if name.endswith(".log"))
    storage = MemoryStorage()
    config = LogConfig(index_interval_bytes=facts["indexIntervalBytes"], segment_index_bytes=4096)
    log = PartitionLog.open(
        DIRECTORY,
        config,
        storage=storage,
        clock=ManualClock(NOW),
        owner=LogOwner(replicated=True, log_start_offset=facts["baseOffset"]),
    )
    with log:
        for call in facts["appends"]:
            start, size = call["position"], call["bytes"]
            log.replica.append_as_follower(data[start : start + size])
        log.roll()
    written = {name: storage.read_file(f"{DIRECTORY}/{name}") for name in files if "index" in name}
    assert storage.read_file(f"{DIRECTORY}/{facts['baseOffset']:020d}.log") == data
    rebuilt = facts["recover"]
    for suffix, key in ((".index", "indexFileSha256"), (".timeindex", "timeindexFileSha256")):
        name = f"{facts['baseOffset']:020d}{suffix}"
        assert sha256(written[name]) == rebuilt[key], name


def check_lookups(log: PartitionLog, folder: Path) -> None:
    """Raises the log start on the way: searches by timestamp begin there."""
    segment = log.segments[-1]
    questions = lines(folder / "lookups.jsonl")
    reads = [question for question in questions if question["q"] == "read"]
    searches = [question for question in questions if question["q"] != "read"]
    assert reads
    assert searches
    for read in reads:
        found = segment.live().read(
            read["startOffset"], read["maxSize"], segment.size, read["minOneMessage"]
        )
        place = None if found is None else (found.position, found.size)
        assert place == (None if read["position"] is None else (read["position"], read["size"]))
    for search in sorted(searches, key=lambda question: question["startingOffset"]):
        log.replica.maybe_increment_log_start_offset(search["startingOffset"])
        expected = None
        if search["foundOffset"] is not None:
            expected = TimestampOffset(search["foundTimestamp"], search["foundOffset"])
        assert log.offset_for_timestamp(search["timestamp"]) == expected, search


@for_each("folder", FOLDERS, name=lambda path: path.name)
def test_the_largest_timestamp_has_an_offset(folder: Path) -> None:
    """F-152: the first record with the largest timestamp in the first batch that claims it.

    None for magic 0, and where compaction emptied that batch.
    """
    batches = lines(folder / "batches.jsonl")
    largest = max(batch["maxTimestamp"] for batch in batches)
    claims = next(b["position"] for b in batches if b["maxTimestamp"] == largest)
    found = [
        TimestampOffset(largest, record["offset"])
        for record in lines(folder / "records.jsonl")
        if record["batch"] == claims and record["timestamp"] == largest
    ]
    with opened(files_of(folder), clean=True) as (_, log):
        assert log.offset_for_timestamp(-3) == (found[0] if largest >= 0 and found else None)


def test_the_transactions_of_kafka_are_known_from_its_snapshot() -> None:
    """v2-txn, clean: producers from the ``.snapshot``, epochs and aborts from their files."""
    folder = DATA / "v2-txn"
    rebuilt = segment_facts(folder)["recover"]
    with opened(files_of(folder), clean=True) as (_, log):
        assert producers_of(log) == by_id(rebuilt["producers"])
        assert epochs_of(log) == rebuilt["leaderEpochs"]
        assert aborted_of(log) == rebuilt["abortedTxns"]
        assert log.replica.first_unstable_offset == log.last_stable_offset == first_open(rebuilt)
        fetched = log.read(log.log_start_offset, committed=True)
        offsets = {record.offset for record in fetched.records()}
        assert max(offsets) < log.last_stable_offset
        for txn in rebuilt["abortedTxns"]:
            assert txn["firstOffset"] not in offsets


# -- damaged ---------------------------------------------------------------------------------------

CASES = lines(DATA / "recovery" / "cases.jsonl")
OVERFLOW = "an offset outside the segment: Kafka splits the segment (F-243)"
UNREADABLE = "a magic above 2: nobody could read the batch (F-108)"
REPEATED = "the same offsets twice: no append could have written them (F-164)"
DESCENDING = "an offset below the one before: no append could have written it (F-164)"
MAGIC = 16  # its byte in a batch header


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


@cache
def batch_positions(source: str) -> list[int]:
    return [line["position"] for line in lines(DATA / source / "batches.jsonl")]


def stricter(case: dict[str, Any]) -> tuple[str, int] | None:
    """Why our recovery cuts where Kafka's does not, and at which byte.

    No checksum covers base offset and magic (F-62), so only their order and range tell a flipped
    bit there from the truth. None where the outcomes are equal.
    """
    source, (op, *arguments) = case["source"], case["op"]
    positions = batch_positions(source)
    if op == "duplicate_tail":
        position, size = arguments
        return REPEATED, position + size
    if op not in ("flip", "swap_base"):
        return None
    start = max(p for p in positions if p <= arguments[0])
    field = arguments[0] - start
    if "exception" in case:
        return OVERFLOW, start
    if case["truncatedBytes"]:
        return None
    if op == "swap_base":
        return DESCENDING, start
    if field == MAGIC:
        return UNREADABLE, start
    return None


def case_id(case: dict[str, Any]) -> str:
    return f"{case['source']}-{'-'.join(map(str, case['op']))}"


@pytest.mark.parametrize("source", sorted({case["source"] for case in CASES}))
def test_recovery_has_the_outcome_that_kafka_has(source: str) -> None:
    differences([case for case in CASES if case["source"] == source], check_recovery, case_id)


def check_recovery(case: dict[str, Any]) -> None:
    folder = DATA / case["source"]
    ((name, data),) = bare_log(folder).items()
    data = damaged(data, case["op"])
    with opened({name: data}) as (storage, log):
        report = log.recovery_report
        ours = stricter(case)
        if ours is not None:
            assert log.size == ours[1]
            assert report.bytes_cut == len(data) - ours[1]
            assert report.cut_reason
            return
        assert report.bytes_cut == case["truncatedBytes"]
        assert log.size == case["validBytes"]
        assert storage.read_file(f"{DIRECTORY}/{name}") == data[: case["validBytes"]]
        assert log.log_end_offset == case["nextOffset"]
        assert epochs_of(log) == case["leaderEpochs"]
        assert producers_of(log) == by_id(case["producers"])
        assert aborted_of(log) == case["abortedTxns"]
        assert log.replica.first_unstable_offset == first_open(case)
        assert sha256(file_of(storage, log, ".index")) == case["indexFileSha256"]
        assert sha256(file_of(storage, log, ".timeindex")) == case["timeindexFileSha256"]


STRICTER = {
    "v2-none-flip-26672-1": OVERFLOW,
    "v2-none-flip-26685-1": UNREADABLE,
    "v2-none-flip-26685-64": UNREADABLE,
    "v2-none-swap_base-26669-0": DESCENDING,
    "v2-lz4-flip-22435-1": OVERFLOW,
    "v2-lz4-flip-22448-64": UNREADABLE,
    "v2-lz4-duplicate_tail-36635-139": REPEATED,
    "v2-lz4-swap_base-22432-0": DESCENDING,
    "v2-txn-flip-1971-1": OVERFLOW,
    "v2-txn-flip-1974-1": OVERFLOW,
    "v2-txn-flip-1987-1": UNREADABLE,
    "v1-none-flip-4710-1": OVERFLOW,
    "v0-none-flip-4227-1": OVERFLOW,
    "v0-none-swap_base-4227-0": DESCENDING,
    "v1-gzip-flip-1304-1": OVERFLOW,
}


def test_the_cases_in_which_we_are_stricter_are_few_and_known() -> None:
    found = {case_id(case): why[0] for case in CASES if (why := stricter(case)) is not None}
    assert found == STRICTER


# -- truncated -------------------------------------------------------------------------------------

TRUNCATIONS = lines(DATA / "recovery" / "truncate.jsonl")


@for_each("case", TRUNCATIONS, name=lambda c: f"{c['source']}-{c['truncateTo']}")
def test_a_truncation_leaves_what_kafka_leaves(case: dict[str, Any]) -> None:
    """F-235. The largest timestamp is that of the batches left: here Kafka has the last entry of
    the time index alone, which may be lower."""
    folder = DATA / case["source"]
    ((_, data),) = bare_log(folder).items()
    with opened(files_of(folder), clean=True) as (_, log):
        segment = log.segments[-1]
        assert truncate_segment(segment, case["truncateTo"]) == case["bytesTruncated"]
        assert segment.size == case["size"]
        assert segment.live().read_next_offset()[0] == case["nextOffset"]
        assert segment.log.read_at(0, len(data)) == data[: case["size"]]
        assert segment.state.offset_entries == case["offsetIndexEntries"]
        assert len(segment.txn_index.entries()) == case["abortedTxns"]
        left = [b for b in lines(folder / "batches.jsonl") if b["position"] < case["size"]]
        largest = max((b["maxTimestamp"] for b in left), default=-1)
        assert segment.state.max_timestamp == largest >= case["largestTimestamp"]
        assert segment.state.time_entries == case["timeIndexEntries"]
