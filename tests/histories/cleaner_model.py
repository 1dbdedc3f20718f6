"""What one pass of the log cleaner leaves, in plain Python: no bytes, no files, no speed.

``tests/interop/test_cleaner_differential.py`` holds it against Kafka's own cleaner, so that it can
stand in for that where there is no JVM. How segments are merged is no part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

NO_TIMESTAMP = -1

Record = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""Offset, timestamp, key, value, headers."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of format 2 without its bytes."""

    magic: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    compression: str
    timestamp_type: str
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    transactional: bool
    control: bool
    delete_horizon_ms: int | None
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class AbortedTxn:
    """An entry of a transaction index."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment that can be cleaned; the batches in it follow from the base of the next one."""

    base_offset: int
    largest_timestamp: int


@dataclass(frozen=True, slots=True)
class LastRecord:
    """What the log remembers of a producer that has not expired."""

    last_data_offset: int | None
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class LogState:
    """A log before a pass. The last segment is the active one."""

    log_start_offset: int
    last_stable_offset: int
    segments: tuple[Segment, ...]
    batches: tuple[Batch, ...]
    aborted: tuple[AbortedTxn, ...]
    producers: Mapping[int, LastRecord]


@dataclass(frozen=True, slots=True)
class Limits:
    """The configuration that counts."""

    delete_retention_ms: int
    min_compaction_lag_ms: int
    keys_max: int
    """After so many keys the offset map is full: slots × load factor."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a pass leaves."""

    end_offset: int
    """The new checkpoint."""
    batches: tuple[Batch, ...]
    aborted: tuple[AbortedTxn, ...]


def one_pass(log: LogState, checkpoint: int | None, now_ms: int, limits: Limits) -> Cleaned | None:
    """Return what one pass leaves of ``log``; None when nothing is dirty."""
    dirty, end = cleanable_range(log, checkpoint, now_ms, limits)
    if dirty >= end:
        return None
    offsets, latest = _newest_offsets(log, dirty, end, limits.keys_max)
    return _rewrite(log, offsets, latest, end, now_ms, limits.delete_retention_ms)


def cleanable_range(
    log: LogState, checkpoint: int | None, now_ms: int, limits: Limits
) -> tuple[int, int]:
    """The first dirty offset, and the base of the first segment that must not be touched."""
    log_end = log.batches[-1].last_offset + 1 if log.batches else log.log_start_offset
    dirty = log.log_start_offset if checkpoint is None else checkpoint
    if not log.log_start_offset <= dirty <= max(log_end, log.segments[-1].base_offset):
        dirty = log.log_start_offset
    *closed, active = log.segments
    end = min(log.last_stable_offset, active.base_offset)
    if limits.min_compaction_lag_ms > 0:
        for segment, after in zip(closed, log.segments[1:], strict=True):
            fresh = segment.largest_timestamp > now_ms - limits.min_compaction_lag_ms
            if after.base_offset > dirty and fresh:
                end = min(end, segment.base_offset)
                break
    end = max(dirty, end)
    return dirty, max((s.base_offset for s in log.segments if s.base_offset <= end), default=0)


def _newest_offsets(
    log: LogState, dirty: int, end: int, keys_max: int
) -> tuple[dict[bytes, int], int]:
    """The newest offset of each dirty key, and up to which offset that is known."""
    offsets: dict[bytes, int] = {}
    latest = -1
    bases = [segment.base_offset for segment in log.segments]
    first = max(base for base in bases if base <= dirty)
    transactions = _Transactions([txn for txn in log.aborted if txn.last_offset >= first])
    for base, following in pairwise(bases):
        if following <= dirty or base >= end:
            continue
        for batch in _between(log.batches, base, following):
            if batch.control:
                transactions.marker(batch)
            elif not transactions.is_aborted(batch):
                for offset, _, key, _, _ in batch.records:
                    if key is None or offset < dirty:
                        continue
                    if len(offsets) >= keys_max:
                        return offsets, latest
                    offsets[key] = latest = offset
            if batch.last_offset >= dirty:
                latest = batch.last_offset
        latest = following - 1
    return offsets, latest


def _rewrite(
    log: LogState,
    offsets: Mapping[bytes, int],
    latest: int,
    end: int,
    now_ms: int,
    delete_retention_ms: int,
) -> Cleaned:
    bases = [segment.base_offset for segment in log.segments]
    rewritten_end = next(base for base in bases if base > latest)
    transactions = _Transactions(log.aborted)
    left = []
    for batch in log.batches:
        if batch.base_offset >= rewritten_end:
            left.append(batch)
            continue
        over = transactions.marker(batch) if batch.control else transactions.is_aborted(batch)
        horizon = batch.delete_horizon_ms
        if batch.control:
            drop_all = over and horizon is not None and horizon <= now_ms
        else:
            drop_all = over
        kept = tuple(
            record
            for record in batch.records
            if not drop_all and (batch.control or _stays(record, batch, offsets, latest, now_ms))
        )
        if kept:
            sets_horizon = horizon is None and (
                (batch.control and over) or any(value is None for _, _, _, value, _ in kept)
            )
            if sets_horizon:
                horizon = now_ms + delete_retention_ms
            left.append(_with_records(batch, kept, horizon))
        elif _last_of_producer(batch, log.producers) or batch.last_offset + 1 == end:
            left.append(replace(batch, compression="none", delete_horizon_ms=None, records=()))
    untouched = [txn for txn in log.aborted if txn.last_offset >= rewritten_end]
    return Cleaned(latest + 1, tuple(left), (*transactions.still_seen, *untouched))


def _stays(
    record: Record, batch: Batch, offsets: Mapping[bytes, int], latest: int, now_ms: int
) -> bool:
    offset, _, key, value, _ = record
    if offset > latest:
        return True
    if key is None or offset < offsets.get(key, -1):
        return False
    horizon = batch.delete_horizon_ms
    return value is not None or horizon is None or now_ms < horizon


def _with_records(batch: Batch, kept: tuple[Record, ...], horizon: int | None) -> Batch:
    if kept == batch.records and horizon == batch.delete_horizon_ms:
        return batch
    max_timestamp = batch.max_timestamp
    if batch.timestamp_type == "CreateTime":
        max_timestamp = max(timestamp for _, timestamp, _, _, _ in kept)
    return replace(batch, records=kept, delete_horizon_ms=horizon, max_timestamp=max_timestamp)


def _last_of_producer(batch: Batch, producers: Mapping[int, LastRecord]) -> bool:
    known = producers.get(batch.producer_id)
    if batch.producer_id < 0 or known is None:
        return False
    if known.last_data_offset is not None:
        return batch.last_offset == known.last_data_offset
    return batch.control and batch.producer_epoch == known.producer_epoch


def _between(batches: Iterable[Batch], first: int, end: int) -> list[Batch]:
    return [batch for batch in batches if first <= batch.base_offset < end]


@dataclass(slots=True)
class _Transactions:
    """Which batches are of aborted transactions, and which markers have lost all their data."""

    coming: Sequence[AbortedTxn]
    still_seen: list[AbortedTxn] = field(default_factory=list)
    """Aborted transactions of which this pass has met a batch before the marker."""
    _committing: set[int] = field(default_factory=set)
    _aborting: dict[int, tuple[AbortedTxn, bool]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.coming = sorted(self.coming, key=lambda txn: txn.first_offset)

    def _begin(self, up_to: int) -> None:
        begun = [txn for txn in self.coming if txn.first_offset <= up_to]
        self.coming = self.coming[len(begun) :]
        for txn in begun:
            self._aborting.setdefault(txn.producer_id, (txn, False))

    def is_aborted(self, batch: Batch) -> bool:
        self._begin(batch.last_offset)
        if not batch.transactional:
            return False
        if batch.producer_id in self._aborting:
            self._aborting[batch.producer_id] = (self._aborting[batch.producer_id][0], True)
            return True
        self._committing.add(batch.producer_id)
        return False

    def marker(self, batch: Batch) -> bool:
        """End the transaction of a marker; whether no batch of it was met."""
        self._begin(batch.last_offset)
        if not batch.records:
            return True
        key = batch.records[0][2]
        assert key is not None
        if int.from_bytes(key[2:4], "big") == 0:
            txn, seen = self._aborting.pop(batch.producer_id, (None, False))
            if txn is not None and seen:
                self.still_seen.append(txn)
            return not seen
        seen = batch.producer_id in self._committing
        self._committing.discard(batch.producer_id)
        return not seen
