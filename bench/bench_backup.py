"""``logstore backup`` of a log directory to an S3 server, beside ``aws s3 cp`` of its files."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mirror_peers
import pytest
import s3_server
from spark_data import make_directory
from workloads import ROUNDS, rates, scaled

SIZE, SEGMENT_BYTES = scaled(1_000_000_000, 8_000_000), scaled(128 << 20, 1 << 20)
number = itertools.count()


@pytest.fixture(scope="module")
def data(directory: Path) -> Path:
    make_directory(directory / "data", SIZE, value_bytes=1000, segment_bytes=SEGMENT_BYTES)
    return directory / "data"


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[s3_server.S3Server]:
    with s3_server.s3_server(directory / "store") as found:
        yield found


def test_backup(
    benchmark: Any, claim: Any, directory: Path, data: Path, server: s3_server.S3Server
) -> None:
    """Both are whole processes. Ours also checks every batch, and reads back what it has put."""
    total = sum(each.stat().st_size for each in data.rglob("*.log")) / 1e6
    ours: list[mirror_peers.Ran] = []
    theirs: list[mirror_peers.Ran] = []
    again: list[mirror_peers.Ran] = []
    name = s3_server.copy_command(data, "")[0]

    def backup(target: str) -> mirror_peers.Ran:
        command = mirror_peers.logstore_command("backup", data, "--to", server.uri(target))
        return mirror_peers.run(command, directory / "backup.out", **server.environment)

    def turn() -> None:
        at = next(number)
        command = s3_server.copy_command(data, f"copy-{at}")[1]
        theirs.append(mirror_peers.run(command, directory / "copy.out", **server.environment))
        ours.append(backup(f"backup-{at}"))
        again.append(backup(f"backup-{at}"))
        for each in ("copy", "backup"):
            shutil.rmtree(directory / "store" / s3_server.BUCKET / f"{each}-{at}", True)

    benchmark.pedantic(turn, rounds=ROUNDS, warmup_rounds=1)
    (mine, copies, repeated) = (each[1:] for each in (ours, theirs, again))
    cpu = [sum(each.cpu_s for each in runs) / len(runs) for runs in (mine, copies)]
    claim(
        f"backup to an S3 server ({server.name}), the whole process",
        rates(total, [each.wall_s for each in mine]),
        "MB/s",
        peer=name,
        theirs=rates(total, [each.wall_s for each in copies]),
        goal=0.9,
        note="CPU {:.1f} s a GB; its {:.1f}".format(*(each * 1000 / total for each in cpu)),
    )
    peak = [each.peak_mb for each in mine]
    claim("backup to an S3 server: memory", peak, "MB", limit=100, less=True)
    claim(
        "backup to an S3 server, nothing new",
        [each.wall_s for each in repeated],
        "s",
        limit=2,
        less=True,
    )
