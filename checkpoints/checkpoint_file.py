"""The frame shared by the checkpoint files (rules F-29 … F-33; Kafka ``CheckpointFile``).

::

    0                  version, always 0
    2                  number of entries
    orders 0 42        one entry a line, fields separated by one space
    orders 1 7         the last line ends with a newline too

Reading follows Kafka where a file is whole and is stricter where it is not:

* Fields are split on runs of white space (F-31), so a carriage return before the newline, as a
  broker on Windows writes it, is accepted. Rewriting always gives the canonical text.
* A 0-byte file is empty (F-30). A file with nothing but the version line is malformed here: Kafka
  reads it as empty, but neither Kafka nor this package ever writes it, so it is a file cut short.
* A last line without its newline is malformed here: Kafka takes ``orders 0 12`` at face value
  when the file was cut inside ``orders 0 1234``.
* Numbers are plain decimal digits within their type; a sign is refused.
* A file above ``MAX_FILE_SIZE`` is refused before it is read, and the number of lines is compared
  with the count before the first entry is decoded: memory stays bounded (S-55).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

from checkpoints.errors import CheckpointFailedError, MalformedCheckpointError
from checkpoints.files import Files, UnusableFileError, replace_file
from checkpoints.printable import decoded

MAX_FILE_SIZE = 64 << 20
"""Bytes: room for 240,000 partitions with the longest topic names."""

MAX_I32 = 2**31 - 1
MAX_I64 = 2**63 - 1
_LINE_MAX = 200  # bytes
_DIGITS_MAX = 19  # of MAX_I64: a longer number overflows, and int() is quadratic in its length

VERSION = b"0"


class FileState(enum.Enum):
    """The state of a file in place of a checkpoint, for recovery reports."""

    MISSING = "missing"
    EMPTY = "empty"  # 0 bytes: created but never written, or lost in a power cut
    PRESENT = "present"


def load_file(files: Files, path: str, limit: int = MAX_FILE_SIZE) -> bytes | None:
    """The content of a small file, or ``None`` when it is missing.

    Raises:
        MalformedCheckpointError: it is larger than ``limit`` bytes, or not a regular file; nothing
            was read.
        CheckpointFailedError: the medium refused.
    """
    try:
        return files.read_file(path, limit)
    except FileNotFoundError:
        return None
    except UnusableFileError as error:
        raise MalformedCheckpointError(path, 0, "", error.reason) from error
    except OSError as error:
        raise CheckpointFailedError(path, "read", str(error)) from error


def store_file(files: Files, path: str, data: bytes) -> None:
    """Replace a small file atomically and durably (F-26).

    Raises:
        CheckpointFailedError: the disk failed. The old content is still in place; if only the sync
            of the directory failed, it is the old or the new content.
    """
    try:
        replace_file(files, path, data)
    except OSError as error:
        raise CheckpointFailedError(path, "write", str(error)) from error


class CheckpointFile:
    """The base of a class for one of the files (Kafka's name): reads and replaces it as a whole."""

    __slots__ = ("_files", "path")

    size_max = MAX_FILE_SIZE

    def __init__(self, path: str, files: Files) -> None:
        self.path = path
        self._files = files

    def _load(self) -> bytes | None:
        """As ``load_file``."""
        return load_file(self._files, self.path, self.size_max)

    def _store(self, data: bytes) -> None:
        """As ``store_file``."""
        store_file(self._files, self.path, data)

    def _entries(self, data: bytes, field_count: int) -> Iterator[tuple[int, list[bytes]]]:
        """As ``parse_entries``."""
        return parse_entries(self.path, data, field_count)

    def _fault(self, line_number: int, line: bytes, reason: str) -> MalformedCheckpointError:
        return MalformedCheckpointError(self.path, line_number, raw_line(line), reason)


def raw_line(line: bytes) -> str:
    """A line for an error, shortened if it is long."""
    return decoded(line[:_LINE_MAX])


def parse_number(text: bytes, limit: int) -> int | None:
    """A decimal number in ``[0, limit]``, or ``None``. Cheap for hostile lengths."""
    if not text.isdigit() or len(text) > _DIGITS_MAX:  # bytes.isdigit() knows ASCII digits only
        return None
    number = int(text)
    return number if number <= limit else None


def parse_entries(path: str, data: bytes, field_count: int) -> Iterator[tuple[int, list[bytes]]]:
    """Check the frame and yield ``(line number, fields)`` of each entry.

    Raises:
        MalformedCheckpointError: at the first fault, which may come after some entries.
    """
    if not data:
        return
    version = data.partition(b"\n")[0].removesuffix(b"\r")
    if version != VERSION:
        raise MalformedCheckpointError(
            path, 1, raw_line(version), "a checkpoint file begins with its version, 0"
        )
    line_count = data.count(b"\n")
    if data[-1:] != b"\n":
        last = data[data.rfind(b"\n") + 1 :]
        raise MalformedCheckpointError(
            path, line_count + 1, raw_line(last), "no newline at the end"
        )
    version_end = data.index(b"\n")
    if line_count == 1:
        raise MalformedCheckpointError(path, 0, "", "ends after the version line")
    start = data.index(b"\n", version_end + 1) + 1
    count_line = data[version_end + 1 : start - 1]
    count = parse_number(count_line.removesuffix(b"\r"), MAX_I32)
    if count is None:
        raise MalformedCheckpointError(path, 2, raw_line(count_line), "is not an entry count")
    if count != line_count - 2:
        reason = f"{count} entries announced, {line_count - 2} lines found"
        raise MalformedCheckpointError(path, 0, "", reason)
    for number in range(3, line_count + 1):
        end = data.index(b"\n", start)
        line = data[start:end]
        start = end + 1
        fields = line.split()
        # Java's split gives white space at the start an empty first field: Kafka refuses it too.
        if len(fields) != field_count or line[:1].isspace():
            reason = f"expected {field_count} fields, found {len(fields)}"
            raise MalformedCheckpointError(path, number, raw_line(line), reason)
        yield number, fields


def frame(body: str, count: int) -> bytes:
    """The canonical file for ``count`` entries whose newline-ended lines are ``body``."""
    return f"0\n{count}\n{body}".encode()
