"""What a demo prints: plain lines, with progress bars on a terminal; nothing at all for JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from textwrap import wrap

from examples.demo.outcome import ClusterOutcome, DemoOutcome, DemoPartition, DemoStep, SparkOutcome
from logstore import terminal
from logstore.terminal.tables import Table, counted, print_tables, progress

WIDTH = 80


class Show:
    """``quiet``: say nothing."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet

    def line(self, text: str = "") -> None:
        """Print one statement, wrapped, with the next lines indented."""
        if not self._quiet:
            begin = text[: len(text) - len(text.lstrip())]
            terminal.lines(
                wrap(
                    text,
                    WIDTH,
                    subsequent_indent=begin + "  ",
                    replace_whitespace=False,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
                or [""]
            )

    @contextmanager
    def progress(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show progress. Yields a function to call with the number done so far."""
        with progress(*counted(), err=False, hide=self._quiet) as live:
            task = live.add_task(label, total=total)
            yield lambda done: live.update(task, completed=done)

    def proven(self, outcome: DemoOutcome, claim: str) -> None:
        """Note and print ``claim``, unless the checks before this call found a fault."""
        if not outcome.faults:
            outcome.proven.append(claim)
            self.line(f"  proven: {claim}")

    def tables(self, *tables: Table) -> None:
        if not self._quiet:
            print_tables(*tables, width=WIDTH)


def numbers_table(title: str, first: str, *numbers: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_edge=False)
    table.add_column(first)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def partition_table(partitions: list[DemoPartition]) -> Table:
    table = numbers_table(
        "\nPartitions: records; recovery: MB scanned, bytes cut, ms taken",
        "#",
        "sent",
        "flushed",
        "recovered",
        "scanned",
        "cut",
        "took",
        "in the end",
    )
    for p in partitions:
        table.add_row(
            str(p.partition),
            f"{p.sent:,}",
            f"{p.flushed:,}",
            f"{p.recovered:,}",
            f"{p.bytes_scanned / 1e6:.1f}",
            f"{p.bytes_cut:,}",
            f"{p.seconds * 1000:.1f}",
            f"{p.final:,}",
        )
    return table


def step_table(steps: list[DemoStep]) -> Table:
    table = numbers_table("\nSpeed", "step", "records", "MB", "seconds", "records/s", "MB/s")
    for step in steps:
        table.add_row(
            step.name,
            f"{step.records:,}",
            f"{step.size / 1e6:.1f}",
            f"{step.seconds:.3f}",
            f"{step.records_per_second:,.0f}",
            f"{step.megabytes_per_second:,.0f}",
        )
    return table


def replica_table(outcome: ClusterOutcome) -> Table:
    table = numbers_table(
        f"\nThe same on brokers {', '.join(map(str, outcome.brokers))}; "
        "cut: records the killed leader gave up",
        "#",
        "leader",
        "epoch",
        "cut",
        "smallest ISR",
        "records",
        "MB",
        "fingerprint",
    )
    for p in outcome.partitions:
        table.add_row(
            str(p.partition),
            _change(p.leader_before, p.leader),
            _change(p.epoch_before, p.epoch),
            f"{p.cut:,}",
            str(p.isr_smallest),
            f"{p.records:,}",
            f"{p.size / 1e6:.1f}",
            p.fingerprint[:12],
        )
    return table


def answer_table(outcome: SparkOutcome) -> Table:
    table = numbers_table(
        "\nLate departures, by Spark SQL: the worst five",
        "carrier",
        "flights",
        "departed",
        "minutes late on average",
    )
    for each in outcome.answer[:5]:
        table.add_row(
            each.carrier, f"{each.flights:,}", f"{each.departed:,}", f"{each.mean_minutes:.1f}"
        )
    return table


def _change(before: int, after: int) -> str:
    return str(after) if before == after else f"{before} → {after}"
