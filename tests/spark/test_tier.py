"""A tier and a log directory as one log: each offset once, from where the options say."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from checkpoints.leader_epoch_checkpoint import LEADER_EPOCH, LeaderEpochCheckpoint
from checkpoints.offset_checkpoint import LOG_START, OffsetCheckpoint
from checkpoints.types import TopicPartition
from logstore.common.errors import ConfigError
from logstore.directory.errors import DataLossError, TierRefusedError
from logstore.directory.tiered import Epochs, parted
from logstore.storage.local import LocalStorage
from tests.spark.reading import offsets, read, reader, tasks
from tests.spark.test_stream import Stream
from tests.spark.tiered import Tiered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def places(path: Path, **options: Any) -> set[tuple[str, int]]:
    """The directories that are read, and the segments."""
    planned = tasks(reader(path, **options))
    return {(Path(split.uri).parts[-2], split.segment_base) for t in planned for split in t.splits}


def test_each_offset_comes_once_wherever_the_border_is(tmp_path: Path) -> None:
    log = Tiered(tmp_path)
    expected = read(log.whole)
    for base in log.bases(log.local):
        log.retain_locally(base)
        for prefer in ("false", "true"):
            assert read(log.local, tier=log.tier, preferTier=prefer) == expected
        assert offsets(read(log.local))[0] == base


def test_transactions_that_cross_the_border(tmp_path: Path) -> None:
    log = Tiered(tmp_path, transactions=True, batches=150)
    expected = read(log.whole, isolation="read_committed")
    assert len(expected) < len(read(log.whole))
    for base in log.bases(log.local):
        log.retain_locally(base)
        for prefer in ("false", "true"):
            options: dict[str, Any] = {
                "tier": log.tier,
                "preferTier": prefer,
                "isolation": "read_committed",
            }
            assert read(log.local, **options) == expected


def test_local_segments_are_preferred(tmp_path: Path) -> None:
    log = Tiered(tmp_path)
    bases = log.bases(log.local)
    log.retain_locally(bases[3])
    found = places(log.local, tier=log.tier)
    assert {base for place, base in found if place == "local"} == set(bases[3:])
    assert all(base < bases[3] for place, base in found if place == "tier")
    preferred = places(log.local, tier=log.tier, preferTier="true")
    assert {base for place, base in preferred if place == "local"} == {bases[-1]}


# --- what does not fit


def test_a_hole_between_tier_and_local_is_refused(tmp_path: Path) -> None:
    log = Tiered(tmp_path)
    tier, local = log.bases(log.tier), log.bases(log.local)
    log.end_tier_at(tier[2])
    for snapshot in log.partition(log.tier).glob("*.snapshot"):
        if int(snapshot.stem) > tier[2]:
            snapshot.unlink()
    border = min(base for base in local if base > tier[2])
    log.retain_locally(border)
    reason = f"offsets {tier[2]} to {border} are in neither: .* a listing of a store may lag"
    with pytest.raises(TierRefusedError, match=reason) as error:
        read(log.local, tier=log.tier)
    assert str(log.partition(log.local)) in str(error.value)
    assert str(log.partition(log.tier)) in str(error.value)


def test_another_batch_at_the_border_is_refused(tmp_path: Path) -> None:
    log, other = Tiered(tmp_path / "one"), Tiered(tmp_path / "other", transactions=True)
    log.retain_locally(log.bases(log.local)[1])
    for name in (LEADER_EPOCH, "partition.metadata"):
        shutil.copy(log.partition(log.local) / name, log.partition(other.tier) / name)
    with pytest.raises(TierRefusedError, match="at offset"):
        read(log.local, tier=other.tier)


def test_other_leader_epochs_below_the_border_are_refused(tmp_path: Path) -> None:
    log = Tiered(tmp_path)
    epochs = LeaderEpochCheckpoint(str(log.partition(log.tier) / LEADER_EPOCH), LocalStorage())
    (first, _), second, *rest = epochs.read()
    border = min(base for base in log.bases(log.local) if base > second[1])
    epochs.write([(first, 0), (first + 1, second[1] - 1), *[e for e in rest if e[0] > first + 1]])
    log.retain_locally(border)
    reason = f"from offset {second[1] - 1} on they were written by different leaders"
    with pytest.raises(TierRefusedError, match=reason):
        read(log.local, tier=log.tier)


A, B, C = (0, 0), (1, 100), (2, 200)


@pytest.mark.parametrize(
    ("tier", "local", "start", "end", "expected"),
    [
        ((), (A,), 0, 100, None),
        ((A, B), (A, B), 0, 300, None),
        ((A, B, C), ((1, 150), C), 0, 300, None),  # the local log starts at 150
        ((A, B), (A, (2, 150)), 0, 120, 100),
        ((A, B), (A, (2, 150)), 0, 100, None),
        ((A, B), (A, B, C), 0, 200, None),
        ((A, B), (A, B, C), 0, 201, 200),
        ((A, (1, 210)), (A, (2, 205)), 150, 220, 205),
        ((A,), ((1, 150),), 0, 200, 150),
        ((A,), ((1, 150),), 0, 150, None),
    ],
)
def test_where_two_histories_part(
    tier: Epochs, local: Epochs, start: int, end: int, expected: int | None
) -> None:
    assert parted(tier, local, start, end) == expected


def test_a_topic_made_anew_is_not_mixed_with_the_old_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, other = Tiered(tmp_path / "one"), Tiered(tmp_path / "other")
    log.retain_locally(log.bases(log.local)[1])
    assert read(log.local, tier=other.tier) == read(log.local)
    assert "of another topic of that name" in caplog.text


def test_a_log_start_that_was_ordered_stands(tmp_path: Path) -> None:
    log = Tiered(tmp_path)
    log.retain_locally(log.bases(log.local)[2])
    starts = OffsetCheckpoint(str(log.local / LOG_START), LocalStorage())
    starts.write({TopicPartition("orders", 0): 11})
    assert offsets(read(log.local, tier=log.tier)) == offsets(read(log.whole))[11:]


def test_a_partition_of_the_tier_alone_is_read_there(tmp_path: Path) -> None:
    log = Tiered(tmp_path)
    expected = read(log.whole)
    shutil.rmtree(log.partition(log.local))
    assert read(log.local, tier=log.tier) == expected


@pytest.mark.parametrize("options", [{"preferTier": "true"}, {"tier": "/t", "replicas": "all"}])
def test_options_without_a_meaning(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        reader(tmp_path, **options)


# --- what changes after the plan


def test_a_segment_that_retention_takes_after_the_plan_is_read_in_the_tier(tmp_path: Path) -> None:
    log = Tiered(tmp_path, transactions=True)
    options: dict[str, Any] = {"isolation": "read_committed", "splitBytes": "2k"}
    expected = read(log.whole, **options)
    bases = log.bases(log.local)
    log.retain_locally(bases[1])
    made = reader(log.local, tier=log.tier, **options)
    planned = tasks(made)
    log.retain_locally(bases[-1])
    rows = [row for task in planned for batch in made.read(task) for row in batch.to_pylist()]
    assert rows == expected
    (log.partition(log.local) / f"{bases[-1]:020}.log").unlink()  # rolled meanwhile, and deleted
    rows = [row for task in planned for batch in made.read(task) for row in batch.to_pylist()]
    assert rows == expected


def test_a_segment_that_neither_place_has_any_more_fails(tmp_path: Path) -> None:
    log = Tiered(tmp_path)
    bases = log.bases(log.local)
    log.retain_locally(bases[1])
    made = reader(log.local, tier=log.tier)
    planned = tasks(made)
    log.retain_locally(bases[3])
    log.end_tier_at(log.bases(log.tier)[1])
    for snapshot in log.partition(log.tier).glob("*.snapshot"):
        snapshot.unlink()
    with pytest.raises(DataLossError, match=r"deleted meanwhile, and .*/tier/orders-0 ends at"):
        [batch for task in planned for batch in made.read(task)]


def test_another_batch_in_the_tier_is_no_spare(tmp_path: Path) -> None:
    log, other = Tiered(tmp_path / "one"), Tiered(tmp_path / "other", transactions=True)
    made = reader(log.local, tier=log.tier)
    planned = tasks(made)
    log.retain_locally(log.bases(log.local)[-1])
    shutil.rmtree(log.tier)
    shutil.copytree(other.tier, log.tier)
    with pytest.raises(DataLossError, match=r"/tier/orders-0 has another batch at offset 0"):
        [batch for task in planned for batch in made.read(task)]


def test_a_stream_begins_in_the_tier_and_goes_on_locally(tmp_path: Path) -> None:
    """Retention runs beside it, and the tier gets what retention takes."""
    log = Tiered(tmp_path)
    expected = [(row["offset"], row["value"]) for row in read(log.whole)]
    later, bases = tmp_path / "later", log.bases(log.local)
    shutil.copytree(log.tier, later)
    log.end_tier_at(log.bases(log.tier)[2])
    log.retain_locally(bases[1])
    options = {"tier": log.tier, "maxOffsetsPerTrigger": 40}
    stream = Stream(log.local, **options)
    found = stream.trigger()
    assert found == expected[: len(found)]
    shutil.rmtree(log.tier)
    shutil.copytree(later, log.tier)
    log.retain_locally(bases[-1])
    found += stream.trigger()
    stream = Stream(log.local, stream.checkpoint, **options)  # after a restart
    while more := stream.trigger():
        found += more
    assert found == expected


def test_spark_reads_both_by_column_and_as_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    log = Tiered(tmp_path, transactions=True)
    log.retain_locally(log.bases(log.local)[2])

    def frame(path: Path, **options: Any) -> DataFrame:
        made = spark.read.format("logstore").option("isolation", "read_committed")
        return made.options(**options).load(str(path))

    whole, both = frame(log.whole), frame(log.local, tier=str(log.tier))
    assert both.collect() == whole.collect()
    assert both.count() == whole.count()
    assert both.where("offset < 50").collect() == whole.where("offset < 50").collect()
    extremes = "min(offset)", "max(timestamp)"
    assert both.selectExpr(*extremes).collect() == whole.selectExpr(*extremes).collect()
    stream = spark.readStream.format("logstore").option("startingOffsets", "earliest")
    query = (
        stream.option("tier", str(log.tier))
        .load(str(log.local))
        .writeStream.format("memory")
        .queryName("both")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert spark.table("both").count() == len(read(log.whole))
