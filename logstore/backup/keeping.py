"""Which backups stay, and what of the one before is no more in the source.

A disk that is not mounted looks like topics that were deleted. So the last backup of anything stays
until somebody says that the source has deleted it.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

from checkpoints import OVERRIDES_ALONE
from checkpoints.printable import printable
from logstore.backup.content import delete_segments, read_commit, read_commits, segments_of
from logstore.backup.patience import PatientStore
from logstore.backup.report import BackupFault, BackupFinding, BackupReport
from logstore.tiers import (
    BackupCommit,
    MalformedManifestError,
    ObjectNotFoundError,
    SegmentKey,
    StoredSegment,
    TopicBackup,
)
from logstore.tiers.keys import COMMITS, LOG, commit_key, parse_commit_key


def prune(store: PatientStore, keep: int, report: BackupReport, *, drop_deleted: bool) -> None:
    """Drop all backups but the newest ``keep``, and the segments that only they name.

    One that reaches further in a partition than all later ones stays, too, unless
    ``drop_deleted``. Nothing is dropped while a backup cannot be read, because what it names is
    not known. The commits go first, so that none names what is gone.
    """
    reached = dict[tuple[uuid.UUID, int], int]()
    kept, dropped = set[SegmentKey](), set[SegmentKey]()
    numbers = list[int]()
    listed = sorted(read_commits(store).listed, reverse=True)
    for place, number in enumerate(listed if len(listed) > keep else ()):
        try:
            commit = read_commit(store, number)
        except (MalformedManifestError, ObjectNotFoundError) as error:
            reason = f"{error.reason}: no backup is dropped while this one cannot be read"
            report.findings.append(BackupFinding(BackupFault.MALFORMED, error.key, reason))
            return
        further = _further(commit, reached)
        if place >= keep and further and not drop_deleted:
            report.notes.append(
                f"backup {number} stays: no later one has {', '.join(further[:3])}"
                f"{f' and {len(further) - 3} more' if len(further) > 3 else ''} as far; "
                "--drop-deleted drops it"
            )
        stays = place < keep or (bool(further) and not drop_deleted)
        (kept if stays else dropped).update(key for *_, key in segments_of(commit))
        if not stays:
            numbers.append(number)
    store.delete([commit_key(number) for number in sorted(numbers)])
    kept |= _named_since(store, listed)
    doomed = dropped - kept
    report.pruned = len(numbers) + delete_segments(store, sorted(doomed))
    for key in sorted(doomed & _named_since(store, listed) if doomed else ()):
        reason = "a backup that was made meanwhile took it; the next run puts it again"
        report.findings.append(BackupFinding(BackupFault.MISSING, key.key(LOG), reason))


def _named_since(store: PatientStore, known: Collection[int]) -> set[SegmentKey]:
    """What the backups name that another run has made meanwhile: it may be of a dropped one.

    Raises:
        MalformedManifestError: one cannot be read, so that it may name anything.
    """
    found = set[SegmentKey]()
    for listed in store.list(f"{COMMITS}/"):
        number = parse_commit_key(listed.key)
        if number is not None and number not in known:
            with suppress(ObjectNotFoundError):  # dropped in turn
                found.update(key for *_, key in segments_of(read_commit(store, number)))
    return found


def _further(commit: BackupCommit, reached: dict[tuple[uuid.UUID, int], int]) -> list[str]:
    """The partitions that reach further in a commit than ``reached``, which takes it in."""
    found = []
    for tp, topic, part in commit.partitions():
        place = topic.topic_id, part.partition
        if part.end_offset > reached.get(place, part.log_start_offset):
            found.append(printable(str(tp)))
        reached[place] = max(part.end_offset, reached.get(place, 0))
    return found


def goes_on(before: Iterable[TopicBackup], topics: Iterable[TopicBackup]) -> bool:
    """Whether a segment of ``before`` is there still, at least by its first batch; so if it had
    none."""
    had, has = (
        {
            (topic.topic, part.partition, segment.base_offset, segment.first_batch_crc)
            for topic in each
            for part in topic.partitions
            for segment in part.segments
        }
        for each in (before, topics)
    )
    return not had or bool(had & has)


def may_compact(config: Mapping[str, str], revision: int) -> bool:
    """Whether compaction may take segments out of the middle of a log with this configuration; so
    it may where that is not known."""
    usual = "compact" if revision == OVERRIDES_ALONE else "delete"
    return "compact" in config.get("cleanup.policy", usual)


def with_missing(
    before: Sequence[StoredSegment], now: Sequence[StoredSegment]
) -> tuple[tuple[StoredSegment, ...], tuple[StoredSegment, ...]]:
    """The segments of a log that is not compacted, with those that the source has lost from between
    two which are as they were; and these alone. Retention takes none but the first."""
    was = {segment.base_offset: segment for segment in before}
    found, missing = list[StoredSegment](), list[StoredSegment]()
    for segment, later in pairwise((*now, None)):
        assert segment is not None
        known, known_later = was.get(segment.base_offset), later and was.get(later.base_offset)
        found.append(segment)
        if later is None or known is None or known_later is None:
            continue
        is_one_log = known.segment_id == segment.segment_id and (
            known_later.first_batch_crc == later.first_batch_crc
        )
        lost = [
            each for each in before if segment.base_offset < each.base_offset < later.base_offset
        ]
        if lost and is_one_log:
            found[-1:] = replace(segment, end_offset=known.end_offset), *lost
            missing += lost
    return tuple(found), tuple(missing)


def what_vanished(
    before: BackupCommit, topics: Iterable[TopicBackup]
) -> Iterator[str | BackupFinding]:
    """What the backup before has and a new one has not, as notes; as findings where no deletion of
    a topic explains it."""
    there = {topic.topic: topic for topic in topics}
    for topic in before.topics:
        name, now = printable(topic.topic), there.get(topic.topic)
        if now is None:
            yield f"{name} is no more in the source; backups up to {before.number} have it"
        elif now.topic_id != topic.topic_id:
            yield f"{name} was made anew; backups up to {before.number} have the earlier one"
        else:
            left = {part.partition for part in now.partitions}
            for part in topic.partitions:
                if part.partition not in left:
                    yield BackupFinding(
                        BackupFault.GONE,
                        commit_key(before.number),
                        "is not in the source, which has other partitions of the topic; backups "
                        "up to this one have it",
                        topic.topic,
                        part.partition,
                        part.log_start_offset,
                        part.end_offset,
                    )


__all__ = ["goes_on", "may_compact", "prune", "what_vanished", "with_missing"]
