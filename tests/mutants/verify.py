"""A broken verification."""

from __future__ import annotations

from logstore.verify.partition import partition_check
from logstore.verify.partition.ends import LogDirFacts, Standing
from logstore.verify.segment import producers
from tests.mutants import MonkeyPatch, mutant


@mutant(verify=0)
def all_is_promised(patch: MonkeyPatch) -> None:
    """What a kill leaves of an index is damage, recovery point or not."""

    def everywhere(facts: LogDirFacts, offset: int) -> Standing:
        return Standing.FLUSHED

    patch.setattr(partition_check, "standing_at", everywhere)


@mutant(verify=2)
def a_replay_forgets_nothing(patch: MonkeyPatch) -> None:
    """A log that begins inside its first segment has forgotten what lies before: without that rule
    sound directories are called faulty."""
    init = producers.Replay.__init__

    def without(self: producers.Replay, floor: int = 0, *, known: bool = True) -> None:
        init(self, 0, known=known)

    patch.setattr(producers.Replay, "__init__", without)
    patch.setattr(producers.ProducerFacts, "floor", property(lambda self: 0, lambda *_: None))
