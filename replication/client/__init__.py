"""Producers and consumers: event-driven cores, and blocking clients around them.

They behave as Kafka's clients do: metadata is asked for again when a leader has moved, what may
succeed later is tried again after growing pauses, an idempotent producer leaves no duplicates
(KIP-98, KIP-360), and a consumer finds out about a truncation or a topic made anew (KIP-320,
KIP-516). What each error code means is in ``reactions``.

The cores, ``ProducerCore`` and ``ConsumerCore``, wait for nothing: they are told of answers and
timers on actors of a ``Runtime``, send through a ``Transport``, and take time and randomness from
the runtime alone. ``Producer`` and ``Consumer`` put threads around them. A simulation drives them
as a service would that has no threads::

    metadata = Metadata(runtime, transport, brokers)      # brokers() -> ids that may be asked
    producer = ProducerCore(runtime, transport, metadata, ProducerConfig(idempotent=True))
    producer.send(tp, [(None, b"value")], on_sent)        # on_sent(SendResult), once, on an actor
    consumer = ConsumerCore(runtime, transport, metadata, [tp], ConsumerConfig(reset=EARLIEST))
    consumer.poll(50, on_polled)                          # on_polled(PollResult), once; then again

One runtime, one process: whatever the runtime of the simulation does to a process it does to its
clients. ``SendResult.outcome`` says what the producer knows: ACKNOWLEDGED, NOT_WRITTEN or UNKNOWN;
``stamp`` is the producer id, epoch and sequence under which the batch was sent last. A core has no
end: it falls silent with its runtime.
"""

from __future__ import annotations

from replication.client.blocking import Client, Consumer, Producer, RecordMetadata
from replication.client.metadata import ClusterView, Metadata
from replication.client.receiving import ConsumerConfig, ConsumerCore, PollResult
from replication.client.sending import Outcome, ProducerConfig, ProducerCore, SendResult, Stamp

__all__ = [
    "Client",
    "ClusterView",
    "Consumer",
    "ConsumerConfig",
    "ConsumerCore",
    "Metadata",
    "Outcome",
    "PollResult",
    "Producer",
    "ProducerConfig",
    "ProducerCore",
    "RecordMetadata",
    "SendResult",
    "Stamp",
]
