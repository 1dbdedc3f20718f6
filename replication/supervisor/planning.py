"""What a first start decides, and what a later one must not contradict."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from logstore.common.errors import ConfigError
from logstore.storage.broker_directories import broker_directories
from logstore.storage.local import LocalStorage
from replication.common.addresses import MAX_PORT, address_of, is_loopback, split_address
from replication.supervisor import zookeeper
from replication.supervisor.cluster_file import (
    CLIENTS,
    INTERNAL,
    TREE_DIR,
    ZOOKEEPER_DIR,
    BrokerEntry,
    ClusterFile,
    EngineEntry,
    ServerPorts,
    file_in,
    owners,
)

BROKERS, LISTEN = 3, "127.0.0.1:9092"
LOOPBACK = "127.0.0.1"
INTERNAL_AWAY, HTTP_AWAY = 10_000, 20_000  # from the port for clients
CLIENT_PORT, PEER_PORT, ELECTION_PORT = 2181, 2888, 3888  # ZooKeeper's own
DRAWN = range(10_000, 32_768)  # below those that systems give to outgoing connections
DRAWS = 1000
CONFIG = {
    "zookeeper.session.timeout.ms": "6000",
    "controlled.shutdown.retry.backoff.ms": "500",
    "controller.socket.timeout.ms": "10000",
}
"""Other defaults than Kafka's: all are on one machine, where a silent broker is a dead one. The
last one that stops has nobody to whom its leaderships could move, and tries it all the same; so
does each one while the engine is away, and has to end before it is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """The options of a start; None or empty is what was not given.

    Attributes:
        engine: ``zookeeper``, ``tree`` or a URL.
        servers: of ZooKeeper.
        jars, config_files, users, password_file: absolute paths.
    """

    brokers: int | None = None
    listen: str | None = None
    http: str | None = None
    engine: str | None = None
    servers: int | None = None
    jars: str | None = None
    config_files: tuple[str, ...] = ()
    config: Mapping[str, str] | None = None
    users: str | None = None
    password_file: str | None = None


# -- the first start ------------------------------------------------------------------------------


def first_plan(directory: str, wanted: StartOptions, environment: Mapping[str, str]) -> ClusterFile:
    """A directory of ``logstore serve`` keeps its brokers and its tree.

    Raises:
        ConfigError: the options contradict each other or what is in the directory.
    """
    ports = _Ports()
    engine = _engine(directory, wanted, environment, ports)
    ids = _broker_ids(directory, wanted.brokers)
    protocol, _, listen = (wanted.listen or LISTEN).rpartition("://")
    host, port = _address("--listen", listen)
    http = "" if wanted.http is None else _page(wanted.http, ports)
    config = {**CONFIG, **(wanted.config or {})}
    brokers = []
    for rank, broker_id in enumerate(ids):
        entry = _broker(broker_id, rank, (protocol or CLIENTS, host, port), ports)
        brokers.append(
            replace(
                entry,
                config_files=wanted.config_files,
                config=config,
                users=wanted.users or "",
                password_file=wanted.password_file or "",
            )
        )
    return ClusterFile(engine, tuple(brokers), http)


def with_page(cluster: ClusterFile, wanted: StartOptions) -> ClusterFile:
    """A later start may be the first one that wants a page."""
    if wanted.http is None or cluster.http:
        return cluster
    ports = _Ports(port for (_, port), _ in owners(cluster))
    return replace(cluster, http=_page(wanted.http, ports))


def _page(wanted: str, ports: _Ports) -> str:
    host, port = _address("--http", wanted)
    if not is_loopback(host):
        raise ConfigError(f"--http {wanted}: the page has no login; give a loopback address")
    return address_of(host, ports.take(host, port))


def further_broker(cluster: ClusterFile, broker_id: int) -> BrokerEntry:
    """One more broker, as the first one is; its ports are as far from those as its id, where these
    are free."""
    model = cluster.brokers[0]
    ports = _Ports(port for (_, port), _ in owners(cluster))
    away = broker_id - model.broker_id
    client, internal, page = (
        (host, ports.near(host, port + away)) for host, port in model.addresses
    )
    protocol = model.listeners.partition("://")[0]
    entry = _entry(broker_id, protocol, client, internal[1], page)
    return replace(
        entry,
        config_files=model.config_files,
        config=model.config,
        users=model.users,
        password_file=model.password_file,
    )


def _broker(
    broker_id: int,
    rank: int,
    clients: tuple[str, str, int],
    ports: _Ports,
) -> BrokerEntry:
    """
    Args:
        rank: how far the ports are from those of the first broker.
        clients: address of the first one; port 0 is any.
    """
    protocol, host, first = clients
    port = ports.take(host, first and first + rank)
    internal = ports.near(LOOPBACK, first and port + INTERNAL_AWAY)
    page = (LOOPBACK, ports.near(LOOPBACK, first and port + HTTP_AWAY))
    return _entry(broker_id, protocol, (host, port), internal, page)


def _entry(
    broker_id: int, protocol: str, client: tuple[str, int], internal: int, page: tuple[str, int]
) -> BrokerEntry:
    listeners = f"{protocol}://{address_of(*client)},{INTERNAL}://{LOOPBACK}:{internal}"
    return BrokerEntry(broker_id, listeners, address_of(*page), f"broker-{broker_id}")


class _Ports:
    """Ports that were not given twice."""

    def __init__(self, taken: Iterable[int] = ()) -> None:
        self._taken = set(taken)

    def take(self, host: str, port: int) -> int:
        """This port, or with 0 a free one."""
        if port > MAX_PORT:
            raise ConfigError(f"port {port}: there are none above {MAX_PORT}")
        if not port:
            return self._drawn(host)
        if port in self._taken:
            raise ConfigError(f"port {port} is wanted twice")
        self._taken.add(port)
        return port

    def near(self, host: str, port: int) -> int:
        """This port if it is one and free, otherwise any."""
        if 0 < port <= MAX_PORT and port not in self._taken and not problem_of(host, port):
            return self.take(host, port)
        return self._drawn(host)

    def _drawn(self, host: str) -> int:
        for _ in range(DRAWS):
            port = DRAWN[secrets.randbelow(len(DRAWN))]
            if port not in self._taken and not problem_of(host, port):
                return self.take(host, port)
        raise ConfigError(f"{host}: no free port was found")


def _address(option: str, text: str) -> tuple[str, int]:
    at = split_address(text)
    if at is None:
        raise ConfigError(f"{option} {text}: give HOST:PORT, a port from 0 to {MAX_PORT}")
    return at


def _broker_ids(directory: str, count: int | None) -> list[int]:
    storage = LocalStorage()
    names = broker_directories(storage, directory) if storage.info(directory) else []
    found = [int(name.removeprefix("broker-")) for name in names]
    if found and count not in (None, len(found)):
        raise ConfigError(
            f"--brokers {count}: {directory} has {', '.join(names)}; start it without, "
            "then `logstore cluster add` or `remove`"
        )
    return found or list(range(count or BROKERS))


# -- the engine -----------------------------------------------------------------------------------


def _engine(
    directory: str, wanted: StartOptions, environment: Mapping[str, str], ports: _Ports
) -> EngineEntry:
    storage = LocalStorage()
    has_tree = storage.info(os.path.join(directory, TREE_DIR)) is not None
    has_zookeeper = storage.info(os.path.join(directory, ZOOKEEPER_DIR)) is not None
    kind = wanted.engine
    for_zookeeper = wanted.servers is not None or wanted.jars is not None
    if kind not in (None, "zookeeper") and for_zookeeper:
        raise ConfigError(f"--zookeeper and --zookeeper-jars do not go with --engine {kind}")
    if kind is not None and kind not in ("zookeeper", "tree"):
        if "://" not in kind:
            raise ConfigError(f"--engine {kind}: give zookeeper, tree or a URL")
        return EngineEntry(foreign_url=kind)
    if has_tree and (kind == "zookeeper" or for_zookeeper):
        raise ConfigError(
            f"--engine zookeeper: {directory} has {TREE_DIR}, where its brokers meet already"
        )
    if kind is None:
        jars = None if has_tree else zookeeper.find_jars(wanted.jars, environment)
        kind = "zookeeper" if has_zookeeper or jars is not None or for_zookeeper else "tree"
    if kind == "tree":
        return EngineEntry(tree_port=ports.near(LOOPBACK, _unless_any(wanted, CLIENT_PORT)))
    require_jars(wanted.jars, environment)
    return EngineEntry(tuple(_servers(wanted, ports)), jars=wanted.jars or "")


def _servers(wanted: StartOptions, ports: _Ports) -> Iterator[ServerPorts]:
    count = wanted.servers or 1
    for rank in range(count):
        firsts = (CLIENT_PORT, PEER_PORT, ELECTION_PORT) if count > 1 else (CLIENT_PORT,)
        own = (ports.near(LOOPBACK, _unless_any(wanted, port) and port + rank) for port in firsts)
        yield ServerPorts(*own)


def _unless_any(wanted: StartOptions, port: int) -> int:
    """Who wants any port for clients wants any for the rest, too."""
    return (
        0 if _address("--listen", (wanted.listen or LISTEN).rpartition("://")[2])[1] == 0 else port
    )


def require_jars(given: str | None, environment: Mapping[str, str]) -> zookeeper.Jars:
    """
    Raises:
        ConfigError: there is no ZooKeeper here.
    """
    jars = zookeeper.find_jars(given, environment)
    if jars is None:
        raise ConfigError(
            "no ZooKeeper is on this machine: it needs Java, and jars in --zookeeper-jars, "
            "ZOOKEEPER_HOME, Debian's package zookeeper or PySpark; --engine tree needs neither"
        )
    return jars


# -- a later start --------------------------------------------------------------------------------


def check(directory: str, cluster: ClusterFile, wanted: StartOptions) -> None:
    """
    Raises:
        ConfigError: an option contradicts the file; both are named.
    """
    first = cluster.brokers[0]
    count = len(cluster.brokers)
    for option, given, written in (
        ("--brokers", wanted.brokers, count),
        ("--zookeeper", wanted.servers, len(cluster.engine.servers)),
        ("--zookeeper-jars", wanted.jars, cluster.engine.jars),
        ("--engine", wanted.engine, cluster.engine.name),
    ):
        if given is not None and given != written:
            raise _contradiction(directory, option, given, written or "none")
    for option, address, own in (
        ("--listen", wanted.listen, first.addresses[0]),
        ("--http", wanted.http, split_address(cluster.http)),
    ):
        if address is not None and own is not None:
            given_at = _address(option, address.rpartition("://")[2])
            if given_at not in (own, (own[0], 0)):
                raise _contradiction(directory, option, address, address_of(*own))
    for each in cluster.brokers:
        for option, given, written in (
            ("--users", wanted.users, each.users),
            ("--inter-broker-password-file", wanted.password_file, each.password_file),
        ):
            if given not in (None, written):
                where = f"broker {each.broker_id}: {written or 'no file'}"
                raise _contradiction(directory, option, given, where)
        for path in wanted.config_files:
            if path not in each.config_files:
                written = ", ".join(each.config_files) or "no file"
                where = f"broker {each.broker_id}: {written}"
                raise _contradiction(directory, "--config", path, where)
        for key, value in (wanted.config or {}).items():
            if each.config.get(key) != value:
                has = f"{key}={each.config[key]}" if key in each.config else f"no {key}"
                where = f"broker {each.broker_id}: {has}"
                raise _contradiction(directory, "--config", f"{key}={value}", where)


def _contradiction(directory: str, option: str, given: object, written: object) -> ConfigError:
    return ConfigError(
        f"{option} {given} contradicts {file_in(directory)}, which has {written}; the file counts: "
        "change it while the cluster is stopped, or leave out the option"
    )


# -- ports ----------------------------------------------------------------------------------------


def problem_of(host: str, port: int) -> str:
    """Why a server could not listen there; empty if it could."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def check_ports(cluster: ClusterFile) -> None:
    """
    Raises:
        ConfigError: another program has one of them; the text says which.
    """
    for address, owner in owners(cluster):
        if problem := problem_of(*address):
            raise ConfigError(f"{address_of(*address)}, of {owner}: {problem}")
