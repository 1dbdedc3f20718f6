"""How far a stream has read: the offsets of its checkpoint, and what proves that they still hold.

An offset alone tells neither a log that was cut and written anew past it nor another topic of the
same name. So each comes with the topic's id, the leader epochs below it and checksums of batches
below it (KIP-320 compares the epochs alone, since a broker that lost records leads under another
epoch; a log opened again after a crash does not).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from logstore.common.errors import ConfigError
from logstore.common.types import TopicPartition

VERSION = 2
"""Of what ``to_json`` writes. Version 1 had no field ``version``, no topic ids and one proof."""

NO_CRC = -1
_EPOCHS_MAX = 256  # of a partition: about 4 KB of a checkpoint
_ELSEWHERE = "start the query with a new checkpointLocation and startingOffsets"

Epochs = tuple[tuple[int, int], ...]
"""``(leader epoch, first offset)``, ascending."""


class Proof(NamedTuple):
    """The batch that holds ``offset - 1`` has the checksum ``crc``."""

    offset: int
    crc: int


@dataclass(frozen=True, slots=True)
class Mark:
    """The records of a partition below ``offset`` were read.

    ``crc`` is of the batch that holds the last of them, ``NO_CRC`` when there was none. ``epochs``
    are those below ``offset``, the newest ``_EPOCHS_MAX`` of them. ``topic_id`` is "" where none
    was known. ``earlier`` are proofs at about twice, four times … the distance from ``offset``,
    ascending: they tell where a log was cut that goes on under the same epoch.
    """

    offset: int
    crc: int = NO_CRC
    epochs: Epochs = ()
    topic_id: str = ""
    earlier: tuple[Proof, ...] = ()

    @classmethod
    def of(
        cls,
        proof: Proof,
        epochs: Iterable[tuple[int, int]],
        topic_id: str,
        earlier: Iterable[Proof] = (),
    ) -> Mark:
        below = tuple((epoch, start) for epoch, start in epochs if start < proof.offset)
        kept = spread(proof.offset, earlier)
        return cls(*proof, below[-_EPOCHS_MAX:], topic_id, kept)

    @property
    def proof(self) -> Proof:
        return Proof(self.offset, self.crc)

    def epoch_before(self, offset: int) -> int | None:
        """The leader epoch of the record before ``offset``; ``None`` if it is not known."""
        at = bisect_right(self.epochs, offset - 1, key=lambda entry: entry[1]) - 1
        return self.epochs[at][0] if at >= 0 else None


Marks = Mapping[TopicPartition, Mark]


def spread(offset: int, proofs: Iterable[Proof]) -> tuple[Proof, ...]:
    """Of each power of two of the distance from ``offset`` the farthest proof, ascending."""
    kept: dict[int, Proof] = {}
    for proof in sorted(proofs):
        if proof.offset < offset:
            kept.setdefault((offset - proof.offset).bit_length(), proof)
    return tuple(kept.values())


# ---- the text of a checkpoint ------------------------------------------------------------------


def to_json(marks: Marks, began: Marks | None = None, *, first: bool = False) -> dict[str, Any]:
    """``offsets`` is what Spark's Kafka source has, and may be given as ``startingOffsets``.

    Equal marks give equal text: Spark compares it to see whether there is something to read.
    ``first`` marks what Spark asks for anew as long as no micro-batch was committed; ``began``
    keeps what the first micro-batch was planned from.
    """
    offsets: dict[str, dict[str, int]] = {}
    seen: dict[str, dict[str, Any]] = {}
    for (topic, partition), mark in sorted(marks.items()):
        offsets.setdefault(topic, {})[str(partition)] = mark.offset
        if found := _seen(mark):
            seen.setdefault(topic, {})[str(partition)] = found
    text: dict[str, Any] = {"version": VERSION, "offsets": offsets, "seen": seen}
    if began is not None:
        text["began"] = to_json(began)
    if first:
        text["first"] = True
    return text


def _seen(mark: Mark) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if mark.topic_id:
        found["id"] = mark.topic_id
    if mark.crc != NO_CRC:
        found["crc"] = mark.crc
    if mark.epochs:
        found["epochs"] = [list(entry) for entry in mark.epochs]
    if mark.earlier:
        found["earlier"] = [list(proof) for proof in mark.earlier]
    return found


def is_first(value: Mapping[str, Any]) -> bool:
    """Whether offsets are those of ``initialOffset``, which no checkpoint holds yet."""
    return value.get("first") is True


def began_from(start: Mapping[str, Any], end: Mapping[str, Any]) -> dict[TopicPartition, Mark]:
    """Where a micro-batch begins: at ``start``, which Spark has made anew if it is the first one.

    Raises:
        ConfigError: as ``from_json``.
    """
    began = end.get("began") if is_first(start) else None
    return from_json(start if began is None else began)


def from_json(value: Mapping[str, Any]) -> dict[TopicPartition, Mark]:
    """
    Raises:
        ConfigError: not the offsets of this source, or those of a later version.
    """
    version = value.get("version", 1)
    if version not in (1, VERSION):
        raise ConfigError(
            f"the checkpoint has offsets of version {str(version)[:20]}, known are 1 and "
            f"{VERSION}: go on with the version of logstore that wrote it, or {_ELSEWHERE}"
        )
    marks: dict[TopicPartition, Mark] = {}
    try:
        offsets, seen = value["offsets"], value["seen"]
        for topic, partitions in offsets.items():
            for partition, offset in partitions.items():
                found = seen.get(topic, {}).get(partition, {})
                marks[TopicPartition(topic, int(partition))] = _mark(int(offset), found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"the checkpoint is of another source: not an offset of this source: "
            f"{str(value)[:200]} ({error}); {_ELSEWHERE}"
        ) from None
    return marks


def _mark(offset: int, found: Mapping[str, Any]) -> Mark:
    return Mark(
        offset,
        int(found.get("crc", NO_CRC)),
        tuple((int(epoch), int(start)) for epoch, start in found.get("epochs", ())),
        str(found.get("id", "")),
        tuple(Proof(int(at), int(crc)) for at, crc in found.get("earlier", ())),
    )


# ---- where two histories part ------------------------------------------------------------------


def common_end(
    seen: Epochs, offset: int, here: Sequence[tuple[int, int]], log_end: int
) -> tuple[int, bool]:
    """Where what was read up to ``offset``, under ``seen``, and the log as it is part (KIP-279).

    The end of the largest leader epoch that both have, on the side where it ends first: records of
    one epoch and offset are the same. Without any the second value is False: they part no later
    than where either side leaves what lies below the first epoch that was seen, perhaps earlier.
    """
    if not seen or not here:
        return min(offset, log_end), True
    ends_here = _ends(here, log_end)
    for epoch, end in reversed(_ends(seen, offset).items()):
        if epoch in ends_here:
            return min(end, ends_here[epoch]), True
    first_epoch, first_start = seen[0]
    above = (start for epoch, start in here if epoch > first_epoch)
    return min(first_start, next(above, log_end)), False


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


__all__ = [
    "NO_CRC",
    "VERSION",
    "Epochs",
    "Mark",
    "Marks",
    "Proof",
    "began_from",
    "common_end",
    "from_json",
    "is_first",
    "share",
    "spread",
    "to_json",
]
