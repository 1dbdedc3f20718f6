"""A real ``kill -9`` in the middle of an object; and how much a store of many segments is asked."""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from logstore.backup.content import read_commits, read_content
from logstore.backup.patience import PatientStore
from logstore.tiers import BackupCommit, PartitionBackup, StoredSegment, TopicBackup
from logstore.tiers.keys import INDEXES, LOG, SEGMENT_SUFFIXES, SegmentKey, commit_key
from tests.support.backups import GrowingSource, RiggedStore
from tests.support.commands import logstore, logstore_json

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 11, 16])
def test_kill_9_at_a_put_loses_nothing_and_the_next_run_goes_on(
    tmp_path: Path, number: int
) -> None:
    source = GrowingSource(tmp_path / "data")
    source.write(40, {"orders": 1})
    store = tmp_path / "store"
    killed = subprocess.run(
        [sys.executable, "-m", "tests.unit.backup.backup_killed", source.path, store, str(number)],
        cwd=ROOT,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert not list(store.glob("logstore-backup/*.json"))
    whole = {path.stem for path in store.rglob("*.logstore")}
    made = logstore_json("backup", str(source.path), "--to", str(store))
    assert made["number"] == 1
    assert sum(part["adopted"] for part in made["partitions"]) == len(whole)
    logstore("backup", "check", str(store), "--deep")
    logstore("restore", str(store), "--to", str(tmp_path / "back"))
    logstore("verify", str(source.path), str(tmp_path / "back"))


@pytest.mark.parametrize("segments", [10, 100, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_store_of_many_segments_takes_no_more_requests(segments: int) -> None:
    """Two listings, of which a store makes a page for each 1,000 objects, and the commit."""
    store = RiggedStore()
    topic_id = uuid.UUID(int=7)
    stored = tuple(
        StoredSegment(base, base + 1, uuid.UUID(int=base + 1), 1, 0, (1, 0, 0, 0, 0), 0, 5)
        for base in range(segments)
    )
    part = PartitionBackup(0, 0, segments, segments, stored)
    topic = TopicBackup("orders", topic_id, 1, partitions=(part,))
    for segment in stored:
        key = SegmentKey("orders", topic_id, 0, segment.base_offset, segment.segment_id)
        for suffix in SEGMENT_SUFFIXES:
            assert suffix not in (LOG, INDEXES) or segment.log_size == 1
            store.replace(key.key(suffix), b"x")
    store.replace(commit_key(1), BackupCommit(1, "c", 1, (topic,)).to_json())
    store.calls.clear()
    patient = PatientStore(store)
    found = read_content(patient, read_commits(patient))
    assert not found.lost
    assert not found.candidates
    assert [operation for operation, _ in store.calls] == ["list", "get", "list"]
