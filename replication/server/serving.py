"""``serve``: brokers of this process for every Kafka client."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from logstore.common.config import MAX_INT
from logstore.common.errors import ConfigError
from logstore.storage.base import Storage
from logstore.storage.broker_directories import broker_directories
from logstore.storage.local import LocalStorage
from logstore.storage.paths import Paths, absolute_path, each_path
from replication.adopt import Adoption
from replication.broker.broker import Broker
from replication.broker.metrics import Histogram, Sample
from replication.common.addresses import address_of
from replication.embedded.cluster import Cluster
from replication.network import Listener
from replication.server.adopted import (
    REFUSED,
    ClusterFiles,
    keeping_offsets,
    locate_files,
    read_only_config,
)
from replication.server.config import ServerConfig
from replication.server.groups import group_snapshots
from replication.server.http import GroupSnapshot
from replication.server.kafka_server import LOCAL, Exposure, RequestListeners

if TYPE_CHECKING:
    from replication.server.http.http_server import HttpServer
    from replication.server.registry.registry import SchemaRegistry

EMBEDDED: Mapping[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 4,
}
"""Other defaults than Kafka's, which let one process begin at once."""

LOOPBACK = Listener("PLAINTEXT", "127.0.0.1", 0)


class HttpListener(NamedTuple):
    """The address to serve HTTP at. There is no login, so one that other machines reach needs
    ``allow_remote``."""

    host: str = "127.0.0.1"
    port: int = 0
    allow_remote: bool = False


class ServedCluster(Cluster):
    """A ``Cluster`` whose brokers have listeners; see ``serve``.

    Attributes:
        faults: let requests fail, for tests of clients.
        http: health, metrics, state and the live page; None where it was not asked for.
        adoption: what was found in the directories that this start adopted; None without any.
        read_only: nothing is kept; see ``serve``.
        registry: the server of the schema registry; None where it was not asked for.
    """

    adoption: Adoption | None = None

    def __init__(
        self,
        brokers: Sequence[int],
        directory: str | os.PathLike[str] | None,
        listeners: RequestListeners,
        http: HttpListener | None = None,
        registry: HttpListener | None = None,
        read_only: bool = False,
        **options: Any,
    ) -> None:
        self.read_only = read_only
        self.http: HttpServer | None = None
        self.registry: SchemaRegistry | None = None
        self.faults = listeners.faults
        self._listeners = listeners
        super().__init__(brokers, directory, request_listener=listeners, **options)
        try:
            if http is not None:
                from replication.server.http.http_server import HttpServer  # 20 ms, needed by few

                self.http = HttpServer(
                    lambda: list(self._brokers.values()),
                    self.groups,
                    self._samples,
                    **http._asdict(),
                )
            if registry is not None:
                from replication.server.registry.registry import SchemaRegistry

                self.registry = SchemaRegistry(self, read_only, **registry._asdict())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """As ``Cluster.close``; what is served over HTTP goes first."""
        for server in (self.registry, self.http):
            if server is not None:
                server.close()
        super().close()

    @property
    def registry_url(self) -> str:
        """``schema.registry.url`` of clients.

        Raises:
            ConfigError: it was not asked for.
        """
        if self.registry is None:
            raise ConfigError("no schema registry is served: give registry=HttpListener()")
        return url(*self.registry.address)

    def groups(self) -> list[GroupSnapshot]:
        """The consumer groups of the running brokers, with their committed offsets."""
        opened = [self._listeners.opened[broker_id] for broker_id in self.live_brokers]
        return group_snapshots([each.groups for each in opened if each.groups is not None])

    def _samples(self, broker: Broker) -> Iterable[Sample | Histogram]:
        server = self._listeners.opened.get(broker.broker_id)
        return () if server is None else server.samples()

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of each broker, with commas between, as clients want it. A broker keeps its
        address while it is down, so the text is the same for as long as the cluster is there."""
        found = [self._listeners.opened[broker_id].endpoints[0] for broker_id in self.broker_ids]
        return ",".join(address_of(each.host, each.port) for each in found)


def serve(
    directory: str | os.PathLike[str] | None = None,
    *,
    listeners: Iterable[Listener] = (LOOPBACK,),
    brokers: int | None = None,
    config: Mapping[str, object] | ServerConfig | None = None,
    exposure: Exposure = LOCAL,
    http: HttpListener | None = None,
    adopt: Paths = (),
    read_only: bool = False,
    registry: HttpListener | None = None,
    **options: Any,
) -> ServedCluster:
    """Start brokers that Kafka's clients can talk to; close what is returned, or use it in a
    ``with`` statement::

        with serve() as kafka:
            producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers})

    Args:
        directory: where each broker gets a directory ``broker-N``; a temporary one by default.
        listeners: of the first broker. The next ones take the ports after it, or any free ones
            if the port is 0.
        brokers: how many; those of an adopted cluster by default, otherwise 1.
        config: Kafka's broker-wide keys, such as ``{"num.partitions": 4}``. Groups do not wait for
            more members, their topic has 4 partitions, and of fewer than three brokers each has
            a replica of it, unless it says otherwise; a ``ServerConfig`` is taken as it is.
        exposure: who may use the listeners, where that is not this machine alone.
        http: serve health, metrics, the state of the brokers and a live page there.
        adopt: log directories that another cluster wrote, a Kafka's or one of ours: they become a
            cluster of their own, with the brokers, topics, groups and offsets that are in them.
            ``directory`` gets the coordinator's tree; a later start names ``directory`` alone.
        read_only: change nothing in the directories to adopt, and keep nothing. Clients read, and
            groups commit until the end; other requests that change anything get POLICY_VIOLATION.
        registry: serve a schema registry there, which keeps its schemas in a topic of the brokers.
        options: further ones of ``Cluster``.
    Raises:
        ConfigError: an unknown key, a value outside its bounds, a listener that anybody could use,
            no broker, or no listener; or the directories cannot be adopted, and are as they were.
        OSError: an address is taken.
        LogDirLockedError, StorageFailedError: as ``Cluster``.
    """
    for name, given in (("http", http), ("registry", registry)):
        if given is not None and not isinstance(given, HttpListener):
            raise ConfigError(f"{name}={given!r}: give an HttpListener(host, port)")
    listeners = tuple(listeners)
    if not listeners or (brokers is not None and brokers < 1):
        raise ConfigError(
            f"{brokers} brokers with {len(listeners)} listeners: one at least of each"
        )
    if not isinstance(config, ServerConfig):
        config = ServerConfig.from_properties({**EMBEDDED, **(config or {})})
    storage: Storage = options.pop("storage", None) or LocalStorage()
    for name in {"coordinator", "storages"} & options.keys():
        if adopt:  # they would be changed although it is read-only, or lack what was adopted
            raise ConfigError(f"{name} does not go with directories to adopt")
    place = locate_files(directory, each_path(adopt), read_only, storage, config, brokers)
    config = read_only_config(config) if read_only else keeping_offsets(config, place)
    broker_ids = _broker_ids(place, brokers, config)
    kafka = ServedCluster(
        broker_ids,
        place.directory,
        RequestListeners(listeners, broker_ids, config, exposure, REFUSED if read_only else ()),
        http,
        registry,
        read_only,
        log_config=config.log,
        broker_config=config.broker,
        config=config.replication,
        storage=place.storage,
        log_dirs=place.log_dirs,
        **options,
    )
    kafka.adoption = place.report
    return kafka


def _broker_ids(place: ClusterFiles, brokers: int | None, config: ServerConfig) -> Sequence[int]:
    """
    Raises:
        ConfigError: there are no such ids, or the files are those of other brokers.
    """
    if place.brokers is not None:
        return place.brokers
    count, first = brokers or 1, config.node.first_id
    if first > MAX_INT - count + 1:
        raise ConfigError(f"node.id = {first}: there are not {count} ids from there on")
    broker_ids = range(first, first + count)
    if place.directory is not None:
        _check_ids(place.storage, place.directory, broker_ids)
    return broker_ids


def url(host: str, port: int) -> str:
    return f"http://{address_of(host, port)}"


def _check_ids(
    storage: Storage, directory: str | os.PathLike[str], broker_ids: Sequence[int]
) -> None:
    """
    Raises:
        ConfigError: the directory is that of other brokers, whose topics nobody would serve.
    """
    path = absolute_path(storage, directory)
    found = broker_directories(storage, path) if storage.info(path) is not None else []
    if found and not {f"broker-{each}" for each in broker_ids} & set(found):
        raise ConfigError(
            f"{path} has {', '.join(found)}, and not broker-{broker_ids[0]}: see node.id"
        )


@asynccontextmanager
async def serve_async(
    directory: str | os.PathLike[str] | None = None, **options: Any
) -> AsyncIterator[ServedCluster]:
    """``serve`` for code on an event loop, which goes on while brokers start and stop::

        async with serve_async() as kafka:
            producer = aiokafka.AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers)

    The brokers have threads of their own. Arguments and errors are those of ``serve``. If the task
    is cancelled while they start, they are closed before it ends.
    """
    import asyncio  # 40 ms, which only code on an event loop has paid already

    storage: Storage = options.get("storage") or LocalStorage()
    if directory is not None:  # before the thread begins
        directory = absolute_path(storage, directory)
    options["adopt"] = [
        absolute_path(storage, each) for each in each_path(options.get("adopt", ()))
    ]
    abandoned = threading.Event()

    def start() -> ServedCluster:
        kafka = serve(directory, **options)
        if abandoned.is_set():
            kafka.close()
        return kafka

    starting = asyncio.get_running_loop().run_in_executor(None, start)
    try:
        kafka = await asyncio.shield(starting)
    except asyncio.CancelledError:
        abandoned.set()
        with suppress(Exception):  # a start that failed has left nothing
            kafka = await asyncio.shield(starting)
            await asyncio.shield(asyncio.to_thread(kafka.close))  # it may have missed the event
        raise
    try:
        yield kafka
    finally:
        await asyncio.shield(asyncio.to_thread(kafka.close))
