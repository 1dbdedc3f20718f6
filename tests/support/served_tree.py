"""``logstore coordinator`` as a process: started, killed, stopped, started again at its address."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from tests.support.until import patience
from tests.support.zookeeper_client import ZooKeeperClient

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-c", "from replication.cli.coordinator import coordinator as c; c()")


class CoordinatorProcess:
    """Runs as long as the block; a restart takes the port of the first start."""

    def __init__(self, directory: Path, tick_ms: int = 2000) -> None:
        self.data = directory
        self.address = ("127.0.0.1", 0)
        self._tick_ms = tick_ms
        self.start()

    @property
    def hosts(self) -> str:
        return "{}:{}".format(*self.address)

    @property
    def port(self) -> int:
        return self.address[1]

    def start(self) -> None:
        listen = [f"--listen={self.hosts}", f"--tick-ms={self._tick_ms}", "--json"]
        self.process = subprocess.Popen(
            [*COMMAND, f"--dir={self.data}", *listen], stdout=subprocess.PIPE, cwd=ROOT
        )
        assert self.process.stdout is not None
        self.ready = json.loads(self.process.stdout.readline())
        host, port = self.ready["coordinator"].removeprefix("zookeeper://").rsplit(":", 1)
        self.address = host, int(port)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """The exit code."""
        self.process.send_signal(number)
        code = self.process.wait(patience())
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def pause(self) -> None:
        """Neither answer nor close connections; ``resume`` ends it."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def put_back(self, copy: Path) -> None:
        """Restart with another copy of the directory, as an operator who restores a backup."""
        self.kill()
        shutil.rmtree(self.data)
        shutil.copytree(copy, self.data)
        self.start()

    def expire(self, session_id: int, password: bytes) -> None:
        """Take a session over, and close it."""
        self.client(session=(session_id, password)).close_session()

    def client(self, timeout_ms: int = 30_000, **options: object) -> ZooKeeperClient:
        return ZooKeeperClient(self.address, timeout_ms, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
