"""Reports of what an adoption found, and cannot carry: for people, and for programs."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import asdict, dataclass
from enum import Enum
from typing import NamedTuple

from checkpoints.printable import printable

NAMED = 3  # how many of a kind a line names
NOT_CARRIED = "not carried: "
_WORD = re.compile("_([a-z])")


class Kind(Enum):
    """Subjects of notes: the words, which programs may know, and what they mean after a number
    of things."""

    NO_METADATA = (
        "no metadata",
        "the topics and replicas are those whose logs are here (there is no __cluster_metadata-0)",
    )
    DELETED = (
        "deleted",
        "directories of deleted logs, which brokers remove a minute after they start",
    )
    LEFT_ALONE = (
        "left alone",
        "directories that a broker had set aside, or was moving, or that have no name of a log",
    )
    UNKNOWN_TOPIC = (
        "unknown to the metadata",
        "topics, not served: deleted, or made after what the metadata says",
    )
    TWO_IDS = (
        "two topics of one name",
        "topics, not served: move the logs of one id aside, as nothing tells which is right",
    )
    FEW_PARTITIONS = (
        "nearly no partition",
        "topics, not served: most of their partitions are missing",
    )
    WITHOUT_ID = "without an id", "topics without partition.metadata; they get an id"
    KEEP_ALL = (
        "retention unknown",
        "topics keep everything until somebody sets their retention.ms: a broker's is not known",
    )
    UNKNOWN_CONFIG = "unknown configuration", "keys of topics, left out"
    BROKER_CONFIG = f"{NOT_CARRIED}broker configuration", "keys that brokers were told at run time"
    TIERED = "tiered storage", "topics have older records there, which are not served"
    OTHER_ID = "of another id", "logs, not served: their topic was recreated"
    DAMAGED = "damaged", "logs that cannot be opened: see logstore rescue"
    MOVED = "moved away", "logs, not served: the metadata has their replicas elsewhere"
    WITHOUT_LOG = "without a log", "partitions, offline: no log of theirs is here"
    OUT_OF_SYNC = (
        "out of sync",
        "partitions, offline: their logs here may lack committed records, and only an unclean "
        "election serves them",
    )
    CUT_SHORT = (
        "cut short",
        "partitions lack records that were committed, or are whole behind damage: see logstore "
        "rescue, or take a copy while no broker writes",
    )
    BEHIND = (
        "behind",
        "partitions have replicas that lag behind their leader, and stay out: nothing is copied",
    )
    EXPIRED = (
        "past their retention",
        "partitions have records older than their topic's retention.ms, which the brokers delete",
    )
    ABSENT = "absent brokers", "brokers have replicas, and are not here"
    TOO_FEW = (
        "too few replicas",
        "partitions can be read; for acks=all they are NOT_ENOUGH_REPLICAS (min.insync.replicas)",
    )
    OPEN = "open transactions", "partitions have some, which end at their time-out at the latest"
    HANGING = (
        "hanging transactions",
        "partitions have some that no coordinator knows, and that hold read_committed readers up: "
        "kafka-transactions.sh abort ends them",
    )
    AHEAD = (
        "groups ahead of logs",
        "committed offsets lie above the end of their log: such a group skips what is written up "
        "to them, so give it the log's end by kafka-consumer-groups.sh --reset-offsets first",
    )
    MISPLACED = "misplaced keys", "coordinators' topics have keys where nobody looks for them"
    UNREADABLE = "unreadable records", "partitions of coordinators have some"

    def note(self, names: Collection[str] = ()) -> Remark:
        return Remark(*self.value, tuple(names), len(names))


@dataclass(frozen=True, slots=True)
class Remark:
    """One kind of what is not as it was.

    Attributes:
        kind: the words of a ``Kind``, or "not carried: …".
        text: what that means, after the number of things.
        names: the things, if they have names.
        count: their number; 0 for what is not counted.
    """

    kind: str
    text: str
    names: tuple[str, ...] = ()
    count: int = 0

    def __str__(self) -> str:
        shown = ", ".join(printable(name, 120) for name in self.names[:NAMED])
        more = f" and {self.count - NAMED} more" if self.count > NAMED else ""
        named = f" ({shown}{more})" if shown else ""
        number = f"{self.count} " if self.count else ""
        return f"{self.kind}: {number}{self.text}{named}".rstrip()


class Adoption(NamedTuple):
    """A summary of what was adopted. ``led``: how many of the partitions have a leader here.

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
    notes: tuple[Remark, ...]

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
        fields = {**self._asdict(), "notes": [asdict(note) for note in self.notes]}
        return {
            _WORD.sub(lambda match: match[1].upper(), key): value for key, value in fields.items()
        }
