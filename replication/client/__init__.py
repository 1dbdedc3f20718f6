"""Producers and consumers: event-driven cores, and blocking clients around them.

They behave as Kafka's clients do. Metadata is requested again when a leader has moved. What may
succeed later is retried after growing pauses. An idempotent producer leaves no duplicates (KIP-98,
KIP-360). A consumer notices a truncation or a topic that was created again (KIP-320, KIP-516).
``reactions`` has the meaning of each error code.

The cores, ``ProducerCore`` and ``ConsumerCore``, never wait: answers and timers reach them on
actors of a ``Runtime``, they send through a ``Transport``, and time and randomness come only from
the runtime. ``Producer`` and ``Consumer`` put threads around them. A simulation drives them like a
service without threads::

    metadata = Metadata(runtime, transport, brokers)      # brokers() -> ids that may be asked
    producer = ProducerCore(runtime, transport, metadata, ProducerConfig(idempotent=True))
    producer.send(tp, [(None, b"value")], on_sent)        # on_sent(SendResult), once, on an actor
    consumer = ConsumerCore(runtime, transport, metadata, [tp], ConsumerConfig(reset=EARLIEST))
    consumer.poll(50, on_polled)                          # on_polled(PollResult), once; then again

One runtime is one process: what the simulation does to a process it does to its clients.
``SendResult.outcome`` says what the producer knows: ACKNOWLEDGED, NOT_WRITTEN or UNKNOWN. ``stamp``
is the producer id, epoch and sequence with which the batch was last sent. A core is not closed: it
stops with its runtime.
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
    "reactions",
]
