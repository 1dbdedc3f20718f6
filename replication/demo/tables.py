"""The tables of acts two and three."""

from __future__ import annotations

from logstore.demo.show import numbers_table
from logstore.terminal.tables import Table
from replication.demo.outcome import ClusterOutcome, SparkOutcome


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
