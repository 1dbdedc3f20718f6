"""A cluster on a stage: real brokers, controllers, logs and fetchers, and a script that decides
which message arrives, who dies, what the disk keeps, and when.

Time is virtual and moves only in ``run``; without a script every message arrives at once and in
order, so the same script is the same run. The oracle of the simulator looks on after each event,
and ``finish`` is the epilogue of every scenario: everything heals, and all invariants hold.

Replicas are named A, B, C (broker ids 0, 1, 2). The controller is on X, which has no replica; Y
takes over from it.
"""

from __future__ import annotations

from typing import Any

from checkpoints.types import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.reader import read_records
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    CreateTopicRequest,
    ElectionType,
    ElectLeadersRequest,
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
    TopicResponse,
)
from replication.simulator.oracle.history import ClientHistory, Write, WriteOutcome
from replication.simulator.oracle.validations import validate
from replication.simulator.world.scheduler import Process
from tests.scenarios.cluster import TOPIC, StagedCluster
from tests.scenarios.holds import CLIENT

NOW_MS = 1_700_000_000_000

# Answers that say: nothing was appended by this attempt.
REFUSED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_RECORD,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
    }
)


class Answer:
    """What a client was told so far."""

    def __init__(self) -> None:
        self.part: Any = None

    @property
    def code(self) -> ErrorCode | None:
        """None: it still waits."""
        return None if self.part is None else self.part.error_code


class Stage(StagedCluster):
    """See the module.

    Args:
        unclean: ``unclean.leader.election.enable`` of the topic.
        options: the other ones of ``StagedCluster``.
    Attributes:
        history: what the clients were told.
    """

    def __init__(
        self,
        replicas: str = "ABC",
        *,
        min_isr: int = 1,
        unclean: bool = False,
        controllers: str = "X",
        **options: Any,
    ) -> None:
        super().__init__(replicas, min_isr=min_isr, controllers=controllers, **options)
        self.history = ClientHistory()
        self._client = Process("client", CLIENT)
        self._write_count = 0
        for name in controllers + "".join(sorted(replicas)):
            self.start(name)
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
        request = CreateTopicRequest(TOPIC, len(self.tps), len(replicas), assignment, config)
        answer = self.ask(self.controller, request)
        assert isinstance(answer, TopicResponse), answer
        assert answer.error_code is ErrorCode.NONE, answer

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
        self._judge(validate(self.cluster, self.oracle, self.history))

    # -- clients ---------------------------------------------------------------------------------

    def send(self, name: str, request: Request, on_reply: Any) -> None:
        self.cluster.network.send(self._client, self.ids[name], request, on_reply)

    def ask(self, name: str, request: Request, wait_ms: int = 5) -> Response | None:
        answers: list[Response | None] = []
        self.send(name, request, answers.append)
        self.run(wait_ms)
        return answers[0] if answers else None

    def produce(
        self,
        name: str,
        *values: bytes,
        acks: int = -1,
        tp: TopicPartition | None = None,
        timeout_ms: int = 500,
        wait_ms: float = 5,
        **header: Any,
    ) -> Answer:
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
            outcome = WriteOutcome.UNKNOWN
            if part.error_code is ErrorCode.NONE:
                outcome = WriteOutcome.OK
            elif part.error_code is ErrorCode.NOT_ENOUGH_REPLICAS or (
                part.error_code in REFUSED and acks != -1
            ):
                outcome = WriteOutcome.FAILED
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

    def elect_uncleanly(self) -> ErrorCode:
        """An operator has whoever is alive elected."""
        request = ElectLeadersRequest(ElectionType.UNCLEAN, (self.tp,))
        answer: Any = self.ask(self.controller, request)
        return dict(answer.partitions)[self.tp]
