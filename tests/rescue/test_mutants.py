"""The search can see: a rescue with any of these rules broken is caught within a few seeds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

import pytest

from logstore.common.errors import RescueError
from logstore.rescue import merging, partition, placing, replica, survey
from logstore.rescue.choosing import Candidate
from logstore.rescue.lineage import Lineage
from logstore.rescue.merging import Merge
from logstore.rescue.placing import FileFrame
from logstore.rescue.ranges import RescuedRange
from logstore.rescue.report import PartitionRescue
from tests.rescue.search import search

Patch = Callable[[pytest.MonkeyPatch], None]
SEEDS = 300


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def divergent_tails_are_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lineage, "limit_of", lambda self, piece, mark: piece.next)


def base_offsets_are_believed(patch: pytest.MonkeyPatch) -> None:
    def mutant(pieces: Sequence[RescuedRange], frame: FileFrame) -> Iterator[RescuedRange]:
        return iter(pieces)

    patch.setattr(replica, "place", mutant)


def epochs_are_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        placing,
        "believed_epoch",
        lambda piece, before, after, on_file, vouched: (piece.epoch, True),
    )


def epoch_files_are_not_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replica, "agreeing_entries", lambda entries, runs: ())


def the_first_candidate_is_taken(patch: pytest.MonkeyPatch) -> None:
    def mutant(candidates: Sequence[Candidate]) -> Candidate:
        return candidates[0]

    patch.setattr(merging, "choose", mutant)


def every_gap_is_history(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Merge, "_was_missing", lambda self, until: True)


def the_end_is_what_is_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(partition.PartitionMerge, "_reached", lambda self, surveyed: (0, ""))


def the_beginning_is_what_is_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(partition, "_beginnings", lambda surveyed: [])


def the_search_ends_at_damage(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(survey.BatchSearch, "next", lambda self, position: None)


def nothing_is_mended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(merging, "mended_head", lambda piece, head: head)
    patch.setattr("logstore.rescue.writing.mended_head", lambda piece, head: head)


def the_verdict_is_always_whole(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionRescue, "whole", property(lambda self: True))


MUTANTS: list[Patch] = [
    divergent_tails_are_believed,
    base_offsets_are_believed,
    epochs_are_believed,
    epoch_files_are_not_read,
    the_first_candidate_is_taken,
    every_gap_is_history,
    the_end_is_what_is_left,
    the_beginning_is_what_is_left,
    the_search_ends_at_damage,
    nothing_is_mended,
    the_verdict_is_always_whole,
]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.__name__))
def test_it_is_caught(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert _is_caught(range(SEEDS))


def _is_caught(seeds: range) -> bool:
    """A rescue that refuses its own result is caught as well."""
    for seed in seeds:
        try:
            if next(search(range(seed, seed + 1)), None) is not None:
                return True
        except RescueError:
            return True
    return False
