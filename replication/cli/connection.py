"""Access of commands to a running cluster: options, and Kafka's ``client.properties``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common.exits import EXIT_FINDINGS, fail
from logstore.cli.common.options import parse_pairs
from logstore.common.suggestions import or_meant

if TYPE_CHECKING:
    from replication.admin import Answered
    from replication.security.config import ClientProperties

DEFAULT_SERVER = "127.0.0.1:9092"
_MAX_FILE_BYTES = 1 << 20


def client_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every command that asks a cluster: parameter ``client``, which is
    ``ClientProperties``."""

    @_access_options(
        ("--bootstrap-server", f"Some brokers; they name the others.  [default: {DEFAULT_SERVER}]"),
        ("-F", "--command-config", "Kafka's client.properties: TLS, login, time-outs."),
    )
    @wraps(command)
    def run(
        *args: Any,
        servers: str | None,
        config_file: Path | None,
        pairs: tuple[str, ...],
        **others: Any,
    ) -> Any:
        return command(*args, client=_client(servers, config_file, pairs), **others)

    return run


def source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of commands that read a cluster for a mirror: parameter ``source``, which is
    ``ClientProperties``; None without ``--from``."""

    @_access_options(
        ("--from", "Some brokers of the source; they name the others."),
        ("--config", "Kafka's client.properties for it: TLS, login, time-outs."),
    )
    @wraps(command)
    def run(
        *args: Any,
        servers: str | None,
        config_file: Path | None,
        pairs: tuple[str, ...],
        **others: Any,
    ) -> Any:
        source = None if servers is None else _client(servers, config_file, pairs)
        return command(*args, source=source, **others)

    return run


def _access_options(
    servers: tuple[str, ...], config_file: tuple[str, ...]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The three options of access to a cluster. Of the first two the names are given, then the
    help."""
    options = (
        click.option(*servers[:-1], "servers", metavar="HOST:PORT,…", help=servers[-1]),
        click.option(
            *config_file[:-1],
            "config_file",
            metavar="FILE",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help=config_file[-1],
        ),
        click.option(
            "-X",
            "pairs",
            multiple=True,
            metavar="KEY=VALUE",
            help="A key of that file; may be repeated, and goes before the file.",
        ),
    )
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


def report(
    answers: Mapping[Any, Answered], done: str, as_json: bool, of: Callable[[Any], dict[str, Any]]
) -> None:
    """Print the answer about each thing in a line; end with 1 if something was refused.

    Args:
        done: what was done, as ``created``.
        of: the fields of a thing in JSON.
    """
    from replication.common.error_codes import error_name

    if as_json:
        terminal.print_json(
            [
                {**of(key), "errorCode": error_name(each.code), "errorMessage": each.message}
                for key, each in answers.items()
            ],
            indent=2,
        )
    for key, each in answers.items():
        if not each.code and not as_json:
            terminal.line(f"{done} {printable(str(key))}")
    if print_errors({key: each for key, each in answers.items() if each.code}):
        raise click.exceptions.Exit(EXIT_FINDINGS)


def print_errors(failed: Mapping[Any, Answered]) -> bool:
    """Print a line on stderr for each; whether there are any."""
    for key, each in failed.items():
        terminal.line(f"error: {printable(str(key))}: {printable(str(each))}", err=True)
    return bool(failed)


def _client(
    servers: str | None, config_file: Path | None, pairs: tuple[str, ...]
) -> ClientProperties:
    from replication.security.config import client_properties, in_kafkas_words, unknown_keys

    given = in_kafkas_words(parse_pairs(pairs, "-X"))
    for key in unknown_keys(given):
        fail(f"-X {_unknown(key)}")
    found = {"bootstrap.servers": DEFAULT_SERVER}
    if config_file is not None:
        on_file = in_kafkas_words(read_properties_file(config_file))
        for key in unknown_keys(on_file):
            terminal.line(f"note: {printable(str(config_file))}: {_unknown(key)}", err=True)
        found |= on_file
    found |= given
    if servers is not None:
        found["bootstrap.servers"] = servers
    return client_properties(found)


def read_properties_file(path: Path) -> dict[str, str]:
    from replication.security.config import read_properties

    with path.open("rb") as file:
        data = file.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        fail(f"{printable(str(path))}: above {_MAX_FILE_BYTES} bytes")
    return read_properties(str(path), data)


def _unknown(key: str) -> str:
    from replication.security.config import known_keys

    return or_meant(f"{printable(key)} is no key of Kafka's clients", key, known_keys())
