"""Clients of a cluster of processes, and what they did and saw: one ``History`` for each topic.

Beside the transactional writers, the copier and the reader of ``tests.clients.transactions``: an
idempotent producer and a consumer group of librdkafka, and both kinds of producer of Kafka's own
Java client. Times are those of one monotonic clock, that of the machine.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka as ck

from checkpoints.types import TopicPartition
from tests.clients.endurance import LIBRARIES, ONCE, TRANSACTED, Lane
from tests.clients.matrix.test_matrix import PARTITIONS as LANE_PARTITIONS
from tests.clients.transactions import (
    COPIES,
    PARTITIONS,
    SOURCE,
    Copier,
    Reader,
    Worker,
    Writer,
)
from tests.processes.checks import Commit, EndRead, Poll
from tests.processes.nodes import SOON
from tests.support.transactional_histories import Fate, History, Log, Read, Transaction
from tests.support.until import patience, until

APPENDS, PROBES = "appends", "probes"
GROUP = "members"
DELIVERY_MS = 120_000
LEFT = 200  # records of an appender that wait for their acknowledgement, at most


def _offset(message: ck.Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset


def read_of(message: ck.Message) -> Read:
    """A record that has no error."""
    topic, partition, value = message.topic(), message.partition(), message.value()
    assert topic is not None
    assert partition is not None
    assert value is not None
    return Read(TopicPartition(topic, partition), _offset(message), value)


class Appender(Worker):
    """An idempotent producer of librdkafka: a record at a time, to partitions in turn.

    Args:
        every_s: from record to record.
    """

    def __init__(self, name: str, history: History, bootstrap: str, every_s: float) -> None:
        super().__init__(name, history, bootstrap)
        self._every_s = every_s
        self._lives = itertools.count()
        self._left = 0

    def work(self) -> None:
        while not self.stopping.is_set():
            self._live(f"{self.name}.{next(self._lives)}")

    def _live(self, name: str) -> None:
        """Until it shall stop, or the library gives the producer up."""
        failures: list[ck.KafkaError] = []

        def failed(error: ck.KafkaError) -> None:
            if error.fatal():
                failures.append(error)

        producer = ck.Producer(
            {
                **SOON,
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": DELIVERY_MS,
                "linger.ms": 1,
                "error_cb": failed,
            }
        )
        self._left = 0
        for number in itertools.count():
            if self.stopping.is_set() or failures:
                break
            self._send(producer, name, number)
            producer.poll(self._every_s)
            while self._left > LEFT and not self.stopping.is_set() and not failures:
                producer.poll(0.1)
        producer.flush(DELIVERY_MS / 1000)
        producer.purge()
        producer.flush(1)

    def _send(self, producer: ck.Producer, name: str, number: int) -> None:
        tp = TopicPartition(APPENDS, number % PARTITIONS)
        value = f"{name}:{number}".encode()
        one = self.history.begin(name)
        one.writes.append((tp, value))
        one.began = time.monotonic()

        def delivered(error: ck.KafkaError | None, message: ck.Message) -> None:
            self._left -= 1
            if error is None:
                one.ended = time.monotonic()
                one.fate = Fate.COMMITTED
                one.offsets[value] = _offset(message)

        producer.produce(tp.topic, value, partition=tp.partition, on_delivery=delivered)
        self._left += 1


class Member(Worker):
    """A member of a group of librdkafka, which commits what it read, and then reads on."""

    assignments = itertools.count(1)

    def __init__(self, name: str, history: History, bootstrap: str) -> None:
        super().__init__(name, history, bootstrap)
        self.polls: list[Poll] = []
        self.commits: list[Commit] = []
        self._assignment = 0

    def work(self) -> None:
        consumer = ck.Consumer(
            {
                **SOON,
                "bootstrap.servers": self.bootstrap,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
            }
        )

        def assigned(consumer: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
            self._assignment = next(Member.assignments)

        consumer.subscribe([APPENDS], on_assign=assigned, on_revoke=assigned, on_lost=assigned)
        while not self.stopping.is_set():
            self._step(consumer)
        consumer.close()

    def _step(self, consumer: ck.Consumer) -> None:
        """Poll some records, one by one, of one assignment; and commit what comes after them."""
        began = time.monotonic()
        reads: list[Read] = []
        assignment = self._assignment
        message = consumer.poll(0.2)
        if self._assignment != assignment:  # it changed in the call, before the record
            assignment = self._assignment
        while message is not None:
            if not message.error():
                reads.append(read_of(message))
            if len(reads) >= 100:
                break
            message = consumer.poll(0)
            if self._assignment != assignment:
                self._polled(assignment, began, reads)
                began, reads, assignment = time.monotonic(), [], self._assignment
        self._polled(assignment, began, reads)
        if reads:
            self._commit(consumer, {read.tp: read.offset + 1 for read in reads})

    def _polled(self, assignment: int, began: float, reads: list[Read]) -> None:
        if reads:
            self.polls.append(Poll(self.name, assignment, began, time.monotonic(), tuple(reads)))

    def _commit(self, consumer: ck.Consumer, offsets: dict[TopicPartition, int]) -> None:
        began = time.monotonic()
        wanted = [ck.TopicPartition(*tp, offset) for tp, offset in offsets.items()]
        try:
            found = consumer.commit(offsets=wanted, asynchronous=False)
        except ck.KafkaException:
            return  # another member may have the partitions by now; or nobody knows
        ended = time.monotonic()
        for each in found or ():
            if each.error is None:
                tp = TopicPartition(each.topic, each.partition)
                self.commits.append(Commit(self.name, tp, each.offset, began, ended))


class Prober(Worker):
    """One record with acks=all after the other to each partition of a topic, and the longest time
    without an acknowledgement."""

    def __init__(self, bootstrap: str, partitions: int, every_s: float = 0.1) -> None:
        super().__init__("prober", History(), bootstrap)
        self.times: list[list[float]] = [[] for _ in range(partitions)]
        self._every_s = every_s
        self._due: list[float] = [0.0] * partitions

    def work(self) -> None:
        producer = ck.Producer(
            {
                **SOON,
                "bootstrap.servers": self.bootstrap,
                "acks": "all",
                "retries": 0,
                "message.timeout.ms": 1000,
                "socket.timeout.ms": 1000,
                "request.timeout.ms": 1000,
                "reconnect.backoff.max.ms": 100,
                "topic.metadata.refresh.interval.ms": 500,
                "linger.ms": 0,
            }
        )
        while not self.stopping.is_set():
            now = time.monotonic()
            for partition, due in enumerate(self._due):
                if now >= due:
                    self._due[partition] = now + 60  # the answer decides
                    self._probe(producer, partition)
            producer.poll(0.02)
        producer.flush(2)

    def _probe(self, producer: ck.Producer, partition: int) -> None:
        def answered(error: ck.KafkaError | None, message: ck.Message) -> None:
            now = time.monotonic()
            if error is None:
                self.times[partition].append(now)
                self._due[partition] = now + self._every_s
            else:
                self._due[partition] = now + 0.05

        producer.produce(PROBES, b"probe", partition=partition, on_delivery=answered)

    def absences(self, longer_than_s: float = 0.0) -> list[tuple[float, float, int]]:
        """(seconds, when it began, partition) of the longest times without an answer, longest
        first; one that goes on counts up to now."""
        now = time.monotonic()
        found = [
            (after - before, before, partition)
            for partition, times in enumerate(self.times)
            for before, after in itertools.pairwise([*times, now])
            if after - before > longer_than_s
        ]
        return sorted(found, reverse=True)


class EndReader(Worker):
    """Asks for the end of each partition again and again."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__("end-reader", History(), bootstrap)
        self.reads: list[EndRead] = []
        self._tps = [TopicPartition(topic, p) for p in range(partitions)]

    def work(self) -> None:
        with contextlib.closing(_consumer(self.bootstrap, "read_uncommitted")) as consumer:
            while not self.stopping.wait(0.1):
                for tp in self._tps:
                    began = time.monotonic()
                    end = _end(consumer, tp, 3.0)
                    if end is not None:
                        self.reads.append(EndRead(tp, end, began, time.monotonic()))


def _consumer(bootstrap: str, isolation: str) -> ck.Consumer:
    return ck.Consumer(
        {
            **SOON,
            "bootstrap.servers": bootstrap,
            "group.id": "nobody",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )


def _end(consumer: ck.Consumer, tp: TopicPartition, timeout_s: float) -> int | None:
    try:
        found = consumer.get_watermark_offsets(ck.TopicPartition(*tp), timeout_s)
    except ck.KafkaException:
        return None
    return None if found is None or found[1] < 0 else int(found[1])


def final_log(bootstrap: str, topic: str, partitions: int) -> Log:
    """All committed records, once every transaction has an end."""
    found: dict[TopicPartition, list[tuple[int, bytes]]] = {}
    with (
        contextlib.closing(_consumer(bootstrap, "read_committed")) as stable,
        contextlib.closing(_consumer(bootstrap, "read_uncommitted")) as whole,
    ):
        for partition in range(partitions):
            tp = TopicPartition(topic, partition)

            def rests(tp: TopicPartition = tp) -> int | None:
                ends = _end(stable, tp, 3.0), _end(whole, tp, 3.0)
                return ends[0] if ends[0] == ends[1] else None

            until(lambda: rests() is not None, f"all transactions of {tp} have an end")
            found[tp] = _records(stable, tp)
    return found


def _records(consumer: ck.Consumer, tp: TopicPartition) -> list[tuple[int, bytes]]:
    """From the beginning to the end of what is stable."""
    records: list[tuple[int, bytes]] = []
    consumer.assign([ck.TopicPartition(*tp, 0)])
    give_up = time.monotonic() + 2 * patience()
    while time.monotonic() < give_up:
        for message in consumer.consume(500, 1.0):
            error = message.error()
            if error is None:
                records.append(read_of(message)[1:])
            elif error.code() == ck.KafkaError._PARTITION_EOF:
                consumer.unassign()
                return records
    raise AssertionError(f"the end of {tp} was not reached: {len(records)} records")


# -- what Kafka's own client did -------------------------------------------------------------------


def lane_history(lane: Lane, log: Log) -> Iterator[Transaction]:
    """The answers of a driver as transactions, in the order of what it sent; what was sent and not
    answered is of unknown fate, where it is there."""
    fates: dict[bytes, tuple[Fate, dict[str, Any]]] = {}
    together: dict[bytes, tuple[bytes, ...]] = {}
    for answer in lane.answers:
        for kind, fate in (
            ("acked", Fate.COMMITTED),
            ("failed", Fate.UNKNOWN),
            ("unknown", Fate.UNKNOWN),
            ("committed", Fate.COMMITTED),
            ("aborted", Fate.ABORTED),
        ):
            if kind in answer:
                given = answer[kind]
                values = tuple(v.encode() for v in ([given] if isinstance(given, str) else given))
                for value in values:
                    fates[value] = fate, answer
                    together[value] = values
    there = {value for records in log.values() for _, value in records}
    for value in there - fates.keys():
        if value.startswith(lane.name.encode()):
            fates[value] = Fate.UNKNOWN, {}
            together[value] = (value,)
    done: set[bytes] = set()
    for value in sorted(fates, key=_number_of):
        if value in done:
            continue
        fate, answer = fates[value]
        done.update(together[value])
        one = Transaction(value.rpartition(b"-")[0].decode(), fate=fate)
        for each in together[value]:
            partition = _number_of(each)[1] % LANE_PARTITIONS
            one.writes.append((TopicPartition(lane.topic, partition), each))
        if "offset" in answer:
            one.offsets[value] = answer["offset"]
            one.began, one.ended = answer["began_ns"] / 1e9, answer["ended_ns"] / 1e9
        yield one


def _number_of(value: bytes) -> tuple[bytes, int]:
    life, _, number = value.rpartition(b"-")
    return life, int(number)


class Load:
    """All clients of a run; ``begin`` starts them.

    Args:
        java: with Kafka's own client.
        every_s: between two records of an appender.
    """

    def __init__(
        self, bootstrap: str, seed: int, *, java: bool, members: int = 2, every_s: float = 0.01
    ) -> None:
        rng = random.Random(seed)
        self.bootstrap = bootstrap
        self.appends, self.transactions = History(), History()
        self.appender = Appender("a", self.appends, bootstrap, every_s)
        self.members = [Member(f"m{n}", self.appends, bootstrap) for n in range(members)]
        self.prober = Prober(bootstrap, PARTITIONS)
        self.ends = EndReader(bootstrap, APPENDS, PARTITIONS)
        self.writers = [
            Writer(f"w{n}", "confluent", self.transactions, bootstrap, random.Random(rng.random()))
            for n in range(2)
        ]
        self.copier = Copier("copier", self.transactions, bootstrap)
        self.reader = Reader("reader", self.transactions, bootstrap)
        self.lanes = (
            [Lane(f"j{topic}", LIBRARIES[1], topic) for topic in (ONCE, TRANSACTED)] if java else []
        )

    @property
    def topics(self) -> dict[str, int]:
        """How many partitions each topic has."""
        found = dict.fromkeys((APPENDS, PROBES, SOURCE, COPIES), PARTITIONS)
        found.update((lane.topic, LANE_PARTITIONS) for lane in self.lanes)
        return found

    @property
    def workers(self) -> list[Worker]:
        return [
            self.appender,
            *self.members,
            self.prober,
            self.ends,
            *self.writers,
            self.copier,
            self.reader,
        ]

    def begin(self, seconds: float) -> None:
        """
        Raises:
            SuiteUnavailable: the Java client's jars cannot be had.
        """
        for worker in self.workers:
            worker.start()
        self._seconds = seconds
        self.keep_alive()

    def keep_alive(self) -> None:
        """Start again what gave up; what may not is a failure at the end."""
        for lane in self.lanes:
            lane.keep_alive(self.bootstrap, self._seconds + patience())

    @property
    def is_going(self) -> bool:
        """Whether all clients have done something."""
        return bool(
            any(each.fate is Fate.COMMITTED for each in [*self.appends.transactions])
            and all(member.polls for member in self.members[:1])
            and all(self.prober.times)
            and self.transactions.counts[Fate.COMMITTED]
            and self.copier.copies.counts[Fate.COMMITTED]
            and all(lane.progress for lane in self.lanes)
        )

    @property
    def progress(self) -> dict[str, int]:
        return {
            "appended": sum(each.fate is Fate.COMMITTED for each in [*self.appends.transactions]),
            "polled": sum(len(poll.reads) for m in self.members for poll in [*m.polls]),
            "committed": self.transactions.counts[Fate.COMMITTED],
            "copied": self.copier.copies.counts[Fate.COMMITTED],
            **{lane.name: lane.progress for lane in self.lanes},
        }

    def stop_writing(self) -> None:
        for worker in (self.appender, self.prober, self.ends, *self.writers):
            worker.stopping.set()
        for worker in (self.appender, self.prober, self.ends, *self.writers):
            worker.finish()
        for lane in self.lanes:
            lane.stop()

    def stop_reading(self) -> None:
        readers = (*self.members, self.copier, self.reader)
        for worker in readers:
            worker.stopping.set()
        for worker in readers:
            worker.finish()

    def close(self) -> None:
        """After a failure: nothing of it outlives the test."""
        for worker in self.workers:
            worker.stopping.set()
        for lane in self.lanes:
            if lane.driver is not None:
                lane.driver.close()
