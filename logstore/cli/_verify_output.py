"""A report of ``logstore verify`` for people: tables on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from logstore.verify import PartitionReport, Progress, Severity, VerifyReport

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "dim"}
_MIB = 1 << 20


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Progress | None]:
    """A bar on a terminal, nothing elsewhere; on stderr, since stdout is for the result."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    with Bar(
        BarColumn(), DownloadColumn(), TransferSpeedColumn(),
        console=Console(stderr=True), transient=True,
    ) as bar:  # fmt: skip
        task = bar.add_task("verify", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def print_report(report: VerifyReport) -> None:
    from rich.console import Console

    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else 180, highlight=False)
    if report.partitions:
        _print_partitions(console, report.partitions)
    if report.findings:
        _print_findings(console, report)
    counts = ", ".join(
        f"{count:,} {severity}{'' if count == 1 else 's'}"
        for severity in Severity
        if (count := report.count(severity))
    )
    if report.suppressed:
        counts += f", and {report.suppressed:,} more findings in the same files"
    verdict = "clean" if report.clean else "not clean"
    if report.unusable:
        verdict = "not all could be checked"
    console.print(f"{report.files:,} files: {verdict}{': ' if counts else ''}{counts}")


def _print_partitions(console: Any, partitions: list[PartitionReport]) -> None:
    """With brokers, where there are several, and what of each was compared with another.

    By directory, where these do not tell partitions apart: a log and its backup.
    """
    from rich.markup import escape
    from rich.table import Table

    several = len({part.broker for part in partitions}) > 1
    alike = Counter((part.broker, part.topic, part.partition) for part in partitions)
    compared = any(part.compared_end >= 0 for part in partitions)
    table = Table(box=None, pad_edge=False)
    table.add_column("partition", no_wrap=True)
    if several:
        table.add_column("broker", overflow="fold")
    for name in ("segments", "batches", "records", "MiB"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("offsets", no_wrap=True)
    if compared:
        table.add_column("compared", no_wrap=True)
    table.add_column("fingerprint", overflow="fold")  # gives way to counts
    for part in partitions:
        table.add_row(
            escape(
                f"{part.topic}-{part.partition}"
                if part.topic and alike[part.broker, part.topic, part.partition] == 1
                else part.directory
            ),
            *([escape(part.broker)] if several else []),
            f"{part.segments:,}", f"{part.batches:,}", f"{part.records:,}",
            f"{part.bytes / _MIB:,.1f}",
            f"{part.log_start_offset}…{part.log_end_offset}",
            *([_range(part.compared_from, part.compared_end)] if compared else []),
            part.fingerprint,
        )  # fmt: skip
    console.print(table)


def _range(start: int, end: int) -> str:
    return f"{start}…{end}" if end >= 0 else ""


def _print_findings(console: Any, report: VerifyReport) -> None:
    """Worst first; where nobody watches, one line each, which other programs can cut apart."""
    from rich.table import Table
    from rich.text import Text

    ranks = list(Severity)
    ordered = sorted(report.findings, key=lambda f: (ranks.index(f.severity), f.file, f.position))
    if not console.is_terminal:
        for finding in ordered:
            click.echo(str(finding))
        return
    table = Table(box=None, pad_edge=False)
    for name in ("severity", "rule", "file", "position", "offset", "finding"):
        right = name in ("position", "offset")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for finding in ordered:
        # The last of the three tells brokers apart.
        table.add_row(
            Text(str(finding.severity), _STYLES[finding.severity]),
            finding.rule,
            Text(os.path.join(*finding.file.split(os.sep)[-3:])),
            str(finding.position) if finding.position >= 0 else "",
            str(finding.offset) if finding.offset >= 0 else "",
            Text(finding.message),
        )
    console.print(table)
