"""The rows: failures that a replication protocol must survive, as scripts.

Each script stops after the failure. Then everything heals, and the logs are compared. Each record
is a batch of its own. docs/rules/scenarios.md has the ids T-… and S-….
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations

from replication.simulator.matrix.stage import Stage

POWER = (
    "power failed on all replicas, and the record was not synced on the one that leads (flush=os)"
)
UNCLEAN = "an unclean election was asked for: availability before durability"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row.

    Attributes:
        flush, min_isr, elr, unclean: see ``Stage``.
        allowed: why the default rule may lose acknowledged records here; empty: it must not.
    """

    name: str
    title: str
    script: Callable[[Stage], None]
    flush: str = "os"
    min_isr: int = 1
    elr: bool = True
    unclean: bool = False
    allowed: str = ""


# -- truncation ----------------------------------------------------------------------------------


def successive_fail_over(stage: Stage) -> None:
    """C follows a new leader for a moment, before it learned what was committed (T-A1)."""
    stage.begin("ABC")
    stage.produce("A", 10)
    stage.catch_up("B", "C")
    record = stage.produce("A")
    stage.fetch("B", "C")
    stage.fetch_unanswered("B", "C")
    stage.acknowledged(record)
    stage.checkpoint("A", "B", "C")
    stage.kill("A")
    stage.wait_for("B leads", lambda: stage.leads("B"))
    stage.run()  # C has become its follower, and has fetched nothing
    stage.kill("B")
    stage.wait_for("C leads", lambda: stage.leads("C"))
    stage.acknowledged(stage.produce("C"))


def restart_before_high_watermark(stage: Stage) -> None:
    """A follower stops in order; it does not know yet that its last record is committed.
    The leader dies before it has fetched anything again (T-A2, S-1)."""
    stage.begin("BA")
    stage.produce("B")
    stage.catch_up("A")
    record = stage.produce("B")
    stage.fetch("A")
    stage.fetch_unanswered("A")
    stage.acknowledged(record)
    stage.checkpoint("B")
    stage.stop("A")
    stage.start("A")
    stage.kill("B")
    stage.wait_for("A leads", lambda: stage.leads("A"))
    stage.produce("A", acks=1)


def power_loss_of_both(stage: Stage) -> None:
    """Power fails everywhere; A, which comes back first, had not synced a record (T-A3, S-2)."""
    stage.begin("BA")
    stage.produce("B")
    stage.catch_up("A")
    stage.flush("A")
    stage.checkpoint("A")
    stage.produce("B")
    stage.catch_up("A")
    stage.flush("B")
    stage.checkpoint("B")
    stage.power_loss("A", "B", noticed=False)
    stage.end_sessions("B", "A")  # A counts as leader for a moment
    stage.start("A")
    stage.wait_for("A leads", lambda: stage.leads("A"))
    stage.acknowledged(stage.produce("A"))


def fast_leader_changes(unreplicated: int) -> Callable[[Stage], None]:
    """A never hears that B led for a while, and wrote so many records (T-C1, KIP-279)."""

    def script(stage: Stage) -> None:
        stage.begin("BA", leader="A")
        stage.produce("A", 10)
        stage.catch_up("B")
        stage.produce("A", 10, acks=1)
        stage.deafen("A")
        stage.elect_preferred()
        stage.produce("B", unreplicated, acks=1)
        stage.checkpoint("A", "B")
        stage.cut_off("B")
        stage.end_sessions("B")
        stage.undeafen("A")
        stage.wait_for("A leads", lambda: stage.leads("A"))
        stage.produce("A", 5, acks=1)
        stage.reconnect("B")

    return script


def several_rounds(stage: Stage) -> None:
    """A and B lead in turn while the other one is down: their logs part twice (T-C2, S-4)."""

    def alone(leader: str, other: str, count: int) -> None:
        if stage.is_up(other):
            stage.checkpoint(other)
            stage.kill(other)
        if not stage.is_up(leader):
            stage.start(leader)
        stage.wait_for(f"{leader} leads", lambda: stage.leads(leader))
        stage.produce(leader, count, acks=1)

    stage.begin("AB")
    stage.produce("A", 10)
    stage.catch_up("B")
    stage.produce("A", 2, acks=1)
    alone("B", "A", 5)
    alone("A", "B", 8)
    alone("B", "A", 3)
    alone("A", "B", 10)
    stage.start("B")


def stale_leader_epoch(stage: Stage) -> None:
    """C fetches on as if nothing had happened, while the leader lost the leadership, cut its log,
    and was elected again (T-D1, KIP-320)."""
    stage.begin("BAC", leader="A")
    stage.produce("A", 10)
    stage.catch_up("B", "C")
    stage.produce("A", 3, acks=1)
    stage.fetch("C")
    stage.deafen("C")
    stage.elect_preferred()
    stage.catch_up("A")
    stage.cut_off("B")
    stage.end_sessions("B")
    stage.wait_for("A leads again", lambda: stage.leads("A"))
    stage.produce("A", 4)
    stage.fetch_freely("C")
    stage.run(100)
    stage.checkpoint("A", "B", "C")
    stage.undeafen("C")


def join_at_lagging_high_watermark(stage: Stage) -> None:
    """A new leader does not know yet what is committed; C has fetched as far as it does know
    (T-F1, KAFKA-7128)."""
    stage.begin("BAC", leader="A")
    stage.kill("C")
    stage.produce("A", 5)
    stage.catch_up("B")
    records = stage.produce("A", 5)
    stage.fetch("B")
    stage.fetch_unanswered("B")
    stage.acknowledged(records)
    stage.elect_preferred()  # A is still in the ISR, and does not fetch
    stage.fetch_single_batches()
    stage.start("C")
    stage.fetch("C", rounds=5)
    stage.fetch_unanswered("C")  # so that the leader knows how far it is
    stage.run(200)
    stage.kill("A", "B")
    if stage.leader:
        stage.acknowledged(stage.produce(stage.leader))


# -- the last replicas ---------------------------------------------------------------------------


def last_replica_standing(stage: Stage) -> None:
    """The last member of the ISR loses its tail in a power failure (T-E1, S-20, KIP-966)."""
    stage.begin("ABC")
    stage.produce("A", 10)
    stage.catch_up("B", "C")
    stage.flush("A")
    stage.stop("C")
    record = stage.produce("A")
    stage.catch_up("B")
    stage.acknowledged(record)
    stage.checkpoint("A")
    stage.stop("B")
    stage.power_loss("A", noticed=False)
    stage.end_sessions("A")
    stage.start("A")


def nobody_in_sync(stage: Stage) -> None:
    """All live replicas lack records; the one that has them is down (S-18)."""
    stage.begin("ABC")
    stage.produce("A", 4)
    stage.catch_up("B", "C")
    stage.checkpoint("C")
    stage.kill("C")
    stage.produce("A", 2)
    stage.catch_up("B")
    stage.checkpoint("B")
    stage.kill("B")
    stage.acknowledged(stage.produce("A", 4))
    stage.consume("A")
    stage.checkpoint("A")
    stage.kill("A")
    stage.start("B")
    stage.start("C")
    if stage.leader:
        stage.produce(stage.leader, 2)
        stage.catch_up("C")


def leader_without_tail(stage: Stage) -> None:
    """A leader loses power and is back before its session ends: the controller has not seen
    that it was gone (S-21)."""
    stage.begin("ABC")
    stage.produce("A", 7)
    stage.catch_up("B", "C")
    stage.flush("A")
    records = stage.produce("A", 3)
    stage.catch_up("B", "C")
    stage.acknowledged(records)
    stage.checkpoint("A", "B", "C")
    stage.power_loss("A", noticed=False)
    stage.cut_off("K")
    stage.start("A")
    stage.end_sessions("A")
    stage.run(200)
    stage.reconnect("K")


def stale_checkpoints(stage: Stage) -> None:
    """All brokers restart, in every order, with old high-watermark checkpoints; each replica
    leads once. A consumer stands at offset 8 (S-22)."""
    stage.begin("ABC")
    stage.produce("A", 3)
    stage.catch_up("B", "C")
    stage.checkpoint("A", "B", "C")
    stage.produce("A", 7)
    stage.catch_up("B", "C")
    stage.consume("A", 8)
    for order in permutations("ABC"):
        stage.power_loss(*"ABC", noticed=False)
        stage.end_sessions(*"ABC")
        for name, following in zip(order, (*order[1:], ""), strict=True):
            if not stage.is_up(name):
                stage.start(name)
            stage.wait_for(f"{name} leads", lambda name=name: stage.leads(name))  # type: ignore[misc]
            stage.consume(name, 8)
            if following:
                stage.start(following)
                stage.kill(name)
        for name in order[:-1]:
            stage.start(name)
        stage.catch_up(*order[:-1])


def coordinated_power_loss(stage: Stage) -> None:
    """Power fails everywhere in the middle of the load, again and again; each disk keeps
    what it happens to keep (S-28)."""
    chance = stage.chance
    stage.begin("ABC")
    for _ in range(12):
        stage.catch_up(*"ABC")
        stage.fetch_freely(*"ABC")
        for name in "ABC":
            if chance.random() < 0.5:
                stage.checkpoint(name)
            if chance.random() < 0.5:
                stage.flush(name)
        for _ in range(chance.randrange(2, 8)):
            stage.send_record(stage.leader)
            stage.run(chance.randrange(3))
        stage.power_loss(*"ABC", noticed=False, mode="random")
        stage.end_sessions(*chance.sample("ABC", 3))
        for name in chance.sample("ABC", 3):
            stage.start(name)


SCENARIOS = (
    Scenario("T-A1", "acknowledged record, two fail-overs in a row", successive_fail_over),
    Scenario(
        "T-A2",
        "follower restarts before it learned the high watermark",
        restart_before_high_watermark,
        min_isr=2,
    ),
    Scenario(
        "T-A3 os", "power fails on both replicas, flush=os", power_loss_of_both, allowed=POWER
    ),
    Scenario("T-A3 ack", "the same with flush=ack", power_loss_of_both, flush="ack"),
    Scenario("T-C1 i", "fast leader changes, shorter tail", fast_leader_changes(5)),
    Scenario("T-C1 ii", "fast leader changes, tail of equal length", fast_leader_changes(10)),
    Scenario("T-C1 iii", "fast leader changes, longer tail", fast_leader_changes(15)),
    Scenario("T-C2", "truncation takes more than one round", several_rounds, unclean=True),
    Scenario("T-D1", "fetch under a stale leader epoch", stale_leader_epoch),
    Scenario("T-F1", "joining the ISR at a lagging high watermark", join_at_lagging_high_watermark),
    Scenario(
        "T-E1", "last replica standing loses its tail (S-20)", last_replica_standing, min_isr=2
    ),
    Scenario(
        "T-E1 −ELR",
        "the same without eligible leader replicas",
        last_replica_standing,
        min_isr=2,
        elr=False,
        allowed="before KIP-966 the last member of the ISR is trusted to have its tail",
    ),
    Scenario("S-18 off", "nobody in sync is alive, unclean election off", nobody_in_sync),
    Scenario(
        "S-18 on", "the same, unclean election on", nobody_in_sync, unclean=True, allowed=UNCLEAN
    ),
    Scenario("S-21", "leader without its tail, back at once", leader_without_tail, min_isr=2),
    Scenario(
        "S-22",
        "all restart in every order, stale checkpoints",
        stale_checkpoints,
        flush="ack",
        unclean=True,
    ),
    Scenario(
        "S-28 ack",
        "power fails everywhere under load, flush=ack",
        coordinated_power_loss,
        flush="ack",
        min_isr=2,
    ),
    Scenario("S-28 os", "the same with flush=os", coordinated_power_loss, min_isr=2, allowed=POWER),
)
