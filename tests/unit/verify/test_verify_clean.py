"""What Apache Kafka and our own engine write verifies clean, and is not touched by that."""

from __future__ import annotations

import json
import random
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from verify_logs import (
    CODECS,
    LOG_DIR,
    PARTITION,
    SMALL,
    check,
    copy,
    cut,
    fill,
    log_dir,
    names,
    patch,
    short,
    state_of,
)

from logstore.common.config import LogConfig
from logstore.format import filenames
from logstore.format.codecs.compression import Compression
from logstore.format.index_entry import OFFSET_ENTRY, TXN_ENTRY, decode_aborted
from logstore.log import PartitionLog
from logstore.manager import LogManager, ManagerOwner
from logstore.segments.producer_state import AppendOrigin
from logstore.storage.memory import MemoryStorage
from logstore.testing import FaultyStorage, ManualClock
from logstore.verify import verify
from tests.support.builders import marker, produced
from tests.support.cases import for_each

GOLDEN = Path(__file__).parents[2] / "golden" / "data"

# Each folder is a bare segment. Without a leader-epoch-checkpoint epochs can only be compared with
# their neighbours, which is said; batches before magic 2 have no epochs. Gaps are normal once
# compaction took records out.
NO_EPOCH_FILE = {"epochs-start"}
EXPECTED_INFOS = {"v2-compacted-none": {"epochs-start", "log-compacted-gap"}, "v2-txn": set()}


@for_each("folder", sorted(GOLDEN.glob("v[012]-*")), name=lambda path: path.name)
def test_segments_of_kafka_are_clean(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "topic-0"
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.json", "*.jsonl"))
    report = verify([target])
    assert short(report) == []
    assert report.clean
    infos = EXPECTED_INFOS.get(
        folder.name, NO_EPOCH_FILE if folder.name.startswith("v2") else set()
    )
    # The writer's own index entries are those of appends of several batches.
    assert {finding.rule for finding in report.findings} - {"index-skips-batches"} == infos
    lines = (folder / "batches.jsonl").read_text().splitlines()
    assert report.partitions[0].batches == len(lines)
    records = (folder / "records.jsonl").read_text().splitlines()
    assert report.partitions[0].records == len(records)


OLD = [path for path in sorted(GOLDEN.glob("v[012]-*")) if "compacted" not in path.name]


@for_each("folder", OLD, name=lambda path: path.name)
def test_an_index_of_kafka_before_2_0(folder: Path, tmp_path: Path) -> None:
    """F-113: an entry names the first offset of the batch it leads to. Another one is a fault."""
    target = tmp_path / "topic-0"
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.json", "*.jsonl"))
    (index,) = target.glob("*.index")
    base = int(index.stem)
    headers = [json.loads(line) for line in (folder / "batches.jsonl").read_text().splitlines()]
    last, entries, between = 0, [], None
    for before, header in pairwise(headers):
        position, first = header["position"], before["nextOffset"]
        if position - last > 200:
            entries.append((first - base, position))
            last = position
            if header["lastOffset"] - first > 1:
                between = len(entries) - 1
    assert entries
    index.write_bytes(b"".join(OFFSET_ENTRY.pack(*entry) for entry in entries))
    assert short(verify([target])) == []
    if folder.name.startswith("v2") and between is not None:
        offset, position = entries[between]
        entries[between] = offset + 1, position  # neither the first of it nor the last
        index.write_bytes(b"".join(OFFSET_ENTRY.pack(*entry) for entry in entries))
        assert [rule for _, rule, _ in short(verify([target]))] == ["index-entry"]
        entries[between] = offset, position
    entries[-1] = entries[-1][0] - 1, entries[-1][1]  # of the batch before
    index.write_bytes(b"".join(OFFSET_ENTRY.pack(*entry) for entry in entries))
    assert "index-entry" in [rule for _, rule, _ in short(verify([target]))]


def test_checkpoints_of_kafka_are_clean(tmp_path: Path) -> None:
    """Their partitions are not there, which is a warning (S-55); nothing else is."""
    shutil.copytree(GOLDEN / "checkpoints", tmp_path / "d")
    report = verify([tmp_path / "d"])
    rules = {finding.rule for finding in report.findings}
    assert rules <= {
        "checkpoint-stray",
        "meta-missing",
        "index-without-log",
        "snapshot-above-log",
        "epochs-range",
        "log-start-offset",
        "recovery-point",
        "high-watermark",
        "cleaner-offset",
    }


@for_each("clean", [True, False])
@for_each("codec", CODECS)
def test_every_codec(codec: str, clean: bool) -> None:
    report = check(log_dir(codecs=[codec], clean=clean))
    assert report.findings == []
    assert report.partitions[0].segments > 1
    assert report.partitions[0].log_end_offset == report.partitions[0].records


@for_each("clean", [True, False])
@for_each("seed", range(6))
def test_transactions(seed: int, clean: bool) -> None:
    storage = log_dir(transactions=True, seed=seed, batches=120, clean=clean)
    assert names(storage, ".txnindex")
    assert names(storage, ".snapshot")
    assert check(storage).findings == []


@pytest.mark.parametrize("transactions", [False, True])
def test_after_truncation_and_retention(transactions: bool) -> None:
    storage, clock = MemoryStorage(), ManualClock()
    storage.make_dir(LOG_DIR)
    log = PartitionLog.open(PARTITION, SMALL, storage=storage, clock=clock)
    rng = random.Random(5)
    fill(log, clock, 120, rng, transactions)
    bases = [segment.base_offset for segment in log.segments]
    log.truncate_to(bases[-1])
    fill(log, clock, 30, rng)
    assert log.delete_records(bases[2] + 1) == bases[2] + 1
    log.maintenance.delete_old_segments()
    log.flusher.save_epochs()
    report = check(storage, PARTITION)
    assert short(report) == []
    log.close()
    report = check(storage, PARTITION)
    assert short(report) == []
    assert report.partitions[0].log_start_offset == bases[2] + 1  # close leaves it on file


@pytest.mark.parametrize("clean", [True, False])
def test_deleted_records_of_an_open_transaction(clean: bool) -> None:
    """A start knows only what its producers wrote from the log start on: the ABORT ends nothing."""
    storage, clock = MemoryStorage(), ManualClock()
    manager = LogManager([LOG_DIR], SMALL, storage=storage, clock=clock)
    log = manager.create_topic("orders", 1)[0]
    log.append_as_leader(produced(1, 0, 4, transactional=True), 0)
    log.append_as_leader(produced(2, 0, 4), 0)
    log.delete_records(6)
    manager.close()
    assert check(storage).findings == []
    manager = LogManager([LOG_DIR], SMALL, storage=storage, clock=clock)
    log = manager.get("orders", 0)
    log.append_as_leader(marker(commit=False, producer_id=1), 0, AppendOrigin.COORDINATOR)
    log.append_as_leader(produced(2, 4, 2), 0)
    log.roll()
    log.append_as_leader(produced(2, 6, 2), 0)
    manager.close() if clean else manager.crash()
    assert short(check(storage)) == []


@pytest.mark.parametrize(
    ("topic", "found"), [("__consumer_offsets", []), ("orders", ["producer-sequence"])]
)
def test_a_coordinator_does_not_count_its_batches(topic: str, found: list[str]) -> None:
    """F-192. Offsets in transactions have sequence 0 in every batch, as Kafka writes them."""
    storage = MemoryStorage()
    manager = LogManager([LOG_DIR], SMALL, storage=storage, clock=ManualClock())
    log = manager.create_topic(topic, 1)[0]
    for _ in range(2):
        batch = produced(1, 0, 4, transactional=True)
        log.append_as_leader(batch, 0, AppendOrigin.COORDINATOR)
        log.append_as_leader(marker(commit=True, producer_id=1), 0, AppendOrigin.COORDINATOR)
    manager.close()
    told = [rule for _, rule, _ in short(check(storage))]
    assert [rule for rule in told if rule != "coordinator-record"] == found


@pytest.mark.parametrize("offset", [5, 6, 8])
def test_a_cut_inside_a_batch(offset: int) -> None:
    storage, clock = MemoryStorage(), ManualClock()
    manager = LogManager(
        [LOG_DIR], SMALL, storage=storage, clock=clock, owner=ManagerOwner(replicated=True)
    )
    log = manager.create_topic("orders", 1)[0]
    for sequence in (0, 4, 8):
        log.append_as_leader(produced(1, sequence, 4), 0)
    manager.truncate_to({log.topic_partition: offset})
    assert short(check(storage)) == []
    log.append_as_leader(produced(1, log.producers.known.producers[1].last_sequence + 1, 4), 0)
    manager.close()
    assert check(storage).findings == []


@pytest.mark.parametrize("stable", [3, 4, 5])
def test_a_follower_counts_what_begins_behind_a_marker(stable: int) -> None:
    """F-123: of all that it got in one append. Another offset is a fault."""
    storage, clock = MemoryStorage(), ManualClock()
    manager = LogManager([LOG_DIR], SMALL, storage=storage, clock=clock)
    log = manager.create_topic("orders", 1)[0]
    log.append_as_leader(produced(1, 0, 2, transactional=True), 0)
    log.append_as_leader(marker(commit=False, producer_id=1), 0, AppendOrigin.COORDINATOR)
    log.append([(b"x", b"plain")])
    log.append_as_leader(produced(2, 0, 2, transactional=True), 0)
    manager.close()
    (path,) = names(storage, ".txnindex")
    entry = decode_aborted(storage.read_file(path), path)[0]
    assert entry.last_stable_offset == 3
    patch(storage, path, 0, TXN_ENTRY.pack(0, *entry._replace(last_stable_offset=stable)))
    assert [rule for _, rule, _ in short(check(storage))] == (
        ["txnindex-offsets"] if stable == 5 else []
    )


def test_append_time_and_preallocation() -> None:
    config = LogConfig(segment_bytes=5000, preallocate=True, message_timestamp_type="LogAppendTime")
    report = check(log_dir(config, clean=False))
    assert short(report) == []
    assert check(log_dir(config)).findings == []


def test_an_empty_directory() -> None:
    storage = MemoryStorage()
    storage.make_dir(PARTITION)
    report = check(storage, PARTITION)
    assert report.clean
    assert report.partitions[0].batches == 0


def test_nothing_is_touched() -> None:
    """Not even a lock file is made."""
    storage = log_dir(transactions=True, clean=False)
    before = state_of(storage)
    assert check(storage).clean
    assert state_of(storage) == before


def test_a_live_log_is_clean_at_every_moment() -> None:
    """S-47 aside: what a writer left half done is no damage."""
    storage, clock = MemoryStorage(), ManualClock()
    storage.make_dir(LOG_DIR)
    log = PartitionLog.open(PARTITION, SMALL, storage=storage, clock=clock)
    rng = random.Random(2)
    for _ in range(25):
        fill(log, clock, 7, rng, transactions=True)
        assert short(check(storage, PARTITION)) == []
    log.crash()


def test_the_fingerprint_is_that_of_the_content() -> None:
    """The same records in other segments and epochs give the same; other records do not."""
    one, two = (check(log_dir(c), fingerprint=True) for c in (SMALL, LogConfig()))
    assert one.partitions[0].fingerprint == two.partitions[0].fingerprint
    assert one.partitions[0].segments > two.partitions[0].segments
    other = check(log_dir(seed=2), fingerprint=True).partitions[0].fingerprint
    assert one.partitions[0].fingerprint != other
    assert check(log_dir()).partitions[0].fingerprint == ""


def test_single_files() -> None:
    storage = log_dir(transactions=True)
    for path in state_of(storage):
        report = verify([path], storage=storage)
        assert report.clean != path.endswith(".lock"), path
        assert report.findings == []


def test_one_path_may_be_given_as_it_is() -> None:
    storage = log_dir()
    assert verify(LOG_DIR, storage=storage).partitions[0].topic == "orders"
    assert verify(Path(PARTITION), storage=storage).partitions[0].topic == "orders"
    with pytest.raises(ValueError, match="no path"):
        verify([], storage=storage)


def test_a_clean_shutdown_promises_nothing_of_the_metadata_log() -> None:
    """A start of it cuts its tail, whatever the marker of the log directory says."""
    storage = log_dir()
    name = f"{LOG_DIR}/{filenames.CLUSTER_METADATA_DIR}"
    copy(storage, PARTITION, storage, name)
    last = names(storage, ".log", name)[-1]
    cut(storage, last, -3)
    told = [(f.severity, f.rule) for f in check(storage, name).findings if f.file == last]
    assert told == [("warning", "log-torn-end")]


def test_a_batch_that_unpacks_to_much_is_read() -> None:
    """A compressed batch of 1 MiB may hold very much more."""
    storage, clock = MemoryStorage(), ManualClock()
    storage.make_dir(LOG_DIR)
    log = PartitionLog.open(PARTITION, LogConfig(), storage=storage, clock=clock)
    log.append([(b"", bytes(20 << 20))] * 2, compression=Compression.ZSTD)
    log.crash()
    assert check(storage, PARTITION).findings == []
    told = check(storage, PARTITION, unpacked_max=16 << 20).findings
    assert [(f.severity, f.rule) for f in told] == [("warning", "unpacks-too-much")]


def test_a_path_that_is_not_there() -> None:
    report = verify(["/nowhere"], storage=MemoryStorage())
    assert not report.clean
    assert report.unusable == ["/nowhere: no such file or directory"]


def test_progress_ends_at_the_total() -> None:
    storage = log_dir()
    calls: list[tuple[int, int]] = []
    verify([LOG_DIR], storage=storage, progress=lambda done, total: calls.append((done, total)))
    size = sum(len(storage.read_file(path)) for path in names(storage, ".log"))
    assert calls[-1] == (size, size)


def test_a_medium_that_refuses_is_told_and_the_rest_is_checked() -> None:
    storage = FaultyStorage()
    for name in ("orders-0", "orders-1"):
        storage.make_dir(f"{LOG_DIR}/{name}")
        storage.write_file(f"{LOG_DIR}/{name}/{0:020d}.log", bytes(100))
    storage.fail("read", "*orders-0/*.log")
    report = check(storage)
    assert len(report.unusable) == 1
    assert "orders-0" in report.unusable[0]
    assert [part.partition for part in report.partitions] == [1]
    assert not report.clean
