"""The cases that look like a broken promise and that the oracle accepts, each with its reason.

Each use is counted, so that a search reports how much it did not judge. docs/simulator.md lists the
excuses.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum

PREFIX = "excused: "


class Excuse(Enum):
    """An excuse. The value is the name under which it is counted."""

    CUT_LOST = "a cut came back"
    WRITE_UNDER_WAY = "a write under way at the end"
    NOT_SYNCED_YET = "a record that waits for its sync"
    DAMAGED = "a damaged disk"
    ELECTED_UNCLEANLY = "a record that an unclean election lost"
    DELETED = "deleted records"
    REPEATED_WRITE = "a write that the network repeated"
    FORGOTTEN = "records that a replica forgot"
    STORAGE_ERROR = "an error of a disk that was told to fail"
    DAMAGE_REPORTED = "damage reported on a damaged disk"


class Excuses:
    """Counts into ``counters``."""

    def __init__(self, counters: Counter[str]) -> None:
        self._counters = counters

    def use(self, excuse: Excuse) -> None:
        self._counters[PREFIX + excuse.value] += 1
