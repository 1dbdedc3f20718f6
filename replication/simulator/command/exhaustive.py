"""``logstore simulate --exhaustive``: every interleaving within small bounds."""

from __future__ import annotations

import sys

import click

from logstore import terminal
from logstore.cli.common.exits import EXIT_FINDINGS, fail
from logstore.common.clock import SystemClock
from replication.decisions.truncation import RULES
from replication.simulator.exhaustive import (
    Bounds,
    Model,
    SearchProgress,
    search,
    to_dict,
    to_text,
)

FINISH = (
    Bounds(1, 6, 6, 6),
    Bounds(2, 4, 4, 4),
    Bounds(3, 1, 1, 3),
    Bounds(3, 2, 2, 2),
    Bounds(3, 3, 3, 1),
    Bounds(4, 1, 1, 1),
    Bounds(4, 3, 3, 0),
    Bounds(5, 2, 2, 0),
)
"""The largest bounds that end within minutes and a gigabyte.

Each step beyond multiplies the states by ten and more, so bounds that exceed all of these are
refused.
"""


def run_exhaustive(
    bounds: tuple[int, int, int, int],
    truncation: str | None = None,
    *,
    asynchronous_isr: bool = False,
    as_json: bool = False,
) -> int:
    """Search, and print the outcome. The exit code is 1 if a property is violated.

    Args:
        bounds: replicas, records a log holds, records written, highest leader epoch.
        truncation: a key of ``RULES``; the default is ``fetch``.
    Raises:
        click.UsageError: an unknown name, or empty bounds.
        click.exceptions.Exit: the bounds are too large to search (``FINISH``); prints that.
    """
    if not any(Bounds(*bounds).within(most) for most in FINISH):
        largest = ", ".join(" ".join(map(str, most)) for most in FINISH)
        asked = " ".join(map(str, bounds))
        fail(
            f"--exhaustive {asked} would not end within minutes; the largest that do are {largest}"
        )
    if truncation is not None and truncation not in RULES:
        raise click.UsageError(f"no truncation rule {truncation!r}; there are {', '.join(RULES)}")
    try:
        model = Model(
            Bounds(*bounds), RULES[truncation or "fetch"], asynchronous_isr=asynchronous_isr
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    clock = SystemClock()
    begun_ns = clock.monotonic_ns()
    outcome = search(model, progress=_show if sys.stderr.isatty() else None)
    seconds = (clock.monotonic_ns() - begun_ns) / 1e9
    if as_json:
        result = {**to_dict(model, outcome), "seconds": round(seconds, 2)}
        terminal.print_json(result, indent=2)
    else:
        terminal.lines(to_text(model, outcome).split("\n"))
        terminal.line(f"took {seconds:.1f} s")
    return EXIT_FINDINGS if outcome.violations else 0


def _show(progress: SearchProgress) -> None:
    terminal.status(
        f"depth {progress.depth:3}: {progress.states:12,} states, {progress.generated:12,} steps",
        last=not progress.frontier,
    )
