"""``logstore rescue`` as a person runs it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from logstore.cli import main
from logstore.common.errors import LogDirLockedError
from logstore.rescue import rescue
from logstore.storage.local import LocalStorage
from tests.unit.verify.verify_logs import LOG_DIR, copy, log_dir


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("written") / "data"
    copy(log_dir(), LOG_DIR, LocalStorage(), str(directory))
    return directory


@pytest.fixture
def source(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "source"))


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["rescue", *map(str, arguments)])


def _damage(source: Path) -> None:
    log = min((source / "orders-0").glob("*.log"))
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)


def _content(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_a_whole_directory_comes_out_whole(source: Path, tmp_path: Path) -> None:
    before = _content(source)
    result = run(source, "--to", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "is whole: 1 partitions" in result.output
    assert _content(source) == before
    verified = CliRunner().invoke(main, ["verify", str(tmp_path / "out")])
    assert verified.exit_code == 0, verified.output


def test_what_is_lost_is_told_with_offsets_and_reason(source: Path, tmp_path: Path) -> None:
    _damage(source)
    result = run(source, "--to", tmp_path / "out", "--json")
    assert result.exit_code == 1
    (partition,) = json.loads(result.stdout)["partitions"]
    (gap,) = partition["gaps"]
    assert gap["first"] < gap["next"] < partition["endOffset"]
    assert "a checksum that does not match" in gap["reason"]
    assert not partition["whole"]


def test_another_replica_fills_the_gap(written: Path, source: Path, tmp_path: Path) -> None:
    _damage(source)
    result = run(source, written, "--to", tmp_path / "out")
    assert result.exit_code == 0, result.output


def test_a_dry_run_writes_nothing(source: Path, tmp_path: Path) -> None:
    _damage(source)
    result = run(source, "--to", tmp_path / "out", "--dry-run")
    assert result.exit_code == 1
    assert "would be not whole" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_target_with_anything_in_it_is_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert run(source, "--to", tmp_path / "out").exit_code == 0
    before = _content(tmp_path / "out")
    result = run(source, "--to", tmp_path / "out")
    assert result.exit_code == 2
    assert "not empty" in result.output
    assert _content(tmp_path / "out") == before


def test_a_target_inside_a_source_is_refused(source: Path) -> None:
    result = run(source, "--to", source / "out")
    assert result.exit_code == 2
    assert not (source / "out").exists()


def test_a_source_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "missing"):
        result = run(tmp_path / name, "--to", tmp_path / "out")
        assert result.exit_code == 2
        assert not (tmp_path / "out").exists()


def test_a_dry_run_keeps_no_broker_from_starting(source: Path, tmp_path: Path) -> None:
    """It may take long, and a verification makes one."""
    started: list[int] = []

    def start(done: int, total: int) -> None:
        LocalStorage().lock(str(source / ".lock")).release()
        started.append(done)

    rescue([str(source)], str(tmp_path / "out"), dry_run=True, progress=start)
    assert started
    with pytest.raises(LogDirLockedError):
        rescue([str(source)], str(tmp_path / "out"), progress=start)
