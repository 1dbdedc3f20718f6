"""Backups in S3, by the real protocol: made, checked, damaged, and brought back by commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.storage.uri import join_uri
from tests.spark.object_store import ObjectStore, object_store
from tests.support.backups import GrowingSource
from tests.support.commands import logstore, logstore_json


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


@pytest.fixture
def uri(store: ObjectStore, tmp_path: Path) -> str:
    return join_uri(store.uri("bucket"), tmp_path.name)


def _keys(store: ObjectStore, tmp_path: Path, suffix: str) -> list[str]:
    listed = store.client.list_objects_v2(Bucket="bucket", Prefix=f"{tmp_path.name}/")
    return [found["Key"] for found in listed["Contents"] if found["Key"].endswith(suffix)]


@pytest.mark.slow
def test_a_directory_goes_to_s3_and_comes_back(
    store: ObjectStore, uri: str, tmp_path: Path
) -> None:
    source = GrowingSource(tmp_path / "data")
    source.write(transactions=True)
    told = logstore("backup", str(source.path), "--to", uri)
    assert f"s3://bucket/{tmp_path.name} has backup 1" in told.output
    assert "not-for-messages" not in told.output
    assert not logstore_json("backup", str(source.path), "--to", uri)["committed"]
    source.write(5)
    assert logstore_json("backup", str(source.path), "--to", uri)["number"] == 2
    checked = logstore_json("backup", "check", uri, "--deep")
    assert checked["backups"] == [1, 2]
    logstore("restore", uri, "--to", str(tmp_path / "back"))
    logstore("verify", str(source.path), str(tmp_path / "back"))
    logstore("restore", uri, "--to", str(tmp_path / "first"), "--backup", "1")


@pytest.mark.slow
def test_damage_in_s3_is_named(store: ObjectStore, uri: str, tmp_path: Path) -> None:
    source = GrowingSource(tmp_path / "data")
    source.write(20, {"orders": 1})
    logstore("backup", str(source.path), "--to", uri)
    flipped, missing = _keys(store, tmp_path, ".log")[:2]
    data = bytearray(store.client.get_object(Bucket="bucket", Key=flipped)["Body"].read())
    data[50] ^= 1
    store.client.put_object(Bucket="bucket", Key=flipped, Body=bytes(data))
    told = logstore("restore", uri, "--to", str(tmp_path / "back"), code=2)
    assert flipped.removeprefix(f"{tmp_path.name}/") in told.output
    assert not (tmp_path / "back").exists()
    store.client.delete_object(Bucket="bucket", Key=missing)
    report = logstore_json("backup", "check", uri, "--deep", code=1)
    faults = {(each["fault"], each["place"]) for each in report["findings"]}
    names = [key.removeprefix(f"{tmp_path.name}/") for key in (flipped, missing)]
    assert faults == {("torn", names[0]), ("missing", names[1])}
    healed = logstore_json("backup", str(source.path), "--to", uri)
    assert sum(part["put"] for part in healed["partitions"]) == 1  # the size of the other fits
    with store.denying():
        logstore("backup", str(source.path), "--to", uri, code=2)
