"""All APIs of one broker, put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Any, NamedTuple

from logstore.common.config import Properties
from replication.apis.absent import AbsentFeatures
from replication.apis.admin import AdminApi
from replication.apis.brokers import BrokersApi
from replication.apis.common.broker_requests import WHOEVER_COMES, BrokerPeers
from replication.apis.common.config import ApisConfig
from replication.apis.common.handlers import Handlers, ReceivedRequest, Reply
from replication.apis.common.waits import MetadataWaits
from replication.apis.configs import ConfigsApi
from replication.apis.controller_requests import OF_CONTROLLER, not_forwarding
from replication.apis.fetch import FetchApi
from replication.apis.groups import CoordinatorType, GroupApis
from replication.apis.kafka_apis import KafkaApis
from replication.apis.metadata import MetadataApi
from replication.apis.offsets import OffsetsApi
from replication.apis.produce import ProduceApi
from replication.apis.produce_fast_path import ProduceFastPath
from replication.apis.topics import TopicsApi
from replication.apis.transactions import TransactionApis
from replication.broker.broker import Broker
from replication.coordinators.groups.config import GroupConfig
from replication.coordinators.groups.coordinator import GroupCoordinator
from replication.coordinators.transactions.config import TransactionConfig
from replication.coordinators.transactions.coordinator import TransactionCoordinator
from replication.network import CLOSE, ClientQuotas, Direction, FastPath
from replication.protocol import ApiKey


class BrokerApis(NamedTuple):
    """The coordinators are started. Their owner closes them before the network.

    Attributes:
        fast_paths: shorter ways past ``apis``, by API key.
    """

    apis: KafkaApis
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    fast_paths: Mapping[int, FastPath]

    def close(self) -> None:
        """Answer all requests that wait for a coordinator."""
        self.groups.close()
        self.transactions.close()


def kafka_apis(
    broker: Broker,
    config: ApisConfig,
    group_config: GroupConfig,
    transaction_config: TransactionConfig,
    others: Sequence[Properties] = (),
    quotas: ClientQuotas | None = None,
    peers: BrokerPeers = WHOEVER_COMES,
    detours: Sequence[Sized] = (),
) -> BrokerApis:
    """Make the APIs of a broker that has not started yet.

    Args:
        others: configurations beside those of the parts here that DescribeConfigs shows.
        quotas: of clients; none by default.
        peers: who is taken for a broker.
        detours: while any of them has anything, no fast path takes a request.
    """
    groups = GroupCoordinator(broker, group_config)
    transactions = TransactionCoordinator(broker, transaction_config)
    topics = {
        CoordinatorType.GROUP: groups.topic,
        CoordinatorType.TRANSACTION: transactions.topic,
    }
    waits = MetadataWaits(broker.broker_id, broker.runtime, broker.metadata)
    configs = (
        broker.config,
        broker.log_manager.broker_config,
        broker.log_manager.config,
        config,
        group_config,
        transaction_config,
        *others,
    )
    produce = ProduceApi(broker)
    areas = (
        produce,
        FetchApi(broker, config),
        OffsetsApi(broker),
        MetadataApi(broker, config),
        TopicsApi(broker, config, waits),
        ConfigsApi(broker, configs, waits),
        AdminApi(broker),
        AbsentFeatures(),
        TransactionApis(broker, transactions, groups.topic),
        GroupApis(broker, groups, topics),
        BrokersApi(broker, lambda received, respond: apis.handle(received, respond)),
    )
    apis = KafkaApis(
        *(not_forwarding(broker, area.handlers) for area in areas),
        quotas=quotas,
        peers=peers,
        is_ready=lambda: broker.metadata.is_complete,
    )
    fast_paths: dict[int, FastPath] = {}
    if quotas is None or quotas.of(Direction.PRODUCE) is None:
        fast_paths[ApiKey.PRODUCE] = ProduceFastPath(broker, produce, tuple(detours)).answer
    groups.startup()
    transactions.startup()
    return BrokerApis(apis, groups, transactions, fast_paths)


def apis_between_brokers(broker: Broker) -> KafkaApis:
    """What brokers ask each other, of a broker whose clients come another way."""
    of_clients: Handlers = dict.fromkeys(OF_CONTROLLER, _of_no_client)
    return KafkaApis(
        FetchApi(broker, ApisConfig()).handlers,
        OffsetsApi(broker).handlers,
        BrokersApi(broker, lambda received, respond: respond(CLOSE)).handlers,
        not_forwarding(broker, of_clients),
        is_ready=lambda: broker.metadata.is_complete,
    )


def _of_no_client(received: ReceivedRequest, message: Any, reply: Reply) -> None:
    reply(CLOSE)
