"""``logstore export --format delta``: a topic in a table, and what is new of it at each run."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common.exits import EXIT_FINDINGS, fail, notes
from logstore.cli.common.options import counted
from logstore.cli.common.spark_session import sentence_of, spark_session
from logstore.cli.records import positions
from logstore.directory.errors import DataLossError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logstore.spark import ExportReport
    from logstore.verify import Progress


@dataclass(frozen=True, slots=True)
class TableTarget:
    """What is exported to ``path``. ``start`` and ``offsets`` are where a new table begins."""

    path: str
    topic: str
    start: str | None
    offsets: str | None
    committed: bool
    lossy: bool

    def options(self) -> dict[str, Any]:
        """As ``logstore.spark.export`` has them."""
        found: dict[str, Any] = {"failOnDataLoss": not self.lossy}
        if self.committed:
            found["isolation"] = "read_committed"
        if self.start is not None and self.offsets is not None:
            fail("--from and --from-offsets exclude each other")
        if self.start is not None and self.start.startswith("@"):
            found["startingTimestamp"] = positions.moment(self.start[1:], "--from")
        elif self.start == "earliest":
            found["startingOffsets"] = self.start
        elif self.start is not None:
            fail(f"--from {printable(self.start)}: a table begins at earliest or at a @TIME")
        if self.offsets is not None:
            found["startingOffsets"] = json.dumps({self.topic: self._by_partition(self.offsets)})
        return found

    @staticmethod
    def _by_partition(text: str) -> dict[str, Any]:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or not found:
            fail(f"--from-offsets {printable(text)}: give an offset for each partition")
        return found


def export_table(
    directory: str, table: TableTarget, master: str, conf: Sequence[str], as_json: bool
) -> None:
    """Run one export, and say what it has added."""
    options = table.options()
    with (
        spark_session(master, conf, "logstore export") as spark,
        _bar(quiet=as_json) as progress,
    ):
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from logstore.spark import export

        try:
            report = export(spark, directory, table.topic, table.path, progress=progress, **options)
        except DataLossError as loss:
            place = f"{printable(loss.path)}: offsets {loss.start} to {loss.end}"
            fail(f"{place}: {loss.reason}; --allow-data-loss goes on with what is there")
        except (PySparkException, Py4JError) as error:
            sentence = sentence_of(error)
            if not re.search(r" at byte [0-9]+: ", sentence):
                raise
            terminal.line(f"corrupt: {printable(sentence)}; nothing was exported", err=True)
            raise click.exceptions.Exit(EXIT_FINDINGS) from None
    for text in report.lost:
        notes()(text)
    _print(report, as_json)


@contextmanager
def _bar(quiet: bool) -> Iterator[Progress | None]:
    """A progress bar on a terminal, on stderr because stdout is for the result."""
    from logstore.terminal import tables

    with tables.progress(*tables.counted(), hide=quiet) as bar:
        task = bar.add_task("offsets", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print(report: ExportReport, as_json: bool) -> None:
    if as_json:
        rows = [
            {"topic": tp.topic, "partition": tp.partition, "startOffset": start, "endOffset": end}
            for tp, (start, end) in report.offsets.items()
        ]
        sums = {name: getattr(report, name) for name in ("version", "records", "files", "size")}
        found = {"table": report.table, **sums, "partitions": rows, "lost": report.lost}
        terminal.print_json(found)
        return
    for tp, (start, end) in report.offsets.items():
        terminal.line(f"{printable(str(tp))}: offsets {start} to {end - 1}")
    place = printable(report.table)
    if not report.offsets:
        terminal.line(f"{place}: nothing new")
        return
    added = f"{counted(report.records)} in {report.files} files of {report.size} bytes"
    terminal.line(f"{place}: {added}, commit {report.version}")


__all__ = ["TableTarget", "export_table"]
