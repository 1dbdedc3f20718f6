"""A report of ``logstore verify`` for people: tables on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common.explanations import explanation_lines
from logstore.verify import PartitionReport, Progress, Severity, VerifyReport
from logstore.verify.common.explanations import EXPLANATIONS
from logstore.verify.common.rules import RULES

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "dim"}
_MIB = 1 << 20
_WIDTH = 180  # columns of the table of partitions, where nobody watches


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Progress | None]:
    """A bar on a terminal, nothing elsewhere; on stderr, since stdout is for the result."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from logstore.terminal import tables

    with tables.progress(*tables.transferred()) as bar:
        task = bar.add_task("verify", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def print_report(report: VerifyReport, *, explain: bool = False) -> None:
    if report.partitions:
        _print_partitions(report.partitions)
    if report.findings:
        _print_findings(report)
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
    if explain and report.findings:
        terminal.lines(["", *explanation_lines(_rules(report)), ""])
    terminal.line(f"{report.files:,} files: {verdict}{': ' if counts else ''}{counts}")


def explanations_of(report: VerifyReport) -> dict[str, dict[str, str]]:
    """By rule, for those that have findings."""
    return {rule: EXPLANATIONS[rule]._asdict() for rule in _rules(report)}


def _rules(report: VerifyReport) -> list[str]:
    found = {finding.rule for finding in report.findings}
    return [rule for rule in RULES if rule in found]


def _print_partitions(partitions: list[PartitionReport]) -> None:
    """With brokers, where there are several, and what of each was compared with another.

    By directory, where these do not tell partitions apart: a log and its backup.
    """
    from logstore.terminal import tables

    several = len({part.broker for part in partitions}) > 1
    alike = Counter((part.broker, part.topic, part.partition) for part in partitions)
    compared = any(part.compared_end >= 0 for part in partitions)
    table = tables.plain_table()
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
            printable(
                f"{part.topic}-{part.partition}"
                if part.topic and alike[part.broker, part.topic, part.partition] == 1
                else part.directory
            ),
            *([printable(part.broker)] if several else []),
            f"{part.segments:,}", f"{part.batches:,}", f"{part.records:,}",
            f"{part.bytes / _MIB:,.1f}",
            f"{part.log_start_offset}…{part.log_end_offset}",
            *([_range(part.compared_from, part.compared_end)] if compared else []),
            part.fingerprint,
        )  # fmt: skip
    tables.print_tables(table, width=_WIDTH)


def _range(start: int, end: int) -> str:
    return f"{start}…{end}" if end >= 0 else ""


def _print_findings(report: VerifyReport) -> None:
    """Worst first; where nobody watches, one line each, which other programs can cut apart."""
    ranks = list(Severity)
    ordered = sorted(report.findings, key=lambda f: (ranks.index(f.severity), f.file, f.position))
    if not terminal.is_terminal():
        terminal.lines(map(str, ordered))
        return
    from logstore.terminal import tables

    table = tables.plain_table()
    for name in ("severity", "rule", "file", "position", "offset", "finding"):
        right = name in ("position", "offset")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for finding in ordered:
        # The last of the three tells brokers apart.
        table.add_row(
            tables.cell(str(finding.severity), _STYLES[finding.severity]),
            finding.rule,
            printable(os.path.join(*finding.file.split(os.sep)[-3:])),
            str(finding.position) if finding.position >= 0 else "",
            str(finding.offset) if finding.offset >= 0 else "",
            finding.message,
        )
    tables.print_tables(table, width=_WIDTH)
