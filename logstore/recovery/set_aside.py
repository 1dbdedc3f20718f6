"""The bytes that recovery removes from a log, and those that stay beside it as ``.cut`` files."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from typing import NamedTuple

from logstore.format import filenames
from logstore.format.batch_search import FIRST_WINDOW, BatchSearch
from logstore.kernels import SCAN_COLUMNS, SCAN_INCOMPLETE, scan_batches
from logstore.recovery.log_files import LogFiles
from logstore.segments.segment import Segment
from logstore.segments.segment_view import WINDOW, copy_range

CUT_SUFFIX = ".cut"

_ROWS = 1024


class Remover:
    """Cuts logs and removes segments. Bytes that are kept are on the disk before they are cut.

    ``keep`` is ``RecoveryOptions.keep_cut``. A kept file never replaces another: a second cut at
    the same place gets a number in its name, unless it holds the same bytes.
    """

    def __init__(self, files: LogFiles, keep: str) -> None:
        self._files = files
        self._storage = files.storage
        self._keep = keep
        self._report = files.report

    def cut(self, segment: Segment, position: int, reason: str, *, flushed: bool = False) -> None:
        """Cut the ``.log`` at ``position``, durably. The caller updates the state of the segment.

        ``flushed``: bytes after it were on the disk once, so this is not a torn tail.
        """
        report, name = self._report, os.path.basename(segment.log_path)
        size = segment.size - position
        survey = survey_cut(segment, position)
        report.bytes_cut += size
        report.bytes_valid_behind_cut += survey.valid_bytes
        report.cut_reason = report.cut_reason or f"{name} at byte {position}: {reason}"
        self._files.act(f"cut {size} bytes off {name} at byte {position}: {reason}")
        if survey.may_be_valid:
            report.warnings.append(
                f"{name}: {survey} of whole batches were cut off at byte {position}: {reason}"
            )
        if self._keeps(survey.may_be_valid or (flushed and not survey.blank)):
            self._copy(segment, position)
        segment.log.truncate(position)
        segment.log.sync()  # otherwise the next append may reach the disk without the cut
        segment.file_size = position

    def remove(self, segment: Segment, why: str, *, flushed: bool = False) -> None:
        """Remove a whole segment, whatever the name of its ``.log``.

        The caller makes it durable. ``flushed`` as in ``cut``.
        """
        self._files.act(f"removed segment {segment.base_offset}: {why}")
        self._report.bytes_cut += segment.size
        self._take_out(segment, f"segment {segment.base_offset}", why, flushed=flushed)
        for renamed in segment.mark_deleted():
            self._storage.remove(renamed)

    def discard(self, segment: Segment, why: str) -> None:
        """Remove a ``.log`` that is not part of the log yet. The caller removes its indexes."""
        name = os.path.basename(segment.log_path)
        self._files.act(f"removed {name}: {why}")
        if not self._take_out(segment, name, why):
            segment.close()
            self._storage.remove(segment.log_path)

    def _take_out(self, segment: Segment, what: str, why: str, *, flushed: bool = False) -> bool:
        """Warn about valid batches in a ``.log``, and rename it if it is to be kept."""
        valid = may_hold_batch(segment)
        kept = valid or (flushed and segment.size > 0 and not survey_cut(segment, 0).blank)
        if valid:
            self._report.warnings.append(
                f"{what}, {segment.size} bytes with whole batches, was removed: {why}"
            )
        if not self._keeps(kept):
            return False
        segment.log.sync()
        segment.close()
        name = filenames.segment_file_name(segment.base_offset, filenames.LOG_SUFFIX)
        target = next(t for t in self._names(name, 0) if self._storage.info(t) is None)
        self._storage.rename(segment.log_path, target)
        self._note(target, segment.size)
        return True

    def _keeps(self, valid: bool) -> bool:
        return self._keep == "always" or (valid and self._keep == "valid")

    def _names(self, name: str, position: int) -> Iterator[str]:
        """Names under which bytes from ``position`` on may be kept, in the order to try."""
        stem = f"{self._files.directory}/{name}.{position}"
        yield f"{stem}{CUT_SUFFIX}"
        yield from (f"{stem}.{n}{CUT_SUFFIX}" for n in count(1))

    def _note(self, target: str, size: int) -> None:
        self._files.act(f"kept {os.path.basename(target)}")
        self._report.bytes_set_aside += size

    def _copy(self, segment: Segment, position: int) -> None:
        """Copy the end of a ``.log`` to a file, which appears whole or not at all."""
        size = segment.size - position
        for target in self._names(os.path.basename(segment.log_path), position):
            info = self._storage.info(target)
            if info is None:
                self._write_copy(segment, position, target)
            elif not (
                info.is_file and info.size == size and self._holds(target, segment, position)
            ):
                continue
            self._files.sync()  # the copy is safe before anything is cut
            self._note(target, size)
            return

    def _write_copy(self, segment: Segment, position: int, target: str) -> None:
        unfinished = target + filenames.TEMPORARY_SUFFIX
        copy_range(segment.log, position, segment.size, self._storage, unfinished)
        self._storage.rename(unfinished, target)

    def _holds(self, path: str, segment: Segment, position: int) -> bool:
        """Whether an earlier recovery, interrupted by a crash, has kept these bytes already."""
        with closing(self._storage.open(path, writable=False)) as file:
            return all(
                file.read_at(at - position, WINDOW)
                == segment.log.read_at(at, min(WINDOW, segment.size - at))
                for at in range(position, segment.size, WINDOW)
            )


class CutSurvey(NamedTuple):
    """The valid batches that some bytes hold.

    Attributes:
        valid_bytes: bytes of whole batches with a matching checksum, and of a batch in which only a
            header field is wrong that no checksum covers.
        complete: there is no other valid batch. Otherwise the search gave up.
        blank: all bytes are zero.
    """

    valid_bytes: int
    complete: bool
    blank: bool

    @property
    def may_be_valid(self) -> bool:
        return self.valid_bytes > 0 or not self.complete

    def __str__(self) -> str:
        least = "" if self.complete else "at least "
        return f"{least}{self.valid_bytes} bytes"


def survey_cut(segment: Segment, position: int) -> CutSurvey:
    """Look for whole batches from ``position`` on, wherever they begin."""
    size = segment.size
    search = BatchSearch(segment.log, position, size)
    total = 0
    while position < size:
        run = sum(_run(segment, position, search))
        position += run
        found = search.next(position)
        end = size if found is None else found.position
        if search.is_whole_except_header(position, end):
            run += end - position
        total += run
        if found is None:
            break
        total += found.size
        position = found.end
    return CutSurvey(total, not search.gave_up, total == 0 and search.blank)


def may_hold_batch(segment: Segment) -> bool:
    """Whether any batch in the ``.log`` may have a matching checksum."""
    if any(_run(segment, 0, BatchSearch(segment.log, 0, segment.size))):
        return True
    return survey_cut(segment, 0).may_be_valid


def _run(segment: Segment, position: int, search: BatchSearch) -> Iterator[int]:
    """Bytes of whole batches that follow one another from ``position`` on, window by window.

    The windows grow with the bytes that were whole. So the bytes read stay in proportion to them,
    however long the batch at the end of the run claims to be.
    """
    columns = array("q", [0]) * (len(SCAN_COLUMNS) * _ROWS)
    window, size = FIRST_WINDOW, segment.size
    while position < size:
        with segment.view(position, min(window, size - position)) as view:
            _, done, status = scan_batches(view, 0, columns, True)
        if not done and status == SCAN_INCOMPLETE:  # larger than the window, by its length
            found = search.at(position)
            done = found.size if found else 0
        if not done:
            return
        yield done
        position += done
        window = min(2 * max(window, done), WINDOW)
