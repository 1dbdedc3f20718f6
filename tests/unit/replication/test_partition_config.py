"""Another configuration of a topic, while a broker has the topic's logs open."""

from __future__ import annotations

import errno
import threading
from collections.abc import Mapping

import pytest

from checkpoints.types import TopicPartition
from logstore.common.config import MAX_LONG
from logstore.common.errors import ResourceBusyError
from logstore.log import PartitionLog
from logstore.log.maintenance import LogMaintenance
from logstore.log.writing.flushing import LogFlusher
from replication.common.error_codes import ErrorCode
from replication.common.messages import AlterPartitionResult
from replication.partition import Partition
from tests.support.builders import batch
from tests.support.replica_managers import BROKER, TP, Host, part
from tests.support.until import patience

TWO = {"min.insync.replicas": "2"}


def reconfigure(host: Host, config: Mapping[str, str], leader: int = BROKER) -> Partition:
    """The same registration again."""
    return host.lead(epoch=5, leader=leader, config=config)


@pytest.mark.parametrize("leader", [1, 2])
def test_a_log_goes_by_it_at_once(leader: int) -> None:
    host = Host()
    log = host.lead(epoch=5, leader=leader).local_log()
    config = {"segment.bytes": "5000", "retention.ms": "7", "max.message.bytes": "100"}
    reconfigure(host, config, leader)
    assert host.partition().local_log() is log
    assert (log.config.segment_bytes, log.config.retention_ms) == (5000, 7)
    reconfigure(host, {}, leader)
    assert log.config == host.log_manager.config


def test_records_that_are_too_large_now() -> None:
    host = Host()
    host.lead(epoch=5)
    data = batch(value=bytes(300))
    assert host.produce(data, acks=1).only.error_code is ErrorCode.NONE
    reconfigure(host, {"max.message.bytes": "200"})
    assert host.produce(data, acks=1).only.error_code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("leader", [1, 2])
def test_what_may_not_stay_unsynced_any_more_is_synced(leader: int) -> None:
    host = Host(log_config={"flush.messages": MAX_LONG})
    host.lead(epoch=5)
    host.produce(batch(), acks=1)
    if leader == 2:
        host.follow(epoch=6)
    log = host.partition().local_log()
    assert log.log_end_offset > log.recovery_point
    epoch = 5 if leader == BROKER else 6
    host.lead(epoch=epoch, leader=leader, config={"flush.messages": "1"})
    assert log.log_end_offset == log.recovery_point
    assert log.recovery_point == log.log_end_offset == 1


@pytest.mark.parametrize("leader", [1, 2])
def test_nobody_waits_for_that_sync(leader: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync takes as long as the disk wants: the partition serves meanwhile."""
    host = Host(log_config={"flush.messages": MAX_LONG})
    host.lead(epoch=5)
    host.append(1)
    partition = host.lead(epoch=6, leader=leader)
    taken: list[bool] = []

    def flush(log: PartitionLog) -> None:
        taker = threading.Thread(
            target=lambda: taken.append(partition.lock.acquire(timeout=patience()))
        )
        taker.start()
        taker.join()

    monkeypatch.setattr(LogFlusher, "flush_overdue", flush)
    host.lead(epoch=6, leader=leader, config={"flush.messages": "1"})
    assert taken == [True]


def test_a_leader_commits_nothing_more_before_that_sync() -> None:
    host = Host(log_config={"flush.messages": MAX_LONG})
    partition = host.lead(epoch=5, isr=(1,), config=TWO)
    host.append(3)
    assert partition.high_watermark == 0
    host.storage.fail("sync", "*.log", error=errno.EMFILE, times=2)
    order = host.change(epoch=5, isr=(1,), config={"flush.messages": "1"})
    assert host.order(order).partitions == ((TP, ErrorCode.REPLICA_NOT_AVAILABLE),)
    assert partition.is_leader
    assert (partition.min_isr, partition.high_watermark) == (1, 0)
    assert host.order(order).partitions == ((TP, ErrorCode.NONE),)
    assert partition.high_watermark == 3


def test_a_follower_goes_on_after_a_shortage() -> None:
    """The controller asks again, with nothing new in it."""
    host = Host(log_config={"flush.messages": MAX_LONG})
    host.lead(epoch=5)
    host.append(1)
    host.follow(epoch=6)
    (fetcher,) = host.manager.fetchers.fetchers
    host.storage.fail("sync", "*.log", error=errno.EMFILE, times=2)
    order = host.change(epoch=6, leader=2, config={"flush.messages": "1"})
    assert host.order(order).partitions == ((TP, ErrorCode.REPLICA_NOT_AVAILABLE),)
    assert host.order(order).partitions == ((TP, ErrorCode.NONE),)
    assert host.manager.fetchers.fetchers == (fetcher,)
    assert fetcher.partitions() == [TP]
    log = host.partition().local_log()
    assert log.log_end_offset == log.recovery_point


def test_a_follower_that_could_not_take_its_role_is_fetched_when_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = Host()
    host.follow(epoch=6)
    order = host.change(epoch=6, leader=2, config={"segment.bytes": "5000"})
    with monkeypatch.context() as short:
        short.setattr(LogMaintenance, "configure", _short)
        assert host.order(order).partitions == ((TP, ErrorCode.REPLICA_NOT_AVAILABLE),)
    assert host.order(order).partitions == ((TP, ErrorCode.NONE),)
    (fetcher,) = host.manager.fetchers.fetchers
    assert fetcher.partitions() == [TP]


def _short(log: LogMaintenance, config: object) -> None:
    raise ResourceBusyError("orders-0", "configure", "too many open files")


def test_fewer_replicas_are_enough_for_a_write_that_waits() -> None:
    """Its high watermark moves with the order, and who waits is answered."""
    host = Host()
    host.lead(epoch=5, isr=(1,), config=TWO)
    written = host.produce(batch(), acks=1)
    assert written.only.error_code is ErrorCode.NONE
    waiting = host.fetch(part(0), wait_ms=10_000)
    assert not waiting
    assert host.partition().high_watermark == 0
    host.lead(epoch=5, isr=(1,), config={})
    assert host.partition().high_watermark == 1
    assert waiting.only.error_code is ErrorCode.NONE
    assert waiting.only.high_watermark == 1


def test_a_change_of_the_isr_that_is_under_way_stays_so() -> None:
    host = Host()
    partition = host.lead(epoch=5, isr=(1,))
    host.replicate(0)
    assert partition.isr.in_flight
    host.lead(epoch=5, isr=(1,), config=TWO)
    assert partition.isr.in_flight
    assert partition.min_isr == 2
    host.isr_channel.commit()
    assert partition.isr.committed == (1, 2)


def test_an_order_from_before_the_isr_does_not_bring_back_an_older_minimum() -> None:
    """The controller judged the proposal by a minimum of which no order has come yet; one that is
    older comes after that."""
    host = Host()
    partition = host.lead(epoch=5)
    host.produce(batch(), acks=1)
    host.runtime.advance(60_000)
    assert partition.isr.in_flight
    item, on_result = host.isr_channel.items[0], host.isr_channel._on_result[0]
    assert [broker for broker, _ in item.new_isr] == [1]
    on_result(AlterPartitionResult(TP, ErrorCode.NONE, 1, 5, (1,), 6, min_isr=2))
    assert (partition.isr.committed, partition.min_isr) == ((1,), 2)
    assert partition.high_watermark == 0  # alone it commits nothing
    host.order(host.change(epoch=5))
    assert (partition.min_isr, partition.high_watermark) == (2, 0)
    host.order(host.change(epoch=5, partition_epoch=6, isr=(1,), config=TWO))
    assert (partition.min_isr, partition.high_watermark) == (2, 0)


def test_retention_waits_for_the_configurations() -> None:
    """By the default it would delete what the topic keeps."""
    host = Host(log_config={"retention.ms": 1000, "segment.bytes": 200})
    host.lead(epoch=5, replicas=(1,), config={"retention.ms": "-1"})
    for _ in range(4):
        host.produce(batch(value=bytes(60)), acks=1)
    log = host.partition().local_log()
    assert len(log.segments) > 2
    assert log.high_watermark == 4
    host.manager.shutdown()
    host.log_manager.close()
    again = Host(
        storage=host.storage,
        runtime=host.runtime,
        log_config={"retention.ms": 1000, "segment.bytes": 200},
    )
    again.runtime.advance(3_600_000)
    assert again.log_manager.get(*TP).log_start_offset == 0
    again.lead(epoch=6, replicas=(1,), config={"retention.ms": "500"})
    again.runtime.advance(3_600_000)
    assert again.log_manager.get(*TP).log_start_offset > 0


def test_retention_leaves_alone_what_has_no_configuration() -> None:
    """The first list of roles may lack a topic whose nodes nobody can read."""
    other = TopicPartition("orders", 1)
    config, defaults = {"retention.ms": "-1"}, {"retention.ms": 1000, "segment.bytes": 200}
    host = Host(log_config=defaults)
    for tp in (TP, other):
        host.lead(tp, epoch=5, replicas=(1,), config=config)
        for _ in range(4):
            host.produce({tp: batch(value=bytes(60))}, acks=1)
    host.manager.shutdown()
    host.log_manager.close()
    again = Host(storage=host.storage, runtime=host.runtime, log_config=defaults)
    again.lead(other, epoch=6, replicas=(1,), config={"retention.ms": "500"})
    again.runtime.advance(3_600_000)
    assert again.log_manager.get(*TP).log_start_offset == 0
    assert again.log_manager.get(*other).log_start_offset > 0
