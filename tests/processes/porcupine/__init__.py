"""A second opinion on the order of partitions in real time: the linearizability checker porcupine.

The check of ``checks.check_realtime`` is complete for logs; this one knows nothing of that, and
decides by search.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping
from pathlib import Path

from checkpoints.types import TopicPartition
from tests.clients import toolchain
from tests.processes.checks import Register

MODULE = "github.com/anishathalye/porcupine"
VERSION = "v1.3.1"
SOURCE = Path(__file__).parent / "main.go"
NEVER = (1 << 62) - 1


def checker() -> Path:
    """The program.

    Raises:
        SuiteUnavailable: there is no Go, or the module cannot be had.
    """

    def build(directory: Path) -> None:
        go = toolchain.tool("go")
        (directory / "main.go").write_text(SOURCE.read_text())
        for words in (
            ["mod", "init", "logstore.test/linearizable"],
            ["get", f"{MODULE}@{VERSION}"],
            ["build", "-o", "linearizable", "."],
        ):
            toolchain.run([go, *words], directory)

    return toolchain.built("porcupine", VERSION + SOURCE.read_text(), build) / "linearizable"


def check(registers: Mapping[TopicPartition, Register]) -> list[str]:
    """What is not linearizable.

    Raises:
        SuiteUnavailable: as ``checker``.
    """

    def ns(time: float) -> int:
        return NEVER if time == math.inf else int(time * 1e9)

    given = {
        str(tp): {
            "writes": [(offset, ns(began), ns(ended)) for offset, began, ended in each.writes],
            "reads": [(read.end, ns(read.began), ns(read.ended)) for read in each.reads],
        }
        for tp, each in registers.items()
    }
    done = subprocess.run(
        [checker()], input=json.dumps(given), capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        raise AssertionError(done.stderr)
    return done.stdout.splitlines()
