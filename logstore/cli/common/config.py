"""Configurations of topics on the command line: ``--config KEY=VALUE``."""

from __future__ import annotations

import click

from checkpoints.printable import printable
from logstore.cli.common.exits import fail

config_option = click.option(
    "--config",
    multiple=True,
    metavar="KEY=VALUE",
    help="Configuration of the topic, under Kafka's keys; may be repeated.",
)
"""The option of every command that creates a topic: parameter ``config``."""


delete_config_option = click.option(
    "--delete-config",
    "removed",
    multiple=True,
    metavar="KEY",
    help="Back to the default; may be repeated.",
)
"""The option of every command that alters a topic: parameter ``removed``."""


def parse_changes(
    partitions: int | None, pairs: tuple[str, ...], removed: tuple[str, ...]
) -> dict[str, str]:
    """Key → value as they are given to a command that alters a topic, which has to change
    something."""
    if partitions is None and not pairs and not removed:
        fail("give --partitions, --config or --delete-config")
    settings = parse_pairs(pairs)
    both = sorted(set(settings) & set(removed))
    if both:
        fail(f"{printable(both[0])} is both set and deleted")
    return settings


def parse_config(pairs: tuple[str, ...]) -> dict[str, str]:
    """Key → value, each checked as Kafka does.

    Raises:
        ConfigError: an unknown key, or a value outside its bounds.
    """
    from logstore.common.config import LogConfig

    settings = parse_pairs(pairs)
    LogConfig.from_properties(settings)
    return settings


def parse_pairs(pairs: tuple[str, ...], option: str = "--config") -> dict[str, str]:
    """Key → value as they are given, each key once. What is wrong names no value."""
    settings: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            fail(f"{option} {printable(pair)}: give KEY=VALUE")
        if key in settings:
            fail(f"{option} {printable(key)}: is given twice")
        settings[key] = value
    return settings
