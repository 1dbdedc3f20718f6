"""What a reader on Spark meets and must name: a finding or an error, and never half a result.

Each bad input twice: through the data source, and through the verification, whose findings are the
same with and without Spark.
"""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logstore.spark import verify_on_spark
from logstore.verify import Severity, VerifyReport, verify
from tests.faults import kinds  # noqa: F401
from tests.faults.planter import DIVERGED, plant
from tests.faults.site import Replica, Segment, Site, copied, replace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow

Load = Callable[..., "DataFrame"]


@pytest.fixture
def site(clean: list[str], tmp_path: Path) -> Site:
    return Site(copied(clean, str(tmp_path)))


@pytest.fixture
def replica(site: Site) -> Replica:
    """A partition of several segments on a broker that crashed, so that its log may end anyhow."""
    return next(one for one in site.replicas if len(one.segments) > 2)


@pytest.fixture
def load(spark: SparkSession) -> Load:
    def read(*paths: str, **options: Any) -> DataFrame:
        return spark.read.format("logstore").options(**options).load(list(paths))

    return read


def checked(spark: SparkSession, *paths: str) -> VerifyReport:
    """The report of a verification on Spark, which is that of one without."""
    report, plain = verify_on_spark(spark, *paths).report, verify(paths)
    assert sorted(map(str, report.findings)) == sorted(map(str, plain.findings))
    assert sorted(report.unusable) == sorted(plain.unusable)
    return report


def told(report: VerifyReport) -> set[tuple[str, str, str]]:
    return {(str(f.severity), f.rule, f.file) for f in report.findings if f.severity != "info"}


def error_of(frame: DataFrame) -> str:
    """What an action on ``frame`` fails with."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        frame.count()
    return str(caught.value)


def test_a_corrupt_segment(spark: SparkSession, load: Load, site: Site, replica: Replica) -> None:
    """The error names file, byte and reason; other partitions can be read."""
    spot = replica.batches[len(replica.segments[0].batches()) + 2]
    data = bytearray(spot.segment.read(".log"))
    data[spot.end - 3] ^= 4
    replace(site.storage, spot.log, bytes(data))
    reason = error_of(load(replica.path))
    assert spot.log in reason
    assert str(spot.batch.position) in reason
    assert "checksum" in reason
    topics = {other.tp.topic for other in site.replicas} - {replica.tp.topic}
    assert load(replica.log_dir.path, subscribe=",".join(topics)).count() > 0
    assert ("error", "log-checksum", spot.log) in told(checked(spark, *site.paths))


def test_a_half_written_tail_of_a_live_log(
    spark: SparkSession, load: Load, site: Site, replica: Replica
) -> None:
    """What a writer has not finished is not there yet; it is no fault that a reader stops at."""
    last = replica.batches[-1]
    replace(site.storage, last.log, last.segment.read(".log")[:-5])
    found = load(replica.path).selectExpr("count(*)", "max(offset)").first()
    assert found is not None
    assert found[1] == last.batch.base_offset - 1
    assert found[0] == sum(one.batch.record_count for one in replica.batches[:-1])
    assert told(checked(spark, *site.paths)) == {("warning", "log-torn-end", last.log)}


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_missing_index(
    spark: SparkSession, load: Load, site: Site, replica: Replica, suffix: str
) -> None:
    """Reading goes on without its help."""
    segment = replica.segments[0]
    question = "offset between 20 and 30", f"timestamp >= {_seconds(segment)}"
    expected = [load(replica.path).where(text).count() for text in question]
    assert min(expected) > 0
    site.storage.remove(segment.file(suffix))
    options = {"splitBytes": 1024}
    assert [load(replica.path, **options).where(text).count() for text in question] == expected
    assert ("warning", "log-without-index", segment.file(suffix)) in told(
        checked(spark, *site.paths)
    )


def _seconds(segment: Segment) -> str:
    """The time of a batch in the middle, for SQL."""
    batches = segment.batches()
    return f"timestamp_millis({batches[len(batches) // 2].max_timestamp})"


def test_an_unreadable_log(spark: SparkSession, load: Load, site: Site, replica: Replica) -> None:
    """A directory is where the file should be, which not even root can read."""
    log = replica.segments[1].file(".log")
    site.storage.remove(log)
    os.mkdir(log)
    assert log in error_of(load(replica.path))
    report = checked(spark, *site.paths)
    assert not report.clean
    assert any(finding.file == log for finding in report.findings)
    assert {part.directory for part in report.partitions} >= {
        one.path for one in site.replicas if one is not replica
    }


def test_a_log_that_cannot_be_opened(spark: SparkSession, site: Site, replica: Replica) -> None:
    """A socket bears the name: opening fails, the rest is checked, the whole is not clean."""
    log = replica.segments[1].file(".log")
    site.storage.remove(log)
    os.mknod(log, stat.S_IFSOCK | 0o600)
    report = checked(spark, *site.paths)
    assert not report.clean
    assert [finding for finding in report.findings if finding.file == log]
    assert len(report.partitions) >= len(site.replicas) - 1


def test_an_index_that_cannot_be_opened(
    spark: SparkSession, load: Load, site: Site, replica: Replica
) -> None:
    """Not the same as one that is missing: the medium refused, so who knows what else it hides."""
    index = replica.segments[0].file(".index")
    site.storage.remove(index)
    os.mkdir(index)
    assert index in error_of(load(replica.path, splitBytes=1024))
    report = checked(spark, *site.paths)
    assert not report.clean
    named = [*report.unusable, *(finding.file for finding in report.findings)]
    assert any(index in line for line in named)


def test_a_directory_that_is_no_log_directory(
    spark: SparkSession, load: Load, tmp_path: Path
) -> None:
    odd = tmp_path / "photographs"
    (odd / "holiday").mkdir(parents=True)
    (odd / "beach.jpg").write_bytes(b"\xff\xd8")
    assert str(odd) in error_of(load(str(odd)))
    assert "no log directory" in error_of(load(str(odd)))
    report = checked(spark, str(odd))
    assert not report.clean
    assert {"directory-name", "meta-missing"} <= {finding.rule for finding in report.findings}


def test_a_path_that_is_not_there(
    spark: SparkSession, load: Load, site: Site, tmp_path: Path
) -> None:
    nowhere = str(tmp_path / "nowhere")
    assert nowhere in error_of(load(site.paths[0], nowhere))
    report = checked(spark, site.paths[0], nowhere)
    assert any(nowhere in line for line in report.unusable)
    assert len(report.partitions) == sum(one.log_dir.path == site.paths[0] for one in site.replicas)


def test_two_replicas_that_diverge(spark: SparkSession, load: Load, site: Site) -> None:
    """The source asks which one is meant; the comparison names the first offset that differs."""
    fault = plant(site, "other_history", random.Random(5))
    assert fault.tp is not None
    reason = error_of(load(*site.paths, subscribe=fault.tp.topic))
    assert "replicas" in reason
    assert all(path in reason for path in site.paths)
    rows = (
        load(
            *site.paths,
            replicas="all",
            columns="broker,value,partition,offset",
            subscribe=fault.tp.topic,
        )
        .where(f"partition = {fault.tp.partition} and offset = {fault.offset}")
        .collect()
    )
    assert len(rows) == 3
    assert len({bytes(row.value) for row in rows if row.value is not None}) == 2
    found = [f for f in checked(spark, *site.paths).findings if f.rule == DIVERGED]
    assert {(f.severity, f.topic, f.partition) for f in found} == {(Severity.ERROR, *fault.tp)}
    assert min(f.offset for f in found) == fault.offset
    assert {Path(f.file).parent for f in found} == {Path(fault.directory)}
    assert "parted in epoch" in found[0].message


def test_a_segment_deleted_while_it_is_read(
    spark: SparkSession, load: Load, site: Site, replica: Replica
) -> None:
    """Planned, then gone: retention of a running broker. Data is missing, which is said, or, with
    failOnDataLoss=false, logged."""
    first = replica.segments[0]
    left = sum(spot.batch.record_count for spot in replica.batches if spot.segment != first)
    strict, lenient = (
        load(replica.path, splitBytes=1024, failOnDataLoss=fail).rdd for fail in (True, False)
    )
    planned = strict.getNumPartitions(), lenient.getNumPartitions()
    assert min(planned) > 1
    for suffix in (".log", ".index", ".timeindex"):
        site.storage.remove(first.file(suffix))
    with pytest.raises(Exception, match="deleted meanwhile") as caught:
        strict.count()
    assert first.file(".log") in str(caught.value)
    assert lenient.count() == left
    assert not any(f.severity is Severity.ERROR for f in checked(spark, replica.path).findings)
