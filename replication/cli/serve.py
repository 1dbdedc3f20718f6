"""``logstore serve``: brokers for every Kafka client, until a signal ends them."""

from __future__ import annotations

import gc
import json
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common.exits import EXIT_FINDINGS, fail, json_option
from logstore.cli.common.options import Number, parse_pairs
from logstore.common.errors import ConfigError
from replication.cli.connection import read_properties_file

if TYPE_CHECKING:
    from replication.network import Listener

DEFAULT = ParameterSource.DEFAULT
LOOK_S = 0.5  # whether a broker is left


@click.command(short_help="Serve Kafka clients, from Kafka's own files.")
@click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Directory; each broker has its log directory in it.",
)
@click.option(
    "--adopt",
    multiple=True,
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Log directory of another cluster, a Kafka's or one of ours, to serve as it is; may be "
    "repeated. --dir is a new directory then, which keeps what the logs do not say.",
)
@click.option(
    "--read-only",
    is_flag=True,
    help="Change nothing in the adopted directories, and keep nothing.",
)
@click.option(
    "--listen",
    default="127.0.0.1:9092",
    show_default=True,
    metavar="[PROTOCOL://]HOST:PORT,…",
    help="Addresses of the first broker; the next ones have the ports that follow. Port 0: any. "
    "Protocols are PLAINTEXT, SSL, SASL_PLAINTEXT and SASL_SSL.",
)
@click.option(
    "--brokers",
    type=Number(1, 100),
    help="Brokers in this process; 1 by default, and those that were adopted.",
)
@click.option(
    "--config",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE|FILE",
    help="Configuration under Kafka's broker-wide keys, or a server.properties with them; may be "
    "repeated, and a key goes before a file.",
)
@click.option(
    "--users",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Who may log in on listeners with SASL: NAME:PASSWORD in each line.",
)
@click.option(
    "--allow-plaintext",
    is_flag=True,
    help="Listen on an address that other machines reach, without TLS and login: they may read "
    "and write everything.",
)
@click.option(
    "--advertise",
    metavar="HOST",
    help="Host by which clients reach the brokers, where that is not the one they listen on. With "
    "other ports: --config advertised.listeners=PLAINTEXT://HOST:PORT.",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Serve health, metrics, the state of the brokers and a live page there.",
)
@click.option(
    "--registry",
    metavar="HOST:PORT",
    help="Serve a schema registry there, for clients of Confluent's.",
)
@click.option(
    "--broker-id",
    type=Number(0, 2**31 - 1),
    help="One broker of a cluster whose others live in other processes; --dir is its log "
    "directory.",
)
@click.option(
    "--coordinator",
    metavar="URL",
    help="Where the brokers of such a cluster meet: zookeeper://HOST:PORT,…/CHROOT.",
)
@click.option(
    "--inter-broker-password-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="NAME:PASSWORD by which a broker with --broker-id logs in at the others.",
)
@json_option
def serve(
    directory: str | None,
    adopt: tuple[str, ...],
    read_only: bool,
    listen: str,
    brokers: int | None,
    pairs: tuple[str, ...],
    users: Path | None,
    allow_plaintext: bool,
    advertise: str | None,
    http: str | None,
    registry: str | None,
    broker_id: int | None,
    coordinator: str | None,
    inter_broker_password_file: Path | None,
    as_json: bool,
) -> None:
    """Serve Kafka clients: producers, consumers, admin tools, of any language, unchanged.

    The files in DIR are Kafka's own; a later start goes on with them. When the brokers are ready,
    one line says where. Ctrl-C and SIGTERM stop them cleanly (exit code 0); a second Ctrl-C at
    once. If every broker has failed, the exit code is 1.

    \b
      logstore serve --dir /tmp/kafka
      logstore serve --dir /tmp/kafka --brokers 3 --config num.partitions=4
      logstore serve --adopt /backup/kafka-logs --read-only
      logstore serve --broker-id 1 --coordinator zookeeper://zk:2181/kafka --dir /data
        --config server.properties
      logstore serve --dir /tmp/kafka --listen SASL_SSL://:9093 --advertise kafka.example.org
        --users users.txt --config ssl.keystore.location=server.pem
      echo hello | kcat -b 127.0.0.1:9092 -P -t greetings
    """
    from replication.network import UserCredentials
    from replication.server.config import ServerConfig
    from replication.server.kafka_server import Exposure
    from replication.server.serving import HttpListener, url
    from replication.server.serving import serve as start

    def http_listener(option: str, text: str | None) -> HttpListener | None:
        return None if text is None else HttpListener(*host_and_port(option, text), allow_plaintext)

    properties = properties_of(pairs)
    credentials = None if users is None else UserCredentials(_users(users))
    exposure = Exposure(advertise, allow_plaintext, credentials)
    if broker_id is not None or coordinator is not None:
        if brokers is not None or adopt or read_only or registry is not None:
            fail("--brokers, --adopt, --read-only and --registry are for brokers of one process")
        from replication.cli.broker_process import ProcessOptions, run

        is_given = click.get_current_context().get_parameter_source("listen") is not DEFAULT
        run(
            ProcessOptions(
                broker_id,
                coordinator,
                directory,
                listen if is_given else None,
                properties,
                exposure,
                http_listener("--http", http),
                _user(inter_broker_password_file),
                as_json,
            )
        )
        return
    if directory is None and not read_only:
        raise click.UsageError("Missing option '--dir'.")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: stop.set())
    try:
        kafka = start(
            directory,
            listeners=_listeners(listen),
            brokers=brokers,
            config=ServerConfig.from_properties(properties),
            exposure=exposure,
            http=http_listener("--http", http),
            registry=http_listener("--registry", registry),
            adopt=adopt,
            read_only=read_only,
        )
    except ConfigError as error:
        fail(str(error))
    except OSError as error:
        fail(
            f"{printable(str(error.filename or directory or adopt[0]))}: {error.strerror or error}"
        )
    with kafka:
        # A full collection looked at all modules, while every request waited: 24 ms. They stay.
        gc.freeze()
        _restore(signal.SIGINT, stop)
        servers = kafka.bootstrap_servers
        pages = {} if kafka.http is None else {"http": f"{url(*kafka.http.address)}/"}
        if kafka.registry is not None:
            pages["registry"] = kafka.registry_url
        if as_json:
            ready: dict[str, object] = {"bootstrapServers": servers.split(","), **pages}
            if kafka.adoption is not None:
                ready["adoption"] = kafka.adoption.to_json()
            terminal.line(json.dumps(ready | ({"readOnly": True} if read_only else {})))
        else:
            for line in () if kafka.adoption is None else kafka.adoption.lines():
                terminal.line(line)
            forgets = " (read-only: what groups commit is gone at the end)" if read_only else ""
            terminal.line(f"ready: {servers}{forgets}")
            for name, address in pages.items():
                terminal.line(f"{'page' if name == 'http' else name}:".ljust(7) + address)
        while not stop.wait(LOOK_S):
            if not kafka.live_brokers:
                terminal.line("error: no broker is left", err=True)
                raise click.exceptions.Exit(EXIT_FINDINGS)


def _restore(number: int, stop: threading.Event) -> None:
    """The next Ctrl-C stops cleanly, the one after it at once."""
    default = signal.default_int_handler

    def handle(number: int, frame: object) -> None:
        signal.signal(number, default)
        stop.set()

    signal.signal(number, handle)


def properties_of(given: tuple[str, ...]) -> dict[str, str]:
    """``KEY=VALUE`` and files, of which the later ones go before the earlier."""
    files, pairs = split_config(given)
    properties: dict[str, str] = {}
    for each in files:
        properties |= read_properties_file(Path(each))
    return properties | pairs


def split_config(given: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """The files among the values of ``--config``, and the pairs."""
    files = [each for each in given if "=" not in each]
    for each in files:
        if not Path(each).is_file():
            fail(f"--config {printable(each)}: give KEY=VALUE, or a file that is there")
    return files, parse_pairs(tuple(each for each in given if each not in files))


def host_and_port(option: str, text: str) -> tuple[str, int]:
    from replication.common.addresses import MAX_PORT, split_address

    at = split_address(text) if ":" in text else None
    if at is None:
        fail(f"{option} {printable(text)}: give HOST:PORT, a port from 0 to {MAX_PORT}")
    return at


def _listeners(text: str) -> list[Listener]:
    from replication.network import Listener, parse_listeners

    found = []
    for part in text.split(","):
        if "://" in part:
            (listener,) = parse_listeners(part)
        else:
            listener = Listener("PLAINTEXT", *host_and_port("--listen", part))
        found.append(listener)
    if len({listener.name for listener in found}) < len(found):
        fail(f"--listen {printable(text)}: one listener for each protocol")
    return found


def _user(path: Path | None) -> tuple[str, str] | None:
    if path is None:
        return None
    users = _users(path)
    if len(users) != 1:
        fail(f"{printable(str(path))}: {len(users)} users: give the one of this broker")
    return next(iter(users.items()))


def _users(path: Path) -> dict[str, str]:
    """``NAME:PASSWORD`` in each line; a line that begins with # is a comment."""
    users: dict[str, str] = {}
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        fail(f"{printable(str(path))}: not UTF-8")
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        name, colon, password = line.partition(":")
        if not colon or not name or not password or name in users:
            fail(f"{printable(str(path))}:{number}: give NAME:PASSWORD, each name once")
        users[name] = password
    return users
