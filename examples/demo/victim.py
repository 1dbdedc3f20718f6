"""The writer process as its parent sees it: started, listened to and killed in mid-append."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from logstore.common.errors import LogstoreError

ROOT = Path(__file__).parents[2]
_BATCH_SECONDS_MAX = 0.002  # the assumed time of a batch until one is measured


class WriterFailedError(LogstoreError):
    """The writer ended by itself, which it does only after an error."""


@dataclass(slots=True)
class WriterReport:
    """The last words of the writer before it died.

    ``flushed`` is an end offset for each partition, ``in_append`` false when it waited at the end.
    """

    flushed: list[int] = field(default_factory=list)
    in_append: bool = False
    flushes: int = 0
    appended: int = 0
    size: int = 0
    seconds: float = 0.0


class Victim:
    """A running writer. The end of the ``with`` block always ends it."""

    def __init__(self, directory: str, records: int, partitions: int, batch: int) -> None:
        arguments = [os.path.abspath(directory), *map(str, (records, partitions, batch))]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "examples.demo.writer", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,  # where ``-m`` looks first
        )
        self.report = WriterReport(flushed=[0] * partitions)
        self._quickest = _BATCH_SECONDS_MAX

    def __enter__(self) -> Victim:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.communicate()

    def kill_in_append(
        self, after_records: int, part: float, advance: Callable[[int], None]
    ) -> WriterReport:
        """Let it write, and SIGKILL it within the first batch that begins at or past
        ``after_records``.

        ``part`` says how far into that batch, as a share of the time of the fastest batch.

        Raises:
            WriterFailedError: with the last line it wrote to stderr.
        """
        process, killed = self._process, False
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:  # to the end, because its last words before the kill count
            word: dict[str, Any] = json.loads(line)
            if "ready" in word:
                process.stdin.write(b"go\n")
                process.stdin.flush()
            self._note(word, advance)
            past = "appending" in word and self.report.appended >= after_records
            if not killed and (past or "waiting" in word):
                self.report.in_append = "appending" in word
                if self.report.in_append:
                    time.sleep(part * self._quickest)
                process.kill()
                killed = True
        if process.wait() != -signal.SIGKILL:
            assert process.stderr is not None
            told = process.stderr.read().decode(errors="replace").strip().splitlines()
            raise WriterFailedError(told[-1] if told else f"exit code {process.returncode}")
        return self.report

    def _note(self, word: dict[str, Any], advance: Callable[[int], None]) -> None:
        report = self.report
        if "appending" in word:
            if word["appending"]:
                self._quickest = min(self._quickest, word["seconds"] - report.seconds)
            report.appended, report.size = word["appending"], word["size"]
            report.seconds = word["seconds"]
            advance(report.appended)
        elif "flushed" in word:
            report.flushed = word["flushed"]
            report.flushes += 1
