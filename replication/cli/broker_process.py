"""``logstore serve --broker-id``: one broker in a process of its own, until a signal ends it."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import click

from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common.exits import EXIT_FINDINGS, fail
from logstore.common.clock import SystemClock
from logstore.common.errors import LogstoreError

if TYPE_CHECKING:
    from logstore.manager import LoadProgress
    from replication.broker.stages import BrokerStage
    from replication.server.kafka_server import Exposure
    from replication.server.process import BrokerProcess, ProcessSettings
    from replication.server.serving import HttpListener

LOOK_S = 0.5  # between two looks at the stage
STARTING_LOOK_S = 0.05  # the same before it serves
PROGRESS_S = 1.0  # between two lines about the recovery
KAFKAS_PORT = 9092


class ProcessOptions(NamedTuple):
    """The options of the command.

    Attributes:
        listen: None for the configuration's ``listeners``.
    """

    broker_id: int | None
    coordinator: str | None
    directory: str | None
    listen: str | None
    properties: Mapping[str, str]
    exposure: Exposure
    http: HttpListener | None = None
    user: tuple[str, str] | None = None
    as_json: bool = False


def run(wanted: ProcessOptions) -> None:
    """Serve until a signal. The second signal ends the process at once."""
    stop = threading.Event()
    try:
        process = _process(wanted)
    except (LogstoreError, OSError) as error:
        _fail(error)
    _on_signals(stop, process)
    with process:
        reporter = _Reporter(process, wanted)
        try:
            if wanted.http is not None:
                reporter.http = process.serve_http(wanted.http)
            reporter.report()
            process.start()
        except (LogstoreError, OSError) as error:
            if stop.is_set():
                return
            _fail(error)
        gc.freeze()  # a full collection would look at all modules, while every request waits
        while not stop.wait(LOOK_S if reporter.is_ready else STARTING_LOOK_S):
            reporter.report()
            if process.fatal_error is not None:
                terminal.line(f"error: {printable(str(process.fatal_error))}", err=True)
                raise click.exceptions.Exit(EXIT_FINDINGS)
        notify("STOPPING=1")
        terminal.line("state: stopping", err=True)


def _fail(error: Exception) -> NoReturn:
    if isinstance(error, OSError) and error.filename:
        fail(printable(f"{error.filename}: {error.strerror}"))
    fail(printable(str(error)))


def _process(wanted: ProcessOptions) -> BrokerProcess:
    from logstore.storage.local import LocalStorage
    from replication.server.process import BrokerProcess

    settings, ignored = settings_of(wanted)
    for key in ignored:
        terminal.line(f"note: {key} is not served, and changes nothing here", err=True)
    return BrokerProcess(settings, _Progress(), LocalStorage())


def settings_of(wanted: ProcessOptions) -> tuple[ProcessSettings, list[str]]:
    """The settings, and the keys that change nothing. Nothing is opened.

    Raises:
        ConfigError: a key is unknown, or the listeners are malformed.
    """
    from logstore.storage.local import LocalStorage
    from logstore.storage.paths import absolute_path
    from replication.network import Listener
    from replication.server.config import UNSET, process_config
    from replication.server.process import ProcessSettings

    own, config, ignored = process_config(_with_listeners(wanted))
    given = max(config.node.node_id, config.node.broker_id)
    broker_id = given if wanted.broker_id is None else wanted.broker_id
    if broker_id == UNSET:
        fail("--coordinator takes --broker-id, or broker.id in the configuration")
    if given not in (UNSET, broker_id):
        fail(f"--broker-id {broker_id}, and broker.id = {given}: give one, or the same")
    coordinator = wanted.coordinator
    if coordinator is None and own.zookeeper_connect:
        coordinator = f"zookeeper://{own.zookeeper_connect}"
    if coordinator is None:
        fail("--broker-id takes --coordinator URL, or zookeeper.connect in the configuration")
    if coordinator.startswith("embedded:"):
        fail("an embedded tree is for the brokers of one process: see logstore coordinator")
    if wanted.directory is not None and own.directories:
        fail("--dir, and log.dirs: give one of them")
    directories = (wanted.directory,) if wanted.directory is not None else own.directories
    if not directories:
        fail("--broker-id takes --dir, or log.dirs in the configuration")
    storage = LocalStorage()
    listeners = own.parse_listeners(
        [Listener("PLAINTEXT", "127.0.0.1", KAFKAS_PORT)],
        config.network.inter_broker_listener_name,
    )
    settings = ProcessSettings(
        broker_id=broker_id,
        directories=tuple(absolute_path(storage, each) for each in directories),
        coordinator=coordinator,
        listeners=listeners,
        config=config._replace(network=config.network.with_absolute_paths()),
        exposure=wanted.exposure,
        rack=own.broker_rack or None,
        user=wanted.user,
        session_timeout_ms=own.zookeeper_session_timeout_ms,
    )
    return settings, ignored


def _with_listeners(wanted: ProcessOptions) -> Mapping[str, str]:
    """The configuration with ``--listen`` in it, which may leave out the name of a listener."""
    if wanted.listen is None:
        return wanted.properties
    named = (each if "://" in each else f"PLAINTEXT://{each}" for each in wanted.listen.split(","))
    return {**wanted.properties, "listeners": ",".join(named)}


def _on_signals(stop: threading.Event, process: BrokerProcess) -> None:
    def handle(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop.set()
        process.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


def _now_s() -> float:
    return SystemClock().monotonic_ns() / 1e9


class _Progress:
    """Says how many logs are open, now and then."""

    def __init__(self) -> None:
        self._next_at = _now_s() + PROGRESS_S

    def __call__(self, progress: LoadProgress) -> None:
        now = _now_s()
        if now >= self._next_at:
            self._next_at = now + PROGRESS_S
            text = f"recovering {progress.done:,} of {progress.total:,} logs"
            notify(f"STATUS={text}")
            terminal.line(f"state: {text} in {printable(progress.directory)}", err=True)


class _Reporter:
    """Prints each stage once it is reached, on stderr, and the ready line."""

    def __init__(self, process: BrokerProcess, wanted: ProcessOptions) -> None:
        self.http: tuple[str, int] | None = None
        self._process, self._wanted = process, wanted
        self._last: BrokerStage | None = None
        self.is_ready = False
        usec = os.environ.get("WATCHDOG_USEC", "")
        self._watchdog_s = int(usec) / 2e6 if usec.isdigit() and int(usec) else None
        self._fed_at = 0.0

    def report(self) -> None:
        from replication.broker.stages import BrokerStage

        stage = self._process.stage
        if stage is not self._last:
            self._last = stage
            notify(f"STATUS={stage.value}")
            terminal.line(f"state: {stage.value}", err=True)
        if not self.is_ready and stage in (BrokerStage.CAUGHT_UP, BrokerStage.IN_SYNC):
            self.is_ready = True
            notify("READY=1")
            self._print_ready(stage)
        if self._watchdog_s is not None and _now_s() - self._fed_at >= self._watchdog_s:
            self._fed_at = _now_s()
            notify("WATCHDOG=1")

    def _print_ready(self, stage: BrokerStage) -> None:
        from replication.common.addresses import address_of
        from replication.server.serving import url

        server = self._process.server
        assert server is not None
        servers = [address_of(each.host, each.port) for each in server.endpoints[:1]]
        page = {} if self.http is None else {"http": f"{url(*self.http)}/"}
        if self._wanted.as_json:
            ready = {
                "brokerId": self._process.settings.broker_id,
                "bootstrapServers": servers,
                "state": stage.value,
            }
            terminal.line(json.dumps({**ready, **page}))
            return
        terminal.line(f"ready: {','.join(servers)}")
        for address in page.values():
            terminal.line(f"page:  {address}")


def notify(text: str) -> None:
    """Report to systemd, if it has started this process (``sd_notify``)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    place = f"\0{address[1:]}" if address.startswith("@") else address
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.sendto(text.encode(), place)
