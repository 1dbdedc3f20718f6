"""``recover --scan-all``: damage behind a clean stop, where a start does not look."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from logstore.cli import main
from logstore.storage.local import LocalStorage
from tests.unit.verify.verify_logs import LOG_DIR, copy, log_dir


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    copy(log_dir(), LOG_DIR, LocalStorage(), str(tmp_path / "data"))
    return tmp_path / "data"


def recover(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["recover", *map(str, arguments)])


def _damage(directory: Path) -> Path:
    first = min((directory / "orders-0").glob("*.log"))
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes(data)
    return first


@pytest.mark.parametrize("flags", [(), ("--dry-run",)])
def test_damage_behind_a_clean_stop_is_found(closed: Path, flags: tuple[str, ...]) -> None:
    log = _damage(closed)
    before = log.read_bytes()
    assert recover(closed, "--dry-run").exit_code == 0  # believed
    result = recover(closed, "--scan-all", *flags)
    assert result.exit_code == 1
    assert f"off {log.name} at byte" in result.output
    assert (log.read_bytes() == before) == bool(flags)


def test_what_is_cut_off_is_kept(closed: Path) -> None:
    log = _damage(closed)
    recover(closed, "--scan-all")
    assert list(log.parent.glob(f"{log.name}.*.cut"))


def test_a_sound_log_comes_through(closed: Path) -> None:
    logs = {path: path.read_bytes() for path in (closed / "orders-0").glob("*.log")}
    result = recover(closed, "--scan-all")
    assert result.exit_code == 0, result.output
    assert {path: path.read_bytes() for path in logs} == logs
    assert CliRunner().invoke(main, ["verify", str(closed)]).exit_code == 0


def test_all_segments_are_scanned(closed: Path) -> None:
    segments = len(list((closed / "orders-0").glob("*.log")))
    assert segments > 1
    row = recover(closed, "--scan-all", "--dry-run").output.split("orders-0")[1].split()
    assert row[:2] == [str(segments)] * 2
