"""All keys of a server, as in Kafka's ``server.properties``, each for the part that knows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from logstore.common.config import MAX_INT, BrokerConfig, LogConfig, Properties, kafka_key
from logstore.common.errors import ConfigError
from logstore.common.suggestions import unknown
from replication.apis.common.config import ApisConfig
from replication.apis.configs import BROKER_NAMES
from replication.common.config import ReplicationConfig
from replication.common.topic_configs import THROTTLED
from replication.coordinators.groups.config import GroupConfig
from replication.coordinators.transactions.config import TransactionConfig
from replication.network import (
    Listener,
    NetworkConfig,
    parse_addresses,
    parse_listeners,
    parse_protocol_map,
    with_inter_broker,
)

UNSET = -1


@dataclass(frozen=True, slots=True)
class NodeConfig(Properties):
    """The brokers of this process. The keys are those of the first one: the next ones have the ids
    and the ports that follow."""

    node_id: int = kafka_key("node.id", UNSET, UNSET, MAX_INT)
    broker_id: int = kafka_key("broker.id", UNSET, UNSET, MAX_INT)
    advertised_listeners: str = kafka_key("advertised.listeners", "")

    def __post_init__(self) -> None:
        self._check()
        if UNSET not in (self.node_id, self.broker_id) and self.node_id != self.broker_id:
            raise ConfigError(f"node.id = {self.node_id}, and broker.id = {self.broker_id}")
        for name, (host, port) in self.advertised.items():
            if not host or not port:
                raise ConfigError(f"advertised.listeners: {name} needs a host and a port")

    @property
    def is_given(self) -> bool:
        """Whether an id was given."""
        return max(self.node_id, self.broker_id) != UNSET

    @property
    def first_id(self) -> int:
        """0 by default."""
        return max(self.node_id, self.broker_id, 0)

    @property
    def advertised(self) -> dict[str, tuple[str, int]]:
        """Host and port by which clients reach the first broker, by the name of the listener."""
        return parse_addresses("advertised.listeners", self.advertised_listeners)


@dataclass(frozen=True, slots=True)
class ProcessConfig(Properties):
    """The keys of a broker in a process of its own: what other brokers of a process have in
    common, or get by options."""

    listeners: str = kafka_key("listeners", "")
    listener_security_protocol_map: str = kafka_key("listener.security.protocol.map", "")
    security_inter_broker_protocol: str = kafka_key("security.inter.broker.protocol", "")
    log_dirs: tuple[str, ...] = kafka_key("log.dirs", ())
    log_dir: str = kafka_key("log.dir", "")
    broker_rack: str = kafka_key("broker.rack", "")
    zookeeper_connect: str = kafka_key("zookeeper.connect", "")
    zookeeper_session_timeout_ms: int = kafka_key("zookeeper.session.timeout.ms", 18_000, 1)

    def __post_init__(self) -> None:
        self._check()
        if self.log_dirs and self.log_dir:
            raise ConfigError("log.dirs and log.dir: give one of them")

    @property
    def directories(self) -> tuple[str, ...]:
        return self.log_dirs or ((self.log_dir,) if self.log_dir else ())

    def parse_listeners(self, default: Sequence[Listener], inter_broker: str) -> list[Listener]:
        """The listeners, of which one is that of the brokers: the one of that name, else the first
        one with ``security.inter.broker.protocol``, else the first one.

        Raises:
            ConfigError: malformed, or there is no such listener.
        """
        found: Sequence[Listener] = default
        protocols = parse_protocol_map(self.listener_security_protocol_map)
        if self.listeners:
            found = parse_listeners(self.listeners, protocols)
        else:
            found = [
                each._replace(security_protocol=protocols.get(each.name, each.security_protocol))
                for each in default
            ]
        wanted = self.security_inter_broker_protocol
        if inter_broker and wanted:
            raise ConfigError(
                "inter.broker.listener.name and security.inter.broker.protocol: give one of them"
            )
        fitting = [each.name for each in found if wanted in ("", each.security_protocol.value)]
        if not fitting:
            raise ConfigError(f"security.inter.broker.protocol = {wanted!r}: no listener has it")
        return with_inter_broker(found, inter_broker or fitting[0])


NOT_SERVED = frozenset(
    {
        "background.threads",
        "controlled.shutdown.enable",
        "inter.broker.protocol.version",
        "kafka.metrics.polling.interval.secs",
        "kafka.metrics.reporters",
        "log.message.format.version",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "num.replica.alter.log.dirs.threads",
        "replica.socket.receive.buffer.bytes",
        "reserved.broker.max.id",
        "zookeeper.connection.timeout.ms",
        "zookeeper.max.in.flight.requests",
        "zookeeper.set.acl",
        "zookeeper.sync.time.ms",
    }
)
"""Keys that tools write into every ``server.properties``, and that a broker here does without."""

_HOURS, _MINUTES = 3_600_000, 60_000
_IN_MS = {
    "log.retention.minutes": ("log.retention.ms", _MINUTES),
    "log.retention.hours": ("log.retention.ms", _HOURS),
    "log.roll.hours": ("log.roll.ms", _HOURS),
    "log.roll.jitter.hours": ("log.roll.jitter.ms", _HOURS),
}
"""Keys in other units. The one in ms goes before that in minutes, which goes before hours."""


def process_config(
    properties: Mapping[str, object],
) -> tuple[ProcessConfig, ServerConfig, list[str]]:
    """The parts of a ``server.properties``, and the keys in it that are not served.

    Raises:
        ConfigError: as ``ServerConfig.from_properties``.
    """
    of_process = _keys(ProcessConfig())
    own: dict[str, object] = {}
    rest: dict[str, object] = {}
    ignored = []
    for key, value in properties.items():
        if key in NOT_SERVED:
            ignored.append(key)
        elif key not in _IN_MS:
            (own if key in of_process else rest)[key] = value
    for key, (in_ms, unit) in _IN_MS.items():
        if key in properties:
            rest.setdefault(in_ms, _in_ms(key, properties[key], unit))
    return ProcessConfig.from_properties(own), ServerConfig.from_properties(rest), ignored


def _in_ms(key: str, value: object, unit: int) -> int:
    try:
        number = int(str(value))
    except ValueError:
        raise ConfigError(f"{key} must be an integer, not {value!r}") from None
    return number * unit if number >= 0 else number


MOST_REPLICAS = 3
"""The replicas of coordinators' topics, unless the configuration names a number; as in Kafka."""


class ServerConfig(NamedTuple):
    """The parts. ``log`` are the defaults of topics, under topics' own names."""

    log: LogConfig = LogConfig()
    broker: BrokerConfig = BrokerConfig()
    replication: ReplicationConfig = ReplicationConfig()
    network: NetworkConfig = NetworkConfig()
    apis: ApisConfig = ApisConfig()
    groups: GroupConfig = GroupConfig()
    transactions: TransactionConfig = TransactionConfig()
    node: NodeConfig = NodeConfig()

    @classmethod
    def from_properties(cls, properties: Mapping[str, object]) -> ServerConfig:
        """From Kafka's broker-wide keys, such as ``log.retention.ms`` and ``num.partitions``.

        Raises:
            ConfigError: an unknown key, or a value of the wrong type or outside its bounds.
        """
        parts = cls()
        left = dict(properties)
        found = []
        for part in parts:
            assert isinstance(part, Properties)
            names = {_broker_name(part, key): key for key in _keys(part)}
            own = {names[name]: left.pop(name) for name in [*left] if name in names}
            found.append(part.with_properties(own))
        if left:
            every = {_broker_name(part, key) for part in parts for key in _keys(part)}
            raise unknown("configuration key", min(left), every)
        return cls(*found)  # type: ignore[arg-type]

    def of_cluster(self, brokers: int) -> ServerConfig:
        """This, with the number of replicas of coordinators' topics where none is named: three, and
        one on each broker of a smaller cluster."""
        groups, transactions = self.groups, self.transactions
        replicas = min(brokers, MOST_REPLICAS)
        of_offsets = groups.offsets_topic_replication_factor or replicas
        of_transactions = transactions.replication_factor or replicas
        return self._replace(
            groups=replace(groups, offsets_topic_replication_factor=of_offsets),
            transactions=replace(transactions, replication_factor=of_transactions),
        )


def _keys(config: Properties) -> list[str]:
    return [each.metadata["key"] for each in fields(config)]  # type: ignore[arg-type]


def _broker_name(config: Properties, key: str) -> str:
    if not isinstance(config, LogConfig):
        return key
    return "" if key in THROTTLED else BROKER_NAMES.get(key, key)
