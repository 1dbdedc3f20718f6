"""Small text files, checked against the form in which they are written.

A reader is lenient: it skips key names and blanks, and takes the last of two entries. A byte that
it does not look at may still have been flipped, so the form is checked here more strictly than
readers do. Values in, problems out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, Self

from checkpoints.checkpoint_file import MAX_I64, frame, parse_entries
from checkpoints.clean_shutdown import parse_epochs
from checkpoints.errors import CheckpointFailedError, MalformedCheckpointError
from checkpoints.files import Files
from checkpoints.meta_properties import parse_properties
from checkpoints.partition_metadata import PartitionMetadata, topic_id_to_text
from checkpoints.printable import printable
from checkpoints.types import TopicPartition
from logstore.verify.common.report import UNKNOWN, Problem, error, warning

_META_KEYS = {
    0: {"version", "cluster.id", "broker.id", "directory.id"},
    1: {"version", "cluster.id", "node.id", "directory.id"},
}
_MARKER_FIELDS = ("version", "brokerEpoch")


class Find(Protocol):
    """Takes a problem in a file of a directory, with the base of its segment if it has one."""

    def __call__(self, name: str, problem: Problem, base: int = UNKNOWN) -> None: ...


class CheckedFile:
    """Gives a reader of one small file its bytes, and keeps them, inside a ``with``.

    Bytes and parsed values are compared later, and must be of the same version of the file. A file
    that breaks its format ends the ``with``: it is a finding of ``rule``. What cannot be read is an
    ``OSError``. The finding shows the line that is wrong if it is ``quoted``.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        name: str,
        rule: str,
        find: Find,
        *,
        quoted: bool = True,
    ) -> None:
        self.path = os.path.join(directory, name)
        self.data, self._quoted = b"", quoted
        self._files, self._name, self._rule, self._find = files, name, rule, find

    def read_file(self, path: str, limit: int = -1) -> bytes:
        self.data = self._files.read_file(path, limit)
        return self.data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def report(self, problems: Iterable[Problem]) -> None:
        for problem in problems:
            self._find(self._name, problem)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, failure: BaseException | None, __: object) -> bool:
        if isinstance(failure, MalformedCheckpointError):
            line = failure.line_number or UNKNOWN  # the position in a text file
            is_shown = self._quoted and failure.line_number
            shown = f": '{printable(failure.line, 200)}'" if is_shown else ""
            self._find(self._name, error(self._rule, failure.reason + shown, line))
        elif isinstance(failure, CheckpointFailedError):
            raise OSError(str(failure)) from failure
        return isinstance(failure, MalformedCheckpointError)


def check_form(data: bytes, written: bytes, rule: str = "text-form") -> Iterator[Problem]:
    """Report the first line that a writer of the same content would write otherwise."""
    lines, expected = data.replace(b"\r\n", b"\n").split(b"\n"), written.split(b"\n")
    for number, (line, right) in enumerate(zip(lines, expected, strict=False), 1):
        if line != right:
            message = f"'{printable(line, 200)}' is written as '{printable(right, 200)}'"
            yield warning(rule, message, number)
            return


def check_offsets(path: str, data: bytes, offsets: dict[TopicPartition, int]) -> Iterator[Problem]:
    """A partition has one entry, and lines have the form in which they are written (F-31)."""
    if not data:
        return
    seen: set[bytes] = set()
    for line, (topic, partition, _) in parse_entries(path, data, 3):
        key = topic + b" " + partition
        if key in seen:
            message = f"a second entry of {printable(key, 200)}: the last counts"
            yield warning("checkpoint-form", message, line)
        seen.add(key)
    if len(seen) == len(offsets) == data.count(b"\n") - 2:
        body = "".join(f"{tp.topic} {tp.partition} {offset}\n" for tp, offset in offsets.items())
        yield from check_form(data, frame(body, len(offsets)))


def check_epoch_form(data: bytes, entries: Sequence[tuple[int, int]]) -> Iterator[Problem]:
    if data:
        body = "".join(f"{epoch} {start}\n" for epoch, start in entries)
        yield from check_form(data, frame(body, len(entries)))


def check_metadata(data: bytes, metadata: PartitionMetadata) -> Iterator[Problem]:
    """A start ignores the names of keys; only version 0 is known (F-36)."""
    if metadata.version:
        message = f"version {metadata.version}, only 0 is known"
        yield warning("partition-metadata", message, 1)
    text = f"version: {metadata.version}\ntopic_id: {topic_id_to_text(metadata.topic_id)}"
    yield from check_form(data, text.encode())


def check_clean_marker(data: bytes) -> Iterator[Problem]:
    """The content decides nothing, but it is known (F-46). Older releases wrote an empty file."""
    if not data:
        return
    try:
        fields = json.loads(data)
        values = [fields[name] for name in _MARKER_FIELDS]
    except (ValueError, LookupError, TypeError, RecursionError):
        message = "not a JSON object with " + " and ".join(_MARKER_FIELDS)
        yield warning("clean-marker", message, 1)
        return
    whole = all(type(value) is int and -1 <= value <= MAX_I64 for value in values)
    if "earlierEpochs" in fields:
        del fields["earlierEpochs"]
        whole = whole and bool(parse_epochs(data))
    if not whole or values[0] != 0 or len(fields) != len(_MARKER_FIELDS):
        yield warning("clean-marker", f"'{printable(data, 200)}' is not what version 0 has", 1)


def check_meta(path: str, data: bytes, version: int) -> Iterator[Problem]:
    """Report keys that no release writes, values that are no text, and a last line that was cut
    (F-39).
    """
    for key, (value, line, _) in parse_properties(path, data).items():
        if key not in _META_KEYS[version]:
            message = f"key '{printable(key, 200)}' is unknown in version {version}"
            yield warning("meta-form", message, line)
        elif not (value.isascii() and value.isprintable()):
            message = f"{key} is '{printable(value, 200)}'"
            yield warning("meta-form", message, line)
    if not data.endswith(b"\n"):
        message = "no newline at the end: the last line may be cut short"
        yield warning("meta-form", message, data.count(b"\n") + 1)
