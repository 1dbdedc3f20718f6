"""All keys of a server, as in Kafka's ``server.properties``, each for the part that knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import NamedTuple

from logstore.common.config import BrokerConfig, LogConfig, Properties
from logstore.common.errors import ConfigError
from replication.apis.common.config import ApisConfig
from replication.apis.configs import BROKER_NAMES, NOT_OF_BROKERS
from replication.common.config import ReplicationConfig
from replication.coordinators.groups.config import GroupConfig
from replication.coordinators.transactions.config import TransactionConfig
from replication.network import NetworkConfig

REPLICAS_OF_COORDINATORS = (
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
)


class ServerConfig(NamedTuple):
    """The parts. ``log`` are the defaults of topics, under topics' own names."""

    log: LogConfig = LogConfig()
    broker: BrokerConfig = BrokerConfig()
    replication: ReplicationConfig = ReplicationConfig()
    network: NetworkConfig = NetworkConfig()
    apis: ApisConfig = ApisConfig()
    groups: GroupConfig = GroupConfig()
    transactions: TransactionConfig = TransactionConfig()

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, object], brokers: int | None = None
    ) -> ServerConfig:
        """From Kafka's broker-wide keys, such as ``log.retention.ms`` and ``num.partitions``.

        Args:
            brokers: how many the cluster will have. Of fewer than three each has a replica of the
                topics of coordinators, unless ``properties`` say otherwise.
        Raises:
            ConfigError: an unknown key, or a value of the wrong type or outside its bounds.
        """
        parts = cls()
        small = brokers is not None and brokers < GroupConfig().offsets_topic_replication_factor
        left = {**(dict.fromkeys(REPLICAS_OF_COORDINATORS, brokers) if small else {}), **properties}
        found = []
        for part in parts:
            assert isinstance(part, Properties)
            names = {_broker_name(part, key): key for key in _keys(part)}
            own = {names[name]: left.pop(name) for name in [*left] if name in names}
            found.append(part.with_properties(own))
        if left:
            raise ConfigError(f"unknown configuration key {min(left)!r}")
        return cls(*found)  # type: ignore[arg-type]


def _keys(config: Properties) -> list[str]:
    return [each.metadata["key"] for each in fields(config)]  # type: ignore[arg-type]


def _broker_name(config: Properties, key: str) -> str:
    if not isinstance(config, LogConfig):
        return key
    return "" if key in NOT_OF_BROKERS else BROKER_NAMES.get(key, key)


__all__ = [
    "ServerConfig",
]
