"""Leader epochs of one partition and where each begins (rules F-22, F-33, F-34).

Kafka ``LeaderEpochCheckpointFile``; a line is ``epoch start_offset``.
"""

from __future__ import annotations

from collections.abc import Iterable

from checkpoints.checkpoint_file import (
    MAX_I32,
    MAX_I64,
    CheckpointFile,
    FileState,
    frame,
    parse_number,
)

LEADER_EPOCH = "leader-epoch-checkpoint"


class LeaderEpochCheckpoint(CheckpointFile):
    """The leader epoch file of one partition directory.

    Only the format is checked here. The epoch cache checks that the entries ascend: it replays them
    and repairs contradictions (F-34).
    """

    __slots__ = ()

    def read(self) -> list[tuple[int, int]]:
        """``(epoch, start offset)`` in the order of the file; empty when missing or empty.

        Raises:
            MalformedCheckpointError: the file, line number and line.
            CheckpointFailedError: the medium refused.
        """
        return self.inspect()[1]

    def inspect(self) -> tuple[FileState, list[tuple[int, int]]]:
        """As ``read``, and whether the file was missing, empty or had content."""
        data = self._load()
        if data is None:
            return FileState.MISSING, []
        entries: list[tuple[int, int]] = []
        for line_number, fields in self._entries(data, 2):
            epoch = parse_number(fields[0], MAX_I32)
            start_offset = parse_number(fields[1], MAX_I64)
            if epoch is None or start_offset is None:
                field = "epoch is not an i32" if epoch is None else "start offset is not an i64"
                raise self._fault(line_number, b" ".join(fields), f"the {field} >= 0")
            entries.append((epoch, start_offset))
        return (FileState.PRESENT if data else FileState.EMPTY), entries

    def write(self, entries: Iterable[tuple[int, int]]) -> None:
        """Replace the file atomically and durably; lines in the order of ``entries``.

        Raises:
            ValueError: an entry that could not be read back.
            CheckpointFailedError: the medium refused.
        """
        lines = []
        for epoch, start_offset in entries:
            if not (0 <= epoch <= MAX_I32 and 0 <= start_offset <= MAX_I64):
                raise ValueError(f"epoch {epoch} at offset {start_offset} is out of range")
            lines.append(f"{epoch} {start_offset}\n")
        self._store(frame("".join(lines), len(lines)))
