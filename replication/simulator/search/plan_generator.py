"""Draws a plan from a seed.

Each seed has its own mix of fault kinds, numbers and load (swarm testing: what is left out lets the
rest go deeper).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from replication.simulator.faults.fault_templates import STORIES, tell, unclean_election
from replication.simulator.faults.triggers import GROWS, LEADER, SHRINKS
from replication.simulator.workload.clients import CONSUMERS
from replication.simulator.workload.groups import MEMBERS
from replication.simulator.workload.transfers import WRITERS
from replication.simulator.world.fault_kinds import (
    COMPACTION,
    GROUPS,
    IDENTITY,
    PART_OF,
    SLOW_ROLES,
    UNCLEAN_ELECTION,
    expand,
)
from replication.simulator.world.plan import (
    FLUSH_MODES,
    Operation,
    PlannedFault,
    SchedulePlan,
    SearchOptions,
)

MS_PER_EVENT = 6  # events of the safety phase with the load below
STORY_RATE = 0.9  # the share of schedules with a story
UNCLEAN_RATE = 0.7  # the share of stories with unclean elections, if these are requested
WIRE_RATE = 1 / 3  # the share of schedules in which requests between brokers go as bytes
ADMIN = GROUPS["admin"]
BESIDE = (*ADMIN, COMPACTION, *IDENTITY, SLOW_ROLES)  # requested in addition to the others
AS_MANY_BESIDE = 0.3  # the share of the others beside those of identity, which take their time

Draw = Callable[[random.Random, int, int], PlannedFault]


def draw_plan(seed: int, options: SearchOptions) -> SchedulePlan:
    """The schedule of a seed."""
    rng = random.Random(f"plan {seed}")
    brokers = options.brokers
    replicas = min(3, brokers)
    duration = max(400, int(options.events * MS_PER_EVENT * rng.uniform(0.6, 1.4)))
    flush = rng.choice(FLUSH_MODES) if options.flush == "both" else options.flush
    min_isr = min(replicas, rng.choice((1, 2, 2, 2)) if replicas > 2 else rng.choice((1, 1, 2)))
    partitions = rng.choice((1, 1, 1, 2))
    idempotent = tuple(rng.random() < 0.4 for _ in range(rng.choice((1, 2, 2))))
    segment_bytes = rng.choice((300, 500, 900, 4000))
    faults = _faults(rng, options, brokers, duration)
    racks = False
    allowed = expand(options.faults)
    loses = UNCLEAN_ELECTION in allowed
    operations = _operations(rng, options, len(idempotent), partitions, brokers, duration)
    if brokers >= 3 and rng.random() < STORY_RATE:
        stories = (unclean_election,) if loses and rng.random() < UNCLEAN_RATE else STORIES
        story = tell(rng, brokers, len(idempotent), partitions, rng.randrange(100), stories)
        if all(fault.kind in allowed for fault in story.faults):
            # Fewer other faults, because too many at once would prevent the story.
            faults = [f for f in faults if rng.random() < 0.4] + story.faults
            operations += story.operations
            duration = max(duration, story.end_ms) + rng.choice((20, 300))
            segment_bytes, racks = story.segment_bytes or segment_bytes, story.racks
            if story.silent_from_ms is not None:
                operations = [o for o in operations if o.at_ms < story.silent_from_ms]
    if loses or options.transactions:
        # A marker may be lost alone, so its transaction never ends; or a coordinator has to agree.
        operations = [o for o in operations if o.kind != "transaction"]
    faults += _of_an_admin(random.Random(f"admin {seed}"), allowed, brokers, duration)
    if any(kind in allowed for kind in IDENTITY):
        by_hand = random.Random(f"identity {seed}")
        faults = [fault for fault in faults if by_hand.random() < AS_MANY_BESIDE]
        duration = max(duration, by_hand.choice((2500, 4000)))
        faults += _of_identity(by_hand, allowed, brokers, duration)
    if COMPACTION in allowed:
        of_topic = random.Random(f"compaction {seed}")
        faults += _compactions(of_topic, brokers, duration)
        operations += _latest_states(of_topic, options, len(idempotent), duration)
    if SLOW_ROLES in allowed:
        of_roles = random.Random(f"roles {seed}")
        for _ in range(of_roles.choice((1, 1, 2))):
            at_ms = of_roles.randrange(duration)
            faults.append(_fault(of_roles, SLOW_ROLES, at_ms, brokers, duration))
    if options.groups:
        operations += _group(random.Random(f"groups {seed}"), options, duration)
    if options.transactions:
        operations += _transfers(random.Random(f"transfers {seed}"), options, duration)
    if any(step.kind == "make-anew" for step in operations):
        operations += _changes_of_topics(random.Random(f"topics {seed}"), brokers, duration)
    return SchedulePlan(
        seed,
        options.truncation,
        flush,
        brokers,
        partitions,
        min_isr,
        idempotent,
        tuple(sorted(faults, key=lambda fault: fault.at_ms)),
        tuple(sorted(operations, key=lambda step: step.at_ms)),
        duration,
        segment_bytes,
        rng.choice((100, 400, 1 << 20, 1 << 20)),
        rng.random() < 0.3 or racks,
        rng.choice((100, 1000, 10_000)),
        unclean=loses and rng.random() < 0.7,
        wire=random.Random(f"wire {seed}").random() < WIRE_RATE,
    )


# -- load ---------------------------------------------------------------------------------------


def _operations(
    rng: random.Random,
    options: SearchOptions,
    producers: int,
    partitions: int,
    brokers: int,
    duration: int,
) -> list[Operation]:
    acks = rng.choice(((-1,), (-1,), (-1, 1), (-1, -1, 1, 0)))
    found = []
    for _ in range(max(4, options.events // 14)):
        records = rng.choice((1, 1, 1, 2, 3))
        found.append(
            Operation(
                rng.randrange(duration),
                "produce",
                rng.randrange(producers),
                rng.randrange(partitions),
                rng.choice(acks),
                records,
                rng.choice((8, 8, 30, 120 if records == 1 or rng.random() < 0.1 else 50)),
            )
        )
    for _ in range(max(3, options.events // 25)):
        polls = rng.choice((1, 2, 4))
        found.append(
            Operation(rng.randrange(duration), "consume", rng.randrange(CONSUMERS), records=polls)
        )
    for kind, likelihood in (
        ("elect", 0.4),
        ("delete-records", 0.15),
        ("stop", 0.3),
        ("reassign", 0.2),
        ("transaction", 0.3),
    ):
        while rng.random() < likelihood:
            client = rng.randrange(brokers)
            size = rng.randrange(100)
            found.append(
                Operation(
                    rng.randrange(duration), kind, client, rng.randrange(partitions), size=size
                )
            )
    if rng.random() < 0.25:
        for _ in range(rng.randint(2, 4)):
            found.append(
                Operation(
                    rng.randrange(duration),
                    "make-anew",
                    rng.randrange(brokers),
                    size=rng.randrange(100),
                )
            )
        for _ in range(max(4, options.events // 20)):
            found.append(
                Operation(
                    rng.randrange(duration),
                    "produce-anew",
                    rng.randrange(producers),
                    records=rng.choice((1, 2)),
                )
            )
    return found


def _changes_of_topics(rng: random.Random, brokers: int, duration: int) -> list[Operation]:
    """Operations on the topic that is deleted and created again."""
    return [
        Operation(rng.randrange(duration), kind, rng.randrange(brokers), size=rng.randrange(100))
        for kind in ("grow", "reconfigure")
        for _ in range(rng.choice((0, 0, 1, 2)))
    ]


def _group(rng: random.Random, options: SearchOptions, duration: int) -> list[Operation]:
    """Operations of a group: most members join early, and some come and go. In two schedules of
    three some are static: they restart, and another one may take the instance id of one."""
    instances = [rng.choice((0, n + 1, n + 1)) for n in range(MEMBERS)]
    if rng.random() < 0.33:
        instances = [0] * MEMBERS
    found = [Operation(rng.randrange(50), "join-group", n, instances[n]) for n in range(MEMBERS)]
    for _ in range(max(10, options.events // 8)):
        at_ms, member = rng.randrange(duration), rng.randrange(MEMBERS)
        found.append(Operation(at_ms, "commit-offsets", member, records=rng.choice((1, 1, 2))))
    for _ in range(rng.choice((0, 1, 2))):
        kind, member = rng.choice(("join-group", "leave-group")), rng.randrange(MEMBERS)
        found.append(Operation(rng.randrange(duration), kind, member, instances[member]))
    for _ in range(rng.randint(2, 6) if any(instances) else 0):
        at_ms = rng.randrange(duration // 2, duration)  # when they have assignments
        member = rng.randrange(MEMBERS)
        if rng.random() < 0.7:
            found.append(Operation(at_ms, "restart-member", member))
        else:
            found.append(Operation(at_ms, "join-group", member, max(instances)))
            # Who has that instance id is busy committing, and finds out by a commit.
            busy = instances.index(max(instances))
            found.append(Operation(at_ms, "commit-offsets", busy, records=6))
    return found


def _transfers(rng: random.Random, options: SearchOptions, duration: int) -> list[Operation]:
    """Transactions through coordinators, and copies of what they wrote."""
    found = [Operation(rng.randrange(50), "write-transaction", n, 7, size=1) for n in range(2)]
    for _ in range(max(8, options.events // 12)):
        step = Operation(
            rng.randrange(duration),
            "write-transaction",
            rng.randrange(WRITERS),
            rng.choice((7, 7, 1, 3, 6)),
            records=rng.choice((1, 1, 2)),
            size=rng.randrange(100),
        )
        found.append(step)
    for _ in range(max(8, options.events // 12)):
        at_ms = rng.randrange(duration)
        found.append(Operation(at_ms, "copy-transaction", size=rng.randrange(100)))
    for _ in range(rng.choice((0, 1, 2, 3))):
        at_ms, client = rng.randrange(duration), rng.randrange(WRITERS + 1)
        found.append(Operation(at_ms, "replace-producer", client))
    return found


def _latest_states(
    rng: random.Random, options: SearchOptions, producers: int, duration: int
) -> list[Operation]:
    """Operations on the compacted topic, enough for several segments."""
    return [
        Operation(
            rng.randrange(duration),
            "produce-latest",
            rng.randrange(producers),
            records=rng.choice((1, 2, 3)),
            size=rng.randrange(100),
        )
        for _ in range(max(12, options.events // 5))
    ]


# -- faults -------------------------------------------------------------------------------------


def _faults(
    rng: random.Random, options: SearchOptions, brokers: int, duration: int
) -> list[PlannedFault]:
    kinds = [kind for kind in expand(options.faults) if kind not in (*PART_OF, *BESIDE)]
    if not kinds:
        return []
    # A few kinds at a time, so that they meet each other; sometimes all of them.
    count = len(kinds) if rng.random() < 0.1 else rng.randint(1, min(6, len(kinds)))
    chosen = rng.sample(kinds, count)
    found = []
    for kind in chosen:
        for _ in range(1 if count > 6 else rng.choice((1, 1, 2, 3))):
            at_ms = rng.randrange(duration)
            found.append(_fault(rng, kind, at_ms, brokers, duration))
    return found


def _of_an_admin(
    rng: random.Random, allowed: tuple[str, ...], brokers: int, duration: int
) -> list[PlannedFault]:
    """Faults by an admin.

    They are requested in addition to the others, so most schedules have some.
    """
    return [
        _fault(rng, kind, rng.randrange(duration), brokers, duration)
        for kind in ADMIN
        if kind in allowed
        for _ in range(rng.choice((0, 1, 2, 3)))
    ]


def _of_identity(
    rng: random.Random, allowed: tuple[str, ...], brokers: int, duration: int
) -> list[PlannedFault]:
    """A few of these, mostly of the leader, and mostly while the others are down, too."""
    kinds = [kind for kind in IDENTITY if kind in allowed]
    count = rng.randint(2, 4)
    return [
        PlannedFault(
            duration * number // count + rng.randrange(300),
            rng.choice(kinds),
            rng.choice((LEADER, LEADER, rng.randrange(brokers))),
            rng.choice((1, 50, 300)),
            float(rng.randrange(1, 1 << 20)),
            tuple(range(brokers)) if rng.random() < 0.6 else (),
        )
        for number in range(count)
    ]


def _compactions(rng: random.Random, brokers: int, duration: int) -> list[PlannedFault]:
    return [
        PlannedFault(rng.randrange(duration), COMPACTION, rng.randrange(brokers))
        for _ in range(rng.randint(10, 40))
    ]


def _fault(rng: random.Random, kind: str, at_ms: int, brokers: int, duration: int) -> PlannedFault:
    broker = rng.randrange(brokers)
    length = rng.choice((50, 200, 500, 900, 1800))
    on_the_network = _network_fault(
        rng, PlannedFault(at_ms, kind, broker, length), brokers, duration
    )
    if on_the_network is not None:
        return on_the_network
    if kind in ("kill", "power-loss", "partial-power-loss", "wiped-disk", "controller-crash"):
        # With an amount: only at that disk operation after this time.
        amount = rng.choice((0, 0, 1, 2, 3, 5, 9, 15))
        everybody = kind in ("kill", "power-loss", "partial-power-loss") and rng.random() < 0.15
        return PlannedFault(
            at_ms,
            kind,
            -1 if everybody or kind == "controller-crash" else broker,
            rng.choice((1, 30, 200, 600, 1500)),
            float(amount),
        )
    if kind == "crash-in-recovery":
        return PlannedFault(at_ms, kind, broker, rng.choice((1, 100)), float(rng.randint(1, 25)))
    if kind in ("read-error", "write-error", "sync-error", "no-descriptors"):
        return PlannedFault(at_ms, kind, broker, 0, float(rng.randrange(20)))
    if kind == "disk-full":
        return PlannedFault(at_ms, kind, broker, length, float(rng.randrange(300)))
    if kind == SLOW_ROLES:
        much = float(rng.choice((300, 2000, 10_000)))
        return PlannedFault(at_ms, kind, broker, rng.choice((900, 1800, 4000)), much)
    if kind == "slow-disk":
        return PlannedFault(at_ms, kind, broker, length, float(rng.choice((1, 5, 40))))
    if kind == "unclean-election":
        return PlannedFault(at_ms, kind, -1)
    if kind == "min-isr-change":  # usually while the ISR changes
        much = float(rng.choice((0, 2, 3, 3)))
        return PlannedFault(
            at_ms, kind, amount=much, moment=rng.choice(("", GROWS, SHRINKS, SHRINKS))
        )
    if kind == "abandoned-move":
        return PlannedFault(at_ms, kind, -1, length, float(rng.randrange(1000)))
    if kind in ("pause", "controller-pause"):
        return PlannedFault(at_ms, kind, -1 if kind == "controller-pause" else broker, length)
    if kind == "clock-jump":
        return PlannedFault(
            at_ms, kind, broker, 0, float(rng.choice((-3_600_000, -500, 500, 3_600_000)))
        )
    if kind in ("lost-call", "lost-answer"):  # one call of one session, or many calls of any
        one = rng.random() < 0.5
        much = float(rng.randint(1, 30)) if one else rng.choice((0.02, 0.05, 0.15))
        down = rng.choice((0, 0, 30, 600)) if one else length
        return PlannedFault(at_ms, kind, broker if one or rng.random() < 0.5 else -1, down, much)
    if kind == "controller-removed":  # usually while the controller has something to write
        return PlannedFault(at_ms, kind, moment=rng.choice(("", GROWS, SHRINKS, GROWS)))
    if kind == "coordinator-crash":
        much = float(rng.choice((0, 0, 1, 2, 3, 5)))
        return PlannedFault(at_ms, kind, -1, rng.choice((1, 50, 300, 900)), much)
    if kind == "clock-drift":
        return PlannedFault(at_ms, kind, broker, 0, rng.choice((-0.2, 0.05, 0.5)))
    return PlannedFault(at_ms, kind, broker, 0, float(rng.randrange(1, 1 << 20)))


def _network_fault(
    rng: random.Random, fault: PlannedFault, brokers: int, duration: int
) -> PlannedFault | None:
    """Complete a fault of messages or links; None if it is of another kind."""
    broker = fault.broker
    if fault.kind in (
        "message-loss",
        "message-twice",
        "connection-reset",
        "half-open-peer",
        "epoch-flip",
    ):
        return replace(fault, broker=-1, amount=rng.choice((0.02, 0.1, 0.3)))
    if fault.kind in ("message-delay", "message-reorder"):
        return replace(fault, broker=-1, amount=rng.choice((0.1, 0.5)))
    if fault.kind in ("partition", "one-way-partition", "lasting-cut"):
        others = [b for b in range(brokers) if b != broker and rng.random() < 0.6]
        # −1 stands for the coordinator, −2 for the clients.
        others += [o for o in (-1, -2) if rng.random() < (0.5 if o == -1 else 0.2)]
        if not others:
            others = [(broker + 1) % brokers] if brokers > 1 else [-1]
        one_way = fault.kind == "one-way-partition"
        way = rng.choice((1.0, 2.0)) if one_way else 0.0  # from the broker, or to it
        length = duration if fault.kind == "lasting-cut" else fault.duration_ms
        return replace(fault, duration_ms=length, amount=way, others=tuple(others))
    if fault.kind in ("link-clog", "slow-reader"):
        other = (broker + rng.randrange(1, brokers)) % brokers if brokers > 1 else broker
        return replace(fault, others=(other,))
    return None
