"""How far a broker is, as operators see it."""

from __future__ import annotations

from enum import Enum

from replication.broker.broker import Broker, BrokerState


class BrokerStage(Enum):
    """How far a broker is."""

    STARTING = "starting"  # the coordinator is asked who has the id
    RECOVERING = "recovering"  # its logs are opened
    REGISTERING = "registering"
    REGISTERED = "registered"  # with the coordinator
    CAUGHT_UP = "caught up"  # it knows the cluster, and serves clients
    IN_SYNC = "in sync"  # so do its replicas
    STOPPING = "stopping"
    STOPPED = "stopped"


def stage_of(broker: Broker) -> BrokerStage:
    """The stage of a broker whose logs are open."""
    match broker.state:
        case BrokerState.STARTING:
            return BrokerStage.REGISTERING
        case BrokerState.STOPPING | BrokerState.CLOSING:
            return BrokerStage.STOPPING
        case BrokerState.STOPPED:
            return BrokerStage.STOPPED
    if not broker.metadata.is_complete:
        return BrokerStage.REGISTERED
    is_behind = broker.metadata.replicas_out_of_sync()
    return BrokerStage.CAUGHT_UP if is_behind else BrokerStage.IN_SYNC
