"""Files that a start deletes, or puts in the place of others: ``.swap`` and its like.

A start of Kafka does not look into them. It deletes every segment that begins in the range of all
``.log.swap`` together, and gives these their names (F-239, F-240): what is wrong in one of them
takes the place of what is right. A ``.cleaned`` is deleted, and each ``.swap`` at or above the
lowest of them; a ``.deleted`` is deleted (F-238). A start of logstore is more careful.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from logstore.format import filenames
from logstore.format.filenames import SegmentFile
from logstore.storage.base import FileInfo
from logstore.verify.common.report import Problem, Severity, error, info, warning
from logstore.verify.segment.segment_check import SegmentJob, SegmentResult

_LEFT = {
    filenames.DELETED_SUFFIX: "the next start deletes it",
    filenames.CLEANED_SUFFIX: "never complete, the next start deletes it",
    filenames.SWAP_SUFFIX: "the next start puts it in its place",
}


@dataclass(slots=True)
class WaitingFiles:
    """What a partition directory holds of them, by base offset. ``jobs`` check the content of the
    replacements that count.
    """

    directory: str
    jobs: list[SegmentJob] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    _cleaned: list[int] = field(default_factory=list)
    _swapped: dict[int, FileInfo] = field(default_factory=dict)
    _deleted: dict[int, FileInfo] = field(default_factory=dict)

    def take(self, file: FileInfo, parsed: SegmentFile) -> Problem | None:
        """Take a file in transition, and tell what becomes of it; None if its content decides."""
        if file.name == filenames.segment_file_name(
            parsed.offset, filenames.LOG_SUFFIX, filenames.SWAP_SUFFIX
        ):
            self._swapped[parsed.offset] = file
            return None
        if parsed.transition == filenames.CLEANED_SUFFIX:
            self._cleaned.append(parsed.offset)
        elif (parsed.suffix, parsed.transition) == (filenames.LOG_SUFFIX, filenames.DELETED_SUFFIX):
            self._deleted[parsed.offset] = file
        return info("leftover", f"a {parsed.transition} file: {_LEFT[parsed.transition]}")

    def plan(self, size_max: int) -> Iterator[tuple[int, Problem]]:
        """Make the jobs. Yields the bases of those that are none, and why."""
        for base, file in sorted(self._swapped.items()):
            if base >= min(self._cleaned, default=base + 1):
                message = "not complete, as there is a .cleaned: the next start deletes it"
                yield base, info("leftover", message, offset=base)
            elif file.size > size_max:
                message = f"{file.size} bytes, it has at most {size_max}: not read"
                yield base, error("too-large", message, offset=base)
            else:
                self.jobs.append(SegmentJob(self.directory, base, is_roll=True))
                self.sizes.append(file.size)

    def check(
        self,
        swapped: Iterable[SegmentResult],
        results: Sequence[SegmentResult],
        promised: int,
        *,
        compacted: bool,
    ) -> Iterator[tuple[str, int, Problem]]:
        """Names and bases with what is wrong. ``results`` are those of the segments that are here,
        and offsets below ``promised`` should be.
        """
        swaps = [one for one in swapped if filenames.LOG_SUFFIX not in one.vanished]
        if swaps:
            yield from self._check_swaps(swaps, results, compacted)
        ends = [(one.end_offset, one.base) for one in results if one.end_offset >= 0]
        gone = [(one, base) for (one, _), (_, base) in pairwise([*ends, (promised, promised)])]
        for base, file in sorted(self._deleted.items()):
            if not compacted and any(low <= base < high for low, high in gone):
                message = "begins where the log has a hole: copy it before a start deletes it"
                yield file.name, base, warning("leftover", message, offset=base)

    def _check_swaps(
        self, swaps: Sequence[SegmentResult], results: Sequence[SegmentResult], compacted: bool
    ) -> Iterator[tuple[str, int, Problem]]:
        ends = {swap.base: max(swap.end_offset, swap.base + 1) for swap in swaps}
        low, high = min(ends), max(ends.values())
        replaced = [one for one in results if low <= one.base < high]
        for swap in swaps:
            name = self._swapped[swap.base].name
            own = [one for one in replaced if swap.base <= one.base < ends[swap.base]]
            bad = [p for p in swap.problems[filenames.LOG_SUFFIX] if p.severity is Severity.ERROR]
            for problem in swap.problems[filenames.LOG_SUFFIX]:
                yield name, swap.base, problem
            bases = ", ".join(str(one.base) for one in own[:10]) or "none"
            message = f"{swap.records} records, the next start puts it in the place of "
            message += f"{sum(one.records for one in own)}, of the segments {bases}"
            before = next((one for one in results[::-1] if one.base < low), None)
            severity, why = info, ""
            if bad or swap.tail:
                severity, why = error, "and it is damaged"
            elif before and before.end_offset > low:
                severity, why = error, f"and segment {before.base} reaches into it"
            elif own and not compacted and max(one.end_offset for one in own) > ends[swap.base]:
                severity, why = warning, f"and it ends at {ends[swap.base]}, before they do"
            problem = severity("leftover", f"{message} {why}".strip(), offset=swap.base)
            yield name, swap.base, problem
        for one in replaced:
            if not any(base <= one.base < end for base, end in ends.items()):
                name = filenames.segment_file_name(one.base, filenames.LOG_SUFFIX)
                message = "between two .swap files that do not have it: a start of Kafka deletes it"
                yield name, one.base, error("leftover", message, offset=one.base)
