"""Log directories in an object store give what the same ones give on a disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import LongType, StructField, StructType

from logstore.cli import main
from logstore.common.errors import LogstoreError
from logstore.directory.errors import DataLossError
from logstore.spark import verify_on_spark
from logstore.spark.data_source import LogstoreDataSource
from logstore.verify import verify
from tests.faults.engine import build
from tests.spark.object_store import SECRET, ObjectStore, object_store
from tests.spark.questions import reading, told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three brokers' directories; in one of them a bit is turned."""
    root = tmp_path_factory.mktemp("brokers")
    build(root)
    shutil.copytree(root / "broker-2", root / "damaged")
    segment = max((root / "damaged" / "orders-1").glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    return root


@pytest.fixture(scope="module")
def uris(store: ObjectStore, brokers: Path) -> dict[str, str]:
    store.upload(brokers, "bucket/logs")
    return {path.name: store.uri(f"bucket/logs/{path.name}") for path in brokers.iterdir()}


OFFSETS = StructType([StructField("offset", LongType())])
NAMES = ("broker-1", "broker-2", "broker-3")
FAULTY = ("broker-1", "damaged", "broker-3")


def test_the_source_reads_what_it_reads_from_a_disk(
    spark: SparkSession, brokers: Path, uris: dict[str, str]
) -> None:
    local = reading(spark, [str(brokers / name) for name in NAMES])
    assert reading(spark, [uris[name] for name in NAMES]) == local
    assert local["whole"]


def test_verification_finds_what_it_finds_on_a_disk(
    spark: SparkSession, brokers: Path, uris: dict[str, str]
) -> None:
    local = told(verify([brokers / name for name in FAULTY]), str(brokers))
    assert local["findings"]
    remote = [uris[name] for name in FAULTY]
    assert told(verify(remote), "s3://bucket/logs") == local
    assert told(verify_on_spark(spark, *remote).report, "s3://bucket/logs") == local


def test_the_command_takes_uris(uris: dict[str, str]) -> None:
    clean = CliRunner().invoke(main, ["verify", uris["broker-2"], "--json"])
    assert clean.exit_code == 0
    report: dict[str, Any] = json.loads(clean.stdout)
    assert {p["topic"] for p in report["partitions"]} == {"orders", "payments"}
    assert report["partitions"][0]["directory"].startswith("s3://bucket/logs/broker-2/")
    faulty = CliRunner().invoke(main, ["verify", uris["damaged"]])
    assert faulty.exit_code == 1
    assert "s3://bucket/logs/damaged/orders-1/" in faulty.stdout
    assert SECRET not in faulty.output + clean.output


# --- what goes wrong


def test_a_path_that_is_not_there_is_named(store: ObjectStore, uris: dict[str, str]) -> None:
    for path in ("no-such-bucket", "bucket/none"):
        done = CliRunner().invoke(main, ["verify", store.uri(path), uris["broker-2"]])
        assert done.exit_code == 2
        assert f"s3://{path}" in done.stderr
        assert "no such file or directory" in done.stderr
        assert "payments-0" in done.stdout  # the rest is checked


def test_denied_access_is_named(store: ObjectStore, uris: dict[str, str]) -> None:
    with store.denying():
        done = CliRunner().invoke(main, ["verify", uris["broker-1"]])
    assert done.exit_code == 2
    assert "s3://bucket/logs/broker-1" in done.stderr
    assert "ACCESS_DENIED" in done.stderr


def test_a_source_without_access_names_the_object(
    spark: SparkSession, store: ObjectStore, uris: dict[str, str]
) -> None:
    with store.denying(), pytest.raises(Exception, match=r"s3://bucket/logs/broker-1") as error:
        spark.read.format("logstore").load(uris["broker-1"]).count()
    assert SECRET not in str(error.value)


def test_a_segment_deleted_after_it_was_planned(store: ObjectStore, brokers: Path) -> None:
    uri = store.upload(brokers / "broker-3", "bucket/shrinking")
    source = LogstoreDataSource(CaseInsensitiveDict({"path": uri, "subscribe": "orders"}))
    reader = source.reader(OFFSETS)
    tasks = reader.partitions()
    segment = max((brokers / "broker-3" / "orders-1").glob("*.log")).name
    store.files.delete_file(f"bucket/shrinking/orders-1/{segment}")
    with pytest.raises(DataLossError, match=segment) as error:
        sum(batch.num_rows for task in tasks for batch in reader.read(task))
    assert SECRET not in str(error.value)


def test_messages_carry_no_credentials(store: ObjectStore, uris: dict[str, str]) -> None:
    """Those of a URI reach logs, the web UI and bug reports otherwise."""
    for options in (
        {"path": store.uri("bucket/none")},
        {"path": store.uri("bucket/logs/broker-1/meta.properties")},
        {"path": store.uri("bucket/logs/*/none")},
        {"path": uris["broker-1"], "subscribe": "no-such-topic"},
        {"paths": json.dumps([uris["broker-1"], uris["broker-3"]])},
        {
            "path": uris["broker-1"],
            "startingOffsets": '{"orders": {"0": 999, "1": 0}}',
            "subscribe": "orders",
        },
    ):
        source = LogstoreDataSource(CaseInsensitiveDict(options))
        reader = source.reader(OFFSETS)
        with pytest.raises(LogstoreError) as error:
            reader.partitions()
        assert SECRET not in str(error.value)
