"""The context that a partition needs from its broker, and the values that it returns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from checkpoints.types import TopicPartition
from logstore.common.types import Buffer
from logstore.format.index_entry import AbortedTxn
from logstore.kernels import AppendInfo
from logstore.log.writing.recent import RecentBudget
from logstore.manager import LogManager
from logstore.storage import FileSlice
from replication.common.config import ReplicationConfig
from replication.common.messages import AlterPartitionItem, AlterPartitionResult, EpochEndOffset


class IsrChannel(Protocol):
    """Carries a leader's ISR changes to the controller (R-34)."""

    def submit(
        self, item: AlterPartitionItem, on_result: Callable[[AlterPartitionResult], None]
    ) -> bool:
        """Send a proposal. False if a change of the same partition is still under way."""
        ...


class BrokerEpochs(Protocol):
    """The cluster's metadata about other brokers."""

    def eligible(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether a broker is alive, not shutting down, and of this epoch (R-31). −1 is not
        known, and not compared."""
        ...

    def is_alive(self, broker_id: int) -> bool: ...

    def broker_epoch(self, broker_id: int) -> int:
        """The epoch of a broker; −1 if unknown."""
        ...


class TruncationEvent(NamedTuple):
    """A follower truncated records that its leader does not have."""

    tp: TopicPartition
    at_ms: int  # monotonic, as ``PartitionContext.now_ms``
    leader_epoch: int  # the leader epoch under which it follows
    log_end_offset: int  # its log end offset before
    offset: int  # its log end offset now


EVENTS_KEPT = 256  # how many truncations are kept, for people who watch a broker


@dataclass(slots=True)
class PartitionContext:
    """The context that all partitions of a broker share.

    Attributes:
        truncations: the latest ones, oldest first. Appending to a deque is one step, so that
            readers need no lock; they copy it.
    """

    broker_id: int
    log_manager: LogManager
    config: ReplicationConfig
    metadata: BrokerEpochs
    isr_channel: IsrChannel
    now_ms: Callable[[], int]
    own_epoch: Callable[[], int]
    recent: RecentBudget = field(default_factory=RecentBudget, init=False)
    truncations: deque[TruncationEvent] = field(
        default_factory=lambda: deque(maxlen=EVENTS_KEPT), init=False
    )
    # Called without a lock: an ISR change moved the high watermark; a change took effect or not.
    on_high_watermark: Callable[[TopicPartition], None] = lambda tp: None
    on_isr_change: Callable[[TopicPartition, str], None] = lambda tp, kind: None


class LeaderAppend(NamedTuple):
    """The result of an append.

    ``leader_epoch`` is that of the batches in the log, for a duplicate that of the original.
    """

    info: AppendInfo
    hw_moved: bool
    leader_epoch: int


class FetchRead(NamedTuple):
    """An answer to one partition of a fetch; offsets are those from before the read (R-106)."""

    records: Buffer | FileSlice
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    log_end_offset: int
    diverging: EpochEndOffset | None = None
    aborted: tuple[AbortedTxn, ...] = ()
    hw_moved: bool = False
