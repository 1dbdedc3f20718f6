"""Requests and answers on their way over a wire: house values <-> Kafka's messages, once each.

Begin with ``calls``: for each kind of request the message that carries it in a version, and the
house value of its answer. ``fetch``, ``produce``, ``offsets``, ``topics``, ``elections`` and
``transactions`` translate the larger ones; the APIs of brokers use their other halves. ``lane`` is
one connection as a state machine, ``transport`` has the sockets of a client around lanes, and
``connecting`` makes a ``Client`` of it.
"""

__all__ = [
    "calls",
    "connecting",
    "elections",
    "fetch",
    "lane",
    "offsets",
    "produce",
    "topics",
    "transactions",
    "transport",
]
