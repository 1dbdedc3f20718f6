"""The state of a running cluster: brokers, partitions, groups and their lag."""

from __future__ import annotations

from typing import NamedTuple

from replication.admin.admin_client import AdminClient
from replication.admin.groups import GroupStatus, list_groups, with_lag
from replication.admin.topics import UNKNOWN, PartitionStatus, topic_statuses, with_offsets
from replication.common.error_codes import ErrorCode

_UNREACHED = (ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION)


class BrokerStatus(NamedTuple):
    broker_id: int
    host: str
    port: int
    is_controller: bool
    problem: str  # why it could not be asked; empty


class ClusterStatus(NamedTuple):
    cluster_id: str
    brokers: tuple[BrokerStatus, ...]
    partitions: tuple[PartitionStatus, ...]
    groups: tuple[GroupStatus, ...]


def cluster_status(client: AdminClient) -> ClusterStatus:
    """Ask every broker; one that does not answer is in the result with the reason.

    Raises:
        WireError: none of them answers.
    """
    metadata = client.metadata()
    groups, failed = list_groups(client, offsets=True)
    problems = {broker: str(answer.message or answer) for broker, answer in failed.items()}
    # After what was committed: a busy consumer must not seem to be ahead of the log.
    known = [
        each for answer in topic_statuses(metadata).values() for each in answer.value.partitions
    ]
    partitions, not_known = with_offsets(client, known)
    for each in partitions:
        answer = not_known.get(each.tp)
        if answer is not None and answer.code in _UNREACHED:
            problems.setdefault(each.leader, str(answer.message))
    ends = {e.tp: e.high_watermark for e in partitions if e.high_watermark != UNKNOWN}
    brokers = tuple(
        BrokerStatus(
            broker.node_id,
            broker.host,
            broker.port,
            broker.node_id == metadata.controller_id,
            problems.get(broker.node_id, ""),
        )
        for broker in sorted(metadata.brokers, key=lambda broker: broker.node_id)
    )
    lagging = tuple(with_lag(group, ends) for group in groups)
    return ClusterStatus(metadata.cluster_id or "", brokers, tuple(partitions), lagging)
