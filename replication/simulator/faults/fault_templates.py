"""Situations that need a guard of the protocol.

A story is a few faults and operations that belong together; times, brokers and details are drawn
for each schedule. The other faults of the schedule are added to it. A story never says what must
happen. It only makes likely what chance alone produces once in thousands of schedules.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from replication.simulator.faults.triggers import (
    AFTER_THE_CALL,
    ANSWERED,
    BEFORE_THE_CALL,
    CONTROLLER,
    DIVERGING,
    GROWS,
    IN_THE_WRITE,
    JOINER,
    LEADER,
    RECEIVER,
    RECORDS,
    REGISTERS,
    ROLE_CHANGE,
    SENDER,
    SHRINKS,
    STANDS,
    WRITTEN,
)
from replication.simulator.world.coordinator import CARRIED_OUT, CRASH, NOT_CARRIED_OUT
from replication.simulator.world.fault_kinds import UNCLEAN_ELECTION
from replication.simulator.world.plan import Operation, PlannedFault

COORDINATOR = -1
ENDING_RATE = 0.5  # for stories in which no log is truncated: a deposed leader follows
CRASHES = ("kill", "power-loss", "partial-power-loss")


@dataclass
class StoryStage:
    """Collects the faults and operations of a story. Times are ms from its start on."""

    rng: random.Random
    brokers: tuple[int, ...]  # in a random order; the first one usually leads first
    producers: int
    partitions: int
    start_ms: int
    faults: list[PlannedFault] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    end_ms: int = 0
    silent_from_ms: int | None = None  # no operations from here on
    segment_bytes: int | None = None  # what the story needs
    racks: bool = False  # whether consumers must read from the replica in their own rack

    def time(self, first: int, last: int) -> int:
        at_ms = self.start_ms + self.rng.randint(first, last)
        self.end_ms = max(self.end_ms, at_ms)
        return at_ms

    def fault(
        self,
        at_ms: int,
        kind: str,
        broker: int,
        duration_ms: int = 0,
        amount: float = 0.0,
        others: tuple[int, ...] = (),
        moment: str = "",
    ) -> None:
        self.faults.append(PlannedFault(at_ms, kind, broker, duration_ms, amount, others, moment))
        if not moment:
            self.end_ms = max(self.end_ms, at_ms + min(duration_ms, 1500))

    def cut(
        self, at_ms: int, broker: int, duration_ms: int, *others: int, moment: str = ""
    ) -> None:
        self.fault(at_ms, "partition", broker, duration_ms, 0.0, others, moment)

    def crash(
        self,
        at_ms: int,
        broker: int,
        *,
        moment: str = "",
        kinds: tuple[str, ...] = CRASHES,
        within: int = 0,
    ) -> None:
        """Crash a broker. ``within``: at one of the next so many disk operations."""
        rng = self.rng
        amount = float(rng.randint(0, within)) if within else 0.0
        self.fault(
            at_ms, rng.choice(kinds), broker, rng.choice((1, 30, 150, 400)), amount, moment=moment
        )

    def write(
        self,
        first: int,
        last: int,
        count: int,
        acks: tuple[int, ...] = (-1,),
        sizes: tuple[int, ...] = (8,),
    ) -> None:
        rng = self.rng
        for _ in range(count):
            self.operations.append(
                Operation(
                    self.time(first, last),
                    "produce",
                    rng.randrange(self.producers),
                    0 if rng.random() < 0.8 else rng.randrange(self.partitions),
                    rng.choice(acks),
                    rng.choice((1, 1, 2, 3)),
                    rng.choice(sizes),
                )
            )

    def elect(self, at_ms: int) -> None:
        self.operations.append(Operation(at_ms, "elect"))

    def stop(self, at_ms: int, broker: int) -> None:
        """Stop a broker cleanly, and start it again."""
        self.operations.append(Operation(at_ms, "stop", broker, size=self.rng.choice((1, 5, 20))))

    def others(self, broker: int) -> tuple[int, ...]:
        return tuple(b for b in self.brokers if b != broker)


def late_isr_change(stage: StoryStage) -> None:
    """A change of the ISR reaches the controller when the cluster has moved on (S-12, S-13, S-16,
    S-25)."""
    rng = stage.rng
    leader, lagging, other = stage.brokers[:3]
    stage.cut(stage.time(0, 30), lagging, rng.randint(600, 800), *stage.others(lagging))
    stage.write(0, 2200, 14)
    late_ms = rng.choice((100, 300, 700, 1200, 1800))
    armed = stage.time(0, 0)
    what = rng.randrange(6)
    if what == 0:  # the joining replica has restarted by then, with fewer records
        for _ in range(2):  # it is sent again after a while
            stage.fault(armed, "message-delay", -1, rng.choice((700, 1200, 1800)), moment=GROWS)
        kind = rng.choice(("wiped-disk", "wiped-disk", "power-loss", "kill"))
        stage.fault(armed, kind, JOINER, rng.choice((1, 50)), moment=GROWS)
        if rng.random() < 0.7:  # and has not fetched it again
            stage.cut(armed, JOINER, 1800, SENDER, moment=GROWS)
    elif what == 1:  # the joining replica has left since
        stage.fault(armed, "message-twice", -1, rng.randint(800, 1900), moment=GROWS)
        stage.cut(armed, JOINER, 2500, *stage.brokers, moment=GROWS)
    elif what == 2:  # the sender no longer leads
        stage.fault(armed, "message-delay", -1, late_ms, moment=rng.choice((GROWS, SHRINKS)))
        stage.elect(stage.time(500, 1500))
        stage.cut(stage.time(400, 1500), leader, rng.randint(300, 900), *stage.others(leader))
    elif what == 3:
        moment = rng.choice((GROWS, SHRINKS))
        stage.fault(armed, "message-delay", -1, late_ms, moment=moment)
        stage.cut(armed, SENDER, rng.randint(500, 1200), COORDINATOR, *stage.brokers, moment=moment)
    elif what == 4:  # its leader or its answer is lost
        moment = rng.choice((GROWS, SHRINKS, ANSWERED))
        if rng.random() < 0.5:
            stage.fault(armed, rng.choice(("message-loss", "connection-reset")), -1, moment=moment)
        stage.crash(armed, SENDER if moment != ANSWERED else RECEIVER, moment=moment)
    else:
        moment = rng.choice((GROWS, SHRINKS))
        stage.fault(armed, "message-delay", -1, late_ms, moment=moment)
        stage.cut(stage.time(600, 1500), other, rng.randint(300, 900), *stage.others(other))
    stage.time(2200, 2400)


def deposed_leader(stage: StoryStage) -> None:
    """A leader goes on writing while another one is elected, comes back, and the next change of
    leaders, or a loss of power, meets the followers while they cut (S-1, S-9, S-11, S-36)."""
    rng = stage.rng
    leader, second, third = stage.brokers[:3]
    whom = rng.choice((leader, LEADER))
    apart = rng.randint(550, 900)
    stage.cut(stage.time(20, 60), whom, apart, COORDINATOR, *stage.brokers)
    stage.write(10, 1500, 14, (-1, 1, 1))
    if rng.random() < 0.7:  # at the truncation, or a few disk operations later
        stage.crash(
            stage.time(0, 0),
            rng.choice((RECEIVER, RECEIVER, SENDER)),
            moment=DIVERGING,
            within=rng.choice((3, 12)),
        )
    if rng.random() < 0.6:
        stage.crash(stage.time(500, 1400), rng.choice((second, third, LEADER)))
    if rng.random() < 0.5:
        stage.elect(stage.time(700, 1500))
    stage.time(1500, 1700)


def fast_failovers(stage: StoryStage) -> None:
    """Leaders fail one after the other, some before they wrote anything (S-3, S-6)."""
    rng = stage.rng
    order = stage.brokers
    at = 0
    stage.write(0, 400, 8, (-1, 1))
    for number in range(rng.randint(2, 4)):
        broker = rng.choice((order[number % len(order)], LEADER))
        at_ms = stage.time(at, at + 60)
        if rng.random() < 0.5:
            stage.crash(at_ms, broker, kinds=("kill", "kill", "power-loss"))
        else:
            stage.cut(at_ms, broker, rng.randint(450, 700), COORDINATOR, *stage.brokers)
        if rng.random() < 0.6:
            stage.write(at, at + 500, 3, (-1, 1))
        at += rng.choice((60, 450, 600))
    if rng.random() < 0.5:
        stage.silent_from_ms = stage.start_ms + rng.randint(at // 2, at)
    stage.time(at, at + 300)


def deaf_broker(stage: StoryStage) -> None:
    """One broker does not hear the controller while leaders change and come back (S-7, S-8)."""
    rng = stage.rng
    preferred, second, deaf = stage.brokers[:3]
    stage.crash(stage.time(0, 20), preferred, kinds=("kill",))
    whom = rng.choice((deaf, deaf, deaf, second))
    stage.fault(
        stage.time(600, 850), "one-way-partition", whom, rng.randint(700, 1700), 2.0, (CONTROLLER,)
    )
    if rng.random() < 0.7:  # in the ISR but behind when it is elected
        stage.cut(stage.time(780, 850), preferred, rng.randint(150, 350), second)
    stage.elect(stage.time(880, 960))
    if rng.random() < 0.7:
        at_ms = stage.time(1000, 1200)
        stage.cut(at_ms, preferred, rng.randint(600, 1200), COORDINATOR, CONTROLLER)
    else:
        stage.crash(stage.time(1000, 1200), preferred)
    if rng.random() < 0.4:
        one, other = rng.sample(stage.brokers[:3], 2)
        stage.cut(stage.time(900, 1400), one, rng.randint(200, 700), other)
    stage.write(500, 2300, 16, (-1, 1, 1))
    stage.time(2300, 2500)


def last_one_standing(stage: StoryStage) -> None:
    """The ISR shrinks to one, and that one loses its tail (S-18, S-20, S-21)."""
    rng = stage.rng
    one, two, last = rng.sample(stage.brokers[:3], 3)
    stage.write(0, 300, 8)
    length = rng.randint(1200, 1900)
    for broker, (first, latest) in ((one, (100, 250)), (two, (300, 800))):
        at_ms = stage.time(first, latest)
        stage.cut(at_ms, broker, length, COORDINATOR, *stage.brokers)
    stage.crash(
        stage.time(850, 1400),
        last,
        kinds=("power-loss", "power-loss", "partial-power-loss", "kill"),
    )
    stage.write(300, 2200, 6, (-1, 1))
    stage.time(2000, 2300)


def unclean_election(stage: StoryStage) -> None:
    """The whole ISR is gone, and a replica that was left behind is elected; then the others come
    back, or a leader that was cut off hears of it (KIP-320: who read on notices)."""
    rng = stage.rng
    stale, other, leader = rng.sample(stage.brokers[:3], 3)
    stage.write(0, 300, 8, (-1, -1, 1))
    stage.cut(stage.time(80, 200), stale, rng.randint(700, 1000), other, leader)
    stage.write(300, 1000, 10, (-1, -1, 1))
    for at_ms in (400, 700, 900, 1500, 2100):
        stage.operations.append(
            Operation(stage.time(at_ms, at_ms + 100), "consume", rng.randrange(2), records=4)
        )
    away = rng.randint(700, 1300)
    stage.fault(stage.time(800, 950), "kill", other, away)
    if rng.random() < 0.4:  # clients still reach it
        links = (COORDINATOR, other, stale)
        stage.cut(stage.time(850, 1000), leader, away, *links)
    else:
        stage.fault(stage.time(850, 1000), "kill", leader, away + rng.choice((-300, 0, 300)))
    for at_ms in (1300, 1600):  # if the topic itself does not allow it
        stage.fault(stage.time(at_ms, at_ms + 200), UNCLEAN_ELECTION, -1)
    stage.write(1000, 2400, 12, (-1, -1, 1))
    stage.time(2400, 2600)


def restarts(stage: StoryStage) -> None:
    """One broker stops and starts many times, in order or not (S-31, S-40, F-47)."""
    rng = stage.rng
    broker = rng.choice(stage.brokers)
    at = 0
    if rng.random() < 0.7:  # a tear lies between sectors, so a batch must span several
        stage.segment_bytes = 4000
    for _ in range(rng.randint(2, 4)):
        at_ms = stage.time(at, at + 150)
        if rng.random() < 0.45:
            stage.stop(at_ms, broker)
        else:
            stage.crash(
                at_ms,
                broker,
                kinds=("partial-power-loss", "partial-power-loss", "power-loss", "kill"),
                within=12,
            )
        at += rng.randint(250, 600)
    big = (8, 8, 500, 900) if stage.segment_bytes else (8,)
    stage.write(0, at, 16, (-1, 1), big)
    stage.time(at, at + 200)


def short_of_descriptors(stage: StoryStage) -> None:
    """Two opens in a row fail. A broker makes up for one, by closing an idle file, so what was
    appended waits for its sync."""
    rng = stage.rng
    stage.segment_bytes = 300  # many rolls; each opens files
    stage.write(0, 1200, 18, (-1, -1, 1), (8, 50))
    for broker in rng.sample(stage.brokers, 2):
        at_ms = stage.time(0, 700)
        first = rng.randint(0, 12)
        stage.fault(at_ms, "no-descriptors", broker, 0, float(first))
        stage.fault(at_ms, "no-descriptors", broker, 0, float(first + rng.choice((0, 0, 1))))
    stage.time(1200, 1400)


def deleted_and_lost(stage: StoryStage) -> None:
    """Records are deleted up to the middle of a batch, and a follower begins again (S-34)."""
    rng = stage.rng
    broker = rng.choice(stage.brokers)
    for _ in range(8):
        stage.operations.append(
            Operation(stage.time(0, 300), "produce", 0, 0, -1, rng.choice((2, 3, 3)), 8)
        )
    stage.operations.append(
        Operation(stage.time(320, 500), "delete-records", 0, 0, size=rng.randint(30, 100))
    )
    if rng.random() < 0.7:
        stage.fault(stage.time(100, 700), "wiped-disk", broker, rng.choice((1, 100, 400)))
    else:
        stage.cut(stage.time(50, 250), broker, rng.randint(600, 900), *stage.others(broker))
    stage.write(500, 1100, 4)
    stage.time(1000, 1200)


def reset_below_a_consumer(stage: StoryStage) -> None:
    """A consumer waits at a follower whose log begins again above it (KIP-392)."""
    rng = stage.rng
    stage.racks = True
    follower = min(stage.brokers[1:3])  # the first brokers share their racks with consumers
    for at_ms in (60, 300):
        stage.operations.append(
            Operation(stage.time(at_ms, at_ms + 100), "consume", follower, records=30)
        )
    stage.cut(stage.time(150, 220), follower, rng.randint(900, 1200), *stage.others(follower))
    for _ in range(6):
        stage.operations.append(Operation(stage.time(0, 140), "produce", 0, 0, -1, 1, 8))
    for _ in range(8):
        stage.operations.append(Operation(stage.time(250, 800), "produce", 0, 0, -1, 1, 8))
    stage.operations.append(
        Operation(stage.time(880, 1050), "delete-records", size=rng.choice((90, 100, 100)))
    )
    stage.time(1400, 1600)


def late_answers(stage: StoryStage) -> None:
    """An answer to a fetch arrives when the follower is something else by now (S-10)."""
    rng = stage.rng
    leader = stage.brokers[0]
    stage.write(0, 1300, 14, (-1, 1))
    for _ in range(rng.randint(1, 3)):
        stage.fault(
            stage.time(0, 900),
            "message-delay",
            -1,
            rng.choice((40, 150, 450)),
            moment=rng.choice((RECORDS, RECORDS, DIVERGING)),
        )
    what = rng.randrange(3)
    if what == 0:
        stage.cut(stage.time(0, 200), leader, rng.randint(550, 800), COORDINATOR, *stage.brokers)
        stage.elect(stage.time(800, 1200))
    elif what == 1:
        stage.stop(stage.time(50, 300), leader)
        stage.elect(stage.time(500, 1200))
    else:
        stage.crash(stage.time(0, 300), SENDER, moment=RECORDS)
        stage.fault(
            stage.time(0, 500), "message-delay", -1, rng.choice((50, 300, 600)), moment=ROLE_CHANGE
        )
        stage.elect(stage.time(700, 1200))
    stage.time(1300, 1500)


def silent_coordinator(stage: StoryStage) -> None:
    """The coordinator's answers are lost while a controller takes over, brokers come back, or a
    leader is elected."""
    stage.write(0, 2200, 12, (-1, -1, 1))
    stage.rng.choice(SILENCES)(stage)
    stage.time(2000, 2300)


def _silent_at_a_takeover(stage: StoryStage) -> None:
    """In the middle of it, while a leader is dead or comes back."""
    rng = stage.rng
    for _ in range(rng.randint(1, 2)):
        moment = rng.choice((WRITTEN, WRITTEN, STANDS))
        _lose_answer(stage, stage.time(60, 500), moment)
    stage.crash(stage.time(10, 500), rng.choice((LEADER, *stage.brokers)), kinds=("kill",))
    stage.fault(stage.time(10, 500), "controller-crash", -1, rng.choice((1, 150, 900)))


def _silent_at_a_return(stage: StoryStage) -> None:
    """A broker comes back and does not learn who is controller; then it leads."""
    rng, broker = stage.rng, stage.brokers[0]
    stage.fault(
        stage.time(0, 0),
        rng.choice(LOST),
        broker,
        rng.choice((0, 0, 0, 60)),
        float(rng.choice((0, 1, 1, 1, 2))),
        moment=REGISTERS,
    )
    if rng.random() < 0.8:
        stage.stop(stage.time(10, 20), broker)
    else:
        stage.crash(stage.time(10, 20), broker, kinds=("kill",))
    for first in (600, 750):  # the first broker asked may not know the controller
        stage.elect(stage.time(first, first + 150))
    other = rng.choice(stage.others(broker))
    if rng.random() < 0.7:
        stage.crash(stage.time(950, 1300), other, kinds=("kill",))
    else:
        stage.cut(stage.time(950, 1200), other, rng.randint(600, 900), *stage.others(other))


def _silent_at_a_crash(stage: StoryStage) -> None:
    """The coordinator crashes in such a moment."""
    rng = stage.rng
    stage.fault(
        stage.time(0, 0),
        CRASH,
        -1,
        rng.choice((1, 60, 500)),
        rng.choice((BEFORE_THE_CALL, AFTER_THE_CALL, IN_THE_WRITE)),
        moment=rng.choice((WRITTEN, STANDS, REGISTERS)),
    )
    stage.crash(stage.time(10, 300), rng.choice((LEADER, CONTROLLER, *stage.brokers)))


def _silent_by_chance(stage: StoryStage) -> None:
    """Any answer may be lost, while brokers crash."""
    rng, at_ms = stage.rng, stage.time(0, 200)
    rate = rng.choice((0.05, 0.15, 0.3))
    for kind in (NOT_CARRIED_OUT, CARRIED_OUT):
        stage.fault(at_ms, kind, -1, rng.randint(800, 2000), rate)
    for _ in range(rng.randint(1, 3)):
        stage.crash(stage.time(50, 1200), rng.choice((LEADER, CONTROLLER, *stage.brokers)))


def _silent_before_the_last_member(stage: StoryStage) -> None:
    """A new controller finds that the last member of the ISR is back."""
    rng = stage.rng
    one, two, last = rng.sample(stage.brokers[:3], 3)
    for broker in (one, two):
        stage.cut(stage.time(0, 100), broker, rng.randint(900, 1500), last)
    stage.crash(stage.time(700, 900), last, kinds=("kill", "power-loss"))
    for moment in (WRITTEN, STANDS)[: rng.randint(1, 2)]:
        _lose_answer(stage, stage.time(800, 1200), moment)
    stage.fault(stage.time(800, 1300), "controller-crash", -1, rng.choice((1, 150, 900)))


def _lose_answer(stage: StoryStage, at_ms: int, moment: str) -> None:
    """Lose an answer to a controller, one of the first after the moment."""
    rng = stage.rng
    calls = float(rng.choice((0, 0, 1, 2, 3, 5, 8)))
    stage.fault(at_ms, rng.choice(LOST), -1, rng.choice((0, 0, 60)), calls, moment=moment)


LOST = (NOT_CARRIED_OUT, CARRIED_OUT, CARRIED_OUT)
SILENCES = (
    _silent_at_a_takeover,
    _silent_at_a_return,
    _silent_at_a_crash,
    _silent_by_chance,
    _silent_before_the_last_member,
)


def name_used_again(stage: StoryStage) -> None:
    """A topic is deleted and created again with the same leader. Then comes a change of the ISR
    of the first one."""
    rng = stage.rng
    leader, lagging = stage.brokers[:2]

    def make_anew(at_ms: int, first: int) -> None:
        now_ms = stage.time(at_ms, at_ms + 60)
        stage.operations.append(
            Operation(now_ms, "make-anew", first % len(stage.brokers), size=rng.randrange(100))
        )

    make_anew(0, leader)
    stage.cut(stage.time(120, 250), lagging, rng.randint(600, 900), *stage.others(lagging))
    for _ in range(8):
        client = rng.randrange(stage.producers)
        stage.operations.append(Operation(stage.time(100, 1900), "produce-anew", client))
    for _ in range(4):  # of all leaders, and sent again after a while
        stage.fault(
            stage.time(0, 0),
            rng.choice(("message-delay", "message-twice")),
            -1,
            rng.randint(300, 1500),
            moment=rng.choice((SHRINKS, SHRINKS, GROWS)),
        )
    for number in range(1, 3):  # the number of deletions decides who leads
        make_anew(600 * number + rng.randint(0, 300), leader - number)
    stage.time(2000, 2200)


CUTTING = (deposed_leader, fast_failovers, last_one_standing, late_answers)  # usually
STORIES: tuple[Callable[[StoryStage], None], ...] = (
    *CUTTING,
    *CUTTING,
    late_isr_change,
    deposed_leader,
    fast_failovers,
    deaf_broker,
    last_one_standing,
    restarts,
    deleted_and_lost,
    late_answers,
    silent_coordinator,
    silent_coordinator,
    name_used_again,
    reset_below_a_consumer,
    short_of_descriptors,
)


def tell(
    rng: random.Random,
    brokers: int,
    producers: int,
    partitions: int,
    start_ms: int,
    stories: tuple[Callable[[StoryStage], None], ...] = STORIES,
) -> StoryStage:
    """Draw one story that begins at ``start_ms``. Needs three brokers."""
    order = [*range(brokers)]
    if rng.random() < 0.4:
        rng.shuffle(order)
    stage = StoryStage(rng, tuple(order), producers, partitions, start_ms)
    story = rng.choice(stories)
    story(stage)
    if story not in CUTTING and rng.random() < ENDING_RATE and stage.silent_from_ms is None:
        stage.start_ms = stage.end_ms
        deposed_leader(stage)
    return stage
