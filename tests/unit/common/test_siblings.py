"""A user's project may have modules called ``checkpoints`` and ``replication``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from logstore.common.siblings import ROOT

MINE = "MINE = True\n"


@pytest.fixture(params=["module", "package"])
def project(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    for name in ("checkpoints", "replication"):
        path = tmp_path / (f"{name}.py" if request.param == "module" else f"{name}/__init__.py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(MINE)
    return tmp_path


def run(project: Path, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Python in the project's directory, which comes before the installed packages."""
    environment = os.environ | {
        "PYTHONPATH": f"{project}:{ROOT}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # ours is named, as an installation would
    }
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=project,
        env=environment,
        input=given,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
def test_commands_find_their_own(project: Path) -> None:
    done = run(project, "-m", "logstore", "append", "logs", "orders", given="one\ntwo\n")
    assert done.returncode == 0, done.stderr
    done = run(project, "-m", "logstore", "read", "logs", "orders")
    assert (done.returncode, done.stdout) == (0, "one\ntwo\n")


@pytest.mark.slow
def test_worker_processes_find_their_own(project: Path) -> None:
    done = run(
        project,
        "-m",
        "logstore",
        "simulate",
        "--schedules",
        "4",
        "--workers",
        "2",
        "--events",
        "50",
    )
    assert done.returncode == 0, done.stderr
    assert "4 schedules" in done.stdout


@pytest.mark.slow
def test_spawned_workers_find_their_own(project: Path) -> None:
    """As Python 3.14 starts them; the main module is imported again in each."""
    (project / "job.py").write_text("""
import multiprocessing, sys
from logstore.__main__ import run
import checkpoints.files, replication.simulator.search.search
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(str, ("started",)))
""")
    done = run(project, "job.py")
    assert (done.stdout, done.stderr) == ("started\n", "")


TESTS = """
import sys
import checkpoints, replication

def test_my_own():
    assert checkpoints.MINE and replication.MINE

def test_the_plugin_imported_nothing():
    assert {name for name in sys.modules if name.startswith("logstore")} <= {
        "logstore", "logstore.pytest_plugin"}
"""


@pytest.mark.slow
def test_a_test_run_finds_the_users(project: Path) -> None:
    (project / "test_mine.py").write_text(TESTS)
    done = run(project, "-m", "pytest", "-q", "-p", "logstore.pytest_plugin")
    assert "2 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "def test(logstore_cluster): pass",
        "def test():\n    from logstore import LogManager",
    ],
    ids=["fixture", "library"],
)
def test_what_hides_our_packages_is_told(project: Path, code: str) -> None:
    (project / "test_mine.py").write_text(code)
    done = run(project, "-m", "pytest", "-q", "-p", "logstore.pytest_plugin")
    assert done.returncode == 1
    assert f"ImportError: {project}/checkpoints" in done.stdout
    assert "hides the package of the same name" in done.stdout


@pytest.mark.slow
def test_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("""
def test_three(logstore_cluster):
    logstore_cluster.create_topic("t", replication_factor=3)

def test_two(make_logstore_cluster):
    make_logstore_cluster(1), make_logstore_cluster(1)
""")
    done = run(tmp_path, "-m", "pytest", "-q", "-p", "logstore.pytest_plugin")
    assert "2 passed" in done.stdout, done.stdout + done.stderr
