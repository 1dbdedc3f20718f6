"""The columns: how a follower finds out where to cut its log, from the first releases to now."""

from __future__ import annotations

from typing import NamedTuple


class RuleColumn(NamedTuple):
    """
    Attributes:
        rule: a key of ``replication.decisions.truncation.RULES``.
        answers_without_epoch: the leader answers where an epoch ends, but not which epoch it found.
    """

    name: str
    since: str
    rule: str
    answers_without_epoch: bool = False


COLUMNS = (
    RuleColumn("hw", "before 0.11", "hw"),
    RuleColumn("kip-101", "0.11", "epoch", answers_without_epoch=True),
    RuleColumn("epoch", "2.0: KIP-101 and 279", "epoch"),
    RuleColumn("fetch", "default: KIP-320 and 595", "fetch"),
)
DEFAULT = COLUMNS[-1]
