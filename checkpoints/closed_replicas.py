"""``closed-replicas-checkpoint``: the replicas over which a clean stop was written (not Kafka's).

Kafka's marker says that *a* directory was closed under a broker epoch. It does not say which logs
were in it, so a log that is missing, or older than it was, would pass for a whole one. This file
names them, with the end of each log and its latest leader epoch::

    0                                           the version
    8f2b90c1                                    CRC-32 of all bytes after this line
    4 17                                        the broker epochs of the marker, ascending
    orders 0 AQIDBAUGBwgJCgsMDQ4PEA 1200 7      topic, partition, topic id, log end, latest epoch
    orders 1 AQIDBAUGBwgJCgsMDQ4PEA ? -         a replica that was not proven when it was closed

``-`` stands for no topic id, or no epoch. The file counts only beside a marker with the same
epochs: without it, or after a stop of a real Kafka, nothing is known but what is there.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from checkpoints.checkpoint_file import MAX_I32, MAX_I64, VERSION, CheckpointFile, parse_number
from checkpoints.partition_metadata import topic_id_from_text, topic_id_to_text
from checkpoints.types import TopicPartition

CLOSED_REPLICAS = "closed-replicas-checkpoint"
_NONE, _UNPROVEN = b"-", b"?"
_FIELDS = 5


class ClosedReplica(NamedTuple):
    """A log as it was closed. ``latest_epoch`` is that of its last record, or −1."""

    topic_id: uuid.UUID | None
    log_end_offset: int
    latest_epoch: int


@dataclass(frozen=True, slots=True)
class ClosedReplicas:
    """
    Attributes:
        broker_epochs: as of ``clean_shutdown.read_epochs``.
        unproven: replicas that no controller had taken out of the ISR yet, although their logs were
            missing or not as they should have been.
    """

    broker_epochs: tuple[int, ...]
    logs: Mapping[TopicPartition, ClosedReplica] = field(default_factory=dict)
    unproven: Collection[TopicPartition] = ()


class ClosedReplicasFile(CheckpointFile):
    """The file of one log directory."""

    __slots__ = ()

    def read(self) -> ClosedReplicas | None:
        """The content, or ``None`` when the file is missing.

        Raises:
            MalformedCheckpointError: the checksum is wrong, or a line.
            CheckpointFailedError: the medium refused.
        """
        data = self._load()
        return None if data is None else self._parse(data)

    def write(self, closed: ClosedReplicas) -> None:
        """Replace the file atomically and durably.

        Raises:
            CheckpointFailedError: the medium refused.
        """
        lines = [" ".join(map(str, closed.broker_epochs))]
        for (topic, partition), (topic_id, end, epoch) in closed.logs.items():
            name = "-" if topic_id is None else topic_id_to_text(topic_id)
            lines.append(f"{topic} {partition} {name} {end} {'-' if epoch < 0 else epoch}")
        lines += [f"{topic} {partition} - ? -" for topic, partition in sorted(closed.unproven)]
        body = "".join(f"{line}\n" for line in lines).encode()
        self._store(b"%s\n%08x\n%s" % (VERSION, zlib.crc32(body), body))

    def _parse(self, data: bytes) -> ClosedReplicas:
        version, _, rest = data.partition(b"\n")
        checksum, _, body = rest.partition(b"\n")
        if version != VERSION:
            raise self._fault(1, version, "unknown version")
        if checksum != b"%08x" % zlib.crc32(body) or not body.endswith(b"\n"):
            raise self._fault(2, checksum, "is not the checksum of what follows")
        first, *lines = body[:-1].split(b"\n")
        epochs = [parse_number(text, MAX_I64) for text in first.split()]
        known = [epoch for epoch in epochs if epoch is not None]
        if not known or len(known) < len(epochs) or any(a >= b for a, b in pairwise(known)):
            raise self._fault(3, first, "are not ascending broker epochs")
        logs: dict[TopicPartition, ClosedReplica] = {}
        unproven: set[TopicPartition] = set()
        for number, line in enumerate(lines, 4):
            tp, log = self._entry(number, line)
            if tp in logs or tp in unproven:
                raise self._fault(number, line, "names a replica twice")
            if log is None:
                unproven.add(tp)
            else:
                logs[tp] = log
        return ClosedReplicas(tuple(known), logs, frozenset(unproven))

    def _entry(self, number: int, line: bytes) -> tuple[TopicPartition, ClosedReplica | None]:
        fields = line.split(b" ")
        if len(fields) != _FIELDS:
            raise self._fault(number, line, f"expected {_FIELDS} fields, found {len(fields)}")
        partition, end = parse_number(fields[1], MAX_I32), parse_number(fields[3], MAX_I64)
        epoch = -1 if fields[4] == _NONE else parse_number(fields[4], MAX_I32)
        try:
            topic, id_text = fields[0].decode(), fields[2].decode()
            topic_id = None if fields[2] == _NONE else topic_id_from_text(id_text)
        except ValueError as error:
            raise self._fault(number, line, str(error)) from None
        if not topic or partition is None:
            raise self._fault(number, line, "names no partition")
        tp = TopicPartition(topic, partition)
        if fields[3] == _UNPROVEN:
            return tp, None
        if end is None or epoch is None:
            raise self._fault(number, line, "has no log end offset and epoch")
        return tp, ClosedReplica(topic_id, end, epoch)
