"""``logstore delete``: a topic of a log directory, with all its records."""

from __future__ import annotations

import click

from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common import completion
from logstore.cli.common.exits import json_option
from logstore.cli.common.options import directory_argument
from logstore.cli.common.topics import known, offline


@click.command(short_help="Delete a topic with all its records.")
@directory_argument
@click.argument("topic", shell_complete=completion.topics)
@json_option
def delete(directory: str, topic: str, as_json: bool) -> None:
    """Delete TOPIC of the log directory DIR, with all its partitions and records, at once.

    Partitions that are too damaged to be opened go too. DIR must not be in use. For a
    running cluster: `logstore topics delete`.

    \b
    Example:
      logstore delete /tmp/logs orders
    """
    with offline(directory, topic) as manager:
        numbers = known(manager, directory, topic)
        manager.delete_topic(topic)
        manager.housekeeper.purge_deleted(at_once=True)  # no other process has it open
    if as_json:
        terminal.print_json({"topic": topic, "partitions": numbers})
    else:
        terminal.line(f"deleted {printable(topic)}, {len(numbers)} partitions")
