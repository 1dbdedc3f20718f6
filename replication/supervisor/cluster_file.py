"""``cluster.toml``: which processes there are, and where each of them listens.

It is written at the first start and read by later ones, so that a cluster keeps its ids, its ports
and its engine. Only ``add`` and ``remove`` change it afterwards; a person may.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from checkpoints.files import OsFiles, UnusableFileError, replace_file
from logstore.common.config import MAX_INT
from logstore.common.errors import ConfigError
from replication.common.addresses import MAX_PORT, address_of, split_address

FILE = "cluster.toml"
MAX_BYTES = 1 << 20
TREE_DIR, ZOOKEEPER_DIR = "coordinator", "zookeeper"
CLIENTS, INTERNAL = "PLAINTEXT", "INTERNAL"
"""The listeners of a broker: for clients, and for the other brokers."""
HEAD = """\
# The processes of this cluster, for `logstore cluster --dir`. It is read when a process starts, and
# changed by `logstore cluster add` and `remove`.
"""

LOGINS = ("users", "inter_broker_password_file")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServerPorts:
    """Those of one ZooKeeper on loopback: of clients, of the other servers, of elections."""

    port: int
    peer_port: int = 0
    election_port: int = 0

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(port for port in (self.port, self.peer_port, self.election_port) if port)


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """What keeps the cluster's decisions: servers of ZooKeeper, the served tree at a port, or what
    somebody else runs at a URL. Exactly one of the three is set.

    Attributes:
        jars: where those of ZooKeeper were said to be.
    """

    servers: tuple[ServerPorts, ...] = ()
    tree_port: int = 0
    foreign_url: str = ""
    jars: str = ""

    @property
    def name(self) -> str:
        return "zookeeper" if self.servers else "tree" if self.tree_port else self.foreign_url

    @property
    def url(self) -> str:
        if self.foreign_url:
            return self.foreign_url
        ports = [each.port for each in self.servers] or [self.tree_port]
        return "zookeeper://" + ",".join(f"127.0.0.1:{port}" for port in ports)

    @property
    def ports(self) -> tuple[int, ...]:
        own = tuple(port for server in self.servers for port in server.ports)
        return (*own, self.tree_port) if self.tree_port else own


@dataclass(frozen=True, slots=True)
class BrokerEntry:
    """One broker.

    Attributes:
        listeners: as of ``logstore serve --listen``.
        http: host and port of its page.
        directory: relative to that of the cluster, or absolute.
        config: configuration under Kafka's keys, behind that of ``config_files``.
        users, password_file: absolute paths of those who may log in, and of what the broker logs in
            with at others; empty for none.
    """

    broker_id: int
    listeners: str
    http: str
    directory: str
    config_files: tuple[str, ...] = ()
    config: Mapping[str, str] = frozenset()  # type: ignore[assignment]
    users: str = ""
    password_file: str = ""

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """All that it binds: those of its listeners, then that of its page."""
        texts = [each.rpartition("://")[2] for each in self.listeners.split(",")]
        return tuple(at for text in (*texts, self.http) if (at := split_address(text)) is not None)

    @property
    def bootstrap(self) -> str:
        """Where clients reach it."""
        return address_of(*self.addresses[0])


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """``http`` is the address of the cluster's page, empty for none."""

    engine: EngineEntry
    brokers: tuple[BrokerEntry, ...]
    http: str = ""

    def broker(self, broker_id: int) -> BrokerEntry | None:
        return next((each for each in self.brokers if each.broker_id == broker_id), None)

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(each.bootstrap for each in self.brokers)

    def with_broker(self, broker: BrokerEntry) -> ClusterFile:
        others = (each for each in self.brokers if each.broker_id != broker.broker_id)
        found = sorted((*others, broker), key=lambda each: each.broker_id)
        return replace(self, brokers=tuple(found))

    def without(self, broker_id: int) -> ClusterFile:
        kept = tuple(each for each in self.brokers if each.broker_id != broker_id)
        return replace(self, brokers=kept)


def file_in(directory: str) -> str:
    return os.path.join(directory, FILE)


def read_cluster(directory: str) -> ClusterFile | None:
    """None where no cluster was started yet.

    Raises:
        ConfigError: it cannot be what ``write_cluster`` wrote; the text says where and why.
    """
    path = file_in(directory)
    try:
        data = OsFiles().read_file(path, MAX_BYTES)
    except FileNotFoundError:
        return None
    except UnusableFileError as error:
        raise ConfigError(f"{path}: {error.reason}") from None
    try:
        return parse(data.decode())
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError, TOMLDecodeError, ours
        raise ConfigError(f"{path}: {error}") from None


def write_cluster(directory: str, cluster: ClusterFile) -> None:
    """Replace the file as a whole. Others must not read it: a configuration has passwords."""
    before = os.umask(0o077)  # of the process, which has one thread that makes files
    try:
        replace_file(OsFiles(), file_in(directory), render(cluster).encode())
    finally:
        os.umask(before)


# -- text -----------------------------------------------------------------------------------------


def parse(text: str) -> ClusterFile:
    """
    Raises:
        ValueError: it is no such file.
    """
    found = tomllib.loads(text)
    engine = _engine(_taken(found, "engine", dict, "the file"))
    tables = _taken(found, "broker", list, "the file")
    http = _taken(found, "http", str, "the file") if "http" in found else ""
    if http:
        _port((split_address(http) or ("", 0))[1])
    _nothing_left(found, "the file")
    brokers = tuple(map(_broker, tables))
    if not brokers:
        raise ValueError("it has no [[broker]]")
    ids = [each.broker_id for each in brokers]
    for broker_id in ids:
        if ids.count(broker_id) > 1:
            raise ValueError(f"two brokers have the id {broker_id}")
    cluster = ClusterFile(engine, tuple(sorted(brokers, key=lambda each: each.broker_id)), http)
    seen: dict[tuple[str, int], str] = {}
    for address, owner in owners(cluster):
        if seen.setdefault(address, owner) != owner:
            raise ValueError(
                f"{owner} and {seen[address]} have one address: {address_of(*address)}"
            )
    return cluster


def owners(cluster: ClusterFile) -> list[tuple[tuple[str, int], str]]:
    """Each address that a process of the cluster binds, and which one does."""
    engine = [(("127.0.0.1", port), cluster.engine.name) for port in cluster.engine.ports]
    page = split_address(cluster.http)
    brokers = [
        (address, f"broker {broker.broker_id}")
        for broker in cluster.brokers
        for address in broker.addresses
    ]
    return [*engine, *([] if page is None else [(page, "the page")]), *brokers]


def _engine(table: dict[str, Any]) -> EngineEntry:
    if "url" in table:
        entry = EngineEntry(foreign_url=_taken(table, "url", str, "engine"))
    else:
        kind = _taken(table, "kind", str, "engine")
        if kind == "tree":
            entry = EngineEntry(tree_port=_port(_taken(table, "port", int, "engine")))
        elif kind == "zookeeper":
            servers = _taken(table, "servers", list, "engine")
            if len(servers) not in (1, 3) or not all(isinstance(s, list) for s in servers):
                raise ValueError("engine: servers is a list of one or three lists of ports")
            jars = _taken(table, "jars", str, "engine") if "jars" in table else ""
            wanted = 1 if len(servers) == 1 else 3
            if any(len(ports) != wanted for ports in servers):
                raise ValueError(f"engine: each of {len(servers)} servers has {wanted} ports")
            made = tuple(ServerPorts(*map(_port, ports)) for ports in servers)
            entry = EngineEntry(made, jars=jars)
        else:
            raise ValueError(f"engine: kind is zookeeper or tree, not {kind!r}")
    _nothing_left(table, "engine")
    return entry


def _broker(table: Any) -> BrokerEntry:
    if not isinstance(table, dict):
        raise ValueError("broker is no list of tables: begin each with [[broker]]")
    broker_id = _taken(table, "id", int, "a broker")
    where = f"broker {broker_id}"
    if not 0 <= broker_id <= MAX_INT:
        raise ValueError(f"{where}: give an id from 0 to {MAX_INT}")
    config = _taken(table, "config", dict, where) if "config" in table else {}
    files = _taken(table, "config_files", list, where) if "config_files" in table else []
    entry = BrokerEntry(
        broker_id,
        _taken(table, "listeners", str, where),
        _taken(table, "http", str, where),
        _taken(table, "dir", str, where),
        tuple(map(str, files)),
        {key: _text(value, f"{where}: config {key}") for key, value in config.items()},
        *(_taken(table, key, str, where) if key in table else "" for key in LOGINS),
    )
    _nothing_left(table, where)
    if len(entry.addresses) != entry.listeners.count(",") + 2:
        raise ValueError(f"{where}: listeners and http are addresses HOST:PORT")
    for _, port in entry.addresses:
        _port(port)
    return entry


def _taken(table: dict[str, Any], key: str, kind: type[T], where: str) -> T:
    if key not in table:
        raise ValueError(f"{where} has no {key}")
    value = table.pop(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{where}: {key} is no {kind.__name__}")
    return value


def _nothing_left(table: dict[str, Any], where: str) -> None:
    for key in table:
        raise ValueError(f"{where} has a key that is not known: {key}")


def _port(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_PORT:
        raise ValueError(f"{value!r} is no port from 1 to {MAX_PORT}")
    return value


def _text(value: Any, where: str) -> str:
    """Kafka's keys have texts; a person may write numbers and truths."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float | str):
        return str(value)
    raise ValueError(f"{where} is no text, number or truth")


def render(cluster: ClusterFile) -> str:
    engine = cluster.engine
    if engine.foreign_url:
        fields = {"url": _quoted(engine.foreign_url)}
    elif engine.tree_port:
        fields = {"kind": '"tree"', "port": str(engine.tree_port)}
    else:
        fields = {
            "kind": '"zookeeper"',
            "servers": str([list(each.ports) for each in engine.servers]),
        }
        if engine.jars:
            fields["jars"] = _quoted(engine.jars)
    lines = [HEAD, f"engine = {_inline(fields)}"]
    if cluster.http:
        lines.append(f"http = {_quoted(cluster.http)}")
    for each in cluster.brokers:
        lines += [
            "",
            "[[broker]]",
            f"id = {each.broker_id}",
            f"listeners = {_quoted(each.listeners)}",
            f"http = {_quoted(each.http)}",
            f"dir = {_quoted(each.directory)}",
        ]
        if each.config_files:
            lines.append(f"config_files = [{', '.join(map(_quoted, each.config_files))}]")
        for key, path in zip(LOGINS, (each.users, each.password_file), strict=True):
            if path:
                lines.append(f"{key} = {_quoted(path)}")
        if each.config:
            pairs = {_quoted(key): _quoted(value) for key, value in each.config.items()}
            lines.append(f"config = {_inline(pairs)}")
    return "\n".join([*lines, ""])


def _inline(fields: Mapping[str, str]) -> str:
    return "{ " + ", ".join(f"{key} = {value}" for key, value in fields.items()) + " }"


def _quoted(text: str) -> str:
    """A basic string of TOML, whose escapes are those of JSON."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
