"""``logstore backup`` and ``logstore restore`` as a person runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.backups import GrowingSource, flip
from tests.support.commands import logstore, logstore_json


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> GrowingSource:
    found = GrowingSource(tmp_path_factory.mktemp("written") / "data")
    found.write(transactions=True)
    return found


@pytest.fixture
def source(written: GrowingSource, tmp_path: Path) -> GrowingSource:
    return written.copy(tmp_path / "data")


@pytest.fixture
def store(tmp_path: Path) -> str:
    return (tmp_path / "store").as_uri()


def _objects(tmp_path: Path, suffix: str) -> list[Path]:
    return sorted((tmp_path / "store").rglob(f"*{suffix}"))


def test_a_directory_goes_and_comes_back(source: GrowingSource, store: str, tmp_path: Path) -> None:
    told = logstore("backup", str(source.path), "--to", store)
    assert "has backup 1: 3 partitions" in told.output
    again = logstore("backup", str(source.path), "--to", store)
    assert "nothing is new since backup 1" in again.output
    checked = logstore("backup", "check", store, "--deep")
    assert "1 backups, the newest is 1" in checked.output
    assert "nothing is wrong" in checked.output
    back = str(tmp_path / "back")
    assert "is backup 1, whole" in logstore("restore", store, "--to", back).output
    logstore("verify", str(source.path), back)
    here, there = (logstore("read", place, "orders") for place in (str(source.path), back))
    assert here.output == there.output


def test_json_has_all_that_the_tables_have(
    source: GrowingSource, store: str, tmp_path: Path
) -> None:
    made = logstore_json("backup", str(source.path), "--to", store)
    assert made["whole"]
    assert made["committed"]
    assert {part["topic"] for part in made["partitions"]} == {"orders", "__consumer_offsets"}
    checked = logstore_json("backup", "check", store)
    assert checked["backups"] == [1]
    restored = logstore_json("restore", store, "--to", str(tmp_path / "back"))
    ends = {(p["topic"], p["partition"]): p["endOffset"] for p in made["partitions"]}
    assert ends == {(p["topic"], p["partition"]): p["endOffset"] for p in restored["partitions"]}


def test_damage_in_the_source_is_one_and_an_error_is_two(
    source: GrowingSource, store: str, tmp_path: Path
) -> None:
    log = source.logs()[0]
    flip(log)
    told = logstore("backup", str(source.path), "--to", store, code=1)
    assert "damaged: orders-0 [" in told.output
    assert "a checksum that does not match" in told.output
    assert logstore_json("restore", store, "--to", str(tmp_path / "back"), code=1)["findings"]
    told = logstore("backup", str(tmp_path / "nothing"), "--to", store, code=2)
    assert "no such file" in told.output
    told = logstore("restore", (tmp_path / "no").as_uri(), "--to", str(tmp_path / "b"), code=2)
    assert "there is no backup" in told.output


def test_bit_rot_and_orphans_are_found_through_the_front_door(
    source: GrowingSource, store: str, tmp_path: Path
) -> None:
    logstore("backup", str(source.path), "--to", store)
    stray = _objects(tmp_path, ".log")[0]
    orphan = stray.with_name(stray.name.replace(stray.name[30:33], "AAA"))
    orphan.write_bytes(b"half")
    assert "too young" in logstore("backup", "check", store).output
    told = logstore("backup", "check", store, "--older-than", "0s", code=1)
    assert f"orphan: {orphan.relative_to(tmp_path / 'store')}" in told.output
    logstore("backup", "check", store, "--older-than", "0s", "--delete")
    assert not orphan.exists()
    victim = _objects(tmp_path, ".log")[-1]
    flip(victim, 40)
    logstore("backup", "check", store)
    told = logstore("backup", "check", store, "--deep", code=1)
    assert "torn: orders-1 [" in told.output
    told = logstore("restore", store, "--to", str(tmp_path / "back"), code=2)
    assert victim.name in told.output
    assert not (tmp_path / "back").exists()


def test_a_time_and_offsets_end_what_is_restored(
    source: GrowingSource, store: str, tmp_path: Path
) -> None:
    logstore("backup", str(source.path), "--to", store)
    ends = tmp_path / "ends.json"
    ends.write_text(json.dumps({"orders": {"0": 10, "1": -1}}))
    made = logstore_json(
        "restore", store, "--to", str(tmp_path / "a"), "--offsets", str(ends), "--topics", "ord.*"
    )
    assert [part["topic"] for part in made["partitions"]] == ["orders", "orders"]
    assert made["partitions"][0]["endOffset"] <= 10
    assert made["partitions"][1]["endOffset"] == made["partitions"][1]["endInBackup"]
    told = logstore("restore", store, "--to", str(tmp_path / "c"), "--offsets", str(ends))
    assert "cut as asked: of 3 partitions 1 end before the backup does" in told.output
    made = logstore_json("restore", store, "--to", str(tmp_path / "b"), "--at", "2001-01-01")
    assert {part["endOffset"] for part in made["partitions"]} == {0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "give {"),
        ('{"orders": 3}', "has no partitions"),
        ('{"orders": {"x": 3}}', "has a partition 'x'"),
        ('{"orders": {"0": 3.5}}', "has no offset"),
        ('{"orders": {"0": -3}}', "has no offset"),
        ("{", "ends.json"),
    ],
)
def test_offsets_that_make_no_sense_are_refused_in_one_line(
    store: str, tmp_path: Path, text: str, message: str
) -> None:
    ends = tmp_path / "ends.json"
    ends.write_text(text)
    told = logstore("restore", store, "--to", str(tmp_path / "a"), "--offsets", str(ends), code=2)
    assert message in told.output
    assert told.output.count("\n") == 1


def test_a_target_that_is_no_store_and_ages_that_are_none(
    source: GrowingSource, store: str
) -> None:
    told = logstore("backup", "check", store, "--older-than", "soon", code=2)
    assert "give a time such as 30m, 24h or 7d" in told.output
    told = logstore("backup", str(source.path), "--to", store, "--topics", "(", code=2)
    assert "is no pattern" in told.output
    told = logstore("backup", str(source.path), "--to", "nfs://host/x", code=2)
    assert "nfs://host" in told.output


def test_help_names_both_ways() -> None:
    told = logstore("backup", "--help")
    assert "logstore backup check URI" in told.output
    assert "--keep" in logstore("backup", "run", "--help").output
