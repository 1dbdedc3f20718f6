"""Requests that only a broker may send: where a copy is, or how a transaction ended (W-212).

A follower's fetch moves the high watermark, so whoever may send one can have a record acknowledged
that nobody has copied. Kafka asks for the right CLUSTER_ACTION, and takes everybody for a broker
where it has no authorizer. Here the listener decides: brokers have one of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from replication.common.messages import CONSUMER
from replication.protocol import ApiKey
from replication.protocol import messages as wire

LAST_OF_CLIENTS: Mapping[ApiKey, int] = {ApiKey.ADD_PARTITIONS_TO_TXN: 3}
"""Later versions are for brokers alone."""
_FIRST_WITH_REPLICA_STATE = 15


def _has_replica_id(version: int, request: Any) -> bool:
    """Ids below −1 are consumers too: Kafka's tools send −2."""
    return bool(request.replica_id > CONSUMER)


def _is_of_follower(version: int, request: wire.FetchRequest) -> bool:
    if version >= _FIRST_WITH_REPLICA_STATE:
        return request.replica_state.replica_id > CONSUMER
    return request.replica_id > CONSUMER


def _commits(version: int, request: wire.WriteTxnMarkersRequest) -> bool:
    """An operator aborts; only the coordinator knows that a transaction is to be committed."""
    return any(marker.transaction_result for marker in request.markers)


def _is_of_later_version(version: int, request: wire.AddPartitionsToTxnRequest) -> bool:
    return version > LAST_OF_CLIENTS[ApiKey.ADD_PARTITIONS_TO_TXN]


OF_BROKERS: Mapping[ApiKey, Callable[[int, Any], bool]] = {
    ApiKey.FETCH: _is_of_follower,
    ApiKey.LIST_OFFSETS: _has_replica_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _has_replica_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: _is_of_later_version,
    ApiKey.WRITE_TXN_MARKERS: _commits,
}
"""Whether a request, in a version, is one that only a broker may send. Nothing else that is served
over sockets is."""
