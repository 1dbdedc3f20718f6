"""Errors of the checkpoint files.

CheckpointError
├── MalformedCheckpointError   the text is wrong: the file, its line number and the line itself
└── CheckpointFailedError      the medium failed while the file was read or replaced
"""

from __future__ import annotations

from checkpoints.printable import PrintableError, printable


class CheckpointError(PrintableError):
    """Base of all errors raised by ``checkpoints``; ``path`` names the file."""

    path: str


class MalformedCheckpointError(CheckpointError):
    """A checkpoint file does not follow its format (rules F-31, F-33, F-36, F-39).

    ``line`` is the line as found, perhaps shortened, with lone surrogates for bytes that are not
    UTF-8. ``line_number`` is 1-based; 0 when the fault is not on one line (a count that does not
    match).
    """

    def __init__(self, path: str, line_number: int, line: str, reason: str) -> None:
        super().__init__(path, line_number, line, reason)
        self.path, self.line_number, self.line, self.reason = path, line_number, line, reason

    def _text(self) -> str:
        path = printable(self.path)
        if not self.line_number:
            return f"{path}: {self.reason}"
        return f"{path}, line {self.line_number}: {self.reason}: '{printable(self.line, 80)}'"


class CheckpointFailedError(CheckpointError):
    """Reading or replacing a checkpoint file failed; the previous content is still in place."""

    def __init__(self, path: str, operation: str, reason: str) -> None:
        super().__init__(path, operation, reason)
        self.path, self.operation, self.reason = path, operation, reason

    def _text(self) -> str:
        return f"{printable(self.path)}: {self.operation} failed: {self.reason}"
