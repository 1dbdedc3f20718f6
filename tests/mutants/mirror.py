"""Broken mirrors: what they take for the source's, and what they destroy."""

from __future__ import annotations

from typing import Any

from logstore.common.config import MAX_LONG
from logstore.directory.windows import BatchTable
from logstore.kernels import HEADER_SIZE
from replication.decisions.truncation import TruncationRule
from replication.fetcher.fetch_failures import FetchFailures
from replication.fetcher.fetcher import Fetcher
from replication.fetcher.fetcher_state import FetchState
from replication.mirror import decisions, follower
from replication.mirror.checking.partition_check import MirroredPartitionCheck
from replication.mirror.checking.source_batches import SourceChunk
from replication.mirror.decisions import LocalPartition
from replication.mirror.follower import MirrorFollower
from replication.partition import FollowerSide
from tests.mutants import MonkeyPatch, mutant


@mutant()
def what_is_cut_is_not_kept(patch: MonkeyPatch) -> None:
    patch.setattr(MirrorFollower, "_keep_cut", lambda self, log, offset, end, epoch: None)


@mutant()
def records_of_this_leadership_are_cut(patch: MonkeyPatch) -> None:
    """A source that contradicts itself is believed."""
    patch.setattr(MirrorFollower, "truncate_to", FollowerSide.truncate_to)


@mutant()
def a_high_watermark_cuts(patch: MonkeyPatch) -> None:
    """As a follower's, whose leader tells its log end."""
    patch.setattr(MirrorFollower, "take_end", FollowerSide.take_end)


@mutant()
def a_high_watermark_may_fall(patch: MonkeyPatch) -> None:
    patch.setattr(MirrorFollower, "follow", FollowerSide.follow)


@mutant()
def the_first_fetch_comes_before_the_epochs(patch: MonkeyPatch) -> None:
    patch.setattr(TruncationRule, "begins_truncating", lambda self, latest_epoch: False)


@mutant()
def one_answer_about_epochs_is_enough(patch: MonkeyPatch) -> None:
    """As if each source compared at a fetch as well."""
    truncate = FetchState.truncate

    def mutant(self: FetchState, cut: Any, rule: TruncationRule) -> bool:
        return truncate(self, cut._replace(finished=True), rule)

    patch.setattr(FetchState, "truncate", mutant)


@mutant()
def quotas_are_not_obeyed(patch: MonkeyPatch) -> None:
    patch.setattr(FetchFailures, "hold", lambda self, throttle_ms: None)


@mutant()
def another_id_is_the_same_topic(patch: MonkeyPatch) -> None:
    patch.setattr(decisions, "_replaced", lambda name, topic, known: [])


@mutant()
def a_former_id_comes_back(patch: MonkeyPatch) -> None:
    """One broker that names it is enough."""
    decide = decisions.decide

    def mutant(view: Any, local: Any, is_chosen: Any, confirmed: Any = ()) -> Any:
        return decide(view, local, is_chosen, {each.topic_id for each in view.topics.values()})

    patch.setattr(decisions, "decide", mutant)


@mutant()
def an_earlier_leadership_is_followed(patch: MonkeyPatch) -> None:
    def mutant(own: LocalPartition, leader_epoch: int) -> bool:
        return leader_epoch != own.leader_epoch

    patch.setattr(decisions, "_is_new", mutant)


@mutant()
def headers_stand_for_batches(patch: MonkeyPatch) -> None:
    """A check that believes the checksums in them."""

    def heads(data: bytes) -> list[bytes]:
        table = BatchTable(data)
        return [data[at : at + HEADER_SIZE] for at in table.cells("position")]

    def mutant(self: MirroredPartitionCheck, chunk: SourceChunk) -> bool:
        theirs = bytes(chunk.data)
        return heads(self._local.read(len(theirs))) == heads(theirs)

    patch.setattr(MirroredPartitionCheck, "_equals", mutant)


@mutant()
def compaction_excuses_every_difference(patch: MonkeyPatch) -> None:
    patch.setattr(MirroredPartitionCheck, "_is_compacted_since", lambda self, at, chunk: True)


@mutant()
def what_is_not_committed_is_mirrored(patch: MonkeyPatch) -> None:
    patch.setattr(follower, "committed", lambda records, high_watermark: records)


@mutant()
def impossible_watermarks_are_believed(patch: MonkeyPatch) -> None:
    patch.setattr(follower, "check_watermarks", lambda high_watermark, log_start: None)


@mutant()
def nothing_committed_is_never_reported(patch: MonkeyPatch) -> None:
    patch.setattr(MirrorFollower, "_check_useless", lambda self, size, believed, hw: None)


@mutant()
def an_answer_begins_a_log_again(patch: MonkeyPatch) -> None:
    """As a follower does, whose leader's log may start inside of a batch."""

    def mutant(
        self: MirrorFollower, records: Any, epoch: int, log_start: int = -1, hw: int = MAX_LONG
    ) -> Any:
        return FollowerSide.append(self, records, epoch, log_start)

    patch.setattr(MirrorFollower, "append", mutant)


@mutant()
def unknown_epochs_are_followed(patch: MonkeyPatch) -> None:
    patch.setattr(MirrorFollower, "epoch_not_known", FollowerSide.epoch_not_known)


@mutant()
def what_expired_unread_is_not_reported(patch: MonkeyPatch) -> None:
    patch.setattr(MirrorFollower, "take_start", FollowerSide.take_start)


@mutant()
def a_start_beside_a_difference_is_believed(patch: MonkeyPatch) -> None:
    patch.setattr(MirrorFollower, "begin_at_start", FollowerSide.begin_at_start)


@mutant()
def earlier_epochs_are_those_of_a_broker_behind(patch: MonkeyPatch) -> None:
    """A topic that was made anew is never known where topics have no ids."""
    patch.setattr(decisions, "_is_older", lambda own, leader_epoch: False)


@mutant()
def a_leader_that_did_not_answer_has_all(patch: MonkeyPatch) -> None:
    """A tail that is still to be cut counts as caught up."""
    met = property(lambda self: self._replica.leader_epoch, lambda self, epoch: None)
    patch.setattr(MirrorFollower, "met_epoch", met, raising=False)


@mutant()
def empty_answers_are_asked_for_at_once(patch: MonkeyPatch) -> None:
    patch.setattr(Fetcher, "_pace", lambda self: None)
