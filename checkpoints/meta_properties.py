"""``meta.properties``: the owner of a log directory (rules F-39 … F-45; Kafka ``MetaProperties``).

Java properties text. The reader accepts any order, comments, escapes and continued lines. The
writer writes Kafka's form, with the date in UTC.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from checkpoints.checkpoint_file import CheckpointFile
from checkpoints.errors import MalformedCheckpointError
from checkpoints.partition_metadata import is_reserved_id, topic_id_from_text, topic_id_to_text

META_PROPERTIES = "meta.properties"

_KEYS = {"version", "cluster.id", "broker.id", "node.id", "directory.id"}

_I32 = re.compile(r"-?[0-9]{1,10}")
_LINE_END = re.compile(r"\r\n|\r|\n")
_KEY = re.compile(r"(?:[^\\=: \t\f]|\\.)*", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|u|.)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_TO_ESCAPE = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """Version 1 (KRaft) needs ``cluster_id`` and ``node_id``; in version 0 all may be absent.

    ``node_id`` is ``node.id`` in version 1 and ``broker.id`` in version 0.
    """

    version: int
    cluster_id: str | None = None
    node_id: int | None = None
    directory_id: uuid.UUID | None = None

    def __post_init__(self) -> None:
        if self.version not in (0, 1):
            raise ValueError(f"unknown version {self.version}")
        if self.version == 1 and self.cluster_id is None:
            raise ValueError("cluster.id is missing")
        if self.version == 1 and self.node_id is None:
            raise ValueError("node.id is missing")
        if self.node_id is not None and not -(2**31) <= self.node_id < 2**31:
            raise ValueError(f"node id {self.node_id} is not an i32")
        if self.directory_id is not None and is_reserved_id(self.directory_id):
            raise ValueError(f"directory.id {topic_id_to_text(self.directory_id)} is reserved")


class MetaPropertiesFile(CheckpointFile):
    """The file of one log directory."""

    __slots__ = ()

    size_max = 1 << 20  # a handful of short lines, and comments of any sane length

    def read(self) -> MetaProperties | None:
        """The content, or ``None`` when the file is missing. Unknown keys are ignored.

        Raises:
            MalformedCheckpointError: also for a file that is empty or has none of the known keys.
                Formally that is a version 0 file without any id, but no release writes one. It has
                lost its content, and accepting it would lose the identity of the directory.
            CheckpointFailedError: the medium refused.
        """
        data = self._load()
        if data is None:
            return None
        if not data:
            raise self._fault(0, b"", "is empty")
        entries = parse_properties(self.path, data)
        if not entries.keys() & _KEYS:
            raise self._fault(0, b"", "has neither a version nor an id")
        return _from_properties(self.path, entries)

    def write(self, properties: MetaProperties, wall_ms: int) -> None:
        """Replace the file atomically and durably; ``wall_ms`` is the date in its comment.

        Raises:
            CheckpointFailedError: the medium refused.
        """
        entries = {
            "broker.id" if properties.version == 0 else "node.id": properties.node_id,
            "directory.id": properties.directory_id and topic_id_to_text(properties.directory_id),
            "version": properties.version,
            "cluster.id": properties.cluster_id,
        }
        lines = [f"{k}={escape(str(v))}\n" for k, v in entries.items() if v is not None]
        text = f"#\n#{java_date(wall_ms)}\n{''.join(lines)}"
        self._store(text.encode("ascii"))


def parse_properties(path: str, data: bytes) -> dict[str, tuple[str, int, str]]:
    """Key -> ``(value, line number, line)`` of Java properties text; the last duplicate wins.

    Bytes are Latin-1, as ``java.util.Properties.load`` reads them; other characters are escapes.

    Raises:
        MalformedCheckpointError: a ``\\u`` without four hexadecimal digits.
    """
    entries: dict[str, tuple[str, int, str]] = {}
    for number, line in _logical_lines(data.decode("latin-1")):
        match = _KEY.match(line)
        assert match is not None  # the pattern matches the empty string
        separator = _SEPARATOR.match(line, match.end())
        assert separator is not None
        try:
            key, value = _unescape(match.group()), _unescape(line[separator.end() :])
        except ValueError as error:
            raise MalformedCheckpointError(path, number, line, str(error)) from None
        entries[key] = (value, number, line)
    return entries


def java_date(wall_ms: int) -> str:
    """``java.util.Date.toString()`` in UTC, such as ``Tue Nov 14 22:13:20 UTC 2023``."""
    date = _EPOCH + timedelta(seconds=wall_ms // 1000)
    day, month = _DAYS[date.weekday()], _MONTHS[date.month - 1]  # strftime follows the locale
    return f"{day} {month} {date.day:02d} {date:%H:%M:%S} UTC {date.year}"


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """``(number of the first natural line, text)``: no comments, no blanks, continued ones joined.

    A comment is not continued by a backslash, and a comment sign inside a continuation is text.
    """
    lines: list[tuple[int, str]] = []
    continued = False
    for number, natural in enumerate(_LINE_END.split(text), 1):
        stripped = natural.lstrip(" \t\f")
        if not continued and (not stripped or stripped[0] in "#!"):
            continue
        backslashes = len(stripped) - len(stripped.rstrip("\\"))
        continues = backslashes % 2 == 1
        part = stripped[:-1] if continues else stripped
        if continued:
            lines[-1] = (lines[-1][0], lines[-1][1] + part)
        else:
            lines.append((number, part))
        continued = continues
    return lines


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        escape = match.group(1)
        if escape == "u":
            raise ValueError("malformed \\uxxxx escape")
        return chr(int(escape[1:], 16)) if len(escape) == 5 else _ESCAPED.get(escape, escape)

    return _ESCAPE.sub(replace, text)


def escape(value: str) -> str:
    """A value as ``Properties.store`` writes it, with every character beyond ASCII as ``\\uxxxx``:
    the reader takes bytes for Latin-1."""
    out = []
    for index, char in enumerate(value):
        if char in _TO_ESCAPE:
            out.append(_TO_ESCAPE[char])
        elif char in "\\=:#!" or (char == " " and index == 0):
            out.append("\\" + char)
        elif " " <= char <= "~":
            out.append(char)
        else:
            units = char.encode("utf-16-be", "surrogatepass")
            out.extend(f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2))
    return "".join(out)


def _from_properties(path: str, entries: dict[str, tuple[str, int, str]]) -> MetaProperties:
    def number(key: str, default: int | None) -> int | None:
        if key not in entries:
            return default
        value, line_number, line = entries[key]
        if _I32.fullmatch(value) is None or not -(2**31) <= int(value) < 2**31:
            raise MalformedCheckpointError(path, line_number, line, f"{key} is not an i32")
        return int(value)

    def text(key: str) -> str | None:
        if key not in entries:
            return None
        # A pair of \uxxxx escapes may stand for one character outside the first 65,536.
        return entries[key][0].encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    version = number("version", 0)
    assert version is not None
    directory_text, directory_id = text("directory.id"), None
    if directory_text is not None:
        try:
            directory_id = topic_id_from_text(directory_text)
        except ValueError as error:
            _, line_number, line = entries["directory.id"]
            raise MalformedCheckpointError(path, line_number, line, str(error)) from None
    node_id = number("broker.id" if version == 0 else "node.id", None)
    try:
        return MetaProperties(version, text("cluster.id"), node_id, directory_id)
    except ValueError as error:
        raise MalformedCheckpointError(path, 0, "", str(error)) from None
