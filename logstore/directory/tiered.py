"""One log out of two places: a tier, which has its older segments, and a broker's directory.

Offsets decide which place is read, never files: each offset is read in one of them. The border is
the base of a local segment. A segment of the tier that reaches beyond it counts up to the batch
that begins there. Both places must have the same history, and together all of it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias

from checkpoints.errors import MalformedCheckpointError
from checkpoints.files import UnusableFileError
from checkpoints.leader_epoch_checkpoint import LEADER_EPOCH, LeaderEpochCheckpoint
from checkpoints.loggers import get_logger
from logstore.common.parallel import at_once
from logstore.directory.errors import TierRefusedError
from logstore.directory.layout import list_partitions
from logstore.directory.listing import UNKNOWN, ListedSegment, PartitionLayout, TierPart
from logstore.directory.planning import OffsetRange, plan_splits
from logstore.directory.segment_index import SegmentIndex, log_end_offset, segment_of
from logstore.directory.splits import HEADER, ReadSettings, Spare, Split, lost
from logstore.directory.windows import BatchTable
from logstore.storage.uri import join_uri, open_storage, shown, unpinned

Epochs: TypeAlias = tuple[tuple[int, int], ...]
"""Leader epochs, each with its first offset, ascending."""

logger = get_logger(__name__)


def joined(
    local: Iterable[PartitionLayout], tier: Iterable[PartitionLayout], *, prefer_tier: bool
) -> list[PartitionLayout]:
    """Each partition as one log. One that is in one place only is taken as it is there.

    ``tier`` must have been listed after ``local``: what retention deleted in between is then there.

    Raises: as ``join``.
    """
    there = {(layout.topic, layout.partition): layout for layout in tier}
    pairs = [(layout, there.pop((layout.topic, layout.partition), None)) for layout in local]
    found = at_once(lambda pair: _joined(*pair, prefer_tier), pairs)
    return sorted([*found, *there.values()], key=lambda layout: (layout.topic, layout.partition))


def _joined(
    local: PartitionLayout, tier: PartitionLayout | None, prefer_tier: bool
) -> PartitionLayout:
    return local if tier is None else join(local, tier, prefer_tier=prefer_tier)


def join(
    local: PartitionLayout, tier: PartitionLayout, *, prefer_tier: bool = False
) -> PartitionLayout:
    """The log of ``local`` with what only ``tier`` still has of it.

    With ``prefer_tier`` it is read there as far as the tier has whole local segments. The log
    starts where the tier does, unless the local checkpoint names a later log start.

    Raises:
        TierRefusedError: they have different histories, or offsets between them are in neither.
        CorruptBatchError: a batch on the way to the border is damaged.
        OSError: the medium refused.
    """
    if local.topic_id and tier.topic_id and local.topic_id != tier.topic_id:
        logger.warning(
            "%s has %s of another topic of that name, whose id was %s; here it is %s: not read",
            *(shown(tier.uri), local.name, tier.topic_id, local.topic_id),
        )
        return local
    if not tier.segments:
        return local
    if not local.segments:
        return replace(tier, broker=local.broker)
    first = local.segments[0].base_offset
    start = max(tier.log_start_offset, local.checkpointed_start)
    if not prefer_tier and (start >= first or tier.segments[0].base_offset >= first):
        return replace(local, tier=TierPart(tier.uri, first))
    epochs = leader_epochs(tier.uri)
    here = leader_epochs(local.uri)
    known = tier.segments[-1].base_offset
    if known < first or prefer_tier:
        known = max(known, tier_end(tier))
    if known < first:
        reason = (
            f"offsets {known} to {first} are in neither: one ends before {known}, the other begins "
            f"at {first}; a listing of a store may lag, try again"
        )
        raise TierRefusedError(local.name, local.uri, tier.uri, reason)
    border = first
    part = parted(epochs, here, tier.log_start_offset, known)
    if prefer_tier:
        end = known if part is None else min(part, known)
        border = max((s.base_offset for s in local.segments if s.base_offset <= end), default=first)
    if part is not None and part < border:
        reason = f"from offset {part} on they were written by different leaders"
        raise TierRefusedError(local.name, local.uri, tier.uri, reason)
    below, header = _up_to(tier, border)
    there = _first_header(local, border)
    if header and there and header != there:
        reason = f"at offset {border} they have different batches"
        raise TierRefusedError(local.name, local.uri, tier.uri, reason)
    kept = tuple(s for s in local.segments if s.base_offset >= border)
    return replace(
        local,
        segments=(*below, *kept),
        log_start_offset=start,
        snapshots=(
            *(offset for offset in tier.snapshots if offset < border),
            *(offset for offset in local.snapshots if offset >= border),
        ),
        tier=TierPart(tier.uri, border, tuple(e for e in epochs if e[1] < border), prefer_tier),
    )


def parted(tier: Epochs, local: Epochs, start: int, end: int) -> int | None:
    """The first offset in ``[start, end)`` that both know to be of different leader epochs.

    A cache of epochs knows nothing of offsets before its first entry.
    """
    if not tier or not local:
        return None
    first = max(start, tier[0][1], local[0][1])
    changes = {first, *(at for _, at in (*tier, *local) if first < at < end)}
    return next(
        (at for at in sorted(changes) if at < end and _epoch(tier, at) != _epoch(local, at)), None
    )


def _epoch(epochs: Epochs, offset: int) -> int:
    return epochs[bisect_right(epochs, offset, key=lambda entry: entry[1]) - 1][0]


def leader_epochs(uri: str, note: Callable[[str], None] = logger.warning) -> Epochs:
    """The entries of ``leader-epoch-checkpoint`` as far as they ascend; none without the file.

    ``note`` is told of a damaged file, which is taken as missing.

    Raises:
        OSError: the medium refused.
    """
    storage, path = open_storage(join_uri(uri, LEADER_EPOCH))
    try:
        entries = LeaderEpochCheckpoint(path, storage).read()
    except MalformedCheckpointError as error:
        note(f"taken as missing: {error}")
        return ()
    ascending: list[tuple[int, int]] = []
    for epoch, start in entries:
        if not ascending or (epoch > ascending[-1][0] and start >= ascending[-1][1]):
            ascending.append((epoch, start))
    return tuple(ascending)


def epochs_of(layout: PartitionLayout) -> Epochs:
    """The leader epochs of a log, of its part in a tier, too."""
    here = leader_epochs(layout.uri)
    if layout.tier is None or not here:
        return here
    # The first entry of a log whose start moved begins there, not where the epoch did.
    before = tuple(e for e in layout.tier.epochs if e[0] < here[0][0] and e[1] < here[0][1])
    first = next((e for e in layout.tier.epochs if e[0] == here[0][0]), here[0])
    return (*before, min(first, here[0]), *here[1:])


def tier_end(tier: PartitionLayout) -> int:
    """One past the last offset that a tier has of a partition.

    The snapshot behind a segment has its end in its name. Records may be gone before it.

    Raises:
        CorruptBatchError, OSError: as ``log_end_offset``.
    """
    last = tier.segments[-1].base_offset if tier.segments else UNKNOWN
    if tier.snapshots and tier.snapshots[-1] > last:
        return tier.snapshots[-1]
    return log_end_offset(tier)


@lru_cache(maxsize=1024)  # a stream asks again in each micro-batch, and objects do not change
def _up_to(tier: PartitionLayout, border: int) -> tuple[tuple[ListedSegment, ...], bytes]:
    """The segments below ``border``, the last one up to there; the header of the batch behind."""
    count = segment_of(tier.segments, border - 1) + 1
    below, after = tier.segments[:count], tier.segments[count:]
    if after and after[0].base_offset == border:
        return below, _first_header(tier, border)
    if not below:
        return (), b""
    found = batch_from(tier, border)
    if found is None:
        return below, b""
    position, header = found
    cut = replace(below[-1], size=position, whole_size=below[-1].file_size)
    return (*below[:-1], cut), header


def batch_from(layout: PartitionLayout, offset: int) -> tuple[int, bytes] | None:
    """The position and the header of the first batch from ``offset`` on in its segment, if any.

    Raises:
        CorruptBatchError: a batch on the way to it is damaged.
        OSError: the medium refused.
    """
    segment = layout.segments[segment_of(layout.segments, offset)]
    with SegmentIndex(layout, segment).windows(offset, open_end=True) as windows:
        for window, position, table in windows.tables(BatchTable):
            row = bisect_left(table.cells("base_offset"), offset)
            if row < table.rows:
                at = table.cells("position")[row]
                return position + at, bytes(window[at : at + HEADER])
    return None


def _first_header(layout: PartitionLayout, base_offset: int) -> bytes:
    """The header of the first batch of the segment; empty if there is none yet."""
    with closing(layout.open(base_offset)) as file:
        found = file.read_at(0, HEADER)
    return found if len(found) == HEADER else b""


def in_tier(split: Split, spare: Spare, settings: ReadSettings) -> list[Split]:
    """What to read in the tier in place of a split whose segment retention has deleted.

    Nothing if it is not there and failOnDataLoss is off.

    Raises:
        DataLossError: the tier does not have the same batches.
        OSError: the medium refused.
    """
    for look in (_layout_in_tier, _seen_last, _layout_in_tier_now):
        try:
            layout = look(spare.uri)
        except UnusableFileError:
            # The backup that was the newest when the query was planned may have been dropped since,
            # and a later one has its segments.
            if look is _layout_in_tier_now:
                raise
            continue
        reason = _missing(layout, spare)
        if layout is not None and not reason:
            start = max(split.from_offset, split.above + 1, _base(spare.header))
            wanted = OffsetRange(layout, start, min(split.end_offset, spare.end), split.aborted)
            return [
                replace(part, log_uri=split.log_uri, broker=split.broker)
                for part in plan_splits([wanted], max(split.size, 1))
            ]
    lost(split, settings, f"the segment was deleted meanwhile, and {shown(spare.uri)} {reason}")
    return []


def _missing(layout: PartitionLayout | None, spare: Spare) -> str:
    """What of a split a tier lacks; "" if it has all of it."""
    if layout is None or not layout.segments:
        return "has nothing of the partition"
    first = _base(spare.header)
    if layout.segments[0].base_offset > first:
        return f"begins at {layout.segments[0].base_offset}"
    if (end := tier_end(layout)) < spare.end:
        return f"ends at {end}"
    found = batch_from(layout, first)
    if found is None or found[1] != spare.header:
        return f"has another batch at offset {first}"
    return ""


def _base(header: bytes) -> int:
    return int.from_bytes(header[:8], "big")


@lru_cache(maxsize=64)
def _layout_in_tier(uri: str) -> PartitionLayout | None:
    return next(iter(list_partitions([uri])), None)


_latest: dict[str, PartitionLayout | None] = {}
"""The last look at partitions of tiers. When retention takes one segment, it often takes many."""
_LATEST_MAX = 256


def _seen_last(uri: str) -> PartitionLayout | None:
    return _latest.get(uri)


def _layout_in_tier_now(uri: str) -> PartitionLayout | None:
    """The listing as it is now, for what was put since the query was planned."""
    found = next(iter(list_partitions([unpinned(uri)])), None)
    if len(_latest) >= _LATEST_MAX:
        _latest.clear()
    _latest[uri] = found
    return found


__all__ = ["epochs_of", "in_tier", "join", "joined", "leader_epochs", "parted", "tier_end"]
