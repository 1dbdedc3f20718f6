"""Addresses of brokers for a client: of the listener through which its own request came (W-9)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from replication.common.state import Endpoint
from replication.network import ReceivedRequest
from replication.replica_manager.metadata_cache import MetadataCache

NodeT = TypeVar("NodeT")


def listener_of(received: ReceivedRequest) -> str:
    return received.connection.listener.name


def endpoint_of(metadata: MetadataCache, broker_id: int, listener: str) -> Endpoint | None:
    """The address of a broker's listener; None if the broker is not alive or has none."""
    broker = metadata.live_brokers.get(broker_id)
    return None if broker is None else broker.registration.endpoint(listener)


def node_endpoints(
    metadata: MetadataCache,
    broker_ids: Iterable[int],
    listener: str,
    kind: Callable[[int, str, int, str | None], NodeT],
) -> tuple[NodeT, ...]:
    """Addresses to go with the leaders that an answer names (KIP-951).

    Args:
        kind: the structure of the response, of node id, host, port and rack.
    """
    found = []
    for broker_id in sorted({each for each in broker_ids if each >= 0}):
        endpoint = endpoint_of(metadata, broker_id, listener)
        if endpoint is not None:
            rack = metadata.rack(broker_id)
            found.append(kind(broker_id, endpoint.host, endpoint.port, rack))
    return tuple(found)
