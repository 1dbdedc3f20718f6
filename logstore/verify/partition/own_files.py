"""Files in a partition directory that Kafka does not know: cursors, ``clean-stop`` and
``topic.properties``, compared with the log that they describe."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from checkpoints.checkpoint_file import MAX_I64, frame, load_file, parse_entries, parse_number
from checkpoints.partition_metadata import topic_id_from_text, topic_id_to_text
from checkpoints.topic_properties import TOPIC_PROPERTIES, TopicProperties, TopicPropertiesFile
from logstore.common.config import LogConfig
from logstore.common.errors import ConfigError
from logstore.format import filenames
from logstore.storage.base import FileInfo, Storage
from logstore.verify.common.report import Problem, error, info, warning
from logstore.verify.common.text_files import CheckedFile, Find, check_form
from logstore.verify.segment.segment_check import SegmentResult

_CURSOR_SUFFIX = ".cursor"
_ABSENT = b"-"
_SIZE_MAX = 4096
_CURSORS_MAX = 10_000
_LINE = 3  # the only entry, after version and count


class CursorFile(NamedTuple):
    """``base_offset`` and ``crc`` are those of the batch before ``position``; −1 if unknown."""

    position: int
    topic_id: str
    base_offset: int
    crc: int


class CleanStopFile(NamedTuple):
    """The end of the log at the last stop. The last three fields are about the last segment."""

    log_start_offset: int
    log_end_offset: int
    base_offset: int
    size: int
    mtime_ms: int


def is_own_file(name: str) -> bool:
    own = (filenames.CLEAN_STOP, filenames.MOVED_FROM, TOPIC_PROPERTIES)
    return name in own or name.endswith(_CURSOR_SUFFIX)


@dataclass(slots=True)
class OwnFiles:
    """Reads the own files with the other small files, and judges them after the segments."""

    storage: Storage
    directory: str
    find: Find
    cursors: dict[str, CursorFile] = field(default_factory=dict)
    clean_stop: CleanStopFile | None = None
    """None unless the file exists and fits the last segment: only then does a start believe it."""
    properties: TopicProperties | None = None

    def read(self, files: Iterable[FileInfo]) -> None:
        """
        Raises:
            OSError: the medium refused.
        """
        infos = {file.name: file for file in files}
        names = [name for name in infos if name.endswith(_CURSOR_SUFFIX)]
        for name in names[:_CURSORS_MAX]:
            self._read_cursor(name)
        if filenames.CLEAN_STOP in infos:
            self._read_clean_stop(infos)
        if TOPIC_PROPERTIES in infos:
            self._read_properties()

    @property
    def wanted(self) -> list[int]:
        """Offsets whose batch is compared with a cursor, sorted."""
        return sorted({c.position - 1 for c in self.cursors.values() if c.base_offset >= 0})

    # -- reading -------------------------------------------------------------------------------

    def _entry(self, name: str, rule: str, width: int) -> list[bytes] | None:
        """The fields of a file with one entry. Another form is reported, and gives None."""
        with self._small_file(name, rule) as file:
            data = load_file(file, file.path, _SIZE_MAX)
            if data is None:
                return None  # vanished since it was listed
            entries = list(parse_entries(file.path, data, width))
            if len(entries) == 1:
                _, fields = entries[0]
                text = b" ".join(fields).decode("latin-1") + "\n"
                file.report(check_form(data, frame(text, 1)))
                return fields
            file.report([error(rule, f"{len(entries)} entries, not one")])
        return None

    def _small_file(self, name: str, rule: str) -> CheckedFile:
        return CheckedFile(self.storage, self.directory, name, rule, self.find, quoted=False)

    def _read_cursor(self, name: str) -> None:
        fields = self._entry(name, "cursor", len(CursorFile._fields))
        if fields is None:
            return
        position, base, crc = (parse_number(fields[n], MAX_I64) for n in (0, 2, 3))
        unknown = fields[2] == fields[3] == _ABSENT
        if position is None or (not unknown and (base is None or crc is None)):
            self.find(name, error("cursor", "not the position of a cursor", _LINE))
            return
        topic_id = fields[1].decode("latin-1")
        cursor = CursorFile(position, topic_id, *((-1, -1) if unknown else (base or 0, crc or 0)))
        if fields[1] != _ABSENT and not _is_topic_id(topic_id):
            self.find(name, error("cursor", f"{topic_id!r} is not a topic id", _LINE, position))
        elif cursor.base_offset >= position:
            message = f"position {position}, but the batch before it begins at {base}"
            self.find(name, warning("cursor", message, _LINE, position))
        else:
            self.cursors[name] = cursor

    def _read_clean_stop(self, infos: Mapping[str, FileInfo]) -> None:
        name = filenames.CLEAN_STOP
        fields = self._entry(name, "clean-stop", len(CleanStopFile._fields))
        if fields is None:
            return
        numbers = [number for f in fields if (number := parse_number(f, MAX_I64)) is not None]
        if len(numbers) < len(fields):
            self.find(name, error("clean-stop", "not five numbers", _LINE))
            return
        stop = CleanStopFile(*numbers)
        last = max((n for n in infos if n.endswith(filenames.LOG_SUFFIX)), default="")
        if last != filenames.segment_file_name(stop.base_offset, filenames.LOG_SUFFIX):
            message = f"of a log whose last segment is {stop.base_offset}: the next start recovers"
            self.find(name, warning("clean-stop", message, _LINE, stop.base_offset))
        elif stop.size != infos[last].size:
            message = f"of a log whose last segment has {stop.size} bytes, it has "
            message += f"{infos[last].size}: the next start recovers"
            self.find(name, warning("clean-stop", message, _LINE, stop.base_offset))
        elif stop.mtime_ms != infos[last].mtime_ms:
            message = "the last segment has another time, as in a copy: the next start recovers"
            self.find(name, info("clean-stop", message, _LINE))
        else:
            self.clean_stop = stop

    def _read_properties(self) -> None:
        with self._small_file(TOPIC_PROPERTIES, "topic-properties") as file:
            self.properties = TopicPropertiesFile(file.path, file).read()
            try:
                LogConfig().with_properties(self.properties.values if self.properties else {})
            except ConfigError as failure:
                file.report([warning("topic-properties", str(failure))])

    # -- judging -------------------------------------------------------------------------------

    def check_cursors(
        self, topic_id: str, start: int, end: int, results: Iterable[SegmentResult]
    ) -> None:
        """Compare each cursor with the log ``[start, end)``, and with the batch before it where
        that was read.
        """
        batches = {offset: b for result in results for offset, b in result.batches_at.items()}
        for name, cursor in self.cursors.items():
            for problem in _check_cursor(cursor, topic_id, start, end, batches):
                self.find(name, problem)

    def check_clean_stop(self, first_base: int, start_on_file: int, end: int) -> None:
        """Compare the offsets that a start would believe with the log and its checkpoint.

        ``start_on_file`` is −1 if no log start is on file, which is normal for a log that starts
        with its first segment.
        """
        stop, path = self.clean_stop, os.path.join(self.directory, filenames.CLEAN_STOP)
        if stop is None or self.storage.info(path) is None:
            return  # opened since
        if stop.log_end_offset != end:
            message = f"log end {stop.log_end_offset}, the log ends at {end}"
            self.find(filenames.CLEAN_STOP, error("clean-stop", message, _LINE, end))
        start = max(first_base, start_on_file)
        if stop.log_start_offset != start:
            message = f"log start {stop.log_start_offset}, the other files say {start}"
            self.find(filenames.CLEAN_STOP, error("clean-stop", message, _LINE, start))


def _check_cursor(
    cursor: CursorFile, topic_id: str, start: int, end: int, batches: Mapping[int, tuple[int, int]]
) -> Iterator[Problem]:
    position = cursor.position
    if cursor.topic_id != _ABSENT.decode() and topic_id not in ("", cursor.topic_id):
        message = f"of topic id {cursor.topic_id}, the log has {topic_id}"
        yield warning("cursor", message, _LINE, position)
    if position > end:
        yield warning("cursor", f"position {position}, the log ends at {end}", _LINE, position)
    batch = batches.get(position - 1)
    known = cursor.base_offset, cursor.crc
    if cursor.base_offset >= 0 and start < position <= end and batch not in (None, known):
        message = f"read up to the batch {known} (base offset, checksum), the log has {batch}"
        yield warning("cursor", message, _LINE, position)


def _is_topic_id(text: str) -> bool:
    try:
        return topic_id_to_text(topic_id_from_text(text)) == text
    except ValueError:
        return False
