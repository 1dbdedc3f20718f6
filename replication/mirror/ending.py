"""Carries out the ends of transactions in the logs of a directory that no broker has open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from checkpoints.types import TopicPartition
from logstore.common.errors import LogstoreError
from logstore.common.types import Record
from logstore.format.batch import encode_batch, end_transaction_marker
from logstore.format.control import ControlType, parse_end_transaction_marker
from logstore.format.header import BatchHeader
from logstore.format.reader import iter_batches
from logstore.log import PartitionLog
from logstore.segments.producer_state import AppendOrigin
from replication.common.internal_topics import TRANSACTION_STATE
from replication.coordinators.transactions.records import decode, encode
from replication.coordinators.transactions.state import TransactionMetadata
from replication.mirror.endings import (
    Ending,
    LastMarker,
    OpenTransaction,
    TransactionHistory,
    all_completed,
    all_prepared,
    ending_of,
)

_READ_BYTES = 1 << 20
_SEGMENTS_SEARCHED = 2  # for the last marker of a producer, which is near the end of a mirror's log

PartitionLogs = Mapping[TopicPartition, PartitionLog]


class EndedTransactions(NamedTuple):
    """``ids``: the transactional ids whose state had to be completed."""

    endings: tuple[Ending, ...]
    ids: tuple[str, ...]


def end_transactions(
    logs: PartitionLogs, epochs: Mapping[TopicPartition, int], coordinator_epoch: int, now_ms: int
) -> EndedTransactions:
    """Give each open transaction its marker, and each transactional id its last state, durably.

    It is done in the order of a coordinator: what is decided is on the disk before the markers are,
    and these before it is over. Who is killed in between does it again, by what was decided.

    Args:
        epochs: in which each log is appended to; of partitions that are not here none is needed.
        coordinator_epoch: no log has a marker of a later one.
    Raises:
        StorageFailedError: the disk refused.
    """
    transactions, places = _read_states(logs)
    opened = [each for tp, log in logs.items() for each in _open_in(tp, log)]
    markers = _markers_of({each.producer_id for each in opened}, logs)
    endings = tuple(ending_of(each, transactions, markers) for each in opened)
    appended: set[TopicPartition] = set()

    def append(tp: TopicPartition, batch: bytearray) -> None:
        logs[tp].append_as_leader(bytes(batch), epochs[tp], AppendOrigin.COORDINATOR)
        appended.add(tp)

    def flush() -> None:
        while appended:
            logs[appended.pop()].flush()

    def tell(states: Mapping[str, TransactionMetadata]) -> None:
        for name, metadata in states.items():
            record = encode(metadata)
            append(places[name], encode_batch([Record(0, now_ms, record.key, record.value)]))
        flush()

    decided = all_prepared(transactions.known, markers, now_ms)
    tell(decided)
    for ending in endings:
        batch = end_transaction_marker(
            ControlType.COMMIT if ending.commits else ControlType.ABORT,
            producer_id=ending.open.producer_id,
            producer_epoch=ending.producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=now_ms,
        )
        append(ending.open.tp, batch)
    flush()
    completed = all_completed({**transactions.known, **decided}, now_ms)
    tell(completed)
    return EndedTransactions(endings, tuple(completed))


def _read_states(logs: PartitionLogs) -> tuple[TransactionHistory, dict[str, TopicPartition]]:
    """What the coordinators wrote, and where. What cannot be read says nothing: it is a finding of
    the plan."""
    transactions = TransactionHistory()
    places: dict[str, TopicPartition] = {}
    for tp, log in logs.items():
        if tp.topic != TRANSACTION_STATE:
            continue
        for key, value in _readable(log):
            try:
                found = decode(key, value)
            except LogstoreError:
                continue
            if found is not None:
                transactions.apply(*found)
                places[found[0]] = tp
    return transactions, places


def _readable(log: PartitionLog) -> Iterator[tuple[bytes, bytes | None]]:
    try:
        for record in log.records():
            if record.key is not None:
                yield record.key, record.value
    except LogstoreError:
        return


def _open_in(tp: TopicPartition, log: PartitionLog) -> Iterator[OpenTransaction]:
    entries = [e for e in log.producers.entries() if e.current_txn_first_offset >= 0]
    ended = {e.producer_id: e.current_txn_first_offset for e in entries if e.coordinator_epoch >= 0}
    markers = _last_markers(log, ended)
    for entry in entries:
        marker = markers.get(entry.producer_id)
        yield OpenTransaction(
            tp,
            entry.producer_id,
            entry.producer_epoch,
            entry.current_txn_first_offset,
            -1 if marker is None else marker.timestamp,
        )


def _markers_of(producer_ids: set[int], logs: PartitionLogs) -> dict[int, list[LastMarker]]:
    """The last end of a transaction of each of these producers in each log where none is open."""
    found: dict[int, list[LastMarker]] = {}
    for log in logs.values() if producer_ids else ():
        ended = {
            entry.producer_id: log.log_end_offset
            for entry in log.producers.entries()
            if entry.current_txn_first_offset < 0
            and entry.coordinator_epoch >= 0
            and entry.producer_id in producer_ids
        }
        for producer_id, marker in _last_markers(log, ended).items():
            found.setdefault(producer_id, []).append(marker)
    return found


def _last_markers(log: PartitionLog, before: Mapping[int, int]) -> dict[int, LastMarker]:
    """The last marker of each producer id below its offset. Who has one further back has none."""
    found: dict[int, LastMarker] = {}
    if not before:
        return found
    bases = [segment.base_offset for segment in log.segments[-_SEGMENTS_SEARCHED:]]
    at, end = max(bases[0], log.log_start_offset), max(before.values())
    while at < end:
        data = log.read(at, _READ_BYTES).data
        last = at
        for batch in iter_batches(data):
            if batch.end_position > len(data):
                break
            at = batch.last_offset + 1
            if not isinstance(batch, BatchHeader) or not batch.is_control:
                continue
            if batch.base_offset < before.get(batch.producer_id, 0):
                raw = data[batch.position : batch.end_position]
                marker = parse_end_transaction_marker(raw)
                if marker is not None:
                    found[batch.producer_id] = LastMarker(
                        marker[0], batch.producer_epoch, batch.max_timestamp
                    )
        if at == last:
            break  # nothing more can be read: what is open is aborted then
    return found
