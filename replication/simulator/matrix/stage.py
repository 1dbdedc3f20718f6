"""A cluster that follows a script step by step.

Brokers, fetchers, controller, coordinator and logs are the real ones. The script decides which
fetches get through, which broker crashes with which bytes lost, and when sessions end. Broker K has
no replica: it is always the controller.

Nothing happens just because time passes. Sessions end and high-watermark checkpoints are written
when the script says so, and the lag time of the ISR is longer than any script.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from logstore.testing.faulty import CrashMode
from replication.common.messages import (
    CreateTopicRequest,
    ElectionType,
    ElectLeadersRequest,
    Request,
    Response,
)
from replication.common.state import NO_LEADER, PartitionRegistration
from replication.coordination import nodes
from replication.partition import Partition
from replication.simulator.matrix.client import TIMEOUT_MS, TP, ScriptClient
from replication.simulator.matrix.gate import Gate
from replication.simulator.matrix.rules import RuleColumn
from replication.simulator.oracle.history import Write, WriteOutcome
from replication.simulator.world.cluster import SimCluster
from replication.simulator.world.coordinator import SimSession
from replication.simulator.world.plan import SchedulePlan
from replication.simulator.world.scheduler import US_PER_MS, Scheduler

NAMES = "ABCK"
CONTROLLER = "K"
FOREVER_MS = 1 << 40
STEP_MS = 20  # enough for everything that a step causes
LIMIT_MS = 10_000  # virtual time; what has not happened by then never will


class ScriptError(Exception):
    """The cluster did not do what a step of the script expects."""


class Stage:
    """The cluster of a script. Brokers are named by letters.

    Args:
        flush: ``ack`` syncs each append before it counts, ``os`` leaves syncs to the system.
        elr: ``eligible.leader.replicas.enable``.
    """

    def __init__(
        self, column: RuleColumn, *, flush: str, min_isr: int, elr: bool, unclean: bool, seed: int
    ) -> None:
        self.scheduler = Scheduler(random.Random(f"stage {seed}"))
        self.chance = random.Random(f"script {seed}")  # for scripts with random choices
        plan = SchedulePlan(
            seed, column.rule, flush, len(NAMES), 1, min_isr, (), (), (), 0, segment_bytes=1 << 20
        )
        self.cluster = SimCluster(
            plan, self.scheduler, Counter(), lambda machine: None, lambda machine: None
        )
        self.cluster.coordinator.session_timeout_ms = FOREVER_MS
        # One segment for everything, because a roll would sync what the script wants to lose.
        self.cluster.log_config = replace(self.cluster.log_config, segment_index_bytes=1 << 12)
        self.cluster.config = replace(
            self.cluster.config,
            replica_lag_time_max_ms=600_000,
            replica_fetch_wait_max_ms=5,
            high_watermark_checkpoint_interval_ms=FOREVER_MS,
            eligible_leader_replicas=elr,
            auto_leader_rebalance=False,
        )
        self.gate = Gate(answers_without_epoch=column.answers_without_epoch)
        self.cluster.network.gate = self.gate
        self.cluster.network.socket_timeout_ms = TIMEOUT_MS
        self.client = ScriptClient(self.cluster.network)
        self.at_rest: Callable[[], None] = lambda: None  # called after each step
        self.replicas = ""
        self._config = {
            "min.insync.replicas": str(min_isr),
            "unclean.leader.election.enable": str(unclean).lower(),
        }
        self._session = self.cluster.coordinator.connect(-1)
        self._orphans: dict[str, SimSession] = {}  # sessions of dead processes

    # -- time ----------------------------------------------------------------------------------

    def run(self, ms: int = STEP_MS) -> None:
        """Let time pass."""
        scheduler = self.scheduler
        until_us = scheduler.now_us + ms * US_PER_MS
        while (event := scheduler.next_event(until_us)) is not None:
            event.task()
        self.at_rest()

    def wait_for(self, what: str, reached: Callable[[], bool]) -> None:
        """
        Raises:
            ScriptError: it did not happen.
        """
        for _ in range(LIMIT_MS // STEP_MS):
            if reached():
                return
            self.run()
        raise ScriptError(f"never: {what}; {self.registration}")

    # -- looking -------------------------------------------------------------------------------

    @property
    def registration(self) -> PartitionRegistration:
        """The registration in the coordinator's tree."""
        topic = self._session.get(nodes.topic_path(TP.topic))
        state = self._session.get(nodes.partition_state_path(TP))
        if topic is None or state is None:
            return PartitionRegistration((), (), NO_LEADER, -1, -1)
        replicas = nodes.decode_topic(TP.topic, topic.data).partitions[TP.partition]
        return nodes.decode_partition(TP, state.data, state.version, replicas)

    @property
    def leader(self) -> str:
        """The leader by the controller's registration; empty for none."""
        leader = self.registration.leader
        return "" if leader == NO_LEADER else NAMES[leader]

    def is_up(self, name: str) -> bool:
        return self.cluster.machines[NAMES.index(name)].broker is not None

    def replica(self, name: str) -> Partition | None:
        """The replica of a broker, if it is up and has opened its log."""
        broker = self.cluster.machines[NAMES.index(name)].broker
        if broker is None:
            return None
        found = broker.replica_manager.partitions.get(TP)
        return None if found is None or found.log is None else found

    def _open(self, name: str) -> Partition:
        found = self.replica(name)
        if found is None:
            raise ScriptError(f"{name} has no replica")
        return found

    def log_end(self, name: str) -> int:
        return self._open(name).log_end_offset

    def leads(self, name: str) -> bool:
        """Whether a broker is leader and knows it."""
        found, now = self.replica(name), self.registration
        return (
            found is not None
            and found.is_leader
            and now.leader == NAMES.index(name)
            and found.leader_epoch == now.leader_epoch
        )

    # -- brokers -------------------------------------------------------------------------------

    def begin(self, replicas: str, leader: str = "") -> None:
        """Start K and the brokers ``replicas``, and create the topic with them as its assignment.

        The first of them leads, unless ``leader`` is another. Then the sessions of those before it
        end, and they come back.
        """
        self.replicas = replicas
        self.start(CONTROLLER)
        self.wait_for("K is controller", lambda: self.cluster.controller == NAMES.index(CONTROLLER))
        for name in replicas:
            self.start(name)
        answers: list[Response | None] = []
        assignment = tuple(NAMES.index(name) for name in replicas)
        self._ask_controller(
            CreateTopicRequest(TP.topic, 1, len(replicas), (assignment,), self._config), answers
        )
        self.wait_for("the topic is there", lambda: all(self.replica(n) for n in replicas))
        for name in replicas[: max(0, replicas.find(leader))]:
            self.cut_off(name)
            self.end_sessions(name)
            self.reconnect(name)
        if leader:
            self.wait_for(f"{leader} leads", lambda: self.leads(leader))
            self.catch_up(*replicas)

    def _ask_controller(self, request: Request, answers: list[Response | None]) -> None:
        broker = self.cluster.machines[NAMES.index(CONTROLLER)].broker
        assert broker is not None
        broker.handle(request, answers.append)

    def start(self, name: str) -> None:
        """Start a broker, and let it register if its last session is over."""
        self.cluster.start(NAMES.index(name))
        self.run(10 * STEP_MS)

    def kill(self, *names: str) -> None:
        """Kill processes. What they wrote is kept, and their sessions end."""
        self._crash(names, "all_kept")
        self.end_sessions(*names)

    def lose_power(self, *names: str, mode: CrashMode = "all_lost") -> None:
        """Lose everything that was not synced. The sessions live until ``end_sessions``."""
        self._crash(names, mode)

    def _crash(self, names: tuple[str, ...], mode: CrashMode) -> None:
        for name in names:
            broker = NAMES.index(name)
            session = self.cluster.machines[broker].session
            if session is not None:
                self._orphans[name] = session
            self.gate.lose_all_of(broker)
            self.cluster.network.unbind(broker)  # waiting senders notice it soon
            self.cluster.crash(broker, mode, None)

    def end_sessions(self, *names: str) -> None:
        """End sessions one after the other, so that the controller sees each end."""
        for name in names:
            session = self._orphans.pop(name, self.cluster.machines[NAMES.index(name)].session)
            assert session is not None
            self.cluster.coordinator.expire(session)
            self.run()

    def stop(self, name: str) -> None:
        """Stop cleanly: leaderships move, high watermarks are written, logs are closed."""
        self.cluster.stop(NAMES.index(name), None)
        self.wait_for(f"{name} stops", lambda: not self.is_up(name))
        self.gate.lose_all_of(NAMES.index(name))

    def cut_off(self, name: str) -> None:
        """Cut a broker off from the coordinator. It goes on with what it knows."""
        self.cluster.cut_off(NAMES.index(name))
        self.run()

    def reconnect(self, name: str) -> None:
        self.cluster.reconnect(NAMES.index(name))
        self.run(10 * STEP_MS)

    # -- the controller ------------------------------------------------------------------------

    def deafen(self, name: str) -> None:
        """Keep the controller's requests from a broker."""
        self.gate.deaf.add(NAMES.index(name))

    def undeafen(self, name: str) -> None:
        """Let them through again. Earlier ones are lost, and the latest state is sent."""
        broker = NAMES.index(name)
        self.gate.deaf.discard(broker)
        self.gate.lose(lambda message: message.target == broker and message.source >= 0)
        self.run(10 * STEP_MS)

    def elect_preferred(self) -> None:
        """Elect the first replica of the assignment, if it is in the ISR."""
        answers: list[Response | None] = []
        self._ask_controller(ElectLeadersRequest(ElectionType.PREFERRED, (TP,)), answers)
        self.wait_for("the preferred replica leads", lambda: self.leads(self.replicas[0]))

    # -- replication ---------------------------------------------------------------------------

    def fetch(self, *names: str, rounds: int = 1) -> None:
        """Let ``rounds`` fetches of each broker through, with their answers."""
        for name in names:
            broker = NAMES.index(name)
            self.gate.rounds[broker] = rounds
            self.gate.look_again()
            self.wait_for(
                f"{name} fetches {rounds} times",
                lambda broker=broker: self.gate.rounds[broker] == 0,  # type: ignore[misc]
            )
        self.run()

    def fetch_unanswered(self, *names: str) -> None:
        """Let one fetch of each reach the leader, and lose all answers from now on."""
        self.gate.unanswered.update(NAMES.index(name) for name in names)
        self.fetch(*names)

    def fetch_freely(self, *names: str) -> None:
        """Let all fetches through, until they have caught up once."""
        brokers = {NAMES.index(name) for name in names}
        self.gate.free |= brokers
        self.gate.unanswered -= brokers
        self.gate.look_again()

    def catch_up(self, *names: str) -> None:
        """Let them fetch until they are in sync and know the leader's high watermark, and no
        further.

        Raises:
            ScriptError: they do not catch up.
        """
        self.fetch_freely(*names)
        self.wait_for(f"{', '.join(names)} caught up", lambda: all(map(self._is_level, names)))
        self.gate.free -= {NAMES.index(name) for name in names}
        self.run()  # no fetch is waiting at the leader any more

    def fetch_single_batches(self) -> None:
        """Limit fetches of brokers that start from now on to one batch."""
        self.cluster.config = replace(self.cluster.config, replica_fetch_max_bytes=1)

    def _is_level(self, name: str) -> bool:
        leader = self.leader
        mine, its = self.replica(name), self.replica(leader) if leader else None
        if mine is None or its is None or mine.leader_epoch != its.leader_epoch:
            return False
        return (
            mine.log_end_offset == its.log_end_offset == its.high_watermark
            and mine.high_watermark == its.high_watermark
            and NAMES.index(name) in its.isr.committed
        )

    # -- disks ---------------------------------------------------------------------------------

    def flush(self, *names: str) -> None:
        """Write the caches of machines back to their disks."""
        for name in names:
            self._open(name).local_log().flush()

    def checkpoint(self, *names: str) -> None:
        """Write their high watermarks to ``replication-offset-checkpoint``."""
        for name in names:
            broker = self.cluster.machines[NAMES.index(name)].broker
            assert broker is not None
            broker.log_manager.checkpoint_high_watermarks()

    # -- clients -------------------------------------------------------------------------------

    def produce(self, to: str, count: int = 1, acks: int = -1) -> list[Write]:
        """Send batches of one record each to a broker."""
        writes = [self.send(to, acks) for _ in range(count)]
        self.run()
        return writes

    def send(self, to: str, acks: int = -1) -> Write:
        """Send one record, without waiting for its arrival."""
        return self.client.produce(NAMES.index(to), acks)

    def acknowledged(self, writes: list[Write]) -> None:
        """
        Raises:
            ScriptError: some are not.
        """
        self.wait_for(
            "all records acknowledged", lambda: all(w.outcome is WriteOutcome.OK for w in writes)
        )

    def consume(self, offset: int, of: str) -> None:
        """Let the client read on from a position."""
        self.client.consume(NAMES.index(of), offset)
        self.run()

    # -- the end -------------------------------------------------------------------------------

    def heal(self) -> str:
        """Start and connect all brokers, let all messages pass, then write a last record.

        Returns:
            What is still wrong after ``LIMIT_MS``; empty if the replicas are equal and the write
            was acknowledged.
        """
        for name in (CONTROLLER, *self.replicas):
            if self.cluster.machines[NAMES.index(name)].cut_off:
                self.reconnect(name)
        self.gate.open()
        self.end_sessions(*self._orphans)
        for name in self.replicas:
            if not self.is_up(name):
                self.start(name)
        try:
            self.wait_for("a leader", lambda: bool(self.leader) and self.leads(self.leader))
            self.wait_for("all level", lambda: all(self._is_level(n) for n in self.replicas))
            self.acknowledged(self.produce(self.leader))
            self.wait_for("all level again", lambda: all(map(self._is_level, self.replicas)))
        except ScriptError as error:
            return str(error)
        return ""
