"""What a first session leaves on stderr: nothing, unless something is wrong."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.until import patience, until

pytestmark = pytest.mark.slow

FIXED = "WARNING: Using incubator modules: jdk.incubator.vector"
"""The JVM says so before it reads any configuration, for an option that Spark gives it."""


def run(logs: Path, target: Path, ends: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.spark.quiet_session", str(logs), str(target), ends]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=4 * patience()
    )


@pytest.mark.essential
def test_a_session_that_goes_well_says_nothing(logs: Path, tmp_path: Path) -> None:
    """Nor does a query that reads some of the rows that a worker has for it."""
    done = run(logs, tmp_path / "target", "well")
    assert [line for line in done.stderr.splitlines() if line != FIXED] == []
    assert done.stdout.count("1200\n") == 2
    assert "<VerifyReport " in done.stdout


def test_what_goes_wrong_is_still_told(logs: Path, tmp_path: Path) -> None:
    done = run(logs, tmp_path / "target", "badly")
    assert "ZeroDivisionError" in done.stderr
    assert "ERROR" in done.stderr


@pytest.mark.essential
@pytest.mark.parametrize(
    "arguments", [["quiet_daemon"], ["columnar_daemon", "pyspark_logstore_worker"]]
)
def test_a_worker_whose_connection_breaks_says_nothing(arguments: list[str]) -> None:
    """Spark breaks it when it has read enough, whether the worker reads or writes just then."""
    module, *rest = arguments
    with subprocess.Popen(
        [sys.executable, "-m", f"logstore.spark.{module}", *rest],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "SPARK_REUSE_WORKER": "1"},
    ) as daemon:
        assert daemon.stdout is not None
        (port,) = struct.unpack(">i", daemon.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port)) as connection:
            (worker,) = struct.unpack(">i", connection.recv(4))  # it reads the secret now
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        until(lambda: not psutil.pid_exists(worker), "the worker ends")
        _, said = daemon.communicate(timeout=patience())
    assert said == b""
