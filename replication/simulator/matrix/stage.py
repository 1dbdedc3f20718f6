"""The stage of the matrix: a script decides which fetches get through.

Broker K has no replica: it is always the controller. Nothing happens just because time passes.
Sessions end and high-watermark checkpoints are written when the script says so, and the lag time of
the ISR is longer than any script.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, ClassVar

from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    ElectionType,
    ElectLeadersRequest,
    FetchRequest,
    FetchResponse,
    LeaderAndIsrRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochResponse,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from replication.simulator.matrix.cluster import ClientAnswer, ScriptError, StagedCluster
from replication.simulator.matrix.holds import Hold
from replication.simulator.matrix.rules import RuleColumn
from replication.simulator.world.network import SimMessage
from replication.simulator.world.scheduler import Scheduler

REPLICAS, CONTROLLER = "ABC", "K"
FOREVER_MS = 1 << 40


class Stage(StagedCluster):
    """See the module. ``options`` are those of ``StagedCluster``.

    Attributes:
        out_of_range: how often the client read at a position that does not exist.
    """

    step_ms = 20
    start_ms = 200
    limit_ms = 10_000
    session_ms = FOREVER_MS
    socket_ms = 60_000
    segment_bytes = 1 << 20
    config: ClassVar[dict[str, Any]] = {
        "replica_lag_time_max_ms": 600_000,
        "replica_fetch_wait_max_ms": 5,
        "high_watermark_checkpoint_interval_ms": FOREVER_MS,
    }

    def __init__(self, column: RuleColumn, *, seed: int = 0, **options: Any) -> None:
        scheduler = Scheduler(random.Random(f"stage {seed}"))
        super().__init__(
            REPLICAS + CONTROLLER, scheduler, truncation=column.rule, seed=seed, **options
        )
        self.chance = random.Random(f"script {seed}")  # for scripts with random choices
        self.out_of_range = 0
        self.replicas = ""
        self._answers_without_epoch = column.answers_without_epoch
        self._fetches = {
            name: self._hold(name, None, FetchRequest, ListOffsetsRequest) for name in REPLICAS
        }
        self._answers = {name: self._hold(None, name, FetchResponse) for name in REPLICAS}
        control = (LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest)
        self._control = {name: self._hold(None, name, *control) for name in REPLICAS}
        for hold in (*self._answers.values(), *self._control.values()):
            hold.on = False

    def _hold(self, source: str | None, target: str | None, *kinds: type) -> Hold:
        return self.hold(source, target, *kinds, settle=lambda: None)

    def _gate(self, message: SimMessage) -> None:
        content = message.content
        if self._answers_without_epoch and isinstance(content, OffsetForLeaderEpochResponse):
            parts = tuple(part._replace(leader_epoch=-1) for part in content.partitions)
            message = message._replace(content=OffsetForLeaderEpochResponse(parts))
        super()._gate(message)

    def leads(self, name: str) -> bool:
        """Whether a broker is leader and knows it."""
        found, now = self.replica(name), self.now
        return (
            found is not None
            and found.is_leader
            and now.leader == self.ids[name]
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
        self.wait_for("K is controller", lambda: self.controller == CONTROLLER)
        for name in replicas:
            self.start(name)
        self.create(replicas)
        for name in replicas[: max(0, replicas.find(leader))]:
            self.cut_off(name)
            self.end_sessions(name)
            self.reconnect(name)
        if leader:
            self.wait_for(f"{leader} leads", lambda: self.leads(leader))
            self.catch_up(*replicas)

    def stop(self, name: str) -> None:
        super().stop(name)
        self._lose_held(name)

    def _before_crash(self, name: str) -> None:
        self._lose_held(name)
        self.cluster.network.unbind(self.ids[name])  # waiting senders notice it soon

    def _lose_held(self, name: str) -> None:
        for hold in self._holds:
            hold.lose(self.ids[name])

    # -- the controller ------------------------------------------------------------------------

    def deafen(self, name: str) -> None:
        """Keep the controller's requests from a broker."""
        self._control[name].on = True

    def undeafen(self, name: str) -> None:
        """Let them through again. Earlier ones are lost, and the latest state is sent."""
        self._control[name].lose_all()
        self.run(self.start_ms)

    def elect_preferred(self) -> None:
        """Elect the first replica of the assignment, if it is in the ISR."""
        self.ask_controller(ElectLeadersRequest(ElectionType.PREFERRED, (self.tp,)))
        self.wait_for("the preferred replica leads", lambda: self.leads(self.replicas[0]))

    # -- replication ---------------------------------------------------------------------------

    def fetch(self, *names: str, rounds: int = 1) -> None:
        """Let ``rounds`` fetches of each broker through, with their answers."""
        for name in names:
            hold = self._fetches[name]
            hold.let_pass(rounds)
            self.wait_for(f"{name} fetches {rounds} times", lambda hold=hold: not hold.to_pass)  # type: ignore[misc]
        self.run()

    def fetch_unanswered(self, *names: str) -> None:
        """Let one fetch of each reach the leader, and lose all answers from now on."""
        for name in names:
            self._answers[name].on = True
        self.fetch(*names)

    def fetch_freely(self, *names: str) -> None:
        """Let all fetches through, until they have caught up once."""
        for name in names:
            self._answers[name].end()
            self._fetches[name].end()

    def catch_up(self, *names: str) -> None:
        """Let them fetch until they are in sync and know the leader's high watermark, and no
        further.

        Raises:
            ScriptError: they do not catch up.
        """
        self.fetch_freely(*names)
        self.wait_for(f"{', '.join(names)} caught up", lambda: all(map(self._is_level, names)))
        for name in names:
            self._fetches[name].on = True
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
            and self.ids[name] in its.isr.committed
        )

    def checkpoint(self, *names: str) -> None:
        """Write their high watermarks to ``replication-offset-checkpoint``."""
        for name in names:
            self.broker(name).log_manager.housekeeper.checkpoint_high_watermarks()

    # -- clients -------------------------------------------------------------------------------

    def produce(self, to: str, count: int = 1, acks: int = -1) -> list[ClientAnswer]:
        """Send batches of one record each to a broker."""
        answers = [self.send_record(to, acks) for _ in range(count)]
        self.run()
        return answers

    def send_record(self, to: str, acks: int = -1) -> ClientAnswer:
        """Send one record, without waiting for its arrival."""
        value = b"m%d" % len(self.history.writes)
        return self.send_batch(to, value, acks=acks, timeout_ms=self.socket_ms)

    def acknowledged(self, answers: list[ClientAnswer]) -> None:
        """
        Raises:
            ScriptError: some are not.
        """
        self.wait_for(
            "all records acknowledged", lambda: all(a.code is ErrorCode.NONE for a in answers)
        )

    def consume(self, name: str, offset: int = 0) -> tuple[ErrorCode, list[bytes]]:
        found = super().consume(name, offset)
        self.out_of_range += found[0] is ErrorCode.OFFSET_OUT_OF_RANGE
        return found

    # -- the end -------------------------------------------------------------------------------

    def heal(self) -> str:
        """Start and connect all brokers, let all messages pass, then write a last record.

        Returns:
            What is still wrong after ``limit_ms``; empty if the replicas are equal and the write
            was acknowledged.
        """
        for name in (CONTROLLER, *self.replicas):
            if self.machine(name).cut_off:
                self.reconnect(name)
        for hold in self._holds:
            hold.lose_all()
        self.end_sessions(*self._orphans)
        for name in self.replicas:
            if not self.is_up(name):
                self.start(name)
        try:
            self.wait_for("a leader", lambda: bool(self.leader) and self.leads(self.leader))
            self.wait_for("all level", lambda: all(map(self._is_level, self.replicas)))
            self.acknowledged(self.produce(self.leader))
            self.wait_for("all level again", lambda: all(map(self._is_level, self.replicas)))
        except ScriptError as error:
            return str(error)
        return ""
