"""The counters of a search in words, one line for each, at most 80 columns, in groups."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum

from replication.simulator.faults.noise import WARNED
from replication.simulator.oracle.excuses import PREFIX as EXCUSED
from replication.simulator.world.fault_kinds import KINDS

_WIDTH = 58  # the width of the words
_ORDER = {kind: number for number, kind in enumerate(KINDS)}


class Group(StrEnum):
    """Sections, in the order in which they are printed."""

    DONE = "What brokers and clients did"
    ANSWERED = "What clients were answered"
    WARNED = "What brokers warned of"
    EXCUSED = "What a fault of the schedule excuses"
    STRUCK = "Faults that struck"


_PREFIXES = {EXCUSED: Group.EXCUSED, WARNED: Group.WARNED}
_QUESTIONS = ("produce", "poll", "delete-records", "reassign", "writes")
_WORDS = {
    "ELR used": "leaders elected from the eligible leader replicas (ELR)",
    "fatal": "brokers ended by an error of their disk",
    "leaderships": "leaderships begun",
    "recoveries": "logs recovered at a start",
    "registrations": "registrations of a broker",
    "truncations": "truncations of a follower",
}


def in_words(
    counters: Mapping[str, int], reached: Mapping[str, int], schedules: int
) -> Iterator[str]:
    """Lines with a heading for each group, and for each counter its sum and in how many schedules
    it was above 0.
    """
    lines: dict[Group, list[str]] = {group: [] for group in Group}
    for name, count in sorted(counters.items(), key=_place):
        group, words = _described(name)
        if len(words) > _WIDTH:
            words = words[: _WIDTH - 1] + "…"
        share = reached[name] / schedules
        lines[group].append(f"  {words:{_WIDTH}} {count:>9}  {share:4.0%}")
    for group, of_group in lines.items():
        if of_group:
            yield ""
            yield f"{group:{_WIDTH}}       count  in %"
            yield from of_group


def _place(counter: tuple[str, int]) -> tuple[int, str]:
    """Kinds of faults in the order of ``KINDS``."""
    name = counter[0]
    return (_ORDER[name], "") if name in KINDS else (0, name)


def _described(name: str) -> tuple[Group, str]:
    if name in KINDS:
        return Group.STRUCK, name
    for prefix, group in _PREFIXES.items():
        if name.startswith(prefix):
            return group, re.sub(r"%\w", "…", name.removeprefix(prefix))
    question, _, answer = name.partition(" ")
    if question in _QUESTIONS and answer:
        return Group.ANSWERED, f"{question}: {_answer(answer)}"
    return Group.DONE, _WORDS.get(name, name)


def _answer(name: str) -> str:
    """``NotLeaderOrFollowerError`` or ``NOT_LEADER_OR_FOLLOWER`` → ``not leader or follower``."""
    if name == "NONE":
        return "done"
    if name.isupper():
        return name.replace("_", " ").lower()
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.removesuffix("Error"))
    return spaced.lower()
