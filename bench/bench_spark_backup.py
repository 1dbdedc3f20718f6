"""Spark over a backup beside the same directory: on the same disk, and behind an S3 server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import spark_data
from s3_server import s3_server
from workloads import in_turns, rates, scaled, seconds

SIZE = scaled(1 << 30)
VALUE_BYTES = 1000
QUESTIONS: dict[str, Callable[[Any], object]] = {
    "`count()`": lambda frame: frame.count(),
    "sum of value lengths": lambda frame: frame.selectExpr("sum(length(value))").first()[0],
}


@dataclass(frozen=True)
class BackedUp:
    directory: Path
    rows: int
    stores: dict[str, str]
    """URIs of backups, by where they are."""

    def right(self, question: str) -> int:
        return self.rows if question == "`count()`" else self.rows * VALUE_BYTES


@pytest.fixture(scope="module")
def backed_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackedUp]:
    root = tmp_path_factory.mktemp("backup")
    directory, backup = root / "logs", root / "backup"
    rows = spark_data.make_directory(
        directory, SIZE, value_bytes=VALUE_BYTES, segment_bytes=scaled(128 << 20, 1 << 20)
    )
    with s3_server(root / "s3") as server:
        stores = {"the same disk": f"file://{backup}", server.name: server.uri("backup")}
        for uri in stores.values():
            command = [sys.executable, "-m", "logstore", "backup", str(directory), "--to", uri]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        spark_data.warm(directory)
        spark_data.warm(backup)
        yield BackedUp(directory, rows, stores)
    spark_data.remove(root)


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_backup_beside_local_files(
    benchmark: Any, claim: Any, spark: Any, backed_up: BackedUp, question: str
) -> None:
    ask = QUESTIONS[question]

    def asked(path: str) -> None:
        assert ask(spark.read.format("logstore").load(path)) == backed_up.right(question)

    def local() -> None:
        asked(str(backed_up.directory))

    def in_time(uri: str) -> float:
        return seconds(lambda: asked(uri))

    stores: dict[str, Any] = {
        where: partial(in_time, uri) for where, uri in backed_up.stores.items()
    }
    took = in_turns(benchmark, local, **stores)
    beside = rates(SIZE / 1e6, took["ours"])
    for where in backed_up.stores:
        is_local = where == "the same disk"
        claim(
            f"{question} over a backup, {where if is_local else 'an S3 server'}",
            rates(SIZE / 1e6, took[where]),
            "MB/s",
            peer="the log directory",
            theirs=beside,
            goal=0.8 if is_local else None,
            note="" if is_local else where,
        )


def test_both_places_beside_local_files(
    benchmark: Any, claim: Any, spark: Any, backed_up: BackedUp
) -> None:
    """What both have is local: what the join of both costs."""
    ask = QUESTIONS["`count()`"]
    frame = spark.read.format("logstore")

    def both() -> None:
        joined = frame.option("tier", backed_up.stores["the same disk"])
        assert ask(joined.load(str(backed_up.directory))) == backed_up.rows

    def local() -> None:
        plain = spark.read.format("logstore").load(str(backed_up.directory))
        assert ask(plain) == backed_up.rows

    took = in_turns(benchmark, both, local=lambda: seconds(local))
    claim(
        "`count()` over a log directory and its backup as one",
        rates(SIZE / 1e6, took["ours"]),
        "MB/s",
        peer="the log directory alone",
        theirs=rates(SIZE / 1e6, took["local"]),
        goal=0.8,
    )
