"""Options and arguments that commands share: numbers, configurations of topics, log directories.

Where a log directory is wanted, a user may give the directory of ``logstore serve``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from checkpoints.printable import printable
from logstore.cli.common import completion
from logstore.cli.common.exits import fail

FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)
_DIGITS_MAX = 40

# -- numbers, refused in one sentence if invalid or out of range ----------------------------------


class Number(click.ParamType):  # type: ignore[type-arg]  # of newer click only
    """An integer in ``[low, high]``."""

    name = "number"

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        option = param.opts[0] if param is not None else "a number"
        text = str(value)
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX):
            fail(f"{option} {text[:_DIGITS_MAX]}: not a whole number")
        if not self.low <= int(text) <= self.high:
            fail(f"{option} {text}: give a number from {self.low} to {self.high}")
        return int(text)


PARTITION = Number(0, 2**31 - 1)
PARTITIONS = Number(1, 10_000)
COUNT = Number(1, 2**63 - 1)
OFFSET = Number(0, 2**63 - 1)
WHOLE = Number(-(2**63), 2**63 - 1)


def counted(count: int) -> str:
    return f"{count} record" if count == 1 else f"{count} records"


# -- configurations of topics ---------------------------------------------------------------------

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


# -- log directories ------------------------------------------------------------------------------


def one_broker(_: click.Context, __: click.Parameter, path: str) -> str:
    """``path``, or the log directory of the only broker in it."""
    found = _brokers_in(path)
    if len(found) > 1:
        each = ", ".join(map(printable, found))
        fail(f"{printable(path)}: the log directories of {len(found)} brokers; give one of {each}")
    return found[0] if found else path


directory_argument = click.argument(
    "directory", metavar="DIR", callback=one_broker, shell_complete=completion.directories
)
"""The argument of every command on one log directory: parameter ``directory``."""


def _readable(ctx: click.Context, parameter: click.Parameter, path: str) -> str:
    """As ``one_broker``, and a store of segments by the URI of its view."""
    from logstore.storage.uri import log_directory

    return one_broker(ctx, parameter, log_directory(path))


source_argument = click.argument(
    "directory", metavar="DIR", callback=_readable, shell_complete=completion.directories
)
"""As ``directory_argument``, of a command that only reads: DIR may be a URI or a backup."""


def directories_argument(name: str, metavar: str) -> Callable[[FC], FC]:
    """One argument or more, of a command on several log directories: parameter ``name``, with the
    log directories of all brokers in place of a directory that has them."""
    return click.argument(
        name,
        nargs=-1,
        required=True,
        metavar=metavar,
        callback=_all_brokers,
        shell_complete=completion.directories,
    )


def _all_brokers(_: click.Context, __: click.Parameter, paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(each for path in paths for each in _brokers_in(path) or [path])


def _brokers_in(path: str) -> list[str]:
    from logstore.storage.broker_directories import broker_directories
    from logstore.storage.local import LocalStorage

    if not os.path.isdir(path):  # the command says so
        return []
    try:
        names = broker_directories(LocalStorage(), path)
    except OSError:
        return []
    return [os.path.join(path, name) for name in names]
