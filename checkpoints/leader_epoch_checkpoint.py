"""Leader epochs of one partition and where each begins (rules F-22, F-33, F-34).

Kafka ``LeaderEpochCheckpointFile``; a line is ``epoch start_offset``.
"""

from __future__ import annotations

from collections.abc import Iterable

from checkpoints.checkpoint_file import (
    MAX_I32,
    MAX_I64,
    FileState,
    frame,
    load_file,
    parse_entries,
    parse_number,
    raw_line,
    store_file,
)
from checkpoints.errors import MalformedCheckpointError
from checkpoints.files import Files

LEADER_EPOCH = "leader-epoch-checkpoint"


class LeaderEpochCheckpoint:
    """The leader epoch file of one partition directory.

    Only the format is checked here. The epoch cache checks that the entries ascend: it replays them
    and repairs contradictions (F-34).
    """

    __slots__ = ("_files", "path")

    def __init__(self, path: str, files: Files) -> None:
        self.path = path
        self._files = files

    def read(self) -> list[tuple[int, int]]:
        """``(epoch, start offset)`` in the order of the file; empty when missing or empty.

        Raises:
            MalformedCheckpointError: the file, line number and line.
            CheckpointFailedError: the medium refused.
        """
        return self.inspect()[1]

    def inspect(self) -> tuple[FileState, list[tuple[int, int]]]:
        """As ``read``, and whether the file was missing, empty or had content."""
        data = load_file(self._files, self.path)
        if data is None:
            return FileState.MISSING, []
        entries: list[tuple[int, int]] = []
        for line_number, fields in parse_entries(self.path, data, 2):
            epoch = parse_number(fields[0], MAX_I32)
            start_offset = parse_number(fields[1], MAX_I64)
            if epoch is None or start_offset is None:
                field = "epoch is not an i32" if epoch is None else "start offset is not an i64"
                line = raw_line(b" ".join(fields))
                raise MalformedCheckpointError(self.path, line_number, line, f"the {field} >= 0")
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
        store_file(self._files, self.path, frame("".join(lines), len(lines)))
