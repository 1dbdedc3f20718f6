"""How two pictures differ, and which differences have a reason."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.adopt.reading import Picture

ABSENT = "absent"


class Reason(NamedTuple):
    """Why values of paths that match may differ, as far as ``holds`` for (Kafka's, ours)."""

    paths: str
    holds: Callable[[Any, Any], bool]
    why: str


def _is_old(timestamp: int) -> bool:
    """By the clock of ``producer.id.expiration.ms``."""
    return timestamp < time.time() * 1000 - 24 * 3600 * 1000


REASONS = (
    Reason(
        r"partition/.*/leader epoch",
        lambda theirs, ours: ours >= theirs,
        "an adopted cluster begins its own epochs, above all that were",
    ),
    Reason(
        r"group/newer-.*/(type|protocol type)",
        lambda theirs, ours: theirs == "consumer" and ours in ("classic", ""),
        "a group of the consumer protocol keeps its offsets; its members join anew",
    ),
    Reason(
        r"producers/.*/\d+",
        lambda theirs, ours: theirs == ABSENT and ours[3] < 0 and _is_old(ours[2]),
        "a producer whose last record is a day old is forgotten sooner or later",
    ),
)


class Difference(NamedTuple):
    path: str
    theirs: Any
    ours: Any

    def __str__(self) -> str:
        return f"{self.path}\n    Kafka {_short(self.theirs)}\n    ours  {_short(self.ours)}"


class Comparison(NamedTuple):
    """``explained``: how often each reason was needed."""

    same: int
    explained: Counter[str]
    wrong: list[Difference]

    def text(self) -> str:
        lines = [f"{self.same} values are the same"]
        lines += [f"{count} differ: {why}" for why, count in self.explained.items()]
        lines += [f"WRONG {each}" for each in self.wrong]
        return "\n".join(lines)


def compare(theirs: Picture, ours: Picture, reasons: tuple[Reason, ...] = REASONS) -> Comparison:
    same, explained, wrong = 0, Counter[str](), []
    for path in sorted({*theirs, *ours}):
        one, other = theirs.get(path, ABSENT), ours.get(path, ABSENT)
        if one == other:
            same += 1
            continue
        why = next(
            (r.why for r in reasons if re.fullmatch(r.paths, path) and _holds(r, one, other)), ""
        )
        if why:
            explained[why] += 1
        else:
            wrong.append(Difference(path, one, other))
    return Comparison(same, explained, wrong)


def _holds(reason: Reason, theirs: Any, ours: Any) -> bool:
    try:
        return reason.holds(theirs, ours)
    except TypeError:
        return False  # one of them is absent


def _short(value: Any) -> str:
    if isinstance(value, list) and len(value) > 3:
        return f"{len(value)} values, the first {value[0]!r:.200}, the last {value[-1]!r:.200}"
    return f"{value!r:.400}"
