"""``logstore simulate``: search for a schedule of faults that breaks a promise of the protocol."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common.exits import EXIT_FINDINGS, json_option
from logstore.cli.common.options import COUNT, WHOLE, Number
from logstore.common.errors import ConfigError
from replication.common.config import TRUNCATION_RULES

if TYPE_CHECKING:
    from replication.simulator.world.plan import SchedulePlan, SearchOptions

FAILURES_SHOWN = 10
TRACE_LINES = 60  # events shown of a shrunk schedule, the last ones


@click.command(short_help="Run clusters in virtual time through schedules of faults.")
@click.option(
    "--seed", type=WHOLE, default=1, show_default=True, help="Seed of the first schedule."
)
@click.option(
    "--schedules", default=1000, show_default=True, type=COUNT, help="How many, one per seed."
)
@click.option(
    "--truncation", type=click.Choice(TRUNCATION_RULES), help="Rule of the followers [fetch]."
)
@click.option(
    "--faults",
    default="all",
    show_default=True,
    help="Groups and kinds, separated by commas; ? lists them.",
)
@click.option(
    "--flush",
    type=click.Choice(["ack", "os", "both"]),
    default="both",
    show_default=True,
    help="Sync before a replica counts, or not.",
)
@click.option("--brokers", default=3, show_default=True, type=Number(1, 7))
@click.option(
    "--events",
    default=150,
    show_default=True,
    type=Number(20, 100_000),
    help="Length of the time with load and faults.",
)
@click.option("--workers", type=Number(1, 1024), help="Processes [one for each core].")
@click.option(
    "--replay",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Run the plan in this file instead.",
)
@click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the shrunk plan of the first failure here, not to the directory for "
    "temporary files.",
)
@click.option("--groups", is_flag=True, help="With a group of consumers.")
@click.option("--transactions", is_flag=True, help="With transactions through coordinators.")
@click.option("--shrink/--no-shrink", default=True, help="Make the first failure small.")
@click.option("--trace", is_flag=True, help="Print every event (of one schedule).")
@click.option(
    "--exhaustive",
    nargs=4,
    type=Number(0, 50),
    metavar="R L N E",
    help="All interleavings: replicas, log size, records, largest epoch.",
)
@click.option(
    "--matrix", is_flag=True, help="What each truncation rule loses in scripted scenarios."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="With --matrix: a directory for it as Markdown, SVG and JSON.",
)
@json_option
@click.pass_context
def simulate(
    ctx: click.Context,
    seed: int,
    schedules: int,
    truncation: str | None,
    faults: str,
    flush: str,
    brokers: int,
    events: int,
    workers: int | None,
    replay: Path | None,
    save: Path | None,
    groups: bool,
    transactions: bool,
    shrink: bool,
    trace: bool,
    exhaustive: tuple[int, int, int, int] | None,
    matrix: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run a cluster of real brokers through schedules of faults, in virtual time.

    Each schedule is drawn from its seed: clients, crashes, a bad network, bad disks. After every
    event the invariants are checked, and at the end that nothing acknowledged is lost. The first
    failure is made small and printed with the command that repeats it. Exit code 1 if any fails.
    """
    if exhaustive is not None:
        from replication.simulator.command.exhaustive import run_exhaustive

        ctx.exit(run_exhaustive(exhaustive, truncation, as_json=as_json))
    if matrix:
        from replication.simulator.command.matrix import run_matrix

        ctx.exit(run_matrix(out, as_json=as_json))
    from replication.simulator.search.plan_generator import draw_plan
    from replication.simulator.search.run import run_plan
    from replication.simulator.world.fault_kinds import expand
    from replication.simulator.world.plan import SchedulePlan, SearchOptions

    if faults == "?":
        terminal.lines(_kinds())
        return
    try:
        chosen = tuple(faults.split(","))
        expand(chosen)
        options = SearchOptions(
            truncation or "fetch", chosen, flush, brokers, events, groups, transactions
        )
        if replay is not None:
            plan = SchedulePlan.from_json(replay.read_bytes())
        else:
            plan = draw_plan(seed, options)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    if save is not None and not save.parent.is_dir():  # before hours of search
        raise click.UsageError(f"--save: there is no directory {printable(str(save.parent))}")
    if replay is None and schedules > 1:
        ctx.exit(_search(seed, schedules, options, workers, save, shrink, as_json))
    result = run_plan(plan, keep_trace=True)
    if as_json:
        terminal.print_json(
            {
                "seed": plan.seed,
                "events": result.events,
                "traceHash": result.trace_hash,
                "violations": result.violations,
                "counters": result.counters,
            }
        )
    else:
        for violation in result.violations:
            terminal.line(violation, style="red")
        _show_plan(plan)
        if trace:
            terminal.lines(result.trace or [])
        else:
            _show_story(result.trace or [])
        terminal.line(f"{result.events} events, trace {result.trace_hash}")
        if result.failed and shrink and replay is None:
            _show_failure(plan, options, save)
    ctx.exit(EXIT_FINDINGS if result.failed else 0)


def _kinds() -> Iterator[str]:
    """A list of fault groups and their kinds."""
    from replication.simulator.world.fault_kinds import GROUPS, KINDS

    yield f"{'all':24}every kind but those of the last four groups"
    yield f"{'none':24}no faults"
    for group, kinds in GROUPS.items():
        if group not in ("all", "none"):
            yield group
            yield from (f"    {kind:20}{KINDS[kind]}" for kind in kinds)


def _search(
    seed: int,
    schedules: int,
    options: SearchOptions,
    workers: int | None,
    save: Path | None,
    shrink: bool,
    as_json: bool,
) -> int:
    from logstore.common.clock import SystemClock
    from logstore.terminal import tables
    from replication.simulator.command.counters import in_words
    from replication.simulator.search.plan_generator import draw_plan
    from replication.simulator.search.search import Summary, search

    clock = SystemClock()
    begun_ns = clock.monotonic_ns()
    with tables.progress(*tables.counted(), hide=as_json) as bar:
        task = bar.add_task("schedules", total=schedules)

        def show(summary: Summary) -> None:
            failed = f", {len(summary.failures)} failed" if summary.failures else ""
            bar.update(task, completed=summary.schedules, description=f"schedules{failed}")

        summary = search(
            seed,
            schedules,
            options,
            workers=workers,
            progress=show,
        )
    seconds = (clock.monotonic_ns() - begun_ns) / 1e9
    if as_json:
        terminal.print_json({**summary.to_dict(), "seconds": round(seconds, 2)})
        return EXIT_FINDINGS if summary.failures else 0
    for failed in summary.failures[:FAILURES_SHOWN]:
        terminal.line(f"seed {failed.seed}: {failed.violations[0]}", style="red")
    if summary.failures:
        first = draw_plan(summary.failures[0].seed, options)
        if shrink:
            _show_failure(first, options, save)
        else:
            terminal.line(f"Repeat it with: {_by_seed(first, options)}")
        terminal.line()
    terminal.line(
        f"{len(summary.failures):,} of {summary.schedules:,} schedules failed; {summary.events:,} "
        f"events in {seconds:.1f} s, {summary.schedules / seconds:,.0f} schedules/s"
    )
    terminal.lines(in_words(summary.counters, summary.reached, summary.schedules))
    return EXIT_FINDINGS if summary.failures else 0


def _show_story(trace: list[str]) -> None:
    from replication.simulator.world.scheduler import STORY

    story = [line for line in trace if line[10:11] == STORY]
    terminal.lines(story[-TRACE_LINES - 1 : -1])


def _show_plan(plan: SchedulePlan) -> None:
    terminal.line(
        f"seed {plan.seed}: {plan.brokers} brokers, {plan.partitions} partitions, "
        f"min.insync.replicas {plan.min_isr}, flush={plan.flush}, truncation={plan.truncation}"
    )
    steps = [(fault.at_ms, str(fault)) for fault in plan.faults]
    steps += [(step.at_ms, str(step)) for step in plan.operations]
    for _, text in sorted(steps):
        terminal.line(f"  {text}")


def _show_failure(plan: SchedulePlan, options: SearchOptions, save: Path | None) -> None:
    """Print the shrunk failure with its events and the command that repeats it."""
    from replication.simulator.search.run import run_plan
    from replication.simulator.search.shrink import shrink

    small, _ = shrink(plan)
    result = run_plan(small, keep_trace=True)
    terminal.lines(["", "The first failure, made small:"])
    for violation in result.violations:
        terminal.line(violation, style="red")
    _show_plan(small)
    terminal.line("What happened:")
    _show_story(result.trace or [])
    place = save or Path(tempfile.gettempdir()) / f"logstore-seed-{plan.seed}.json"
    place.write_text(small.to_json())
    terminal.line(
        f"Repeat it with: logstore simulate --replay {shlex.quote(printable(str(place)))}"
    )
    terminal.line(f"As it was drawn: {_by_seed(plan, options)}")


def _by_seed(plan: SchedulePlan, options: SearchOptions) -> str:
    """The command that draws and runs the whole schedule again."""
    more = " --groups" if options.groups else ""
    more += " --transactions" if options.transactions else ""
    return (
        f"logstore simulate --seed {plan.seed} --schedules 1 "
        f"--truncation {options.truncation} --faults {','.join(options.faults)} "
        f"--flush {options.flush} --brokers {options.brokers} --events {options.events}{more}"
    )
