"""``logstore consume --group`` as processes, and what is true of them with brokers of any kind."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import struct
import subprocess
import sys
import termios
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import logstore, logstore_json
from tests.support.served import new_name
from tests.support.until import patience, until

ROOT = Path(__file__).resolve().parents[2]
SESSION_MS = 6000  # Kafka's least
_QUICK = {
    "session.timeout.ms": SESSION_MS,
    "heartbeat.interval.ms": 100,
    "auto.commit.interval.ms": 50,
}


class ConsumingProcess:
    """A context manager: a member of a group, whose output goes into a file."""

    def __init__(self, directory: Path, bootstrap: str, topic: str, *words: str, **how: Any):
        self._file = directory / new_name("output")
        quick = [
            word
            for key, value in {**_QUICK, **how.get("config", {})}.items()
            for word in ("-X", f"{key}={value}")
        ]
        command = [sys.executable, "-m", "logstore", "consume", topic, *quick, *words]
        with self._file.open("wb") as file:
            self.process = subprocess.Popen(
                [*command, "--bootstrap-server", bootstrap],
                stdout=how.get("stdout", file),
                stderr=subprocess.PIPE,
                bufsize=0,  # a pipe of it holds no more than the system's
                cwd=ROOT,
                env={**os.environ, "PYTHONUNBUFFERED": how.get("unbuffered", "")},
            )

    def __enter__(self) -> ConsumingProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.communicate()

    def lines(self) -> list[str]:
        return self._file.read_text().split("\n")[:-1]

    def end(self, number: int = signal.SIGINT, code: int = 130) -> str:
        """What it says on stderr."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=patience())
        assert self.process.returncode == code, errors
        return errors.decode()


def write(bootstrap: str, directory: Path, topic: str, values: Iterable[int]) -> None:
    """Keys spread them over the partitions."""
    source = directory / new_name("input")
    source.write_text("".join(f"{n}:{n}\n" for n in values))
    words = ("-l", str(source), "-K", ":", "--bootstrap-server", bootstrap)
    logstore("produce", topic, *words, "-q")


def new_topic(bootstrap: str, partitions: int = 4) -> str:
    topic = new_name("consumed")
    words = ("--partitions", str(partitions), "--bootstrap-server", bootstrap)
    logstore("topics", "create", topic, *words)
    return topic


def described(bootstrap: str, group: str) -> Any:
    """None before it exists."""
    told = logstore_json("groups", "describe", group, "--bootstrap-server", bootstrap, code=None)
    return next((each for each in told if each.get("state")), None)


def shares(bootstrap: str, group: str) -> list[int]:
    """Partitions of each member, of a group that is stable."""
    told = described(bootstrap, group)
    if told is None or told["state"] not in ("Stable", "Empty"):
        return [-1]
    return sorted(len(member["assigned"]) for member in told["members"])


def has_no_lag(bootstrap: str, group: str) -> bool:
    told = described(bootstrap, group)
    return (
        told is not None
        and bool(told["offsets"])
        and all(each["lag"] == 0 for each in told["offsets"])
    )


def each_once(members: Iterable[ConsumingProcess], count: int) -> bool:
    """Await so many lines; there is no other one, and none twice."""
    members = [*members]
    until(lambda: sum(len(each.lines()) for each in members) >= count, f"{count} records")
    found = Counter(line for each in members for line in each.lines())
    assert found == Counter(map(str, range(count)))
    return True


def members_share_and_take_over(bootstrap: str, directory: Path) -> None:
    """One dies, after all that was written out is committed; then the other one leaves."""
    topic, group = new_topic(bootstrap), new_name("group")
    write(bootstrap, directory, topic, range(100))
    with ExitStack() as stack:

        def member(*words: str) -> ConsumingProcess:
            process = ConsumingProcess(directory, bootstrap, topic, "-G", group, *words)
            return stack.enter_context(process)

        first = member()
        assert each_once([first], 100)
        until(lambda: has_no_lag(bootstrap, group))
        second = member()
        until(lambda: shares(bootstrap, group) == [2, 2], "two members")
        write(bootstrap, directory, topic, range(100, 200))
        assert each_once([first, second], 200)
        assert len(second.lines()) > 20
        until(lambda: has_no_lag(bootstrap, group))
        first.process.kill()
        write(bootstrap, directory, topic, range(200, 300))
        assert each_once([first, second], 300)
        until(lambda: shares(bootstrap, group) == [4], "one member")
        said = second.end()
        assert said.splitlines()[0].startswith(f"% Group {group} rebalanced: assigned: {topic} [")
        assert f"% Group {group} rebalanced: revoked: {topic} [" in said
        assert shares(bootstrap, group) == []
        assert has_no_lag(bootstrap, group)
        last = member("-e", "-q")
        assert (last.process.wait(patience()), last.lines()) == (0, [])


def a_clean_stop_is_exact(
    bootstrap: str, directory: Path, number: int, unbuffered: str = ""
) -> None:
    """It ends in the middle of a write, as its reader is slow."""
    topic, group = new_topic(bootstrap), new_name("group")
    count = 30_000
    write(bootstrap, directory, topic, range(count))
    words = ("-G", group, "-q")
    with ConsumingProcess(
        directory, bootstrap, topic, *words, stdout=subprocess.PIPE, unbuffered=unbuffered
    ) as first:
        pipe = first.process.stdout
        assert pipe is not None
        begun = pipe.read(1)
        nearly_full = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) - 2 * mmap.PAGESIZE
        until(lambda: _waiting_bytes(pipe) >= nearly_full, "the pipe is full")
        first.process.send_signal(number)
        status = Path(f"/proc/{first.process.pid}/status")
        until(lambda: "ShdPnd:\t0000000000000000" in status.read_text(), "it has the signal")
        rest, errors = first.process.communicate(timeout=patience())
        assert first.process.returncode == 130, errors
    found = (begun + rest).decode().split("\n")[:-1]
    assert shares(bootstrap, group) == []  # it has left
    with ConsumingProcess(directory, bootstrap, topic, *words, "-e") as second:
        assert second.process.wait(patience()) == 0
        found += second.lines()
    assert Counter(found) == Counter(map(str, range(count)))
    assert has_no_lag(bootstrap, group)


def _waiting_bytes(pipe: Any) -> int:
    (found,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return int(found)


def members_of_another_client(
    bootstrap: str, directory: Path, ours_leads: bool, protocol: str = "classic"
) -> None:
    """Who comes first leads, and assigns for both; in the newer protocol the broker does."""
    confluent = pytest.importorskip("confluent_kafka")
    topic, group = new_topic(bootstrap), new_name("group")
    with ExitStack() as stack:

        def join_ours() -> ConsumingProcess:
            return stack.enter_context(ConsumingProcess(directory, bootstrap, topic, "-G", group))

        found: list[str] = []

        def poll() -> None:
            message = theirs.poll(0.01)
            if message is not None and message.error() is None:
                found.append(message.value().decode())

        classic = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 100}
        theirs = confluent.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "log_level": 0,
                **({} if protocol == "consumer" else classic),
                "group.protocol": protocol,
            }
        )
        stack.callback(theirs.close)
        if ours_leads:
            ours = join_ours()
            until(lambda: shares(bootstrap, group) == [4])
            theirs.subscribe([topic])
        else:
            theirs.subscribe([topic])
            until(lambda: poll() or shares(bootstrap, group) == [4])
            ours = join_ours()
        until(lambda: poll() or shares(bootstrap, group) == [2, 2], "both are members")
        write(bootstrap, directory, topic, range(100))
        until(lambda: poll() or len(found) + len(ours.lines()) >= 100)
        assert Counter([*found, *ours.lines()]) == Counter(map(str, range(100)))
        assert found
        assert ours.lines()
        ours.end()
        until(lambda: poll() or shares(bootstrap, group) == [4], "theirs alone")
