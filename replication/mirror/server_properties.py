"""The ``server.properties`` with which a Kafka starts on a directory that was promoted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from checkpoints.meta_properties import escape
from replication.common.addresses import address_of
from replication.common.internal_topics import GROUP_METADATA, TRANSACTION_STATE


class Listeners(NamedTuple):
    """Where the Kafka listens: for clients, and for the controllers' quorum, which it is alone."""

    host: str = "127.0.0.1"
    port: int = 9092
    controller_port: int = 9093


_COUNTS = {
    GROUP_METADATA: "offsets.topic.num.partitions",
    TRANSACTION_STATE: "transaction.state.log.num.partitions",
}


def server_properties(
    log_dir: str, node_id: int, listeners: Listeners, counts: Mapping[str, int]
) -> str:
    """
    Args:
        counts: of the partitions of each topic that is there.
    """
    clients = address_of(listeners.host, listeners.port)
    controller = address_of(listeners.host, listeners.controller_port)
    keys = {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "listeners": f"PLAINTEXT://{clients},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{clients}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"{node_id}@{controller}",
        "log.dirs": log_dir,
        # One node has one replica of each partition.
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
    }
    keys |= {key: str(counts[topic]) for topic, key in _COUNTS.items() if topic in counts}
    lines = [f"{key}={escape(value)}\n" for key, value in keys.items()]
    return "# Kafka 4 starts on this directory with it: a broker that is its own controller.\n" + (
        "".join(lines)
    )
