"""How a command ends that is interrupted, or that nobody listens to any more."""

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

from logstore import LogManager
from tests.support.until import patience, until

ROOT = Path(__file__).resolve().parents[3]
INTERRUPTED, HUNG_UP = 130, 141  # as a shell has them


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
    _, errors = process.communicate(timeout=patience())
    return process.returncode, errors


def all_ended(processes: list[psutil.Process]) -> bool:
    return not [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def workers_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    found = psutil.Process(process.pid)
    return until(lambda: len(children := found.children()) == 2 and children, "two workers")


@pytest.mark.slow
@pytest.mark.parametrize("begun", [False, True], ids=["as they start", "as they work"])
def test_a_search_ends_with_its_workers(begun: bool) -> None:
    with command("simulate", "--schedules", 100_000, "--workers", 2) as process:
        workers = workers_of(process)
        if begun:
            until(lambda: all(sum(worker.cpu_times()[:2]) > 0.5 for worker in workers), "some work")
        assert interrupt(process) == (INTERRUPTED, b"\n")
        assert all_ended(workers)


@pytest.mark.slow
def test_no_child_is_left(tmp_path: Path) -> None:
    """Not even one that Ctrl-C does not reach, as the JVM of Spark while it starts."""
    (tmp_path / "job.py").write_text("""
import queue, subprocess, sys, threading, time
from logstore.common import interrupts
interrupts.guard()
code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); signal.pause()"
children = queue.Queue()
def start():
    children.put(subprocess.Popen([sys.executable, "-c", code], start_new_session=True).pid)
    threading.Event().wait()
threading.Thread(target=start, daemon=True).start()
try:
    print(children.get(), flush=True)  # the signal may come at once
    while True:
        time.sleep(0.01)  # a signal just before signal.pause would not end it
except KeyboardInterrupt:
    interrupts.leave()
""")
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "job.py")], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    child = psutil.Process(int(process.stdout.readline()))
    process.send_signal(signal.SIGINT)
    assert process.wait(patience()) == INTERRUPTED
    process.communicate()
    until(lambda: all_ended([child]))


@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed() -> None:
    with command("simulate", "--schedules", 100_000, "--workers", 2) as process:
        workers = workers_of(process)
        process.kill()
        until(lambda: all_ended(workers))


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
threading.Thread(target=threading.Event().wait).start()
try:
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
finally:
    print("leaving", flush=True)
    while True:
        time.sleep(0.01)
""")
    for presses in (1, 2):
        process = subprocess.Popen(
            [sys.executable, str(tmp_path / "job.py")], stdout=subprocess.PIPE, cwd=ROOT
        )
        assert process.stdout is not None
        for line in (b"ready\n", b"leaving\n")[:presses]:
            assert process.stdout.readline() == line
            process.send_signal(signal.SIGINT)
        assert process.wait(patience()) == INTERRUPTED
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
