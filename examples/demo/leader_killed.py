"""Act two: three brokers, the leader killed in mid-stream, its return, an ISR that shrinks.

What is printed as proven has been checked just before; each check that fails is a fault.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from checkpoints.loggers import package_loggers
from checkpoints.types import TopicPartition
from examples.demo import replicas
from examples.demo.directory import BROKERS, Places
from examples.demo.flights import Rows
from examples.demo.outcome import (
    ClusterOutcome,
    DemoOutcome,
    DemoStep,
    Failover,
    ReplicatedPartition,
)
from examples.demo.show import Show
from examples.demo.stream import Stream
from examples.demo.topic import CLUSTER_ID, CONFIG, TOPIC, compare_records
from examples.demo.writer_killed import batch_records
from logstore.common.errors import LogstoreError
from logstore.segments.leader_epochs import UNDEFINED_EPOCH_OFFSET
from replication.common.config import ReplicationConfig
from replication.embedded.cluster import Cluster

MIN_ISR = 2
LAG_MS = 500  # replica.lag.time.max.ms: Kafka's 30 s would be a long demo
REPLICATION = ReplicationConfig(
    replica_lag_time_max_ms=LAG_MS, replica_fetch_wait_max_ms=100, replica_fetch_backoff_ms=50
)
UNREPLICATED = b"acknowledged by one"  # key of the records with acks=1
_UNREPLICATED_EACH = 5
_KILL_FROM, _KILL_TO = 0.15, 0.45  # share of flights acknowledged at the kill
_RETURN, _HEAL = 0.6, 0.8  # and at the return of the dead broker, and when the links are restored


def run(outcome: DemoOutcome, places: Places, sent: list[Rows], show: Show) -> None:
    """Run act two. What could not be proven, errors of the brokers included, is in ``faults``."""
    cluster_outcome = outcome.cluster = ClusterOutcome(list(BROKERS), MIN_ISR)
    try:
        with errors_as_faults(outcome.faults):
            tps = _run_cluster(outcome, cluster_outcome, places, sent, show)
        if not outcome.faults:
            _compare_replicas(outcome, cluster_outcome, places, tps, sent, show)
    except (LogstoreError, OSError) as error:  # a time-out is an OSError
        outcome.faults.append(f"{type(error).__name__}: {error}")


def _run_cluster(
    outcome: DemoOutcome, told: ClusterOutcome, places: Places, sent: list[Rows], show: Show
) -> list[TopicPartition]:
    started = time.perf_counter()
    with Cluster(
        BROKERS, places.cluster, log_config=CONFIG, config=REPLICATION, cluster_id=CLUSTER_ID
    ) as cluster:
        assignment = [
            [BROKERS[(p + n) % len(BROKERS)] for n in range(len(BROKERS))] for p in range(len(sent))
        ]
        tps = cluster.create_topic(
            TOPIC, assignment=assignment, config={"min.insync.replicas": MIN_ISR}
        )
        show.line()
        show.line(
            f"brokers {_names(BROKERS)} started in {_ms(time.perf_counter() - started)}, the "
            f"controller is {cluster.controller_id}; {len(tps)} partitions with {len(BROKERS)} "
            f"replicas, min.insync.replicas={MIN_ISR}; an idempotent producer sends with acks=all"
        )
        producer = cluster.producer(idempotent=True)
        with Stream(producer, tps, sent, batch_records(outcome.records)) as stream:
            act = _Act(outcome, told, places, cluster, tps, stream, show)
            act.kill_the_leader()
            act.go_on_without_it()
            act.bring_it_back()
            act.cut_it_off()
            act.finish()
        if not outcome.faults:
            act.consume(sent)
    return tps


class _Act:
    """The events while the cluster runs, in the order of the methods."""

    def __init__(
        self,
        outcome: DemoOutcome,
        told: ClusterOutcome,
        places: Places,
        cluster: Cluster,
        tps: Sequence[TopicPartition],
        stream: Stream,
        show: Show,
    ) -> None:
        self._outcome, self._told, self._places = outcome, told, places
        self._cluster, self._tps, self._stream, self._show = cluster, tps, stream, show
        rng = random.Random(outcome.seed)
        self._kill_at = int(outcome.records * rng.uniform(_KILL_FROM, _KILL_TO))
        self._killed = self._leader(rng.choice(tps))
        self._led = [tp for tp in tps if self._leader(tp) == self._killed]
        self._failover = told.failover = Failover(
            self._killed, led=[tp.partition for tp in self._led]
        )
        for tp in tps:
            leader = self._leader(tp)
            replica = cluster.replica(tp, leader)
            told.partitions.append(
                ReplicatedPartition(
                    tp.partition,
                    list(replica.replicas),
                    leader,
                    replica.leader_epoch,
                    isr_smallest=len(replica.isr.committed),
                )
            )

    # -- the kill ------------------------------------------------------------------------------

    def kill_the_leader(self) -> None:
        """Cut the leader off, let it acknowledge records that only it has, and kill it.

        The batch that the producer sends to it waits for followers that cannot fetch. Batches to
        partitions that it follows would wait too, so the next batch goes to one that it leads.
        """
        cluster, stream, killed = self._cluster, self._stream, self._killed
        stream.allow(self._kill_at)
        self._send_until(self._kill_at)
        cluster.cut_off(killed, coordinator=False)
        until = int(self._outcome.records * _RETURN)
        first = next((tp.partition for tp in self._led if stream.lacks(tp.partition)), None)
        in_flight = first is not None and stream.total < until
        if in_flight:
            stream.allow(until, first)
            cluster.wait_until(lambda: bool(self._ahead()), "a batch that waits")
        alone = cluster.producer(acks=1)
        for tp in self._led:
            alone.send_batch(TOPIC, tp.partition, [(UNREPLICATED, b"")] * _UNREPLICATED_EACH)
        failover = self._failover
        failover.unreplicated = _UNREPLICATED_EACH * len(self._led)
        failover.was_controller = cluster.controller_id == killed
        failover.acknowledged_at_kill = stream.total
        started = time.perf_counter()
        cluster.crash(killed)
        cluster.heal()
        stream.allow(until)
        for tp in self._led:
            cluster.wait_for_leader(tp, killed)
        failover.elected_seconds = time.perf_counter() - started
        cluster.wait_until(lambda: cluster.controller_id is not None, "a controller")
        failover.controller = cluster.controller_id if cluster.controller_id is not None else -1
        self._tell_the_kill(in_flight)
        self._read_the_dead()

    def _ahead(self) -> list[TopicPartition]:
        """The partitions in which the leader to be killed has records that no follower has."""
        others = [b for b in BROKERS if b != self._killed]
        return [
            tp
            for tp in self._led
            if self._end(tp, self._killed) > max(self._end(tp, b) for b in others)
        ]

    def _tell_the_kill(self, in_flight: bool) -> None:
        failover, led = self._failover, self._led
        self._show.line(
            f"killed broker {self._killed} (seed {self._outcome.seed}), leader of "
            f"{_partitions(led)}{' and controller' if failover.was_controller else ''}, after "
            f"{failover.acknowledged_at_kill:,} records"
            f"{', with a batch of the producer in flight' if in_flight else ''}; it had just been "
            f"cut off and had acknowledged {failover.unreplicated} records (acks=1) that only it "
            "has"
        )
        for tp in led:
            told = self._told.partitions[tp.partition]
            replica = self._cluster.replica(tp, self._leader(tp))
            told.leader, told.epoch = self._leader(tp), replica.leader_epoch
            if told.leader == self._killed or told.epoch <= told.epoch_before:
                self._fault(f"{tp}: broker {told.leader} leads in epoch {told.epoch}")
        epochs = sorted({(p.epoch_before, p.epoch) for p in self._of(led)})
        new = f", the controller is {failover.controller}" if failover.was_controller else ""
        self._show.line(
            f"{_ms(failover.elected_seconds)} after the kill, which also ended its session: "
            f"{_leaders(self._of(led))}, leader epoch "
            f"{', '.join(f'{a} → {b}' for a, b in epochs)}{new}"
        )
        self._show.proven(
            self._outcome, "each partition it led has a new leader, in a higher epoch"
        )

    def _read_the_dead(self) -> None:
        """Read the dead broker's records after the start of the new epochs."""
        for tp in self._led:
            start = self._cluster.replica(tp, self._leader(tp)).epoch_start_offset
            if start is None:
                self._fault(f"{tp}: without a leader")
                continue
            lost = replicas.tail(self._places.broker(self._killed), tp, start)
            if sum(record.key == UNREPLICATED for record in lost) != _UNREPLICATED_EACH:
                self._fault(f"{tp}: the dead broker lacks what it acknowledged")
            self._told.partitions[tp.partition].cut = len(lost)
        self._failover.cut = sum(p.cut for p in self._of(self._led))

    # -- the return ----------------------------------------------------------------------------

    def go_on_without_it(self) -> None:
        self._send_until(int(self._outcome.records * _RETURN))
        self._cluster.wait_until(
            lambda: len(self._without(self._killed)) == len(self._tps), "the dead leaves all ISRs"
        )
        self._note_isr()
        failover = self._failover
        failover.without_it = self._stream.total - failover.acknowledged_at_kill
        left = [b for b in BROKERS if b != self._killed]
        self._show.line(
            f"went on with brokers {_names(left)}: {failover.without_it:,} more records "
            f"acknowledged, the longest wait {_ms(self._stream.slowest_seconds)}"
        )

    def bring_it_back(self) -> None:
        """Restart the broker.

        In its log the old epoch must end where the new leader's epoch begins.
        """
        cluster, killed, failover = self._cluster, self._killed, self._failover
        starts = {
            tp: cluster.replica(tp, self._leader(tp)).epoch_start_offset or 0 for tp in self._led
        }
        started = time.perf_counter()
        cluster.start(killed)
        for tp in self._tps:
            cluster.wait_for_isr(tp, BROKERS)
        failover.rejoined_seconds = time.perf_counter() - started
        for tp in self._led:
            epoch = self._told.partitions[tp.partition].epoch_before
            replica = cluster.replica(tp, killed)
            end = replica.follower.own_end_offset_for(epoch).end_offset
            if end == UNDEFINED_EPOCH_OFFSET and replica.latest_epoch != epoch:
                end = replica.log_start_offset  # no record of that epoch is left
            if end != starts[tp]:
                self._fault(f"{tp}: epoch {epoch} ends at {end:,}, the next begins at {starts[tp]}")
        reports = cluster.broker(killed).log_manager.recovery_reports
        recovered = {r.directory: r.log_end_offset for r in reports}
        failover.caught_up = (
            sum(self._end(tp, killed) for tp in self._tps) + failover.cut - sum(recovered.values())
        )
        self._show.line(
            f"broker {killed} is back, in sync after {_ms(failover.rejoined_seconds)}: "
            f"{failover.cut:,} records of its own cut off ({failover.unreplicated} with acks=1), "
            f"{failover.caught_up:,} fetched"
        )
        self._show.proven(
            self._outcome, "in its log the old epochs end where the new leaders' epochs begin"
        )

    # -- the ISR -------------------------------------------------------------------------------

    def cut_it_off(self) -> None:
        """Keep the broker, a follower now, from fetching, while its session lives."""
        cluster, follower, failover = self._cluster, self._killed, self._failover
        before = list(self._stream.acknowledged)
        limit = -int(-self._outcome.records * _HEAL // 1)
        started = time.perf_counter()
        cluster.cut_off(follower, coordinator=False)
        self._stream.allow(limit)
        cluster.wait_until(lambda: bool(self._without(follower)), "an ISR shrinks")
        failover.shrunk_seconds = time.perf_counter() - started
        self._send_until(limit)
        self._note_isr()
        shrunk = self._without(follower)
        failover.shrunk = [tp.partition for tp in shrunk]
        for tp, count in zip(self._tps, before, strict=True):
            if self._stream.acknowledged[tp.partition] > count and tp not in shrunk:
                self._fault(f"{tp}: acknowledged with a replica in the ISR that cannot fetch")
            if tp in shrunk and len(cluster.isr(tp)) < MIN_ISR:
                self._fault(f"{tp}: the ISR is only {cluster.isr(tp)}")
        self._show.line(
            f"cut off broker {follower}, a follower now: {_isr_of(len(shrunk))} shrank, the first "
            f"after {_ms(failover.shrunk_seconds)} (replica.lag.time.max.ms={LAG_MS}), and "
            f"{self._stream.total - sum(before):,} more records were acknowledged"
        )
        started = time.perf_counter()
        cluster.heal()
        for tp in self._tps:
            cluster.wait_for_isr(tp, BROKERS)
        failover.expanded_seconds = time.perf_counter() - started
        self._show.line(f"links mended: all in sync after {_ms(failover.expanded_seconds)}")
        self._show.proven(
            self._outcome,
            f"all acknowledgements in between came from an ISR of {MIN_ISR} without it; it is back "
            "in every ISR",
        )

    def _without(self, broker_id: int) -> list[TopicPartition]:
        return [tp for tp in self._tps if (isr := self._cluster.isr(tp)) and broker_id not in isr]

    # -- the end -------------------------------------------------------------------------------

    def finish(self) -> None:
        stream, outcome = self._stream, self._outcome
        stream.allow(outcome.records)
        self._send_until(outcome.records)
        self._told.acknowledged = stream.total
        self._told.slowest_seconds = stream.slowest_seconds
        outcome.faults += stream.misplaced
        for tp in self._tps:
            told = self._told.partitions[tp.partition]
            told.leader = self._leader(tp)
            told.epoch = self._cluster.replica(tp, told.leader).leader_epoch
        size = sum(self._cluster.replica(tp, self._leader(tp)).local_log().size for tp in self._tps)
        outcome.steps.append(DemoStep("produce, acks=all", stream.total, size, stream.seconds))
        self._show.line(f"sent the rest: {stream.total:,} records acknowledged in all")

    def consume(self, sent: Sequence[Rows]) -> None:
        seconds, count, size = 0.0, 0, self._outcome.steps[-1].size
        with self._show.progress("consuming", self._outcome.records) as advance:
            for tp, rows in zip(self._tps, sent, strict=True):
                started = time.perf_counter()
                found = [record for _, record in self._cluster.consumer(tp).read_to_end()]
                seconds += time.perf_counter() - started
                number, difference = compare_records([found], rows)
                if difference or number != len(rows):
                    self._fault(f"{tp}: {difference or f'{number:,} of {len(rows):,} records'}")
                count += len(found)
                advance(count)
        self._outcome.steps.append(DemoStep("consume", count, size, seconds))
        self._show.proven(
            self._outcome,
            "a consumer reads every acknowledged flight once and in order, at the offset that was "
            "acknowledged",
        )

    # -- small things --------------------------------------------------------------------------

    def _send_until(self, total: int) -> None:
        with self._show.progress("acknowledged", self._outcome.records) as advance:
            self._stream.wait_for(total, advance)

    def _leader(self, tp: TopicPartition) -> int:
        return self._cluster.wait_for_leader(tp)

    def _end(self, tp: TopicPartition, broker_id: int) -> int:
        return self._cluster.replica(tp, broker_id).log_end_offset

    def _of(self, tps: Sequence[TopicPartition]) -> list[ReplicatedPartition]:
        return [self._told.partitions[tp.partition] for tp in tps]

    def _note_isr(self) -> None:
        for tp in self._tps:
            told = self._told.partitions[tp.partition]
            told.isr_smallest = min(told.isr_smallest, len(self._cluster.isr(tp)))

    def _fault(self, text: str) -> None:
        self._outcome.faults.append(text)


def _compare_replicas(
    outcome: DemoOutcome,
    told: ClusterOutcome,
    places: Places,
    tps: Sequence[TopicPartition],
    sent: Sequence[Rows],
    show: Show,
) -> None:
    """Compare the files of the stopped brokers."""
    log_dirs = [places.broker(broker_id) for broker_id in BROKERS]
    outcome.faults += replicas.differences(log_dirs, tps, sent)
    show.proven(
        outcome,
        f"the {len(log_dirs)} logs of each partition are equal, byte by byte, and hold every "
        "flight once and in order",
    )
    if outcome.faults:
        return
    started = time.perf_counter()
    files, faults = replicas.verified(log_dirs, told.partitions)
    seconds = time.perf_counter() - started
    outcome.faults += faults
    count = sum(p.records for p in told.partitions) * len(log_dirs)
    size = sum(p.size for p in told.partitions) * len(log_dirs)
    outcome.steps.append(DemoStep("verify the brokers", count, size, seconds))
    show.proven(
        outcome,
        f"every byte of {files} files of the brokers verified, with equal fingerprints",
    )


def _names(broker_ids: Sequence[int]) -> str:
    return ", ".join(map(str, broker_ids))


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"


def _partitions(tps: Sequence[TopicPartition]) -> str:
    if len(tps) > 4:
        return f"{len(tps)} partitions"
    return f"partition{'s' * (len(tps) > 1)} {_names([tp.partition for tp in tps])}"


def _isr_of(count: int) -> str:
    return f"the ISR of {count} partition{'s' * (count != 1)}"


def _leaders(partitions: Sequence[ReplicatedPartition]) -> str:
    if len(partitions) > 4:
        counts = {p.leader: 0 for p in partitions}
        for p in partitions:
            counts[p.leader] += 1
        return ", ".join(f"broker {b} leads {n}" for b, n in sorted(counts.items()))
    return ", ".join(f"broker {p.leader} leads {p.partition}" for p in partitions)


class _Collector(logging.Handler):
    def __init__(self, faults: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._faults = faults

    def emit(self, record: logging.LogRecord) -> None:
        why = f": {record.exc_info[1]!r}" if record.exc_info else ""
        self._faults.append(f"logged by {record.name}: {record.getMessage()}{why}")


@contextmanager
def errors_as_faults(faults: list[str]) -> Iterator[None]:
    """Add every error that is logged to ``faults``; nothing of it goes to stderr."""
    collector = _Collector(faults)
    for logger in package_loggers():
        logger.addHandler(collector)
    try:
        yield
    finally:
        for logger in package_loggers():
            logger.removeHandler(collector)
