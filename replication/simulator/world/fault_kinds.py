"""The fault kinds, by number, and their groups for ``--faults``."""

from __future__ import annotations

from collections.abc import Iterable

from logstore.common.errors import ConfigError

KINDS: dict[str, str] = {
    "F-1": "message loss",
    "F-2": "delay",
    "F-3": "duplicate",
    "F-4": "reorder",
    "F-5": "symmetric partition",
    "F-6": "one-way partition",
    "F-7": "link clog",
    "F-8": "cut for good",
    "F-9": "connection reset in mid-request",
    "F-10": "half-open peer",
    "F-11": "slow reader",
    "F-12": "kill",
    "F-13": "power loss, all unsynced lost",
    "F-14": "power loss, random subset lost",
    "F-15": "torn write",
    "F-16": "zero-filled extension",
    "F-17": "lost directory entry",
    "F-18": "lost truncation",
    "F-19": "bit flip at rest",
    "F-20": "bit flip on read",
    "F-21": "read error",
    "F-22": "write error",
    "F-23": "fsync error with pages dropped",
    "F-24": "disk full",
    "F-25": "descriptor exhaustion",
    "F-26": "slow disk",
    "F-27": "misdirected write",
    "F-28": "wiped disk",
    "F-29": "pause",
    "F-30": "clock jump",
    "F-31": "clock drift",
    "F-32": "controller crash",
    "F-33": "controller pause with stale answers",
    "F-34": "crash inside recovery",
    "F-35": "coordinator's answer lost, not carried out",
    "F-36": "coordinator's answer lost, carried out",
    "F-37": "coordinator crash",
    "F-38": "leader epoch flipped in transit",
    "F-49": "controller removed by hand",
    "F-50": "unclean election",
    "F-51": "min.insync.replicas changed",
    "F-52": "reassignment given up",
}


def _range(first: int, last: int) -> tuple[str, ...]:
    return tuple(f"F-{number}" for number in range(first, last + 1))


UNCLEAN_ELECTION = "F-50"
ANOTHER_MINIMUM, GIVEN_UP = "F-51", "F-52"

GROUPS: dict[str, tuple[str, ...]] = {
    "all": (*_range(1, 38), "F-49"),  # after which nothing acknowledged may be lost
    "net": (*_range(1, 11), "F-38"),
    "crash": (*_range(12, 18), "F-34"),
    "disk": _range(19, 28),
    "clock": _range(29, 31),
    "controller": ("F-32", "F-33", "F-49"),
    "coordinator": _range(35, 37),
    "unclean": (UNCLEAN_ELECTION,),
    "admin": (ANOTHER_MINIMUM, GIVEN_UP),
    "none": (),
}
# Kinds that are not asked for but happen inside another one.
PART_OF = {"F-15": "F-14", "F-16": "F-14", "F-17": "F-14", "F-18": "F-14"}


def expand(names: Iterable[str]) -> tuple[str, ...]:
    """Groups and kinds as kinds, in order.

    Raises:
        ConfigError: a name that is neither.
    """
    wanted: set[str] = set()
    for name in names:
        if name in GROUPS:
            wanted.update(GROUPS[name])
        elif name in KINDS:
            wanted.add(PART_OF.get(name, name))
        else:
            known = ", ".join([*GROUPS, *KINDS])
            raise ConfigError(f"no fault or group {name!r}; known are {known}")
    return tuple(kind for kind in KINDS if kind in wanted)
