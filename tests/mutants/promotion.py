"""Broken promotions: a part that passes for the whole, ends that nobody decided."""

from __future__ import annotations

from typing import Any

from logstore.log import PartitionLog
from replication.mirror import ending, endings, promotion
from replication.mirror.endings import DecidedEnd, OpenTransaction
from replication.mirror.identity import MirrorFile
from tests.mutants import MonkeyPatch, mutant


@mutant()
def a_part_is_promoted(patch: MonkeyPatch) -> None:
    patch.setattr(promotion, "FINDINGS", frozenset())


@mutant()
def a_promoted_mirror_follows_on(patch: MonkeyPatch) -> None:
    patch.setattr(MirrorFile, "write", lambda self, identity: None)


@mutant()
def commits_elsewhere_are_not_looked_for(patch: MonkeyPatch) -> None:
    patch.setattr(ending, "_markers_of", lambda producer_ids, logs: {})


@mutant()
def each_transaction_of_an_epoch_is_one(patch: MonkeyPatch) -> None:
    """Whether the log has the marker already is not asked."""

    def mutant(decision: DecidedEnd, open_: OpenTransaction) -> bool:
        return decision.producer_epoch - open_.producer_epoch in (0, 1)

    patch.setattr(endings, "_is_about", mutant)


@mutant()
def decisions_are_not_carried_out(patch: MonkeyPatch) -> None:
    patch.setattr(endings, "_is_about", lambda decision, open_: False)


@mutant()
def elections_without_a_record_are_forgotten(patch: MonkeyPatch) -> None:
    patch.setattr(promotion, "UNSEEN_ELECTIONS", 1)


@mutant()
def markers_are_not_durable_first(patch: MonkeyPatch) -> None:
    """A machine that ends before the metadata has its name loses what is in its memory."""

    def mutant(self: PartitionLog, offset: Any = None) -> None:
        """Nothing."""

    patch.setattr(PartitionLog, "flush", mutant)
