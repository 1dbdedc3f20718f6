"""The listeners of a broker, and the APIs behind them (Kafka's ``KafkaServer``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from logstore.common.errors import ConfigError
from replication.apis import is_quick
from replication.apis.assembly import BrokerApis, kafka_apis
from replication.apis.common.broker_requests import BrokerPeers
from replication.broker.broker import Broker
from replication.broker.metrics import Histogram, Sample
from replication.common.error_codes import ErrorCode
from replication.common.state import Endpoint
from replication.coordinators.groups.coordinator import GroupCoordinator
from replication.network import (
    CLOSE,
    ClientQuotas,
    Credentials,
    Listener,
    NetworkServer,
    ReceivedRequest,
    RequestHandler,
    Respond,
    check_ports,
    with_inter_broker,
)
from replication.protocol import ApiKey
from replication.server.config import ServerConfig
from replication.server.faults import RequestFaults
from replication.server.metrics import group_samples, network_samples, transaction_samples

ANY_ADDRESS = ("", "0.0.0.0", "::")


class Exposure(NamedTuple):
    """The machines that may use the listeners, and how they find them.

    Attributes:
        advertised_host: by which clients reach the broker; by default the host that a listener is
            bound to.
        allow_plaintext: let other machines use listeners that have neither TLS nor login.
        credentials: of those who may log in, on listeners with SASL.
    """

    advertised_host: str | None = None
    allow_plaintext: bool = False
    credentials: Credentials | None = None


LOCAL = Exposure()


class KafkaServer:
    """The listeners of one broker for one life.

    The sockets are bound when it is made, so that the broker can register their addresses.

    Args:
        exposure: who may use the listeners, and by which host.
        advertised: host and port for clients, by the names of listeners that have others than they
            are bound to.
        faults: what requests meet on their way, in tests, or where some are never carried out.
        user: as whom brokers log in at each other, where the configuration does not say it.
    Raises:
        ConfigError: a listener is bound to all addresses and none is advertised, or anybody could
            use it; or it is not known who is a broker.
        OSError: an address is taken.
    """

    def __init__(
        self,
        broker_id: int,
        listeners: Sequence[Listener],
        config: ServerConfig,
        exposure: Exposure = LOCAL,
        faults: Sequence[RequestFaults] = (),
        advertised: Mapping[str, tuple[str, int]] | None = None,
        user: str | None = None,
    ) -> None:
        advertised = advertised or {}
        unknown = advertised.keys() - {listener.name for listener in listeners}
        if unknown:
            raise ConfigError(f"advertised.listeners names {min(unknown)}, which is no listener")
        self._config = config
        self._peers = BrokerPeers.of(config.network, listeners, user)
        self._apis: BrokerApis | None = None
        for listener in listeners:
            has_other = exposure.advertised_host is not None or listener.name in advertised
            if listener.host in ANY_ADDRESS and not has_other:
                raise ConfigError(
                    f"listener {listener.name} is bound to all addresses: give the host that "
                    "clients are to use (--advertise HOST)"
                )
        self._faults = tuple(each.pending for each in faults)
        handler: RequestHandler = self._handle
        for each in faults:
            handler = each.around(broker_id, handler)
        self._network = NetworkServer(
            listeners,
            handler,
            config.network,
            is_quick=is_quick,
            credentials=exposure.credentials,
            allow_plaintext=exposure.allow_plaintext,
            name=f"kafka-{broker_id}",
        )
        bound = self._network.bound_addresses
        self.endpoints = tuple(
            Endpoint(
                listener.name,
                *advertised.get(
                    listener.name,
                    (exposure.advertised_host or listener.host, bound[listener.name][1]),
                ),
                listener.security_protocol.value,
            )
            for listener in listeners
        )

    @property
    def bound_addresses(self) -> Mapping[str, tuple[str, int]]:
        """Host and port of each listener's socket."""
        return self._network.bound_addresses

    @property
    def groups(self) -> GroupCoordinator | None:
        """None before ``serve``."""
        return None if self._apis is None else self._apis.groups

    def samples(self) -> Iterator[Sample | Histogram]:
        """Its samples for the metrics; any thread may ask."""
        yield from network_samples(self._network.metrics())
        if self._apis is not None:
            yield from group_samples(self._apis.groups)
            yield from transaction_samples(self._apis.transactions)

    def serve(self, broker: Broker) -> None:
        """Take requests for ``broker``, once."""
        config = self._config
        self._apis = kafka_apis(
            broker,
            config.apis,
            config.groups,
            config.transactions,
            (config.network,),
            ClientQuotas(config.network, broker.runtime.now_ms),
            self._peers,
            self._faults,
        )
        self._network.start(self._apis.fast_paths)

    def _handle(self, received: ReceivedRequest, respond: Respond) -> None:
        apis = self._apis
        if apis is None:
            respond(CLOSE)
        else:
            apis.apis.handle(received, respond)

    def close(self, grace_ms: int) -> None:
        """Take no more requests, and answer those in process within ``grace_ms``. Idempotent."""
        if self._apis is not None:
            self._apis.close()
        self._network.close(grace_ms)


class RequestListeners:
    """Opens the listeners of each broker in each of its lives, always at the same addresses.

    Args:
        listeners: of every broker. Port 0 takes a free port for each broker, which keeps it. Any
            other port is that of the first broker, and the next ones take the ports after it.
        broker_ids: in the order of their ports.
        config: for a cluster of these brokers (``ServerConfig.of_cluster``).
        refused: requests that are answered with POLICY_VIOLATION, which no client repeats.
    Attributes:
        faults: what requests to any of the brokers meet; nothing at first.
        opened: those of each broker in its latest life.
    """

    def __init__(
        self,
        listeners: Sequence[Listener],
        broker_ids: Sequence[int],
        config: ServerConfig,
        exposure: Exposure = LOCAL,
        refused: Iterable[ApiKey] = (),
    ) -> None:
        self.faults = RequestFaults()
        self._refusals = RequestFaults()
        for api_key in refused:
            self._refusals.fail(api_key, error=ErrorCode.POLICY_VIOLATION, times=None)
        self.opened: dict[int, KafkaServer] = {}
        config = config.of_cluster(len(broker_ids))
        self._config = config._replace(network=config.network.with_absolute_paths())
        self._exposure = exposure
        listeners = with_inter_broker(listeners, config.network.inter_broker_listener_name)
        bound = [(each.name, (each.host, each.port)) for each in listeners]
        for name, (host, port) in [*bound, *config.node.advertised.items()]:
            check_ports(f"{name}://{host}:{port}", port, len(broker_ids))
        self._listeners, self._advertised = listeners, config.node.advertised
        self._places = {broker_id: at for at, broker_id in enumerate(broker_ids)}
        self._ports: dict[tuple[int, str], int] = {}  # that each broker has got
        each_address = [
            (host, port + at)
            for host, port in self._advertised.values()
            for at in self._places.values()
        ]
        if len(set(each_address)) < len(each_address):
            raise ConfigError(
                "advertised.listeners: each next broker has the ports that follow, so that two "
                "listeners have one address"
            )

    def __call__(self, broker_id: int) -> KafkaServer:
        """See ``OpenRequestListener``."""
        at = self._places[broker_id]
        server = KafkaServer(
            broker_id,
            [
                each._replace(
                    port=self._ports.get((broker_id, each.name), each.port and each.port + at)
                )
                for each in self._listeners
            ],
            self._config,
            self._exposure,
            (self._refusals, self.faults),
            {name: (host, port + at) for name, (host, port) in self._advertised.items()},
        )
        self.opened[broker_id] = server
        for name, (_, port) in server.bound_addresses.items():
            self._ports[broker_id, name] = port
        return server
