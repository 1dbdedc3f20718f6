"""Broken readers of a log in two places, and of stores of segments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from logstore.directory import tiered
from logstore.directory.listing import ListedSegment, PartitionLayout
from logstore.storage.base import File
from logstore.tiers import cutting, lineage, sources, view
from tests.mutants import MonkeyPatch, mutant


@mutant()
def epochs_of_a_tier_are_not_compared(patch: MonkeyPatch) -> None:
    patch.setattr(tiered, "parted", lambda tier, local, start, end: None)


@mutant()
def batches_at_the_border_are_not_compared(patch: MonkeyPatch) -> None:
    patch.setattr(tiered, "_first_header", lambda layout, base_offset: b"")


@mutant()
def a_tier_ends_where_the_rest_begins(patch: MonkeyPatch) -> None:
    """A hole between both is not seen."""
    patch.setattr(tiered, "tier_end", lambda tier: 2**62)


@mutant()
def what_reaches_beyond_the_border_is_read_twice(patch: MonkeyPatch) -> None:
    def mutant(tier: PartitionLayout, border: int) -> tuple[tuple[ListedSegment, ...], bytes]:
        return tuple(s for s in tier.segments if s.base_offset < border), b""

    patch.setattr(tiered, "_up_to", mutant)


@mutant()
def a_hole_in_a_store_is_passed_over(patch: MonkeyPatch) -> None:
    def mutant(*given: Any) -> Any:
        return replace(lineage.choose(*given), holes=())

    patch.setattr(view, "choose", mutant)


@mutant()
def segments_of_every_lineage_count(patch: MonkeyPatch) -> None:
    patch.setattr(lineage, "is_within", lambda segment, history: True)


@mutant()
def a_cut_trusts_the_epochs(patch: MonkeyPatch) -> None:
    """Two segments that overlap are joined without a look at the batch that both have."""
    border_at = cutting.border_at

    def mutant(log: File, index: bytes, base: int, offset: int, following: File) -> int:
        return border_at(log, index, base, offset, sources.InlineFile(following.path, b""))

    patch.setattr(view, "border_at", mutant)


@mutant()
def indexes_in_a_store_are_trusted(patch: MonkeyPatch) -> None:
    patch.setattr(sources, "_CHECKED_MAX", -1)
