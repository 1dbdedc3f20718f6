"""A real standalone cluster of Spark, from the installed PySpark: a master and two workers.

Their Python is bare: it finds pyarrow and what Spark itself brings, and no other package, as on a
cluster whose owners have never heard of logstore.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow
import pyspark

from tests.spark.conftest import JAVA_OPTIONS
from tests.support.until import patience, until

_HOME = Path(pyspark.__file__).parent

_PYTHON = """\
#!/bin/sh
# One path on every machine; only on the workers is it the bare environment.
if [ -n "$LOGSTORE_TEST_WORKER" ]; then
    PYTHONPATH="$PYTHONPATH:{bare}" exec {python} -S "$@"
fi
exec {python} "$@"
"""


@dataclass(frozen=True)
class StandaloneCluster:
    master: str
    python: str
    """For the driver's ``PYSPARK_PYTHON``."""


@contextmanager
def standalone_cluster(directory: Path) -> Iterator[StandaloneCluster]:
    """Two workers of one core each, with their files and logs in ``directory``."""
    python = _worker_python(directory)
    with ExitStack() as running:
        command = [
            "deploy.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--webui-port",
            "0",
        ]
        log = running.enter_context(_daemon(directory / "master.log", command))
        master = _wait_for(log, r"Starting Spark master at (spark://\S+)").group(1)
        for number in range(2):
            work = directory / f"worker-{number}"
            command = [
                "deploy.worker.Worker",
                "--host",
                "127.0.0.1",
                "--cores",
                "1",
                "--memory",
                "1g",
                "--webui-port",
                "0",
                "--work-dir",
                str(work),
                master,
            ]
            running.enter_context(_daemon(directory / f"worker-{number}.log", command))
        for number in range(2):
            _wait_for(directory / f"worker-{number}.log", "Successfully registered with master")
        yield StandaloneCluster(master, str(python))


def _worker_python(directory: Path) -> Path:
    bare = directory / "bare"
    bare.mkdir()
    packages = Path(pyarrow.__file__).parent.parent
    for name in ("pyarrow", "pyarrow.libs"):
        if (packages / name).exists():
            (bare / name).symlink_to(packages / name)
    python = directory / "python"
    python.write_text(_PYTHON.format(bare=bare, python=sys.executable))
    python.chmod(0o755)
    return python


@contextmanager
def _daemon(log: Path, command: list[str]) -> Iterator[Path]:
    """One JVM, killed with all that it started."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if key in ("PATH", "HOME", "JAVA_HOME", "LANG", "TMPDIR")
    } | {
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
        "LOGSTORE_TEST_WORKER": "1",
    }
    script = _HOME / "bin" / "spark-class"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(script), f"org.apache.spark.{command[0]}", *command[1:]],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield log
    finally:
        process.terminate()  # its shutdown hook ends its executors
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience())
        kill_session(process)


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads its session, and what it started and did not end."""
    with suppress(ProcessLookupError):  # all have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _wait_for(log: Path, pattern: str) -> re.Match[str]:
    found = until(
        lambda: re.search(pattern, log.read_text(errors="replace")), f"{pattern!r} in {log}"
    )
    assert found is not None
    return found
