"""The oracle's copy of what each replica's log holds, updated only from new batches."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from checkpoints.types import TopicPartition
from logstore.common.errors import CorruptBatchError
from logstore.format.reader import read_records
from logstore.log import PartitionLog
from replication.decisions.isr import IsrState
from replication.simulator.world.disk import SimDisk

_HEADER = struct.Struct(">qiibIhi")  # base offset … last offset delta
_PREFIX = 12


class OracleEntry(NamedTuple):
    """One batch.

    Equal entries of two replicas mean equal bytes, because the checksum covers everything except
    base offset and epoch.
    """

    base: int
    last: int
    epoch: int
    crc: int

    def __str__(self) -> str:
        return f"batch [{self.base}, {self.last}] of epoch {self.epoch} with CRC {self.crc:08x}"


_MOST_RECORDS = 1 << 16  # offsets of a batch: no schedule writes so many


class OracleLog:
    """The log of one replica in one incarnation.

    Attributes:
        entries: offset → its batch.
        end: the log end offset at the last check.
    """

    __slots__ = (
        "_durable",
        "_position",
        "_segment",
        "cuts",
        "disk",
        "end",
        "entries",
        "log",
        "tp",
    )

    def __init__(self, tp: TopicPartition, log: PartitionLog, disk: SimDisk) -> None:
        self.tp, self.log, self.disk = tp, log, disk
        self.entries: dict[int, OracleEntry] = {}
        self.read_all()

    @property
    def start(self) -> int:
        return self.log.log_start_offset

    def read_all(self) -> None:
        self.entries = {}
        self.cuts = self.log.snapshot.version
        self._segment, self._position = -1, 0
        self._durable = (-1, 0)
        self.end = self.log.log_end_offset
        for _ in self.read_new():
            pass

    def read_new(self) -> Iterator[OracleEntry]:
        """Yield the batches since the last call, each after it was added to ``entries``."""
        log = self.log
        self.end = log.log_end_offset
        for segment in log.segments:
            if segment.base_offset < self._segment:
                continue
            if segment.base_offset != self._segment:
                self._segment, self._position = segment.base_offset, 0
            size = segment.size
            if self._position >= size:
                continue
            node = self.disk.peek(segment.log_path)
            if node is None:
                continue
            data, position = node.data, self._position
            while position + _HEADER.size <= size:
                base, length, epoch, _, crc, _, delta = _HEADER.unpack_from(data, position)
                position += _PREFIX + length
                if length <= 0 or position > size or not 0 <= delta < _MOST_RECORDS:
                    break  # damage
                entry = OracleEntry(base, base + delta, epoch, crc)
                for offset in range(base, entry.last + 1):
                    self.entries[offset] = entry
                self._position = position
                yield entry

    def values_at(self, offset: int) -> dict[int, bytes]:
        """Offset → value of the records in the batch of ``offset``, from the disk.

        A control batch has none.
        """
        entry = self.entries[offset]
        for segment in self.log.segments:
            node, position, size = self.disk.peek(segment.log_path), 0, segment.size
            while node is not None and position + _HEADER.size <= size:
                base, length, *_ = _HEADER.unpack_from(node.data, position)
                end = position + _PREFIX + length
                if length <= 0 or end > size:
                    break
                if base == entry.base:
                    with suppress(CorruptBatchError):  # a bit has flipped since it was written
                        records = read_records(bytes(node.data[position:end]))
                        return {record.offset: bytes(record.value or b"") for record in records}
                position = end
        return {}

    def first_not_durable(self) -> int | None:
        """Base offset of the first batch that may lose bytes in a power loss now."""
        for segment in self.log.segments:
            base, size = segment.base_offset, segment.size
            if base < self._durable[0]:
                continue
            start = self._durable[1] if base == self._durable[0] else 0
            if start < size and not self.disk.is_durable(segment.log_path, start, size):
                return self._first_of(segment.log_path, start, size, base)
            self._durable = (base, size)
        return None

    def _first_of(self, path: str, position: int, size: int, base: int) -> int:
        """``first_not_durable`` among the batches of a segment from ``position`` on."""
        node = self.disk.peek(path)
        while node is not None and position + _HEADER.size <= size:
            base, length, *_ = _HEADER.unpack_from(node.data, position)
            if length <= 0 or not self.disk.is_durable(path, position, position + _PREFIX + length):
                break
            position += _PREFIX + length
        return base


@dataclass(slots=True)
class View:
    """One replica at the last check."""

    shadow: OracleLog
    incarnation: int
    leader_epoch: int = -1
    partition_epoch: int = -1
    leads: bool = False
    isr: IsrState = field(default_factory=lambda: IsrState(()))
    high_watermark: int = -1
    undone: dict[int, OracleEntry] = field(
        default_factory=dict
    )  # removed by a truncation that may not be durable yet
    led_from: int = -1  # the high watermark when its leadership began
    state: tuple[object, ...] = ()
    began_in: int = -1  # the leader epoch in which its process created its log
