"""What a leader believes of a follower with a session is what the follower's fetches prove."""

from __future__ import annotations

import random

from checkpoints.types import TopicPartition
from replication.common.messages import FetchPartition
from replication.decisions.isr import settled
from tests.support.cases import for_each
from tests.support.fetch_sessions import Member
from tests.support.replica_managers import TOPIC_ID, Host

TPS = [TopicPartition("t", number) for number in range(4)]


@for_each("seed", range(12))
def test_a_follower_is_not_believed_to_have_more_than_it_asked_behind(seed: int) -> None:
    """It stalls, leaves partitions out, drops what it was answered, has news that it did not see:
    the time at which it held everything is never later than the append of what it asks for."""
    rng = random.Random(seed)
    host = Host(replica_lag_time_max_ms=1000)
    for tp in TPS:
        host.lead(tp, replicas=(1, 2))
    began_ms = host.runtime.now_ms()
    member, offsets = Member(host, 2), dict.fromkeys(TPS, 0)
    appended_ms: dict[TopicPartition, list[int]] = {tp: [] for tp in TPS}
    held_ms, fetched = dict.fromkeys(TPS, began_ms), dict.fromkeys(TPS, 0)
    for _ in range(100):
        now, kind = host.runtime.now_ms(), rng.random()
        if kind < 0.3:
            tp = rng.choice(TPS)
            host.append(1, tp)
            appended_ms[tp].append(now)
        elif kind < 0.75:
            asked = [tp for tp in TPS if rng.random() < 0.9] or TPS
            for tp in asked:
                offset = fetched[tp] = offsets[tp]
                newer = appended_ms[tp][offset:]
                held_ms[tp] = max(held_ms[tp], newer[0] if newer else now)
            parts = {
                tp: FetchPartition(tp, offsets[tp], log_start_offset=0, topic_id=TOPIC_ID)
                for tp in asked
            }
            for part in member.fetch(parts).partitions:
                if part.records and rng.random() < 0.5:
                    offsets[part.tp] = len(appended_ms[part.tp])
                elif part.records:
                    member.handler.doubt(part.tp)
        else:
            host.runtime.advance(rng.choice([1, 10, 300, 1100]))
        for tp in TPS:
            partition = host.partition(tp)
            known = partition.progress_of(2)
            assert known is not None
            assert settled(known).caught_up_ms <= held_ms[tp]
            if 2 in partition.isr.maximal:
                assert partition.high_watermark <= fetched[tp]
