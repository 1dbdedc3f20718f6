"""Fetch sessions of a leader: what is named, what is left out, whom they outlive."""

from __future__ import annotations

import random
import threading
import uuid
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.common.errors import KafkaStorageError
from replication.common.messages import (
    MAX_SESSION_EPOCH,
    EpochEndOffset,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    next_session_epoch,
    unresolved_topic,
)
from replication.common.runtime import ThreadRuntime
from replication.decisions.isr import settled
from replication.fetcher.fetch_session_handler import SessionRequest
from replication.partition import Leadership
from replication.replica_manager.fetch_sessions import (
    MIN_EVICTION_MS,
    CachedPartition,
    FetchSession,
    FetchSessionCache,
)
from replication.replica_manager.metadata_cache import MetadataCache
from tests.support.builders import batch, produced
from tests.support.cases import for_each
from tests.support.fetch_sessions import Member
from tests.support.replica_managers import EPOCH, TOPIC_ID, Answers, Host
from tests.support.until import patience

TPS = [TopicPartition("t", number) for number in range(4)]
A, B, C, D = TPS


def led(*tps: TopicPartition, records: int = 0, **config: Any) -> Host:
    host = Host(**config)
    for tp in tps:
        host.lead(tp, replicas=(1, 2, 3))
        if records:
            host.append(records, tp)
    return host


def wanted(*tps: TopicPartition, offset: int = 0) -> dict[TopicPartition, FetchPartition]:
    return {tp: FetchPartition(tp, offset, log_start_offset=0, topic_id=TOPIC_ID) for tp in tps}


def only_session(host: Host) -> FetchSession:
    (session,) = host.manager.fetches.sessions._sessions.values()
    return session


def resting(host: Host, member: Member, *tps: TopicPartition) -> None:
    """All partitions were told, and are not looked at any more."""
    for _ in range(3):
        member.fetch(wanted(*tps))
    assert not only_session(host).active


class TestProtocol:
    """FetchSessionTest: testFetchRequests is the full and the incremental request, the unknown id,
    the wrong epoch, and the request that closes the session it names."""

    def test_full_then_incremental(self) -> None:
        host = led(A, B)
        member = Member(host, 2)
        first = member.fetch(wanted(A, B))
        assert [part.tp for part in first.partitions] == [A, B]
        assert first.session_id > 0
        second = member.fetch(wanted(A, B))
        assert (second.partitions, second.session_id) == ((), first.session_id)

    def test_only_what_changed_is_named_by_both(self) -> None:
        host = led(A, B, C)
        member = Member(host, 2)
        resting(host, member, A, B, C)
        host.append(1, B)
        (named,) = member.fetch(wanted(A, B, C)).partitions
        assert (named.tp, bool(named.records)) == (B, True)
        asked = member.request(wanted(A, C) | wanted(B, offset=1))
        assert [part.tp for part in asked.partitions] == [B]

    def test_forgotten_and_added(self) -> None:
        """testIncrementalFetchSession and testToForgetPartitions"""
        host = led(A, B, C, records=1)
        member = Member(host)
        member.fetch(wanted(A, B))
        answer = member.fetch(wanted(B, C))
        assert {number for _, number in only_session(host).partitions} == {1, 2}
        assert C in [part.tp for part in answer.partitions]
        host.append(1, A)
        assert A not in [part.tp for part in member.fetch(wanted(B, C)).partitions]

    def test_the_last_partition_closes_it(self) -> None:
        """testZeroSizeFetchSession"""
        host = led(A)
        member = Member(host)
        member.fetch(wanted(A))
        answer = member.fetch({})
        assert answer == FetchResponse(())
        assert len(host.manager.fetches.sessions) == 0
        assert member.fetch(wanted(A)).session_id > 0

    def test_a_full_request_closes_the_session_that_it_names(self) -> None:
        host = led(A)
        member = Member(host)
        member.fetch(wanted(A))
        old = only_session(host)
        member.handler.reset()
        member.fetch(wanted(A))
        assert only_session(host) is not old
        assert old.closed

    def test_a_last_request_leaves_none(self) -> None:
        host = led(A)
        member = Member(host)
        member.fetch(wanted(A))
        session = only_session(host)
        (answer,) = member.send(SessionRequest(tuple(wanted(A).values()), session.id, -1))
        assert (len(answer.partitions), answer.session_id) == (1, 0)
        assert len(host.manager.fetches.sessions) == 0

    def test_nobody_closes_or_uses_anothers(self) -> None:
        host = led(A)
        Member(host, 2).fetch(wanted(A))
        session = only_session(host)
        for other in (Member(host), Member(host, 3)):
            other.send(SessionRequest((), session.id, -1))
            assert only_session(host) is session
            (answer,) = other.send(SessionRequest((), session.id, 1))
            assert answer.error_code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    @pytest.mark.parametrize("epoch", [1, 3, 7, MAX_SESSION_EPOCH])
    def test_another_epoch_than_the_next_is_refused(self, epoch: int) -> None:
        """A repetition, or a request that was overtaken: nothing of it counts."""
        host = led(A, B)
        member = Member(host, 2)
        member.fetch(wanted(A))
        member.fetch(wanted(A))
        session = only_session(host)
        late = SessionRequest(
            tuple(wanted(B, offset=5).values()), session.id, epoch, ((A, TOPIC_ID),)
        )
        (answer,) = member.send(late)
        assert answer == FetchResponse((), ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        assert {number for _, number in session.partitions} == {0}
        assert member.fetch(wanted(A)).error_code is ErrorCode.NONE

    def test_unknown_id(self) -> None:
        host = led(A)
        (answer,) = Member(host, 2).send(SessionRequest((), 77, 3))
        assert answer == FetchResponse((), ErrorCode.FETCH_SESSION_ID_NOT_FOUND)

    def test_epochs_go_round(self) -> None:
        """After 2**31 − 1 comes 1: 0 and −1 mean something else."""
        host = led(A)
        member = Member(host)
        member.fetch(wanted(A))
        only_session(host).epoch = member.handler._epoch = MAX_SESSION_EPOCH
        member.fetch(wanted(A))
        member.fetch(wanted(A))
        assert only_session(host).epoch == 2 == next_session_epoch(1)

    def test_an_answer_that_was_overtaken(self) -> None:
        """While a fetch waits, the next of its session comes: the first is told so, whenever."""
        host = led(A)
        member = Member(host)
        member.fetch(wanted(A))
        session = only_session(host)
        first = member.send(SessionRequest((), session.id, 1), wait_ms=500)
        second = member.send(SessionRequest((), session.id, 2), wait_ms=500)
        host.append(1, A)
        host.runtime.advance(500)
        assert first[0].error_code is ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert second[0].error_code is ErrorCode.NONE

    def test_what_diverges_is_answered_until_it_is_cut(self) -> None:
        """testDivergingEpoch"""
        host = led(A, B, records=1)
        member = Member(host, 2)

        def ask(offset: int) -> list[tuple[TopicPartition, EpochEndOffset | None]]:
            parts = wanted(A, B, offset=1)
            parts[A] = parts[A]._replace(fetch_offset=offset, last_fetched_epoch=0)
            return [(p.tp, p.diverging_epoch) for p in member.fetch(parts).partitions]

        cut = EpochEndOffset(0, 1)
        assert ask(3) == [(A, cut), (B, None)]
        for _ in range(3):
            assert ask(3) == [(A, cut)]
        assert ask(1) == [(A, None)]
        assert ask(1) == []

    def test_what_is_named_is_answered(self) -> None:
        """Its owner may have dropped the answer before."""
        host = led(A, B)
        member = Member(host, 2)
        resting(host, member, A, B)
        member.handler.doubt(B)
        assert [part.tp for part in member.fetch(wanted(A, B)).partitions] == [B]
        assert member.fetch(wanted(A, B)).partitions == ()

    def test_a_reader_who_changes_what_it_may_see(self) -> None:
        """What was at the end for one isolation level is not for another."""
        host = led(A)
        host.produce({A: produced(transactional=True, count=2)}, acks=1)
        for replica in (2, 3):
            host.replicate(2, replica, A)
        member = Member(host)
        for _ in range(3):
            assert not [p for p in member.fetch(wanted(A), committed=True).partitions if p.records]
        assert not only_session(host).active
        assert [p.tp for p in member.fetch(wanted(A)).partitions if p.records] == [A]

    def test_errors_are_told_each_time_until_they_are_gone(self) -> None:
        host = led(A)
        member = Member(host)
        for _ in range(3):
            answer = member.fetch(wanted(A, B))
            assert answer.partitions[-1].tp == B
            assert answer.partitions[-1].error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        host.lead(B, replicas=(1, 2, 3))
        (answered,) = member.fetch(wanted(A, B)).partitions
        assert (answered.tp, answered.error_code) == (B, ErrorCode.NONE)
        assert member.fetch(wanted(A, B)).partitions == ()


class TestNews:
    """A partition at rest is not looked at; whatever could change its answer ends the rest."""

    EVENTS = (
        "append",
        "high watermark",
        "delete records",
        "retention",
        "leader epoch",
        "isr",
        "follow",
        "stop",
        "another topic",
        "failed log",
    )

    def cause(self, host: Host, event: str) -> None:
        if event == "append":
            host.append(1, A)
        elif event == "high watermark":
            host.append(1, A)
            for replica in (2, 3):
                host.replicate(1, replica, A)
        elif event == "delete records":
            host.append(2, A)
            for replica in (2, 3):
                host.replicate(2, replica, A)
            host.delete_records(1, A)
        elif event == "retention":
            log = host.partition(A).local_log()
            log.roll()
            host.append(1, A)
            log.replica.maybe_increment_high_watermark(1)
            log.replica.maybe_increment_log_start_offset(1)
        elif event == "leader epoch":
            host.lead(A, epoch=1, replicas=(1, 2, 3))
        elif event == "isr":
            host.lead(A, partition_epoch=1, replicas=(1, 2, 3), isr=(1, 3))
        elif event == "follow":
            host.follow(A, epoch=1, replicas=(1, 2, 3))
        elif event == "stop":
            host.stop(A)
        elif event == "another topic":
            host.stop(A)
            host.lead(A, replicas=(1, 2, 3), topic_id=uuid.UUID(int=9))
        else:
            host.partition(A).mark_offline()

    @for_each("replica", [-1, 2])
    @for_each("event", EVENTS)
    def test_ends_the_rest(self, event: str, replica: int) -> None:
        host = led(A, B)
        member = Member(host, replica)
        resting(host, member, A, B)
        self.cause(host, event)
        assert [cached.part.tp for cached in only_session(host).active] == [A]

    @pytest.mark.slow
    @for_each("replica", [-1, 2])
    @for_each("event", EVENTS)
    def test_is_told_as_without_a_session(self, event: str, replica: int) -> None:
        host = led(A, B)
        member = Member(host, replica)
        resting(host, member, A, B)
        self.cause(host, event)
        reads = host.manager.fetches._reader
        request = FetchRequest((), replica, EPOCH + replica if replica >= 0 else -1)
        (now,) = reads.read_again(request, [(wanted(A)[A], None, None)])
        member.fetch(wanted(A, B))
        assert member.view[A] == now.response._replace(records=b"")

    def test_at_rest_costs_no_look(self) -> None:
        host = led(*TPS)
        member = Member(host, 2)
        resting(host, member, *TPS)
        for tp in TPS:
            host.partition(tp).leader.fetch = None  # type: ignore[method-assign, assignment]
        for _ in range(5):
            assert member.fetch(wanted(*TPS)).partitions == ()

    def test_one_outside_the_isr_does_not_rest(self) -> None:
        """R-30: each of its fetches may be the one that lets it in."""
        host = Host()
        host.lead(A, replicas=(1, 2, 3), isr=(1, 2))
        member = Member(host, 3)
        for _ in range(4):
            member.fetch(wanted(A))
        assert len(only_session(host).active) == 1

    def test_one_who_may_be_sent_elsewhere_does_not_rest(self) -> None:
        """Which replica is near and in sync changes without news of the partition."""
        selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
        host = led(A, replica_selector=selector)
        member = Member(host)
        for _ in range(4):
            member.fetch(wanted(A), rack_id="r")
        assert len(only_session(host).active) == 1

    def test_nobody_hears_of_a_session_that_is_over(self) -> None:
        """Else each reconnect would leave something behind at each idle partition."""
        host = led(*TPS)
        for replica in (-1, 2):
            for _ in range(20):
                member = Member(host, replica)
                for _ in range(3):
                    member.fetch(wanted(*TPS))
                host.manager.fetches.sessions.remove(only_session(host))
        for tp in TPS:
            partition = host.partition(tp)
            assert partition.listeners.waiting == ()
            assert partition.local_log().core.listeners.waiting == ()
            known = partition.progress_of(2)
            assert known is not None
            assert known.idle is None

    def test_nobody_hears_of_a_partition_that_is_forgotten(self) -> None:
        host = led(A, B)
        member = Member(host, 2)
        resting(host, member, A, B)
        member.fetch(wanted(B))
        assert host.partition(A).listeners.waiting == ()
        assert host.partition(A).local_log().core.listeners.waiting == ()

    def test_watermarks_that_its_owner_ignored_are_told_again(self) -> None:
        """Those beside a diverging epoch (R-120), though they be the same later."""
        host = led(A)
        Member(host, 2).fetch(wanted(A))
        (cached,) = only_session(host).partitions.values()
        plain = FetchPartitionResponse(A, high_watermark=5, log_start_offset=0)
        cached.note_answer(plain._replace(diverging_epoch=EpochEndOffset(1, 3)))
        assert not cached.would_repeat(plain)
        cached.note_answer(plain)
        assert cached.would_repeat(plain)


class TestProgress:
    """R-7 without a look at each partition."""

    def known(self, host: Host, tp: TopicPartition = A, replica: int = 2) -> Any:
        progress = host.partition(tp).progress_of(replica)
        assert progress is not None
        return settled(progress)

    def test_time_goes_on_at_rest(self) -> None:
        host = led(A, B)
        member = Member(host, 2)
        resting(host, member, A, B)
        for _ in range(5):
            host.runtime.advance(7_000)
            member.fetch(wanted(A, B))
        now = host.runtime.now_ms()
        assert self.known(host).caught_up_ms == self.known(host).last_fetch_ms == now

    def test_what_is_appended_later_finds_it_in_sync(self) -> None:
        """After an hour at rest, one record does not push the follower out."""
        host = led(A)
        members = [Member(host, 2), Member(host, 3)]
        for _ in range(300):
            for member in members:
                member.fetch(wanted(A))
            host.runtime.advance(12_000)
        host.append(1, A)
        host.runtime.advance(12_000)
        assert host.isr_channel.items == []
        host.runtime.advance(60_000)
        assert [broker for broker, _ in host.isr_channel.items[0].new_isr] == [1]

    def test_silence_is_silence(self) -> None:
        """The last fetch before the append counts, not the first after it."""
        host = led(A)
        member = Member(host, 2)
        resting(host, member, A)
        at = host.runtime.now_ms()
        host.runtime.advance(20_000)
        host.append(1, A)
        host.runtime.advance(5_000)
        member.fetch(wanted(A))
        assert self.known(host).caught_up_ms == at
        assert self.known(host).last_fetch_ms == host.runtime.now_ms()

    def test_forgotten_is_silence(self) -> None:
        host = led(A, B)
        member = Member(host, 2)
        resting(host, member, A, B)
        at = host.runtime.now_ms()
        host.runtime.advance(1000)
        member.fetch(wanted(B))
        assert self.known(host).last_fetch_ms == at
        assert self.known(host, B).last_fetch_ms == host.runtime.now_ms()

    def test_an_earlier_incarnation_is_silence(self) -> None:
        """R-8: its session is over once a later one is known."""
        host = led(A)
        member = Member(host, 2)
        resting(host, member, A)
        at = host.runtime.now_ms()
        host.brokers = tuple(
            b._replace(broker_epoch=b.broker_epoch + 50) if b.registration.broker_id == 2 else b
            for b in host.brokers
        )
        host.tell()
        host.runtime.advance(1000)
        answer = member.fetch(wanted(A))
        assert answer.partitions[0].error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert self.known(host).last_fetch_ms == at

    def test_a_fetch_beside_the_session_is_found_out(self) -> None:
        """A late full request with an old offset: the session looks again, and sets it right."""
        host = led(A, records=0)
        member = Member(host, 2)
        host.append(1, A)
        member.fetch(wanted(A, offset=1))
        for _ in range(3):
            member.fetch(wanted(A, offset=1))
        host.replicate(0, 2, A)
        assert self.known(host).log_end == 0
        member.fetch(wanted(A, offset=1))
        assert self.known(host).log_end == 1

    def test_two_sessions_do_not_keep_each_other_awake(self) -> None:
        host = led(A)
        members = [Member(host, 2), Member(host, 3)]
        for _ in range(3):
            for member in members:
                member.fetch(wanted(A))
        assert [len(s.active) for s in host.manager.fetches.sessions._sessions.values()] == [0, 0]


class TestWaiting:
    def test_an_append_answers(self) -> None:
        host = led(*TPS)
        member = Member(host, 2)
        resting(host, member, *TPS)
        answers = member.ask(wanted(*TPS))
        assert not answers
        host.append(1, C)
        assert member.take(answers) == [C]

    def test_a_consumer_waits_for_the_high_watermark(self) -> None:
        host = led(A, B)
        member = Member(host)
        resting(host, member, A, B)
        answers = member.ask(wanted(A, B))
        host.append(1, A)
        host.append(1, A)
        assert not answers
        for replica in (2, 3):
            host.replicate(2, replica, A)
        assert member.take(answers) == [A]

    def test_a_follower_does_not(self) -> None:
        """The high watermark comes with the next answer (R-95)."""
        host = led(A)
        member = Member(host, 2)
        host.append(1, A)
        for _ in range(3):
            member.fetch(wanted(A, offset=1))
        answers = member.ask(wanted(A, offset=1))
        host.replicate(1, 3, A)
        assert host.partition(A).high_watermark == 1
        assert not answers
        host.runtime.advance(500)
        assert member.take(answers) == [A]
        assert member.view[A].high_watermark == 1

    def test_min_bytes_are_of_all_partitions(self) -> None:
        host = led(A, B)
        member = Member(host, 2)
        resting(host, member, A, B)
        size = len(batch())
        answers = member.ask(wanted(A, B), min_bytes=3 * size)
        for tp in (A, B):
            host.append(1, tp)
            assert not answers
        host.append(1, A)
        assert sorted(member.take(answers)) == [A, B]

    @pytest.mark.parametrize("replica", [-1, 2])
    def test_a_change_of_role_answers(self, replica: int) -> None:
        host = led(A, B)
        member = Member(host, replica)
        asked = {tp: p._replace(current_leader_epoch=0) for tp, p in wanted(A, B).items()}
        for _ in range(3):
            member.fetch(asked)
        answers = member.ask(asked)
        host.lead(B, epoch=1, replicas=(1, 2, 3))
        assert member.take(answers) == [B]
        assert member.view[B].error_code is ErrorCode.FENCED_LEADER_EPOCH

    def test_deletion_is_told_when_the_time_is_up(self) -> None:
        host = led(A, B)
        member = Member(host, 2)
        host.append(2, A)
        for _ in range(2):
            for replica in (2, 3):
                host.replicate(2, replica, A)
        for _ in range(3):
            member.fetch(wanted(A, offset=2) | wanted(B))
        answers = member.ask(wanted(A, offset=2) | wanted(B))
        host.delete_records(1, A)
        assert not answers
        host.runtime.advance(500)
        assert member.take(answers) == [A]
        assert member.view[A].log_start_offset == 1

    def test_nothing_is_answered_with_nothing(self) -> None:
        host = led(*TPS)
        member = Member(host, 2)
        resting(host, member, *TPS)
        answers = member.ask(wanted(*TPS))
        host.runtime.advance(500)
        assert member.take(answers) == []

    def test_waits_at_one_place_whatever_its_size(self) -> None:
        host = led(*TPS)
        member = Member(host, 2)
        resting(host, member, *TPS)
        member.ask(wanted(*TPS))
        assert host.manager.waiting.follower_fetch.watched == 1

    def test_size_limits_are_shared_fairly(self) -> None:
        """What was served goes behind the others."""
        host = led(*TPS, records=3)
        member = Member(host)
        for tp in TPS:
            for replica in (2, 3):
                host.replicate(3, replica, tp)
        served = []
        for _ in range(8):
            answer = member.fetch(wanted(*TPS), max_bytes=10)
            served.append([part.tp for part in answer.partitions if part.records])
        assert all(len(one) == 1 for one in served)
        assert {tp for one in served[1:5] for tp in one} == set(TPS)

    def test_nobody_waits_in_a_session_that_ended(self) -> None:
        """Evicted, or closed by its owner, who lost an answer and began anew."""
        host = led(A, fetch_session_slots=1)
        member = Member(host)
        resting(host, member, A)
        answers = member.ask(wanted(A))
        Member(host, 2).fetch(wanted(A))
        (answer,) = answers
        assert answer == FetchResponse((), ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        host = led(A)
        member = Member(host)
        resting(host, member, A)
        answers = member.ask(wanted(A))
        member.handler.reset()
        member.fetch(wanted(A))
        assert answers[0].error_code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    def test_nor_where_the_next_request_is_there(self) -> None:
        host = led(A)
        member = Member(host, 2)
        resting(host, member, A)
        first = member.ask(wanted(A))
        session = only_session(host)
        second = member.send(SessionRequest((), session.id, session.epoch), wait_ms=500)
        assert first[0].error_code is ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert not second
        host.append(1, A)
        assert [part.tp for part in second[0].partitions] == [A]


class TestInterleavings:
    """An append of another thread at each place between a look and the rest, or the wait."""

    PLACES = ("before it hears", "after it hears", "after it is noted")

    def between(self, monkeypatch: pytest.MonkeyPatch, place: str, event: Any) -> None:
        done: list[bool] = []

        def once() -> None:
            if not done:
                done.append(True)
                event()

        watch, note = CachedPartition.watch, CachedPartition.note_by

        def watched(cached: CachedPartition, read: Any) -> None:
            if place == "before it hears":
                once()
            watch(cached, read)
            if place == "after it hears":
                once()

        def noted(cached: CachedPartition, partition: Any) -> bool:
            result = note(cached, partition)
            if place == "after it is noted":
                once()
            return result

        monkeypatch.setattr(CachedPartition, "watch", watched)
        monkeypatch.setattr(CachedPartition, "note_by", noted)

    @for_each("replica", [-1, 2])
    @for_each("place", PLACES)
    @for_each("what", ["append", "role"])
    def test_is_told_next(
        self, monkeypatch: pytest.MonkeyPatch, place: str, replica: int, what: str
    ) -> None:
        host = led(A, B)
        member = Member(host, replica)
        member.fetch(wanted(A, B))

        def event() -> None:
            if what == "append":
                log = host.partition(A).local_log()
                log.append_as_leader(batch(), 0)
                log.replica.maybe_increment_high_watermark(1)
            else:
                host.partition(A).delete()

        self.between(monkeypatch, place, event)
        member.fetch(wanted(A, B))
        named = [part.tp for part in member.fetch(wanted(A, B)).partitions]
        assert named == [A]

    @pytest.mark.parametrize("place", PLACES[:2])
    def test_answers_the_wait(self, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
        host = led(A, B)
        member = Member(host, 2)
        member.fetch(wanted(A, B))
        self.between(monkeypatch, place, lambda: host.append(1, A))
        answers = member.ask(wanted(A, B))
        assert member.take(answers) == [A]

    def test_another_thread_finds_it_stirred(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """News comes before the wait is known; the event that goes with them comes after."""
        host = led(A)
        member = Member(host, 2)
        resting(host, member, A)
        on_append = host.manager.waiting.on_append
        late: list[Any] = []
        monkeypatch.setattr(host.manager.waiting, "on_append", lambda *a: late.append(a))
        answers = member.ask(wanted(A))
        host.append(1, A)
        assert not answers
        on_append(*late[0])
        assert member.take(answers) == [A]


class TestSecondLife:
    def test_of_a_topic_is_another_partition(self) -> None:
        host = led(A)
        member = Member(host, 2)
        resting(host, member, A)
        other = uuid.UUID(int=9)
        host.stop(A)
        host.lead(A, replicas=(1, 2, 3), topic_id=other)
        (told,) = member.fetch(wanted(A)).partitions
        assert told.error_code is ErrorCode.INCONSISTENT_TOPIC_ID
        assert told.topic_id == TOPIC_ID
        asked = {A: wanted(A)[A]._replace(topic_id=other)}
        (told,) = member.fetch(asked).partitions
        assert (told.error_code, told.topic_id) == (ErrorCode.NONE, other)
        assert set(only_session(host).partitions) == {(other.int, A.partition)}

    def test_a_topic_that_is_named_once_the_broker_knows_it_is_the_same(self) -> None:
        """A request names topics by id, and the name is looked up for each: were it another
        partition, the one without a name would be answered with records of an old offset."""
        host = led(A, records=5)
        part = wanted(A)[A]
        unknown = part._replace(tp=TopicPartition(unresolved_topic(TOPIC_ID), A.partition))
        member = Member(host, 2)
        (first,) = member.send(SessionRequest((unknown,), 0, 0))
        named = SessionRequest((part._replace(fetch_offset=5),), first.session_id, 1)
        (second,) = member.send(named)
        assert [(p.error_code, bytes(p.batches)) for p in second.partitions] == [
            (ErrorCode.NONE, b"")
        ]
        gone = SessionRequest((), first.session_id, 2, ((unknown.tp, TOPIC_ID),))
        (third,) = member.send(gone)
        assert third.session_id == 0

    def test_both_at_once(self) -> None:
        """Somebody asks for both: each has its own answer."""
        host = led(A)
        other = uuid.UUID(int=9)
        parts = wanted(A)[A], wanted(A)[A]._replace(topic_id=other)
        (answer,) = Member(host).send(SessionRequest(parts, 0, 0))
        assert [(p.topic_id, p.error_code) for p in answer.partitions] == [
            (TOPIC_ID, ErrorCode.NONE),
            (other, ErrorCode.INCONSISTENT_TOPIC_ID),
        ]
        assert len(only_session(host).partitions) == 2


class TestEviction:
    """R-144, Kafka's ``tryEvict``."""

    def cache(self, slots: int) -> FetchSessionCache:
        metadata = MetadataCache(1)
        metadata.is_alive = lambda broker_id: broker_id < 9  # type: ignore[method-assign]
        return FetchSessionCache(slots, metadata, random.Random(1))

    def create(self, cache: FetchSessionCache, size: int, replica: int, now_ms: int) -> int:
        parts = tuple(FetchPartition(TopicPartition("t", n), 0) for n in range(size))
        told = [FetchPartitionResponse(part.tp) for part in parts]
        return cache.create(FetchRequest(parts, replica), told, now_ms)

    def test_no_room(self) -> None:
        cache = self.cache(2)
        assert self.create(cache, 5, -1, 0)
        assert self.create(cache, 5, -1, 0)
        assert self.create(cache, 50, -1, MIN_EVICTION_MS) == 0
        assert (len(cache), cache.partitions, cache.evictions) == (2, 10, 0)

    def test_slots_of_zero(self) -> None:
        cache = self.cache(0)
        assert self.create(cache, 5, 2, 0) == 0

    def test_a_broker_pushes_out_a_consumer_of_any_age(self) -> None:
        cache = self.cache(2)
        consumer, follower = self.create(cache, 9, -1, 0), self.create(cache, 1, 2, 0)
        newer = self.create(cache, 1, 3, 1)
        assert set(cache._sessions) == {follower, newer} != {consumer}
        assert self.create(cache, 99, 4, 2) == 0  # brokers, and new
        assert cache.evictions == 1

    def test_who_only_says_to_be_a_broker_pushes_out_nobody(self) -> None:
        cache = self.cache(1)
        self.create(cache, 9, -1, 0)
        assert self.create(cache, 10, 12345, 1) == 0

    def test_the_larger_pushes_out_the_smaller_once_it_is_not_new(self) -> None:
        cache = self.cache(2)
        small, large = self.create(cache, 2, -1, 0), self.create(cache, 4, -1, 0)
        later = MIN_EVICTION_MS + 1
        for session in cache._sessions.values():
            session.used_ms = later
        assert self.create(cache, 2, -1, later) == 0
        newer = self.create(cache, 3, -1, later)
        assert set(cache._sessions) == {large, newer} != {small}

    def test_a_consumer_never_pushes_out_a_broker_that_is_awake(self) -> None:
        cache = self.cache(1)
        self.create(cache, 1, 2, 0)
        later = MIN_EVICTION_MS + 1
        next(iter(cache._sessions.values())).used_ms = later
        assert self.create(cache, 99, -1, later) == 0
        assert self.create(cache, 99, -1, later + MIN_EVICTION_MS) == 0
        assert self.create(cache, 1, -1, later + MIN_EVICTION_MS + 1)

    def test_the_stalest_goes_first(self) -> None:
        """testFetchSessionExpiration"""
        cache = self.cache(2)
        old, older = self.create(cache, 9, 2, 10), self.create(cache, 1, 2, 0)
        newer = self.create(cache, 1, -1, MIN_EVICTION_MS + 11)
        assert set(cache._sessions) == {old, newer} != {older}

    def test_ids_do_not_repeat_after_a_restart(self) -> None:
        ids = {
            self.create(FetchSessionCache(9, MetadataCache(1), random.Random(n)), 1, -1, 0)
            for n in range(50)
        }
        assert len(ids) == 50
        assert min(ids) > 0

    def test_many_strangers(self) -> None:
        """State by who asks is bounded by the slots, whatever replica they say to be."""
        host = led(A, fetch_session_slots=10)
        for replica in range(-1, 300):
            host.fetch(wanted(A)[A], replica=replica, session_epoch=0)
            host.fetch(wanted(A)[A], replica=replica)
        assert len(host.manager.fetches.sessions) == 10
        known = host.partition(A).role
        assert isinstance(known, Leadership)
        assert set(known.followers) == {2, 3}

    def test_too_many_partitions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("replication.replica_manager.fetch_sessions.MAX_PARTITIONS", 3)
        host = led(*TPS)
        member = Member(host)
        assert member.fetch(wanted(*TPS)).session_id == 0
        member.fetch(wanted(A, B, C))
        assert len(host.manager.fetches.sessions) == 1
        assert len(member.fetch(wanted(*TPS)).partitions) == 4
        assert len(host.manager.fetches.sessions) == 0


def test_news_of_a_partition_that_was_just_forgotten() -> None:
    """Whoever tells them took the list of listeners before; the partition may be back by then."""
    host = led(A, B)
    member = Member(host, 2)
    resting(host, member, A, B)
    late = host.partition(A).local_log().core.listeners.waiting
    assert late
    member.fetch(wanted(B))
    host.append(1, A)
    for wake in late:
        wake()
    assert A not in [part.tp for part in member.fetch(wanted(B)).partitions]
    member.fetch(wanted(A, B))
    for wake in late:
        wake()
    followed = wanted(B) | wanted(A, offset=1)
    host.append(1, A)
    answer = member.fetch(followed)
    assert [part.tp for part in answer.partitions] == [A]
    progress = host.partition(A).progress_of(2)
    assert progress is not None
    assert progress.log_end == 1
    member.fetch(followed)
    assert set(only_session(host).active) <= set(only_session(host).partitions.values())


def test_a_follower_whose_fetches_fail_is_not_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on with its session, and does not get what was appended."""
    host = led(A, B)
    member = Member(host, 2)
    resting(host, member, A, B)
    host.append(1, A)
    partition = host.partition(A)
    known = partition.progress_of(2)
    assert known is not None
    before = settled(known)

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise KafkaStorageError("unreadable")

    monkeypatch.setattr(partition.leader, "fetch", fail)
    for _ in range(3):
        host.runtime.advance(500)
        member.fetch(wanted(A, B))
    known = partition.progress_of(2)
    assert known is not None
    assert settled(known).caught_up_ms == before.caught_up_ms


def test_threads() -> None:
    """Appends on many partitions, roles that change, sessions that end, a follower that waits: it
    misses nothing."""
    runtime = ThreadRuntime("test")
    host = Host(runtime=runtime, threads=True)  # type: ignore[arg-type]
    tps = [TopicPartition("t", number) for number in range(12)]
    for tp in tps:
        host.lead(tp, replicas=(1, 2))
    stop = threading.Event()
    failures: list[BaseException] = []

    def produce(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(300):
            host.produce({rng.choice(tps): batch()}, acks=1)

    def lead() -> None:
        epoch = 0
        while not stop.wait(0.01):
            epoch += 1
            host.order(*[host.change(tp, epoch=epoch, replicas=(1, 2)) for tp in tps[:3]])
            for session in list(host.manager.fetches.sessions._sessions.values()):
                if epoch % 7 == 0:
                    host.manager.fetches.sessions.remove(session)

    offsets = dict.fromkeys(tps, 0)
    member = Member(host, 2)

    def follow() -> None:
        try:
            while not stop.is_set():
                round_trip(member, 100)
        except BaseException as error:
            failures.append(error)

    def round_trip(member: Member, wait_ms: int) -> None:
        parts = {tp: wanted(tp, offset=offsets[tp])[tp] for tp in tps}
        asked = member.request(parts)
        done = threading.Event()
        answers = Answers()

        def respond(response: Any) -> None:
            answers(response)
            done.set()

        host.manager.fetches.fetch(
            FetchRequest(
                asked.partitions,
                2,
                EPOCH + 2,
                wait_ms,
                session_id=asked.session_id,
                session_epoch=asked.session_epoch,
                forgotten=asked.forgotten,
            ),
            respond,
        )
        assert done.wait(patience())
        for part in member.receive(asked, answers[0]).partitions:
            if part.records:
                offsets[part.tp] = (
                    host.partition(part.tp)
                    .local_log()
                    .read(offsets[part.tp], max_bytes=len(part.records))
                    .end_offset
                )

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(3)]
    others = [threading.Thread(target=lead), threading.Thread(target=follow)]
    try:
        for thread in [*threads, *others]:
            thread.start()
        for thread in threads:
            thread.join()
        stop.set()
        for thread in others:
            thread.join()
        assert not failures
        for _ in range(5):  # the same session: what it did not hear of, it will never tell
            round_trip(member, 0)
        ends = {tp: host.partition(tp).local_log().log_end_offset for tp in tps}
        assert sum(ends.values()) > 600  # an end of a leadership refuses some
        assert offsets == ends
    finally:
        stop.set()
        runtime.close()
