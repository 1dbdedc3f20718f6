"""A tier in an object store: the same rows, and no request for what nobody wants."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.object_store import ObjectStore, object_store
from tests.spark.reading import read, reader, tasks
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
