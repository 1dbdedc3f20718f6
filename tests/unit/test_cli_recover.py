"""``logstore recover``: the same report as a dry run and for real, and only the latter writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from test_cli_verify import hashes

from logstore.cli import main
from logstore.manager import LogManager
from logstore.storage.local import LocalStorage
from logstore.verify import verify

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
    assert [report["bytes_cut"] for report in reports(real)] == [0, 1176]
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


def test_damaged_checkpoints_are_mentioned(data: Path) -> None:
    (data / "recovery-point-offset-checkpoint").write_text("nonsense\n")
    result = run(data, "--dry-run")
    assert result.exit_code == 1
    assert "treated as absent" in result.stderr
