"""Records that were acknowledged to a test, and the look that they are there, once and in order."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection

import confluent_kafka as ck

from checkpoints.types import TopicPartition
from tests.processes.load import DELIVERY_MS, final_log, read_of
from tests.processes.nodes import SOON, Nodes
from tests.support.until import patience

_names = itertools.count()


class Records:
    """One idempotent producer with acks=all.

    Attributes:
        acknowledged: the values of each partition, in order.
    """

    def __init__(self, nodes: Nodes, partitions: int = 3, among: Collection[int] = ()) -> None:
        self.topic = f"records-{next(_names)}"
        self.nodes = nodes
        self.tps = nodes.create_topic(self.topic, partitions, among=among)
        self.acknowledged: defaultdict[TopicPartition, list[bytes]] = defaultdict(list)
        self._numbers = itertools.count()
        self._producer = ck.Producer(
            {
                **SOON,
                "bootstrap.servers": nodes.bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": DELIVERY_MS,
                "linger.ms": 0,
            }
        )

    def append(self, count: int = 10) -> None:
        """So many to each partition, and wait until all are acknowledged."""
        left: list[bytes] = []

        def delivered(error: ck.KafkaError | None, message: ck.Message) -> None:
            assert error is None, error
            read = read_of(message)
            self.acknowledged[read.tp].append(read.value)
            left.pop()

        for tp in self.tps:
            for _ in range(count):
                value = b"%d" % next(self._numbers)
                left.append(value)
                self._producer.produce(
                    tp.topic, value, partition=tp.partition, on_delivery=delivered
                )
        assert self._producer.flush(patience()) == 0
        assert not left

    def check(self, others: frozenset[bytes] = frozenset()) -> None:
        """All are there, once and in order, and nothing else.

        Args:
            others: values that somebody sent, and may be there.
        """
        found = final_log(self.nodes.bootstrap, self.topic, len(self.tps))
        for tp in self.tps:
            values = [value for _, value in found[tp] if value not in others]
            assert values == self.acknowledged[tp], tp
