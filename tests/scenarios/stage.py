"""A cluster on a stage: real brokers, controllers, logs and fetchers, and a script that decides
which message arrives, who dies, what the disk keeps, and when.

Time is virtual and moves only in ``run``; without a script every message arrives at once and in
order, so the same script is the same run. The oracle of the simulator looks on after each event,
and ``finish`` is the epilogue of every scenario: everything heals, and all invariants hold.

Replicas are named A, B, C (broker ids 0, 1, 2). The controller is on X, which has no replica; Y
takes over from it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from checkpoints.types import TopicPartition
from logstore.config import LogConfig
from logstore.format.batch import encode_batch
from logstore.format.reader import read_records
from logstore.log import PartitionLog
from logstore.testing.faulty import CrashMode, SimulatedCrash
from replication.broker import Broker, BrokerState
from replication.error_codes import ErrorCode
from replication.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    CreateTopicRequest,
    ElectionType,
    ElectLeadersRequest,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    LeaderAndIsrRequest,
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    Request,
    Response,
    TopicResponse,
)
from replication.partition import Partition
from replication.simulator.cluster import Machine, SimCluster
from replication.simulator.history import History, Outcome, Write
from replication.simulator.invariants import Oracle
from replication.simulator.network import Message
from replication.simulator.plan import Plan
from replication.simulator.scheduler import US_PER_MS, Process, Scheduler
from replication.simulator.validations import validate, what_is_missing
from replication.simulator.workload import REFUSED
from replication.state import PartitionRegistration

TOPIC = "t"
NOW_MS = 1_700_000_000_000
NEVER_MS = 10**9
HEAL_LIMIT_MS = 60_000
CLIENT = -10


class PromptScheduler(Scheduler):
    """Nothing takes time; only seeds are drawn."""

    def below(self, bound: int) -> int:
        return super().below(bound) if bound > 1 << 24 else 0


class Answer:
    """What a client was told so far."""

    def __init__(self) -> None:
        self.part: Any = None

    @property
    def code(self) -> ErrorCode | None:
        """None: it still waits."""
        return None if self.part is None else self.part.error_code


class Hold:
    """Messages that are kept back, in the order in which they were sent."""

    def __init__(
        self, stage: Stage, source: int | None, target: int | None, kind: type | None
    ) -> None:
        self.messages: list[Message] = []
        self.on = True
        self.let_clients = False  # what clients send, and what they get
        self._stage = stage
        self._wanted = source, target, kind

    def takes(self, message: Message) -> bool:
        source, target, kind = self._wanted
        return (
            self.on
            and not (self.let_clients and CLIENT in (message.source, message.target))
            and source in (None, message.source)
            and target in (None, message.target)
            and (kind is None or isinstance(message.content, kind))
        )

    @property
    def contents(self) -> list[Any]:
        return [message.content for message in self.messages]

    def deliver(self) -> Any:
        """Let the oldest go."""
        message = self.messages.pop(0)
        message.go(message.content)
        self._stage.run()
        return message.content

    def repeat(self) -> Any:
        """Let the oldest go, and keep it to let it go again."""
        self.messages.insert(0, self.messages[0])
        return self.deliver()

    def drop(self) -> Any:
        """Lose the oldest: who sent the request hears that the connection broke."""
        message = self.messages.pop(0)
        message.lose()
        self._stage.run()
        return message.content

    def lose_all(self) -> None:
        """Lose everything that is held, and keep nothing back any more."""
        self.on = False
        while self.messages:
            self.drop()

    def end(self) -> None:
        """Keep nothing back any more."""
        self.on = False
        while self.messages:
            self.deliver()


class Stage:
    """See the module.

    Args:
        replicas: the assignment; the first one leads, or the next one of the next partition.
        flush: ``ack``, synced before it counts as replicated, or ``os``.
        unclean: ``unclean.leader.election.enable`` of the topic.
        elr: ``eligible.leader.replicas.enable``.
        exempt: invariants that the scenario allows to break; what broke is in ``exempted``.
        seed: of the choices that disks make when they lose power; with ``chance``, also of delays.
    """

    def __init__(
        self,
        replicas: str = "ABC",
        *,
        min_isr: int = 1,
        flush: str = "os",
        unclean: bool = False,
        elr: bool = True,
        partitions: int = 1,
        controllers: str = "X",
        exempt: tuple[str, ...] = (),
        seed: int = 0,
        chance: bool = False,
        truncation: str = "fetch",
        **log_config: Any,
    ) -> None:
        brokers = "".join(sorted(replicas)) + controllers
        self.ids = {name: number for number, name in enumerate(brokers)}
        self.names = {number: name for name, number in self.ids.items()}
        self.tps = [TopicPartition(TOPIC, number) for number in range(partitions)]
        self.tp = self.tps[0]
        self.exempted: list[str] = []
        self._exempt = exempt
        self._holds: list[Hold] = []
        self._counted: list[tuple[type, list[Any]]] = []
        scheduler = Scheduler if chance else PromptScheduler
        self.scheduler = scheduler(random.Random(seed))
        plan = Plan(
            seed, truncation, flush, len(brokers), partitions, min_isr, (), (), (), 0, 1 << 16
        )
        self.cluster = SimCluster(plan, self.scheduler, Counter(), self._started, self._ended)
        self.cluster.config = replace(
            self.cluster.config, eligible_leader_replicas=elr, auto_leader_rebalance=False
        )
        self.cluster.log_config = replace(self.cluster.log_config, **log_config)
        self.cluster.network.gate = self._gate
        self.history = History()
        self.oracle = Oracle(self.cluster, self.tps)
        self._client = Process("client", CLIENT)
        self._write_count = 0
        for name in controllers + "".join(sorted(replicas)):
            self.cluster.start(self.ids[name])
            self.run()
        self._create(tuple(self.ids[name] for name in replicas), min_isr, unclean)
        self.until_quiet()

    def _create(self, replicas: tuple[int, ...], min_isr: int, unclean: bool) -> None:
        config = {
            "min.insync.replicas": str(min_isr),
            "unclean.leader.election.enable": str(unclean).lower(),
        }
        assignment = tuple(
            (*replicas[n % len(replicas) :], *replicas[: n % len(replicas)])
            for n in range(len(self.tps))
        )
        request = CreateTopicRequest(
            TOPIC, len(self.tps), len(replicas), assignment, config
        )
        answer = self.ask(self.controller, request)
        assert isinstance(answer, TopicResponse), answer
        assert answer.error_code is ErrorCode.NONE, answer

    def _started(self, machine: Machine) -> None:
        self.oracle.started(machine)

    def _ended(self, machine: Machine) -> None:
        self.oracle.ended(machine)

    # -- time ------------------------------------------------------------------------------------

    def run(self, ms: float = 5) -> None:
        """Let time pass: everything that is due happens."""
        self._run_until(self.scheduler.now_us + int(ms * US_PER_MS))

    def _run_until(self, until_us: int) -> None:
        while (event := self.scheduler.next_event(until_us)) is not None:
            node = None if event.process is None else event.process.node
            machine = None if node is None else self.cluster.machines.get(node)
            try:
                event.task()
            except SimulatedCrash:
                assert machine is not None
                self.cluster.disk_crashed(machine)
            self.oracle.after_event(node)
            if machine is not None and machine.up and machine.disk.stopped:
                self.cluster.disk_crashed(machine)
            if self.oracle.violations:
                self._judge(self.oracle.violations)
                self.oracle.violations.clear()

    def _judge(self, violations: Iterable[str]) -> None:
        for violation in violations:
            assert violation.split()[0] in self._exempt, violation
            self.exempted.append(violation)

    def until_quiet(self, limit_ms: int = HEAL_LIMIT_MS) -> None:
        """Until every replica is up, in sync, and holds and commits the same (I-24)."""
        deadline_us = self.scheduler.now_us + limit_ms * US_PER_MS
        while missing := what_is_missing(self.cluster, self.oracle):
            assert self.scheduler.now_us < deadline_us, f"I-24: {missing}"
            self.run(100)

    def until_in_sync(self, names: str, limit_ms: int = HEAL_LIMIT_MS) -> None:
        """Until the ISR is just these."""
        deadline_us = self.scheduler.now_us + limit_ms * US_PER_MS
        while self.isr != names:
            assert self.scheduler.now_us < deadline_us, f"the ISR is {self.isr}"
            self.run(100)

    def finish(self) -> None:
        """The epilogue of every scenario: heal, wait, check all invariants."""
        self.heal()
        for name in self.ids:
            self.start(name)
        self.until_quiet()
        for tp in self.tps:
            last = self.produce(self.leader_of(tp), b"last", tp=tp)
            assert last.code is ErrorCode.NONE, f"I-24: {last.code}"
        self.until_quiet()
        self._judge(self.history.violations)
        self._judge(validate(self.cluster, self.oracle, self.history, repeats=False))

    # -- messages --------------------------------------------------------------------------------

    def _gate(self, message: Message) -> None:
        for kind, contents in self._counted:
            if isinstance(message.content, kind):
                contents.append(message.content)
        for hold in self._holds:
            if hold.takes(message):
                hold.messages.append(message)
                return
        message.go(message.content)

    def hold(
        self, source: str | None = None, target: str | None = None, kind: type | None = None
    ) -> Hold:
        """Keep messages back from now on: from, to, and of which type."""
        ids = {**self.ids, None: None}
        hold = Hold(self, ids[source], ids[target], kind)
        self._holds.append(hold)
        return hold

    def count(self, kind: type) -> list[Any]:
        """Messages of a type that are sent from now on."""
        contents: list[Any] = []
        self._counted.append((kind, contents))
        return contents

    def hold_fetches(self, name: str) -> Hold:
        """What a follower asks for."""
        return self.hold(name, None, FetchRequest)

    def hold_proposals(self, name: str) -> Hold:
        """ISR changes of a leader."""
        return self.hold(name, None, AlterPartitionRequest)

    def hold_verdicts(self, name: str) -> Hold:
        """The controller's answers to them."""
        return self.hold(None, name, AlterPartitionResponse)

    def hold_roles(self, name: str) -> Hold:
        """What the controller tells a broker to be."""
        return self.hold(None, name, LeaderAndIsrRequest)

    def cut(self, source: str, target: str) -> None:
        """Nothing gets from one to the other any more."""
        self.cluster.network.weather.cut[self.ids[source], self.ids[target]] = "F-6"

    def cut_off(self, name: str, *, receives: bool = False, sends: bool = False) -> None:
        """From all other brokers, at most but for one way, and from the coordinator, whose sessions
        need both ways; clients still reach it."""
        for other in self.ids:
            if other != name:
                if not receives:
                    self.cut(other, name)
                if not sends:
                    self.cut(name, other)
        self.cluster.cut_off(self.ids[name])

    def heal_links(self) -> None:
        """Brokers reach each other and the coordinator again."""
        self.cluster.network.heal()
        for broker_id, machine in self.cluster.machines.items():
            if machine.cut_off:
                self.cluster.reconnect(broker_id)

    def heal(self) -> None:
        """Links carry again, and what was held arrives."""
        self.heal_links()
        for hold in self._holds:
            hold.end()
        self._holds.clear()

    # -- lives -----------------------------------------------------------------------------------

    def machine(self, name: str) -> Machine:
        return self.cluster.machines[self.ids[name]]

    def broker(self, name: str) -> Broker:
        broker = self.machine(name).broker
        assert broker is not None, f"{name} is down"
        return broker

    def is_up(self, name: str) -> bool:
        return self.machine(name).up

    def start(self, name: str) -> None:
        self.cluster.start(self.ids[name])
        self.run()

    def begin_stop(self, name: str) -> None:
        """A clean stop, controlled as far as the controller answers; a second later it returns."""
        self.cluster.stop(self.ids[name], 1000)
        self.run()

    def stop(self, name: str) -> None:
        """A clean stop, completed."""
        self.cluster.stop(self.ids[name], NEVER_MS)
        self.run(1000)
        assert not self.is_up(name)

    def kill(self, *names: str, noticed: bool = True) -> None:
        """Processes are gone, their page caches stay. ``noticed``: the sessions end at once, one after
        the other; otherwise all of them when they time out."""
        self._crash(names, "all_kept", noticed)

    def power_loss(self, *names: str, noticed: bool = True, mode: CrashMode = "all_lost") -> None:
        """The machine is gone, with all that was not synced."""
        self._crash(names, mode, noticed)

    def power_loss_in_write(self, name: str, after: int) -> None:
        """Power fails at the ``after``-th change of its disk from now, and leaves of what was not
        synced whatever the seed says: sectors, a prefix, zeros."""
        machine = self.machine(name)
        machine.at_disk_crash = lambda: self.cluster.crash(machine.broker_id, "random", NEVER_MS)
        machine.disk.crash_after(after)

    def _crash(self, names: Iterable[str], mode: CrashMode, noticed: bool) -> None:
        sessions = [self.machine(name).session for name in names]
        for name in names:
            self.cluster.crash(self.ids[name], mode, NEVER_MS)
        for session in sessions:
            if noticed and session is not None:
                self.cluster.store.expire(session)
            self.run()

    def expire(self, name: str) -> None:
        """Its session ends; it hears of it when it reaches the coordinator again."""
        session = self.machine(name).session
        assert session is not None
        self.cluster.store.expire(session)
        self.run()

    def flush(self, *names: str) -> None:
        """What is in the page cache reaches the disk."""
        for name in names:
            self.log(name).flush()

    def elect_uncleanly(self) -> ErrorCode:
        """An operator has whoever is alive elected."""
        request = ElectLeadersRequest(ElectionType.UNCLEAN, (self.tp,))
        answer: Any = self.ask(self.controller, request)
        return dict(answer.partitions)[self.tp]

    # -- clients ---------------------------------------------------------------------------------

    def send(self, name: str, request: Request, on_reply: Any) -> None:
        self.cluster.network.send(self._client, self.ids[name], request, on_reply)

    def ask(self, name: str, request: Request, wait_ms: int = 5) -> Response | None:
        answers: list[Response | None] = []
        self.send(name, request, answers.append)
        self.run(wait_ms)
        return answers[0] if answers else None

    def produce(
        self, name: str, *values: bytes, acks: int = -1, tp: TopicPartition | None = None,
        timeout_ms: int = 500, wait_ms: float = 5, **header: Any,
    ) -> Answer:  # fmt: skip
        """One batch, sent to this broker whether it leads or not."""
        tp = tp or self.tp
        records = [(None, value) for value in values]
        batch = bytes(encode_batch(records, default_timestamp=NOW_MS, **header))
        write = Write(len(self.history.writes), tp, acks, values)
        self.history.writes.append(write)
        answer = Answer()

        def on_reply(response: Response | None) -> None:
            part = ProducePartitionResponse(tp, ErrorCode.NETWORK_EXCEPTION)
            if isinstance(response, ProduceResponse):
                (part,) = response.partitions
            answer.part = part
            outcome = Outcome.UNKNOWN
            if part.error_code is ErrorCode.NONE:
                outcome = Outcome.OK
            elif part.error_code in REFUSED and acks != -1:
                outcome = Outcome.FAILED
            elif part.error_code is ErrorCode.NOT_ENOUGH_REPLICAS:
                outcome = Outcome.FAILED
            self.history.settle(write, outcome, part.base_offset)

        self.send(name, ProduceRequest(acks, timeout_ms, (ProducePartition(tp, batch),)), on_reply)
        self.run(wait_ms)
        return answer

    def fill(self, name: str, count: int, *, acks: int = 1) -> None:
        """``count`` records, each in a batch of its own."""
        for _ in range(count):
            self._write_count += 1
            answer = self.produce(name, b"%d" % self._write_count, acks=acks)
            assert acks != 1 or answer.code is ErrorCode.NONE, answer.code

    def consume(
        self, name: str, offset: int = 0, *, epoch: int = -1, last_epoch: int = -1
    ) -> tuple[ErrorCode, list[bytes]]:
        """What a reader at ``offset`` gets; noted, for what was read once stays (I-6)."""
        part = self.fetch(name, offset, epoch=epoch, last_epoch=last_epoch)
        values = []
        for record in read_records(
            part.records, from_offset=offset, end_offset=part.high_watermark
        ):
            values.append(bytes(record.value or b""))
            self.history.read(self.tp, record.offset, values[-1], "reader")
        return part.error_code, values

    def fetch(
        self, name: str, offset: int, *, epoch: int = -1, last_epoch: int = -1
    ) -> FetchPartitionResponse:
        """A consumer's fetch that does not wait."""
        part = FetchPartition(self.tp, offset, 1 << 20, epoch, last_epoch)
        response = self.ask(name, FetchRequest((part,), max_wait_ms=0))
        assert isinstance(response, FetchResponse), response
        return response.partitions[0]

    # -- looking ---------------------------------------------------------------------------------

    def partition(self, name: str, tp: TopicPartition | None = None) -> Partition:
        return self.broker(name).replica_manager.partitions[tp or self.tp]

    def log(self, name: str, tp: TopicPartition | None = None) -> PartitionLog:
        return self.broker(name).log_manager.get(*(tp or self.tp))

    def leo(self, name: str) -> int:
        return self.log(name).log_end_offset

    def hw(self, name: str) -> int:
        return self.log(name).high_watermark

    def values(self, name: str) -> list[bytes]:
        """All records of a replica, committed or not, but for those that ``finish`` wrote."""
        return [bytes(record.value or b"") for record in self.log(name).records()]

    def runs(self, name: str) -> list[tuple[int, int]]:
        """``(epoch, start offset)`` of the epochs that have records, or have just begun."""
        return [(entry[0], entry[1]) for entry in self.log(name).epoch_entries]

    @property
    def now(self) -> PartitionRegistration:
        """The partition as the controller's tree has it."""
        return self.oracle.registrations[self.tp]

    @property
    def epoch(self) -> int:
        return self.now.leader_epoch

    @property
    def leader(self) -> str | None:
        return self.names.get(self.now.leader)

    def leader_of(self, tp: TopicPartition) -> str:
        return self.names[self.oracle.registrations[tp].leader]

    @property
    def isr(self) -> str:
        return self.letters(self.now.isr)

    @property
    def elr(self) -> str:
        return self.letters(self.now.elr)

    def letters(self, brokers: Iterable[int]) -> str:
        return "".join(sorted(self.names[broker] for broker in brokers))

    @property
    def controller(self) -> str:
        """The one that acts now."""
        found = self.cluster.controller
        assert found is not None
        return self.names[found]

    def is_running(self, name: str) -> bool:
        return self.is_up(name) and self.broker(name).state is BrokerState.RUNNING
