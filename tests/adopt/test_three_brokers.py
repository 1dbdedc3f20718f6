"""The directories of three brokers, of which one was killed half-way: all, and each alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import kafka_cluster
import kafka_jars
import pytest
from kafka_cluster import IN_TRANSACTIONS, PARTITIONS, REPLICATED

from logstore.verify import verify
from tests.adopt.adopted import Adopted, digest
from tests.adopt.proofs import KEEPING
from tests.adopt.reading import consume, in_sync, ongoing
from tests.support.lanes import missing
from tests.support.until import until

pytestmark = pytest.mark.slow

METADATA = "__cluster_metadata-0"
PLACES = [*((REPLICATED, number) for number in range(PARTITIONS)), (IN_TRANSACTIONS, 0)]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> kafka_cluster.ReplicatedDirectories:
    try:
        kafka_jars.helper_classes()
    except kafka_jars.KafkaUnavailable as error:
        missing(f"no real Kafka: {error}")
    return kafka_cluster.build(tmp_path_factory.mktemp("three"))


def _records(records: Iterable[dict[str, Any]]) -> dict[tuple[str, int], list[tuple[Any, ...]]]:
    """What Kafka's consumer read, by partition, as ``consume`` has it."""
    found: dict[tuple[str, int], list[tuple[Any, ...]]] = {place: [] for place in PLACES}
    for each in records:
        names = ("offset", "timestamp", "key", "value")
        values = (each[name] for name in names)
        record = (*values, tuple(each["headers"]), each["leaderEpoch"])
        found[each["topic"], each["partition"]].append(record)
    return found


def _ours(bootstrap: str) -> dict[tuple[str, int], list[tuple[Any, ...]]]:
    found = consume(bootstrap, PLACES, "read_uncommitted")
    return {place: [(r[0], *r[2:]) for r in records] for place, records in found.items()}


def _adopt(directories: Iterable[Path]) -> list[str]:
    return [f"--adopt={directory}" for directory in directories]


def _copies(three: kafka_cluster.ReplicatedDirectories, directory: Path) -> list[Path]:
    copies = [directory / f"broker-{number}" for number in (1, 2, 3)]
    for source, target in zip(three.paths, copies, strict=True):
        shutil.copytree(source, target)
        (target / ".lock").unlink(missing_ok=True)
    return copies


def test_all_three_read_only(three: kafka_cluster.ReplicatedDirectories, tmp_path: Path):
    """The broker that was killed lags, and must not lead."""
    copies = _copies(three, tmp_path)
    before = [digest(each) for each in copies]
    with Adopted(tmp_path / "log", *_adopt(copies), "--read-only") as served:
        assert _ours(served.bootstrap) == _records(three.uncommitted)
    assert [digest(each) for each in copies] == before


def test_all_three_for_good(three: kafka_cluster.ReplicatedDirectories, tmp_path: Path):
    """The one that lags follows, until its log is that of the others."""
    copies = _copies(three, tmp_path)
    home = tmp_path / "home"
    with Adopted(tmp_path / "log", *_adopt(copies), "--dir", home, *KEEPING) as served:
        until(lambda: not ongoing(served.bootstrap), "open transactions are ended")
        assert _ours(served.bootstrap) == _records(three.uncommitted)
    with Adopted(tmp_path / "again", "--dir", home, *KEEPING) as served:
        assert _ours(served.bootstrap) == _records(three.uncommitted)
        until(lambda: in_sync(served.bootstrap) == 3, "all have caught up")
    report = verify(copies)
    assert report.clean, [str(each) for each in report.findings]


def test_the_last_one_has_all(three: kafka_cluster.ReplicatedDirectories, tmp_path: Path):
    """It was in sync when all the others had gone."""
    copy, _, _ = _copies(three, tmp_path)
    with Adopted(tmp_path / "log", "--adopt", copy, "--read-only") as served:
        assert _ours(served.bootstrap) == _records(three.uncommitted)


def test_what_was_not_in_sync_is_offline_and_no_shorter_log(
    three: kafka_cluster.ReplicatedDirectories, tmp_path: Path
):
    """By the metadata of the last one: its own is of before it was killed."""
    first, _, killed = _copies(three, tmp_path)
    shutil.copytree(first / METADATA, killed / METADATA, dirs_exist_ok=True)
    with Adopted(tmp_path / "log", "--adopt", killed, "--read-only") as served:
        adoption = served.told["adoption"]
        assert adoption["led"] == 0
        assert "out of sync" in {note["kind"] for note in adoption["notes"]}
