"""Requests and answers on their way over a wire: house values <-> Kafka's messages, once each.

Begin with ``calls``: for each kind of request the message that carries it in a version, and the
house value of its answer. ``fetch``, ``produce`` and ``offsets`` translate the larger ones,
``control`` and ``controller`` what controllers and brokers say to each other; the APIs of brokers
use their other halves. ``lane`` is one connection as a state machine,
``transport`` has the sockets of a client around lanes, and ``connecting`` makes a ``Client`` of it.
"""

__all__ = [
    "calls",
    "connecting",
    "control",
    "controller",
    "fetch",
    "lane",
    "offsets",
    "produce",
    "transport",
]
