"""One broker: ``broker`` wires it together; begin there.

``membership`` keeps its session, ``identity`` says whose tree it found, ``controller_channel``
carries its requests to the controller, ``alter_partition`` its changes of the ISR. ``proofs`` has
what its logs prove after a stop, ``configs_from_tree`` what a real Kafka as the controller does not
send, ``metrics`` its numbers, ``stages`` how far it is. Its work is done by the parts that it
wires; it has the order in which they start and stop.
"""

from __future__ import annotations

from replication.broker.broker import Broker, BrokerSettings, BrokerState, Surroundings

__all__ = [
    "Broker",
    "BrokerSettings",
    "BrokerState",
    "Surroundings",
    "broker",
    "controller_channel",
    "identity",
    "metrics",
    "stages",
]
