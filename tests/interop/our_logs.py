"""Partition directories that this library wrote, with the records that were put in.

What a log holds is told by what was appended, never by reading it back. Times are fixed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafka_logs import CODECS
from reading import RecordFields

from logstore import AppendInfo, AppendOrigin, LogConfig, RecoveryOptions
from logstore.format.batch import encode_batch, end_transaction_marker
from logstore.format.codecs.compression import Compression
from logstore.format.control import ControlType
from logstore.log import LogOwner, PartitionLog
from logstore.testing import ManualClock

START_MS = 1_700_000_000_000
CONFIG = LogConfig(
    segment_bytes=16 * 1024,
    segment_index_bytes=64 * 1024,
    index_interval_bytes=512,
    retention_ms=-1,
)
BATCH_RECORDS = 12
FIRST_PRODUCER_ID = 9_000_000
"""Beyond what a broker of a test hands out: its own producers are others than ours."""

CUT = (40, 5)
"""What a truncation leaves: whole batches, and records of the next one, lost as a whole."""

TORN = bytes(range(1, 200))
"""What a crash may leave behind the last batch: no whole one."""

Tuple = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]


@dataclass(slots=True)
class OurLog:
    """A partition directory as it was left, and what consumers must read from it."""

    path: Path
    uncommitted: list[RecordFields]
    committed: list[RecordFields]
    log_start_offset: int
    closed: bool
    """In good order; otherwise with a torn tail and indexes as a killed process leaves them."""

    @property
    def topic(self) -> str:
        return self.path.name.rpartition("-")[0]


@dataclass(slots=True)
class Writer:
    """Appends to one log and keeps the account of it."""

    root: Path
    topic: str
    config: LogConfig = CONFIG
    clock: ManualClock = field(default_factory=lambda: ManualClock(START_MS))
    log: PartitionLog = field(init=False)
    _written: list[RecordFields] = field(default_factory=list)
    _open: dict[int, list[int]] = field(default_factory=dict)  # producer -> offsets
    _aborted: set[int] = field(default_factory=set)
    _sequences: dict[int, int] = field(default_factory=dict)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.topic)
        self.open()

    def open(self, *, clean: bool = True) -> None:
        self.log = PartitionLog.open(
            self.root / f"{self.topic}-0",
            self.config,
            clock=self.clock,
            options=RecoveryOptions(keep_cut="always"),
            owner=LogOwner(clean_shutdown=clean),
        )

    def records(self, count: int = BATCH_RECORDS, *, rich: bool = False) -> list[Tuple]:
        """Return new records; ``rich`` ones have headers, null and empty keys and values."""
        result: list[Tuple] = []
        for number in range(count):
            self.clock.advance(7)
            timestamp = self.clock.wall_ms() - self._random.randrange(500)
            key: bytes | None = self._random.randbytes(self._random.randrange(20))
            value: bytes | None = b"value %d " % number * self._random.randrange(20)
            headers: list[tuple[str, bytes | None]] = []
            if rich:
                key = None if number % 3 == 0 else key
                value = None if number % 5 == 0 else value
                headers = [("h", b"1"), ("h", None), ("", b""), ("naïve-ключ", b"\0")][: number % 5]
            result.append((key, value, timestamp, headers))
        return result

    def append(self, *, count: int = BATCH_RECORDS, rich: bool = False, **how: Any) -> AppendInfo:
        records = self.records(count, rich=rich)
        info = self.log.append(records, **how)
        self._account(info, records, how.get("leader_epoch"))
        return info

    def append_batches(self, batches: int, **how: Any) -> None:
        """Append ready-made batches of no producer in one call."""
        data = bytearray()
        records: list[Tuple] = []
        for _ in range(batches):
            some = self.records()
            data += encode_batch(some, **how)
            records += some
        info = self.log.append_as_leader(bytes(data), max(self.log.epochs.latest, 0))
        self._account(info, records, None)

    def produce(self, producer_id: int, batches: int = 1, *, transactional: bool = False) -> bytes:
        """Append numbered batches, each in its own call (F-165); the bytes of the last one."""
        data = b""
        for _ in range(batches):
            some = self.records()
            sequence = self._sequences.get(producer_id, 0)
            self._sequences[producer_id] = sequence + len(some)
            data = bytes(
                encode_batch(
                    some,
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=sequence,
                    transactional=transactional,
                )
            )
            info = self.log.append_as_leader(data, max(self.log.epochs.latest, 0))
            self._account(info, some, None)
            if transactional:
                self._open.setdefault(producer_id, []).extend(
                    range(info.first_offset, info.last_offset + 1)
                )
        return data

    def end_transaction(self, producer_id: int, outcome: ControlType) -> None:
        self.log.append_as_leader(
            end_transaction_marker(
                outcome,
                producer_id=producer_id,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp=self.clock.wall_ms(),
            ),
            max(self.log.epochs.latest, 0),
            AppendOrigin.COORDINATOR,
        )
        offsets = self._open.pop(producer_id)
        if outcome is ControlType.ABORT:
            self._aborted.update(offsets)

    def truncate(self, whole_batches: int, records_of_the_next: int) -> None:
        """Cut inside a batch, of which nothing remains; the log ends at the offset of the cut.

        Only for a log of nothing but batches of ``BATCH_RECORDS``.
        """
        kept = whole_batches * BATCH_RECORDS
        self.log.truncate_to(kept + records_of_the_next)
        self._written = [record for record in self._written if record["offset"] < kept]

    def _account(self, info: AppendInfo, records: Sequence[Tuple], epoch: int | None) -> None:
        stamped = info.log_append_time >= 0
        for offset, (key, value, timestamp, headers) in enumerate(records, info.first_offset):
            self._written.append(
                {
                    "topic": self.topic,
                    "partition": 0,
                    "offset": offset,
                    "timestamp": info.log_append_time if stamped else timestamp,
                    "timestampType": "LogAppendTime" if stamped else "CreateTime",
                    "key": key,
                    "value": value,
                    "headers": headers,
                    "leaderEpoch": max(self.log.epochs.latest, 0) if epoch is None else epoch,
                }
            )

    def result(self, *, closed: bool = True) -> OurLog:
        start = self.log.log_start_offset
        written = [record for record in self._written if record["offset"] >= start]
        stable = min(
            (offset for offsets in self._open.values() for offset in offsets),
            default=self.log.log_end_offset,
        )
        committed = [
            record
            for record in written
            if record["offset"] < stable and record["offset"] not in self._aborted
        ]
        path = Path(self.log.directory)
        return OurLog(path, written, committed, start, closed)

    def close(self) -> OurLog:
        result = self.result()
        self.log.close()
        return result

    def kill(self) -> OurLog:
        """End as SIGKILL does, within a write."""
        result = self.result(closed=False)
        active = Path(self.log.segments[-1].log_path)
        self.log.crash()
        with active.open("ab") as log:
            log.write(TORN)
        return result


# --- the logs -----------------------------------------------------------------------------------


def _codec(codec: str) -> Callable[[Path], OurLog]:
    def write(root: Path) -> OurLog:
        writer = Writer(root, f"our-codec-{codec}")
        for _ in range(40):
            writer.append(compression=codec)
            writer.append_batches(1, compression=Compression[codec.upper()])
        return writer.close()

    return write


def _mixed(root: Path) -> OurLog:
    """Every codec in one log, headers, null keys and values."""
    writer = Writer(root, "our-headers")
    for _ in range(15):
        for codec in CODECS:
            writer.append(compression=codec, rich=True)
    return writer.close()


def _single_calls(root: Path) -> OurLog:
    """Several batches in one call: one write, yet each is found (F-131)."""
    writer = Writer(root, "our-multi-batch")
    for batches in (1, 5, 2, 9, 1, 1, 12, 3, 7, 11):
        writer.append_batches(batches)
    return writer.close()


def _idempotent(root: Path) -> OurLog:
    writer = Writer(root, "our-idempotent")
    for _ in range(20):
        for producer in range(3):
            last = writer.produce(FIRST_PRODUCER_ID + producer, 2)
        end = writer.log.log_end_offset
        writer.log.append_as_leader(last, 0)  # sent again: told, and not written (F-185)
        assert writer.log.log_end_offset == end
    return writer.close()


def _transactional(root: Path) -> OurLog:
    """Three producers at once, commits, aborts, records outside, and one left open."""
    writer = Writer(root, "our-transactional")
    outcomes = [ControlType.COMMIT, ControlType.ABORT, ControlType.ABORT, ControlType.COMMIT]
    first, second, third = (FIRST_PRODUCER_ID + 10 + number for number in range(3))
    for number in range(24):
        writer.produce(first, transactional=True)
        writer.produce(second, 2, transactional=True)
        writer.append()
        writer.end_transaction(first, outcomes[number % 4])
        if number % 3 == 0:
            writer.produce(third, transactional=True)
            writer.end_transaction(third, outcomes[number // 3 % 4])
        writer.end_transaction(second, outcomes[number % 3])
    writer.produce(first, transactional=True)
    writer.append()
    writer.produce(second, transactional=True)
    writer.end_transaction(second, ControlType.COMMIT)
    return writer.close()


def _append_time(root: Path) -> OurLog:
    """F-94: the batch tells the time, also of compressed ones."""
    config = CONFIG.with_properties({"message.timestamp.type": "LogAppendTime"})
    writer = Writer(root, "our-append-time", config)
    for number in range(60):
        writer.append(compression=CODECS[number % len(CODECS)])
        writer.append_batches(1)
    return writer.close()


def _epochs(root: Path) -> OurLog:
    """Several leaders, of which some wrote nothing."""
    writer = Writer(root, "our-epochs")
    for epoch in (0, 1, 4, 5, 9):
        writer.log.epochs.assign(epoch)
        for _ in range(0 if epoch == 4 else 14):
            writer.append(leader_epoch=epoch)
    return writer.close()


def _truncated(root: Path) -> OurLog:
    """Cut inside a batch, which goes as a whole, and written on from the offset of the cut."""
    writer = Writer(root, "our-truncated")
    for _ in range(60):
        writer.append(leader_epoch=2)
    writer.truncate(*CUT)
    for _ in range(20):
        writer.append(leader_epoch=3)
    return writer.close()


def _cut_last(root: Path) -> OurLog:
    """Cut back into a segment that was rolled long ago, and closed without another append."""
    config = CONFIG.with_properties({"index.interval.bytes": 4096})
    writer = Writer(root, "our-cut-last", config)
    for _ in range(50):
        writer.append()
    writer.truncate(33, 4)
    return writer.close()


def _deleted(root: Path) -> OurLog:
    """Retention by size, then a log start offset inside a batch (F-282 … F-288)."""
    config = CONFIG.with_properties({"retention.bytes": 4 * CONFIG.segment_bytes})
    writer = Writer(root, "our-deleted", config)
    for _ in range(80):
        writer.append()
    assert writer.log.maintenance.delete_old_segments() > 0
    start = writer.log.delete_records(writer.log.log_start_offset + 3 * BATCH_RECORDS + 5)
    assert start > writer.log.segments[0].base_offset
    return writer.close()


def _recovered(root: Path) -> OurLog:
    """Killed within a write, recovered, and written on. What was cut stays in a ``.cut`` file."""
    writer = Writer(root, "our-recovered")
    _fill(writer)
    writer.kill()
    writer.open(clean=False)
    assert writer.log.recovery_report.bytes_cut == len(TORN)
    _fill(writer)
    return writer.close()


def _killed(root: Path) -> OurLog:
    """As a killed process leaves it: for a broker that recovers."""
    config = CONFIG.with_properties({"retention.bytes": 4 * CONFIG.segment_bytes})
    writer = Writer(root, "our-killed", config)
    _fill(writer)
    assert writer.log.maintenance.delete_old_segments() > 0  # leaves .deleted files
    return writer.kill()


def _fill(writer: Writer) -> None:
    producer = FIRST_PRODUCER_ID + 20
    for number in range(30):
        writer.append(compression=CODECS[number % len(CODECS)])
        writer.produce(producer, 3, transactional=True)
        writer.end_transaction(producer, (ControlType.COMMIT, ControlType.ABORT)[number % 2])


def _empty(root: Path) -> OurLog:
    return Writer(root, "our-empty").close()


_WRITERS: Iterable[Callable[[Path], OurLog]] = (
    *(_codec(codec) for codec in CODECS),
    _mixed,
    _single_calls,
    _idempotent,
    _transactional,
    _append_time,
    _epochs,
    _truncated,
    _cut_last,
    _deleted,
    _recovered,
    _killed,
    _empty,
)


def build(root: Path) -> dict[str, OurLog]:
    """Write all logs below ``root``; by topic, each with a partition 0."""
    root.mkdir(parents=True, exist_ok=True)
    logs = [write(root) for write in _WRITERS]
    return {log.topic: log for log in logs}
