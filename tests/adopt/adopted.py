"""``logstore serve --adopt`` as a process."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from tests.support.until import patience, until

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "from replication.cli.serve import serve; serve()"  # also where nothing is installed


class Adopted:
    """A context manager that ends the process by SIGTERM.

    Args:
        options: of the command, besides ``--listen`` and ``--json``.
        log_file: for what it writes.
    """

    def __init__(self, log_file: Path, *options: str | Path) -> None:
        listen = ["--listen", "127.0.0.1:0", "--json"]
        self._command = [sys.executable, "-c", PROGRAM, *listen, *map(str, options)]
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None
        self.told: dict[str, Any] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(self.told["bootstrapServers"])

    def launch(self) -> subprocess.Popen[bytes]:
        """Start, and wait for nothing."""
        with self._log_file.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self._process

    def __enter__(self) -> Self:
        process = self.launch()

        def ready() -> bool:
            for line in self._log_file.read_text(errors="replace").splitlines():
                if line.startswith("{") and "bootstrapServers" in line:
                    self.told = json.loads(line)
            return bool(self.told) or process.poll() is not None

        until(ready, "logstore serve --adopt is ready")
        if not self.told:
            raise AssertionError(
                f"ended with {process.returncode}:\n{self._log_file.read_text(errors='replace')}"
            )
        return self

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def __exit__(self, *raised: object) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(patience())
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        assert status == 0 or raised[0] is not None, self._log_file.read_text(errors="replace")


def digest(directory: Path) -> dict[str, tuple[Any, ...]]:
    """Every name below ``directory``, with size, time of change and digest of the bytes."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in sorted([directory, *directory.rglob("*")]):
        info = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        name = str(path.relative_to(directory))
        found[name] = (info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns, content)
    return found
