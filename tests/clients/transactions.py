"""Transactions of two client libraries while leaders crash, checked after the manner of Elle.

Producers write into several partitions at once and commit or abort; a copier reads what is
committed and writes it on, with its position, in transactions of its own; a reader follows. Every
few seconds a broker crashes that leads a partition, coordinates transactions, or keeps a group. At
the end every committed record is there exactly once, no aborted one was ever read, no transaction
is there in part, every record was copied once, and all replicas are equal.

The seed chooses what crashes and what is sent; threads and real clients decide what meets what.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import logging
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import confluent_kafka as ck
import kafka as kp

from checkpoints.types import TopicPartition
from replication.common.internal_topics import GROUP_METADATA, TRANSACTION_STATE
from replication.server.serving import ServedCluster, serve
from tests.cluster.load import Failure, check_replicas
from tests.support.transactional_histories import (
    Fate,
    Finding,
    History,
    Read,
    Transaction,
    check,
    check_copies,
)
from tests.support.until import patience

BROKERS = 3
PARTITIONS = 3
SOURCE, COPIES = "source", "copies"
TIMEOUT_MS = 10_000  # of a transaction whose producer is gone
CALL_S = 15.0
SETTINGS = {
    "transaction.state.log.num.partitions": 4,
    "offsets.topic.num.partitions": 4,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
    "group.initial.rebalance.delay.ms": 0,
    "min.insync.replicas": 2,
    "replica.lag.time.max.ms": 1000,
    "replica.fetch.wait.max.ms": 100,
    "replica.fetch.backoff.ms": 50,
    "replica.high.watermark.checkpoint.interval.ms": 500,
}


class CommitUnknownError(Exception):
    """The commit was asked for, and nothing tells how it ended."""


class Client(Protocol):
    """One incarnation of a transactional producer; any error but the one above means that the
    commit was never asked for, or refused."""

    def begin(self) -> None: ...
    def send(self, tp: TopicPartition, value: bytes) -> None: ...
    def abort(self) -> None: ...
    def commit(self) -> None: ...
    def close(self) -> None: ...


class ConfluentClient:
    def __init__(self, bootstrap: str, name: str) -> None:
        self._producer = ck.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": name,
                "transaction.timeout.ms": TIMEOUT_MS,
                "message.timeout.ms": TIMEOUT_MS,
                "socket.timeout.ms": 5000,
                "reconnect.backoff.max.ms": 500,
                "linger.ms": 2,
                "log_level": 0,
            }
        )
        self._producer.init_transactions(CALL_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, tp: TopicPartition, value: bytes) -> None:
        self._producer.produce(tp.topic, value, partition=tp.partition)

    def send_offsets(self, positions: list[ck.TopicPartition], group: object) -> None:
        # librdkafka waits for good if the group's coordinator crashed and left the metadata
        # (docs/clients.md).
        send = self._producer.send_offsets_to_transaction
        _within(2 * CALL_S, lambda: _again(lambda: send(positions, group, CALL_S)))

    def abort(self) -> None:
        self._producer.flush(CALL_S)  # what is aborted shall be there to be read by mistake
        _again(lambda: self._producer.abort_transaction(CALL_S))

    def commit(self) -> None:
        # Whatever is wrong with a record shows here, before the end is asked for.
        if self._producer.flush(CALL_S):
            raise TimeoutError("records are not acknowledged")
        try:
            _again(lambda: self._producer.commit_transaction(CALL_S))
        except ck.KafkaException as error:
            if error.args[0].txn_requires_abort():
                raise
            raise CommitUnknownError from error

    def close(self) -> None:
        self._producer.purge()


def _again(call: Callable[[], object]) -> None:
    """Until it succeeds, or fails for good."""
    while True:
        try:
            call()
        except ck.KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return


class KafkaPythonClient:
    def __init__(self, bootstrap: str, name: str) -> None:
        self._producer = kp.KafkaProducer(
            bootstrap_servers=bootstrap.split(","),
            transactional_id=name,
            transaction_timeout_ms=TIMEOUT_MS,
            request_timeout_ms=5000,
            delivery_timeout_ms=TIMEOUT_MS,
            max_block_ms=int(CALL_S * 1000),
            linger_ms=2,
        )
        self._sent: list[object] = []
        self._producer.init_transactions()

    def begin(self) -> None:
        self._sent = []
        self._producer.begin_transaction()

    def send(self, tp: TopicPartition, value: bytes) -> None:
        self._sent.append(self._producer.send(tp.topic, value, partition=tp.partition))

    def abort(self) -> None:
        _within(CALL_S, self._producer.abort_transaction)

    def commit(self) -> None:
        for each in self._sent:
            each.get(CALL_S)  # type: ignore[attr-defined]
        try:
            _within(CALL_S, self._producer.commit_transaction)
        except Exception as error:
            raise CommitUnknownError from error

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._producer.close(timeout=1)


def _within(seconds: float, call: Callable[[], object]) -> None:
    """A call of a client that may wait for ever where a coordinator moved in between.

    Raises:
        TimeoutError: it is not done.
    """
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError
    if failures:
        raise failures[0]


CLIENTS: dict[str, Callable[[str, str], Client]] = {
    "confluent": ConfluentClient,
    "kafka-python": KafkaPythonClient,
}


class Worker(threading.Thread):
    """Does one thing again and again until it is to stop; what fails for good ends the run."""

    def __init__(self, name: str, history: History, bootstrap: str) -> None:
        super().__init__(name=name, daemon=True)
        self.history, self.bootstrap = history, bootstrap
        self.stopping = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            logging.getLogger(__name__).exception("%s failed", self.name)
            self.failure = error

    def work(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        self.stopping.set()
        self.join(3 * patience())
        if self.is_alive():
            raise Failure(f"{self.name} does not come to an end")
        if self.failure is not None:
            raise Failure(f"{self.name} failed: {self.failure!r}")


class Writer(Worker):
    """Transactions of a few records over several partitions."""

    def __init__(
        self, name: str, library: str, history: History, bootstrap: str, rng: random.Random
    ) -> None:
        super().__init__(name, history, bootstrap)
        self._make, self._rng = CLIENTS[library], rng
        self._numbers = iter(range(10**9))

    def work(self) -> None:
        client: Client | None = None
        while not self.stopping.is_set():
            if client is None:
                try:
                    client = self._make(self.bootstrap, self.name)
                except Exception:
                    time.sleep(0.2)
                    continue
            if not self._transaction(client):
                client.close()
                client = None
        if client is not None:
            client.close()

    def _transaction(self, client: Client) -> bool:
        """False: this incarnation is at its end."""
        one = self.history.begin(self.name)
        one.fate = Fate.ABORTED  # until the commit is asked for
        try:
            client.begin()
            for _ in range(self._rng.randint(1, 6)):
                tp = TopicPartition(SOURCE, self._rng.randrange(PARTITIONS))
                value = f"{self.name}:{next(self._numbers)}".encode()
                one.writes.append((tp, value))
                client.send(tp, value)
            if self._rng.random() < 0.3:
                client.abort()
                return True
            return _commit(client, one)
        except Exception as error:
            logging.getLogger(__name__).info("%s: %r", self.name, error)
            try:
                client.abort()
            except Exception:
                return False
            return True


def _commit(client: Client, one: Transaction) -> bool:
    try:
        client.commit()
    except CommitUnknownError:
        one.fate = Fate.UNKNOWN
        return False
    one.fate = Fate.COMMITTED
    return True


class Reader(Worker):
    """Follows committed records."""

    def work(self) -> None:
        consumer = _consumer(self.bootstrap, self.name)
        consumer.assign([ck.TopicPartition(SOURCE, p, 0) for p in range(PARTITIONS)])
        while not self.stopping.is_set():
            found = consumer.consume(100, 0.2)
            self.history.saw(self.name, [_read(each) for each in found if not each.error()])
        consumer.close()


def _consumer(bootstrap: str, group: str) -> ck.Consumer:
    return ck.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 500,
            "socket.timeout.ms": 5000,
            "log_level": 0,
        }
    )


def _read(message: ck.Message) -> Read:
    tp = TopicPartition(message.topic(), message.partition())
    return Read(tp, message.offset(), message.value())


class Copier(Worker):
    """Reads, writes on, and commits its position with what it wrote: each record exactly once."""

    def __init__(self, name: str, history: History, bootstrap: str) -> None:
        super().__init__(name, history, bootstrap)
        self.copies = History()
        self.is_idle = False  # the last look found nothing new

    def work(self) -> None:
        while not self.stopping.is_set():
            try:
                client = ConfluentClient(self.bootstrap, self.name)
                consumer = _consumer(self.bootstrap, self.name)
            except Exception:
                time.sleep(0.2)
                continue
            with contextlib.closing(client), contextlib.closing(consumer):
                try:
                    self._copy(client, consumer)
                except Exception as error:
                    logging.getLogger(__name__).info("%s begins again: %r", self.name, error)

    def _copy(self, client: ConfluentClient, consumer: ck.Consumer) -> None:
        wanted = [ck.TopicPartition(SOURCE, p) for p in range(PARTITIONS)]
        positions = consumer.committed(wanted, CALL_S)
        for each in positions:
            if each.error:
                raise ck.KafkaException(each.error)
            each.offset = max(each.offset, 0)
        consumer.assign(positions)
        while not self.stopping.is_set():
            found = [each for each in consumer.consume(50, 0.5) if not each.error()]
            self.is_idle = not found
            if not found:
                continue
            one = self.copies.begin(self.name)
            one.fate = Fate.ABORTED
            client.begin()
            for each in found:
                read = _read(each)
                copy = (
                    TopicPartition(COPIES, read.tp.partition),
                    read.value + b"@%d" % len(self.copies.transactions),
                )
                one.reads.append(read.value)
                one.writes.append(copy)
                client.send(*copy)
            client.send_offsets(consumer.position(wanted), consumer.consumer_group_metadata())
            if not _commit(client, one):
                raise CommitUnknownError


def _crasher(
    kafka: ServedCluster, rng: random.Random, every_s: float, until: float
) -> Iterator[int]:
    """Crash the leader of something, and start it again a moment later; at least once."""
    topics = [SOURCE, COPIES, TRANSACTION_STATE, GROUP_METADATA]
    crashes = 0
    while not crashes or time.monotonic() + every_s < until:
        time.sleep(every_s)
        tps = kafka.client.partitions(rng.choice(topics))
        leader = kafka.leader(rng.choice(tps))
        if leader is None:
            continue
        kafka.crash(leader, notice=rng.random() < 0.7)
        crashes += 1
        yield leader
        time.sleep(rng.uniform(0.0, every_s / 3))
        kafka.start(leader)
        for tp in tps:
            kafka.wait_for_leader(tp)


class Result(NamedTuple):
    crashes: int
    fates: dict[str, int]
    copies: dict[str, int]
    records: int
    seen: int


def committed(kafka: ServedCluster, topic: str) -> dict[TopicPartition, list[tuple[int, bytes]]]:
    found: dict[TopicPartition, list[tuple[int, bytes]]] = {}
    for tp in kafka.client.partitions(topic):
        records = kafka.consumer(tp, isolation="read_committed").read_to_end()
        found[tp] = [(record.offset, record.value or b"") for _, record in records]
    return found


def wait_for_rest(kafka: ServedCluster, *topics: str) -> None:
    """Until no transaction is open anywhere."""
    tps = [tp for topic in topics for tp in kafka.client.partitions(topic)]

    def rests() -> bool:
        for tp in tps:
            leader = kafka.leader(tp)
            if leader is None:
                return False
            log = kafka.replica(tp, leader).log
            if log is None or log.snapshot.last_stable_offset != log.log_end_offset:
                return False
        return True

    kafka.wait_until(rests, "all transactions have an end", 120.0)


def run(
    directory: Path,
    seed: int,
    seconds: float,
    crash_every_s: float,
    libraries: Sequence[str] = (*CLIENTS, "confluent"),
) -> Result:
    """For ``seconds``, and until there were a crash, commits, aborts and copies.

    Raises:
        Failure, TimeoutError: what was promised did not hold, or not in time.
    """
    rng = random.Random(seed)
    history = History()
    with serve(directory, brokers=BROKERS, config=SETTINGS, session_timeout_ms=1500) as kafka:
        for topic in (SOURCE, COPIES):
            kafka.create_topic(topic, PARTITIONS, replication_factor=BROKERS)
        bootstrap = kafka.bootstrap_servers
        writers = [
            Writer(f"w{n}-{library}", library, history, bootstrap, random.Random(rng.random()))
            for n, library in enumerate(libraries)
        ]
        copier = Copier("copier", history, bootstrap)
        reader = Reader("reader", history, bootstrap)
        for worker in (*writers, copier, reader):
            worker.start()
        kafka.wait_until(
            lambda: all(
                kafka.leader(TopicPartition(topic, 0)) is not None
                for topic in (TRANSACTION_STATE, GROUP_METADATA)
            ),
            "the internal topics are there",
        )
        until = time.monotonic() + seconds
        crashes = sum(1 for _ in _crasher(kafka, rng, crash_every_s, until))
        for broker_id in kafka.broker_ids:
            if broker_id not in kafka.live_brokers:
                kafka.start(broker_id)
        time.sleep(max(0.0, until - time.monotonic()))

        def saw_all() -> bool:
            if any(not worker.is_alive() for worker in (*writers, copier)):
                return True  # finish() says why
            fates = history.counts
            return (
                fates[Fate.COMMITTED] > 0
                and fates[Fate.ABORTED] > len(writers)  # those that are under way count as aborted
                and copier.copies.counts[Fate.COMMITTED] > 0
            )

        kafka.wait_until(saw_all, "some are committed, aborted and copied", 180.0)
        for worker in writers:
            worker.stopping.set()
        for worker in writers:
            worker.finish()
        wait_for_rest(kafka, SOURCE)
        source = committed(kafka, SOURCE)
        wanted = sum(map(len, source.values()))
        kafka.wait_until(
            lambda: len(history.reads["reader"]) >= wanted, "the reader has seen all", 60.0
        )
        kafka.wait_until(
            lambda: sum(map(len, committed(kafka, COPIES).values())) >= wanted,
            "all is copied",
            180.0,
        )
        copier.finish()
        reader.finish()
        wait_for_rest(kafka, SOURCE, COPIES, TRANSACTION_STATE, GROUP_METADATA)
        copies = committed(kafka, COPIES)
        _demand(check(history, source))
        _demand(check(copier.copies, copies))
        _demand(check_copies(copier.copies, source, copies))
        for topic in (SOURCE, COPIES, TRANSACTION_STATE, GROUP_METADATA):
            check_replicas(kafka, kafka.client.partitions(topic))
        return Result(
            crashes,
            {fate.value: n for fate, n in history.counts.items()},
            {fate.value: n for fate, n in copier.copies.counts.items()},
            wanted,
            len(history.reads["reader"]),
        )


def _demand(findings: list[Finding]) -> None:
    if findings:
        text = "\n".join(f"{each.anomaly.value}: {each.what}" for each in findings[:20])
        raise Failure(f"{len(findings)} anomalies:\n{text}")


def verify_with_spark(directory: Path, result: Result) -> str:
    """The same from the files, by Spark: of every replica the committed records, each once, and
    all replicas alike.

    Raises:
        Failure: they are not.
    """
    from logstore.spark import session

    spark = session("local[2]")
    try:
        found = []
        for broker in range(BROKERS):
            frame = (
                spark.read.format("logstore")
                .option("isolation", "read_committed")
                .load(str(directory / f"broker-{broker}"))
            )
            rows = frame.where(f"topic = '{SOURCE}'").selectExpr(
                "partition", "offset", "cast(value as string) as value"
            )
            found.append({tuple(row) for row in rows.collect()})
        values = [value for _, _, value in found[0]]
        if any(each != found[0] for each in found):
            raise Failure("Spark finds replicas that differ")
        if len(values) != result.records or len(set(values)) != len(values):
            raise Failure(f"Spark finds {len(values)} records, not {result.records}, each once")
        return f"Spark: {len(values)} committed records in each of {BROKERS} replicas, each once"
    finally:
        spark.stop()


def main() -> int:
    name = "python -m tests.clients.transactions"
    parser = argparse.ArgumentParser(prog=name, description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--crash-every", type=float, default=5.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--spark", action="store_true", help="look at the files with Spark, too")
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # it says much about each crash
    faulthandler.dump_traceback_later(args.minutes * 60 + 600, exit=True)
    directory = Path(tempfile.mkdtemp(prefix="transactions-"))
    result = run(directory, args.seed, args.minutes * 60, args.crash_every)
    print(result)
    if args.spark:
        print(verify_with_spark(directory, result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
