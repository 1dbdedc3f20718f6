"""``logstore coordinator``: one durable node that brokers of several processes share."""

from __future__ import annotations

import json
import signal
import threading

import click

from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common.exits import EXIT_FINDINGS, fail, json_option
from logstore.cli.common.options import Number
from logstore.common.errors import LogstoreError
from replication.common.addresses import split_address

LOOK_S = 0.5  # whether the disk has failed
MAX_TICK_MS = 60_000


@click.command(short_help="Serve the tree of a cluster of processes.")
@click.option(
    "--dir",
    "directory",
    required=True,
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Directory of the tree; `serve` keeps its own as DIR/coordinator.",
)
@click.option(
    "--listen",
    default="127.0.0.1:2181",
    show_default=True,
    metavar="HOST:PORT",
    help="Port 0: any.",
)
@click.option(
    "--allow-plaintext",
    is_flag=True,
    help="Listen on an address that other machines reach: they may read and write everything.",
)
@click.option(
    "--tick-ms",
    type=Number(10, MAX_TICK_MS),
    default=2000,
    show_default=True,
    help="ZooKeeper's tickTime: sessions time out after 2 to 20 ticks, as they ask for.",
)
@json_option
def coordinator(
    directory: str, listen: str, allow_plaintext: bool, tick_ms: int, as_json: bool
) -> None:
    """Serve a coordinator to brokers of other processes, over ZooKeeper's client protocol.

    Brokers find it as --coordinator zookeeper://HOST:PORT, and ZooKeeper's own tools read and write
    it. It is a single durable node and no ensemble: what it answered is on its disk, and while it
    is down nothing is decided. Sessions survive its restart.

    One line says when it is ready. Ctrl-C and SIGTERM end it cleanly (exit code 0). If its disk
    fails, the exit code is 1.

    \b
      logstore coordinator --dir /var/lib/logstore/coordinator
      logstore coordinator --dir /tmp/kafka/coordinator --listen 127.0.0.1:0 --json
    """
    from replication.coordination.served import TreeServer

    address = split_address(listen)
    if address is None:
        fail(f"--listen {printable(listen)}: give HOST:PORT")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: stop.set())
    try:
        server = TreeServer(directory, *address, allow_remote=allow_plaintext, tick_ms=tick_ms)
    except OSError as error:
        fail(f"{printable(str(error.filename or directory))}: {error.strerror or error}")
    try:
        if as_json:
            ready = {"coordinator": server.url, "ensemble": False}
            terminal.line(json.dumps(ready))
        else:
            terminal.line(f"ready: {server.url} (a single durable node, no ensemble)")
        while not stop.wait(LOOK_S):
            server.wait(0)
    except LogstoreError as error:
        terminal.line(f"error: {error}", err=True)
        raise click.exceptions.Exit(EXIT_FINDINGS) from None
    finally:
        server.close()
