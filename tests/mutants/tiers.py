"""Broken readers of a log in two places."""

from __future__ import annotations

from logstore.directory import tiered
from logstore.directory.listing import ListedSegment, PartitionLayout
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
