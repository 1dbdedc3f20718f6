"""Where a consumer is in one partition, and what it must do before it may fetch on: pure rules.

A position knows the leader epoch of the last record before it, and the topic's id: together they
say whether the log at the leader still is the one that was read (KIP-320, KIP-516).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from enum import Enum

from logstore.errors import LogstoreError
from replication.messages import EpochEndOffset
from replication.state import UNKNOWN_EPOCH

NO_REPLICA = -1
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


@dataclass(slots=True)
class Position:
    """``offset`` is None until the leader was asked."""

    offset: int | None = None
    topic_id: uuid.UUID | None = None
    leader_epoch: int = UNKNOWN_EPOCH  # of the leader that it was last compared with
    step: Step = Step.RESET
    epochs: EpochsRead = field(default_factory=EpochsRead)
    error: LogstoreError | None = None  # with STOPPED
    out_of_range: bool = False  # says a leader: whether it lies in a truncation is not known yet
    # Another replica that the leader named (KIP-392), and until when it is asked.
    preferred: int = NO_REPLICA
    preferred_until_ms: int = 0
    # Failures in a row, since when, and when it is tried again.
    failures: int = 0
    failing_since_ms: int = 0
    retry_at_ms: int = 0
    last_error: LogstoreError | None = None

    @property
    def epoch(self) -> int:
        """Of the last record before the position; −1 when that is not known."""
        return self.epochs.latest

    def seek(self, offset: int | None) -> None:
        """Begin anew; None: where the leader says."""
        self.offset, self.topic_id, self.leader_epoch = offset, None, UNKNOWN_EPOCH
        self.step = Step.RESET if offset is None else Step.FETCH
        self.epochs, self.error, self.out_of_range = EpochsRead(), None, False
        self.preferred = NO_REPLICA
        self.succeeded()

    def succeeded(self) -> None:
        self.failures = self.retry_at_ms = 0
        self.last_error = None

    def failed(self, error: LogstoreError, now_ms: int, pause_ms: float) -> None:
        if not self.failures:
            self.failing_since_ms = now_ms
        self.failures += 1
        self.last_error = error
        self.retry_at_ms = now_ms + max(1, int(pause_ms))

    def stop(self, error: LogstoreError) -> None:
        self.step, self.error = Step.STOPPED, error


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
