"""What a log should hold, kept beside it as plain lists, and an independent reader of its files."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from logstore.format.batch import encode_batch, end_transaction_marker
from logstore.format.codecs.compression import Compression
from logstore.format.control import ControlType
from logstore.format.reader import batch_records, iter_batches
from logstore.log import PartitionLog
from logstore.storage.base import Storage

_PREFIX = struct.Struct(">qi")
_EPOCH_AT = 12


class Batch(NamedTuple):
    """One batch as it must lie in the file. ``commit`` is None but for a transaction marker."""

    data: bytes
    base: int
    last: int
    epoch: int
    stamps: tuple[int, ...]
    producer: int = -1
    producer_epoch: int = -1
    sequence: int = -1
    transactional: bool = False
    commit: bool | None = None
    deltas: tuple[int, ...] | None = None
    """Of the records that a compaction left; None: all are there."""

    @property
    def rows(self) -> list[tuple[int, int]]:
        """Timestamp and offset of each record."""
        deltas = range(len(self.stamps)) if self.deltas is None else self.deltas
        return [(stamp, self.base + at) for stamp, at in zip(self.stamps, deltas, strict=True)]

    @property
    def last_sequence(self) -> int:
        return self.sequence + self.last - self.base if self.sequence >= 0 else -1

    def __repr__(self) -> str:
        told = f"[{self.base}..{self.last}@{self.epoch}"
        if self.producer >= 0:
            told += f" p{self.producer}/{self.producer_epoch}"
            kind = "txn " if self.transactional else ""
            ends = {None: f"{kind}#{self.sequence}", True: "commit", False: "abort"}
            told += f" {ends[self.commit]}"
        return told + "]"


def data_batch(
    base: int,
    epoch: int,
    records: Sequence[tuple[bytes | None, bytes | None, int]],
    *,
    producer: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
    compression: Compression = Compression.NONE,
) -> Batch:
    data = encode_batch(
        records,
        base_offset=base,
        leader_epoch=epoch,
        compression=compression,
        producer_id=producer,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    return Batch(
        bytes(data),
        base,
        base + len(records) - 1,
        epoch,
        tuple(r[2] for r in records),
        producer,
        producer_epoch,
        sequence,
        transactional,
    )


def marker_batch(
    base: int, epoch: int, producer: int, producer_epoch: int, commit: bool, stamp: int
) -> Batch:
    data = end_transaction_marker(
        ControlType.COMMIT if commit else ControlType.ABORT,
        producer_id=producer,
        producer_epoch=producer_epoch,
        coordinator_epoch=0,
        timestamp=stamp,
        base_offset=base,
        leader_epoch=epoch,
    )
    return Batch(
        bytes(data), base, base, epoch, (stamp,), producer, producer_epoch, -1, True, commit
    )


def as_client(batch: Batch) -> bytes:
    """The batch as a producer sends it: base offset 0, no leader epoch."""
    data = bytearray(batch.data)
    data[0:8] = bytes(8)
    data[_EPOCH_AT : _EPOCH_AT + 4] = b"\xff" * 4
    return bytes(data)


@dataclass(slots=True)
class Producer:
    """What idempotence must remember of one producer id."""

    epoch: int
    last_sequence: int = -1
    last_offset: int = -1
    txn_first: int = -1


@dataclass(slots=True)
class Replay:
    """Everything that follows from the batches alone."""

    producers: dict[int, Producer] = field(default_factory=dict)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)

    def apply(self, batch: Batch) -> None:
        if batch.producer < 0:
            return
        known = self.producers.get(batch.producer)
        if known is None or known.epoch != batch.producer_epoch:
            txn_first = known.txn_first if known else -1
            known = self.producers[batch.producer] = Producer(
                batch.producer_epoch, txn_first=txn_first
            )
        if batch.commit is not None:
            if not batch.commit and known.txn_first >= 0:
                self.aborted.append((batch.producer, known.txn_first, batch.base))
            known.txn_first = -1
            return
        known.last_sequence, known.last_offset = batch.last_sequence, batch.last
        if batch.transactional and known.txn_first < 0:
            known.txn_first = batch.base


def replay(batches: Iterable[Batch]) -> Replay:
    state = Replay()
    for batch in batches:
        state.apply(batch)
    return state


@dataclass(slots=True)
class Model:
    """One log. ``flushed`` is the offset below which every batch must survive any crash."""

    batches: list[Batch] = field(default_factory=list)
    start: int = 0
    leo: int = 0
    flushed: int = 0
    reached: int = 0
    """How far a flush before a cut that is under way may have come."""
    epoch: int = 0
    durable_start: int = 0
    """The log start in the last checkpoint that was written: a crash never goes below it."""
    ghost: list[Batch] | None = None
    """The log before a truncation that is not durable yet: until the next write it may be back."""
    forgotten: int = 0
    """The highest log start so far: of what lies below, producer state may be gone for good."""
    history: dict[bytes, Batch] = field(default_factory=dict)
    """Every batch that was ever in the log: what lies below the log start may come back."""
    appended: list[Batch] = field(default_factory=list)
    """The same log before any compaction, and with what was deleted from its beginning."""
    snapshots: list[int] = field(default_factory=list)
    """Where the state of the producers is durable."""
    compacted: bool = False
    cut: bool = False
    """A cursor may be ahead of it."""
    emptied: int = 0
    """How often all its records were dropped."""
    cursor: int | None = None
    """The committed position of a reader."""

    def copy(self, **changes: object) -> Model:
        return replace(self, **changes)  # type: ignore[arg-type]

    def add(self, batches: Iterable[Batch]) -> None:
        self.batches = list(self.batches)  # a copy has the same
        self.appended = list(self.appended)
        for batch in batches:
            self.batches.append(batch)
            self.appended.append(batch)
            self.history[batch.data] = batch
            self.leo = batch.last + 1
            self.epoch = max(self.epoch, batch.epoch)

    def below(self, offset: int) -> list[Batch]:
        """What a truncation to ``offset`` leaves."""
        return [batch for batch in self.batches if batch.last < offset]

    def live(self) -> list[Batch]:
        return [batch for batch in self.batches if batch.last >= self.start]

    def remembers(self, log: PartitionLog) -> bool:
        """Whether a snapshot tells what was deleted below the log start, and recovery does not
        begin before it."""
        scanned_from = min(log.recovery_point, log.segments[-1].base_offset)
        return any(log.log_start_offset < at <= scanned_from for at in self.snapshots)

    def restart_log(self, offset: int) -> None:
        self.batches, self.appended, self.snapshots, self.ghost = [], [], [], None
        self.leo = self.start = self.durable_start = offset
        self.compacted, self.cut = False, True
        self.emptied += 1

    def truncate(self, offset: int) -> None:
        self.cut = True
        self.ghost = self.ghost or self.batches
        self.batches = self.below(offset)
        self.appended = [batch for batch in self.appended if batch.last < offset]
        self.snapshots = [at for at in self.snapshots if at <= offset]
        self.leo = min(self.leo, offset)
        self.flushed = min(self.flushed, offset)
        self.start = min(self.start, offset)
        self.durable_start = min(self.durable_start, offset)


def raw_batches(data: bytes) -> list[bytes]:
    """The whole batches of a ``.log`` file; zeros may follow, anything else is a failure."""
    found, position = [], 0
    while len(data) - position >= _PREFIX.size:
        size = _PREFIX.unpack_from(data, position)[1] + _PREFIX.size
        if size < 61 or position + size > len(data):
            break
        found.append(data[position : position + size])
        position += size
    assert not data[position:].strip(b"\0"), f"bytes that are no batch at {position}"
    return found


def base_of(batch: bytes) -> int:
    return int.from_bytes(batch[:8], "big")


def last_of(batch: bytes) -> int:
    return base_of(batch) + int.from_bytes(batch[23:27], "big")


def segment_files(storage: Storage, directory: str) -> list[tuple[int, str]]:
    return sorted(
        (int(entry.name.removesuffix(".log")), os.path.join(directory, entry.name))
        for entry in storage.scan_dir(directory)
        if entry.name.endswith(".log")
    )


def stored_batches(storage: Storage, directory: str) -> list[bytes]:
    """All batches of a directory in the order of its segments, each within its segment's range."""
    files = segment_files(storage, directory)
    found: list[bytes] = []
    for at, (base, path) in enumerate(files):
        batches = raw_batches(storage.read_file(path))
        end = files[at + 1][0] if at + 1 < len(files) else 2**63
        for batch in batches:
            assert base <= base_of(batch) <= last_of(batch) < end, f"{path} holds {base_of(batch)}"
        found += batches
    return found


def read_batches(storage: Storage, directory: str, known: Mapping[bytes, Batch]) -> list[Batch]:
    """All batches of a directory; those that are not ``known`` come from a compaction."""
    return [known.get(data) or _parsed(data) for data in stored_batches(storage, directory)]


def _parsed(data: bytes) -> Batch:
    header = next(iter_batches(data))
    records = list(batch_records(data, header))
    commit = None
    if header.is_control and records:
        key = records[0].key
        assert key is not None
        commit = int.from_bytes(key[2:4], "big") == ControlType.COMMIT
    return Batch(
        data,
        header.base_offset,
        header.last_offset,
        header.leader_epoch,
        tuple(record.timestamp for record in records),
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.is_transactional,
        commit,
        tuple(record.offset - header.base_offset for record in records),
    )
