"""The promises at the end, with all faults over and all replicas in sync (I-1, I-11, I-20 …
I-22).
"""

from __future__ import annotations

from logstore.common.errors import CorruptBatchError
from logstore.common.types import TopicPartition
from logstore.format.header import BatchHeader
from logstore.format.reader import iter_batches, read_records
from replication.simulator.oracle.excuses import Excuse, Excuses
from replication.simulator.oracle.history import ClientHistory, WriteOutcome
from replication.simulator.oracle.invariants import Oracle
from replication.simulator.world.cluster import Machine, SimCluster


def is_quiescent(cluster: SimCluster, oracle: Oracle) -> bool:
    """Whether every replica is up, in the ISR, and has and commits the same (part of I-24)."""
    return not pending_reason(cluster, oracle)


def pending_reason(cluster: SimCluster, oracle: Oracle) -> str:
    """Say why the cluster is not quiescent; empty if it is."""
    for broker_id, machine in cluster.machines.items():
        if machine.broker is None:
            return f"b{broker_id} is down"
    for tp in oracle.committed:
        now = oracle.registrations.get(tp)
        if now is None or now.leader < 0:
            return f"{tp} has no leader: {now}"
        if len(now.isr) < len(now.replicas):
            return f"{tp}: not all replicas are in the ISR: {now}"
        ends = set()
        for broker_id in now.replicas:
            broker = cluster.machines[broker_id].broker
            assert broker is not None
            partition = broker.replica_manager.partitions.get(tp)
            if partition is None or partition.log is None:
                return f"{tp}: b{broker_id} has no replica"
            if partition.leader_epoch != now.leader_epoch:
                return f"{tp}: b{broker_id} is in epoch {partition.leader_epoch}, not {now}"
            ends.add((partition.log.log_end_offset, partition.log.high_watermark))
        if len(ends) > 1 or any(end != mark for end, mark in ends):
            return f"{tp}: log ends and high watermarks are {sorted(ends)}"
    return ""


def validate(cluster: SimCluster, oracle: Oracle, history: ClientHistory) -> list[str]:
    """Violations in a quiescent cluster."""
    found: list[str] = []
    for tp in oracle.committed:
        contents = {}
        for broker_id in oracle.registrations[tp].replicas:
            try:
                contents[broker_id] = ReplicaContent(cluster.machines[broker_id], tp)
            except CorruptBatchError as error:
                found.append(f"I-17 {tp}: b{broker_id} holds {error}")
        for broker_id, content in contents.items():
            found += content.check_offsets(tp, broker_id)
        if found:
            continue
        found += _check_equal(tp, contents)
        first = next(iter(contents.values()))
        found += _check_acknowledged(tp, first, history)
        found += _check_outcomes(tp, first, history, oracle.excuses)
        found += _check_copies(tp, first, history.deleted_below.get(tp, 0), oracle.excuses)
        if tp not in history.deleted_below:  # or a producer may be forgotten with them
            found += _check_producers(tp, first, history)
        found += _check_seen(tp, first, history)
    return found


class ReplicaContent:
    """All bytes of one replica from its log start on, and the records in them."""

    def __init__(self, machine: Machine, tp: TopicPartition) -> None:
        assert machine.broker is not None
        log = machine.broker.log_manager.get(*tp)
        parts = []
        for segment in log.segments:
            node = machine.disk.peek(segment.log_path)
            parts.append(b"" if node is None else bytes(node.data[: segment.size]))
        self.start, self.end = log.log_start_offset, log.log_end_offset
        self.data = b"".join(parts)
        self.batches = list(iter_batches(self.data))
        self.values = {
            record.offset: bytes(record.value or b"")
            for record in read_records(self.data, from_offset=self.start)
        }

    def from_offset(self, offset: int) -> bytes:
        return b"".join(
            self.data[b.position : b.position + b.size]
            for b in self.batches
            if b.last_offset >= offset
        )

    def check_offsets(self, tp: TopicPartition, broker_id: int) -> list[str]:
        """Offsets follow each other from the log start on (I-11): below it a cut inside a batch
        leaves a gap (F-272)."""
        held = [batch for batch in self.batches if batch.last_offset >= self.start]
        expected = min(self.start, held[0].base_offset) if held else self.start
        for batch in held:
            if batch.base_offset != expected:
                return [f"I-11 {tp}: b{broker_id} has {batch.base_offset} after {expected - 1}"]
            expected = batch.last_offset + 1
        if expected != self.end:
            return [f"I-11 {tp}: b{broker_id} ends at {expected}, and says {self.end}"]
        return []


def _check_equal(tp: TopicPartition, contents: dict[int, ReplicaContent]) -> list[str]:
    """Replicas are equal from the highest log start on (I-22)."""
    start = max(content.start for content in contents.values())
    first_id, first = next(iter(contents.items()))
    for broker_id, content in contents.items():
        if content.from_offset(start) != first.from_offset(start):
            return [f"I-22 {tp}: b{broker_id} and b{first_id} differ from offset {start} on"]
    return []


def _check_acknowledged(
    tp: TopicPartition, content: ReplicaContent, history: ClientHistory
) -> list[str]:
    """Every acknowledged record is where it was acknowledged (I-1)."""
    for offset, value in history.acknowledged.get(tp, {}).items():
        if offset < max(content.start, history.deleted_below.get(tp, 0)):
            continue
        held = content.values.get(offset)
        if held != value and not history.losses.took(tp, offset, value):
            return [f"I-1 {tp}: {value!r} was acknowledged at {offset}, where now {held!r} is"]
    held_values = set(content.values.values())
    if tp not in history.deleted_below:
        for write in history.writes:  # also if its offset is unknown
            if write.tp == tp and write.outcome is WriteOutcome.OK and write.acks == -1:
                for value in write.values:
                    if value not in held_values and not history.losses.took_value(tp, value):
                        return [f"I-1 {tp}: {value!r} was acknowledged, and is nowhere"]
    if content.start > history.deleted_below.get(tp, 0):
        return [f"I-1 {tp}: the log starts at {content.start}, and nobody deleted that far"]
    return []


def _check_seen(tp: TopicPartition, content: ReplicaContent, history: ClientHistory) -> list[str]:
    """Check that each record a consumer read is still in the log (I-6)."""
    for offset, value in history.seen.get(tp, {}).items():
        if offset < content.start or history.losses.took(tp, offset, value):
            continue
        if content.values.get(offset) != value:
            return [f"I-6 {tp}: {value!r} was read at {offset}: {content.values.get(offset)!r}"]
    return []


def _check_outcomes(
    tp: TopicPartition, content: ReplicaContent, history: ClientHistory, excuses: Excuses
) -> list[str]:
    """Check that no refused record is in the log (I-21)."""
    held = {value: offset for offset, value in content.values.items()}
    for write in history.writes:
        if write.tp == tp and write.outcome is WriteOutcome.FAILED:
            for value in write.values:
                if value not in held:
                    continue
                if value in history.repeated:  # one copy was refused, and the other was not
                    excuses.use(Excuse.REPEATED_WRITE)
                else:
                    return [f"I-21 {tp}: {value!r} was refused, and is at offset {held[value]}"]
    return []


def _check_copies(
    tp: TopicPartition, content: ReplicaContent, deleted_below: int, excuses: Excuses
) -> list[str]:
    """No record is in the log twice (I-20).

    A producer may be forgotten with the last of its records, and a copy may then be accepted.
    """
    seen: dict[tuple[int, int, int], int] = {}
    for batch in content.batches:
        if isinstance(batch, BatchHeader) and batch.producer_id >= 0:
            if batch.base_sequence < 0:
                continue  # a marker, which may be written twice
            key = batch.producer_id, batch.producer_epoch, batch.base_sequence
            before = seen.setdefault(key, batch.base_offset)
            if before == batch.base_offset:
                continue
            if before < deleted_below:
                excuses.use(Excuse.DELETED)
                seen[key] = batch.base_offset
            else:
                return [f"I-20 {tp}: {key} is at offsets {before} and {batch.base_offset}"]
    return []


def _check_producers(
    tp: TopicPartition, content: ReplicaContent, history: ClientHistory
) -> list[str]:
    """Check that the records of an idempotent producer are there once, in order (I-20)."""
    offsets: dict[bytes, int] = {}
    for offset, value in content.values.items():
        if value in offsets and _is_of_idempotent(history, value):
            return [f"I-20 {tp}: {value!r} is at offsets {offsets[value]} and {offset}"]
        offsets[value] = offset
    last: dict[str, int] = {}
    for write in history.writes:
        if write.producer and write.tp == tp and write.outcome is WriteOutcome.OK:
            offset = offsets.get(write.values[0], -1)
            if offset < 0 and history.losses.took_value(tp, write.values[0]):
                continue
            if offset < last.get(write.producer, -1):
                return [
                    f"I-20 {tp}: {write.values[0]!r} is before what {write.producer} sent first"
                ]
            last[write.producer] = offset
    return []


def _is_of_idempotent(history: ClientHistory, value: bytes) -> bool:
    """Whether an idempotent producer sent it. A scenario also appends records by itself."""
    number = int(value.split(b".", 1)[0])
    return number < len(history.writes) and bool(history.writes[number].producer)


def check_read(oracle: Oracle, cluster: SimCluster, history: ClientHistory) -> list[str]:
    """A consumer at the end has skipped nothing (I-6)."""
    for (reader, tp), read in history.read_by.items():
        if tp in history.deleted_below:
            continue  # it may have arrived too late
        content = ReplicaContent(cluster.machines[oracle.registrations[tp].leader], tp)
        for offset, value in content.values.items():
            transaction = history.write_of(value).transaction
            if read.get(offset) != value and transaction is None:
                return [f"I-6 {tp}: {reader} never read {value!r} at {offset}"]
            if read.get(offset) != value and transaction is not None and transaction.commits:
                return [f"I-6 {tp}: {reader} never read {value!r} at {offset}, committed"]
    return []
