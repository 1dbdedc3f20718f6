"""Backups, read where they lie, and beside the directory that they are of."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

from logstore.cli import main
from logstore.directory import tiered
from logstore.spark import verify_on_spark
from logstore.spark.native_plan import native_plan
from logstore.tiers import opening
from tests.spark.reading import read, reader, tasks
from tests.spark.test_stream import Stream
from tests.support.tiered_logs import Tiered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def back_up(directory: Path, uri: str | Path) -> None:
    done = CliRunner().invoke(main, ["backup", str(directory), "--to", str(uri)])
    assert done.exit_code == 0, done.output


def rows(made: Any, planned: Any) -> list[dict[str, Any]]:
    return [row for task in planned for batch in made.read(task) for row in batch.to_pylist()]


def test_a_backup_is_what_it_is_of(tmp_path: Path) -> None:
    log, backup = Tiered(tmp_path, transactions=True), tmp_path / "backup"
    back_up(log.whole, backup)
    for level in ("read_uncommitted", "read_committed"):
        for path in (backup, f"file://{backup}"):
            assert read(path, isolation=level) == read(log.whole, isolation=level)
    start = '{"orders": {"0": 77}}'
    assert read(backup, startingOffsets=start) == read(log.whole, startingOffsets=start)
    stamp = read(log.whole)[200]["timestamp"].timestamp() * 1000
    options = {"startingTimestamp": int(stamp), "splitBytes": "2k"}
    assert read(backup, **options) == read(log.whole, **options)


def test_the_jvm_reads_the_objects_of_a_local_backup_in_place(tmp_path: Path) -> None:
    log, backup = Tiered(tmp_path), tmp_path / "backup"
    back_up(log.whole, backup)
    made = reader(backup)
    for task in tasks(made):
        assert native_plan(task, made.settings(), -1, ())
        for split in task.splits:
            assert Path(split.file).is_file()
            assert backup in Path(split.file).parents


def test_a_backup_and_its_directory_are_one_log(tmp_path: Path) -> None:
    """Backed up, then again with what was rolled since; local retention goes on meanwhile."""
    log, backup = Tiered(tmp_path), tmp_path / "backup"
    expected, bases = read(log.whole), log.bases(log.local)
    back_up(log.local, backup)
    for base in bases:
        log.retain_locally(base)
        for prefer in ("false", "true"):
            assert read(log.local, tier=backup, preferTier=prefer) == expected


def test_a_query_reads_the_backup_that_it_was_planned_over(tmp_path: Path) -> None:
    """The next one puts the open segment anew."""
    log, backup = Tiered(tmp_path), tmp_path / "backup"
    expected = read(log.whole)
    back_up(log.whole, backup)
    made = reader(backup)
    planned = tasks(made)
    with log.appending(log.whole) as append:
        append(50)
    back_up(log.whole, backup)
    assert rows(made, planned) == expected
    assert read(backup) == read(log.whole)
    assert len(read(backup)) == len(expected) + 50


def test_what_retention_took_is_found_in_a_later_backup(tmp_path: Path) -> None:
    log, backup = Tiered(tmp_path), tmp_path / "backup"
    bases = log.bases(log.local)
    back_up(log.local, backup)
    with log.appending(log.local) as append:
        append(400)
    expected, now = read(log.local), log.bases(log.local)
    assert len(now) > len(bases)
    log.retain_locally(bases[2])
    made = reader(log.local, tier=backup)
    planned = tasks(made)
    back_up(log.local, backup)
    log.retain_locally(now[-1])
    assert rows(made, planned) == expected


def test_the_backup_of_the_plan_may_be_gone_where_a_later_one_has_its_segments(
    tmp_path: Path,
) -> None:
    """Of another process, which has not read the backup before it was dropped."""
    log, backup = Tiered(tmp_path), tmp_path / "backup"
    bases = log.bases(log.local)
    expected = read(log.whole)
    back_up(log.local, backup)
    log.retain_locally(bases[1])
    made = reader(log.local, tier=backup, startingOffsets=f'{{"orders": {{"0": {bases[1]}}}}}')
    planned = tasks(made)
    with log.appending(log.local) as append:
        append(50)
    back_up(log.local, backup)
    (backup / "logstore-backup" / f"{1:020d}.json").unlink()
    log.retain_locally(log.bases(log.local)[-1])
    for cache in (opening._opened, tiered._layout_in_tier):
        cache.cache_clear()
    assert rows(made, planned) == [row for row in expected if row["offset"] >= bases[1]]


def test_a_stream_over_both_needs_offsets_alone(tmp_path: Path) -> None:
    log, backup = Tiered(tmp_path), tmp_path / "backup"
    expected = [(row["offset"], row["value"]) for row in read(log.whole)]
    back_up(log.local, backup)
    log.retain_locally(log.bases(log.local)[1])
    stream = Stream(log.local, tier=str(backup), maxOffsetsPerTrigger=60)
    found = []
    while more := stream.trigger():
        found += more
        log.retain_locally(log.bases(log.local)[-1])
    assert found == expected


def test_spark_verifies_a_backup_and_compares_it_with_the_directory(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, backup = Tiered(tmp_path), tmp_path / "backup"
    back_up(log.whole, backup)
    clean = verify_on_spark(spark, log.whole, backup).report
    assert not clean.findings
    assert [p.compared_end for p in clean.partitions] == [log.end, log.end]
    path = next(backup.glob("orders-*/0/*.log"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    found = verify_on_spark(spark, log.whole, backup).report.findings
    assert any("log-checksum" in finding.rule for finding in found)
    assert any(
        path.name in str(finding.file) or "orders-0" in str(finding.file) for finding in found
    )
    done = CliRunner().invoke(main, ["verify", str(backup)])
    assert done.exit_code == 1


def test_spark_reads_a_backup_by_column(spark: SparkSession, tmp_path: Path) -> None:
    log, backup = Tiered(tmp_path), tmp_path / "backup"
    back_up(log.whole, backup)
    shutil.copytree(backup, tmp_path / "moved")
    frames = [
        spark.read.format("logstore").load(str(path))
        for path in (log.whole, backup, tmp_path / "moved")
    ]
    whole, *others = (frame.collect() for frame in frames)
    assert others == [whole, whole]
    assert {frame.count() for frame in frames} == {len(whole)}
