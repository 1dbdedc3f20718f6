"""A report of ``logstore verify`` for people: tables on a terminal, lines elsewhere."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator

from checkpoints.printable import printable
from logstore import terminal
from logstore.verify import PartitionReport, Severity, VerifyReport
from logstore.verify.common.rules import RULES

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "dim"}
_MIB = 1 << 20
_WIDTH = 79
_INDENT = 12


def print_report(report: VerifyReport, *, explain: bool = False) -> None:
    if report.partitions:
        _print_partitions(report.partitions)
    if report.findings:
        _print_findings(report)
    if explain and report.findings:
        terminal.lines(["", *explanation_lines(_rules(report)), ""])
    terminal.line(report.verdict)


def explanation_lines(rules: Iterable[str]) -> Iterator[str]:
    """Explain rules, at most 79 columns wide; a blank line between two rules."""
    for number, rule in enumerate(map(RULES.__getitem__, rules)):
        if number:
            yield ""
        yield f"{rule.id} ({', '.join(rule.severities)}; rule {rule.number})"
        for title, text in rule.texts:
            yield from textwrap.wrap(
                text,
                _WIDTH,
                initial_indent=f"{title}:".ljust(_INDENT),
                subsequent_indent=" " * _INDENT,
                break_on_hyphens=False,
            )


def explanations_of(report: VerifyReport) -> dict[str, dict[str, str]]:
    """The explanations of rules that have findings, by rule."""
    found = map(RULES.__getitem__, _rules(report))
    return {r.id: {"meaning": r.meaning, "cause": r.cause, "advice": r.advice} for r in found}


def _rules(report: VerifyReport) -> list[str]:
    found = {finding.rule for finding in report.findings}
    return [rule for rule in RULES if rule in found]


def _print_partitions(partitions: list[PartitionReport]) -> None:
    """Print the table of partitions.

    It has brokers if there are several, and how much of each was compared with another. It has
    directories if brokers do not distinguish partitions, as with a log and its backup.
    """
    from logstore.terminal import tables

    several = len({part.broker for part in partitions}) > 1
    alike = Counter((part.broker, part.topic, part.partition) for part in partitions)
    compared = any(part.compared_end >= 0 for part in partitions)
    hashed = any(part.fingerprint for part in partitions)
    listing = tables.Listing(
        ["partition", *(["broker"] if several else []), *(["fingerprint"] if hashed else [])],
        ["segments", "batches", "records", "MiB", "offsets", *(["compared"] if compared else [])],
    )
    for part in partitions:
        listing.add_row(
            printable(
                f"{part.topic}-{part.partition}"
                if part.topic and alike[part.broker, part.topic, part.partition] == 1
                else part.directory
            ),
            *([printable(part.broker)] if several else []),
            *([part.fingerprint] if hashed else []),
            f"{part.segments:,}",
            f"{part.batches:,}",
            f"{part.records:,}",
            f"{part.bytes / _MIB:,.1f}",
            f"{part.log_start_offset}…{part.log_end_offset}",
            *([_range(part.compared_from, part.compared_end)] if compared else []),
        )
    listing.print()


def _range(start: int, end: int) -> str:
    return f"{start}…{end}" if end >= 0 else ""


def _print_findings(report: VerifyReport) -> None:
    """Print findings, the worst first; away from a terminal one line each, for other programs."""
    ranks = list(Severity)
    ordered = sorted(report.findings, key=lambda f: (ranks.index(f.severity), f.file, f.position))
    if not terminal.is_terminal():
        terminal.lines(map(str, ordered))
        return
    from logstore.terminal import tables

    for finding in ordered:
        tables.print_paragraph(str(finding), _STYLES[finding.severity])
