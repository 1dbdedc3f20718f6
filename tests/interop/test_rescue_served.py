"""Directories of three real brokers, damaged, rescued, served by a real broker."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import kafka_tools
import pytest
from kafka_cluster import IN_TRANSACTIONS, REPLICATED, ClusterNode, ReplicatedDirectories

from logstore.rescue import RescueReport, rescue
from logstore.storage.local import LocalStorage
from logstore.verify import Severity, verify
from tests.histories.rescue_damage import damage
from tests.histories.rescue_model import read_damaged, read_log

pytestmark = [pytest.mark.slow, pytest.mark.essential]

# The brokers write other batches in each run, so a seed is not the same damage twice. Where a file
# has many damaged places, nothing may be left that proves what was there.
PLACES = int(os.environ.get("LOGSTORE_RESCUE_PLACES", "20"))
CONTROLLER = "__cluster_metadata-0"
TOPICS = (REPLICATED, IN_TRANSACTIONS)
GAPS = {"log-offset-order", "producer-sequence"}  # how verify tells that records are missing

Record = dict[str, Any]


def _damaged(paths: tuple[Path, ...], target: Path, seed: int) -> list[Path]:
    copies = [target / f"broker-{number}" for number in range(1, len(paths) + 1)]
    for path, copy in zip(paths, copies, strict=True):
        shutil.copytree(path, copy, ignore=shutil.ignore_patterns(CONTROLLER))
    damage(random.Random(seed), LocalStorage(), [str(copy) for copy in copies], PLACES)
    return copies


def _held(paths: tuple[Path, ...], copies: list[Path]) -> dict[str, set[int]]:
    """By partition, the offsets of all batches that a damaged directory still has, byte by byte."""
    storage = LocalStorage()
    found: dict[str, set[int]] = {}
    for directory in sorted(paths[0].iterdir()):
        if directory.name.startswith(TOPICS):
            left = read_damaged(storage, [str(copy / directory.name) for copy in copies])
            batches = read_log(storage, str(directory))
            offsets = (range(b.first, b.next) for b in batches if left.intact(b))
            found[directory.name] = {offset for each in offsets for offset in each}
    return found


def _serve(result: Path, original: Path, directory: Path) -> list[Record]:
    """What a consumer reads from a broker that starts on the result. The log of the controllers is
    no part of a rescue: it comes from the broker that the result stands in for."""
    node = ClusterNode(directory / "broker-1", 1, None)
    shutil.copytree(result, node.log_dir)
    shutil.copytree(original / CONTROLLER, node.log_dir / CONTROLLER)
    with node:
        return kafka_tools.consume(node.bootstrap, list(TOPICS))


def _key(record: Record) -> tuple[str, int]:
    return f"{record['topic']}-{record['partition']}", record["offset"]


@pytest.mark.parametrize("seed", [1])
def test_a_broker_serves_every_record_that_a_replica_holds(
    kafka_replicas: ReplicatedDirectories, tmp_path: Path, seed: int
) -> None:
    copies = _damaged(kafka_replicas.paths, tmp_path / "damaged", seed)
    held = _held(kafka_replicas.paths, copies)
    result = tmp_path / "rescued"
    report = rescue([str(copy) for copy in copies], str(result), broker=1)
    _check_verified(result, report)

    served = {_key(r): r for r in _serve(result, kafka_replicas.paths[0], tmp_path / "served")}
    written = {_key(record): record for record in kafka_replicas.uncommitted}
    assert all(written[key] == record for key, record in served.items())
    wanted = {key for key in written if key[1] in held[key[0]]}
    assert wanted <= set(served)
    for name, offset in set(written) - set(served):
        assert _is_told(report, name, offset), (name, offset)


def _check_verified(result: Path, report: RescueReport) -> None:
    """Clean, but for the gaps that were told."""
    verified = verify([str(result)])
    told = [f for f in verified.findings if f.severity is not Severity.INFO]
    gaps = {f"{p.topic}-{p.partition}" for p in report.partitions if p.gaps}
    assert {f.rule for f in told} <= GAPS
    assert {f"{f.topic}-{f.partition}" for f in told} <= gaps
    assert not [f for f in told if f.severity is Severity.ERROR]


def _is_told(report: RescueReport, name: str, offset: int) -> bool:
    (found,) = (p for p in report.partitions if f"{p.topic}-{p.partition}" == name)
    return any(gap.first <= offset < gap.next for gap in found.gaps)
