"""What a partition needs of its broker, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from checkpoints.types import TopicPartition
from logstore.common.types import Buffer
from logstore.kernels import AppendInfo
from logstore.log.writing.recent import RecentBudget
from logstore.manager import LogManager
from logstore.segments.index import AbortedTxn
from replication.common.config import ReplicationConfig
from replication.common.messages import AlterPartitionItem, AlterPartitionResult, EpochEndOffset


class IsrChannel(Protocol):
    """Carries a leader's ISR changes to the controller (R-34)."""

    def submit(
        self, item: AlterPartitionItem, on_result: Callable[[AlterPartitionResult], None]
    ) -> bool:
        """False when a change of the same partition is still on its way."""
        ...


class BrokerEpochs(Protocol):
    """What the metadata of the cluster says about other brokers."""

    def eligible(self, broker_id: int, broker_epoch: int) -> bool:
        """Alive, not shutting down, and of this epoch (or −1) (R-31)."""
        ...

    def broker_epoch(self, broker_id: int) -> int:
        """−1 when it is not known."""
        ...


@dataclass(slots=True)
class PartitionEnv:
    """What all partitions of a broker share."""

    broker_id: int
    log_manager: LogManager
    config: ReplicationConfig
    metadata: BrokerEpochs
    isr_channel: IsrChannel
    now_ms: Callable[[], int]
    own_epoch: Callable[[], int]
    recent: RecentBudget = field(default_factory=RecentBudget, init=False)
    # Called without a lock: an ISR change moved the high watermark; a change was (in)effective.
    on_high_watermark: Callable[[TopicPartition], None] = lambda tp: None
    on_isr_change: Callable[[TopicPartition, str], None] = lambda tp, kind: None


class LeaderAppend(NamedTuple):
    """``leader_epoch`` is that of the batches in the log, also of a duplicate's original."""

    info: AppendInfo
    hw_moved: bool
    leader_epoch: int


class FetchRead(NamedTuple):
    """An answer to one partition of a fetch; offsets are those from before the read (R-106)."""

    records: Buffer
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    log_end_offset: int
    diverging: EpochEndOffset | None = None
    aborted: tuple[AbortedTxn, ...] = ()
    hw_moved: bool = False


class FetchLimit(NamedTuple):
    """Whether a waiting fetch has reason to end (R-93), and how many bytes it would get."""

    done: bool
    available: int
