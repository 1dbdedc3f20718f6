"""Producer snapshots and transaction indexes, compared with a replay of the log."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TypeVar

from checkpoints.files import UnusableFileError
from logstore.common.errors import CorruptDataError
from logstore.format import filenames
from logstore.format.index_entry import TXN_ENTRY, AbortedTxn, decode_aborted
from logstore.format.producer_snapshot import SIZE_MAX as SNAPSHOT_SIZE_MAX
from logstore.format.producer_snapshot import ProducerSnapshotEntry, decode_snapshot
from logstore.kernels import HEADER_SIZE
from logstore.storage.base import Storage
from logstore.verify.common.report import UNKNOWN, error, info, warning
from logstore.verify.common.text_files import Find
from logstore.verify.segment.producers import (
    PRODUCERS_MAX,
    ProducerFact,
    Replay,
    check_snapshot,
)
from logstore.verify.segment.segment_check import SegmentJob, SegmentResult

T = TypeVar("T")

_JUMPS_MAX = 100  # reported for each segment
_OFFSETS_MAX = 2**31  # of a segment (F-243)


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
        starts = {at: begins for r in results for at, (begins, _) in r.batches_at.items()}
        snapshots = {offset: self.read_snapshot(offset) for offset in snapshot_offsets}
        floor = stretch.floor
        replay, end, gapless = Replay(floor), 0, True
        whole = stretch.from_start and not compacted
        states: dict[int, tuple[dict[int, ProducerFact], bool, bool]] = {}
        for job, result in zip(jobs, results, strict=True):
            if result.base > end and not compacted:  # the first one, or after a hole
                before = snapshots.get(result.base)
                replay = Replay(floor, known=before is not None)
                replay.seed(before or ())
                gapless, whole = True, False
            replay.known = replay.known and stretch.from_start
            overlaps, end = result.base < end, max(end, result.end_offset)
            if filenames.LOG_SUFFIX not in result.vanished:
                self._check_txn_index(job, result, replay, compacted)
            if stretch.of_clients and not compacted and not overlaps and gapless:
                log = os.path.basename(job.path(filenames.LOG_SUFFIX))
                for problem in islice(replay.jumps(result.producers), _JUMPS_MAX):
                    self.find(log, problem, job.base)
            whole = whole and replay.known and not overlaps and not result.gap_count
            for offset, facts in result.producers.marks.items():
                if result.producers.complete:
                    states[offset] = replay.joined(facts), replay.known, whole
            gapless = gapless and not result.gap_count  # otherwise sequences may be missing, too
            replay.advance(result.producers)
        for offset, entries in snapshots.items():
            name = filenames.segment_file_name(offset, filenames.SNAPSHOT_SUFFIX)
            if offset > stretch.end_offset:
                if stretch.torn:
                    continue  # reported already: it covers what is torn
                message = f"lies above the end of the log, {stretch.end_offset}"
                self.find(name, warning("snapshot-above-log", message, offset=offset))
                continue
            unknown: tuple[dict[int, ProducerFact], bool, bool] = {}, False, False
            state, exact, is_whole = unknown if compacted else states.get(offset, unknown)
            is_whole = is_whole and entries is not None
            for problem in check_snapshot(offset, entries or (), state, exact, floor, is_whole):
                self.find(name, problem)
            begins = starts.get(offset, offset)
            if begins < offset:
                message = f"its offset lies inside the batch that begins at {begins}"
                self.find(name, error("snapshot-form", message, offset=offset))

        end = stretch.end_offset
        newest = max(snapshots, default=UNKNOWN)  # above the end it is reported already
        if stretch.closed and results and not stretch.torn and newest < end > start:
            name = filenames.segment_file_name(end, filenames.SNAPSHOT_SUFFIX)
            message = "missing behind a clean shutdown: the next start may not know all producers"
            self.find(name, warning("snapshot-missing", message, offset=end))

    def read_snapshot(self, offset: int) -> list[ProducerSnapshotEntry] | None:
        name = filenames.segment_file_name(offset, filenames.SNAPSHOT_SUFFIX)
        read = partial(self._read, name, "snapshot-form", "producers", offset=offset)
        found = read(decode_snapshot, 10 + 46 * PRODUCERS_MAX, SNAPSHOT_SIZE_MAX)
        return None if found is None else found[1]

    def _read(
        self,
        name: str,
        rule: str,
        what: str,
        decode: Callable[[bytes, str], list[T]],
        limit: int,
        most: int,
        *,
        base: int = UNKNOWN,
        offset: int = UNKNOWN,
    ) -> tuple[bytes, list[T]] | None:
        """The bytes and entries of a file of up to ``limit`` bytes.

        A larger one may be as it should up to ``most`` bytes, and is not checked.
        """
        path = os.path.join(self.directory, name)
        try:
            data = self.storage.read_file(path, limit)
            return data, decode(data, path)
        except FileNotFoundError:
            message = "vanished during the check: deleted by its broker"
            problem = info("file-vanished", message, offset=offset)
        except CorruptDataError as failure:
            problem = error(rule, failure.reason, failure.position, offset)
        except UnusableFileError as failure:
            there = self.storage.info(path)
            if failure.errno != errno.EFBIG:
                problem = error("not-a-file", failure.reason)
            elif there is not None and there.size > most:
                message = f"{there.size} bytes, it has at most {most}: not read"
                problem = error("too-large", message)
            else:
                message = f"not checked: more than {PRODUCERS_MAX} {what}"
                problem = info("not-checked", message)
        self.find(name, problem, base)
        return None

    def _check_txn_index(
        self, job: SegmentJob, result: SegmentResult, replay: Replay, compacted: bool
    ) -> None:
        found: list[AbortedTxn] | None = []
        if filenames.TXN_INDEX_SUFFIX in job.files:
            found = self._read_aborted(job, result)
        if found is None or compacted or not result.producers.complete:
            return
        name = filenames.segment_file_name(job.base, filenames.TXN_INDEX_SUFFIX)
        for problem in replay.check_aborted(result.producers, found):
            self.find(name, problem, job.base)

    def _read_aborted(self, job: SegmentJob, result: SegmentResult) -> list[AbortedTxn] | None:
        """The entries, if they are consistent with each other (F-122, F-124)."""
        name = os.path.basename(job.path(filenames.TXN_INDEX_SUFFIX))
        read = partial(self._read, name, "txnindex-form", "aborted transactions", base=job.base)
        most = result.size // HEADER_SIZE * TXN_ENTRY.size
        both = read(decode_aborted, TXN_ENTRY.size * PRODUCERS_MAX, most)
        if both is None:
            return None
        data, found = both
        if len(data) % TXN_ENTRY.size:
            end = len(data) - len(data) % TXN_ENTRY.size
            message = f"{len(data) - end} bytes behind the last whole entry"
            self.find(name, warning("txnindex-form", message, end), job.base)
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
                problem = error("txnindex-entries", message, position, entry.last_offset)
                self.find(name, problem, job.base)
                return None
            previous = entry.last_offset
            kept.append(entry)
        return kept
