"""The role changes in the middle of a request: what was looked at is of one leadership, or refused.

Each request is stopped at the point where it has passed its checks and holds no lock of the
partition. There the controller's orders are carried out, another leader writes, and the request
goes on.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from logstore.common.errors import LeadershipEndedError
from logstore.format.reader import iter_batches
from logstore.log import PartitionLog
from logstore.log.reading.fetching import EARLIEST, LATEST
from logstore.log.reading.snapshot_reader import LogReader
from logstore.log.replica import LogEpochs, LogReplica
from replication.common.error_codes import ErrorCode
from replication.common.errors import NotLeaderOrFollowerError
from replication.common.messages import (
    CONSUMER,
    IsolationLevel,
    ListOffsetsPartition,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
)
from replication.partition.leader import LeaderSide
from replication.partition.replica import Replica
from tests.support.builders import batch
from tests.support.cases import for_each
from tests.support.logs import check_invariants
from tests.support.replica_managers import TP, Answers, Host, part
from tests.support.until import patience, until

OURS, THEIRS = bytes(10), bytes(20)
PRODUCERS = 3


class Story:
    """Broker 1 leads in epoch 5, with two of its own batches of which one is committed."""

    def __init__(self, **options: Any) -> None:
        self.host = Host(**options)
        self.partition = self.host.lead(epoch=5)
        self.append(OURS)
        self.host.replicate(1)
        self.append(OURS)
        self.log = self.partition.local_log()
        assert (self.log.high_watermark, self.log.log_end_offset) == (1, 2)

    def append(self, value: bytes) -> Answers:
        return self.host.produce(batch(value=value), acks=1)

    def deposed(self) -> None:
        """Broker 2 leads in epoch 6."""
        self.host.follow(epoch=6)

    def overwritten(self) -> None:
        """Broker 2 did not have our second batch; its own is there now."""
        self.deposed()
        self.partition.follower.truncate_to(1, 6)
        self.partition.follower.append(batch(1, value=THEIRS, epoch=6), 6)
        self.partition.follower.follow(1, 0, 6)

    def overwritten_and_led_again(self) -> None:
        self.overwritten()
        self.host.lead(epoch=7)

    def values(self) -> list[tuple[int, int]]:
        """(leader epoch, length of the value) of each record."""
        batches = iter_batches(self.log.read(0).data)
        return [
            (each.leader_epoch, len(record.value or b""))
            for each, record in zip(batches, self.log.records(), strict=True)
        ]


def before(
    monkeypatch: pytest.MonkeyPatch, target: Any, name: str, act: Callable[[], None]
) -> None:
    """``act`` once, when ``target.name`` is called and has not begun."""
    true = getattr(target, name)

    def stopped(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(target, name, true)
        act()
        return true(*args, **kwargs)

    monkeypatch.setattr(target, name, stopped)


def after(monkeypatch: pytest.MonkeyPatch, target: Any, name: str, act: Callable[[], None]) -> None:
    """``act`` once, when ``target.name`` is done and its answer not yet used."""
    true = getattr(target, name)

    def stopped(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(target, name, true)
        found = true(*args, **kwargs)
        act()
        return found

    monkeypatch.setattr(target, name, stopped)


CHANGES = ["deposed", "overwritten", "overwritten_and_led_again"]
Patcher = pytest.MonkeyPatch


# -- append -------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("change", CHANGES)
def test_an_append_of_a_leadership_that_ended_is_refused(
    monkeypatch: Patcher, change: str, acks: int
) -> None:
    story = Story()
    seen: list[Any] = []

    def act() -> None:
        getattr(story, change)()
        seen.append(story.values())

    before(monkeypatch, PartitionLog, "append_as_leader", act)
    (response,) = story.host.produce(batch(value=OURS), acks=acks)
    assert response.partitions[0].error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [story.values()] == seen


def test_an_append_that_the_log_has_begun_is_finished_first() -> None:
    """The other order: the change of the role waits until the append is through."""
    story = Story()
    inside, changed, go_on = threading.Event(), threading.Event(), threading.Event()

    def listen() -> None:
        """Called under the log's lock, by an append that has written and published its batch."""
        inside.set()
        assert go_on.wait(patience())

    answers: list[Any] = []
    story.log.core.listeners.add(listen)
    producer = threading.Thread(target=lambda: answers.append(story.append(OURS)))
    producer.start()
    assert inside.wait(patience())

    def change() -> None:
        story.deposed()
        changed.set()

    controller = threading.Thread(target=change)
    controller.start()
    assert not changed.wait(0.05)
    go_on.set()
    producer.join(patience())
    controller.join(patience())
    assert changed.is_set()
    ((response,),) = answers
    assert response.partitions[0].error_code is ErrorCode.NONE
    assert story.values() == [(5, 10)] * 3


def test_the_log_takes_appends_of_its_role_only() -> None:
    log = Story().log
    end = log.replica.lead(8)
    with pytest.raises(LeadershipEndedError, match="an append of epoch 5, the replica is in 8"):
        log.append_as_leader(batch(), 5)
    with pytest.raises(LeadershipEndedError):
        log.replica.append_as_follower(batch(end, epoch=8), 8)
    log.append_as_leader(batch(), 8)
    log.replica.follow(9)
    for epoch in (8, 9):
        with pytest.raises(LeadershipEndedError):
            log.append_as_leader(batch(), epoch)
    with pytest.raises(LeadershipEndedError):
        log.replica.append_as_follower(batch(end + 1, epoch=8), 8)
    log.replica.append_as_follower(batch(end + 1, epoch=9), 9)
    assert log.log_end_offset == end + 2


@pytest.mark.parametrize("leads", [False, True])
def test_what_was_fetched_in_an_epoch_that_ended_is_not_appended(
    monkeypatch: Patcher, leads: bool
) -> None:
    story = Story()
    story.deposed()

    def act() -> None:
        story.host.lead(epoch=7) if leads else story.host.follow(epoch=7, leader=3, replicas=(1, 3))

    before(monkeypatch, LogReplica, "append_as_follower", act)
    with pytest.raises(NotLeaderOrFollowerError):
        story.partition.follower.append(batch(2, epoch=6), 6)
    for late in (
        story.partition.follower.truncate_to,
        lambda at, epoch: story.partition.follower.follow(at, 0, epoch),
    ):
        with pytest.raises(NotLeaderOrFollowerError):
            late(2, 6)
    assert story.values() == [(5, 10)] * 2
    assert story.log.high_watermark == 1


@pytest.mark.slow
def test_threads_append_while_the_role_changes() -> None:
    """Epochs ascend along the log, its offsets are in order (R-28), and what is there of ours is
    what was acknowledged there."""
    host = Host()
    partition = host.lead(epoch=1)
    log = partition.local_log()
    acknowledged: dict[tuple[int, int], int] = {}
    stop = threading.Event()

    def produce(number: int) -> None:
        size = number
        while not stop.is_set():
            size += PRODUCERS
            try:
                append = partition.leader.append(batch(value=bytes(size % 1000)), 1)
            except NotLeaderOrFollowerError:
                continue
            at = append.leader_epoch, append.info.first_offset
            assert at not in acknowledged
            acknowledged[at] = size % 1000

    threads = [threading.Thread(target=produce, args=(n,), daemon=True) for n in range(PRODUCERS)]
    for thread in threads:
        thread.start()
    rng = random.Random(17)
    try:
        for epoch in range(2, 60, 2):
            host.follow(epoch=epoch)
            partition.follower.truncate_to(max(0, log.log_end_offset - rng.randint(0, 5)), epoch)
            theirs = batch(log.log_end_offset, value=THEIRS, epoch=epoch)
            partition.follower.append(theirs, epoch)
            host.lead(epoch=epoch + 1)
            until(lambda end=log.log_end_offset + 5: log.log_end_offset >= end)
        assert all(thread.is_alive() for thread in threads)
    finally:
        stop.set()
        for thread in threads:
            thread.join(patience())
    check_invariants(log)
    at, epoch, ours = 0, 0, 0
    while at < log.log_end_offset:
        read = log.read(at)
        for each, record in zip(iter_batches(read.data), read.records(), strict=True):
            assert each.leader_epoch >= epoch
            epoch = each.leader_epoch
            at = record.offset + 1
            if epoch % 2:
                ours += 1
                assert acknowledged[epoch, record.offset] == len(record.value or b"")
    assert ours >= 100


# -- acknowledgement ----------------------------------------------------------------------------


def test_records_of_another_leader_at_the_same_offset_acknowledge_nothing(
    monkeypatch: Patcher,
) -> None:
    """Appended in epoch 5, about to wait; meanwhile epoch 6 replaces it and 7 commits that."""
    story = Story()

    def act() -> None:
        story.deposed()
        story.partition.follower.truncate_to(2, 6)
        story.partition.follower.append(batch(2, value=THEIRS, epoch=6), 6)
        story.host.lead(epoch=7)
        story.host.replicate(3)
        assert story.log.high_watermark == 3

    before(monkeypatch, story.host.manager.waiting, "add", act)
    answer = story.host.produce(batch(value=OURS)).only
    assert answer.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert story.values() == [(5, 10), (5, 10), (6, 20)]


def test_an_append_of_an_earlier_leadership_that_is_still_there_is_acknowledged(
    monkeypatch: Patcher,
) -> None:
    """Broker 2 had it, too, or nobody led in between: the record is the same, and committed."""
    story = Story()

    def act() -> None:
        story.deposed()
        story.host.lead(epoch=7)
        story.host.replicate(3)

    before(monkeypatch, story.host.manager.waiting, "add", act)
    answer = story.host.produce(batch(value=OURS)).only
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 2)


def test_a_look_at_the_high_watermark_counts_in_its_own_leadership_only(
    monkeypatch: Patcher,
) -> None:
    """The role changes after ``acks_satisfied`` found the leadership, before it looks further."""
    story = Story()

    def act() -> None:
        story.overwritten_and_led_again()
        story.host.replicate(2)
        assert story.log.high_watermark == 2

    after(monkeypatch, Replica, "leading", act)
    with pytest.raises(NotLeaderOrFollowerError):
        story.partition.leader.acks_satisfied(2, 5)


def test_a_duplicate_is_acknowledged_by_the_epoch_of_its_original() -> None:
    host = Host()
    host.lead(epoch=5)
    once = batch(producer_id=9, producer_epoch=0, base_sequence=0)
    assert not host.produce(once)
    host.follow(epoch=6)
    partition = host.lead(epoch=7)
    again = host.produce(once)
    assert not again
    assert partition.leader.append(once, -1).leader_epoch == 5
    host.replicate(1)
    assert (again.only.error_code, again.only.base_offset) == (ErrorCode.NONE, 0)


# -- reads --------------------------------------------------------------------------------------


@for_each("way", ["read", "read_recent"])
@for_each("when", [before, after])
@for_each("change", CHANGES)
@for_each("replica", [2, CONSUMER])
def test_a_fetch_answers_for_the_epoch_that_it_checked(
    monkeypatch: Patcher, replica: int, change: str, when: Any, way: str
) -> None:
    """What was read while the role changed may be another leader's, and not committed."""
    story = Story()
    if way == "read":
        story.log.replica.keep_recent(None)
    part_of_log = LogReader if way == "read" else LogReplica
    when(monkeypatch, part_of_log, way, getattr(story, change))
    follower = story.partition.progress_of(2)
    (answer,) = story.host.fetch(part(0, epoch=5), replica=replica)
    found = answer.partitions[0]
    assert (found.error_code, found.records) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, b"")
    assert follower is not None
    now = story.partition.progress_of(2)
    assert now is None or now.last_fetch_ms <= follower.last_fetch_ms


@pytest.mark.parametrize(
    "end", [Story.deposed, lambda story: story.host.stop(), lambda story: story.partition.delete()]
)
def test_nothing_stays_in_memory_of_a_leadership_that_ended(end: Callable[[Story], Any]) -> None:
    """It would count against those that lead, for ever."""
    story = Story()
    budget = story.partition.env.recent
    assert budget.kept > 0
    end(story)
    assert budget.kept == len(budget.order) == 0


@pytest.mark.parametrize("change", CHANGES)
def test_a_diverging_epoch_is_of_the_epoch_that_was_checked(
    monkeypatch: Patcher, change: str
) -> None:
    story = Story()
    before(monkeypatch, LogEpochs, "end_offset_for", getattr(story, change))
    (answer,) = story.host.fetch(part(3, epoch=5, last_epoch=5), replica=2)
    assert answer.partitions[0].error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_an_offset_out_of_range_is_of_the_epoch_that_was_checked(monkeypatch: Patcher) -> None:
    """A follower that believed it would drop its log."""
    story = Story()

    def act() -> None:
        story.deposed()
        story.partition.follower.truncate_to(1, 6)

    after(monkeypatch, LeaderSide, "_readable", act)
    (answer,) = story.host.fetch(part(2, epoch=5), replica=2)
    assert answer.partitions[0].error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("change", CHANGES)
def test_the_end_of_an_epoch_is_of_the_epoch_that_was_checked(
    monkeypatch: Patcher, change: str
) -> None:
    story = Story()
    before(monkeypatch, LogEpochs, "end_offset_for", getattr(story, change))
    asked = OffsetForLeaderEpochRequest((OffsetForLeaderPartition(TP, 5, 5),), 2)
    (answer,) = story.host.manager.offsets_for_leader_epoch(asked).partitions
    assert answer.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def list_offsets(story: Story, timestamp: int, epoch: int) -> ErrorCode:
    asked = ListOffsetsRequest((ListOffsetsPartition(TP, timestamp, epoch),), 2)
    (answer,) = story.host.manager.list_offsets(asked).partitions
    return answer.error_code


@for_each("timestamp", [EARLIEST, 0, 2**62])
@for_each("change", CHANGES)
def test_an_offset_is_of_the_epoch_that_was_checked(
    monkeypatch: Patcher, change: str, timestamp: int
) -> None:
    story = Story()
    after(monkeypatch, PartitionLog, "offset_for_timestamp", getattr(story, change))
    assert list_offsets(story, timestamp, 5) is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (-1, ErrorCode.NONE),
        (5, ErrorCode.NONE),
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_offsets_are_listed_for_the_current_leader_epoch_only(epoch: int, code: ErrorCode) -> None:
    story = Story()
    assert [list_offsets(story, at, epoch) for at in (-1, -2, 0)] == [code] * 3


# -- high watermark -----------------------------------------------------------------------------


def test_an_append_sees_an_isr_that_shrank_while_it_was_under_way(monkeypatch: Patcher) -> None:
    """Else the high watermark would wait for a follower that nobody waits for any more."""
    story = Story()
    true = PartitionLog.append_as_leader

    def append(self: PartitionLog, *args: Any) -> Any:
        monkeypatch.setattr(PartitionLog, "append_as_leader", true)
        story.host.lead(epoch=5, partition_epoch=6, isr=(1,))
        story.host.runtime.advance(60_000)
        return true(self, *args)

    monkeypatch.setattr(PartitionLog, "append_as_leader", append)
    story.append(OURS)
    assert (story.log.high_watermark, story.log.log_end_offset) == (3, 3)


def test_progress_of_an_earlier_leadership_does_not_count() -> None:
    """R-25: between epochs 5 and 7 another leader may have made followers cut what they had of
    ours, so the high watermark waits for the first fetch of each."""
    story = Story()
    story.host.replicate(2)
    story.append(OURS)
    assert story.log.high_watermark == 2
    story.host.replicate(3)
    story.append(OURS)
    story.host.lead(epoch=7)
    follower = next(r for r in story.partition.replicas if r != story.host.manager.broker_id)
    known = story.partition.progress_of(follower)
    assert known is not None
    assert known.log_end == -1
    story.host.lead(epoch=8)
    assert story.log.high_watermark == 3


def test_the_end_for_a_consumer_is_of_the_present_epoch() -> None:
    """As of a real Kafka, also where an open transaction of an earlier epoch lowers it (W-55)."""
    host = Host()
    partition = host.follow(epoch=4)
    opened = batch(1, epoch=4, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    partition.follower.append(batch(epoch=4), 4)
    partition.follower.append(opened, 4)
    host.lead(epoch=5)
    host.replicate(2)
    found = {
        isolation: partition.leader.offset_for_timestamp(LATEST, isolation=isolation)
        for isolation in IsolationLevel
    }
    assert found == {
        IsolationLevel.READ_UNCOMMITTED: (-1, 2, 5),
        IsolationLevel.READ_COMMITTED: (-1, 1, 5),
    }
