"""Logs of processes that go on writing: kept small, and followed."""

from __future__ import annotations

from pathlib import Path

from replication.supervisor.log_files import last_error, log_path, names_of_logs, rotate, tail


def test_a_log_that_is_written_stays_small(tmp_path: Path) -> None:
    path = tmp_path / "broker-0.log"
    with path.open("ab", buffering=0) as writer:
        writer.write(b"a" * 100)
        assert not rotate(str(path), 100)
        writer.write(b"b")
        assert rotate(str(path), 100)
        writer.write(b"c")
    assert path.read_bytes() == b"c"
    assert (tmp_path / "broker-0.log.1").read_bytes() == b"a" * 100 + b"b"
    assert not rotate(str(tmp_path / "none"), 0)


def test_a_log_is_followed_over_its_rotation(tmp_path: Path) -> None:
    directory = str(tmp_path)
    assert names_of_logs(directory) == []
    path = Path(log_path(directory, "broker-0"))
    path.parent.mkdir()
    with path.open("ab", buffering=0) as writer:
        writer.write(b"one\ntwo\n")
        lines = tail(directory, "broker-0", 1)
        assert next(lines) == ["two"]
        assert next(lines) == []
        writer.write(b"three\nfo")
        assert next(lines) == ["three"]
        writer.write(b"ur\n")
        assert next(lines) == ["four"]
        assert rotate(str(path), 0)
        assert next(lines) == []
        writer.write(b"five\n")
        assert next(lines) == ["five"]
    assert names_of_logs(directory) == ["broker-0"]


def test_the_last_error_of_this_life(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert last_error(str(path), 0) == ""
    path.write_bytes(b"error: old\n")
    since = path.stat().st_size
    assert last_error(str(path), since) == ""
    with path.open("ab") as writer:
        writer.write(b"x" * 10_000 + b"\nerror: one\nerror: two\xff\nTraceback\n")
    assert last_error(str(path), since) == "two�"
    path.write_bytes(b"error: new\n")  # it was emptied since
    assert last_error(str(path), since + 1) == "new"
