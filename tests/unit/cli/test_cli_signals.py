"""How a command ends that is interrupted, or that nobody listens to any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from logstore import LogManager

ROOT = Path(__file__).resolve().parents[3]
INTERRUPTED, HUNG_UP = 130, 141  # as a shell has them
AT_ONCE_SECONDS = 30.0  # far more than it takes, far less than the command would run


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("logs")
    with LogManager([directory]) as manager:
        log = manager.get_or_create("orders", 0)
        for _ in range(50):
            log.append([(None, b"x" * 100)] * 100)
    return directory


@contextmanager
def command(*arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """In a process group of its own, as a shell starts it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "logstore", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def interrupt(process: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    """Ctrl-C of a terminal goes to the whole group; exit code and stderr."""
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=AT_ONCE_SECONDS)
    return process.returncode, errors


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(3))
def test_a_search_ends_with_its_workers(attempt: int) -> None:
    with command("simulate", "--schedules", 100_000, "--workers", 2) as process:
        found = psutil.Process(process.pid)
        until(lambda: len(found.children()) == 2)
        time.sleep(0.15 * attempt)  # an interrupt may come at any moment
        workers = found.children()
        assert interrupt(process) == (INTERRUPTED, b"\n")
        assert not [w for w in workers if w.is_running() and w.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_no_child_is_left(tmp_path: Path) -> None:
    """Not even one that Ctrl-C does not reach, as the JVM of Spark while it starts."""
    (tmp_path / "job.py").write_text("""
import signal, subprocess, sys, threading, time
from logstore.common import interrupts
interrupts.guard()
code = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
children = []
def start():
    children.append(subprocess.Popen([sys.executable, "-c", code], start_new_session=True).pid)
    time.sleep(60)
threading.Thread(target=start, daemon=True).start()
while not children:
    time.sleep(0.01)
try:
    print(*children, flush=True)  # the signal may come at once
    time.sleep(60)
except KeyboardInterrupt:
    interrupts.leave()
""")
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "job.py")], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    child = psutil.Process(int(process.stdout.readline()))
    process.send_signal(signal.SIGINT)
    assert process.wait(AT_ONCE_SECONDS) == INTERRUPTED
    process.communicate()
    _gone, alive = psutil.wait_procs([child], timeout=AT_ONCE_SECONDS)
    assert not [c for c in alive if c.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed() -> None:
    with command("simulate", "--schedules", 100_000, "--workers", 2) as process:
        found = psutil.Process(process.pid)
        until(lambda: len(found.children()) == 2)
        workers = found.children()
        process.kill()
        _gone, alive = psutil.wait_procs(workers, timeout=60)
        assert not [w for w in alive if w.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_a_reader_that_follows_ends(log_dir: Path) -> None:
    with command("read", log_dir, "orders", "--follow", "--from", -1) as process:
        assert process.stdout is not None
        assert process.stdout.readline()  # the last record: from now on it waits for more
        assert interrupt(process) == (INTERRUPTED, b"\n")


@pytest.mark.slow
def test_what_takes_too_long_is_left(tmp_path: Path) -> None:
    """A thread, or a library, that does not let go."""
    (tmp_path / "job.py").write_text("""
import threading, time
from logstore.common import interrupts
interrupts.guard()
threading.Thread(target=time.sleep, args=(60,)).start()
print("ready", flush=True)
try:
    time.sleep(60)
finally:
    time.sleep(60)
""")
    for presses in (1, 2):
        process = subprocess.Popen(
            [sys.executable, str(tmp_path / "job.py")], stdout=subprocess.PIPE, cwd=ROOT
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(0.1)
        for _ in range(presses):
            process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        assert process.wait(AT_ONCE_SECONDS) == INTERRUPTED
        process.communicate()


CALLS = [
    ["read", "{}", "orders"],
    ["read", "{}", "orders", "--max", "1"],
    ["dump", "{}", "--json"],
    ["verify", "{}"],
    ["ls", "{}"],
    ["--help"],
    ["--version"],
]


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_a_reader_that_went_away(log_dir: Path, call: list[str]) -> None:
    with command(*(argument.format(log_dir) for argument in call)) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait() == HUNG_UP


@pytest.mark.slow
def test_the_first_line_is_enough(log_dir: Path) -> None:
    with command("read", log_dir, "orders") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"x" * 100 + b"\n"
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait() in (HUNG_UP, 0)  # 0 where its last write was taken in part
