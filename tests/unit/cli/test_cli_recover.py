"""``logstore recover``: the same report as a dry run and for real, and only the latter writes."""

from __future__ import annotations

import json
import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from test_cli_verify import hashes

from logstore.cli import main
from logstore.common.config import LogConfig
from logstore.manager import LoadProgress, LogManager, ManagerOwner
from logstore.storage.local import LocalStorage
from logstore.storage.overlay import OverlayStorage
from logstore.verify import verify
from tests.support.cases import for_each

pytestmark = pytest.mark.slow  # real fsyncs


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two partitions after the death of their process; one ends inside a batch."""
    path = tmp_path_factory.mktemp("recover") / "data"
    manager = LogManager([path])
    for log in manager.create_topic("orders", 2):
        for _ in range(5):
            log.append([(b"key", b"value" * 20)] * 10)
    manager.crash()
    torn = path / "orders-1" / "00000000000000000000.log"
    torn.write_bytes(torn.read_bytes()[:-5])
    return path


@pytest.fixture
def data(crashed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(crashed, tmp_path / "data"))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["recover", *map(str, arguments)])


def reports(result: Result) -> list[dict[str, object]]:
    return [
        {k: v for k, v in report.items() if k != "seconds"}
        for report in json.loads(result.stdout)["reports"]
    ]


def test_dry_run_changes_nothing_and_says_the_same(data: Path) -> None:
    before = hashes(data)
    rehearsal = run(data, "--dry-run", "--json")
    assert rehearsal.exit_code == 1
    assert hashes(data) == before
    real = run(data, "--json")
    assert real.exit_code == 1
    assert reports(real) == reports(rehearsal)
    assert [report["bytesCut"] for report in reports(real)] == [0, 1176]
    assert hashes(data) != before


def test_afterwards_there_is_nothing_to_do(data: Path) -> None:
    assert run(data).exit_code == 1
    result = run(data)
    assert result.exit_code == 0, result.output
    assert "0 bytes cut" in result.stdout
    assert verify([data]).clean


def test_one_partition(data: Path) -> None:
    before = hashes(data)
    rehearsal = run(data / "orders-1", "--dry-run")
    assert rehearsal.exit_code == 1
    assert "would be cut" in rehearsal.stdout
    assert hashes(data) == before
    assert run(data / "orders-1").exit_code == 1
    changed = {path for path, state in hashes(data).items() if before.get(path) != state}
    assert {Path(path).parent.name for path in changed} == {"orders-1"}
    assert run(data / "orders-0").exit_code == 0
    assert verify([data]).clean


def test_a_partition_without_its_log_directory(data: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copytree(data / "orders-1", tmp_path / "alone" / "orders-1"))
    assert run(alone).exit_code == 1
    assert run(alone).exit_code == 0
    assert not (alone.parent / ".lock").exists()


@pytest.mark.parametrize("arguments", [["--dry-run"], []])
def test_a_link_to_itself_is_of_no_log(data: Path, arguments: list[str]) -> None:
    for path in data.iterdir():
        if path.is_file():
            path.unlink()
    (data / "loop").symlink_to("loop")
    assert run(data, *arguments).exit_code == 1
    assert os.path.islink(data / "loop")


def test_what_is_cut_can_be_kept(data: Path) -> None:
    assert run(data, "--keep-cut", "always").exit_code == 1
    kept = list((data / "orders-1").glob("*.cut"))
    assert [path.stat().st_size for path in kept] == [1176]


@pytest.mark.parametrize("arguments", [[], ["--dry-run"]])
@pytest.mark.parametrize("part", ["", "orders-1"])
def test_a_directory_in_use_is_refused(data: Path, part: str, arguments: list[str]) -> None:
    lock = LocalStorage().lock(str(data / ".lock"))
    before = hashes(data)
    try:
        result = run(data / part, *arguments)
    finally:
        lock.release()
    assert result.exit_code == 2
    assert "is locked by" in result.stderr
    assert result.stderr.count("\n") == 1
    assert hashes(data) == before


def test_what_cannot_be_recovered(data: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "gone", data / "meta.properties", tmp_path / "empty"):
        if path.name == "empty":
            path.mkdir()
        result = run(path)
        assert result.exit_code == 2, path
        assert result.stderr.startswith("error: ")
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.mark.parametrize("arguments", [[], ["--dry-run"]])
def test_a_log_that_cannot_be_opened_is_told(data: Path, arguments: list[str]) -> None:
    """The others are recovered; what is of no log does not stop them."""
    (data / "orders-0" / "topic.properties").unlink(missing_ok=True)
    os.mkfifo(data / "orders-0" / "topic.properties")
    (data / "a b-0").mkdir()
    result = run(data, "--json", *arguments)
    assert result.exit_code == 2
    assert list(json.loads(result.stdout)["unavailable"]) == ["orders-0"]
    assert "orders-1" in str(reports(result))
    (error,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert "topic.properties" in error


@pytest.mark.parametrize("arguments", [[], ["--dry-run"]])
def test_damaged_checkpoints_are_mentioned(
    data: Path, arguments: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    (data / "recovery-point-offset-checkpoint").write_text("nonsense\n")
    assert run(data, *arguments).exit_code == 1
    assert "taken as absent" in caplog.text


def damage_meta(data: Path) -> None:
    (data / "meta.properties").write_bytes(b"version=1\nnode.id=\xff\n")


def damage_topic(data: Path) -> None:
    (data / "orders-0" / "topic.properties").write_bytes(b"nonsense\n")


def put_device(data: Path) -> None:
    path = data / "orders-1" / "00000000000000000000.timeindex"
    path.unlink()
    path.symlink_to("/dev/full")


def block_checkpoint(data: Path) -> None:
    (data / "recovery-point-offset-checkpoint.tmp").mkdir()


@pytest.mark.parametrize(
    ("damage", "code"),
    [(damage_meta, 2), (damage_topic, 2), (put_device, 1), (block_checkpoint, 1)],
)
def test_a_dry_run_ends_as_the_real_one(
    data: Path, damage: Callable[[Path], None], code: int
) -> None:
    damage(data)
    before = hashes(data)
    rehearsal = run(data, "--dry-run", "--json")
    assert hashes(data) == before
    real = run(data, "--json")
    assert (rehearsal.exit_code, real.exit_code) == (code, code)
    assert rehearsal.stderr == real.stderr
    if real.stdout:
        assert reports(rehearsal) == reports(real)


def test_a_dry_run_keeps_the_memory_of_one_log(tmp_path: Path) -> None:
    """What it rebuilt of a log is forgotten before the next one."""
    with LogManager([tmp_path]) as manager:
        for log in manager.create_topic("orders", 3):
            for _ in range(100):
                log.append([(None, b"")])
    for path in tmp_path.glob("orders-*/*.index"):
        path.unlink()
    overlay = OverlayStorage(LocalStorage())
    held = []

    def loaded(progress: LoadProgress) -> None:
        index = f"{progress.report.directory}/00000000000000000000.index"
        node = overlay.open(index).node  # type: ignore[attr-defined]
        held.append(len(node.data))
        overlay.forget(progress.report.directory)
        held.append(len(node.data))

    with LogManager(
        [tmp_path], storage=overlay, background=False, owner=ManagerOwner(progress=loaded)
    ) as manager:
        assert [len(report.actions) for report in manager.recovery_reports] == [1, 1, 1]
    assert held == [8, 0] * 3
    assert not list(tmp_path.glob("orders-*/*.index"))


def flip(path: Path, position: int, mask: int = 0x80) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)


def stopped_log(tmp_path: Path) -> Path:
    """One partition of 20 batches of a record each in three segments, after a clean stop."""
    path = tmp_path / "data"
    with LogManager([path], LogConfig(segment_bytes=1024)) as manager:
        (log,) = manager.create_topic("orders", 1)
        for _ in range(20):
            log.append([(b"key", b"value" * 10)])
    return path


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    return stopped_log(tmp_path)


def last_batch(path: Path) -> tuple[Path, int]:
    log = max((path / "orders-0").glob("*.log"))
    data, at, last = log.read_bytes(), 0, 0
    while at < len(data):
        last, at = at, at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return log, last


@for_each("byte", range(17), at_once=9)
def test_a_flipped_bit_behind_a_clean_stop_is_told(tmp_path: Path, byte: int) -> None:
    stopped = stopped_log(tmp_path)
    log, position = last_batch(stopped)
    before = {path.name: path.stat().st_size for path in (stopped / "orders-0").glob("*.log")}
    flip(log, position + byte, 1)
    rehearsal = run(stopped, "--dry-run", "--json")
    real = run(stopped, "--json")
    assert reports(real) == reports(rehearsal)
    (report,) = reports(real)
    if 12 <= byte < 16:  # a leader epoch changes nothing of what was stored
        assert (real.exit_code, report["bytesCut"]) == (0, 0)
        return
    assert real.exit_code == rehearsal.exit_code == 1
    assert "clean stop disbelieved" in str(report["warnings"])
    left = list((stopped / "orders-0").glob("*.log")) + list((stopped / "orders-0").glob("*.cut"))
    assert sum(path.stat().st_size for path in left) == sum(before.values())
    if report["bytesCut"]:
        assert report["offsetsLost"] == [19, 20]
        assert report["bytesSetAside"] == report["bytesCut"]
    assert run(stopped).exit_code == 0


def test_a_loss_is_in_the_table_and_in_the_exit_code(stopped: Path) -> None:
    for path in (stopped / "orders-0").glob("*.log"):
        path.write_bytes(b"")
    result = run(stopped)
    assert result.exit_code == 1
    assert "[16, 20)" in result.stdout.splitlines()[1]
    assert "0 bytes cut" in result.stdout
    assert "warning: " in result.stdout
    assert result.stderr == ""


def test_a_dry_run_copies_nothing_of_what_it_would_keep(stopped: Path) -> None:
    log = min((stopped / "orders-0").glob("*.log"))
    os.truncate(log, 96 << 20)
    (stopped / ".kafka_cleanshutdown").unlink()
    (stopped / "recovery-point-offset-checkpoint").write_text("0\n1\norders 0 1\n")
    tracemalloc.start()
    try:
        rehearsal = run(stopped, "--dry-run", "--json", "--keep-cut", "always")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 48 << 20
    assert reports(run(stopped, "--json", "--keep-cut", "always")) == reports(rehearsal)
    assert reports(rehearsal)[0]["bytesSetAside"] > 95 << 20
