"""``python -m examples.demo``: a writer and a leader killed, proof of what is left, Spark."""

from __future__ import annotations

import random
import sys
import time

import click

from checkpoints.printable import printable
from examples.demo import leader_killed, writer_killed
from examples.demo.directory import prepare
from examples.demo.flights import TOTAL, data_file
from examples.demo.outcome import DemoOutcome
from examples.demo.show import Show, answer_table, partition_table, replica_table, step_table
from logstore import terminal
from logstore.__main__ import run
from logstore.cli import main
from logstore.cli.common.exits import EXIT_FINDINGS, fail, json_option
from logstore.cli.common.options import WHOLE
from logstore.common.extras import Extra, load

_OF_SPARK = ("pyspark", "pyarrow", "jinja2")
_PARTITIONS_MAX = 100


@click.command(short_help="Write real flights, with crashes, and prove that none is lost.")
@click.option(
    "--dir",
    "directory",
    default="demo-data",
    show_default=True,
    metavar="DIR",
    help="Directory. That of an earlier demo is begun afresh; any other must be empty.",
)
@click.option(
    "--records", type=WHOLE, metavar="N", help="Only the first N flights.  [default: all 336,776]"
)
@click.option(
    "--partitions",
    type=WHOLE,
    default=4,
    show_default=True,
    metavar="P",
    help="Partitions of the topic.",
)
@click.option(
    "--seed", type=WHOLE, metavar="S", help="Where writer and leader are killed; random if absent."
)
@click.option("--no-spark", is_flag=True, help="Leave out the last act: no JDK is needed.")
@json_option
@click.pass_context
def demo(
    ctx: click.Context,
    directory: str,
    records: int | None,
    partitions: int,
    seed: int | None,
    no_spark: bool,
    as_json: bool,
) -> None:
    """Write all flights of New York in 2013, twice, with crashes, and prove that none is lost.

    One log directory: a process appends the flights to the topic "flights" in DIR/single and is
    killed with SIGKILL in mid-append. The directory is opened again, which recovers it; what was
    flushed must all be there, and what is there must be, partition by partition, how the input
    begins. Then the rest is appended, the whole is compared with the input and verified.

    Three brokers, in this process, in DIR/cluster: an idempotent producer sends the flights with
    acks=all, min.insync.replicas=2. A leader is killed in mid-stream with records that it alone
    has; others are elected, it returns and cuts those off, later it is cut off itself and leaves
    the ISR until the links are mended. In the end the three logs must be equal, byte by byte, and
    hold every flight once and in order.

    Spark, with no broker running: verifies the three directories and compares the replicas in one
    pass, writes DIR/report.html, and answers a question about the flights with SQL straight from
    the segments.

    The kills leave the page cache alone, as every kill does; what a power cut leaves is simulated
    by the crash tests. Needs the extra "demo", and for Spark a JDK 17+. Exit code 0: all proven, 1:
    something was not.
    """
    records = TOTAL if records is None else records
    if not 1 <= records <= TOTAL:
        fail(f"--records {records}: there are {TOTAL:,} flights, and at least one is needed")
    if not 1 <= partitions <= _PARTITIONS_MAX:
        fail(f"--partitions {partitions}: from 1 to {_PARTITIONS_MAX} are possible")
    data_file()  # first of all, since it needs an extra
    if not no_spark:
        for module in _OF_SPARK:
            load(module, Extra.DEMO, "the demo with Spark")
    show = Show(quiet=as_json)
    seed = random.SystemRandom().randrange(1000) if seed is None else seed
    outcome = run_acts(directory, records, partitions, seed, show, spark=not no_spark)
    if as_json:
        terminal.print_json(outcome.to_dict())
    else:
        tables = [partition_table(outcome.partitions)]
        if outcome.cluster is not None:
            tables.append(replica_table(outcome.cluster))
        if outcome.spark is not None:
            tables.append(answer_table(outcome.spark))
        show.tables(*tables, step_table(outcome.steps))
        for line in _last_words(directory, outcome.seconds, outcome.faults):
            show.line(line)
    ctx.exit(EXIT_FINDINGS if outcome.faults else 0)


def run_acts(
    directory: str, records: int, partitions: int, seed: int, show: Show, *, spark: bool = True
) -> DemoOutcome:
    """Run all acts. Raises only for bad input. What could not be proven is in ``faults``."""
    started = time.perf_counter()
    outcome = DemoOutcome(directory, records, seed)
    places = prepare(directory)
    sent = writer_killed.run(outcome, places.single, partitions, show)
    if not outcome.faults:
        leader_killed.run(outcome, places, sent, show)
    if spark and not outcome.faults:
        from examples.demo import spark_asked  # needs more than the acts before it

        spark_asked.run(outcome, places, sent, show)
    outcome.seconds = time.perf_counter() - started
    return outcome


def _last_words(directory: str, seconds: float, faults: list[str]) -> list[str]:
    if faults:
        return ["", "NOT PROVEN:", *(f"  {fault}" for fault in faults)]
    place = printable(directory)
    return [
        "",
        f"All proven in {seconds:.1f} s. Look around:",
        f"  logstore read {place}/single flights --max 3",
        f"  logstore verify {place}/cluster/broker-*",
    ]


main.add_command(demo)

if __name__ == "__main__":
    run(["demo", *sys.argv[1:]], prog_name="make")  # ARGS has the options
