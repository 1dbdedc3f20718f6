"""``logstore mirror`` under kills, stops and a full disk."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from replication import serve
from tests.crash import mirror_killed
from tests.crash.mirror_killed import BATCHES, ROOT, make_source, size_of, start
from tests.support.commands import argv_of, logstore
from tests.support.until import patience, until

IMPATIENT = ("-X", "request.timeout.ms=1000", "-X", "reconnect.backoff.max.ms=100")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_killed_mirror_goes_on(tmp_path: Path, seed: int) -> None:
    assert mirror_killed.run(seed, tmp_path) == mirror_killed.KILLS


@contextmanager
def source(directory: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A source in a process of its own, and where it is."""
    command = argv_of("serve", "--dir", str(directory), "--listen", "127.0.0.1:0", "--json")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        (server,) = json.loads(process.stdout.readline())["bootstrapServers"]
        yield process, server
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate()


def mirror_once(server: str, mirror: Path) -> None:
    process = start(server, mirror, "--once")
    out, err = process.communicate()
    assert (process.returncode, err) == (0, ""), out


def produce(server: str, *values: str) -> None:
    given = "".join(f"{value}\n" for value in values)
    logstore("produce", "orders", "--bootstrap-server", server, given=given)


def check(server: str, mirror: Path) -> int:
    """How many offsets are compared and equal."""
    told = logstore("mirror", "check", "--from", server, str(mirror), "--json").stdout
    return sum(part["endOffset"] - part["offset"] for part in json.loads(told)["partitions"])


@pytest.mark.slow
def test_a_source_that_is_stopped_for_a_while(tmp_path: Path) -> None:
    with source(tmp_path / "source") as (kafka, server):
        logstore("topics", "create", "orders", "--bootstrap-server", server)
        produce(server, "one")
        process = start(server, tmp_path / "mirror", "--http", "127.0.0.1:0", *IMPATIENT)
        try:
            until(lambda: (tmp_path / "mirror" / "orders-0").exists())
            until(lambda: size_of(tmp_path / "mirror") > 0)
            before = size_of(tmp_path / "mirror")
            kafka.send_signal(signal.SIGSTOP)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(3)  # it waits, and does not give up
            kafka.send_signal(signal.SIGCONT)
            produce(server, "two")
            until(lambda: size_of(tmp_path / "mirror") > before)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=patience())
            assert (process.returncode, err) == (0, ""), out
        finally:
            process.kill()
            process.communicate()
        assert check(server, tmp_path / "mirror") == 2


@pytest.mark.slow
def test_a_source_that_comes_back_on_another_port(tmp_path: Path) -> None:
    """The mirror knows it by the id of its cluster."""
    with source(tmp_path / "source") as (_, server):
        logstore("topics", "create", "orders", "--bootstrap-server", server)
        produce(server, "one")
        mirror_once(server, tmp_path / "mirror")
    with source(tmp_path / "source") as (_, server):
        produce(server, "two")
        mirror_once(server, tmp_path / "mirror")
        assert check(server, tmp_path / "mirror") == 2


def limited() -> None:
    """No file may grow above 64 KiB; to write more is an error and no signal."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, 64 << 10))


@pytest.mark.slow
def test_a_disk_that_takes_no_more(tmp_path: Path) -> None:
    """It ends with the reason, and with nothing wrong; the next start goes on."""
    mirror = tmp_path / "mirror"
    make_source(tmp_path / "source")
    with serve(adopt=[tmp_path / "source"], read_only=True) as kafka:
        server = kafka.bootstrap_servers
        command = argv_of("mirror", "--from", server, "--dir", str(mirror), "--once")
        told = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, preexec_fn=limited, check=False
        )
        assert (told.returncode, "File too large" in told.stderr) == (2, True), told
        check(server, mirror)  # what is here is right
        mirror_once(server, mirror)
        assert check(server, mirror) == BATCHES * mirror_killed.PARTITIONS
        logstore("verify", str(mirror))
