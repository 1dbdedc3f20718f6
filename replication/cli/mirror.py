"""``logstore mirror``: a log directory that follows a running cluster, and what is done with it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common.exits import EXIT_ERROR, EXIT_FINDINGS, fail, json_option
from logstore.cli.common.options import Number
from logstore.cli.common.progress import progress_bar
from replication.cli.connection import source_options
from replication.cli.promote import promote
from replication.cli.quantities import RATE, SECONDS
from replication.cli.serve import host_and_port

if TYPE_CHECKING:
    from replication.mirror.continuous_backup import ContinuousBackup
    from replication.security.config import ClientProperties

_TYPED = ParameterSource.COMMANDLINE

topics_option = click.option(
    "--topics",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Topics whose whole name matches, a regular expression; may be repeated.  [default: all]",
)
rate_option = click.option(
    "--rate", type=RATE, metavar="RATE", help="Read at most so much a second, as 50MB."
)


@click.group(
    short_help="Follow a running Kafka in a log directory, byte for byte.",
    invoke_without_command=True,
)
@source_options
@click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="The mirror: a log directory, made if it is not there. A copy of one of the source's log "
    "directories is gone on with.",
)
@topics_option
@click.option("--keep-deleted", is_flag=True, help="Keep the records that the source deletes.")
@rate_option
@click.option("--once", is_flag=True, help="End where the source ends now.")
@click.option(
    "--backup",
    "backup_uri",
    metavar="URI",
    help="Back up the mirror, too, into an object store, as logstore backup does: s3://bucket/path.",
)
@click.option(
    "--backup-interval",
    "interval_s",
    type=SECONDS,
    default="10m",
    show_default=True,
    metavar="TIME",
    help="Between two backups; one more is made at the end.",
)
@click.option(
    "--backup-keep",
    "backups_kept",
    type=Number(1, 1_000_000),
    metavar="N",
    help="Drop all but the newest N backups, and what only those had.  [default: keep all]",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Serve /health, /metrics for Prometheus, and /state there.",
)
@click.option(
    "--allow-plaintext",
    is_flag=True,
    help="Do so on an address that other machines reach; there is no login.",
)
@json_option
@click.pass_context
def mirror(
    ctx: click.Context,
    source: ClientProperties | None,
    directory: str | None,
    patterns: tuple[str, ...],
    keep_deleted: bool,
    rate: float | None,
    once: bool,
    backup_uri: str | None,
    interval_s: float,
    backups_kept: int | None,
    http: str | None,
    allow_plaintext: bool,
    as_json: bool,
) -> None:
    """Follow the topics of a running Kafka, from 2.1 on, as a consumer that keeps everything: the
    same batches at the same offsets, in files that Kafka, Spark and each command here read while it
    runs. READ rights are enough.

    It goes on until a signal: Ctrl-C (130) and SIGTERM (0) end it cleanly, and the next start goes
    on from there, also after kill -9. What was not mirrored as it came, as after an unclean
    election, is printed, and kept in mirror-report.jsonl in DIR. The topics of groups and of
    transactions are always mirrored.

    With --once it ends by itself. Exit code 0: all was reached. 1: the report has findings of this
    run. 2: an error.

    \b
    Examples:
      logstore mirror --from kafka:9092 --dir /data/mirror
      logstore mirror --from kafka:9093 --config client.properties
        --dir /data/mirror --topics 'orders.*' --rate 50MB
        --backup s3://bucket/kafka --http 127.0.0.1:8080
      logstore mirror --from kafka:9092 --dir /data/mirror --once
      logstore mirror check --from kafka:9092 /data/mirror
    """
    if ctx.invoked_subcommand is not None:
        if any(ctx.get_parameter_source(name) is _TYPED for name in ctx.params):
            raise click.UsageError(f"options of {ctx.invoked_subcommand} stand behind its name")
        return
    if source is None or directory is None:
        missing = "--from" if source is None else "--dir"
        raise click.UsageError(f"Missing option '{missing}'.")
    from replication.cli.mirror_process import MirrorOptions, run
    from replication.mirror import MirrorConfig

    config = MirrorConfig(topics=patterns, keep_deleted=keep_deleted, rate_bytes_per_s=rate)
    make_backup = None
    if backup_uri is not None:
        make_backup = partial(
            _backup_of, uri=backup_uri, interval_s=interval_s, keep=backups_kept or 0
        )
    elif backups_kept is not None:
        raise click.UsageError("--backup-keep is for --backup")
    listener = None
    if http is not None:
        from replication.server.serving import HttpListener

        listener = HttpListener(*host_and_port("--http", http), allow_plaintext)
    ctx.exit(run(MirrorOptions(source, directory, config, once, listener, make_backup, as_json)))


@mirror.command(short_help="Compare a mirror with its source, byte for byte.")
@source_options
@click.argument("directory", metavar="DIR")
@topics_option
@rate_option
@json_option
@click.pass_context
def check(
    ctx: click.Context,
    source: ClientProperties | None,
    directory: str,
    patterns: tuple[str, ...],
    rate: float | None,
    as_json: bool,
) -> None:
    """Compare what DIR has with what its source still has: every byte of every batch, and not only
    checksums. DIR is a mirror, which may be running, a copy of a broker's log directory, or a URI
    of either.

    Nothing is written. It reads the source as a consumer does, so --rate matters. What only one
    side has is named and not compared: records that the source has deleted, and those that the
    mirror does not have yet. Of a topic that the source compacts, each record that it still has
    must be here.

    Exit code 0: equal. 1: a difference was found. 2: something could not be compared.

    \b
    Example:
      logstore mirror check --from kafka:9092 /data/mirror --topics 'orders.*'
    """
    from replication.admin import AdminClient
    from replication.mirror.checking import MirrorCheckOptions
    from replication.mirror.checking import check as compare

    if source is None:
        raise click.UsageError("Missing option '--from'.")
    options = MirrorCheckOptions(wanted(patterns), rate)
    with AdminClient(source.config) as client, progress_bar(quiet=as_json) as progress:
        report = compare(client, directory, options, progress=progress)
    if not report.partitions:
        asked = f" --topics {printable(' or '.join(patterns))}" if patterns else ""
        fail(f"{printable(directory)}: no topic matches{asked}, here or at the source")
    if as_json:
        terminal.print_json(report.to_dict(), indent=2)
    else:
        terminal.lines(report.lines())
        terminal.line(report.verdict)
    for line in report.unusable:
        terminal.line(f"error: {printable(line)}", err=True)
    if report.unusable:
        ctx.exit(EXIT_ERROR)
    ctx.exit(0 if report.is_equal else EXIT_FINDINGS)


mirror.add_command(promote)


def wanted(patterns: tuple[str, ...]) -> Callable[[str], bool] | None:
    """Whether the name of a topic matches one of some patterns; None without any."""
    try:
        compiled = [re.compile(pattern) for pattern in patterns]
    except re.error as error:
        fail(f"--topics {printable(str(error.pattern))} is no pattern: {error}")
    if not compiled:
        return None
    return lambda topic: any(each.fullmatch(topic) for each in compiled)


def _backup_of(directory: str, *, uri: str, interval_s: float, keep: int) -> ContinuousBackup:
    from logstore.backup import Backup, BackupOptions
    from logstore.tiers import LocalObjectStore, open_store
    from replication.mirror.continuous_backup import ContinuousBackup

    store = open_store(uri)
    if isinstance(store, LocalObjectStore):
        here, there = Path(directory).resolve(), Path(store.uri).resolve()
        if here in (there, *there.parents) or there in here.parents:
            fail(f"--backup {printable(uri)}: a mirror and its backup lie apart from each other")
    options = BackupOptions(keep=keep)

    def run(pause: Callable[[float], object]) -> tuple[str, ...]:
        backup = Backup([directory], store, options=options, pause=pause)
        return tuple(map(str, backup.run().findings))

    return ContinuousBackup(store.uri, run, interval_s)
