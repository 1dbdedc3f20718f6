"""The progress of a stream: offsets for its checkpoint, with proofs that they still hold.

An offset alone does not show that a log was cut and written again past it, or that the topic was
replaced by another of the same name. So each offset comes with the topic's id, and with leader
epochs and batch checksums below it. KIP-320 compares only epochs, because a broker that lost
records leads under another epoch. A log that is opened again after a crash does not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from logstore.common.errors import ConfigError
from logstore.common.types import TopicPartition

VERSION = 2
"""The version that ``to_json`` writes.

Version 1 had no field ``version``, no topic ids and only one proof.
"""

NO_CRC = -1
_EPOCHS_MAX = 256  # for a partition: about 4 KB of a checkpoint
_ELSEWHERE = "start the query with a new checkpointLocation and startingOffsets"

Epochs = tuple[tuple[int, int], ...]
"""``(leader epoch, first offset)``, ascending."""


class Proof(NamedTuple):
    """States that the batch with ``offset - 1`` has the checksum ``crc``."""

    offset: int
    crc: int


@dataclass(frozen=True, slots=True)
class StreamMark:
    """States that the records of a partition below ``offset`` were read.

    ``crc`` is the checksum of the batch with the last of them, ``NO_CRC`` if there was none.
    ``epochs`` are the newest ``_EPOCHS_MAX`` epochs below ``offset``. ``topic_id`` is "" if it was
    not known. ``earlier`` are proofs at about twice, four times … the distance from ``offset``,
    ascending. They show where a log was cut that continues under the same epoch.
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
    ) -> StreamMark:
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


Marks = Mapping[TopicPartition, StreamMark]


def spread(offset: int, proofs: Iterable[Proof]) -> tuple[Proof, ...]:
    """For each power of two the farthest proof within that distance of ``offset``, ascending."""
    kept: dict[int, Proof] = {}
    for proof in sorted(proofs):
        if proof.offset < offset:
            kept.setdefault((offset - proof.offset).bit_length(), proof)
    return tuple(kept.values())


# ---- the text of a checkpoint ------------------------------------------------------------------


def to_json(marks: Marks, began: Marks | None = None, *, first: bool = False) -> dict[str, Any]:
    """The JSON of marks.

    ``offsets`` is as in Spark's Kafka source, and valid as ``startingOffsets``.

    Equal marks give equal text, because Spark compares it to see whether there is something to
    read. ``first`` marks initial offsets, which Spark requests again until a micro-batch was
    committed. ``began`` keeps the marks from which the first micro-batch was planned.
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


def _seen(mark: StreamMark) -> dict[str, Any]:
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
    """Whether these are the offsets of ``initialOffset``, which no checkpoint holds yet."""
    return value.get("first") is True


def began_from(
    start: Mapping[str, Any], end: Mapping[str, Any]
) -> dict[TopicPartition, StreamMark]:
    """Return where a micro-batch begins. For the first, Spark may have requested ``start`` again.

    Raises:
        ConfigError: as ``from_json``.
    """
    began = end.get("began") if is_first(start) else None
    return from_json(start if began is None else began)


def from_json(value: Mapping[str, Any]) -> dict[TopicPartition, StreamMark]:
    """
    Raises:
        ConfigError: the offsets are not of this source, or of a later version.
    """
    version = value.get("version", 1)
    if version not in (1, VERSION):
        raise ConfigError(
            f"the checkpoint has offsets of version {str(version)[:20]}, known are 1 and "
            f"{VERSION}: go on with the version of logstore that wrote it, or {_ELSEWHERE}"
        )
    marks: dict[TopicPartition, StreamMark] = {}
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


def _mark(offset: int, found: Mapping[str, Any]) -> StreamMark:
    return StreamMark(
        offset,
        int(found.get("crc", NO_CRC)),
        tuple((int(epoch), int(start)) for epoch, start in found.get("epochs", ())),
        str(found.get("id", "")),
        tuple(Proof(int(at), int(crc)) for at, crc in found.get("earlier", ())),
    )


def behind(marks: Marks, ends: Mapping[TopicPartition, int]) -> dict[str, str]:
    """How many offsets a query is behind the ends of the logs, named as by Spark's Kafka source."""
    counts = [end - marks[tp].offset for tp, end in ends.items() if tp in marks]
    if not counts:
        return {}
    return {
        "minOffsetsBehindLatest": str(min(counts)),
        "maxOffsetsBehindLatest": str(max(counts)),
        "avgOffsetsBehindLatest": str(sum(counts) / len(counts)),
    }


# ---- where two histories diverge
# ------------------------------------------------------------------


def common_end(
    seen: Epochs, offset: int, here: Sequence[tuple[int, int]], log_end: int
) -> tuple[int, bool]:
    """The offset where the log diverges from what was read up to ``offset`` (KIP-279).

    ``seen`` are the epochs of what was read. Records with the same epoch and offset are the same.
    So the histories diverge at the end of the largest epoch that both have, on the side where it
    ends first. If they share no epoch the second value is False: they diverge at the returned
    offset or earlier.
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
    """Epoch → end offset, ascending."""
    starts = [start for _, start in epochs[1:]]
    return {
        epoch: min(until, end) for (epoch, _), until in zip(epochs, [*starts, end], strict=False)
    }


def share(available: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """Divide ``limit`` offsets in proportion to what partitions have, as Spark's Kafka source does.

    A partition with records gets at least one, so that large ones never starve it. The sum may then
    exceed the limit by less than one for each partition.
    """
    total = sum(available.values())
    if total <= limit:
        return dict(available)
    return {tp: max(count * limit // total, min(count, 1)) for tp, count in available.items()}


__all__ = [
    "NO_CRC",
    "VERSION",
    "Epochs",
    "Marks",
    "Proof",
    "StreamMark",
    "began_from",
    "behind",
    "common_end",
    "from_json",
    "is_first",
    "share",
    "spread",
    "to_json",
]
