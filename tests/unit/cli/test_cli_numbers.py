"""A number that is none, or out of range, is refused in one sentence, by every command."""

from __future__ import annotations

import click
from click.testing import CliRunner

from examples.demo.__main__ import demo
from logstore.cli import main
from replication.simulator.command.simulate import simulate
from tests.support.cases import for_each

HUGE = "9" * 30
ENDLESS = "9" * 5000  # Python itself refuses to read more than 4,300 digits

CALLS: list[tuple[click.Command, list[str]]] = [
    (main, ["dump", ".", "--from"]),
    (main, ["dump", ".", "--to"]),
    (main, ["verify", ".", "--threads"]),
    (main, ["read", ".", "t", "--max"]),
    (main, ["read", ".", "t", "--partition"]),
    (main, ["read", ".", "t", "--from"]),
    (main, ["read", ".", "t", "--to"]),
    (main, ["append", ".", "t", "--partition"]),
    (main, ["append", ".", "t", "--partitions"]),
    (main, ["append", ".", "t", "--batch"]),
    (main, ["export", ".", "t", "--to", "t.arrow", "--partition"]),
    (main, ["export", ".", "t", "--to", "t.arrow", "--from"]),
    (main, ["export", ".", "t", "--to", "t.arrow", "--until"]),
    (main, ["import", ".", "t.arrow", "--partitions"]),
    (main, ["create", ".", "t", "--partitions"]),
    (main, ["alter", ".", "t", "--partitions"]),
    (demo, ["--records"]),
    (demo, ["--partitions"]),
    (demo, ["--seed"]),
    (simulate, ["--seed"]),
    (simulate, ["--schedules"]),
    (simulate, ["--brokers"]),
    (simulate, ["--events"]),
    (simulate, ["--workers"]),
    (simulate, ["--exhaustive", "1", "1", "1"]),
]


@for_each("value", [HUGE, "-" + HUGE, ENDLESS, "1e3", "1_000"])
@for_each("command, arguments", CALLS)
def test_it_is_one_sentence(command: click.Command, arguments: list[str], value: str) -> None:
    done = CliRunner().invoke(command, [*arguments, value])
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert len(done.stderr) < 200
