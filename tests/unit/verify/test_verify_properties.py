"""All partitions of a topic have one ``topic.properties``, or none has one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from logstore.manager import LogManager
from logstore.verify import verify


def made(path: Path, partitions: int) -> Path:
    with LogManager([path]) as manager:
        manager.create_topic("t", partitions, {"segment.bytes": 100_000})
    return path


def remove(log_dir: Path, partitions: Iterable[int]) -> list[Path]:
    paths = [log_dir / f"t-{partition}" / "topic.properties" for partition in partitions]
    for path in paths:
        path.unlink()
    return paths


@pytest.mark.parametrize("removed", [[0], [1], [2], [0, 2]])
def test_a_missing_configuration_is_told_where_another_partition_has_it(
    tmp_path: Path, removed: list[int]
) -> None:
    gone = remove(made(tmp_path, 3), removed)
    found = [(f.rule, f.severity.name, f.file) for f in verify([tmp_path]).findings]
    assert sorted(found) == [("topic-properties", "WARNING", str(path)) for path in gone]


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_topic_without_configuration_is_clean(tmp_path: Path, partitions: int) -> None:
    remove(made(tmp_path, partitions), range(partitions))
    assert verify([tmp_path]).clean


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_change_may_be_under_way_while_a_broker_is_at_work(
    tmp_path: Path, is_missing: bool
) -> None:
    """It writes one file after the other, and may be killed between two."""
    path = tmp_path / "t-1" / "topic.properties"
    with LogManager([tmp_path]) as manager:
        manager.create_topic("t", 3, {"segment.bytes": 100_000})
        before = path.read_bytes()
        manager.alter_topic("t", {"segment.bytes": 200_000})
        path.unlink() if is_missing else path.write_bytes(before)
        (found,) = verify([tmp_path]).findings
    assert (found.rule, found.severity.name, found.file) == ("topic-properties", "INFO", str(path))
    (found,) = verify([tmp_path]).findings
    assert found.severity.name == "WARNING"
