"""Kafka's APIs over a ``Broker`` (Kafka's ``KafkaApis``).

Messages of the protocol come in, and messages of the protocol go out.

``KafkaApis`` takes requests from the network and gives each to a handler. ``common.handlers`` says
what a handler is. Each area (produce, fetch, groups, …) has a module, and ``assembly`` puts them
together.
"""

from __future__ import annotations

from replication.apis.common.handlers import Handler, Handlers, Reply
from replication.apis.kafka_apis import KafkaApis, is_quick

__all__ = [
    "Handler",
    "Handlers",
    "KafkaApis",
    "Reply",
    "assembly",
    "common",
    "configs",
    "is_quick",
]
