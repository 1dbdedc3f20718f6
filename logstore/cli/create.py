"""``logstore create``: a topic in a log directory."""

from __future__ import annotations

import click

from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common.exits import json_option
from logstore.cli.common.options import PARTITIONS, config_option, directory_argument, parse_config
from logstore.cli.common.topics import offline, print_topic


@click.command(short_help="Create a topic.")
@directory_argument
@click.argument("topic")
@click.option("--partitions", type=PARTITIONS, default=1, show_default=True, metavar="P")
@config_option
@json_option
def create(
    directory: str, topic: str, partitions: int, config: tuple[str, ...], as_json: bool
) -> None:
    """Create TOPIC in the log directory DIR, which is made when missing.

    All partitions are created, or none. DIR must not be in use. For a
    running cluster: `logstore topics create`.

    \b
    Example:
      logstore create /tmp/logs orders --partitions 3 --config retention.ms=-1
    """
    settings = parse_config(config)
    with offline(directory, create=True) as manager:
        manager.create_topic(topic, partitions, settings or None)
        if as_json:
            print_topic(manager, topic)
    if not as_json:
        terminal.line(f"created {printable(topic)} with {partitions} partitions")
