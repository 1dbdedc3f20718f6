"""Arguments that are log directories, where a user may give the directory of ``logstore serve``."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from checkpoints.printable import printable
from logstore.cli.common import completion
from logstore.cli.common.exits import fail

FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)


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
