"""``logstore verify``: check everything that log directories hold, without changing a byte."""

from __future__ import annotations

import os

import click

from logstore import terminal
from logstore.cli.common import completion
from logstore.cli.common.exits import EXIT_ERROR, EXIT_FINDINGS, json_option
from logstore.cli.common.options import Number
from logstore.cli.common.outlook import outlook
from logstore.cli.common.progress import progress_bar
from logstore.cli.common.spark_session import spark_session
from logstore.cli.common.verify_output import explanations_of, print_report
from logstore.cli.recover import warnings_in_reports
from logstore.verify import VerifyOptions
from logstore.verify import verify as verify_here


@click.command(short_help="Check directories or files, and compare replicas.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH…", shell_complete=completion.files)
@click.option("--shallow", is_flag=True, help="Headers and checksums only; records not decoded.")
@click.option("--no-compare", is_flag=True, help="Do not compare the replicas of a partition.")
@click.option("--fingerprint/--no-fingerprint", help="Make a fingerprint of the content.")
@click.option("--threads", type=Number(1, 64), default=None, help="Segments checked at once.")
@click.option(
    "--spark",
    "master",
    metavar="MASTER",
    help="Run as a Spark job: 'local[*]', spark://host:port, yarn, …",
)
@click.option(
    "--conf", multiple=True, metavar="KEY=VALUE", help="Configuration for Spark; may be repeated."
)
@click.option("--explain", is_flag=True, help="Say what the rules of the findings mean.")
@click.option("--html", "html", type=click.Path(dir_okay=False), help="Write a report as one file.")
@json_option
@click.pass_context
def verify(
    ctx: click.Context,
    paths: tuple[str, ...],
    shallow: bool,
    no_compare: bool,
    fingerprint: bool,
    threads: int | None,
    master: str | None,
    conf: tuple[str, ...],
    explain: bool,
    html: str | None,
    as_json: bool,
) -> None:
    """Check log directories, partition directories, or single files of them.

    Nothing is written, and a broker that uses the directory need not be stopped. Where several
    brokers' directories are given, the replicas of each partition are compared below their high
    watermarks. A PATH may be a URI, such as s3://bucket/logs. `logstore explain RULE` says what a
    finding means. Equal fingerprints of two partitions mean equal content, whatever their segment
    boundaries and leader epochs. Where something is lost, the report ends with what a rescue of
    these directories would bring back.

    Exit code 0: clean, or information only. 1: an error or a warning was found. 2: a path could not
    be read.

    \b
    Example:
      logstore verify --explain /var/lib/kafka-logs
    """
    options = VerifyOptions(
        deep=not shallow,
        fingerprint=fingerprint,
        compare=not no_compare,
        threads=threads or 0,
    )
    if conf and master is None:
        raise click.UsageError("--conf is for --spark")
    if html is not None:  # now, so that a missing package or directory is reported before the work
        from logstore.verify.html import write_report

        if not os.path.isdir(os.path.dirname(html) or "."):
            raise click.UsageError(f"--html {html}: there is no such directory to write it to")
    with progress_bar(quiet=as_json) as progress:
        if master is None:
            report = verify_here(paths, options, progress=progress)
        else:
            from logstore.spark import verify_on_spark

            with spark_session(master, conf, "logstore verify") as spark:
                report = verify_on_spark(spark, *paths, options=options, progress=progress).report
    if not as_json:
        print_report(report, explain=explain)
    with progress_bar(quiet=as_json) as progress, warnings_in_reports():
        rescued = outlook(report, paths, progress)
    if as_json:
        more: dict[str, object] = {"rescue": rescued.to_dict() if rescued else None}
        more |= {"explanations": explanations_of(report)} if explain else {}
        terminal.print_json(report.to_dict() | more, indent=2)
    elif rescued is not None:
        rescued.print()
    for line in report.unusable:
        terminal.line(f"error: {line}", err=True)
    if html is not None:
        lines = list(rescued.lines()) if rescued else []
        write_report(report, html, rescue=lines, settings=_how(shallow, master))
    if report.unusable:
        ctx.exit(EXIT_ERROR)
    ctx.exit(0 if report.clean else EXIT_FINDINGS)


def _how(shallow: bool, master: str | None) -> dict[str, str]:
    """Return what the report says about how it was made.

    It leaves out paths, which may be URIs with credentials.
    """
    return {
        "checked": "headers, checksums, indexes" if shallow else "every record",
        "by": "threads of one process" if master is None else f"Spark, {master}",
    }
