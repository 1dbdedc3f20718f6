"""Broken rules in the exhaustive check.

Seven break StrongIsr, and ``fetch-across-epochs`` breaks WeakIsr alone. Each runs under a
truncation rule in which no other guard hides the fault. For example, if every fetch has the epoch
of the last record, a truncation that another leadership dictated is harmless, because the next
fetch is judged again.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from replication.common.error_codes import ErrorCode
from replication.decisions.isr import may_join
from replication.decisions.truncation import FETCH_RULE, TruncationRule
from replication.simulator.exhaustive import Bounds, ModelDecisions, Property, model
from tests.mutants import MonkeyPatch, mutant

FENCED_RULE = TruncationRule("fenced", asks_leader=True, fences=True, on_fetch=False)
"""KIP-320 as of Kafka 2.1: fenced, and truncation by OffsetsForLeaderEpoch before a first fetch."""

TWO = Bounds(replicas=2, log_size=2, records=2, max_epoch=2)
FLAT = Bounds(replicas=3, log_size=1, records=1, max_epoch=2)


def _decide(patch: MonkeyPatch, **rules: Any) -> None:
    patch.setattr(model, "ModelDecisions", partial(ModelDecisions, **rules))


def _any(*args: object) -> ErrorCode:
    return ErrorCode.NONE


@mutant(exhaustive=(Property.STRONG_ISR, 7, FETCH_RULE, TWO))
def alter_without_cas(patch: MonkeyPatch) -> None:
    """The controller takes an ISR from any leader of any epoch."""
    _decide(patch, check_alter=_any)


@mutant(exhaustive=(Property.STRONG_ISR, 7, FETCH_RULE, TWO))
def join_below_hw(patch: MonkeyPatch) -> None:
    """A replica joins the ISR before it reached the high watermark."""
    _decide(patch, may_join=lambda end, hw, start, **flags: may_join(end, 0, start, **flags))


@mutant(exhaustive=(Property.STRONG_ISR, 8, FETCH_RULE, TWO))
def no_truncation_in_the_model(patch: MonkeyPatch) -> None:
    """A follower never cuts what differs from its leader's log."""
    _decide(patch, diverging_epoch=lambda *args: None)


@mutant(exhaustive=(Property.STRONG_ISR, 11, FETCH_RULE, FLAT))
def join_below_epoch_start(patch: MonkeyPatch) -> None:
    """A replica joins the ISR before it reached the start of the leader's epoch."""
    _decide(patch, may_join=lambda end, hw, start, **flags: may_join(end, hw, 0, **flags))


@mutant(exhaustive=(Property.STRONG_ISR, 12, FETCH_RULE, FLAT))
def commit_across_epochs(patch: MonkeyPatch) -> None:
    """The high watermark counts fetches of another leader epoch."""
    _decide(patch, epoch_to_commit=_any)


@mutant(exhaustive=(Property.STRONG_ISR, 11, FENCED_RULE, TWO))
def truncate_across_epochs(patch: MonkeyPatch) -> None:
    """A leader of another epoch tells where to cut."""
    _decide(patch, epoch_to_truncate=_any)


@mutant(exhaustive=(Property.STRONG_ISR, 14, FETCH_RULE, FLAT))
def join_across_epochs(patch: MonkeyPatch) -> None:
    """A replica of another epoch joins the ISR."""
    _decide(patch, epoch_to_join=_any)


@mutant(exhaustive=(Property.WEAK_ISR, 10, FETCH_RULE, FLAT))
def fetch_across_epochs(patch: MonkeyPatch) -> None:
    """Records are served to a follower of another epoch."""
    _decide(patch, epoch_to_read=_any)
