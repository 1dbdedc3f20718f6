"""Choose between batches for the same offsets. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple


class Candidate(NamedTuple):
    """The batch at which the reader of one piece stands.

    ``fits``: its epoch is the epoch of the committed history there. ``leader``: the rank of its
    replica, 0 for the one closest to that history. ``doubtful``: its header was mended, or nothing
    confirms its offsets.
    """

    reader: int
    replica: int
    leader: int
    first: int
    last: int
    size: int
    crc: int
    records: int
    fits: bool
    doubtful: bool

    @property
    def content(self) -> tuple[int, int, int]:
        return self.first, self.size, self.crc


class Loss(Enum):
    """Why a batch is not taken."""

    COPY = "the same batch"
    COMPACTED = "compacted further"
    OUTVOTED = "more replicas have other content at the same offsets"
    CONTRADICTS = "other content at the same offsets"


def choose(candidates: Sequence[Candidate]) -> Candidate:
    """The batch to take among those that overlap.

    In this order: a batch of the committed epoch; the batch that most replicas have; a batch that
    was not mended; of two copies the less compacted one; the batch of the replica closest to the
    committed history.
    """
    replicas = {
        c.content: {o.replica for o in candidates if o.content == c.content} for c in candidates
    }

    def rank(one: Candidate) -> tuple[bool, int, bool, int, int, int]:
        support = max(
            len(replicas[other.content]) for other in candidates if not_less_compacted(one, other)
        )
        return one.fits, support, not one.doubtful, one.records, -one.leader, -one.reader

    return max(candidates, key=rank)


def not_less_compacted(one: Candidate, other: Candidate) -> bool:
    """Whether ``other`` is the same batch as ``one``, or a compacted copy of it.

    Then a replica that has ``other`` supports ``one`` as well.
    """
    same_range = (one.first, one.last) == (other.first, other.last)
    return one.content == other.content or (same_range and one.records > other.records)


def loss_of(candidate: Candidate, taken: Candidate, candidates: Sequence[Candidate]) -> Loss:
    if candidate.content == taken.content:
        return Loss.COPY
    if not_less_compacted(taken, candidate):
        return Loss.COMPACTED
    support = [
        len({c.replica for c in candidates if c.content == one.content})
        for one in (candidate, taken)
    ]
    return Loss.OUTVOTED if support[0] < support[1] or not candidate.fits else Loss.CONTRADICTS
