"""All keys of a server, as in Kafka's ``server.properties``, each for the part that knows it."""

from __future__ import annotations

from collections.abc import Mapping
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
from replication.network import NetworkConfig, parse_addresses

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
