"""Requests and answers on their way over a wire: house values <-> Kafka's messages, once each.

Begin with ``calls``: for each kind of request the message that carries it in a version, and the
house value of its answer. A module for each kind translates it, and the APIs of brokers use the
other halves: ``fetch``, ``produce``, ``offsets``, ``topics``, ``elections``, ``transactions``;
``control`` and ``controller`` have what controllers and brokers say to each other. ``lane`` is one
connection as a state machine, ``transport`` has the sockets of a client or a broker around lanes,
by the values of ``access``, and ``connecting`` makes a ``Client`` of it.
"""

__all__ = [
    "access",
    "calls",
    "connecting",
    "control",
    "controller",
    "elections",
    "fetch",
    "lane",
    "offsets",
    "produce",
    "topics",
    "transactions",
    "transport",
]
