"""Truncation: scenarios S-1 to S-3, S-23, S-24 and S-26 on the stage.

S-4 to S-10 need no cluster; they are tests of a fetcher or of a partition:

| scenario | test |
| --- | --- |
| S-4 | conformance/test_fetcher.py ``test_second_question_if_leader_replies_with_unknown_epoch`` |
| S-5 | conformance/test_fetcher.py ``test_seven_shapes`` |
| S-6 | conformance/test_fetcher.py ``test_election_in_which_nothing_is_written`` |
| S-7 | conformance/test_partition.py ``test_leader_epoch_validation_on_leader`` |
| S-8 | conformance/test_fetcher.py ``test_unknown_leader_epoch``, ``test_leader_epoch_change…`` |
| S-9 | conformance/test_fetcher.py ``test_truncate_on_fetch_does_not_process_partition_data`` |
| S-10 | conformance/test_fetcher.py ``test_truncation_on_fetch_skipped_if_partition_removed``, … |

``test_mutants.py`` removes the guards of all of them.
"""

from __future__ import annotations

import pytest

from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchResponse,
)
from tests.scenarios.stage import Stage


def test_s01_high_watermark_truncation_then_immediate_election() -> None:
    """The follower does not know yet that its last record is committed."""
    stage = Stage("AB", unclean=True)
    stage.produce("A", b"m1")
    stage.run(450)
    assert stage.hw("B") == 1
    answers = stage.hold("A", "B", FetchResponse)
    m2 = stage.produce("A", b"m2")
    answers.deliver()  # m2; the fetch after it waits at A
    assert (stage.leo("B"), stage.hw("A"), m2.code) == (2, 2, ErrorCode.NONE)
    stage.run(400)
    answers.drop()  # the answer that would have told
    assert stage.hw("B") == 1
    stage.kill("B")
    stage.hold_fetches("B")
    stage.start("B")
    assert not stage.partition("B").is_leader
    stage.kill("A")
    assert stage.leader == "B"
    assert stage.values("B") == [b"m1", b"m2"]
    stage.start("A")
    stage.run(450)
    assert stage.oracle.counters["truncations"] == 0
    assert stage.consume("B", 1) == (ErrorCode.NONE, [b"m2"])
    stage.finish()
    assert stage.values("A") == [b"m1", b"m2", b"last"]


@pytest.mark.parametrize("flush", ["os", "ack"])
def test_s02_divergence_after_both_replicas_lose_power(flush: str) -> None:
    """With flush=os m2 may be lost, but there are never two records at one offset."""
    lossy = flush == "os"
    stage = Stage("AB", flush=flush, exempt=("I-1", "I-2") if lossy else ())
    stage.produce("A", b"m1")
    stage.flush("A", "B")
    stage.produce("A", b"m2")
    stage.flush("A")
    stage.power_loss("A", "B")
    stage.start("B")
    assert stage.leader == "B"
    assert stage.values("B") == ([b"m1"] if lossy else [b"m1", b"m2"])
    epoch = stage.epoch
    stage.produce("B", b"m3")
    stage.start("A")
    stage.finish()
    kept = [b"m1", b"m3"] if lossy else [b"m1", b"m2", b"m3"]
    for name in "AB":
        assert stage.values(name) == [*kept, b"last"]
        assert stage.runs(name) == [(0, 0), (epoch, len(kept) - 1)]
    assert bool(stage.exempted) is lossy


@pytest.mark.parametrize("rule", ["fetch", "epoch"])
def test_s03_divergence_after_fast_consecutive_failovers(rule: str) -> None:
    """The leader answers for the largest epoch that both may know, not for the one asked."""
    stage = Stage("AB", unclean=True, truncation=rule, exempt=("I-1", "I-2"))
    stage.fill("A", 10)
    stage.kill("B")
    stage.kill("A")
    stage.start("A")
    first = stage.epoch
    stage.fill("A", 5)
    stage.kill("A")
    stage.start("B")
    assert (stage.leader, stage.leo("B")) == ("B", 10)
    second = stage.epoch
    stage.fill("B", 3)
    stage.kill("B")
    stage.start("A")
    assert stage.leader == "A"
    third = stage.epoch
    stage.fill("A", 2)
    stage.start("B")
    assert 0 < first < second < third
    stage.finish()
    for name in "AB":
        assert stage.runs(name) == [(0, 0), (first, 10), (third, 15)]
    assert stage.values("A") == stage.values("B")


def test_s23_follower_behind_the_leaders_log_start() -> None:
    """It begins anew where the leader's log begins, and may be elected in that moment."""
    stage = Stage("AB", unclean=True, exempt=("I-1", "I-2"))
    producer = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0}
    stage.produce("A", *[b"%d" % n for n in range(5)], **producer)
    stage.run(450)
    assert (stage.leo("B"), stage.hw("B")) == (5, 5)
    assert [*stage.log("B").producers.known.producers] == [9]
    stage.kill("B")
    stage.fill("A", 26)
    delete_records(stage, 20)
    answers = stage.hold("A", "B", FetchResponse)
    stage.start("B")
    stage.run(450)
    refusal = answers.deliver()
    assert refusal.partitions[0].error_code is ErrorCode.OFFSET_OUT_OF_RANGE
    log = stage.log("B")
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (20, 20, 20)
    assert log.epochs.entries == ()
    assert not log.producers.known.producers
    stage.kill("A")
    assert stage.leader == "B"
    assert stage.consume("B", 20) == (ErrorCode.NONE, [])
    assert stage.hw("B") >= stage.log("B").log_start_offset == 20
    stage.finish()


def delete_records(stage: Stage, offset: int, leader: str = "A") -> None:
    response = stage.ask(leader, DeleteRecordsRequest(((stage.tp, offset),), 2000), wait_ms=800)
    assert isinstance(response, DeleteRecordsResponse)
    assert response.partitions[0].error_code is ErrorCode.NONE
    stage.history.deleted_below[stage.tp] = offset
    assert stage.log(leader).log_start_offset == offset


@pytest.mark.parametrize(
    "retention", [{"retention_ms": 1}, {"retention_bytes": 1}], ids=["time", "size"]
)
def test_s24_retention_keeps_what_is_not_committed(retention: dict[str, int]) -> None:
    """Its first step: no segment that reaches the high watermark goes."""
    stage = Stage("AB", min_isr=2, segment_bytes=200, **retention)
    stage.fill("A", 10)
    committed = stage.hw("A")
    assert committed == 10
    stage.kill("B")
    stage.fill("A", 10)
    log = stage.log("A")
    assert len(log.segments) > 8
    log.maintenance.delete_old_segments()
    assert 0 < log.log_start_offset <= committed == log.high_watermark
    held = [int(value) for value in stage.values("A")]
    assert held == list(range(log.log_start_offset + 1, 21))
    stage.history.deleted_below[stage.tp] = 20
    stage.finish()


def test_s24_deletion_inside_a_batch_and_an_empty_replica() -> None:
    """The reader gets the whole batch and skips its beginning; the replica takes it, too."""
    stage = Stage("ABC", min_isr=1)
    stage.kill("C")
    stage.machine("C").disk.wipe()
    for first in (0, 5):
        stage.produce("A", *[b"%d" % n for n in range(first, first + 5)])
    delete_records(stage, 7)
    part = stage.fetch_as_consumer("A", 7)
    assert bytes(part.records[:8]) == (5).to_bytes(8, "big")
    assert stage.consume("A", 7) == (ErrorCode.NONE, [b"7", b"8", b"9"])
    stage.start("C")
    stage.run(450)
    log = stage.log("C")
    assert (log.log_start_offset, log.log_end_offset) == (7, 10)
    assert stage.values("C") == [b"7", b"8", b"9"]
    stage.finish()


def test_s26_same_leader_missed_epoch() -> None:
    """B hears of the last leadership only, whose leader is the one that it follows already."""
    stage = Stage("AB", exempt=("I-1", "I-2"))
    stage.fill("A", 5)
    stage.run(450)
    stage.flush("A", "B")
    stage.fill("A", 3)
    assert stage.leo("B") == 8
    first = stage.epoch
    roles, fetches = stage.hold_roles("B"), stage.hold_fetches("B")
    stage.hold("A", "B", FetchResponse)
    stage.produce("A", b"only on A", acks=1)
    stage.run(2000)
    assert stage.isr == "A"
    stage.power_loss("A")
    stage.start("A")
    assert (stage.leader, stage.leo("A")) == ("A", 5)
    assert stage.epoch > first + 1
    stage.fill("A", 4)
    assert (stage.partition("B").leader_epoch, stage.leo("B")) == (first, 8)
    roles.lose_all()
    stage.run(200)
    assert stage.partition("B").leader_epoch == stage.epoch
    assert stage.partition("B").leader_id == stage.ids["A"]
    fetches.lose_all()
    stage.finish()
    assert stage.runs("A") == stage.runs("B") == [(first, 0), (stage.epoch, 5)]
