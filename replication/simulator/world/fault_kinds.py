"""The fault kinds by their ids, and their groups for ``--faults``."""

from __future__ import annotations

from collections.abc import Iterable

from logstore.common.errors import ConfigError

NET = {
    "message-loss": "a message never arrives",
    "message-delay": "a message arrives late",
    "message-twice": "a message arrives a second time",
    "message-reorder": "a message overtakes the ones before it",
    "partition": "brokers, coordinator or clients are cut off from others",
    "one-way-partition": "messages pass one way only",
    "link-clog": "a link holds everything back, then delivers all of it",
    "lasting-cut": "a partition that lasts until all faults end",
    "connection-reset": "a connection ends in the middle of a request",
    "half-open-peer": "a request is carried out, its answer goes nowhere",
    "slow-reader": "a peer takes its answers slowly",
}
CRASH = {
    "kill": "a process ends; what it wrote to files stays",
    "power-loss": "power fails; everything that was not synced is lost",
    "partial-power-loss": "power fails; some of what was not synced is lost",
    "torn-write": "power loss left a part of a write",
    "zero-fill": "power loss left zeros in place of a write",
    "lost-name": "power loss undid a create, rename or unlink",
    "lost-truncation": "power loss undid a truncation",
}
DISK = {
    "bit-rot": "a bit of a file flips on the disk",
    "flipped-read": "a bit flips while it is read",
    "read-error": "a read fails (EIO)",
    "write-error": "a write fails (EIO)",
    "sync-error": "a sync fails (EIO), and its pages count as clean",
    "disk-full": "the disk has no room (ENOSPC)",
    "no-descriptors": "a file cannot be opened (EMFILE)",
    "slow-disk": "operations of the disk take long",
    "misdirected-write": "a write lands at another place",
    "wiped-disk": "a broker comes back with an empty disk",
}
CLOCK = {
    "pause": "a process stands still for a while",
    "clock-jump": "a wall clock jumps, forward or back",
    "clock-drift": "a clock runs too fast or too slow",
}
CONTROLLER = {
    "controller-crash": "the process that is controller ends",
    "controller-pause": "the controller stands still, then acts on what it knew",
}
COORDINATOR = {
    "lost-call": "a call to the coordinator fails, and was not carried out",
    "lost-answer": "a call to the coordinator fails, and was carried out",
    "coordinator-crash": "the coordinator ends, and all sessions with it",
}
ADMIN = {
    "min-isr-change": "somebody changes min.insync.replicas",
    "abandoned-move": "somebody moves a partition, and gives the move up",
}

IDENTITY = {
    "log-set-aside": "a log of a broker that is down is renamed to …-stray",
    "log-removed": "a log of a broker that is down is removed",
    "older-log": "a log comes back as it was at an earlier stop",
    "older-directory": "a broker comes back as it was at an earlier stop",
    "mixed-up-directory": "a broker comes back with a copy of another's logs",
    "lost-small-file": "a marker, a checkpoint or meta.properties is gone",
    "foreign-tree": "a broker meets an empty tree in place of its own",
}

# Their order must not change: it is part of the meaning of a seed.
KINDS: dict[str, str] = {
    **NET,
    **CRASH,
    **DISK,
    **CLOCK,
    **CONTROLLER,
    "crash-in-recovery": "a process ends while it recovers its logs",
    **COORDINATOR,
    "epoch-flip": "a leader epoch flips on its way to a follower",
    "controller-removed": "somebody removes the controller from its office by hand",
    "unclean-election": "somebody elects a replica that may lack records",
    **ADMIN,
    "compaction": "a broker compacts its log of a compacted topic",
    **IDENTITY,
    "slow-roles": "a broker takes long for each request of the controller",
}
"""What each kind does."""

UNCLEAN_ELECTION = "unclean-election"
ANOTHER_MINIMUM, GIVEN_UP = ADMIN
COMPACTION = "compaction"
SLOW_ROLES = "slow-roles"
BESIDE = frozenset((UNCLEAN_ELECTION, *ADMIN, COMPACTION, *IDENTITY, SLOW_ROLES))
"""Kinds that are not among ``all``."""

GROUPS: dict[str, tuple[str, ...]] = {
    # no acknowledged record may be lost after these
    "all": tuple(kind for kind in KINDS if kind not in BESIDE),
    "net": (*NET, "epoch-flip"),
    "crash": (*CRASH, "crash-in-recovery"),
    "disk": tuple(DISK),
    "clock": tuple(CLOCK),
    "controller": (*CONTROLLER, "controller-removed"),
    "coordinator": tuple(COORDINATOR),
    "unclean": (UNCLEAN_ELECTION,),
    "admin": tuple(ADMIN),
    "compaction": (COMPACTION,),
    "roles": (SLOW_ROLES,),
    "identity": tuple(IDENTITY),
    "none": (),
}
# Kinds that are not requested but happen inside others.
PART_OF = dict.fromkeys(
    ("torn-write", "zero-fill", "lost-name", "lost-truncation"), "partial-power-loss"
)


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
            raise ConfigError(f"no fault or group {name!r}; --faults ? lists them")
    return tuple(kind for kind in KINDS if kind in wanted)
