"""The leader-epoch cache of one log: epoch -> start offset, both strictly increasing (F-203).

Matches Kafka's ``LeaderEpochFileCache``. A query never reads the disk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from checkpoints.leader_epoch_checkpoint import LeaderEpochCheckpoint
from logstore.kernels import EpochCell

UNDEFINED_EPOCH = -1
UNDEFINED_EPOCH_OFFSET = -1


class EpochEntry(NamedTuple):
    epoch: int
    start_offset: int


def end_offset_for(
    entries: Sequence[EpochEntry], epoch: int, log_end_offset: int
) -> tuple[int, int]:
    """``(epoch found, its end offset)`` for an OffsetsForLeaderEpoch query (F-208).

    That is the largest epoch at or below the requested one, and where it ends. Below the first
    entry the requested epoch is returned itself. ``(-1, -1)`` if it is not known.
    """
    if epoch == UNDEFINED_EPOCH or not entries or epoch > entries[-1].epoch:
        return UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET
    if epoch == entries[-1].epoch:
        return epoch, log_end_offset
    index = bisect_right(entries, epoch, key=lambda e: e.epoch)
    return (entries[index - 1].epoch if index else epoch), entries[index].start_offset


class LeaderEpochCache(EpochCell):
    """Not thread-safe: the log that owns it holds its lock around every call.

    ``latest_epoch`` is −1 if the cache is empty. It is native because every append reads it.
    ``assign`` writes the file at once: an entry whose epoch has no batch yet could not be rebuilt.
    Truncations write nothing, since loading a log repeats them (F-207).
    """

    def __init__(
        self, checkpoint: LeaderEpochCheckpoint, entries: list[EpochEntry], *, saved: bool = True
    ) -> None:
        """``saved``: the file has these ``entries``."""
        self._checkpoint = checkpoint
        self._entries: list[EpochEntry] = []
        self.latest_epoch = UNDEFINED_EPOCH
        # What the file has; None if that is not known. A recovery mostly ends with it again.
        self._stored = tuple(entries) if saved else None
        for entry in entries:  # replayed, so that an inconsistent file obeys the rules (F-34)
            self._assign(entry.epoch, entry.start_offset)

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        return tuple(self._entries)

    def move_to(self, checkpoint: LeaderEpochCheckpoint) -> None:
        """Take over the new path of the file."""
        self._checkpoint = checkpoint

    @property
    def saved(self) -> bool:
        """Whether the file has the entries of the cache."""
        return self._stored == self.entries

    def assign(self, epoch: int, start_offset: int, *, durable: bool = True) -> None:
        """Record that ``epoch`` begins at ``start_offset`` (F-204, F-210 … F-214).

        A lower epoch evicts the higher ones. With ``durable`` the file is replaced before return.

        Raises:
            ValueError: a negative epoch or offset.
        """
        if self._assign(epoch, start_offset) and durable:
            self.flush()

    def _assign(self, epoch: int, start_offset: int) -> bool:
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"epoch {epoch} at offset {start_offset} is not valid")
        entries = self._entries
        if entries and entries[-1].epoch == epoch and start_offset >= entries[-1].start_offset:
            return False
        while entries and (entries[-1].epoch >= epoch or entries[-1].start_offset >= start_offset):
            entries.pop()
        entries.append(EpochEntry(epoch, start_offset))
        self.latest_epoch = epoch
        return True

    def truncate_from_end(self, end_offset: int) -> None:
        """Drop entries that start at or after ``end_offset`` (F-205); negative does nothing."""
        while end_offset >= 0 and self._entries and self._entries[-1].start_offset >= end_offset:
            self._entries.pop()
        self.latest_epoch = self._entries[-1].epoch if self._entries else UNDEFINED_EPOCH

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget what lies before ``start_offset``, except the epoch of that offset (F-206)."""
        index = bisect_right(self._entries, start_offset, key=lambda e: e.start_offset)
        if index and (index > 1 or self._entries[0].start_offset != start_offset):
            self._entries[:index] = [EpochEntry(self._entries[index - 1].epoch, start_offset)]

    def clear(self, *, durable: bool = True) -> None:
        self._entries.clear()
        self.latest_epoch = UNDEFINED_EPOCH
        if durable:
            self.flush()

    def epoch_for_offset(self, offset: int) -> int | None:
        """Epoch of the record at ``offset``, None below the first entry (F-209)."""
        index = bisect_right(self._entries, offset, key=lambda e: e.start_offset)
        return self._entries[index - 1].epoch if index else None

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """``end_offset_for`` of these entries."""
        return end_offset_for(self._entries, epoch, log_end_offset)

    def flush(self) -> None:
        """Write the file if it has other entries than the cache. Durable on return."""
        if not self.saved:
            self.write(self.entries)
            self.mark_saved(self.entries)

    def write(self, entries: tuple[EpochEntry, ...]) -> None:
        """Replace the file, durably. Needs no lock; ``mark_saved`` does."""
        self._checkpoint.write(entries)

    def mark_saved(self, entries: tuple[EpochEntry, ...]) -> None:
        self._stored = entries
