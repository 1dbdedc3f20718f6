"""The searches that see mutants, with the plans and tests in which they do.

Everything here is found again each time, since a place is one run that repeats. When a change of
the code moves it, ``python -m tests.mutants SEARCH MUTANT --find`` looks for another one.
"""

from __future__ import annotations

import inspect
import json
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from logstore.backup import Backup, RestoreError
from logstore.testing import FaultyStorage
from replication.common.messages import FetchResponse
from replication.decisions.truncation import TruncationRule
from replication.mirror.decisions import LocalPartition
from replication.simulator.exhaustive import Bounds, Model, Property
from replication.simulator.exhaustive import search as search_all
from replication.simulator.search.plan_generator import draw_plan
from replication.simulator.search.run import run_plan
from replication.simulator.search.shrink import number_of, shrink
from replication.simulator.world.plan import SchedulePlan, SearchOptions
from tests.conformance import test_partition
from tests.crash import test_enumerated_damage as damage
from tests.crash import test_enumerated_indexes as indexes
from tests.crash import test_enumerated_replacements as replacements
from tests.fuzz.children import LIMITS, preload
from tests.fuzz.mutations import Mutation
from tests.fuzz.mutators import batch_places
from tests.fuzz.originals import original
from tests.fuzz.search import run_case, scratch_directory
from tests.histories.history import run_one
from tests.interleavings.exhaustive import PAIRS, explore
from tests.interleavings.program import draw
from tests.interleavings.run import execute_drawn
from tests.interrupts.searching import ALL as ALL_INTERRUPTED
from tests.interrupts.searching import search as interrupt
from tests.mutants import (  # noqa: F401
    MUTANTS,
    MonkeyPatch,
    backups,
    cleaner,
    commands,
    coordinators,
    identity,
    interrupts,
    log,
    manager,
    mirror,
    mutated,
    processes,
    promotion,
    replication,
    rescue,
    threads,
    tiers,
    transactions,
    unmutated,
    verify,
)
from tests.mutants.scenarios import SCENARIOS
from tests.support import stores
from tests.support.backups import GrowingSource, RiggedStore, flip
from tests.support.scripted_source import KAFKA_2_1
from tests.support.until import patience
from tests.unit.backup import test_backup, test_check, test_restore
from tests.unit.directory import test_tiered
from tests.unit.log import test_chdir, test_forks
from tests.unit.mirror import (
    test_endings,
    test_mirror_check,
    test_mirror_decisions,
    test_mirror_follower,
    test_promote,
    test_sources_that_change,
)
from tests.unit.replication import (
    test_controller_brokers,
    test_controller_states,
    test_controller_topics,
    test_membership,
    test_role_strays,
    test_unproven_replicas,
)
from tests.unit.replication import test_controller_poison as poison
from tests.unit.replication import test_partition_roles as roles
from tests.unit.rescue import test_rescue_faults, test_rescue_rules
from tests.unit.tiers import test_view

Test = Callable[[], None]
BLUNDERS = (AttributeError, NameError, TypeError)  # of a mutant that does not fit the product


@dataclass(frozen=True)
class Search:
    """
    Attributes:
        sees: what is wrong in a run from a place; empty when nothing is.
        found: mutants, and a place where each is seen.
        variants: the same place with small changes, which may be tried too.
        places: where to look for new ones.
        tested: tests run the places without mutants anyway.
    """

    sees: Callable[[Any], str]
    found: list[tuple[str, Any]]
    variants: Callable[[Any], Iterable[Any]] = lambda place: [place]
    places: Callable[[str], Iterable[Any]] = lambda name: count()
    tested: bool = False

    def see(self, name: str, place: Any) -> str:
        """What is wrong with the mutant, and is not without it; empty when it is not seen."""
        for variant in self.variants(place):
            with mutated(name):
                seen = self.sees(variant)
            if seen:
                with unmutated(name):
                    wrong = "" if self.tested else self.sees(variant)
                assert not wrong, f"without {name}, too: {wrong}"
                return seen
        return ""


def told(error: BaseException | None) -> str:
    assert not isinstance(error, BLUNDERS), repr(error)
    return "" if error is None else f"{type(error).__name__}: {error}"


# -- random histories, crash points, interleavings ------------------------------------------------


def seen(search: str) -> list[tuple[str, Any]]:
    return [(name, each.seen[search]) for name, each in MUTANTS.items() if search in each.seen]


def history(name: str) -> Search:
    return Search(lambda seed: told(run_one(name, seed).error), seen(name))


def _in_threads(place: int | str) -> str:
    """A place is a seed, or a pair of actors whose schedules are run one after the other."""
    if isinstance(place, str):
        outcome = explore(PAIRS[place], 1, limit=2_000)
        return f"{outcome.found} in schedule {outcome.schedules}" if outcome.found else ""
    return str(execute_drawn(*draw(place)).found or "")


def _interrupted(name: str) -> str:
    """A place is the name of a call."""
    call = next(call for call in ALL_INTERRUPTED if call.name == name)
    return next((finding.error for finding in interrupt(call, 40)), "")


# -- whole clusters: plans ------------------------------------------------------------------------

HERE = Path(__file__).parent
PLANS = HERE / "plans.jsonl"
REGRESSIONS = HERE.parent / "simulation" / "regressions"
KEPT = [
    ("progress-of-an-earlier-leadership", "progress_of_an_earlier_leadership"),
    (
        "unclean-election-beside-a-leader-that-stops",
        "unclean_election_beside_a_leader_that_stops",
    ),
    ("unsynced-records-counted-after-a-start", "recovered_records_count_before_their_sync"),
    ("what-the-leader-deleted-is-kept", "producer_known_from_what_the_leader_deleted"),
    ("what-the-leader-deleted-is-kept", "transaction_known_from_what_the_leader_deleted"),
]
"""Plans that broke the product before it had the guard."""
DELAYS = 20
OPTIONS = {
    **dict.fromkeys(
        (
            "unclean-election-before-isr",
            "unclean-election-beside-a-leader-that-stops",
            "unclean-election-of-whoever-is-back-first",
        ),
        SearchOptions(faults=("all", "unclean")),
    ),
    "a-broker-waits-for-the-roles-of-others": SearchOptions(faults=("crash", "roles")),
    "tombstones-dropped-at-once": SearchOptions(faults=("all", "compaction")),
    **dict.fromkeys(
        (
            "a-missing-log-is-trusted",
            "an-older-directory-is-trusted",
            "an-older-log-is-trusted",
            "any-tree-is-joined",
        ),
        SearchOptions(faults=("identity",)),
    ),
    **dict.fromkeys(
        (
            "a-member-that-restarts-gets-the-share-of-another",
            "a-new-leader-does-not-read-the-log",
            "commits-are-answered-before-they-are-committed",
        ),
        SearchOptions(groups=True, events=80),
    ),
}
TRANSACTIONS = SearchOptions(transactions=True, events=80)


@cache
def plans() -> dict[str, SchedulePlan]:
    """By the name of the mutant that each finds."""
    lines = map(json.loads, PLANS.read_text().splitlines())
    return {line["mutant"]: SchedulePlan.from_json(json.dumps(line["plan"])) for line in lines}


def save(name: str, plan: SchedulePlan) -> None:
    found = {**plans(), name: plan}
    lines = ({"mutant": n, "plan": json.loads(p.to_json())} for n, p in sorted(found.items()))
    PLANS.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    plans.cache_clear()


def _in_cluster(plan: SchedulePlan) -> str:
    """Only what the plan broke before counts."""
    violations = run_plan(plan).violations
    assert not any(f"{each.__name__}(" in text for text in violations for each in BLUNDERS)
    same = violations and (number_of(violations[0]) == number_of(plan.violation))
    return violations[0] if same else ""


def _with_other_delays(plan: SchedulePlan) -> Iterator[SchedulePlan]:
    """A change of the code may shift events."""
    return (replace(plan, seed=plan.seed + more) for more in range(DELAYS))


def _drawn(name: str) -> Iterator[SchedulePlan]:
    """Shrunk plans of seeds that see a mutant; it is saved."""
    is_of_transactions = MUTANTS[name].plant.__module__ == transactions.__name__
    options = OPTIONS.get(name, TRANSACTIONS if is_of_transactions else SearchOptions())
    for seed in count(1):
        with mutated(name):
            plan = draw_plan(seed, options)
            if not run_plan(plan).failed:
                continue
            plan, _ = shrink(plan)
        save(name, plan)
        yield plan


# -- tests that see a mutant ----------------------------------------------------------------------


def _in_test(test: Test) -> str:
    try:
        test()
    except (AssertionError, LookupError, pytest.fail.Exception) as error:
        return told(error).split("\n")[0]
    return ""


def _a_fetch_whose_role_changes(replica: int, way: str) -> None:
    test = inspect.unwrap(roles.test_a_fetch_answers_for_the_epoch_that_it_checked)
    with MonkeyPatch.context() as patcher:
        test(patcher, replica, "overwritten_and_led_again", roles.before, way)


_told_of_what_is_cut = damage.test_valid_bytes_that_are_cut_are_kept_counted_and_told_of
_crash_in_recovery = partial(
    damage.test_no_crash_loses_what_recovery_sets_aside, "behind a torn batch"
)
_crash_in_a_split = partial(replacements.test_no_crash_loses_anything_of_a_split, "alone")
_rolled = partial(
    replacements.test_a_roll_whose_predecessor_lost_its_tail_is_set_aside,
    (24,),
    replacements.SIZE,
)
_rebuilt = indexes.test_s34_no_crash_takes_a_transaction_index_that_was_rebuilt
RECOVERY: list[tuple[str, Test]] = [
    ("falling-epochs-end-the-scan", partial(damage.test_batches_of_a_lower_epoch_are_kept, False)),
    (
        "the-first-batch-cut-is-not-looked-at",
        partial(_told_of_what_is_cut, "the first batch cut is whole"),
    ),
    ("the-kept-copy-is-not-synced", _crash_in_recovery),
    ("the-name-of-the-kept-copy-is-not-synced", _crash_in_recovery),
    ("nobody-is-told", partial(_told_of_what_is_cut, "the first batch cut is whole")),
    (
        "an-emptied-log-is-deleted",
        partial(damage.test_a_log_that_holds_batches_is_never_emptied_in_silence, False),
    ),
    ("kept-files-are-replaced", damage.test_what_was_kept_before_is_not_replaced),
    (
        "a-split-forgets-the-last-batch",
        partial(replacements.test_a_segment_that_spans_too_many_offsets_is_split, False),
    ),
    ("pieces-are-named-before-all-are-written", _crash_in_a_split),
    ("flush-without-sync", _crash_in_a_split),
    (
        "every-jump-is-believed",
        replacements.test_a_jump_that_what_follows_contradicts_is_damage,
    ),
    ("a-roll-is-settled-wherever-it-begins", _rolled),
    (
        "a-roll-is-settled-before-what-lies-before-it",
        replacements.test_a_roll_is_settled_only_once_what_lies_before_it_is_on_the_disk,
    ),
    ("rolls-are-compactions", _rolled),
    (
        "what-a-doubtful-stop-loses-is-not-kept",
        damage.test_what_a_doubtful_clean_stop_loses_is_kept_though_it_is_no_batch,
    ),
    (
        "one-offset-may-be-there-twice",
        damage.test_s53_one_record_that_reaches_into_the_next_segment,
    ),
    ("rebuilt-transactions-not-synced", partial(_rebuilt, "both", "clean")),
    ("rebuilt-transactions-not-synced", partial(_rebuilt, "both", "scan_all")),
    ("rebuilt-transactions-not-announced", partial(_rebuilt, ".txnindex", "clean")),
    (
        "the-first-candidate-is-taken",
        test_rescue_faults.test_what_most_have_wins_over_what_comes_first,
    ),
    ("old-formats-get-an-epoch", test_rescue_rules.test_a_batch_of_an_old_format_gets_no_epoch),
    (
        "no-word-of-what-is-lost",
        partial(damage.test_a_log_shorter_than_its_recovery_point_says_what_is_lost, False),
    ),
]
# One thread carries a schedule out, so no role changes inside a read; and no controller takes over
# twice in one epoch, unless by an error that nobody foresaw.
ROLES: list[tuple[str, Test]] = [
    ("read-not-confirmed", partial(_a_fetch_whose_role_changes, 2, "read")),
    ("read-not-confirmed", partial(_a_fetch_whose_role_changes, -1, "read")),
    ("read-not-confirmed", partial(_a_fetch_whose_role_changes, -1, "read_recent")),
    (
        "numbers-begin-with-a-channel",
        test_controller_states.test_a_second_take_over_under_one_epoch_is_heard,
    ),
    (
        "isr-change-of-any-topic-id",
        test_controller_topics.TestDeletion().test_a_change_of_the_isr_is_of_the_topic_whose_id_it_names,
    ),
]
# What one reordered answer shows, of thousands that a schedule has; and trees that were damaged.
CONTROLLERS: list[tuple[str, Test]] = [
    (
        "verdict-of-an-overtaken-proposal",
        test_partition.TestProposals().test_a_late_verdict_changes_nothing_of_newer_metadata,
    ),
    (
        "epoch-remembered-before-the-isr-is-left",
        test_controller_brokers.test_a_controller_that_dies_in_between_leaves_an_unclean_stop_to_the_next,
    ),
    (
        "stop-of-any-topic-of-the-name",
        test_controller_topics.TestDeletion().test_a_late_stop_of_an_earlier_topic_confirms_nothing,
    ),
    (
        "changes-during-a-look-are-not-looked-at",
        test_controller_brokers.test_a_notification_that_comes_while_others_are_read_is_read_too,
    ),
    (
        "no-look-for-the-controller-after-a-reconnect",
        test_membership.test_back_it_looks_before_its_watches_are_back,
    ),
    (
        "a-lasting-conflict-is-tried-for-ever",
        poison.test_a_state_that_nobody_may_write_concerns_one_partition,
    ),
    (
        "a-removed-state-is-made-up",
        poison.test_a_state_that_was_removed_is_not_made_up,
    ),
    (
        "unclean-restarts-are-forgotten-meanwhile",
        partial(poison.test_who_came_back_uncleanly_meanwhile_does_not_lead, poison.TOPIC, False),
    ),
]


def _in_folder(test: Callable[..., None]) -> Test:
    def run() -> None:
        with TemporaryDirectory() as folder, MonkeyPatch.context() as patcher:
            given = {"tmp_path": Path(folder), "monkeypatch": patcher}
            wanted = inspect.signature(test).parameters
            test(**{name: given[name] for name in wanted if name in given})

    return run


PROCESSES: list[tuple[str, Test]] = [
    ("a-fork-is-not-noticed", _in_folder(test_forks.test_a_child_that_unwinds_changes_nothing)),
    ("a-fork-is-not-noticed", _in_folder(test_forks.test_a_fork_in_a_thread)),
    (
        "relative-paths-follow-the-process",
        _in_folder(test_chdir.test_a_log_of_the_same_name_elsewhere_is_left_alone),
    ),
]


_strays = test_role_strays.TestStrays()
OF_IDENTITY: list[tuple[str, Test]] = [
    (
        "a-stop-forgets-what-was-unproven",
        test_unproven_replicas.test_a_broker_names_what_is_missing_until_a_controller_talks_to_it,
    ),
    ("all-logs-go-at-once", partial(_strays.test_never_all_logs_at_once, "elsewhere")),
    ("all-logs-go-at-once", partial(_strays.test_never_all_logs_at_once, "orders")),
    ("logs-are-set-aside-on-suspicion", _strays.test_what_the_tree_does_not_know_stays),
    ("strays-never-come-back", _strays.test_it_comes_back_with_its_topic),
    (
        "what-is-lost-may-lead",
        test_unproven_replicas.test_directories_of_another_time_prove_nothing,
    ),
]
"""In the simulator another replica has the records, and a controller soon talks to a broker."""


# -- the exhaustive check, and commands on damaged directories ------------------------------------

Breaks = tuple[Property, int, TruncationRule, Bounds]


def _in_the_model(place: Breaks) -> str:
    """The property, and after how many steps exactly."""
    breaks, depth, rule, bounds = place
    outcome = search_all(Model(bounds, rule), stop_at=[breaks])
    found = {each.violated: each.depth for each in outcome.violations}
    assert found.get(breaks, depth) == depth, found
    return f"{breaks.value} after {depth} steps" if breaks in found else ""


UNCLEAN = 5


@cache
def _broken_length() -> Mutation:
    """A batch in the middle of the last segment of a crash image claims to be too long."""
    preload()
    tree = original(UNCLEAN).tree
    path = max(path for path in tree if path.endswith(".log") and len(tree[path].data) > 800)
    at, size = batch_places(tree[path].data)[1]
    return Mutation("batch.length", "splice", path, at + 8, 4, struct.pack(">i", size + 5))


def _by_commands(expected: str) -> str:
    """The signature of a failure that begins like this."""
    damaged = _broken_length()
    with MonkeyPatch.context() as patch, scratch_directory() as scratch:
        patch.setattr(original(UNCLEAN), "baseline", frozenset(["none of the findings"]))
        patch.setattr(LIMITS, "seconds", 5.0 if expected.startswith("hang") else patience())
        judged = run_case(1, UNCLEAN, [damaged], scratch, quick=True)
    signatures = [failure.signature for failure in judged.failures]
    return next((each for each in signatures if each.startswith(expected)), "")


def _in_a_directory(test: Callable[[Path], None]) -> Test:
    def run() -> None:
        with TemporaryDirectory() as directory:
            test(Path(directory))

    return run


_cuts, _asking = test_mirror_follower.TestCuts(), test_mirror_follower.TestHowItAsks()
_answers = test_mirror_follower.TestWhatIsNotAppended()
OF_MIRRORS: list[tuple[str, Test]] = [
    (
        "a-former-id-comes-back",
        test_mirror_decisions.test_a_broker_behind_the_others_does_not_bring_an_id_back,
    ),
    ("a-high-watermark-cuts", _cuts.test_an_end_below_ours_cuts_nothing),
    (
        "a-high-watermark-may-fall",
        test_mirror_follower.TestWatermarks().test_the_high_watermark_does_not_fall,
    ),
    (
        "an-earlier-leadership-is-followed",
        test_mirror_decisions.test_an_earlier_leadership_is_not_followed,
    ),
    (
        "another-id-is-the-same-topic",
        test_mirror_decisions.test_logs_of_another_id_are_set_aside,
    ),
    (
        "one-answer-about-epochs-is-enough",
        _asking.test_a_source_that_compares_at_no_fetch_is_asked_until_the_logs_meet,
    ),
    ("quotas-are-not-obeyed", _asking.test_it_waits_while_a_quota_is_exceeded),
    ("records-of-this-leadership-are-cut", _cuts.test_records_of_this_leadership_are_not_cut),
    ("the-first-fetch-comes-before-the-epochs", _asking.test_it_asks_as_a_consumer),
    ("what-is-cut-is-not-kept", _cuts.test_an_unclean_election_cuts_what_stays_beside_the_log),
    ("what-is-not-committed-is-mirrored", _answers.test_what_is_not_committed),
    (
        "impossible-watermarks-are-believed",
        partial(_answers.test_watermarks_that_no_log_has, -1, 0, "high watermark -1"),
    ),
    (
        "a-leader-that-did-not-answer-has-all",
        _in_a_directory(
            partial(
                test_sources_that_change.test_a_tail_that_is_still_to_be_cut_is_not_caught_up,
                KAFKA_2_1,
            )
        ),
    ),
    (
        "empty-answers-are-asked-for-at-once",
        partial(_answers.test_answers_that_are_empty_at_once, FetchResponse(())),
    ),
    ("nothing-committed-is-never-reported", _answers.test_nothing_committed_again_and_again),
    (
        "an-answer-begins-a-log-again",
        _answers.test_a_batch_over_our_end_does_not_begin_the_log_again,
    ),
    ("unknown-epochs-are-followed", _cuts.test_a_source_without_epochs_cuts_nothing),
    (
        "what-expired-unread-is-not-reported",
        _cuts.test_a_log_that_starts_behind_our_end_begins_again_there,
    ),
    (
        "a-start-beside-a-difference-is-believed",
        partial(_cuts.test_logs_that_differ_below_the_start_of_the_source, False),
    ),
    (
        "earlier-epochs-are-those-of-a-broker-behind",
        partial(
            test_mirror_decisions.test_earlier_epochs_without_ids_are_to_be_confirmed,
            LocalPartition(None, 1, 5),
        ),
    ),
    (
        "headers-stand-for-batches",
        _in_a_directory(test_mirror_check.test_checksums_stand_for_nothing),
    ),
    (
        "compaction-excuses-every-difference",
        _in_a_directory(test_mirror_check.test_records_that_the_source_compacted_since),
    ),
]


def _promoting(test: Callable[[FaultyStorage], None]) -> Test:
    return lambda: test(test_promote.new_storage())


OF_PROMOTION: list[tuple[str, Test]] = [
    ("a-part-is-promoted", _promoting(test_promote.test_a_part_does_not_pass_for_the_whole)),
    ("a-promoted-mirror-follows-on", _promoting(test_promote.test_a_mirror_follows_no_more)),
    (
        "commits-elsewhere-are-not-looked-for",
        _promoting(test_promote.test_a_marker_in_one_partition_commits_the_others),
    ),
    (
        "each-transaction-of-an-epoch-is-one",
        test_endings.test_a_coordinator_behind_a_log_does_not_decide_of_a_later_transaction,
    ),
    (
        "decisions-are-not-carried-out",
        _promoting(test_promote.test_a_commit_that_was_prepared_is_completed),
    ),
    (
        "elections-without-a-record-are-forgotten",
        _promoting(test_promote.test_a_promoted_directory_is_a_cluster_of_its_own),
    ),
    (
        "markers-are-not-durable-first",
        _promoting(test_promote.test_what_is_decided_is_durable_before_it_is_told),
    ),
]


def _of_a_store(test: Callable[[Path, Path], None]) -> Test:
    def run() -> None:
        with TemporaryDirectory() as directory:
            source = stores.make_directory(Path(directory) / "data")
            test(source, Path(directory) / "store")

    return run


OF_STORES: list[tuple[str, Test]] = [
    (
        "a-hole-in-a-store-is-passed-over",
        _of_a_store(test_view.test_a_hole_is_refused_with_its_offsets),
    ),
    (
        "segments-of-every-lineage-count",
        _of_a_store(test_view.test_an_unclean_election_leaves_segments_that_are_not_read),
    ),
    (
        "a-cut-trusts-the-epochs",
        _of_a_store(test_view.test_segments_of_two_histories_are_never_joined),
    ),
    (
        "indexes-in-a-store-are-trusted",
        _of_a_store(
            lambda source, path: test_view.test_damage_of_a_backup_is_named(
                source, path, ".indexes", flip
            )
        ),
    ),
]

OF_TIERS: list[tuple[str, Test]] = [
    (name, _in_a_directory(test))
    for name, test in (
        (
            "epochs-of-a-tier-are-not-compared",
            test_tiered.test_other_leader_epochs_below_the_border_are_refused,
        ),
        (
            "batches-at-the-border-are-not-compared",
            test_tiered.test_another_batch_at_the_border_is_refused,
        ),
        (
            "a-tier-ends-where-the-rest-begins",
            test_tiered.test_a_hole_between_tier_and_local_is_refused,
        ),
        (
            "what-reaches-beyond-the-border-is-read-twice",
            test_tiered.test_a_segment_that_reaches_beyond_the_border_counts_up_to_there,
        ),
    )
]


def _backing(test: Callable[[GrowingSource, RiggedStore], None]) -> Test:
    def run(directory: Path) -> None:
        source = GrowingSource(directory / "data")
        source.write(transactions=True)
        test(source, RiggedStore())

    return _in_a_directory(run)


def _beside(test: Callable[[GrowingSource, RiggedStore, Path], None]) -> Test:
    """Of a test that makes more directories."""
    return _backing(lambda source, store: test(source, store, source.path.parent))


def _backed(test: Callable[[RiggedStore, Path], None]) -> Test:
    def run(source: GrowingSource, store: RiggedStore) -> None:
        Backup([source.path], store).run()
        store.calls.clear()
        (source.path.parent / "empty").mkdir()
        try:
            test(store, source.path.parent / "empty")
        except RestoreError as error:  # not the one that the test expects
            pytest.fail(str(error))

    return _backing(run)


OF_BACKUPS: list[tuple[str, Test]] = [
    ("a-commit-replaces-another", _beside(test_backup.test_two_backups_at_once_do_not_mix)),
    (
        "any-source-may-go-into-a-store",
        _beside(test_backup.test_another_cluster_and_another_broker_are_refused),
    ),
    (
        "damage-drops-what-the-store-has",
        _backing(test_backup.test_damage_after_a_backup_costs_nothing_that_was_backed_up),
    ),
    (
        "what-the-source-lacks-is-dropped",
        _beside(test_backup.test_the_last_backup_of_what_the_source_lacks_is_never_dropped),
    ),
    (
        "what-the-source-lost-leaves-the-backup",
        _beside(test_backup.test_a_segment_that_the_source_lost_stays_in_the_backup),
    ),
    (
        "what-the-store-has-is-believed",
        _beside(test_backup.test_what_rots_in_the_store_is_put_again_once_it_is_read),
    ),
    (
        "what-a-backup-takes-over-is-deleted",
        _in_a_directory(test_check.test_what_a_backup_takes_over_meanwhile_is_not_deleted),
    ),
    (
        "a-backup-names-what-is-gone",
        _in_a_directory(
            test_check.test_a_backup_names_nothing_that_was_deleted_before_it_was_there
        ),
    ),
    (
        "what-another-run-took-is-dropped",
        _beside(
            partial(test_backup.test_what_another_run_takes_of_a_dropped_backup_stays, late=True)
        ),
    ),
    (
        "a-stranger-is-taken-for-the-source",
        _beside(test_backup.test_a_stranger_without_a_name_is_not_taken_for_the_source),
    ),
    (
        "any-damage-leaves-the-front",
        _backed(test_restore.test_lossy_keeps_nothing_if_no_checksum_shows_the_damage),
    ),
    (
        "nothing-is-read-back",
        _backing(test_backup.test_a_store_that_says_done_and_loses_is_noticed_before_the_commit),
    ),
    (
        "objects-are-restored-as-they-come",
        _backed(test_restore.test_bit_rot_is_named_before_anything_is_there),
    ),
]

SEARCHES = {
    "cuts": history("cuts"),
    "lives": history("lives"),
    "cleaner": history("cleaner"),
    "groups": history("groups"),
    "rescue": history("rescue"),
    "transactions": history("transactions"),
    "verify": history("verify"),
    "crash": history("crash"),
    "recovery": Search(_in_test, RECOVERY, tested=True),
    "backups": Search(_in_test, OF_BACKUPS, tested=True),
    "interleavings": Search(_in_threads, seen("interleavings")),
    "interrupts": Search(_interrupted, seen("interrupts"), tested=True),
    "commands": Search(_by_commands, seen("commands")),
    "exhaustive": Search(_in_the_model, seen("exhaustive"), tested=True),
    "simulator": Search(
        _in_cluster,
        [
            *plans().items(),
            *(
                (name, SchedulePlan.from_json((REGRESSIONS / f"{file}.json").read_text()))
                for name, file in KEPT
            ),
        ],
        _with_other_delays,
        _drawn,
    ),
    "roles": Search(_in_test, ROLES),
    "processes": Search(_in_test, PROCESSES, tested=True),
    "controllers": Search(_in_test, CONTROLLERS, tested=True),
    "identity": Search(_in_test, OF_IDENTITY),
    "mirror": Search(_in_test, OF_MIRRORS, tested=True),
    "promotion": Search(_in_test, OF_PROMOTION, tested=True),
    "tiers": Search(_in_test, OF_TIERS, tested=True),
    "stores": Search(_in_test, OF_STORES, tested=True),
    "scenarios": Search(
        _in_test,
        [(name, test) for _, names, test in SCENARIOS for name in names.split()],
        tested=True,
    ),
}
