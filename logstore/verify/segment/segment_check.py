"""What is asked of one segment, and what it told: plain values that go between processes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from logstore.format import filenames
from logstore.storage.base import File, Storage
from logstore.verify.common.batch_rules import EpochRun
from logstore.verify.common.fingerprint import Fingerprint
from logstore.verify.common.ranges import CompareSpec, RangeDigest
from logstore.verify.common.report import UNKNOWN, Problem
from logstore.verify.segment.producers import ProducerFacts


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """``deep``: decode every record, not only check headers and checksums. ``fingerprint``: of each
    partition, for a third of the time. ``compare``: replicas of a partition with each other.
    ``unpacked_max``: bytes that one compressed batch may unpack to; above 16 MiB one at a time.
    ``findings_max``: per file, the rest is counted."""

    deep: bool = True
    fingerprint: bool = False
    compare: bool = True
    unpacked_max: int = 64 << 20
    findings_max: int = 1000
    threads: int = 0


@dataclass(frozen=True, slots=True)
class SegmentJob:
    """A segment to check. ``next_base`` is −1 for the active one, the last of its partition.

    ``snapshots``: offsets where the state of producers is wanted. ``files``: the suffixes present.
    ``wanted``: offsets of which base offset and checksum of their batch are wanted, sorted.
    ``epoch_starts``: where leader-epoch-checkpoint has epochs begin, so that runs end there.
    ``trimmed``: rolled or cleanly shut down, so that its indexes have their final size (F-137).
    ``compare``: the ranges to digest for a comparison of replicas, if there is to be one.
    ``floor``: the log start, from which on a log that is opened knows its producers.
    ``is_roll``: its ``.log`` waits, as ``.log.swap``, for the segment before it to be durable.
    """

    directory: str
    base: int
    next_base: int = UNKNOWN
    files: frozenset[str] = frozenset((filenames.LOG_SUFFIX,))
    snapshots: tuple[int, ...] = ()
    trimmed: bool = False
    epoch_starts: tuple[int, ...] = ()
    compare: CompareSpec | None = None
    wanted: tuple[int, ...] = ()
    floor: int = 0
    is_roll: bool = False

    def path(self, suffix: str) -> str:
        return os.path.join(self.directory, file_name(self.base, suffix, is_roll=self.is_roll))


def file_name(base: int, suffix: str, *, is_roll: bool) -> str:
    """Only the ``.log`` of a roll waits for its name; its indexes have theirs."""
    waits = is_roll and suffix == filenames.LOG_SUFFIX
    return filenames.segment_file_name(base, suffix, filenames.SWAP_SUFFIX if waits else "")


def open_log(storage: Storage, path: str) -> File:
    """For reading. A roll may get its final name at any time.

    Raises:
        FileNotFoundError: it is there under neither name.
        OSError: the medium refused.
    """
    try:
        return storage.open(path, writable=False)
    except FileNotFoundError:
        final = path.removesuffix(filenames.SWAP_SUFFIX)
        if final == path:
            raise
        return storage.open(final, writable=False)


class Problems(list[Problem]):
    """The first ``kept`` of one file, and how many more there were: a hostile file has millions."""

    def __init__(self, kept: int) -> None:
        super().__init__()
        self.kept, self.dropped = kept, 0

    def append(self, problem: Problem) -> None:
        if len(self) < self.kept:
            super().append(problem)
        else:
            self.dropped += 1

    def extend(self, problems: Iterable[Problem]) -> None:
        for problem in problems:
            self.append(problem)


@dataclass(slots=True)
class SegmentResult:
    """What one segment told. ``problems`` go by suffix; ``tail`` is what the ``.log`` ends with
    besides whole batches, from byte ``tail_position`` on.

    Timestamps go by the headers of batches, in ms; −1 when there is none. ``ranges`` are in the
    order of the log: that of offsets, unless something is wrong with them.
    """

    base: int
    size: int = 0
    batches: int = 0
    records: int = 0
    first_offset: int = UNKNOWN
    end_offset: int = UNKNOWN
    min_timestamp: int = UNKNOWN
    max_timestamp: int = UNKNOWN
    problems: dict[str, list[Problem]] = field(default_factory=dict)
    suppressed: int = 0
    unreadable: int = 0
    """Records of damaged batches, as offsets and headers tell."""
    tail_records: int = 0
    """Those that the batch claims which ``tail`` is torn of."""
    gap_count: int = 0
    gaps: list[tuple[int, int, int]] = field(default_factory=list)
    holes: bool = False
    epochs: list[EpochRun] = field(default_factory=list)
    producers: ProducerFacts = field(default_factory=ProducerFacts)
    fingerprint: Fingerprint = field(default_factory=Fingerprint)
    ranges: list[RangeDigest] = field(default_factory=list)
    tail: str = ""
    tail_position: int = UNKNOWN
    tail_offset: int = UNKNOWN
    tail_problem: Problem | None = None
    grew: bool = False
    vanished: tuple[str, ...] = ()
    batches_at: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Wanted offset → base offset and stored checksum of its batch."""

    def problems_of(self, suffix: str) -> list[Problem]:
        """Those of one file, to be added to."""
        return self.problems.setdefault(suffix, [])
