"""The check of one segment as plain values: a job and its result, sent between processes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from checkpoints.types import TopicPartition
from logstore.common.bounds import UNPACKED_MAX
from logstore.format import filenames
from logstore.storage.base import File, Storage
from logstore.verify.common.batch_rules import EpochRun
from logstore.verify.common.digests import CompareSpec, Fingerprint, RangeDigest
from logstore.verify.common.report import UNKNOWN, Problem
from logstore.verify.segment.producers import ProducerFacts


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """The options of a verification.

    ``deep`` decodes every record, in addition to headers and checksums. ``fingerprint`` computes
    one for each partition, at the cost of a third of the time. ``compare`` compares the replicas of
    a partition with each other. ``unpacked_max`` is how many bytes one compressed batch may unpack
    to; batches above 16 MiB are unpacked one at a time. ``findings_max`` limits the findings of a
    file; the rest is counted.
    """

    deep: bool = True
    fingerprint: bool = False
    compare: bool = True
    unpacked_max: int = UNPACKED_MAX
    findings_max: int = 1000
    threads: int = 0


@dataclass(frozen=True, slots=True)
class SegmentJob:
    """A segment to check. ``next_base`` is −1 for the active one, the last of its partition.
    ``next_is_empty``: the next one is no word against offsets of this one, having no batch.

    ``snapshots``: offsets where the state of producers is wanted. ``files``: the suffixes present.
    ``wanted``: offsets whose batch is wanted, as base offset and checksum; sorted.
    ``epoch_starts``: where epochs begin in leader-epoch-checkpoint, so that runs end there.
    ``trimmed``: rolled or cleanly shut down, so its indexes have their final size (F-137).
    ``compare``: the ranges to digest for a comparison of replicas, or None. ``floor``: the log
    start, from which on a log that is opened knows its producers. ``is_roll``: its ``.log`` waits
    as ``.log.swap`` until the segment before it is durable. ``partitions``: the topic has at least
    so many.
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
    next_is_empty: bool = False
    tp: TopicPartition | None = None
    partitions: int = 0

    def path(self, suffix: str) -> str:
        return os.path.join(self.directory, file_name(self.base, suffix, is_roll=self.is_roll))


def file_name(base: int, suffix: str, *, is_roll: bool) -> str:
    """Only the ``.log`` of a roll waits for its name. Its indexes have theirs already."""
    waits = is_roll and suffix == filenames.LOG_SUFFIX
    return filenames.segment_file_name(base, suffix, filenames.SWAP_SUFFIX if waits else "")


def open_log(storage: Storage, path: str) -> File:
    """Open a log for reading. A roll may get its final name at any time.

    Raises:
        FileNotFoundError: the log exists under neither name.
        OSError: it cannot be opened.
    """
    try:
        return storage.open(path, writable=False)
    except FileNotFoundError:
        final = path.removesuffix(filenames.SWAP_SUFFIX)
        if final == path:
            raise
        return storage.open(final, writable=False)


class Problems(list[Problem]):
    """The first ``kept`` problems of one file, and how many more there were.

    A hostile file can cause millions.
    """

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
    """The result of one segment.

    ``problems`` are keyed by suffix. ``tail`` names what follows the whole batches of the ``.log``,
    from byte ``tail_position`` on. Timestamps are those of batch headers in ms, −1 for none.
    ``ranges`` have the order of the log, which is the order of offsets unless something is wrong.
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
    """How many records damaged batches had, going by offsets and headers."""
    tail_records: int = 0
    """How many records the batch claims from which ``tail`` was torn."""
    missing: int = 0
    """How many offsets lie in gaps, inside the segment and before the next one."""
    gap_count: int = 0
    gaps: list[tuple[int, int, int]] = field(default_factory=list)
    holes: bool = False
    horizons: bool = False
    """Whether a batch has the bit of a delete horizon."""
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
    """Wanted offset → base offset and stored checksum of its batch, unless that was compacted."""

    def problems_of(self, suffix: str) -> list[Problem]:
        """The problems of one file, as a list to add to."""
        return self.problems.setdefault(suffix, [])
