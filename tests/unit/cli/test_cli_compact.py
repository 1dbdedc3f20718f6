"""``logstore compact``: one pass by hand, what it tells, and how it ends."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from logstore.cli import main
from logstore.common.config import LogConfig
from logstore.common.types import TopicPartition
from logstore.format.batch import encode_batch
from logstore.manager import LogManager, ManagerOwner


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    with LogManager([path], LogConfig(segment_bytes=400), background=False) as manager:
        for topic, policy in (("flights", "compact"), ("plain", "delete")):
            (log,) = manager.create_topic(topic, 1, {"cleanup.policy": policy})
            for n in range(30):
                log.append([(b"k%d" % (n % 3), None if n == 5 else b"%d" % n)])
    return path


def compact(*arguments: Any) -> Result:
    return CliRunner().invoke(main, ["compact", *map(str, arguments)])


def logs(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.glob("*/*.log")}


def test_a_dry_run_changes_nothing(directory: Path) -> None:
    before = logs(directory)
    result = compact(directory, "--dry-run")
    assert result.exit_code == 0
    assert "would free" in result.stdout
    assert "flights-0" in result.stdout
    assert "plain-0" not in result.stdout
    assert logs(directory) == before
    assert not (directory / "cleaner-offset-checkpoint").exists()


def test_a_pass_and_its_table(directory: Path) -> None:
    result = compact(directory)
    assert result.exit_code == 0
    assert "flights-0" in result.stderr  # progress
    assert "freed" in result.stdout
    assert "the active segment" in result.stdout
    with LogManager([directory], background=False) as manager:
        log = manager.get("flights", 0)
        end = log.segments[-1].base_offset
        old = [r.offset for r in log.records() if r.offset < end]
        assert len(old) == 3
        assert {r.key: r.value for r in log.records()} == {b"k0": b"27", b"k1": b"28", b"k2": b"29"}
    again = json.loads(compact(directory, "--json").stdout)
    (outcome,) = again["partitions"]
    assert (outcome["topic"], outcome["recordsRead"], outcome["endOffset"]) == ("flights", 0, end)


def test_a_topic_that_is_named(directory: Path) -> None:
    result = compact(directory, "plain", "--json")
    assert [p["topic"] for p in json.loads(result.stdout)["partitions"]] == ["plain"]
    result = compact(directory, "nothing")
    assert result.exit_code == 2
    assert "nothing" in result.stderr


def test_a_directory_of_a_broker(tmp_path: Path) -> None:
    """The controller's configuration lies beside the log. What is not committed supersedes
    nothing: it may be cut when the broker is back."""
    path = tmp_path / "data"
    keyed = {"cleanup.policy": "compact", "segment.bytes": "100"}
    with LogManager([path], background=False, owner=ManagerOwner(replicated=True)) as manager:
        for topic, config in (("flights", keyed), ("plain", {})):
            log = manager.get_or_create(topic, 0, config=config)
            for n in range(9):
                log.append_as_leader(bytes(encode_batch([(b"k", b"%d" % n)])), 0)
            log.replica.update_high_watermark(5)
    for _ in range(2):  # the first one has not moved the high watermark
        result = compact(path)
        assert result.exit_code == 0, result.output
        assert "the high watermark" in result.stdout
        assert "without compact in their cleanup.policy: plain" in result.stdout
        with LogManager([path], background=False, owner=ManagerOwner(replicated=True)) as manager:
            log = manager.get("flights", 0)
            assert log.high_watermark == 5
            assert [r.offset for r in log.records()] == [4, 5, 6, 7, 8]


def test_a_directory_of_kafka(directory: Path) -> None:
    """It tells what it does not know, and that nothing was done."""
    for path in directory.glob("*/topic.properties"):
        path.unlink()
    before = logs(directory)
    result = compact(directory)
    assert result.exit_code == 1
    assert "Nothing is compacted." in result.stdout
    assert "2 topics left alone, because no configuration is stored" in result.stdout
    assert "flights, plain" in result.stdout
    assert logs(directory) == before
    told = compact(directory, "--json")
    assert told.exit_code == 1
    assert json.loads(told.stdout)["unknown"] == ["flights", "plain"]
    assert compact(directory, "flights").exit_code == 0
    assert logs(directory) != before


def test_nothing_to_compact_is_no_error(directory: Path) -> None:
    shutil.rmtree(directory / "flights-0")
    result = compact(directory)
    assert result.exit_code == 0
    assert "Nothing is compacted." in result.stdout
    assert "1 topics without compact in their cleanup.policy: plain" in result.stdout


def test_damage_is_told_and_the_others_are_compacted(directory: Path) -> None:
    path = directory / "flights-0" / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    before = logs(directory / "flights-0")
    result = compact(directory, "flights", "plain", "--json")
    assert result.exit_code == 1
    outcomes = {p["topic"]: p["error"] for p in json.loads(result.stdout)["partitions"]}
    assert outcomes["plain"] is None
    assert str(path) in outcomes["flights"]
    assert logs(directory / "flights-0") == before


@pytest.mark.parametrize(
    "setting", ["log.cleaner.threads", "no.such.key=1", "log.cleaner.dedupe.buffer.size=0"]
)
def test_wrong_settings(directory: Path, setting: str) -> None:
    result = compact(directory, "--config", setting)
    assert result.exit_code == 2
    assert setting.partition("=")[0] in result.stderr


def test_a_small_map_takes_several_passes(directory: Path) -> None:
    ends = []
    for _ in range(6):
        result = compact(directory, "--config", "log.cleaner.dedupe.buffer.size=72", "--json")
        (outcome,) = json.loads(result.stdout)["partitions"]
        ends.append(outcome["endOffset"])
    assert ends[0] == 2
    assert ends == sorted(set(ends))


def test_a_directory_in_use(directory: Path) -> None:
    with LogManager([directory], background=False) as manager:
        assert TopicPartition("flights", 0) in manager.logs
        result = compact(directory)
    assert result.exit_code == 2
    assert "locked" in result.stderr
