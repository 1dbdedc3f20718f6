"""How two pictures differ, and which differences have a reason."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.adopt.histories import TOPICS
from tests.adopt.reading import LOOKED_UP, WHILE_COPIED, Picture

ABSENT = "absent"
LEADER_NOT_AVAILABLE = 5
UNSTABLE_OFFSET_COMMIT = 88


class Difference(NamedTuple):
    """Values of one path, and the pictures, where more can be looked up."""

    path: str
    theirs: Any
    ours: Any
    their_picture: Picture
    our_picture: Picture

    def __str__(self) -> str:
        return f"{self.path}\n    Kafka {_short(self.theirs)}\n    ours  {_short(self.ours)}"


class Reason(NamedTuple):
    """Why values of paths that match may differ, as far as ``holds``. ``releases``: in which."""

    paths: str
    holds: Callable[[Difference], bool]
    why: str
    releases: str = ".*"


REASONS = (
    Reason(
        r"partition/.*/leader epoch|offset/.*/(latest|last stable), leader epoch",
        lambda it: it.ours >= _newest_epoch(it),
        "an adopted cluster begins its own epochs, above all that were",
    ),
    Reason(
        r"offset/.*/earliest, leader epoch",
        lambda it: it.ours >= 0 and _is_empty(it),
        "the start of an empty log is of the present epoch",
    ),
    Reason(
        r"offset/.*/(at|committed at)(, leader epoch)?",
        lambda it: _is_none(it.theirs) and it.ours == _first_after(it),
        "Kafka stops its search in a segment without such a record, although a later one has it",
    ),
    Reason(
        r"offset/.*/largest timestamp(, leader epoch)?",
        lambda it: _is_none(it.ours) and _is_below_start(it),
        "Kafka names a record with the largest timestamp that was deleted, ours none",
    ),
    Reason(
        r"producers/.*/\d+",
        lambda it: it.theirs == ABSENT and it.ours[3] < 0 and _is_old(it.ours[2]),
        "a producer whose last record is a day old is forgotten sooner or later",
    ),
    Reason(
        r"group/newer-.*/(type|protocol type)",
        lambda it: it.theirs == "consumer" and it.ours in ("classic", ""),
        "a group of the consumer protocol keeps its offsets; its members join anew",
        "4.3",
    ),
    Reason(
        r"configs/made-again/retention.ms",
        lambda it: it.theirs == TOPICS["made-again"][1]["retention.ms"] and it.ours == ABSENT,
        "a Kafka that starts without a snapshot gives a new topic configs of the old one",
        "4.3|3.9",
    ),
    Reason(
        r"(configs|defaults)/.*/min.insync.replicas",
        lambda it: ABSENT in (it.theirs, it.ours) and "1" in (it.theirs, it.ours),
        "what was set for all brokers is set for each topic",
        "4.3",
    ),
    Reason(
        rf"(partition|offset|bytes|records|producers|epoch)/{WHILE_COPIED}.*",
        lambda it: (
            _place(it.their_picture, it) != _place(it.our_picture, it) == LEADER_NOT_AVAILABLE
        ),
        "a partition whose log was not copied is offline, not empty",
    ),
    Reason(
        r"topic/.*/id",
        lambda it: it.ours.version == 5,
        "ids are in ZooKeeper alone",
        "2.8",
    ),
    Reason(
        r"configs/.*",
        lambda it: it.ours == ABSENT or it.path.endswith(("retention.ms", "retention.bytes")),
        "configs of topics are in ZooKeeper; a topic keeps everything until somebody says",
        "3.9-zookeeper|2.8",
    ),
    Reason(
        r"(transaction|producers|offset)/.*|group/.*/type",
        lambda it: it.theirs in (ABSENT, ""),
        "that Kafka has no such request",
        "2.8",
    ),
)


ENDED = (
    Reason(
        r"transaction/.*/(state|producer|partitions|start)",
        lambda it: (
            [_state(it.path, each) for each in (it.their_picture, it.our_picture)]
            == ["Ongoing", "CompleteAbort"]
        ),
        "open transactions are aborted",
    ),
    Reason(
        r"offset/.*/(latest|last stable|largest timestamp)(, leader epoch)?"
        r"|(bytes|producers)/.*|records/.*/read_committed",
        lambda it: _was_open(it) and _goes_on(it),
        "markers end what was open",
    ),
    Reason(
        r"group/copier/.*/stable",
        lambda it: it.theirs[0] == UNSTABLE_OFFSET_COMMIT and it.ours[0] == 0,
        "offsets of an open transaction were pending",
    ),
)
"""Of an adoption that is not read-only."""

RESTARTED = (
    Reason(
        r"partition/.*/leader epoch",
        lambda it: it.ours >= it.theirs,
        "a start elects in a later epoch",
    ),
)
"""Of a Kafka that starts again."""

GIVEN_BACK = (
    Reason(
        r"epoch/.*|offset/.*, leader epoch",
        lambda it: True,
        "Kafka begins at the epoch that it knows, and forgets larger ones",
    ),
    Reason(
        r"group/.*",
        lambda it: it.theirs == ABSENT,
        "an old Kafka cannot read what coordinators of later ones wrote",
        "2.8",
    ),
    Reason(
        r"configs/.*",
        lambda it: it.theirs == ABSENT and it.ours == "-1",
        "a topic whose retention nobody knows keeps everything",
    ),
)
"""Of a Kafka that has the directory again."""


def _place(picture: Picture, it: Difference) -> Any:
    _, topic, partition, *_ = it.path.split("/")
    return picture[f"partition/{topic}/{partition}/error"]


def _state(path: str, picture: Picture) -> str:
    return str(picture[f"{path.rsplit('/', 1)[0]}/state"][1])


def _was_open(it: Difference) -> bool:
    _, topic, partition, *_ = it.path.split("/")
    place = f"offset/{topic}/{partition}"
    stable, end = (it.their_picture[f"{place}/{each}"][1] for each in ("last stable", "latest"))
    return bool(stable < end)


def _goes_on(it: Difference) -> bool:
    """Nothing that was there is gone."""
    kind = it.path.split("/")[0]
    if kind == "records":
        return bool(it.ours[: len(it.theirs)] == it.theirs)
    if kind == "producers":
        return bool(it.ours[-1] == -1)  # where its transaction began
    if it.path.endswith("leader epoch"):
        return bool(it.ours >= it.theirs)
    at = 1 if kind == "offset" else 0
    return bool(it.ours[at] >= it.theirs[at])


def _newest_epoch(it: Difference) -> int:
    """Of the records. That it is above what controllers decided is proven beside (`proofs`)."""
    _, topic, partition, *_ = it.path.split("/")
    records = it.our_picture.get(f"records/{topic}/{partition}/read_uncommitted", [])
    return max([0, *(record[-1] for record in records if record[-1] is not None)])


def _is_empty(it: Difference) -> bool:
    place = it.path.removesuffix("earliest, leader epoch")
    ours: Any = it.our_picture[f"{place}earliest"], it.our_picture[f"{place}latest"]
    return bool(ours[0][1] == ours[1][1])


def _is_none(value: Any) -> bool:
    return value in (-1, (0, -1, -1))


def _is_below_start(it: Difference) -> bool:
    place = it.path.partition(", ")[0]
    start = it.their_picture[f"{place.rpartition('/')[0]}/earliest"][1]
    return bool(it.their_picture[place][1] < start)


def _first_after(it: Difference) -> Any:
    """What the records themselves say to a look-up by time."""
    _, topic, partition, question = it.path.split("/")
    isolation = "read_committed" if question.startswith("committed") else "read_uncommitted"
    for record in it.our_picture[f"records/{topic}/{partition}/{isolation}"]:
        if record[2] >= LOOKED_UP:
            return record[-1] if question.endswith("epoch") else (0, record[0], record[2])
    return None


def _is_old(timestamp: int) -> bool:
    """By the clock of ``producer.id.expiration.ms``."""
    return timestamp < time.time() * 1000 - 24 * 3600 * 1000


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


def compare(
    theirs: Picture, ours: Picture, release: str, more: tuple[Reason, ...] = ()
) -> Comparison:
    """``release``: of that Kafka, as in ``kafkas.RELEASES``. ``more`` reasons hold, too."""
    reasons = [each for each in (*more, *REASONS) if re.fullmatch(each.releases, release)]
    same, explained, wrong = 0, Counter[str](), []
    for path in sorted({*theirs, *ours}):
        values = theirs.get(path, ABSENT), ours.get(path, ABSENT)
        found = Difference(path, *values, theirs, ours)
        if found.theirs == found.ours:
            same += 1
            continue
        fitting = [each for each in reasons if re.fullmatch(each.paths, path)]
        why = next((each.why for each in fitting if _holds(each, found)), None)
        if why is None:
            wrong.append(found)
        else:
            explained[why] += 1
    return Comparison(same, explained, wrong)


def _holds(reason: Reason, found: Difference) -> bool:
    try:
        return reason.holds(found)
    except (TypeError, IndexError, KeyError, AttributeError):
        return False  # one of them is absent


def _short(value: Any) -> str:
    if isinstance(value, list) and len(value) > 3:
        return f"{len(value)} values, the first {value[0]!r:.200}, the last {value[-1]!r:.200}"
    return f"{value!r:.400}"
