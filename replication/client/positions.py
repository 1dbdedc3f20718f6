"""The position of a consumer in one partition, and what is needed before the next fetch.

A position has the leader epoch of the last record before it, and the topic's id. They show whether
the leader's log is still the one that was read (KIP-320, KIP-516).
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
from replication.common.errors import LogTruncationError, TopicRecreatedError
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
_EPOCHS = 64  # how many leader epochs are kept to find a common prefix exactly


class PositionStep(Enum):
    """The step that a position needs next."""

    RESET = "reset"  # ask the leader for the start offset
    VALIDATE = "validate"  # ask the leader whether its log has the records that were read
    BOUNDS = "bounds"  # ask the leader for the ends of its log, for an error
    FETCH = "fetch"
    STOPPED = "stopped"  # there is an error until ``seek``


class EpochsRead:
    """(epoch, first offset) of the records read since the last seek, as in a follower's log."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[tuple[int, int]] = []

    @property
    def latest(self) -> int:
        return self._entries[-1][0] if self._entries else UNKNOWN_EPOCH

    def note(self, epoch: int, offset: int) -> None:
        """Note that a batch at ``offset`` was read."""
        entries = self._entries
        if epoch > self.latest:
            entries.append((epoch, offset))
            if len(entries) > _EPOCHS:  # lower than the true end, so more is read again
                entries[:2] = [(entries[1][0], entries[0][1])]

    def end_of(self, epoch: int) -> int:
        """The end of what was read up to ``epoch``, which is below the latest one."""
        return next(first for known, first in self._entries if known > epoch)

    def truncate(self, offset: int) -> None:
        """Forget what was read from ``offset`` on."""
        while self._entries and self._entries[-1][1] >= offset:
            self._entries.pop()


class FetchPosition:
    """One partition of a consumer. Not thread-safe.

    Attributes:
        offset: of the next record; None until the leader has answered.
        topic_id, leader_epoch: of the log and the leader that it was last compared with.
        error: set with STOPPED.
        out_of_range: the leader says so. Whether there was a truncation is not known yet.
        bounds: those of the leader's log that have come, by special timestamp, for an error.
        preferred, preferred_until_ms: another replica that the leader named (KIP-392), and until
            when to use it.
        failures, failing_since_ms, retry_at_ms, last_error: consecutive failures.
    """

    def __init__(self, tp: TopicPartition, *, resets: bool) -> None:
        """``resets``: without a position it starts where the leader says, without an error."""
        self.tp, self.resets = tp, resets
        self.failing_since_ms = self.preferred_until_ms = 0
        self.seek(None)

    def seek(self, offset: int | None) -> None:
        """Begin again at an offset; None asks the leader."""
        self.offset = offset
        self.topic_id: uuid.UUID | None = None
        self.leader_epoch = UNKNOWN_EPOCH
        self.step = PositionStep.RESET if offset is None else PositionStep.FETCH
        self.epochs = EpochsRead()
        self.error: LogstoreError | None = None
        self.out_of_range = False
        self.bounds: dict[int, int] = {}
        self.preferred = NO_REPLICA
        self.succeeded()

    @property
    def epoch(self) -> int:
        """The epoch of the last record before the position; −1 if unknown."""
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

    # -- answers ---------------------------------------------------------------------

    def compare_metadata(self, topic_id: uuid.UUID | None, leader_epoch: int) -> None:
        """Compare the present metadata: is it another topic of the name, or another leadership?"""
        if self.topic_id is None:
            self.topic_id = topic_id
        elif topic_id is not None and topic_id != self.topic_id:
            if self.offset is not None and not self.resets:
                self._stop(TopicRecreatedError(self.tp, self.offset, self.topic_id, topic_id))
                return
            logger.warning(
                "%s was deleted and created again: position %s is given up", self.tp, self.offset
            )
            self.seek(None)
            self.topic_id = topic_id
        if leader_epoch != self.leader_epoch:
            compared = self.leader_epoch != UNKNOWN_EPOCH
            self.leader_epoch, self.preferred = leader_epoch, NO_REPLICA
            if compared and self.step is PositionStep.FETCH and self.epoch != UNKNOWN_EPOCH:
                self.step = PositionStep.VALIDATE

    def begin(self, offset: int) -> None:
        """Begin where the leader says."""
        self.offset, self.step, self.bounds = offset, PositionStep.FETCH, {}
        self.succeeded()

    def compare(self, answer: EpochEndOffset) -> None:
        """Compare what the leader has of the epoch of our last record."""
        if answer.end_offset < 0 or answer.epoch < 0:
            self._truncated(None)
            return
        diverging = diverging_offset(self, answer)
        if diverging is not None:
            self._truncated(diverging)
        elif self.out_of_range:
            self._leave_range()
        else:
            self.step = PositionStep.FETCH

    def fall_out_of_range(self) -> None:
        """Handle an out-of-range answer.

        With a known epoch it may be a truncation, which is checked first.
        """
        self.out_of_range = True
        if self.epoch != UNKNOWN_EPOCH:
            self.step = PositionStep.VALIDATE
        else:
            self._leave_range()

    def _leave_range(self) -> None:
        self.out_of_range = False
        if self.resets:
            logger.warning("%s: position %s is out of range", self.tp, self.offset)
            self._reset()
        else:
            self.step = PositionStep.BOUNDS

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
                "%s was truncated: from position %s back to %s, where the logs part",
                self.tp,
                offset,
                diverging,
            )
            self.offset, self.step = diverging, PositionStep.FETCH
            self.epochs.truncate(diverging)

    def _reset(self) -> None:
        self.offset, self.step, self.epochs = None, PositionStep.RESET, EpochsRead()

    def _stop(self, error: LogstoreError) -> None:
        self.step, self.error = PositionStep.STOPPED, error

    # -- records -------------------------------------------------------------------------------

    def take_records(
        self, asked: FetchPartition, part: FetchPartitionResponse, isolation: IsolationLevel
    ) -> list[Record]:
        """Take the records of a fetch from here. The position is after them then.

        Raises:
            CorruptBatchError: a checksum is wrong, or an epoch, which no checksum covers. The
                position stays.
        """
        fetched = read_part(asked, part, isolation)
        for epoch, first in fetched.epochs:
            self.epochs.note(epoch, first)
        self.offset = fetched.next_offset
        return fetched.records


class RecordsRead(NamedTuple):
    records: list[Record]
    next_offset: int  # also past control batches and aborted records, which are left out
    epochs: list[tuple[int, int]]  # leader epoch and first offset at each change


def read_part(
    asked: FetchPartition, part: FetchPartitionResponse, isolation: IsolationLevel
) -> RecordsRead:
    """
    Raises:
        CorruptBatchError: see ``FetchPosition.take_records``.
    """
    offset, highest = asked.fetch_offset, asked.current_leader_epoch
    committed = isolation is IsolationLevel.READ_COMMITTED
    end = part.last_stable_offset if committed else part.high_watermark
    aborted = [(t.producer_id, t.first_offset, t.last_offset) for t in part.aborted_transactions]
    records = read_records(part.batches, from_offset=offset, end_offset=end, aborted=aborted)
    next_offset = offset
    epochs: list[tuple[int, int]] = []
    for firsts, lasts, leader_epochs, positions in _headers(part.batches):
        # The leader was asked under its own epoch, so it can have none above it.
        if 0 <= highest < max(leader_epochs):
            at = next(n for n, epoch in enumerate(leader_epochs) if epoch > highest)
            reason = f"leader epoch {leader_epochs[at]} above {highest}, that of the leader"
            raise CorruptBatchError("", positions[at], reason)
        if not epochs or not epochs[-1][0] == min(leader_epochs) == max(leader_epochs):
            for epoch, first in zip(leader_epochs, firsts, strict=True):
                if first < end and (not epochs or epochs[-1][0] != epoch):
                    epochs.append((epoch, max(first, offset)))
        next_offset = lasts[-1] + 1
    return RecordsRead(records, max(offset, min(next_offset, end)), epochs)


def _headers(data: Buffer) -> Iterator[tuple[array[int], array[int], array[int], array[int]]]:
    """Yield first and last offsets, leader epochs and positions of batches, many at a time."""
    columns = array("q", bytes(8 * len(SCAN_COLUMNS) * _ROWS))
    start, status = 0, SCAN_FULL
    while status == SCAN_FULL:
        rows, start, status = scan_batches(data, start, columns, check_crc=False)
        if rows:
            first, last, epoch, position = (
                columns[at * _ROWS : at * _ROWS + rows] for at in _COLUMNS
            )
            yield first, last, epoch, position


def diverging_offset(position: FetchPosition, answer: EpochEndOffset) -> int | None:
    """The first offset at which a leader's log differs from what was read; None if it does not.

    ``answer`` is the leader's largest epoch at or below the position's, and where it ends. It is
    (−1, −1) if there is none, which means a difference from the beginning on.
    """
    offset = position.offset
    assert offset is not None
    if answer.end_offset < 0 or answer.epoch < 0:
        return 0
    if answer.epoch < position.epoch:  # it has no record of the epoch of the last record
        return min(answer.end_offset, position.epochs.end_of(answer.epoch))
    return answer.end_offset if answer.end_offset < offset else None
