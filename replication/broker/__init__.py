"""One broker: ``broker`` wires it together.

``membership`` keeps its session, ``controller_channel`` and ``forwarding`` carry its requests to
the controller, ``alter_partition`` its changes of the ISR. ``metrics`` shows its state.
"""

from __future__ import annotations

from replication.broker.broker import Broker, BrokerState

__all__ = ["Broker", "BrokerState", "broker", "controller_channel", "identity", "metrics"]
