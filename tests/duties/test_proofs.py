"""Each duty in the list of a broker has a proof through the front door."""

from __future__ import annotations

from replication.coordinators.groups.shard import ExpiryTimer
from replication.coordinators.transactions.shard import Timer
from tests.duties import test_duties
from tests.support.replica_managers import Host

PROOFS = {
    "log-retention": ["test_retention_by_time", "test_retention_by_size"],
    "log-cleaner": [
        "test_a_compacted_topic_stays_small",
        "test_a_deletion_of_a_key_goes_at_last",
        "test_committed_offsets_stay_small_and_are_loaded_from_what_is_left",
        "test_killed_in_the_middle_of_compaction",
    ],
    "log-flusher": ["test_flush_and_the_recovery_point"],
    "recovery-point-checkpoint": ["test_flush_and_the_recovery_point"],
    "log-start-offset-checkpoint": ["test_the_log_start_outlives_a_kill"],
    "highwatermark-checkpoint": ["test_high_watermarks_outlive_a_kill"],
    "producer-expiration": ["test_a_silent_producer_is_forgotten"],
    "delete-logs": [
        "test_a_deleted_topic_leaves_the_disk",
        "test_killed_before_a_deletion_is_done",
    ],
    "delete-expired-group-metadata": ["test_offsets_expire_and_their_group"],
    "transaction-abort": ["test_an_overdue_transaction_is_aborted"],
    "transactional-id-expiration": ["test_a_transactional_id_expires"],
}
ELSEWHERE = {
    "isr-expiration"
}  # no client can make a follower fall behind: tests/unit, tests/cluster
OF_COORDINATORS = {
    ExpiryTimer(): "delete-expired-group-metadata",
    Timer.ABORT_OVERDUE: "transaction-abort",
    Timer.FORGET_IDLE: "transactional-id-expiration",
}


def test_each_duty_has_a_proof() -> None:
    duties = Host().log_manager.duties
    assert duties is not None
    names = {duty.name for duty in duties.list} | set(OF_COORDINATORS.values())
    assert names == PROOFS.keys() | ELSEWHERE
    assert {*Timer} <= OF_COORDINATORS.keys()
    for proofs in PROOFS.values():
        assert all(callable(getattr(test_duties, proof, None)) for proof in proofs), proofs
