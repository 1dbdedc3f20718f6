"""A wrong base offset, which no checksum covers, is an error in every way of reading."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import GreaterThanOrEqual, LessThan
from pyspark.sql.types import LongType, StructField, StructType

from logstore.common.config import LogConfig
from logstore.common.errors import CorruptBatchError
from logstore.directory.columns import ArrowTable
from logstore.directory.errors import DataLossError
from logstore.directory.offset_order import AscendingOffsets
from logstore.spark.planning import ReadTask
from tests.spark import columnar_wire
from tests.spark.reading import Broker, offsets, read, reader, schema_of, tasks
from tests.spark.test_stream import Stream
from tests.support.builders import batch

SIZE = len(batch(0, 10))
BATCHES = 30  # in each of three segments, of ten records
ASCEND = "offsets do not ascend from here on"

HIGH, LOW = 1 << 40, -15
"""What is added to a base offset: far above all, and into the batch before the one before."""


def flip(path: Path, number: int, change: int) -> None:
    with path.open("r+b") as file:
        file.seek(number * SIZE)
        base = int.from_bytes(file.read(8), "big")
        file.seek(number * SIZE)
        file.write(max(base + change, 0).to_bytes(8, "big"))


def segment_files(logs: Path) -> list[Path]:
    return sorted((logs / "orders-0").glob("*.log"))


def made(path: Path, *, indexed: bool) -> Path:
    config = LogConfig(
        segment_bytes=BATCHES * SIZE,
        index_interval_bytes=4 * SIZE if indexed else 1 << 20,
        segment_index_bytes=4096,
        retention_ms=-1,
    )
    with Broker(path, config, orders=1) as broker:
        for number in range(3 * BATCHES):
            broker.logs["orders"][0].append_as_leader(batch(0, 10, timestamp=number), 0)
    assert len(segment_files(path)) == 3
    return path


@pytest.fixture(params=[True, False], ids=["indexed", "plain"])
def logs(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return made(tmp_path / "logs", indexed=request.param)


def ending(offset: int) -> dict[str, Any]:
    return {"endingOffsets": f'{{"orders": {{"0": {offset}}}}}'}


def summaries(logs: Path) -> list[dict[str, Any]]:
    schema = StructType([StructField(name, LongType()) for name in ("n", "low", "high")])
    given = {"path": str(logs), "pushFilters": "true"}
    names = ["count(*)", "min(offset)", "max(offset)"]
    return columnar_wire.query(given, schema_of(given), schema, aggregates=names)[0]


FLIPS = [
    pytest.param(segment, number, change, id=f"{segment}-{number}-{name}")
    for segment in (0, 1, 2)
    for number in (0, 15, BATCHES - 1)
    for name, change in (("high", HIGH), ("low", LOW))
    if (segment, number, change) not in [(0, 0, LOW), (2, BATCHES - 1, HIGH)]
]
"""Nothing is before the first batch of a log, or behind the last one."""


@pytest.mark.parametrize(("segment", "number", "change"), FLIPS)
def test_no_part_passes_for_the_whole(logs: Path, segment: int, number: int, change: int) -> None:
    file = segment_files(logs)[segment]
    flip(file, number, change)
    end = ending(3 * BATCHES * 10 - 20)
    for options in ({}, end, {"splitBytes": 5 * SIZE}):
        with pytest.raises(CorruptBatchError, match=ASCEND) as caught:
            read(logs, **options)
        assert caught.value.path == str(file)
        assert abs(caught.value.position - number * SIZE) <= 2 * SIZE
    with pytest.raises(columnar_wire.Refused, match=ASCEND):
        summaries(logs)


@pytest.mark.parametrize("change", [HIGH, LOW])
def test_a_filter_or_an_end_hides_no_wrong_offset(tmp_path: Path, change: int) -> None:
    logs = made(tmp_path / "logs", indexed=False)
    flip(segment_files(logs)[1], 15, change)
    first = BATCHES * 10
    for end in (first + 20, first + 160, first + 200):
        with pytest.raises(CorruptBatchError, match=ASCEND):
            read(logs, **ending(end))
        with pytest.raises(CorruptBatchError, match=ASCEND):
            read(logs, filters=[LessThan(("offset",), end)])
    with pytest.raises(CorruptBatchError, match=ASCEND):
        read(logs, filters=[GreaterThanOrEqual(("offset",), first + 155)])
    assert offsets(read(logs, **ending(first))) == list(range(first))


@pytest.mark.parametrize("change", [HIGH, LOW])
def test_a_micro_batch_hides_no_wrong_offset(logs: Path, change: int) -> None:
    flip(segment_files(logs)[1], 15, change)
    with pytest.raises(CorruptBatchError, match=ASCEND):
        Stream(logs).trigger()


@pytest.mark.parametrize("lossy", [False, True])
def test_a_log_that_is_cut_while_it_is_read_is_no_damage(
    tmp_path: Path, lossy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written again may fall below what was read before."""
    logs = made(tmp_path / "logs", indexed=False)

    def cut(order: AscendingOffsets, table: ArrowTable, position: int) -> None:
        os.truncate(segment_files(logs)[-1], 20 * SIZE)
        raise CorruptBatchError(order.split.path, position, ASCEND)

    made_reader = reader(logs, failOnDataLoss=not lossy, startingOffsets="earliest")
    [*_, task] = [ReadTask((split,)) for task in tasks(made_reader) for split in task.splits]
    monkeypatch.setattr(AscendingOffsets, "check", cut)
    if lossy:
        assert list(made_reader.read(task)) == []
    else:
        with pytest.raises(DataLossError, match="the segment was cut from"):
            list(made_reader.read(task))


@pytest.mark.parametrize(("segment", "number", "change"), FLIPS)
def test_dropmalformed_leaves_out_that_batch_alone(
    logs: Path, segment: int, number: int, change: int, caplog: pytest.LogCaptureFixture
) -> None:
    file = segment_files(logs)[segment]
    flip(file, number, change)
    gone = (segment * BATCHES + number) * 10
    expected = [n for n in range(3 * BATCHES * 10) if not gone <= n < gone + 10]
    for options in ({}, ending(3 * BATCHES * 10 - 20)):
        caplog.clear()
        rows = read(logs, mode="dropmalformed", **options)
        end = 3 * BATCHES * 10 - (20 if options else 0)
        assert offsets(rows) == [n for n in expected if n < end]
        assert f"{file}: dropped a batch of {SIZE} bytes at offset" in caplog.text


def test_batches_are_shown_with_the_offsets_that_they_have(logs: Path) -> None:
    flip(segment_files(logs)[0], 15, HIGH)
    rows = read(logs, granularity="batch")
    assert [row["baseOffset"] for row in rows[14:17]] == [140, 150 + HIGH, 160]
    assert len(rows) == 3 * BATCHES
    assert len(read(logs, granularity="batch", **ending(3 * BATCHES * 10))) == 3 * BATCHES
