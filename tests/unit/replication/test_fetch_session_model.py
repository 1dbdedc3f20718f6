"""Two brokers live through the same random history. The followers of one fetch through sessions,
those of the other ask for everything each time, as before there were sessions. All that can be
seen must be equal after each step: what a requester believes, what the leader knows of it, the ISR,
the high watermark."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.common.messages import CONSUMER, FetchPartition, FetchPartitionResponse
from replication.decisions.isr import settled
from tests.support.builders import batch
from tests.support.cases import for_each
from tests.support.fetch_sessions import Member
from tests.support.replica_managers import EPOCH, Host

TPS = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)]
REQUESTERS = (2, 3, CONSUMER)
STEPS = 120


class World:
    """One broker with its requesters; a twin does the same with other requesters."""

    def __init__(self, *, sessions: bool) -> None:
        slots = 2 if sessions else 0  # one too few: they push each other out
        self.host = Host(replica_lag_time_max_ms=1000, fetch_session_slots=slots)
        self.members = {n: Member(self.host, n, sessions=sessions) for n in REQUESTERS}

    def seen(self) -> dict[TopicPartition, Any]:
        state: dict[TopicPartition, Any] = {}
        for tp, partition in self.host.manager.partitions.items():
            log = partition.log
            followers = {n: partition.progress_of(n) for n in (2, 3)}
            state[tp] = (
                partition.role.leader_epoch,
                partition.isr,
                log and (log.log_start_offset, log.high_watermark, log.log_end_offset),
                {n: known and settled(known) for n, known in followers.items()},
            )
        return state


class History:
    """Draws what happens, and lets it happen to both."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.twins = World(sessions=True), World(sessions=False)
        self.epochs = dict.fromkeys(TPS, 0)
        self.ids = {"t": uuid.UUID(int=1), "u": uuid.UUID(int=2)}
        self.offsets = {(n, tp): 0 for n in REQUESTERS for tp in TPS}
        self.wants = {n: set(TPS) for n in REQUESTERS}
        self.tokens = 0
        for tp in TPS:
            self.order(tp, lead=True)

    def both(self, do: Callable[[World], Any]) -> list[Any]:
        return [do(world) for world in self.twins]

    # -- events --------------------------------------------------------------------------------

    def order(self, tp: TopicPartition, *, lead: bool) -> None:
        epoch = self.epochs[tp]
        isr = self.rng.choice([(1, 2, 3), (1, 2), (1,)])
        leader = 1 if lead else 2
        self.both(
            lambda w: w.host.order(
                w.host.change(
                    tp,
                    leader=leader,
                    epoch=epoch,
                    replicas=(1, 2, 3),
                    isr=isr,
                    topic_id=self.ids[tp.topic],
                )
            )
        )

    def append(self) -> None:
        tp, count = self.rng.choice(TPS), self.rng.randint(1, 3)
        self.both(lambda w: w.host.produce({tp: batch(count=count)}, acks=1))

    def elect(self) -> None:
        tp = self.rng.choice(TPS)
        self.epochs[tp] += self.rng.randint(1, 2)
        self.order(tp, lead=self.rng.random() < 0.8)

    def change_isr(self) -> None:
        """The controller does, under the same leader epoch."""
        tp, isr = self.rng.choice(TPS), self.rng.choice([(1, 2, 3), (1, 3), (1,)])

        def do(world: World) -> None:
            partition = world.host.manager.partitions.get(tp)
            if partition is not None:
                world.host.order(
                    world.host.change(
                        tp,
                        epoch=self.epochs[tp],
                        partition_epoch=partition.partition_epoch + 1,
                        replicas=(1, 2, 3),
                        isr=isr,
                        topic_id=self.ids[tp.topic],
                        leader=partition.leader_id,
                    )
                )

        self.both(do)

    def commit_isr(self) -> None:
        """Of one partition: the order of proposals is that of the reads, which may differ."""
        proposed = sorted({item.tp for item in self.twins[1].host.isr_channel.items})
        if not proposed:
            return
        tp = self.rng.choice(proposed)

        def do(world: World) -> None:
            channel = world.host.isr_channel
            at = next(i for i, item in enumerate(channel.items) if item.tp == tp)
            channel.items.insert(0, channel.items.pop(at))
            channel._on_result.insert(0, channel._on_result.pop(at))
            channel.commit()

        self.both(do)

    def delete_records(self) -> None:
        tp = self.rng.choice(TPS)
        self.both(lambda w: w.host.delete_records(-1, tp))

    def clean_up(self) -> None:
        """Retention, which tells nobody."""
        tp = self.rng.choice(TPS)

        def do(world: World) -> None:
            partition = world.host.manager.partitions.get(tp)
            if partition is not None and partition.log is not None:
                log = partition.log
                log.roll()
                log.replica.maybe_increment_log_start_offset(
                    (log.log_start_offset + log.high_watermark + 1) // 2
                    if log.high_watermark > log.log_start_offset
                    else log.log_start_offset
                )

        self.both(do)

    def begin_a_second_life(self) -> None:
        topic = self.rng.choice(["t", "u"])
        tps = [tp for tp in TPS if tp.topic == topic]
        for tp in tps:
            self.both(lambda w, tp=tp: w.host.stop(tp, topic_id=self.ids[topic]))
        self.ids[topic] = uuid.UUID(int=self.rng.getrandbits(100))
        for tp in tps:
            self.epochs[tp] = 0
            self.order(tp, lead=True)

    def let_time_pass(self) -> None:
        ms = self.rng.choice([10, 100, 300, 700])
        self.both(lambda w: w.host.runtime.advance(ms))

    def restart_a_follower(self) -> None:
        """Another incarnation: its sessions are lost on both sides, and the old one may go on."""
        n = self.rng.choice([2, 3])

        def do(world: World) -> None:
            member = world.members[n]
            member.epoch += 10
            host = world.host
            host.brokers = tuple(
                b._replace(broker_epoch=member.epoch) if b.registration.broker_id == n else b
                for b in host.brokers
            )
            host.tell()
            member.handler = type(member.handler)()

        self.both(do)

    def zombie(self) -> None:
        """The incarnation before this one is not quite dead."""
        n = self.rng.choice([2, 3])
        wanted = self.wanted(n)

        def do(world: World) -> None:
            member = world.members[n]
            if member.epoch > EPOCH + n:
                stale = Member(world.host, n, sessions=member.sessions)
                stale.epoch = member.epoch - 10
                stale.fetch(wanted)

        self.both(do)

    def lose_a_session(self) -> None:
        sessions = self.twins[0].host.manager.fetches.sessions
        for session in list(sessions._sessions.values()):
            if self.rng.random() < 0.5:
                sessions.remove(session)

    def choose(self) -> None:
        n = self.rng.choice(REQUESTERS)
        self.wants[n] = {tp for tp in TPS if self.rng.random() < 0.8}

    # -- fetches -------------------------------------------------------------------------------

    def wanted(self, n: int) -> dict[TopicPartition, FetchPartition]:
        fences = self.rng.random() < 0.5
        return {
            tp: FetchPartition(
                tp,
                self.offsets[n, tp],
                log_start_offset=0,
                current_leader_epoch=self.epochs[tp] if fences else -1,
                topic_id=self.ids[tp.topic],
            )
            for tp in sorted(self.wants[n])
        }

    def fetch(self) -> None:
        n = self.rng.choice(REQUESTERS)
        wanted = self.wanted(n)
        for _ in range(self.rng.choice([1, 1, 3])):
            self.fetch_once(n, wanted)

    def fetch_once(self, n: int, wanted: dict[TopicPartition, FetchPartition]) -> None:
        if not wanted:
            return
        with_session, without = self.twins
        member, plain = with_session.members[n], without.members[n]
        fate = self.rng.random()
        committed = n == CONSUMER and self.rng.random() < 0.2
        if fate < 0.1:  # the answer is lost
            asked = member.request(wanted)
            member.send(asked)
            lost = member.handler._epoch
            member.handler.reset()
            plain.send(plain.request(wanted))
            # The session may not have been what the requester thinks: then nothing was read.
            member.fetch(wanted)
            plain.fetch(wanted)
            assert lost >= 0
            return
        answer = member.fetch(wanted, committed=committed)
        full = plain.fetch(wanted, committed=committed)
        found = {part.tp: part for part in answer.partitions}
        for part in full.partitions:
            mine = found.get(part.tp)
            if mine is None:  # nothing new: no records, and what is believed is right
                assert not part.records
                assert part.error_code is ErrorCode.NONE
            else:
                assert _whole(mine) == _whole(part)
        assert member.view == {part.tp: part._replace(records=b"") for part in full.partitions}
        for part in full.partitions:
            if part.records:
                (log,) = (without.host.partition(part.tp).local_log(),)
                read = log.read(self.offsets[n, part.tp], max_bytes=len(part.records))
                self.offsets[n, part.tp] = read.end_offset
            elif part.error_code is ErrorCode.OFFSET_OUT_OF_RANGE:
                self.offsets[n, part.tp] = without.host.partition(part.tp).log_start_offset
            elif part.error_code is ErrorCode.INCONSISTENT_TOPIC_ID:
                self.offsets[n, part.tp] = 0

    def repeat(self) -> None:
        """A request arrives a second time, or late: nothing of it counts, but in a full one."""
        n = self.rng.choice(REQUESTERS)
        wanted = self.wanted(n)
        member = self.twins[0].members[n]
        if not wanted or member.handler._epoch == 0:
            return
        asked = member.request(wanted)
        (response,) = member.send(asked)
        before = self.twins[0].seen()
        (second,) = member.send(asked)
        assert second.error_code in (
            ErrorCode.INVALID_FETCH_SESSION_EPOCH,
            ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        )
        assert self.twins[0].seen() == before
        member.receive(asked, response)
        if response.error_code:
            return
        plain = self.twins[1].members[n]
        plain.fetch(wanted)
        for tp in list(member.view):
            if tp not in wanted:
                del member.view[tp]
        assert member.view == plain.view

    def step(self) -> None:
        events: list[tuple[int, Callable[[], None]]] = [
            (30, self.fetch),
            (10, self.append),
            (8, self.let_time_pass),
            (4, self.commit_isr),
            (3, self.elect),
            (3, self.change_isr),
            (2, self.delete_records),
            (2, self.clean_up),
            (1, self.begin_a_second_life),
            (2, self.choose),
            (1, self.restart_a_follower),
            (1, self.zombie),
            (2, self.lose_a_session),
            (2, self.repeat),
        ]
        (event,) = self.rng.choices([e for _, e in events], [weight for weight, _ in events])
        event()
        ours, theirs = (world.seen() for world in self.twins)
        assert ours == theirs, event.__name__


def _whole(part: FetchPartitionResponse) -> FetchPartitionResponse:
    return part._replace(records=bytes(part.records))


@for_each("seed", range(25), at_once=9)
def test_a_session_hides_nothing(seed: int) -> None:
    history = History(seed)
    for _ in range(STEPS):
        history.step()
