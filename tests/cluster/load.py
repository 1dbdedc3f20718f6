"""Producers that count what was acknowledged, a consumer that remembers what it read, and the look
at the end: nothing lost, nothing twice, everything in order, all replicas the same bytes."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from checkpoints.types import TopicPartition
from replication.client import Producer
from replication.common.errors import ReplicationError
from replication.embedded.cluster import Cluster
from tests.support.until import patience

MAX_BATCH = 4
ATTEMPT_S = 5.0
DELIVERY_S = 120.0  # a sender goes on with a batch, and only its producer may send it again

Values = dict[int, list[bytes]]
"""What is in a topic, by partition."""


class Failure(AssertionError):
    """The cluster broke a promise."""


class Lane(NamedTuple):
    """What one sender sends to one partition: values numbered from 0."""

    sender: str
    partition: int

    def value(self, number: int) -> bytes:
        return f"{self.sender}:{number}".encode()


class Count(NamedTuple):
    """Of one lane: values below ``acked`` are acknowledged, those up to ``sent`` may be there."""

    acked: int = 0
    sent: int = 0


Counts = Mapping[Lane, Count]


class Sender(threading.Thread):
    """One idempotent producer; a batch is sent until it is acknowledged.

    Args:
        on_ack: told of a batch before the next one is sent.
    """

    def __init__(
        self,
        name: str,
        producer: Producer,
        topic: str,
        partitions: int,
        on_ack: Callable[[Lane, Count], None] = lambda lane, count: None,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.counts: dict[Lane, Count] = {}
        self.acks = 0
        self.error: BaseException | None = None
        self.stopping = threading.Event()
        self._producer = producer
        self._topic = topic
        self._lanes = [Lane(name, partition) for partition in range(partitions)]
        self._on_ack = on_ack

    def run(self) -> None:
        rng = random.Random(self.name)
        try:
            while not self.stopping.is_set():
                self._send(rng.choice(self._lanes), rng.randint(1, MAX_BATCH))
        except BaseException as error:
            self.error = error

    def _send(self, lane: Lane, size: int) -> None:
        first = self.counts.get(lane, Count()).acked
        self.counts[lane] = Count(first, first + size)
        records = [(None, lane.value(number)) for number in range(first, first + size)]
        self._producer.send_batch(self._topic, lane.partition, records)
        self.counts[lane] = Count(first + size, first + size)
        self.acks += 1
        self._on_ack(lane, self.counts[lane])


class Reader(threading.Thread):
    """A consumer beside the producers: what it saw must be there at the end, at the same place."""

    def __init__(self, cluster: Cluster, tps: Iterable[TopicPartition]) -> None:
        super().__init__(name="reader", daemon=True)
        self.seen: defaultdict[int, list[bytes]] = defaultdict(list)
        self.error: BaseException | None = None
        self.stopping = threading.Event()
        self._consumer = cluster.consumer(*tps, reset=None, timeout_s=ATTEMPT_S)
        for tp in tps:
            self._consumer.seek(tp, 0)

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                for tp, record in self._consumer.poll(100):
                    self.seen[tp.partition].append(record.value or b"")
            except ReplicationError as error:
                if not error.retriable:
                    self.error = error
                    return
            except BaseException as error:
                self.error = error
                return


class Load:
    """``senders`` threads that produce to all partitions of a topic, and one that reads."""

    def __init__(self, cluster: Cluster, topic: str, senders: int) -> None:
        self.cluster = cluster
        self.topic = topic
        self.tps = cluster.client.partitions(topic)
        self.reader = Reader(cluster, self.tps)
        self.senders = [
            Sender(
                f"sender-{number}",
                cluster.producer(idempotent=True, delivery_timeout_s=DELIVERY_S),
                topic,
                len(self.tps),
            )
            for number in range(senders)
        ]
        for thread in (*self.senders, self.reader):
            thread.start()

    def check_alive(self) -> None:
        """
        Raises:
            Failure: a client met an error that it should not have.
        """
        for thread in (*self.senders, self.reader):
            if thread.error is not None:
                raise Failure(f"{thread.name}: {thread.error!r}") from thread.error

    def wait_for_progress(self) -> None:
        """Until each sender had two acknowledgements, the second one for a batch that was begun
        after the call."""
        before = [sender.acks for sender in self.senders]

        def went_on() -> bool:
            self.check_alive()
            return all(s.acks >= n + 2 for s, n in zip(self.senders, before, strict=True))

        self.cluster.wait_until(went_on, "every sender is served", patience())

    def stop(self) -> None:
        threads = (*self.senders, self.reader)
        for thread in threads:
            thread.stopping.set()
        for thread in threads:
            thread.join()
        self.check_alive()

    @property
    def counts(self) -> dict[Lane, Count]:
        return {lane: count for sender in self.senders for lane, count in sender.counts.items()}


def values_of(cluster: Cluster, topic: str) -> Values:
    """Everything that is committed."""
    found = cluster.read_all(topic)
    return {p: [record.value or b"" for record in records] for p, records in found.items()}


def check_values(values: Mapping[int, list[bytes]], counts: Counts) -> int:
    """Everything acknowledged is there once and in order, and nothing that nobody sent; how many.

    Raises:
        Failure: which lane, and what is wrong.
    """
    lanes: defaultdict[Lane, list[int]] = defaultdict(list)
    for partition, found in values.items():
        for value in found:
            sender, _, number = value.decode().rpartition(":")
            lanes[Lane(sender, partition)].append(int(number))
    for lane, count in counts.items():
        numbers = lanes.pop(lane, [])
        if numbers not in (list(range(count.acked)), list(range(count.sent))):
            missing = sorted(set(range(count.acked)) - set(numbers))
            raise Failure(
                f"{lane}: {count.acked} acknowledged, {count.sent} sent, {len(numbers)} found; "
                f"missing {missing[:10]}; in order: {numbers == sorted(set(numbers))}"
            )
    if lanes:
        raise Failure(f"nobody sent this: {dict(lanes)}")
    return sum(map(len, values.values()))


def check_prefix(seen: Mapping[int, list[bytes]], values: Values) -> None:
    """What was read once stays where it was.

    Raises:
        Failure: it did not.
    """
    for partition, earlier in seen.items():
        if values[partition][: len(earlier)] != earlier:
            at = next(
                (
                    i
                    for i, pair in enumerate(zip(earlier, values[partition], strict=False))
                    if pair[0] != pair[1]
                ),
                len(values[partition]),
            )
            raise Failure(f"partition {partition}: what was read at offset {at} is not there now")


def check_replicas(cluster: Cluster, tps: Iterable[TopicPartition]) -> None:
    """I-22: all replicas are in sync, and hold the same bytes up to the same end.

    Raises:
        Failure: the bytes differ.
        TimeoutError: they do not get in sync.
    """
    for tp in tps:
        leader = cluster.replica(tp, cluster.wait_for_leader(tp, timeout_s=patience()))
        cluster.wait_for_isr(tp, leader.replicas, patience())
        replicas = [cluster.replica(tp, broker_id) for broker_id in leader.replicas]

        def level(replicas: list = replicas) -> bool:
            ends = {(r.log_end_offset, r.high_watermark) for r in replicas}
            return len(ends) == 1 and len(set(*ends)) == 1

        cluster.wait_until(level, f"replicas of {tp} are level", patience())
        images = {
            b"".join(s.log.read_at(0, s.size) for s in replica.local_log().segments)
            for replica in replicas
        }
        if len(images) != 1:
            raise Failure(f"{tp}: replicas differ")
