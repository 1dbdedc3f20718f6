"""What recovery takes out of a log, and how much of it stays beside the log as ``.cut`` files."""

from __future__ import annotations

import os

from logstore.format import filenames
from logstore.kernels import SCAN_COLUMNS
from logstore.recovery_report import RecoveryReport
from logstore.resync import find_batch
from logstore.segment import Segment
from logstore.segment_view import WINDOW
from logstore.storage.base import Storage

CUT_SUFFIX = ".cut"
UNFINISHED_SUFFIX = CUT_SUFFIX + filenames.TEMPORARY_SUFFIX

_SEARCHES_MAX = 1000
_SIZE = SCAN_COLUMNS.index("size")


class Remover:
    """Cuts logs and removes segments; what is to be kept is safe on the disk before it is cut.

    ``keep`` is ``RecoveryOptions.keep_cut``. A kept file never replaces another: a second cut at
    the same place gets a number in its name, unless it holds the same bytes.
    """

    def __init__(self, storage: Storage, directory: str, keep: str, report: RecoveryReport) -> None:
        self._storage = storage
        self._directory = directory
        self._keep = keep
        self._report = report

    def cut(self, segment: Segment, position: int, reason: str) -> None:
        """Cut the ``.log`` at ``position``, durably; the state of the segment is the caller's."""
        report, name = self._report, os.path.basename(segment.log_path)
        size = segment.size - position
        valid = valid_bytes(segment, position)
        report.bytes_cut += size
        report.bytes_valid_behind_cut += valid
        report.cut_reason = report.cut_reason or f"{name} at byte {position}: {reason}"
        report.actions.append(f"cut {size} bytes off {name} at byte {position}: {reason}")
        if valid:
            report.warnings.append(
                f"{name}: {valid} bytes of whole batches were cut off at byte {position}: {reason}"
            )
        if self._keeps(valid > 0):
            self._copy(segment, position)
        segment.log.truncate(position)
        segment.log.sync()  # else the next append may find its way to the disk without the cut
        segment.file_size = position

    def remove(self, segment: Segment, why: str) -> None:
        """Take a whole segment out, under whatever name its ``.log`` has; durable is up to the
        caller."""
        report, path = self._report, segment.log_path
        valid = has_valid_batch(segment)
        report.actions.append(f"removed segment {segment.base_offset}: {why}")
        report.bytes_cut += segment.size
        if valid:
            report.warnings.append(
                f"segment {segment.base_offset}, {segment.size} bytes with whole batches, was "
                f"removed: {why}"
            )
        if self._keeps(valid):
            segment.log.sync()
            segment.close()
            name = filenames.segment_file_name(segment.base_offset, filenames.LOG_SUFFIX)
            target = next(t for t in self._names(name, 0) if self._storage.info(t) is None)
            self._storage.rename(path, target)
            self._note(target, segment.size)
        for renamed in segment.mark_deleted():
            self._storage.remove(renamed)

    def _keeps(self, valid: bool) -> bool:
        return self._keep == "always" or (valid and self._keep == "valid")

    def _names(self, name: str, position: int) -> list[str]:
        """Where bytes from ``position`` on may be kept, in the order in which to try."""
        stem = f"{self._directory}/{name}.{position}"
        return [f"{stem}{CUT_SUFFIX}", *(f"{stem}.{n}{CUT_SUFFIX}" for n in range(1, 1000))]

    def _note(self, target: str, size: int) -> None:
        self._report.actions.append(f"kept {os.path.basename(target)}")
        self._report.bytes_set_aside += size

    def _copy(self, segment: Segment, position: int) -> None:
        """The end of a ``.log`` as a file of its own, whole under its name or not there at all."""
        size = segment.size - position
        for target in self._names(os.path.basename(segment.log_path), position):
            info = self._storage.info(target)
            if info is None:
                self._write_copy(segment, position, target)
            elif info.size != size or not self._holds(target, segment, position):
                continue
            self._storage.sync_dir(self._directory)  # the copy is safe before anything is cut
            self._note(target, size)
            return

    def _write_copy(self, segment: Segment, position: int, target: str) -> None:
        unfinished = target + filenames.TEMPORARY_SUFFIX
        copy = self._storage.open(unfinished, create=True)
        try:
            copy.truncate(0)
            for at in range(position, segment.size, WINDOW):
                copy.write_at(
                    at - position, segment.log.read_at(at, min(WINDOW, segment.size - at))
                )
            copy.sync()
        finally:
            copy.close()
        self._storage.rename(unfinished, target)

    def _holds(self, path: str, segment: Segment, position: int) -> bool:
        """Whether an earlier recovery, which a crash cut short, has kept these bytes already."""
        file = self._storage.open(path, writable=False)
        try:
            return all(
                file.read_at(at - position, WINDOW)
                == segment.log.read_at(at, min(WINDOW, segment.size - at))
                for at in range(position, segment.size, WINDOW)
            )
        finally:
            file.close()


def valid_bytes(segment: Segment, position: int) -> int:
    """Bytes of whole batches with a matching CRC from ``position`` on, wherever they begin.

    A lower bound where the damage is in very many places, but 0 only where there are none.
    """
    total = 0
    for _ in range(_SEARCHES_MAX):
        run = 0
        for rows, columns, capacity in segment.scan(position, check_crc=True):
            run += sum(columns[_SIZE * capacity : _SIZE * capacity + rows])
        total += run
        found = find_batch(segment.log, position + run + 1, segment.size, segment.base_offset)
        if found is None:
            break
        position = found[0]
    return total


def has_valid_batch(segment: Segment) -> bool:
    """Whether any batch in the ``.log`` has a matching CRC."""
    if any(rows for rows, _, _ in segment.scan(0, check_crc=True)):
        return True
    return find_batch(segment.log, 0, segment.size, segment.base_offset) is not None
