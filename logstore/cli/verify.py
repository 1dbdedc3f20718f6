"""``logstore verify``: check everything a log directory holds, without changing a byte."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from logstore.cli import EXIT_ERROR, EXIT_FINDINGS, json_option
from logstore.verify import Progress, Severity, VerifyOptions, VerifyReport
from logstore.verify import verify as verify_paths

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "dim"}
_MIB = 1 << 20


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH…")
@click.option("--shallow", is_flag=True, help="Headers and checksums only; records not decoded.")
@click.option(
    "--threads", type=click.IntRange(1, 64), default=None, help="Segments checked at once."
)
@click.option("--no-fingerprint", is_flag=True, help="Skip the fingerprint of the content.")
@json_option
@click.pass_context
def verify(
    ctx: click.Context,
    paths: tuple[str, ...],
    shallow: bool,
    threads: int | None,
    no_fingerprint: bool,
    as_json: bool,
) -> None:
    """Check log directories, partition directories, or single files of them.

    Nothing is written, and a broker that uses the directory need not be stopped. The rule of each
    finding is explained in docs/verify.md. Equal fingerprints of two partitions mean equal content,
    whatever their segment boundaries and leader epochs.

    Exit code 0: clean, or information only. 1: an error or a warning was found. 2: a path could not
    be read.
    """
    options = VerifyOptions(deep=not shallow, fingerprint=not no_fingerprint, threads=threads or 0)
    with _progress(quiet=as_json) as progress:
        report = verify_paths(paths, options, progress=progress)
    if as_json:
        click.echo(json.dumps(report.to_dict(), indent=2))
    else:
        _print(report)
    for line in report.unusable:
        click.echo(f"error: {line}", err=True)
    if report.unusable:
        ctx.exit(EXIT_ERROR)
    ctx.exit(0 if report.clean else EXIT_FINDINGS)


@contextmanager
def _progress(quiet: bool) -> Iterator[Progress | None]:
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


def _print(report: VerifyReport) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else 160, highlight=False)
    if report.partitions:
        table = Table(box=None, pad_edge=False)
        table.add_column("partition", no_wrap=True)
        for name in ("segments", "batches", "records", "MiB"):
            table.add_column(name, justify="right", no_wrap=True)
        for name in ("offsets", "fingerprint"):
            table.add_column(name, no_wrap=True)
        for part in report.partitions:
            table.add_row(
                escape(f"{part.topic}-{part.partition}" if part.topic else part.directory),
                f"{part.segments:,}", f"{part.batches:,}", f"{part.records:,}",
                f"{part.bytes / _MIB:,.1f}",
                f"{part.log_start_offset}…{part.log_end_offset}", part.fingerprint,
            )  # fmt: skip
        console.print(table)
    if report.findings:
        _print_findings(console, report, Table)
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


def _print_findings(console: Any, report: VerifyReport, table_class: Any) -> None:
    """Worst first; where nobody watches, one line each, which other programs can cut apart."""
    from rich.text import Text

    ranks = list(Severity)
    ordered = sorted(report.findings, key=lambda f: (ranks.index(f.severity), f.file, f.position))
    if not console.is_terminal:
        for finding in ordered:
            click.echo(str(finding))
        return
    table = table_class(box=None, pad_edge=False)
    for name in ("severity", "rule", "file", "position", "offset", "finding"):
        right = name in ("position", "offset")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for finding in ordered:
        table.add_row(
            Text(str(finding.severity), _STYLES[finding.severity]),
            finding.rule,
            Text(os.path.join(*finding.file.split(os.sep)[-2:])),
            str(finding.position) if finding.position >= 0 else "",
            str(finding.offset) if finding.offset >= 0 else "",
            Text(finding.message),
        )
    console.print(table)
