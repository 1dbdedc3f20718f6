"""With ``flush.messages=1`` nobody is told of a record before it is on the disk."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from logstore.common.errors import StorageFailedError
from logstore.segments.producer_state import AppendOrigin
from replication.common.error_codes import ErrorCode
from replication.common.errors import KafkaStorageError
from replication.common.messages import ProducePartition, ProduceRequest
from replication.partition import follower
from tests.support.builders import batch
from tests.support.replica_managers import TP, Host, part

SYNCED = {"flush.messages": "1"}


def produce(
    host: Host, acks: int, records: bytes | None = None
) -> list[tuple[ErrorCode, int, int]]:
    """(error, offset, what was durable when the answer was given) of a produce."""
    told: list[tuple[ErrorCode, int, int]] = []

    def respond(response: Any) -> None:
        (answer,) = response.partitions
        log = host.partition().log
        told.append((answer.error_code, answer.base_offset, log.recovery_point if log else -1))

    data = batch() if records is None else records
    host.manager.writes.produce(ProduceRequest(acks, 1000, (ProducePartition(TP, data),)), respond)
    return told


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("isr", [(1,), (1, 2)])
def test_an_answer_comes_after_the_sync_of_the_leader(acks: int, isr: tuple[int, ...]) -> None:
    host = Host()
    host.lead(isr=isr, config=SYNCED)
    for offset in range(3):
        told = produce(host, acks)
        host.replicate(offset + 1)
        assert told == [(ErrorCode.NONE, offset, offset + 1)]


def test_a_duplicate_is_answered_after_the_sync_of_its_original() -> None:
    """The first try was written, and its sync did not end well for lack of a resource."""
    host = Host()
    host.lead(isr=(1,), config=SYNCED)
    log = host.partition().local_log()
    once = batch(producer_id=9, producer_epoch=0, base_sequence=0)
    log.writer.append_as_leader(once, 0, AppendOrigin.CLIENT)  # written, and not synced yet
    assert log.recovery_point == 0
    assert produce(host, -1, once) == [(ErrorCode.NONE, 0, 1)]


@pytest.mark.parametrize("acks", [1, -1])
def test_a_failed_sync_is_no_success(acks: int) -> None:
    host = Host()
    host.lead(isr=(1,), config=SYNCED)
    produce(host, acks)
    host.storage.fail("sync", "*.log", times=1)
    ((error, _, _),) = produce(host, acks)
    assert error is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_follower_asks_for_more_after_its_sync() -> None:
    """What it fetches from tells the leader what it has."""
    host = Host()
    partition = host.follow(epoch=1, config=SYNCED)
    log = partition.local_log()
    for offset in range(3):
        partition.follower.append(batch(offset, epoch=1), 1)
        assert (log.log_end_offset, log.recovery_point) == (offset + 1, offset + 1)
    host.storage.fail("sync", "*.log", times=1)
    with pytest.raises((KafkaStorageError, StorageFailedError)):
        partition.follower.append(batch(3, epoch=1), 1)


def test_without_it_an_answer_waits_for_no_disk() -> None:
    host = Host()
    host.lead(isr=(1,))
    assert produce(host, -1) == [(ErrorCode.NONE, 0, 0)]
    assert host.fetch(part(0)).only.records


def test_a_follower_syncs_what_an_append_could_not_before_it_asks_on() -> None:
    """The append was written, and descriptors were short for its sync."""
    host = Host()
    log = host.follow(epoch=1, config=SYNCED).local_log()
    log.writer.append_as_follower(1, batch(0, epoch=1))
    assert (log.log_end_offset, log.recovery_point) == (1, 0)
    follower.finish_changes(host.manager.log_manager, [TP])
    assert log.recovery_point == 1


def test_what_a_leader_could_not_sync_is_committed_after_its_sync() -> None:
    """Its followers have it, and descriptors were short where the leader would have synced it."""
    host = Host()
    host.lead(isr=(1, 2), config=SYNCED)
    log = host.partition().local_log()
    log.writer.append_as_leader(batch(), 0, AppendOrigin.CLIENT)  # written, and not synced yet
    host.replicate(1)
    assert (log.log_end_offset, log.replica.kept_end_offset, log.high_watermark) == (1, 0, 0)
    host.storage.fail("sync", "*.log", error=errno.EMFILE, times=2)
    host.manager._look_at_leaderships()
    assert log.high_watermark == 0
    host.manager._look_at_leaderships()
    assert (log.recovery_point, log.high_watermark) == (1, 1)


def test_what_need_not_be_synced_is_committed_at_once() -> None:
    host = Host()
    host.lead(isr=(1, 2), config={"flush.messages": "3"})
    for offset in range(1, 3):
        produce(host, 1)
        host.replicate(offset)
        log = host.partition().local_log()
        assert (log.recovery_point, log.high_watermark) == (0, offset)
