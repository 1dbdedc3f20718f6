"""The requests of clients and their answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from checkpoints.types import TopicPartition
from logstore.format.reader import read_records
from replication.common.messages import ProduceRequest, Request
from replication.simulator.oracle.unclean import Losses
from replication.simulator.world.plan import Operation

IDS_APART = 10**9  # of transactional producers: brokers assign ids above those that their logs have


class WriteOutcome(Enum):
    PENDING = "pending"
    OK = "ok"
    FAILED = "failed"  # every attempt was refused before an append, so it is in no log
    UNKNOWN = "unknown"


class TransactionPhase(Enum):
    OPEN = "open"
    COMMITTING = "committing"  # when it began to count as committed
    ABORTING = "aborting"


class Transaction:
    """A transaction in one partition."""

    def __init__(self, number: int, tp: TopicPartition, step: Operation) -> None:
        self.tp = tp
        self.producer_id = IDS_APART * (1 + number)
        self.epoch = self.sequence = 0
        self.batches = 1 + step.records
        self.size = step.size
        self.state = TransactionPhase.OPEN
        self.ended = False

    @property
    def commits(self) -> bool:
        return self.state is TransactionPhase.COMMITTING


@dataclass(slots=True)
class Write:
    """One batch of a producer; its values are unique in the run."""

    number: int
    tp: TopicPartition
    acks: int
    values: tuple[bytes, ...]
    producer_id: int = -1
    sequence: int = -1
    outcome: WriteOutcome = WriteOutcome.PENDING
    offset: int = -1
    transaction: Transaction | None = None
    producer: str = ""  # an idempotent producer: in order, and nothing twice


@dataclass(slots=True)
class ClientHistory:
    """``acknowledged``: offset -> value, of batches acknowledged with acks=all (I-1).

    ``seen``: the first value that any consumer read at an offset (I-6). ``repeated``: values of
    requests that the network delivered twice, with one answer to the client. ``read_by``: the last
    value that each reader got at an offset, by reader and partition. ``losses``: which of these
    records may be lost.
    """

    writes: list[Write] = field(default_factory=list)
    acknowledged: dict[TopicPartition, dict[int, bytes]] = field(default_factory=dict)
    seen: dict[TopicPartition, dict[int, bytes]] = field(default_factory=dict)
    deleted_below: dict[TopicPartition, int] = field(default_factory=dict)
    repeated: set[bytes] = field(default_factory=set)
    read_by: dict[tuple[str, TopicPartition], dict[int, bytes]] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    losses: Losses = field(default_factory=Losses)

    def write_of(self, value: bytes) -> Write:
        return self.writes[int(value.split(b".", 1)[0])]

    def note_repeated(self, request: Request) -> None:
        if isinstance(request, ProduceRequest):
            for part in request.partitions:
                self.repeated.update(bytes(r.value or b"") for r in read_records(part.records))

    def begin(self, tp: TopicPartition, acks: int, records: int, size: int) -> Write:
        """Begin a write with unique values."""
        number = len(self.writes)
        values = tuple(f"{number}.{n}".encode().ljust(size, b".") for n in range(records))
        write = Write(number, tp, acks, values)
        self.writes.append(write)
        return write

    def settle(self, write: Write, outcome: WriteOutcome, offset: int = -1) -> None:
        write.outcome, write.offset = outcome, offset
        if outcome is WriteOutcome.OK and write.acks == -1 and offset >= 0:
            known = self.acknowledged.setdefault(write.tp, {})
            for number, value in enumerate(write.values):
                before = self._instead_of_lost(write.tp, known, offset + number, value)
                if before != value:
                    self.violations.append(
                        f"I-1 {write.tp}: offset {offset + number} was acknowledged twice, for "
                        f"{before!r} and {value!r}"
                    )

    def _instead_of_lost(
        self, tp: TopicPartition, known: dict[int, bytes], offset: int, value: bytes
    ) -> bytes:
        """The first known value at an offset, or ``value`` if either of the two is lost."""
        before = known.setdefault(offset, value)
        if before != value and self.losses.took(tp, offset, before):
            before = known[offset] = value
        return value if self.losses.took(tp, offset, value) else before

    def read(self, tp: TopicPartition, offset: int, value: bytes, reader: str) -> None:
        self.read_by.setdefault((reader, tp), {})[offset] = value
        before = self._instead_of_lost(tp, self.seen.setdefault(tp, {}), offset, value)
        if before != value:
            self.violations.append(
                f"I-6 {tp}: {reader} reads {value!r} at offset {offset}, where {before!r} was read"
            )
