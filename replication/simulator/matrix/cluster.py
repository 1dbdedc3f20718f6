"""A cluster on a stage: brokers, fetchers, controllers, coordinator and logs are the real ones, and
a script decides which message arrives, who dies, what the disk keeps, and when.

Brokers are named by letters. Time is virtual and moves only in ``run``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, ClassVar

from checkpoints.types import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.reader import read_records
from logstore.log import PartitionLog
from logstore.testing.faulty import CrashMode
from replication.broker.broker import Broker
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    CreateTopicRequest,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    Request,
    Response,
)
from replication.common.state import NO_LEADER, PartitionRegistration
from replication.coordination import nodes
from replication.partition import Partition
from replication.simulator.matrix.holds import CLIENT, Hold
from replication.simulator.oracle.history import ClientHistory, Write, WriteOutcome
from replication.simulator.world.cluster import Machine, SimCluster
from replication.simulator.world.coordinator import SimSession
from replication.simulator.world.network import SimMessage
from replication.simulator.world.plan import SchedulePlan
from replication.simulator.world.scheduler import (
    START_WALL_MS,
    US_PER_MS,
    Event,
    Process,
    Scheduler,
)

TOPIC = "t"
OUTCOMES = {
    ErrorCode.NONE: WriteOutcome.OK,
    ErrorCode.NOT_ENOUGH_REPLICAS: WriteOutcome.FAILED,
}


class ScriptError(AssertionError):
    """The cluster did not do what a step of the script expects."""


class ClientAnswer:
    """The answers that a client has had so far."""

    def __init__(self) -> None:
        self.part: Any = None

    @property
    def code(self) -> ErrorCode | None:
        """None: it still waits."""
        return None if self.part is None else self.part.error_code


class StagedCluster:
    """See the module. The client sends each request once, to a given broker.

    Args:
        names: a letter for each broker, in the order of their ids.
        min_isr, unclean: options of the topic.
        flush: ``ack``, synced before it counts as replicated, or ``os``.
        elr: ``eligible.leader.replicas.enable``.
        truncation: a key of ``replication.decisions.truncation.RULES``.
        seed: of the choices that disks make when they lose power, and of delays.
        log_config: fields of ``LogConfig`` beside those of the simulator.
    Attributes:
        history: what the client was told.
        at_rest: called after each step.
    """

    step_ms = 5  # enough for everything that a step of the script causes
    start_ms = 5  # and a start
    limit_ms = 60_000  # virtual time; what has not happened by then never will
    session_ms = 700
    socket_ms = 900
    segment_bytes = 1 << 16
    config: ClassVar[dict[str, Any]] = {}  # fields of ``ReplicationConfig``

    def __init__(
        self,
        names: str,
        scheduler: Scheduler,
        *,
        min_isr: int = 1,
        unclean: bool = False,
        flush: str = "os",
        elr: bool = True,
        truncation: str = "fetch",
        seed: int = 0,
        partitions: int = 1,
        **log_config: Any,
    ) -> None:
        self.ids = {name: number for number, name in enumerate(names)}
        self.names = dict(enumerate(names))
        self.tps = [TopicPartition(TOPIC, number) for number in range(partitions)]
        self.tp = self.tps[0]
        self.scheduler = scheduler
        self.history = ClientHistory()
        self.at_rest: Callable[[], None] = lambda: None
        self._topic_config = {
            "min.insync.replicas": str(min_isr),
            "unclean.leader.election.enable": str(unclean).lower(),
        }
        self._client = Process("client", CLIENT)
        self._holds: list[Hold] = []
        self._counted: list[tuple[type, list[Any]]] = []
        self._orphans: dict[str, SimSession] = {}  # sessions of dead processes
        plan = SchedulePlan(
            seed=seed,
            truncation=truncation,
            flush=flush,
            brokers=len(names),
            partitions=partitions,
            min_isr=min_isr,
            idempotent=(),
            faults=(),
            operations=(),
            duration_ms=0,
            segment_bytes=self.segment_bytes,
        )
        self.cluster = SimCluster(plan, scheduler, Counter())
        self.cluster.config = replace(
            self.cluster.config,
            eligible_leader_replicas=elr,
            auto_leader_rebalance=False,
            **self.config,
        )
        self.cluster.coordinator.session_timeout_ms = self.session_ms
        self.cluster.network.socket_timeout_ms = self.socket_ms
        # Indexes that are not full before the segment is: a roll would sync what is to be lost.
        log_config = {"segment_index_bytes": 1 << 12, **log_config}
        self.cluster.log_config = replace(self.cluster.log_config, **log_config)
        self.cluster.network.gate = self._gate

    # -- time ------------------------------------------------------------------------------------

    def run(self, ms: float | None = None) -> None:
        """Let time pass: everything that is due happens."""
        ms = self.step_ms if ms is None else ms
        until_us = self.scheduler.now_us + int(ms * US_PER_MS)
        while (event := self.scheduler.next_event(until_us)) is not None:
            self._do(event)
        self.at_rest()

    def _do(self, event: Event) -> None:
        event.task()

    def wait_for(self, what: str, reached: Callable[[], bool]) -> None:
        """
        Raises:
            ScriptError: it did not happen.
        """
        deadline_us = self.scheduler.now_us + self.limit_ms * US_PER_MS
        while not reached():
            if self.scheduler.now_us >= deadline_us:
                raise ScriptError(f"never: {what}; {self.now}")
            self.run()

    # -- messages --------------------------------------------------------------------------------

    def _gate(self, message: SimMessage) -> None:
        for kind, contents in self._counted:
            if isinstance(message.content, kind):
                contents.append(message.content)
        for hold in self._holds:
            if hold.takes(message):
                hold.messages.append(message)
                return
        message.go(message.content)

    def hold(
        self, source: str | None = None, target: str | None = None, *kinds: type, **options: Any
    ) -> Hold:
        """Keep messages back from now on: from, to, and of which types."""
        ends = [None if name is None else self.ids[name] for name in (source, target)]
        hold = Hold(options.get("settle", self.run), ends[0], ends[1], kinds)
        self._holds.append(hold)
        return hold

    def count(self, kind: type) -> list[Any]:
        """Messages of a type that are sent from now on."""
        contents: list[Any] = []
        self._counted.append((kind, contents))
        return contents

    def cut_off(self, name: str) -> None:
        """Cut a broker off from the coordinator. It goes on with what it knows."""
        self.cluster.cut_off(self.ids[name])
        self.run()

    def reconnect(self, name: str) -> None:
        self.cluster.reconnect(self.ids[name])
        self.run(self.start_ms)

    # -- lives -----------------------------------------------------------------------------------

    def machine(self, name: str) -> Machine:
        return self.cluster.machines[self.ids[name]]

    def broker(self, name: str) -> Broker:
        broker = self.machine(name).broker
        if broker is None:
            raise ScriptError(f"{name} is down")
        return broker

    def is_up(self, name: str) -> bool:
        return self.machine(name).up

    def start(self, name: str) -> None:
        """Start a broker, and let it register if its last session is over."""
        self.cluster.start(self.ids[name])
        self.run(self.start_ms)

    def stop(self, name: str) -> None:
        """Stop cleanly: leaderships move, high watermarks are written, logs are closed."""
        self.cluster.stop(self.ids[name], None)
        self.wait_for(f"{name} stops", lambda: not self.is_up(name))

    def kill(self, *names: str, noticed: bool = True) -> None:
        """Processes are gone, their page caches stay.

        ``noticed``: their sessions end at once, one after the other; otherwise when they time out,
        or in ``end_sessions``.
        """
        self._crash(names, "all_kept", noticed)

    def power_loss(self, *names: str, noticed: bool = True, mode: CrashMode = "all_lost") -> None:
        """The machine is gone, with all that was not synced."""
        self._crash(names, mode, noticed)

    def _crash(self, names: Iterable[str], mode: CrashMode, noticed: bool) -> None:
        for name in names:
            session = self.machine(name).session
            if session is not None:
                self._orphans[name] = session
            self._before_crash(name)
            self.cluster.crash(self.ids[name], mode, None)
        if noticed:
            self.end_sessions(*names)

    def _before_crash(self, name: str) -> None:
        """Called before a crash, for whatever else breaks with the process."""

    def end_sessions(self, *names: str) -> None:
        """End sessions one after the other, so that the controller sees each end. A process hears
        of it when it reaches the coordinator again."""
        for name in names:
            session = self._orphans.pop(name, self.machine(name).session)
            if session is not None:
                self.cluster.coordinator.expire(session)
            self.run()

    def flush(self, *names: str) -> None:
        """Bring to the disk the content of the page cache."""
        for name in names:
            self.log(name).flush()

    # -- looking ---------------------------------------------------------------------------------

    def replica(self, name: str) -> Partition | None:
        """The replica of a broker, if it is up and has opened its log."""
        broker = self.machine(name).broker
        found = None if broker is None else broker.replica_manager.partitions.get(self.tp)
        return None if found is None or found.log is None else found

    def partition(self, name: str) -> Partition:
        return self.broker(name).replica_manager.partitions[self.tp]

    def log(self, name: str, tp: TopicPartition | None = None) -> PartitionLog:
        return self.broker(name).log_manager.get(*(tp or self.tp))

    def leo(self, name: str) -> int:
        return self.log(name).log_end_offset

    def hw(self, name: str) -> int:
        return self.log(name).high_watermark

    def registration(self, tp: TopicPartition) -> PartitionRegistration:
        """The partition as the controller's tree has it."""
        tree = self.cluster.coordinator.tree
        topic = tree and tree.get(nodes.topic_path(tp.topic))
        state = tree and tree.get(nodes.partition_state_path(tp))
        if not topic or not state:
            return PartitionRegistration((), (), NO_LEADER, -1, -1)
        replicas = nodes.decode_topic(tp.topic, topic.data).partitions[tp.partition]
        return nodes.decode_partition(tp, state.data, state.version, replicas)

    @property
    def now(self) -> PartitionRegistration:
        return self.registration(self.tp)

    @property
    def epoch(self) -> int:
        return self.now.leader_epoch

    @property
    def leader(self) -> str:
        """The leader by the controller's registration; empty for none."""
        return self.leader_of(self.tp)

    def leader_of(self, tp: TopicPartition) -> str:
        return self.names.get(self.registration(tp).leader, "")

    @property
    def controller(self) -> str:
        """The one that acts now; empty for none."""
        found = self.cluster.controller
        return "" if found is None else self.names[found]

    # -- clients ---------------------------------------------------------------------------------

    def ask_controller(self, request: Request) -> list[Response | None]:
        """Ask without a network between; the answer is there when it has one."""
        answers: list[Response | None] = []
        self.broker(self.controller).handle(request, answers.append)
        return answers

    def create(self, replicas: str) -> None:
        """Create the topic, each partition with the next replica first."""
        ids = [self.ids[name] for name in replicas]
        assignment = tuple(
            (*ids[n % len(ids) :], *ids[: n % len(ids)]) for n in range(len(self.tps))
        )
        self.ask_controller(
            CreateTopicRequest(TOPIC, len(self.tps), len(ids), assignment, self._topic_config)
        )
        self.wait_for("the topic is there", lambda: all(self.replica(n) for n in replicas))

    def send(self, name: str, request: Request, on_reply: Callable[[Any], None]) -> None:
        self.cluster.network.send(self._client, self.ids[name], request, on_reply)

    def ask(self, name: str, request: Request, wait_ms: float | None = None) -> Response | None:
        answers: list[Response | None] = []
        self.send(name, request, answers.append)
        self.run(wait_ms)
        return answers[0] if answers else None

    def send_batch(
        self,
        name: str,
        *values: bytes,
        acks: int = -1,
        tp: TopicPartition | None = None,
        timeout_ms: int = 500,
        **header: Any,
    ) -> ClientAnswer:
        """One batch, sent to this broker whether it leads or not."""
        write = Write(len(self.history.writes), tp or self.tp, acks, values)
        self.history.writes.append(write)
        records = [(None, value) for value in values]
        batch = encode_batch(records, default_timestamp=START_WALL_MS + write.number, **header)
        answer = ClientAnswer()

        def on_reply(response: Response | None) -> None:
            part = ProducePartitionResponse(write.tp, ErrorCode.NETWORK_EXCEPTION)
            if isinstance(response, ProduceResponse):
                (part,) = response.partitions
            answer.part = part
            outcome = OUTCOMES.get(part.error_code, WriteOutcome.UNKNOWN)
            self.history.settle(write, outcome, part.base_offset)

        produced = ProducePartition(write.tp, bytes(batch))
        self.send(name, ProduceRequest(acks, timeout_ms, (produced,)), on_reply)
        return answer

    def fetch_as_consumer(
        self, name: str, offset: int, *, epoch: int = -1, last_epoch: int = -1
    ) -> FetchPartitionResponse:
        """A consumer's fetch that does not wait."""
        part = FetchPartition(self.tp, offset, 1 << 20, epoch, last_epoch)
        response = self.ask(name, FetchRequest((part,), max_wait_ms=0))
        assert isinstance(response, FetchResponse), response
        return response.partitions[0]

    def consume(self, name: str, offset: int = 0) -> tuple[ErrorCode, list[bytes]]:
        """Read at ``offset``, and note the records: one that was read once stays (I-6)."""
        part = self.fetch_as_consumer(name, offset)
        values = []
        for record in read_records(
            part.batches, from_offset=offset, end_offset=part.high_watermark
        ):
            values.append(bytes(record.value or b""))
            self.history.read(self.tp, record.offset, values[-1], "reader")
        return part.error_code, values
