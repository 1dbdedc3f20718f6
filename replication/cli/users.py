"""``logstore users``: who may log in, in the coordinator's tree, also before any broker runs."""

from __future__ import annotations

import logging
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from checkpoints.loggers import get_logger
from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common.exits import fail, json_option
from logstore.common.errors import LogstoreError

if TYPE_CHECKING:
    from replication.security.credentials import ScramCredential, ScramMechanism

ITERATIONS = 4096
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MAX_PASSWORD = 4096
SALT_BYTES = 16


@click.group(short_help="Who may log in at brokers in processes of their own.")
def users() -> None:
    """Add and remove users of SCRAM, where Kafka's tools keep them: in the coordinator's tree.

    No broker has to run, so brokers that log in at each other get their users by it.
    """


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.argument("name"),
        click.option(
            "--mechanism", type=click.Choice(MECHANISMS), default=MECHANISMS[-1], show_default=True
        ),
        click.option(
            "--coordinator",
            required=True,
            metavar="URL",
            help="Where the brokers meet: zookeeper://HOST:PORT,…/CHROOT.",
        ),
    ):
        command = option(command)
    return command


@users.command(short_help="Add a user, or change the password.")
@_options
@click.option(
    "--password-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Its first line is the password; otherwise that of standard input.",
)
@json_option
def add(
    coordinator: str, mechanism: str, name: str, password_file: Path | None, as_json: bool
) -> None:
    """Add a user, or change the password. The tree keeps keys that it cannot be computed from.

    \b
      logstore users add broker --coordinator zookeeper://zk:2181/kafka < password.txt
    """
    from replication.security.credentials import derive

    try:
        with sys.stdin.buffer if password_file is None else password_file.open("rb") as file:
            password = file.readline(MAX_PASSWORD + 2).rstrip(b"\r\n").decode()
    except (OSError, ValueError) as error:
        fail(f"the password cannot be read: {printable(str(error))}")
    if not name or not password or len(password) > MAX_PASSWORD:
        fail(f"give a name, and a password of up to {MAX_PASSWORD} bytes")
    kind = _kind(mechanism)
    kept = derive(kind, password, secrets.token_bytes(SALT_BYTES), ITERATIONS)
    changed = _store(coordinator, name, mechanism, kept)
    _report(name, mechanism, "changed" if changed else "added", as_json)


@users.command(short_help="Remove a user.")
@_options
@json_option
def remove(coordinator: str, mechanism: str, name: str, as_json: bool) -> None:
    """Remove a user; connections that have logged in stay."""
    if not _store(coordinator, name, mechanism, None):
        fail(f"{printable(name)} has no {mechanism}")
    _report(name, mechanism, "removed", as_json)


def _report(name: str, mechanism: str, done: str, as_json: bool) -> None:
    if as_json:
        terminal.print_json({"user": name, "mechanism": mechanism, "state": done})
    else:
        terminal.line(f"{printable(name)}: {mechanism} {done}")


def _kind(mechanism: str) -> ScramMechanism:
    from replication.security.credentials import ScramMechanism

    return next(each for each in ScramMechanism if each.mechanism == mechanism)


def _store(coordinator: str, name: str, mechanism: str, kept: ScramCredential | None) -> bool:
    from replication.coordination import open_coordinator
    from replication.security.stored import store_credential

    if coordinator.startswith("embedded:"):
        fail("an embedded tree has no users: see --users of logstore serve")
    steps = get_logger("replication.coordination")
    steps.setLevel(logging.ERROR)  # one line says what went wrong
    try:
        service = open_coordinator(coordinator)
        try:
            session = service.connect()
            try:
                return store_credential(session, name, _kind(mechanism), kept)
            finally:
                session.close()
        finally:
            service.close()
    except (LogstoreError, ValueError) as error:
        fail(printable(str(error)))
    finally:
        steps.setLevel(logging.NOTSET)
