"""``logstore alter``: partitions and configuration of a topic in a log directory."""

from __future__ import annotations

import click

from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common import completion
from logstore.cli.common.exits import fail, json_option
from logstore.cli.common.options import (
    PARTITIONS,
    config_option,
    delete_config_option,
    directory_argument,
    parse_changes,
)
from logstore.cli.common.topics import known, offline, print_topic, stored_config
from logstore.common.config import LogConfig


@click.command(short_help="Give a topic more partitions, or another configuration.")
@directory_argument
@click.argument("topic", shell_complete=completion.topics)
@click.option("--partitions", type=PARTITIONS, metavar="P", help="How many in all; never fewer.")
@config_option
@delete_config_option
@json_option
def alter(
    directory: str,
    topic: str,
    partitions: int | None,
    config: tuple[str, ...],
    removed: tuple[str, ...],
    as_json: bool,
) -> None:
    """Give TOPIC of the log directory DIR more partitions, or another configuration.

    Keys that are not named stay as they are. A Kafka broker keeps the configuration of its topics
    elsewhere and does not read this one. DIR must not be in use. For a
    running cluster: `logstore topics alter`.

    \b
    Example:
      logstore alter /tmp/logs orders --partitions 6 --config segment.ms=60000
    """
    settings = parse_changes(partitions, config, removed)
    LogConfig.from_properties(settings)
    with offline(directory, topic) as manager:
        numbers = known(manager, directory, topic)
        before = stored_config(directory, topic, numbers[0])
        missing = [key for key in removed if key not in before]
        if missing:
            fail(f"--delete-config {printable(missing[0])}: {printable(topic)} does not set it")
        if partitions is not None and partitions < numbers[-1] + 1:
            fail(f"{printable(topic)} has {numbers[-1] + 1} partitions, and keeps them")
        if config or removed:
            kept = {key: value for key, value in before.items() if key not in removed}
            manager.alter_topic(topic, kept | settings)
        if partitions is not None:
            manager.create_partitions(topic, partitions)
        if as_json:
            print_topic(manager, topic)
    if not as_json:
        terminal.line(f"altered {printable(topic)}")
