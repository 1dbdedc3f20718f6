"""The guard that each scenario is there for: a scenario counts only if it fails without."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from replication.decisions.truncation import EPOCH_RULE, FETCH_RULE
from tests.conformance import test_fetcher, test_partition
from tests.scenarios import test_controllers as controllers
from tests.scenarios import test_elections as elections
from tests.scenarios import test_isr as isr
from tests.scenarios import test_power_loss as power_loss
from tests.scenarios import test_producers as producers
from tests.scenarios import test_truncation as truncation

fetcher = test_fetcher.TestAbstractFetcherThread()
replica_fetcher = test_fetcher.TestReplicaFetcherThread()
partition = test_partition.TestPartition()
ONE_AND_FOUR = ([(1, 1), (1, 3)], [(2, 2)], [0])

SCENARIOS: list[tuple[str, str, Callable[[], None]]] = [
    (
        "S-1",
        "truncation-to-the-high-watermark",
        truncation.test_s01_high_watermark_truncation_then_immediate_election,
    ),
    (
        "S-2",
        "no-truncation",
        partial(truncation.test_s02_divergence_after_both_replicas_lose_power, "os"),
    ),
    (
        "S-3",
        "answers-without-the-epoch",
        partial(truncation.test_s03_divergence_after_fast_consecutive_failovers, "fetch"),
    ),
    (
        "S-3",
        "answers-without-the-epoch",
        partial(truncation.test_s03_divergence_after_fast_consecutive_failovers, "epoch"),
    ),
    (
        "S-4",
        "truncation-in-one-round",
        partial(
            replica_fetcher.test_second_question_if_leader_replies_with_unknown_epoch, EPOCH_RULE
        ),
    ),
    (
        "S-4",
        "answers-without-the-epoch",
        partial(
            replica_fetcher.test_second_question_if_leader_replies_with_unknown_epoch, FETCH_RULE
        ),
    ),
    ("S-5", "no-truncation", partial(replica_fetcher.test_seven_shapes, FETCH_RULE, *ONE_AND_FOUR)),
    (
        "S-5",
        "truncation-one-too-low",
        partial(replica_fetcher.test_seven_shapes, FETCH_RULE, [(2, 1)], [(4, 1)], [2]),
    ),
    (
        "S-6",
        "cut-of-nothing-keeps-epochs",
        partial(replica_fetcher.test_election_in_which_nothing_is_written, FETCH_RULE),
    ),
    (
        "S-7",
        "older-epochs-not-fenced newer-epochs-not-fenced",
        partition.test_leader_epoch_validation_on_leader,
    ),
    ("S-8", "newer-epochs-not-fenced", partial(fetcher.test_unknown_leader_epoch, FETCH_RULE)),
    (
        "S-8",
        "answers-of-partitions-that-left",
        fetcher.test_leader_epoch_change_during_fetch_epochs_from_leader,
    ),
    (
        "S-9",
        "diverging-answer-raises-high-watermark",
        fetcher.test_truncate_on_fetch_does_not_process_partition_data,
    ),
    (
        "S-10",
        "answers-of-partitions-that-left",
        partial(fetcher.test_truncation_on_fetch_skipped_if_partition_removed, None),
    ),
    (
        "S-10",
        "answers-of-partitions-that-left",
        partial(fetcher.test_data_skipped_if_partition_removed, None),
    ),
    (
        "S-11",
        "acknowledged-before-high-watermark high-watermark-without-followers "
        "proposals-count-at-once no-truncation",
        isr.test_s11_zombie_leader_keeps_its_producers,
    ),
    (
        "S-12",
        "isr-change-without-compare-and-set proposals-count-at-once",
        isr.test_s12_zombie_leaders_isr_change,
    ),
    (
        "S-13",
        "high-watermark-of-committed-isr",
        isr.test_s13_election_during_an_in_flight_isr_expansion,
    ),
    (
        "S-14",
        "join-before-epoch-start",
        partial(isr.test_s14_isr_expansion_before_the_leaders_own_epoch_start, False),
    ),
    (
        "S-15",
        "proposals-count-at-once isr-change-moves-no-high-watermark",
        partial(isr.test_s15_isr_shrink_high_watermark_waits_then_moves, False),
    ),
    ("S-16", "broker-epoch-not-checked", isr.test_s16_stale_expansion_admits_a_wiped_replica),
    (
        "S-17",
        "stopping-broker-joins-at-the-controller",
        partial(isr.test_s17_stopping_replica_does_not_rejoin, False),
    ),
    (
        "S-17",
        "stopping-broker-joins-at-the-leader",
        partial(isr.test_s17_stopping_replica_does_not_rejoin, True),
    ),
    (
        "S-18",
        "election-outside-isr",
        partial(elections.test_s18_no_in_sync_replica_left_unclean_election_off, True),
    ),
    (
        "S-18",
        "unclean-elections-refused no-truncation",
        elections.test_s18_no_in_sync_replica_left_unclean_election_on,
    ),
    (
        "S-19",
        "high-watermark-without-min-isr append-below-the-minimum",
        isr.test_s19_minimum_in_sync_replicas,
    ),
    (
        "S-20",
        "no-eligible-leader-replicas high-watermark-without-min-isr",
        elections.test_s20_last_replica_standing,
    ),
    (
        "S-21",
        "unclean-restart-keeps-isr",
        partial(elections.test_s21_leader_that_lost_its_tail_is_not_re_elected, "os", bounced=True),
    ),
    (
        "S-22",
        "truncation-to-the-high-watermark high-watermark-of-a-new-leader-is-served",
        partial(elections.test_s22_whole_cluster_restarts_with_stale_high_watermarks, "ABC", 3),
    ),
    (
        "S-23",
        "high-watermark-below-the-log-start",
        truncation.test_s23_follower_behind_the_leaders_log_start,
    ),
    (
        "S-24",
        "retention-above-the-high-watermark",
        partial(truncation.test_s24_retention_keeps_what_is_not_committed, {"retention_ms": 1}),
    ),
    (
        "S-24",
        "log-start-inside-a-batch-not-met",
        truncation.test_s24_deletion_inside_a_batch_and_an_empty_replica,
    ),
    (
        "S-25",
        "proposals-are-not-repeated",
        partial(controllers.test_s25_controller_failover_with_requests_in_flight, False),
    ),
    (
        "S-25",
        "unclean-restart-keeps-isr",
        controllers.test_s25_next_controller_knows_who_stopped_uncleanly,
    ),
    ("S-26", "same-leader-new-epoch-missed", truncation.test_s26_same_leader_missed_epoch),
    (
        "S-27",
        "silent-sessions-never-end",
        partial(controllers.test_s27_one_way_partition, "A", "sends"),
    ),
    ("S-28", "flush-without-sync", partial(power_loss.test_s28_coordinated_power_loss, "ack", 0)),
    (
        "S-56",
        "duplicates-not-recognised producers-forgotten-in-recovery",
        producers.test_s56_duplicate_sequence_across_a_leader_change,
    ),
]
"""The scenario, the mutants that it sees, and the test."""
