"""How far a stream has read: the offsets of its checkpoint, and what proves that they still hold.

An offset alone does not tell a log that was cut and written anew past it. So each comes with the
leader epochs below it and the checksum of the batch before it (KIP-320 compares the epochs alone,
since a broker that lost records leads under another epoch; a log opened again after a crash does
not).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from logstore.errors import ConfigError
from logstore.types import TopicPartition

NO_CRC = -1
_EPOCHS_MAX = 8  # a checkpoint of a thousand partitions stays small

Epochs = tuple[tuple[int, int], ...]
"""``(leader epoch, first offset)``, ascending."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The records of a partition below ``offset`` were read.

    ``crc`` is of the batch that holds the last of them, ``NO_CRC`` when there was none; ``epochs``
    are the last ones below ``offset``.
    """

    offset: int
    crc: int = NO_CRC
    epochs: Epochs = ()

    @classmethod
    def of(cls, offset: int, crc: int, epochs: Iterable[tuple[int, int]]) -> Mark:
        below = tuple((epoch, start) for epoch, start in epochs if start < offset)
        return cls(offset, crc, below[-_EPOCHS_MAX:])


Marks = Mapping[TopicPartition, Mark]


def to_json(marks: Marks) -> dict[str, Any]:
    """``offsets`` is what Spark's Kafka source has, and may be given as ``startingOffsets``.

    Equal marks give equal text: Spark compares it to see whether there is something to read.
    """
    offsets: dict[str, dict[str, int]] = {}
    seen: dict[str, dict[str, Any]] = {}
    for (topic, partition), mark in sorted(marks.items()):
        offsets.setdefault(topic, {})[str(partition)] = mark.offset
        if mark.crc != NO_CRC:
            proof = {"crc": mark.crc, "epochs": [list(entry) for entry in mark.epochs]}
            seen.setdefault(topic, {})[str(partition)] = proof
    return {"offsets": offsets, "seen": seen}


def from_json(value: Mapping[str, Any]) -> dict[TopicPartition, Mark]:
    """
    Raises:
        ConfigError: not the offsets of this source: the checkpoint is another query's.
    """
    marks: dict[TopicPartition, Mark] = {}
    try:
        offsets, seen = value["offsets"], value["seen"]
        for topic, partitions in offsets.items():
            for partition, offset in partitions.items():
                proof = seen.get(topic, {}).get(partition, {})
                epochs = tuple((int(epoch), int(start)) for epoch, start in proof.get("epochs", ()))
                mark = Mark(int(offset), int(proof.get("crc", NO_CRC)), epochs)
                marks[TopicPartition(topic, int(partition))] = mark
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"not an offset of this source: {str(value)[:200]} ({error})") from None
    return marks


def common_end(seen: Epochs, offset: int, here: Sequence[tuple[int, int]], log_end: int) -> int:
    """Where what was read up to ``offset``, under ``seen``, and the log as it is part (KIP-279).

    The end of the largest leader epoch that both have, on the side where it ends first: records of
    one epoch and offset are the same. Without any, the first offset of which the epoch is known.
    """
    ends_here = _ends(here, log_end)
    for epoch, end in reversed(_ends(seen, offset).items()):
        if epoch in ends_here:
            return min(end, ends_here[epoch])
    return seen[0][1] if seen else offset


def _ends(epochs: Sequence[tuple[int, int]], end: int) -> dict[int, int]:
    """Epoch -> end offset, ascending."""
    starts = [start for _, start in epochs[1:]]
    return {
        epoch: min(until, end) for (epoch, _), until in zip(epochs, [*starts, end], strict=False)
    }


def share(available: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """Divide ``limit`` offsets by what each partition has, as Spark's Kafka source does.

    A partition that has something gets at least one, so that large ones never starve it; the sum
    may then be above the limit by less than one for each partition.
    """
    total = sum(available.values())
    if total <= limit:
        return dict(available)
    return {tp: max(count * limit // total, min(count, 1)) for tp, count in available.items()}


__all__ = ["NO_CRC", "Epochs", "Mark", "Marks", "common_end", "from_json", "share", "to_json"]
