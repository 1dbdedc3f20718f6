"""The processes of a supervisor that is killed do not outlive it (X-35): the brokers stop in order,
and the engine after the last of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from replication.supervisor import child as child_module
from tests.support.until import patience, until
from tests.unit.supervisor.clusters import STUB, plan_in

ROOT = Path(__file__).resolve().parents[3]
RUN = """
import os, sys
from replication.supervisor.cluster_file import read_cluster
from replication.supervisor.supervisor import Supervisor
from replication.supervisor.zookeeper import find_jars
from logstore import terminal

directory, stub = sys.argv[1:]
environment = {"PYTHONPATH": stub}
say = lambda text, fields: (terminal.line(text), terminal.flush())
cluster = read_cluster(directory)
environment["PATH"] = os.environ["PATH"]
jars = find_jars(None, os.environ) if cluster.engine.servers else None
Supervisor(directory, cluster, jars, say=say, environment=environment).run()
"""


@contextmanager
def supervisor(directory: Path) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """The process, and those that it has started."""
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(directory), str(STUB)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("ready: "):
                break
        yield process, psutil.Process(process.pid).children()
    finally:
        process.kill()
        process.communicate()


def have_ended(processes: list[psutil.Process]) -> bool:
    return not [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_nothing_outlives_a_supervisor_that_was_killed(tmp_path: Path) -> None:
    from replication.supervisor.cluster_file import write_cluster
    from tests.unit.supervisor.test_supervisor import with_tree

    write_cluster(str(tmp_path), with_tree(plan_in(tmp_path)))
    with supervisor(tmp_path) as (process, children):
        assert len(children) == 3
        process.send_signal(signal.SIGKILL)
        until(lambda: have_ended(children), "all have ended")
    events = (tmp_path / "events").read_text().splitlines()
    assert sorted(events[3:5]) == ["ended 0", "ended 1"]  # in order, not killed
    assert events[5] == "ended coordinator"


def test_one_that_does_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``GRACE_S`` after its standard input has ended. It is as long as a stop may take."""
    here, there = os.pipe()
    script = (
        f"import sys; sys.path[:0] = [{str(STUB)!r}, {str(ROOT)!r}];"
        "from replication.supervisor import child; child.GRACE_S = 0.01;"
        f"child.logstore({['serve', f'--dir={tmp_path}/broker-0', '--config=stub.deaf=1']!r}"
        " + ['--broker-id=0', '--listen=X://127.0.0.1:1', '--http=127.0.0.1:0'])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=here, stdout=subprocess.PIPE, text=True
    )
    os.close(here)
    assert process.stdout is not None
    assert "brokerId" in process.stdout.readline()
    os.close(there)
    assert process.wait(patience()) == -signal.SIGKILL
    process.stdout.close()


def test_the_grace_is_longer_than_the_stop_of_a_broker() -> None:
    assert child_module.GRACE_S >= 3 * 5 + 10  # retries of a controlled shutdown, with their pauses
