"""``mirror-report.jsonl``: what was not mirrored as it came, or is not in the mirror any more.

One JSON object a line, appended and synced before what it tells of is done::

    {"at_ms": 1764423000000, "kind": "cut", "topic": "orders", "partition": 0, "from": 12, …}
"""

from __future__ import annotations

import json
import posixpath
import re
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from enum import Enum

from checkpoints.types import TopicPartition
from logstore.common.clock import Clock
from logstore.storage.base import File, Storage

REPORT = "mirror-report.jsonl"
SEARCHED = 4 << 20  # bytes at the end of the file
KEPT = 1000  # the latest events, in memory
REASON_MAX = 2000  # characters
_NUMBER = re.compile(r"-?\b[0-9a-f]*\d[0-9a-f]*\b")


class MirrorEventKind(Enum):
    """What happened, and whether it is a finding: something is missing, or is not certain."""

    CUT = "cut", True
    """Records that the source does not have any more, after an unclean election: they are beside
    the log in a ``.cut`` file, and not in the log."""
    LOST = "lost", True
    """The source deleted records before they were mirrored."""
    SET_ASIDE = "set-aside", True
    """Another topic has the name now; the logs of the former one are in ``-stray`` directories."""
    REFUSED = "refused", True
    """What the source sent is not valid, so it was not appended. It is asked for again."""
    CONTRADICTION = "contradiction", True
    """The source says something else than before. The log stays as it is."""
    FAILED = "failed", True
    """A partition is not mirrored at present, for another reason."""
    GONE = "gone", False
    """The source shows a topic no more: it was deleted, or the rights were. Its logs stay."""
    BACK = "back", False
    """Such a topic is there again."""
    DELETED = "deleted", False
    """Records below the source's log start were deleted here too."""
    CONFIG_UNKNOWN = "config-unknown", False
    """The source does not tell the configuration of a topic."""

    def __init__(self, word: str, is_finding: bool) -> None:
        self.word, self.is_finding = word, is_finding


_KINDS = {kind.word: kind for kind in MirrorEventKind}


@dataclass(frozen=True, slots=True)
class MirrorEvent:
    """
    Attributes:
        tp: the partition; None if the event is about a whole topic.
        first_offset, end_offset: the range that it is about; −1 for none.
    """

    kind: MirrorEventKind
    topic: str
    tp: TopicPartition | None
    reason: str
    first_offset: int = -1
    end_offset: int = -1
    details: Mapping[str, object] = field(default_factory=dict)
    at_ms: int = 0

    def to_json(self) -> dict[str, object]:
        found: dict[str, object] = {
            "at_ms": self.at_ms,
            "kind": self.kind.word,
            "topic": self.topic,
        }
        if self.tp is not None:
            found["partition"] = self.tp.partition
        if self.first_offset >= 0:
            found |= {"from": self.first_offset, "to": self.end_offset}
        return {**found, "reason": self.reason[:REASON_MAX], **self.details}

    @classmethod
    def of_line(cls, line: bytes) -> MirrorEvent | None:
        """What a line tells, without its details. None: a crash has torn it, or it is one of a
        later release."""
        try:
            event = json.loads(line)
            kind, topic = _KINDS[event["kind"]], str(event["topic"])
            tp = TopicPartition(topic, int(event["partition"])) if "partition" in event else None
            span = (int(event["from"]), int(event["to"])) if "from" in event else (-1, -1)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None
        return cls(kind, topic, tp, "", *span)


class MirrorReport:
    """The events of one mirror. Thread-safe.

    An event that repeats, as a refused batch does each time it is asked for, is written once until
    the partition goes on.

    Attributes:
        events: the latest ones of this run, oldest first.
        counts: of all of this run, by kind.
    """

    def __init__(self, directory: str, storage: Storage, clock: Clock) -> None:
        self.path = posixpath.join(directory, REPORT)
        self.counts: Counter[MirrorEventKind] = Counter()
        self._storage, self._clock = storage, clock
        self._events: list[MirrorEvent] = []
        self._open_events: dict[object, MirrorEvent] = {}
        self._file: File | None = None
        self._size = 0
        self._lock = threading.Lock()

    def open(self) -> None:
        """
        Raises:
            OSError: nothing can be written to it.
        """
        with self._lock:
            self._opened()

    @property
    def events(self) -> list[MirrorEvent]:
        with self._lock:
            return list(self._events)

    @property
    def findings(self) -> int:
        """How many events of this run are findings."""
        with self._lock:
            return sum(count for kind, count in self.counts.items() if kind.is_finding)

    def add(
        self,
        kind: MirrorEventKind,
        about: TopicPartition | str,
        reason: str,
        first_offset: int = -1,
        end_offset: int = -1,
        **details: object,
    ) -> MirrorEvent:
        """Write an event, durably.

        Raises:
            OSError: the disk refused. What the event tells of must not be done.
        """
        tp = about if isinstance(about, TopicPartition) else None
        topic = about.topic if isinstance(about, TopicPartition) else about
        event = MirrorEvent(
            kind,
            topic,
            tp,
            reason,
            first_offset,
            end_offset,
            details,
            self._clock.wall_ms(),
        )
        line = json.dumps(event.to_json(), default=str).encode() + b"\n"
        with self._lock:
            file = self._opened()
            file.write_at(self._size, line)
            file.sync()
            self._size += len(line)
            self._events.append(event)
            del self._events[:-KEPT]
            self.counts[kind] += 1
        return event

    def add_once(
        self,
        kind: MirrorEventKind,
        about: TopicPartition | str,
        reason: str,
        first_offset: int = -1,
        end_offset: int = -1,
    ) -> None:
        """As ``add``, unless it is the latest of this kind about that, but for numbers in its
        reason, and not ``over`` since."""
        with self._lock:
            last = self._open_events.get((kind, about))
        if (
            last is not None
            and last.first_offset == first_offset
            and _NUMBER.sub("", last.reason) == _NUMBER.sub("", reason)
        ):
            return
        event = self.add(kind, about, reason, first_offset, end_offset)
        with self._lock:
            self._open_events[kind, about] = event

    def lost_up_to(self, tp: TopicPartition, end: int) -> int:
        """Up to where it says, in any run, that what follows on the end of a log is lost; ``end``
        if it does not. A loss may be said twice if many events came after it."""
        found = end
        for event in self._latest():
            if event.tp != tp:
                continue
            if event.kind is MirrorEventKind.SET_ASIDE:
                found = end  # what came before is of another topic
            elif event.kind is MirrorEventKind.LOST and event.first_offset == found:
                found = max(found, event.end_offset)
        return found

    def gone(self) -> frozenset[str]:
        """The topics that were gone when it last said something of that, in any run."""
        found: dict[str, bool] = {}
        for event in self._latest():
            if event.kind in (MirrorEventKind.GONE, MirrorEventKind.BACK):
                found[event.topic] = event.kind is MirrorEventKind.GONE
        return frozenset(topic for topic, is_gone in found.items() if is_gone)

    def _latest(self) -> list[MirrorEvent]:
        with self._lock:
            return _latest_in(self._opened(), self._size)

    def open_reason(self, kind: MirrorEventKind, about: TopicPartition | str) -> str:
        """The reason of what was reported once and is not over; "" if there is nothing."""
        found = self._open_events.get((kind, about))
        return "" if found is None else found.reason

    def over(self, about: TopicPartition) -> None:
        """Note that a partition goes on: what was reported once may come again."""
        if self._open_events:
            with self._lock:
                for kind in MirrorEventKind:
                    self._open_events.pop((kind, about), None)

    def _opened(self) -> File:
        if self._file is None:
            is_new = self._storage.info(self.path) is None
            self._file = self._storage.open(self.path, create=True)
            self._size = self._file.size()
            if self._size and self._file.read_at(self._size - 1, 1) != b"\n":
                # A crash has torn the last line: the next one must not go on in it.
                self._file.write_at(self._size, b"\n")
                self._size += 1
            if is_new:
                self._storage.sync_dir(posixpath.dirname(self.path))
        return self._file

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None


_NOT_READ = (MirrorEventKind.REFUSED, MirrorEventKind.CONTRADICTION, MirrorEventKind.FAILED)


def troubled(directory: str, storage: Storage) -> frozenset[tuple[str, int | None]]:
    """Partitions, or whole topics, of which the latest part of a report says that they were not
    read at some time.

    Raises:
        OSError: the report cannot be read.
    """
    path = posixpath.join(directory, REPORT)
    info = storage.info(path)
    if info is None or info.is_dir:
        return frozenset()
    with closing(storage.open(path)) as file:
        events = _latest_in(file, file.size())
    return frozenset(
        (event.topic, None if event.tp is None else event.tp.partition)
        for event in events
        if event.kind in _NOT_READ
    )


def _latest_in(file: File, size: int) -> list[MirrorEvent]:
    """The events of the latest part of a report of so many bytes. Its first line may be torn by
    where it begins."""
    lines = file.read_at(max(0, size - SEARCHED), min(size, SEARCHED)).splitlines()
    return [event for event in map(MirrorEvent.of_line, lines) if event is not None]


__all__ = ["REPORT", "MirrorEvent", "MirrorEventKind", "MirrorReport", "troubled"]
