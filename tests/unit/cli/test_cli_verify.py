"""``logstore verify`` as a user meets it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from logstore.cli import main
from logstore.common.config import LogConfig
from logstore.log import LogOwner, PartitionLog
from logstore.manager import LogManager
from logstore.storage.local import LocalStorage


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("verify") / "data"
    with LogManager([path]) as manager:
        for log in manager.create_topic("orders", 2):
            for _ in range(5):
                log.append([(b"key", b"value" * 20)] * 10)
    return path


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "data"))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["verify", *map(str, arguments)])


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def hashes(root: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file()
    }


def test_a_clean_directory(data: Path) -> None:
    result = run(data)
    assert result.exit_code == 0, result.output
    assert "orders-1" in result.stdout
    assert "clean" in result.stdout


def test_nothing_is_written(data: Path) -> None:
    before = hashes(data)
    run(data, "--threads", 4)
    assert hashes(data) == before


def test_a_finding_is_one_line_with_rule_and_place(data: Path) -> None:
    log = data / "orders-1" / "00000000000000000000.log"
    flip(log, 100)
    result = run(data)
    assert result.exit_code == 1
    lines = [line for line in result.stdout.splitlines() if line.startswith("error")]
    assert len(lines) == 1
    assert lines[0].startswith(f"error log-checksum {log} at 0: checksum")
    assert "1 error" in result.stdout


def test_json(data: Path) -> None:
    flip(data / "orders-0" / "00000000000000000000.log", 100)
    result = run(data, "--json", "--fingerprint")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert (report["errors"], report["warnings"], report["clean"]) == (1, 0, False)
    assert report["findings"][0]["rule"] == "log-checksum"
    assert report["findings"][0]["partition"] == 0
    assert report["partitions"][1]["records"] == 50
    assert len(report["partitions"][1]["fingerprint"]) == 32


def test_information_alone_is_no_failure(data: Path) -> None:
    (data / "orders-0" / "00000000000000000000.log.deleted").write_bytes(b"")
    result = run(data)
    assert result.exit_code == 0
    assert "info leftover" in result.stdout


def test_several_paths_of_every_kind(data: Path) -> None:
    partition = data / "orders-0"
    result = run(partition, partition / "00000000000000000000.log", data / "meta.properties")
    assert result.exit_code == 0, result.output


def test_a_missing_path_does_not_hide_the_others(data: Path) -> None:
    result = run(data, data / "gone")
    assert result.exit_code == 2
    assert result.stderr == f"error: {data / 'gone'}: no such file or directory\n"
    assert "orders-1" in result.stdout


def test_a_foreign_file(data: Path) -> None:
    (data / "notes.txt").write_text("hello")
    result = run(data / "notes.txt")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file(data: Path) -> None:
    log = data / "orders-1" / "00000000000000000000.log"
    log.chmod(0)
    result = run(data)
    assert result.exit_code == 2
    assert str(log) in result.stderr


def test_shallow_does_not_look_into_records(data: Path) -> None:
    """A valid checksum over records that cannot be decoded."""
    from logstore.kernels import crc32c

    log = data / "orders-0" / "00000000000000000000.log"
    content = bytearray(log.read_bytes())
    size = int.from_bytes(content[8:12], "big") + 12
    content[61] = 0xFE
    content[17:21] = crc32c(content[21:size]).to_bytes(4, "big")
    log.write_bytes(content)
    assert run(data, "--shallow").exit_code == 0
    result = run(data)
    assert result.exit_code == 1
    assert f"error log-records {log} at 0" in result.stdout


@pytest.fixture
def brokers(data: Path, tmp_path: Path) -> list[Path]:
    """Two that have the same partitions."""
    other = Path(shutil.copytree(data, tmp_path / "other"))
    meta = other / "meta.properties"
    meta.write_text(meta.read_text().replace("node.id=0", "node.id=1"))
    return [data, other]


def test_brokers_are_told_apart_and_compared(brokers: list[Path]) -> None:
    result = run(*brokers)
    assert result.exit_code == 0, result.output
    head, *rows = result.stdout.splitlines()
    assert "broker" in head
    assert "compared" in head
    assert [row.split()[:2] for row in rows[:4]] == [
        ["orders-0", "0"],
        ["orders-0", "1"],
        ["orders-1", "0"],
        ["orders-1", "1"],
    ]


def test_a_replica_that_differs_is_one_line_and_may_be_left_out(brokers: list[Path]) -> None:
    from logstore.kernels import crc32c

    log = brokers[1] / "orders-0" / "00000000000000000000.log"
    content = bytearray(log.read_bytes())
    size = int.from_bytes(content[8:12], "big") + 12
    content[size - 2] ^= 1
    content[17:21] = crc32c(content[21:size]).to_bytes(4, "big")
    log.write_bytes(content)
    result = run(*brokers)
    assert result.exit_code == 1
    assert f"error replicas-differ {log} at 0: not as on broker 0: here epoch" in result.stdout
    assert run(*brokers, "--no-compare").exit_code == 0


def test_a_log_and_its_backup_are_told_apart_by_path(data: Path, tmp_path: Path) -> None:
    """Both have the id of one broker."""
    backup = Path(shutil.copytree(data, tmp_path / "backup"))
    rows = run(data, backup).stdout.splitlines()[1:5]
    names = ["orders-0", "orders-1"]
    assert [row.split()[0] for row in rows] == [
        str(root / name) for name in names for root in (data, backup)
    ]


def test_a_report_that_has_no_place_is_refused_before_the_work(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    result = run(data, "--html", tmp_path / "nowhere" / "report.html")
    assert result.exit_code == 2
    assert "there is no such directory" in result.stderr
    assert result.stdout == ""


def test_a_report_that_cannot_be_written_does_not_hide_what_was_found(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = pytest.importorskip("logstore.verify.html")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "report.html")

    monkeypatch.setattr(page, "write_report", refuse)
    result = run(data, "--html", data.parent / "report.html")
    assert result.exit_code == 2
    assert "files: clean" in result.stdout
    assert "No space left on device" in result.stderr


def test_an_html_report(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    page = tmp_path / "report.html"
    assert run(data, "--html", page).exit_code == 0
    assert "orders-1" in page.read_text()


def test_a_roll_that_waits_for_its_name_is_told_and_not_called_an_orphan(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=1000)
    log = PartitionLog.open(
        tmp_path / "t-0", config, owner=LogOwner(managed=True, background=lambda task: None)
    )
    for _ in range(5):
        log.append([(None, bytes(300))])
    log.crash()
    result = run(tmp_path / "t-0")
    assert result.exit_code == 0
    assert f"info leftover {tmp_path}/t-0/{2:020}.log.swap: not settled" in result.stdout
    assert "the next start deletes it" not in result.stdout


# -- what a rescue would bring back ----------------------------------------------------------------


def damage(directory: Path, *numbers: int) -> Path:
    """Damage batches of ten records of orders-0, by number."""
    log = next((directory / "orders-0").glob("*.log"))
    size = log.stat().st_size // 5
    for number in numbers:
        flip(log, number * size + size // 2)
    return directory


def test_the_report_ends_with_what_a_rescue_then_brings_back(data: Path, tmp_path: Path) -> None:
    other = damage(Path(shutil.copytree(data, tmp_path / "other")), 2, 4)
    damage(data, 1, 2)
    before = hashes(tmp_path)
    command = f"logstore rescue {data} {other} --to DST"
    assert run(data, other).stdout.splitlines()[-4:] == [
        "A rescue of these directories would bring back",
        "  orders-0: 40 records; 10 offsets are lost: 20…29",
        "It changes none of them, and makes a new one:",
        f"  {command}",
    ]
    told = json.loads(run(data, other, "--json").stdout)["rescue"]
    assert told["command"] == command
    assert hashes(tmp_path) == before
    arguments = [*command.replace("DST", str(tmp_path / "DST")).split()[1:], "--json"]
    made = json.loads(CliRunner().invoke(main, arguments).stdout)
    assert told["partitions"] == made["partitions"][:1]
    assert [part["whole"] for part in made["partitions"]] == [False, True]


def test_what_one_has_lost_another_has(data: Path, tmp_path: Path) -> None:
    other = damage(Path(shutil.copytree(data, tmp_path / "other")), 2)
    damage(data, 1)
    assert "  orders-0: all of it, 50 records\n" in run(data, other).stdout


def test_nothing_of_a_rescue_where_nothing_is_lost(data: Path) -> None:
    assert json.loads(run(data, "--json").stdout)["rescue"] is None


def test_nothing_of_a_rescue_for_a_single_file(data: Path) -> None:
    log = next((damage(data, 1) / "orders-0").glob("*.log"))
    assert json.loads(run(log, "--json").stdout)["rescue"] is None


def test_a_broker_at_work_keeps_its_directory(data: Path) -> None:
    damage(data, 1)
    lock = LocalStorage().lock(str(data / ".lock"))
    try:
        *_, reason, _, command = run(data).stdout.splitlines()
    finally:
        lock.release()
    assert reason.startswith("What a rescue would bring back is not known: ")
    assert "is locked" in reason
    assert command == f"  logstore rescue {data} --to DST"


def test_the_page_has_it_too(data: Path, tmp_path: Path) -> None:
    run(damage(data, 1), "--html", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "orders-0: 40 records; 10 offsets are lost: 10…19" in page
    assert f"logstore rescue {data} --to DST" in page
