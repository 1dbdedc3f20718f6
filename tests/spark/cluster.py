"""Spark in other shapes than one process, from the installed PySpark.

The Python of a standalone cluster's workers is bare: it finds pyarrow and what Spark itself brings,
and no other package, as on a cluster whose owners have never heard of logstore.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow
import pyspark

from tests.spark.conftest import JAVA_OPTIONS
from tests.support.until import patience, until

_HOME = Path(pyspark.__file__).parent
_CONNECT_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"

_PYTHON = """\
#!/bin/sh
# One path on every machine; only on the workers is it the bare environment.
if [ -n "$LOGSTORE_TEST_WORKER" ]; then
    [ -z "$LOGSTORE_TEST_NO_PYTHON" ] || exit 9
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
def standalone_cluster(directory: Path, mounts: tuple[str, str]) -> Iterator[StandaloneCluster]:
    """Two workers of one core each, with their files and logs in ``directory``.

    Args:
        mounts: for each worker the shell command that mounts what it alone sees; "" for nothing.
    """
    python = _worker_python(directory)
    anywhere = ("--host", "127.0.0.1", "--webui-port", "0")
    with ExitStack() as running:
        command = ["deploy.master.Master", *anywhere, "--port", "0"]
        log = running.enter_context(_daemon(directory / "master.log", command))
        master = _wait_for(log, r"Starting Spark master at (spark://\S+)").group(1)
        for number, mount in enumerate(mounts):
            work = str(directory / f"worker-{number}")
            command = ["deploy.worker.Worker", *anywhere, "--cores", "1", "--memory", "1g"]
            command += ["--work-dir", work, master]
            running.enter_context(_daemon(Path(f"{work}.log"), command, mount=mount))
        for number in range(2):
            _wait_for(directory / f"worker-{number}.log", "Successfully registered with master")
        yield StandaloneCluster(master, str(python))


@contextmanager
def connect_server(
    directory: Path, conf: Mapping[str, str], environment: Mapping[str, str]
) -> Iterator[str]:
    """A Spark Connect server with a driver of its own; its ``sc://host:port``."""
    given = {"spark.connect.grpc.binding.port": "0", **conf}
    command = ["deploy.SparkSubmit", "--class", _CONNECT_SERVER]
    for name, value in given.items():
        command += ["--conf", f"{name}={value}"]
    command.append("spark-internal")
    variables = {"SPARK_DAEMON_MEMORY": "1g", **environment}  # a driver's
    with _daemon(directory / "connect.log", command, environment=variables) as log:
        port = _wait_for(log, r"Connect server started at: .*:([1-9]\d*)").group(1)
        yield f"sc://127.0.0.1:{port}"


def may_mount() -> bool:
    """Whether a process here may have mounts of its own."""
    with suppress(FileNotFoundError):
        done = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"])
        return done.returncode == 0
    return False


def overlaid(path: Path, empty: Path) -> str:
    """The command that mounts a directory over itself: other devices, the same inodes, as NFS."""
    return f"mount -t overlay overlay -o lowerdir={path}:{empty} {path}"


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
def _daemon(
    log: Path, command: list[str], *, mount: str = "", environment: Mapping[str, str] | None = None
) -> Iterator[Path]:
    """One JVM, killed with all that it started."""
    variables = {
        key: value
        for key, value in os.environ.items()
        if key in ("PATH", "HOME", "JAVA_HOME", "LANG", "TMPDIR")
    } | {
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
        "LOGSTORE_TEST_WORKER": "1",
        **(environment or {}),
    }
    before = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh"] if mount else []
    script = _HOME / "bin" / "spark-class"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*before, str(script), f"org.apache.spark.{command[0]}", *command[1:]],
            env=variables,
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
