"""What happens to a directory before it is copied: lives of a broker, each ended by ``kill -9``.

Everything follows from a seed but the clock, ids and where batches end.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.adopt.kafkas import Node
from tests.adopt.reading import WHILE_COPIED
from tests.support.until import patience, until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
KEYS = 40  # of the compacted topic
SEGMENT = 1 << 20  # the smallest that a broker takes
VALUE_MAX = 3000
OPEN_MS = 20_000  # of a transaction; who adopts one waits for it
IDLE = {"log_level": 0, "error_cb": lambda error: None}  # a killed broker is no news

Settings = dict[str, Any]


class Plan(NamedTuple):
    """How a directory came about.

    Attributes:
        lives: starts of the broker.
        ends_clean: the last life ends by SIGTERM, with a transaction open.
        copied_live: the directory is a copy that was made, file by file, while records and topics
            came. Kafka is given the same copy.
    """

    release: str
    lives: int
    ends_clean: bool = False
    copied_live: bool = False


PLANS: Mapping[str, Plan] = {
    "killed": Plan("4.3", 9),
    "restarted": Plan("4.3", 15, ends_clean=True),
    "killed-3.9": Plan("3.9", 4),
    "zookeeper-3.9": Plan("3.9-zookeeper", 3),
    "zookeeper-2.8": Plan("2.8", 3),
    "copied-live": Plan("4.3", 2, copied_live=True),
    "short": Plan("4.3", 2),
}

TOPICS: Mapping[str, tuple[int, Mapping[str, str]]] = {
    "plain": (3, {}),
    "segments": (1, {"segment.bytes": str(SEGMENT), "retention.ms": "-1"}),
    "compacted": (
        2,
        {
            "cleanup.policy": "compact",
            "segment.bytes": str(SEGMENT),
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": "100",
        },
    ),
    "in-transactions": (4, {"max.message.bytes": "2000000"}),
    "copied": (2, {}),
    "stamped": (1, {"message.timestamp.type": "LogAppendTime"}),
    "trimmed": (1, {}),
    "dashes-1.and_more-2": (12, {"compression.type": "zstd"}),
    "deleted-later": (2, {}),
    "made-again": (3, {"retention.ms": "600000000"}),
    "empty": (1, {}),
}


class History:
    """One directory in the making."""

    def __init__(self, plan: Plan, directory: Path, seed: int) -> None:
        self.plan = plan
        self.rng = random.Random(f"{seed} {plan}")
        self.node = Node(plan.release, directory)
        self.acked: dict[tuple[str, int], int] = {}  # the last offset that was acknowledged
        self._lasting: Producer | None = None  # one idempotent producer for all lives
        self._kept: list[Any] = []  # clients that a kill interrupts

    def run(self) -> Node:
        """The node, which does not run any more."""
        try:
            self.node.format()
            for life in range(self.plan.lives):
                self.node.start()
                self._live(life)
                is_last = life == self.plan.lives - 1
                if is_last and self.plan.copied_live:
                    copy = self._copied_live()
                if is_last and self.plan.ends_clean:
                    self.node.stop()
                else:
                    self.node.kill()
                self._kept.clear()
        finally:
            self._lasting = None
            self.node.end()
        return copy if self.plan.copied_live else self.node

    def _copied_live(self) -> Node:
        """A copy beside the directory, of which no two files are of the same moment."""
        producer = self._producer({"enable.idempotence": True})
        admin = AdminClient(self._client())
        moments = iter(range(10**6))

        def copied(source: str, target: str) -> None:
            moment = next(moments)
            producer.produce("plain", b"while copied %d" % moment, partition=moment % 3)
            producer.produce("compacted", b"while copied %d" % moment, b"key-%d" % (moment % KEYS))
            producer.poll(0)
            if moment % 40 == 0:
                self._create(admin, {f"{WHILE_COPIED}{moment}": (2, {})})
            with contextlib.suppress(FileNotFoundError):  # rolled, or deleted
                shutil.copy2(source, target)

        target = self.node.directory.with_name("copied-live")
        shutil.copytree(self.node.directory, target, copy_function=copied)
        (target / "data" / ".lock").unlink(missing_ok=True)
        assert producer.flush(patience()) == 0
        return Node(self.plan.release, target)

    # -- a life --------------------------------------------------------------------------------

    def _live(self, life: int) -> None:
        admin = AdminClient(self._client())
        until(lambda: admin.list_topics(timeout=patience()).controller_id >= 0, "a controller")
        if life == 0:
            self._create(admin, TOPICS)
        self._produce(life)
        self._transactions(life)
        self._groups(life)
        if life == 0:
            _wait(admin.delete_topics(["deleted-later", "made-again"], operation_timeout=30))
            wanted = {"made-again": (1, {"cleanup.policy": "delete,compact"})}
            until(lambda: self._created(admin, wanted), "the old topic is gone")
            self._send(self._producer({"compression.type": "lz4"}), "made-again", 20)
        else:
            _wait(admin.create_partitions([NewPartitions("plain", 3 + life)]))
            _wait(admin.delete_records([TopicPartition("trimmed", 0, 7 * life)]))
            starts = self.node.log_dir / "log-start-offset-checkpoint"
            until(lambda: f"trimmed 0 {7 * life}\n" in starts.read_text(), "it is on file")

    def _create(self, admin: AdminClient, topics: Mapping[str, Any]) -> None:
        made = [NewTopic(name, count, 1, config=dict(c)) for name, (count, c) in topics.items()]
        _wait(admin.create_topics(made))

    def _created(self, admin: AdminClient, topics: Mapping[str, Any]) -> bool:
        try:
            self._create(admin, topics)
        except KafkaException:
            return False  # it is being deleted still
        return True

    def _client(self, settings: Mapping[str, Any] = {}) -> Settings:
        return {"bootstrap.servers": self.node.bootstrap, **IDLE, **settings}

    def _producer(self, settings: Mapping[str, Any] = {}) -> Producer:
        return Producer(self._client({"linger.ms": 3, **settings}))

    def _value(self) -> bytes | None:
        kind = self.rng.random()
        if kind < 0.1:
            return None if kind < 0.05 else b""
        return self.rng.randbytes(8) * self.rng.randrange(1, VALUE_MAX // 8)

    def _headers(self) -> list[tuple[str, bytes | None]]:
        if self.rng.random() < 0.6:
            return []
        names = ("a", "a", "\u00e9\u65e5", "")
        return [(name, self.rng.choice((None, b"", b"x" * 20))) for name in names]

    def _send(
        self, producer: Producer, topic: str, count: int, key: Callable[[], bytes] | None = None
    ) -> None:
        partitions = TOPICS[topic][0] if topic != "made-again" else 1
        for number in range(count):
            producer.produce(
                topic,
                value=self._value(),
                key=key() if key else self.rng.choice((None, b"", b"k%d" % number)),
                partition=self.rng.randrange(partitions),
                timestamp=1_700_000_000_000 + self.rng.randrange(10**9),
                headers=self._headers(),
                on_delivery=self._on_delivery,
            )
            producer.poll(0)
        assert producer.flush(patience()) == 0, f"{topic}: not delivered"

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is None:
            place = message.topic(), message.partition()
            self.acked[place] = max(self.acked.get(place, -1), message.offset())

    # -- records -------------------------------------------------------------------------------

    def _produce(self, life: int) -> None:
        plain = self._producer({"compression.type": CODECS[life % len(CODECS)], "acks": "all"})
        self._send(plain, "plain", 60)
        self._send(plain, "segments", 900)
        self._send(plain, "stamped", 30)
        self._send(plain, "trimmed", 60)
        self._send(plain, "dashes-1.and_more-2", 60)
        once = self._producer({"enable.idempotence": True})
        self._send(once, "plain", 40)
        key = lambda: b"key-%d" % self.rng.randrange(KEYS)  # noqa: E731
        self._send(once, "compacted", 1500, key)
        if self._lasting is None:
            self._lasting = self._producer({"enable.idempotence": True})
        self._send(self._lasting, "plain", 20)
        if life == 0:
            self._send(plain, "deleted-later", 20)
            self._send(plain, "made-again", 20)

    def _transactions(self, life: int) -> None:
        """Committed, aborted, some of ids of earlier lives; one stays open."""
        for name in ("steady", f"of-life-{life}"):
            producer = self._transactional(name)
            for ends_well in (True, False, True):
                producer.begin_transaction()
                self._send(producer, "in-transactions", 25)
                if ends_well:
                    producer.commit_transaction(patience())
                else:
                    producer.abort_transaction(patience())
        left_open = self._transactional("left-open")
        left_open.begin_transaction()
        self._send(left_open, "in-transactions", 15)
        self._kept.append(left_open)
        self._copy(life)

    def _transactional(self, name: str) -> Producer:
        producer = self._producer({"transactional.id": name, "transaction.timeout.ms": OPEN_MS})
        producer.init_transactions(patience())
        return producer

    def _copy(self, life: int) -> None:
        """Consume, transform, produce: the second transaction stays open with its offsets."""
        consumer = self._consumer("copier", {"isolation.level": "read_committed"})
        consumer.assign([TopicPartition("plain", p, 0) for p in range(3)])
        producer = self._transactional("copier")
        for is_last in (False, True):
            producer.begin_transaction()
            self._send(producer, "copied", 10)
            offsets = [TopicPartition("plain", p, 5 * life + p + is_last) for p in range(3)]
            group = consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction(offsets, group, patience())
            if not is_last:
                producer.commit_transaction(patience())
        self._kept += [producer, consumer]

    # -- groups --------------------------------------------------------------------------------

    def _consumer(self, group: str, settings: Mapping[str, Any] = {}) -> Consumer:
        defaults = {"enable.auto.commit": False, "auto.offset.reset": "earliest"}
        return Consumer(self._client({"group.id": group, **defaults, **settings}))

    def _groups(self, life: int) -> None:
        for group in ("noted", f"of-life-{life}"):
            offsets = [
                TopicPartition("plain", p, self.rng.randrange(60), metadata=f"note \u00e9 {life}")
                for p in range(3)
            ]
            consumer = self._consumer(group)
            consumer.commit(offsets=[*offsets, TopicPartition("trimmed", 0, 3)], asynchronous=False)
            consumer.close()
        # Of other names each time: the members of the last life are there for 45 seconds more.
        self._join(f"members-{life}", {"group.instance.id": "static"} if life % 2 else {})
        if self.plan.release == "4.3":
            self._join(f"newer-{life}", {"group.protocol": "consumer"})

    def _join(self, group: str, settings: Settings) -> None:
        """A member that reads and commits, and is there when the broker dies."""
        consumer = self._consumer(group, settings)
        consumer.subscribe(["plain", "stamped"])
        until(lambda: consumer.poll(0.1) is not None, f"{group} has members")
        consumer.commit(asynchronous=False)
        self._kept.append(consumer)


def _wait(futures: Mapping[Any, Any]) -> None:
    for future in futures.values() if isinstance(futures, dict) else futures:
        future.result(patience())
