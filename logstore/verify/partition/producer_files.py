"""Producer snapshots and transaction indexes, compared with a replay of the log."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from checkpoints.files import UnusableFileError
from logstore.common.errors import CorruptIndexError, CorruptSnapshotError
from logstore.format import filenames
from logstore.format.index_entry import TXN_ENTRY, AbortedTxn, decode_aborted
from logstore.format.producer_snapshot import SIZE_MAX as SNAPSHOT_SIZE_MAX
from logstore.format.producer_snapshot import ProducerSnapshotEntry, decode_snapshot
from logstore.kernels import HEADER_SIZE
from logstore.storage.base import Storage
from logstore.verify.common.report import UNKNOWN, Problem, error, info, warning
from logstore.verify.segment.producers import (
    PRODUCERS_MAX,
    ProducerFact,
    Replay,
    check_aborted,
    check_snapshot,
)
from logstore.verify.segment.segment_check import SegmentJob, SegmentResult

_JUMPS_MAX = 100  # reported for each segment
_OFFSETS_MAX = 2**31  # of a segment (F-243)
_SNAPSHOT_BYTES_MAX = 10 + 46 * PRODUCERS_MAX


class Find(Protocol):
    """Takes a problem in a file of the partition, with the base of its segment if it has one."""

    def __call__(self, name: str, problem: Problem, base: int = UNKNOWN) -> None: ...


@dataclass(frozen=True, slots=True)
class CheckedSegments:
    """The segments that were checked. ``from_start``: the log's first one among them. ``torn``: the
    last one ends with what is no batch. ``floor``: the log start. ``closed``: cleanly, and still.
    ``of_clients``: producers wrote them, and not a coordinator, which does not count its batches.
    """

    jobs: Sequence[SegmentJob]
    results: Sequence[SegmentResult]
    from_start: bool
    compacted: bool
    end_offset: int
    torn: bool
    floor: int
    closed: bool
    of_clients: bool


@dataclass(frozen=True, slots=True)
class ProducerFiles:
    """The producer files of one partition directory."""

    storage: Storage
    directory: str
    find: Find

    def check(self, stretch: CheckedSegments, snapshot_offsets: Sequence[int]) -> None:
        """Report everything that contradicts the batches.

        Raises:
            OSError: the medium refused.
        """
        jobs, results, compacted = stretch.jobs, stretch.results, stretch.compacted
        start = max(results[0].base if results else 0, stretch.floor)
        snapshots = {offset: self.read_snapshot(offset) for offset in snapshot_offsets}
        floor = stretch.floor
        replay, end, gapless = Replay(floor), 0, True
        states: dict[int, tuple[dict[int, ProducerFact], bool]] = {}
        for job, result in zip(jobs, results, strict=True):
            if result.base > end and not compacted:  # the first one, or after a hole
                before = snapshots.get(result.base)
                replay = Replay(floor, known=before is not None)
                replay.seed(before or ())
                gapless = True
            replay.known = replay.known and stretch.from_start
            overlaps, end = result.base < end, max(end, result.end_offset)
            if filenames.LOG_SUFFIX not in result.vanished:
                self._check_txn_index(job, result, replay, compacted)
            if stretch.of_clients and not compacted and not overlaps and gapless:
                log = os.path.basename(job.path(filenames.LOG_SUFFIX))
                for jump in islice(replay.jumps(result.producers), _JUMPS_MAX):
                    self.find(log, jump.problem, job.base)
            for offset, facts in result.producers.marks.items():
                if result.producers.complete:
                    states[offset] = replay.joined(facts), replay.known
            gapless = gapless and not result.gap_count  # otherwise sequences may be missing, too
            replay.advance(result.producers)
        for offset, entries in snapshots.items():
            name = filenames.segment_file_name(offset, filenames.SNAPSHOT_SUFFIX)
            if offset > stretch.end_offset:
                if stretch.torn:
                    continue  # reported already: it covers what is torn
                message = f"lies above the end of the log, {stretch.end_offset}"
                self.find(name, warning("snapshot-above-log", UNKNOWN, offset, message))
                continue
            state, exact = ({}, False) if compacted else states.get(offset, ({}, False))
            for problem in check_snapshot(offset, entries or (), state, exact, floor):
                self.find(name, problem)

        end = stretch.end_offset
        newest = max(snapshots, default=UNKNOWN)  # above the end it is reported already
        if stretch.closed and results and not stretch.torn and newest < end > start:
            name = filenames.segment_file_name(end, filenames.SNAPSHOT_SUFFIX)
            message = "missing behind a clean shutdown: the next start may not know all producers"
            self.find(name, warning("snapshot-missing", UNKNOWN, end, message))

    def read_snapshot(self, offset: int) -> list[ProducerSnapshotEntry] | None:
        name = filenames.segment_file_name(offset, filenames.SNAPSHOT_SUFFIX)
        path = os.path.join(self.directory, name)
        try:
            return decode_snapshot(self.storage.read_file(path, _SNAPSHOT_BYTES_MAX), path)
        except UnusableFileError as failure:
            what = f"more than {PRODUCERS_MAX} producers"
            self.find(name, self._unusable(path, failure, SNAPSHOT_SIZE_MAX, what))
        except FileNotFoundError:
            message = "vanished during the check: deleted by its broker"
            self.find(name, info("file-vanished", UNKNOWN, offset, message))
        except CorruptSnapshotError as failure:
            problem = error("snapshot-form", failure.position, offset, failure.reason)
            self.find(name, problem)
        return None

    def _unusable(self, path: str, failure: UnusableFileError, most: int, what: str) -> Problem:
        """Judge a file that is too large to read. Up to ``most`` bytes it may be as it should."""
        if failure.errno != errno.EFBIG:
            return error("not-a-file", UNKNOWN, UNKNOWN, failure.reason)
        there = self.storage.info(path)
        if there is not None and there.size > most:
            message = f"{there.size} bytes, it has at most {most}: not read"
            return error("too-large", UNKNOWN, UNKNOWN, message)
        return info("not-checked", UNKNOWN, UNKNOWN, f"not checked: {what}")

    def _check_txn_index(
        self, job: SegmentJob, result: SegmentResult, replay: Replay, compacted: bool
    ) -> None:
        suffix = filenames.TXN_INDEX_SUFFIX
        facts = result.producers
        found: list[AbortedTxn] = []
        if suffix in job.files:
            entries = self._read_aborted(job, result)
            if entries is None:
                return
            found = entries
        if compacted or not facts.complete:
            return
        name = filenames.segment_file_name(job.base, suffix)
        for problem in check_aborted(replay.aborted(facts), found, facts, replay.known):
            self.find(name, problem, job.base)

    def _read_aborted(self, job: SegmentJob, result: SegmentResult) -> list[AbortedTxn] | None:
        """The entries, if they are consistent with each other (F-122, F-124)."""
        path = job.path(filenames.TXN_INDEX_SUFFIX)
        name = os.path.basename(path)
        limit = TXN_ENTRY.size * PRODUCERS_MAX
        try:
            data = self.storage.read_file(path, limit)
            found = decode_aborted(data, path)
        except UnusableFileError as failure:
            what = f"more than {PRODUCERS_MAX} aborted transactions"
            most = result.size // HEADER_SIZE * TXN_ENTRY.size
            self.find(name, self._unusable(path, failure, most, what), job.base)
            return None
        except FileNotFoundError:
            message = "vanished during the check: deleted by its broker"
            self.find(name, info("file-vanished", UNKNOWN, UNKNOWN, message), job.base)
            return None
        except CorruptIndexError as failure:
            problem = error("txnindex-form", failure.position, UNKNOWN, failure.reason)
            self.find(name, problem, job.base)
            return None
        if len(data) % TXN_ENTRY.size:
            end = len(data) - len(data) % TXN_ENTRY.size
            message = f"{len(data) - end} bytes behind the last whole entry"
            self.find(name, warning("txnindex-form", end, UNKNOWN, message), job.base)
        kept: list[AbortedTxn] = []
        previous = job.base - 1
        for index, entry in enumerate(found):
            most = job.base + _OFFSETS_MAX
            is_late = result.end_offset <= entry.last_offset <= most
            if is_late and (result.grew or result.tail):
                continue  # aborted since the log was read, or reported with the tail
            wrong = ""
            if not (entry.first_offset < entry.last_offset and previous < entry.last_offset):
                wrong = f"does not follow {previous}"
            elif entry.first_offset < 0 or entry.last_offset > most:
                wrong = f"has an offset that no segment at {job.base} holds"
            elif not 0 <= entry.last_stable_offset <= most:
                # A follower may know of later transactions, but only of the same append.
                wrong = f"is stable up to what no segment at {job.base} holds"
            if wrong:
                message = f"{tuple(entry)} (producer, first, last offset, last stable offset) "
                message += wrong
                position = TXN_ENTRY.size * index
                problem = error("txnindex-entries", position, entry.last_offset, message)
                self.find(name, problem, job.base)
                return None
            previous = entry.last_offset
            kept.append(entry)
        return kept
