"""Where a consumer is in one partition, and what it must do before it may fetch on.

A position knows the leader epoch of the last record before it, and the topic's id: together they
say whether the log at the leader still is the one that was read (KIP-320, KIP-516).
"""

from __future__ import annotations

import uuid
from array import array
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from logstore.common.errors import CorruptBatchError, LogstoreError
from logstore.common.types import Buffer, Record
from logstore.format.reader import read_records
from logstore.kernels import SCAN_COLUMNS, SCAN_FULL, scan_batches
from replication.common.errors import LogTruncationError, TopicMadeAnewError
from replication.common.messages import (
    EpochEndOffset,
    FetchPartition,
    FetchPartitionResponse,
    IsolationLevel,
)
from replication.common.state import UNKNOWN_EPOCH

logger = get_logger(__name__)

NO_REPLICA = -1
_ROWS = 256
_COLUMNS = tuple(
    SCAN_COLUMNS.index(name) for name in ("base_offset", "last_offset", "leader_epoch", "position")
)
_EPOCHS = 64  # how many leader epochs back a common prefix is found exactly


class Step(Enum):
    """What a position needs next."""

    RESET = "reset"  # ask the leader where to begin
    VALIDATE = "validate"  # ask the leader whether its log has what was read
    BOUNDS = "bounds"  # ask the leader where its log begins and ends, to say so in an error
    FETCH = "fetch"
    STOPPED = "stopped"  # there is an error that only ``seek`` ends


class EpochsRead:
    """(epoch, first offset) of what was read since the last seek, as a follower's log has it."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[tuple[int, int]] = []

    @property
    def latest(self) -> int:
        return self._entries[-1][0] if self._entries else UNKNOWN_EPOCH

    def note(self, epoch: int, offset: int) -> None:
        """A batch at ``offset`` was read."""
        entries = self._entries
        if epoch > self.latest:
            entries.append((epoch, offset))
            if len(entries) > _EPOCHS:  # a lower end than the true one: more is read again
                entries[:2] = [(entries[1][0], entries[0][1])]

    def end_of(self, epoch: int) -> int:
        """Where that ends which was read of ``epoch``, lower than the latest, and those before."""
        return next(first for known, first in self._entries if known > epoch)

    def cut(self, offset: int) -> None:
        """What was read from ``offset`` on is gone."""
        while self._entries and self._entries[-1][1] >= offset:
            self._entries.pop()


class Position:
    """One partition of a consumer. Not safe for threads.

    Attributes:
        offset: of the next record; None until the leader was asked.
        topic_id, leader_epoch: of the log and the leader that it was last compared with.
        error: with STOPPED.
        out_of_range: a leader says so; whether it lies in a truncation is not known yet.
        preferred, preferred_until_ms: another replica that the leader named (KIP-392), and until
            when it is asked.
        failures, failing_since_ms, retry_at_ms, last_error: failures in a row.
    """

    __slots__ = (
        "epochs", "error", "failing_since_ms", "failures", "last_error", "leader_epoch", "offset",
        "out_of_range", "preferred", "preferred_until_ms", "resets", "retry_at_ms", "step",
        "topic_id", "tp",
    )  # fmt: skip

    def __init__(self, tp: TopicPartition, *, resets: bool) -> None:
        """``resets``: it goes where the leader says when it has nowhere to be, without an error."""
        self.tp, self.resets = tp, resets
        self.failing_since_ms = self.preferred_until_ms = 0
        self.seek(None)

    def seek(self, offset: int | None) -> None:
        """Begin anew; None: where the leader says."""
        self.offset = offset
        self.topic_id: uuid.UUID | None = None
        self.leader_epoch = UNKNOWN_EPOCH
        self.step = Step.RESET if offset is None else Step.FETCH
        self.epochs = EpochsRead()
        self.error: LogstoreError | None = None
        self.out_of_range = False
        self.preferred = NO_REPLICA
        self.succeeded()

    @property
    def epoch(self) -> int:
        """Of the last record before the position; −1 when that is not known."""
        return self.epochs.latest

    def succeeded(self) -> None:
        self.failures = self.retry_at_ms = 0
        self.last_error: LogstoreError | None = None

    def failed(self, error: LogstoreError, now_ms: int, pause_ms: float) -> None:
        if not self.failures:
            self.failing_since_ms = now_ms
        self.failures += 1
        self.last_error = error
        self.retry_at_ms = now_ms + max(1, int(pause_ms))

    # -- what is found out ---------------------------------------------------------------------

    def see(self, topic_id: uuid.UUID | None, leader_epoch: int) -> None:
        """What the metadata says now: another topic of the name, or another leadership?"""
        if self.topic_id is None:
            self.topic_id = topic_id
        elif topic_id is not None and topic_id != self.topic_id:
            if self.offset is not None and not self.resets:
                self._stop(TopicMadeAnewError(self.tp, self.offset, self.topic_id, topic_id))
                return
            logger.warning(
                "%s was deleted and made anew: position %s is given up", self.tp, self.offset
            )
            self.seek(None)
            self.topic_id = topic_id
        if leader_epoch != self.leader_epoch:
            compared = self.leader_epoch != UNKNOWN_EPOCH
            self.leader_epoch, self.preferred = leader_epoch, NO_REPLICA
            if compared and self.step is Step.FETCH and self.epoch != UNKNOWN_EPOCH:
                self.step = Step.VALIDATE

    def begin(self, offset: int) -> None:
        """The leader says where."""
        self.offset, self.step = offset, Step.FETCH
        self.succeeded()

    def compare(self, answer: EpochEndOffset) -> None:
        """What the leader has of the epoch of our last record."""
        if answer.end_offset < 0 or answer.epoch < 0:
            self._truncated(None)
            return
        diverging = diverging_offset(self, answer)
        if diverging is not None:
            self._truncated(diverging)
        elif self.out_of_range:
            self._leave_range()
        else:
            self.step = Step.FETCH

    def fall_out_of_range(self) -> None:
        """The leader says so; with a known epoch it may be a truncation, and is asked first."""
        self.out_of_range = True
        if self.epoch != UNKNOWN_EPOCH:
            self.step = Step.VALIDATE
        else:
            self._leave_range()

    def _leave_range(self) -> None:
        self.out_of_range = False
        if self.resets:
            logger.warning("%s: position %s is out of range", self.tp, self.offset)
            self._reset()
        else:
            self.step = Step.BOUNDS

    def _truncated(self, diverging: int | None) -> None:
        offset = self.offset
        assert offset is not None
        self.out_of_range = False
        if not self.resets:
            self._stop(LogTruncationError(self.tp, offset, diverging))
        elif diverging is None:
            logger.warning("%s was truncated: position %s is given up", self.tp, offset)
            self._reset()
        else:
            logger.warning(
                "%s was truncated: from position %s back to %s, where the logs part", self.tp,
                offset, diverging,
            )  # fmt: skip
            self.offset, self.step = diverging, Step.FETCH
            self.epochs.cut(diverging)

    def _reset(self) -> None:
        self.offset, self.step, self.epochs = None, Step.RESET, EpochsRead()

    def _stop(self, error: LogstoreError) -> None:
        self.step, self.error = Step.STOPPED, error

    # -- records -------------------------------------------------------------------------------

    def take(
        self, asked: FetchPartition, part: FetchPartitionResponse, isolation: IsolationLevel
    ) -> list[Record]:
        """The records of an answer to a fetch from here; the position is behind them then.

        Raises:
            CorruptBatchError: a checksum is wrong, or an epoch, which no checksum covers; the
                position stays.
        """
        taken = read_part(asked, part, isolation)
        for epoch, first in taken.epochs:
            self.epochs.note(epoch, first)
        self.offset = taken.next_offset
        return taken.records


class Taken(NamedTuple):
    records: list[Record]
    next_offset: int  # beyond what is left out, too: control batches and aborted records
    epochs: list[tuple[int, int]]  # leader epoch and first offset, where it changes


def read_part(
    asked: FetchPartition, part: FetchPartitionResponse, isolation: IsolationLevel
) -> Taken:
    """
    Raises:
        CorruptBatchError: see ``Position.take``.
    """
    offset, highest = asked.fetch_offset, asked.current_leader_epoch
    committed = isolation is IsolationLevel.READ_COMMITTED
    end = part.last_stable_offset if committed else part.high_watermark
    aborted = [(t.producer_id, t.first_offset, t.last_offset) for t in part.aborted_transactions]
    records = read_records(part.records, from_offset=offset, end_offset=end, aborted=aborted)
    next_offset = offset
    epochs: list[tuple[int, int]] = []
    for firsts, lasts, leader_epochs, positions in _headers(part.records):
        # The leader was asked under its own epoch: it can have none above it.
        if 0 <= highest < max(leader_epochs):
            at = next(n for n, epoch in enumerate(leader_epochs) if epoch > highest)
            reason = f"leader epoch {leader_epochs[at]} above {highest}, that of the leader"
            raise CorruptBatchError("", positions[at], reason)
        if not epochs or not epochs[-1][0] == min(leader_epochs) == max(leader_epochs):
            for epoch, first in zip(leader_epochs, firsts, strict=True):
                if first < end and (not epochs or epochs[-1][0] != epoch):
                    epochs.append((epoch, max(first, offset)))
        next_offset = lasts[-1] + 1
    return Taken(records, max(offset, min(next_offset, end)), epochs)


def _headers(data: Buffer) -> Iterator[tuple[array[int], array[int], array[int], array[int]]]:
    """First and last offsets, leader epochs and positions of the batches, many at a time."""
    columns = array("q", bytes(8 * len(SCAN_COLUMNS) * _ROWS))
    start, status = 0, SCAN_FULL
    while status == SCAN_FULL:
        rows, start, status = scan_batches(data, start, columns, check_crc=False)
        if rows:
            first, last, epoch, position = (
                columns[at * _ROWS : at * _ROWS + rows] for at in _COLUMNS
            )
            yield first, last, epoch, position


def diverging_offset(position: Position, answer: EpochEndOffset) -> int | None:
    """The first offset at which a leader's log differs from what was read; None: it does not.

    ``answer`` is the leader's largest epoch at or below the position's, and where it ends; (−1, −1)
    when it has none, which is a difference from the beginning on.
    """
    offset = position.offset
    assert offset is not None
    if answer.end_offset < 0 or answer.epoch < 0:
        return 0
    if answer.epoch < position.epoch:  # it has nothing of the epoch of the last record
        return min(answer.end_offset, position.epochs.end_of(answer.epoch))
    return answer.end_offset if answer.end_offset < offset else None
