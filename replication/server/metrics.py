"""Metrics of a broker's front: its network, its groups and its transactions.

Names are Kafka's MBeans, as in ``replication.broker.metrics``. A value without a name in Kafka
stands beside those that it belongs to. Everything is read at each scrape, without a lock that
requests need.
"""

from __future__ import annotations

from collections.abc import Iterator

from replication.broker.metrics import Histogram, Sample
from replication.common.error_codes import error_name
from replication.coordinators.groups.coordinator import GroupCoordinator
from replication.coordinators.groups.states import GroupState
from replication.coordinators.runtime import CoordinatorRuntime, ShardState
from replication.coordinators.transactions.coordinator import TransactionCoordinator
from replication.coordinators.transactions.state import TransactionState
from replication.network.metrics import (
    OTHER_VERSION,
    CloseReason,
    NetworkMetrics,
    RequestPhase,
)
from replication.protocol import schema

_API_NAMES = {int(api.key): api.name for api in schema.APIS.values()}
_SOCKETS = "server_socket_server_metrics"
_REQUESTS = "network_RequestMetrics"
_SHARD_STATES = (ShardState.LOADING, ShardState.ACTIVE, ShardState.UNREADABLE)


def network_samples(found: NetworkMetrics) -> Iterator[Sample | Histogram]:
    """Connections, bytes and requests."""
    for name, listener in found.listeners.items():
        of = ("listener", name)
        closed = sum(listener.closed.values())
        yield Sample(f"{_SOCKETS}_connection_count", listener.opened - closed, (of,))
        counts = {
            "connection_creation": listener.opened,
            "incoming_byte": listener.bytes_in,
            "outgoing_byte": listener.bytes_out,
        }
        for what, count in counts.items():
            yield Sample(f"{_SOCKETS}_{what}", count, (of,), is_counter=True)
        for reason in CloseReason:
            why = ("reason", reason.value)
            count = listener.closed[reason]
            yield Sample(f"{_SOCKETS}_connection_close", count, (of, why), is_counter=True)
    for refusal, count in found.refused.items():
        why = ("reason", refusal.value)
        yield Sample(f"{_SOCKETS}_connection_refused", count, (why,), is_counter=True)
    yield Sample("network_RequestChannel_RequestQueueSize", found.queued)
    yield Sample("network_SocketServer_MemoryPoolUsed", found.memory_used)
    if found.memory_bound:
        free = max(0, found.memory_bound - found.memory_used)
        yield Sample("network_SocketServer_MemoryPoolAvailable", free)
    for key, api in sorted(found.apis.items()):
        request = ("request", _API_NAMES.get(key, str(key)))
        for version, count in sorted(api.versions.items()):
            text = "other" if version == OTHER_VERSION else str(version)
            labels = (request, ("version", text))
            yield Sample(f"{_REQUESTS}_Requests", count, labels, is_counter=True)
        for code, count in sorted(api.errors.items()):
            labels = (request, ("error", error_name(code)))
            yield Sample(f"{_REQUESTS}_Errors", count, labels, is_counter=True)
        for at, phase in enumerate(RequestPhase):
            name = f"{_REQUESTS}_{phase.value}"
            yield Histogram(name, api.buckets(at), api.sums_ns[at] / 1e6, (request,))


def group_samples(groups: GroupCoordinator) -> Iterator[Sample]:
    """Groups by state, and what they have done."""
    prefix, states = "coordinator_group_GroupMetadataManager_NumGroups", groups.states
    yield Sample(prefix, sum(states.values()))
    for state in GroupState:
        yield Sample(f"{prefix}{state.value}", states[state])
    prefix = "server_group_coordinator_metrics"
    counts = {
        "group_completed_rebalance": groups.stats.completed_rebalances,
        "offset_commit": groups.stats.committed_offsets,
        "offset_expiration": groups.stats.expired_offsets,
    }
    for name, count in counts.items():
        yield Sample(f"{prefix}_{name}", count, is_counter=True)
    yield from _runtime(prefix, groups.runtime)


def transaction_samples(transactions: TransactionCoordinator) -> Iterator[Sample]:
    """Transactional ids by state."""
    prefix, states = "server_transaction_coordinator_metrics", transactions.states
    for state in TransactionState:
        labels = (("state", state.kafka_name),)
        yield Sample(f"{prefix}_transactional_id_count", states[state], labels)
    yield from _runtime(prefix, transactions.runtime)


def _runtime(prefix: str, runtime: CoordinatorRuntime) -> Iterator[Sample]:
    """Partitions of the internal topic that this broker coordinates, and their loading."""
    states = runtime.states
    for state in _SHARD_STATES:
        yield Sample(f"{prefix}_num_partitions", states[state], (("state", state.value),))
    yield Sample(f"{prefix}_waiting_requests", runtime.waiting)
    yield Sample(f"{prefix}_partition_load", runtime.loads, is_counter=True)
    yield Sample(f"{prefix}_partition_load_time_ms", runtime.load_ms, is_counter=True)
