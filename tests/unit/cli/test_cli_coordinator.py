"""``logstore coordinator``: ready, in use, and gone again."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.served_tree import COMMAND, ROOT, CoordinatorProcess
from tests.support.until import patience

pytestmark = pytest.mark.slow  # a process starts


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_a_signal_and_goes_on_with_its_sessions(
    tmp_path: Path, number: signal.Signals
) -> None:
    with CoordinatorProcess(tmp_path / "new" / "tree") as process:
        assert process.ready == {"coordinator": f"zookeeper://{process.hosts}", "ensemble": False}
        with process.client() as client:
            client.create("/a", b"1", 1)
            assert process.stop(number) == 0
        process.start()
        with process.client(session=client.session) as again:
            assert again.stat("/a").owner == client.session_id


def test_one_line_says_where_and_what_it_is(tmp_path: Path) -> None:
    arguments = [f"--dir={tmp_path}", "--listen=127.0.0.1:0"]
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready: zookeeper://127.0.0.1:")
        assert line.endswith(" (a single durable node, no ensemble)\n")
        taken = subprocess.run(
            [*COMMAND, *arguments], capture_output=True, text=True, cwd=ROOT, check=False
        )
        assert (taken.returncode, taken.stdout) == (1, "")
        assert "one owner at a time" in taken.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(patience()) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--listen=127.0.0.1"], "give HOST:PORT"),
        (["--listen=0.0.0.0:0"], "no login"),
        (["--listen=127.0.0.1:0", "--tick-ms=1"], "tick-ms"),
        (["--listen=192.0.2.1:0", "--allow-plaintext"], "192.0.2.1:0"),
    ],
)
def test_what_cannot_be_served(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = subprocess.run(
        [*COMMAND, f"--dir={tmp_path}", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=patience(),
        check=False,
    )
    assert done.returncode != 0
    assert said in done.stderr
    assert done.stdout == ""
