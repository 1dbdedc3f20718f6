"""Deliberate faults, each with one guard removed, which the search must find.

Seven break StrongIsr, and ``fetch-across-epochs`` breaks WeakIsr alone. Each runs under a
truncation rule in which no other guard hides the fault. For example, if every fetch has the epoch
of the last record, a truncation that another leadership dictated is harmless, because the next
fetch is judged again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from replication.common.error_codes import ErrorCode
from replication.decisions.isr import may_join
from replication.decisions.truncation import FETCH_RULE, TruncationRule
from replication.simulator.exhaustive.decisions import ModelDecisions
from replication.simulator.exhaustive.properties import Property

# KIP-320 as of Kafka 2.1: fenced, and truncation by OffsetsForLeaderEpoch before the first fetch.
FENCED_RULE = TruncationRule("fenced", asks_leader=True, fences=True, on_fetch=False)


class Mutant(NamedTuple):
    name: str
    description: str
    decide: ModelDecisions
    breaks: Property = Property.STRONG_ISR
    rule: TruncationRule = FETCH_RULE


def _any_epoch(requested: int, current: int) -> ErrorCode:
    return ErrorCode.NONE


def _any_alter(*args: object) -> ErrorCode:
    return ErrorCode.NONE


def _never_parted(*args: object) -> None:
    return None


def _without_high_watermark(end: int, high_watermark: int, start: int, **flags: bool) -> bool:
    return may_join(end, 0, start, **flags)


def _without_epoch_start(end: int, high_watermark: int, start: int, **flags: bool) -> bool:
    return may_join(end, high_watermark, 0, **flags)


_OURS = ModelDecisions()
_ALL = (
    Mutant(
        "alter-without-cas",
        "the controller takes an ISR from any leader of any epoch",
        replace(_OURS, check_alter=_any_alter),
    ),
    Mutant(
        "join-below-hw",
        "a replica joins the ISR before it reached the high watermark",
        replace(_OURS, may_join=_without_high_watermark),
    ),
    Mutant(
        "no-truncation",
        "a follower never cuts what differs from its leader's log",
        replace(_OURS, diverging_epoch=_never_parted),
    ),
    Mutant(
        "join-below-epoch-start",
        "a replica joins the ISR before it reached the start of the leader's epoch",
        replace(_OURS, may_join=_without_epoch_start),
    ),
    Mutant(
        "commit-across-epochs",
        "the high watermark counts fetches of another leader epoch",
        replace(_OURS, epoch_to_commit=_any_epoch),
    ),
    Mutant(
        "truncate-across-epochs",
        "a leader of another epoch tells where to cut",
        replace(_OURS, epoch_to_truncate=_any_epoch),
        rule=FENCED_RULE,
    ),
    Mutant(
        "join-across-epochs",
        "a replica of another epoch joins the ISR",
        replace(_OURS, epoch_to_join=_any_epoch),
    ),
    Mutant(
        "fetch-across-epochs",
        "records are served to a follower of another epoch",
        replace(_OURS, epoch_to_read=_any_epoch),
        breaks=Property.WEAK_ISR,
    ),
)
MUTANTS = {mutant.name: mutant for mutant in _ALL}
