"""A tier in an object store: the same rows, and no request for what nobody wants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.spark.object_store import ObjectStore, object_store
from tests.spark.reading import SMALL, Broker, read, reader, tasks
from tests.spark.test_backup import back_up
from tests.support.tiered_logs import Tiered

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


def test_the_older_part_is_read_in_the_store(store: ObjectStore, tmp_path: Path) -> None:
    log = Tiered(tmp_path, transactions=True)
    uri = store.upload(log.tier, "bucket/raw")
    log.retain_locally(log.bases(log.local)[2])
    for level in ("read_uncommitted", "read_committed"):
        options = {"isolation": level}
        expected = read(log.whole, **options)  # type: ignore[arg-type]
        assert read(log.local, tier=uri, **options) == expected  # type: ignore[arg-type]


def test_what_retention_takes_after_the_plan_is_read_in_the_store(
    store: ObjectStore, tmp_path: Path
) -> None:
    log = Tiered(tmp_path)
    expected = read(log.whole)
    uri = store.upload(log.tier, "bucket/after")
    made = reader(log.local, tier=uri)
    planned = tasks(made)
    with store.requests() as asked:
        log.retain_locally(log.bases(log.local)[-1])
        rows = [row for task in planned for batch in made.read(task) for row in batch.to_pylist()]
    assert rows == expected
    assert asked


# --- what is asked of the store


SEGMENTS = 150


@pytest.fixture(scope="module")
def long_log(store: ObjectStore, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A backup of a log of many segments, with three records in each."""
    path = tmp_path_factory.mktemp("long")
    config = replace(SMALL, segment_bytes=400)
    with Broker(path, config, orders=1) as broker:
        (log,) = broker.logs["orders"]
        while len(log.segments) < SEGMENTS:
            broker.clock.advance(1000)
            log.append([(b"key", b"x" * 60, broker.clock.wall_ms())])
    uri = store.uri("bucket/long")
    back_up(path, uri)
    return uri


def objects(asked: list[str]) -> set[str]:
    return {each.split(" ")[1].partition("?")[0] for each in asked if ".log" in each}


def test_planning_takes_no_request_for_each_segment(store: ObjectStore, long_log: str) -> None:
    """The commit names the segments; the last one is looked into for the end of the log."""
    with store.requests() as asked:
        planned = tasks(reader(long_log))
    assert sum(len(task.splits) for task in planned) >= SEGMENTS - 1
    assert len(asked) <= 16, asked


def test_a_range_of_offsets_opens_only_what_has_it(store: ObjectStore, long_log: str) -> None:
    bounds = {
        "startingOffsets": '{"orders": {"0": 90}}',
        "endingOffsets": '{"orders": {"0": 94}}',
    }
    made = reader(long_log, **bounds)  # type: ignore[arg-type]
    with store.requests() as asked:
        planned = tasks(made)
        rows = [row for task in planned for batch in made.read(task) for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == [90, 91, 92, 93]
    of_range = {split.segment_base for task in planned for split in task.splits}
    assert len(of_range) <= 3
    assert len(objects(asked)) <= len(of_range) + 1
    assert len(asked) <= 40, asked


def test_a_time_opens_only_what_has_it(store: ObjectStore, long_log: str) -> None:
    whole = read(long_log)
    stamp = int(whole[-5]["timestamp"].timestamp() * 1000)
    made = reader(long_log, startingTimestamp=stamp)
    with store.requests() as asked:
        planned = tasks(made)
        rows = [row for task in planned for batch in made.read(task) for row in batch.to_pylist()]
    assert rows == whole[-5:]
    assert len(objects(asked)) <= 4
    assert len(asked) <= 40, asked
