"""Positions in a log as users write them: offsets, counts from the end, times."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

from checkpoints.printable import printable
from checkpoints.types import TopicPartition
from logstore.cli.common.exits import fail
from logstore.format.reader import MAX_OFFSET

FORMS = "OFFSET|-N|earliest|latest|@TIME"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN = 80
_NUMBER = re.compile(r"-?[0-9]{1,40}")

Note = Callable[[str], None]


class PartitionPlaces(Protocol):
    """The places of the offsets of one partition."""

    @property
    def topic_partition(self) -> TopicPartition: ...

    def earliest(self) -> int: ...

    def latest(self) -> int:
        """The offset of the next record."""
        ...

    def first_at(self, timestamp: int) -> int:
        """The first offset at or after ``timestamp`` ms, or the end."""
        ...

    def last(self, count: int) -> int:
        """The offset of the last ``count`` records, or of the first if there are fewer."""
        ...


def begin(reader: PartitionPlaces, text: str, option: str, note: Note) -> int:
    """The offset of ``text`` in one log, at least its first. -N means the last N records."""
    if text == "earliest":
        return reader.earliest()
    if text == "latest":
        return reader.latest()
    if text.startswith("@"):
        return reader.first_at(moment(text[1:], option))
    number = _number(text, option)
    if number < 0:
        return reader.last(-number)
    earliest = reader.earliest()
    if number < earliest:
        note(f"{reader.topic_partition} begins at offset {earliest}")
    return max(number, earliest)


def end(reader: PartitionPlaces, text: str | None, option: str) -> int:
    """The exclusive end offset. -N leaves out the last N records, None nothing."""
    if text is None:
        return MAX_OFFSET
    if text == "latest":
        return reader.latest()
    if text == "earliest":
        return reader.earliest()
    if text.startswith("@"):
        return reader.first_at(moment(text[1:], option))
    number = _number(text, option)
    return number if number >= 0 else reader.last(-number)


def check(text: str | None, option: str) -> None:
    """Refuse an invalid position before anything is read."""
    if text is None or text in ("earliest", "latest"):
        return
    if text.startswith("@"):
        moment(text[1:], option)
    else:
        _number(text, option)


def _number(text: str, option: str) -> int:
    shown = printable(text, _SHOWN)
    if not _NUMBER.fullmatch(text) or text == "-0":
        fail(f"{option} {shown}: give an offset, earliest, latest, -N for the last N, or @TIME")
    number = int(text)
    if abs(number) > MAX_OFFSET:
        fail(f"{option} {shown}: no offset is above {MAX_OFFSET}")
    return number


def moment(text: str, option: str) -> int:
    """Milliseconds since 1970, from that number or from an ISO 8601 date and time.

    Without a zone the time is UTC.
    """
    shown = printable(text, _SHOWN)
    if text.isascii() and text.isdigit():
        if len(text) > 40 or int(text) > MAX_OFFSET:
            fail(f"{option} @{shown}: no timestamp is above {MAX_OFFSET}")
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        fail(f"{option} @{shown}: give milliseconds, or a time such as 2026-11-01T12:00+01:00")
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    # An exact division: a float would be off by a millisecond, and early years overflow in UTC.
    return (found - _EPOCH) // timedelta(milliseconds=1)
