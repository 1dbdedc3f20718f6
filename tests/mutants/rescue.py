"""Broken rescues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from logstore.rescue import merging, partition, placing, replica, survey
from logstore.rescue.lineage import Lineage
from logstore.rescue.merging import Candidate, Merge
from logstore.rescue.placing import FileFrame, RescuedRange
from logstore.rescue.report import PartitionRescue
from tests.mutants import MonkeyPatch, mutant


@mutant(rescue=0)
def divergent_tails_are_believed(patch: MonkeyPatch) -> None:
    patch.setattr(Lineage, "limit_of", lambda self, piece, mark: piece.next)


@mutant(rescue=11)
def base_offsets_are_believed(patch: MonkeyPatch) -> None:
    def mutant(pieces: Sequence[RescuedRange], frame: FileFrame) -> Iterator[RescuedRange]:
        return iter(pieces)

    patch.setattr(replica, "place", mutant)


@mutant(rescue=18)
def epochs_are_believed(patch: MonkeyPatch) -> None:
    patch.setattr(
        placing,
        "believed_epoch",
        lambda piece, before, after, on_file, vouched: (piece.epoch, True),
    )


@mutant()
def old_formats_get_an_epoch(patch: MonkeyPatch) -> None:
    """Batches of magic 0 and 1 are judged like others."""
    believed = placing.believed_epoch

    def mutant(piece: RescuedRange, *args: Any) -> tuple[int, bool]:
        return believed(piece._replace(magic=2), *args)

    patch.setattr(placing, "believed_epoch", mutant)


@mutant(rescue=103)
def epoch_files_are_not_read(patch: MonkeyPatch) -> None:
    patch.setattr(replica, "agreeing_entries", lambda entries, runs: ())


@mutant()
def the_first_candidate_is_taken(patch: MonkeyPatch) -> None:
    def mutant(candidates: Sequence[Candidate]) -> Candidate:
        return candidates[0]

    patch.setattr(merging, "choose", mutant)


@mutant(rescue=0)
def every_gap_is_history(patch: MonkeyPatch) -> None:
    patch.setattr(Merge, "_was_missing", lambda self, until: True)


@mutant(rescue=23)
def the_end_is_what_is_left(patch: MonkeyPatch) -> None:
    patch.setattr(partition.PartitionMerge, "_reached", lambda self, surveyed: (0, ""))


@mutant(rescue=29)
def the_beginning_is_what_is_left(patch: MonkeyPatch) -> None:
    patch.setattr(partition, "_beginnings", lambda surveyed: [])


@mutant(rescue=0)
def the_search_ends_at_damage(patch: MonkeyPatch) -> None:
    patch.setattr(survey.BatchSearch, "next", lambda self, position: None)


@mutant(rescue=29)
def nothing_is_mended(patch: MonkeyPatch) -> None:
    patch.setattr(merging, "mended_head", lambda piece, head: head)
    patch.setattr("logstore.rescue.partition.mended_head", lambda piece, head: head)


@mutant(rescue=0)
def the_verdict_is_always_whole(patch: MonkeyPatch) -> None:
    patch.setattr(PartitionRescue, "whole", property(lambda self: True))
