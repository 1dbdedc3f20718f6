"""What an adoption found, and what it cannot carry: for people, and for programs."""

from __future__ import annotations

from typing import NamedTuple

from checkpoints.printable import printable

NAMED = 3  # how many of a kind a line names


class Note(NamedTuple):
    """One kind of what is not as it was.

    Attributes:
        kind: the same words in each version, for programs.
        text: what that means, after the number of things.
        names: the things, if they have names; otherwise ``count`` is their number.
    """

    kind: str
    text: str
    names: tuple[str, ...] = ()
    count: int = 0

    @property
    def number(self) -> int:
        return self.count or len(self.names)

    def __str__(self) -> str:
        shown = ", ".join(printable(name, 120) for name in self.names[:NAMED])
        more = f" and {self.number - NAMED} more" if len(self.names) > NAMED else ""
        named = f" ({shown}{more})" if shown else ""
        return f"{self.kind}: {self.number} {self.text}{named}"


class Adoption(NamedTuple):
    """What was adopted. ``led``: how many of the partitions have a leader here.

    ``groups`` and ``transactional_ids`` are those that the partitions with a leader know.
    """

    cluster_id: str
    brokers: tuple[int, ...]
    topics: int
    partitions: int
    led: int
    groups: int
    offsets: int
    transactional_ids: int
    notes: tuple[Note, ...]

    def lines(self) -> list[str]:
        brokers = ", ".join(map(str, self.brokers))
        return [
            f"adopted: cluster {printable(self.cluster_id, 200)}, broker {brokers}: "
            f"{self.topics} topics, {self.led} of {self.partitions} partitions led, "
            f"{self.groups} groups with {self.offsets} offsets, "
            f"{self.transactional_ids} transactional ids",
            *map(str, self.notes),
        ]

    def to_json(self) -> dict[str, object]:
        return {
            "clusterId": self.cluster_id,
            "brokers": list(self.brokers),
            "topics": self.topics,
            "partitions": self.partitions,
            "led": self.led,
            "groups": self.groups,
            "offsets": self.offsets,
            "transactionalIds": self.transactional_ids,
            "notes": [
                {"kind": note.kind, "text": note.text, "count": note.number, "names": list(note.names)}
                for note in self.notes
            ],
        }
