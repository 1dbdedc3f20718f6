"""Real threads: everybody is answered exactly once, whatever happens at the same time."""

from __future__ import annotations

import threading
from collections import Counter

from replication.common.error_codes import ErrorCode
from replication.common.messages import FetchRequest, ProducePartition, ProduceRequest
from replication.common.runtime import ThreadRuntime
from tests.support.builders import batch
from tests.support.replica_managers import EPOCH, TP, Host, part
from tests.support.until import patience

PRODUCERS, REQUESTS = 4, 60


def test_producers_a_follower_and_changing_roles() -> None:
    """R-81, R-85, R-88: each acks=all is committed, fenced or timed out, once; none is lost. What
    was acknowledged is below the high watermark."""
    runtime = ThreadRuntime("test")
    host = Host(runtime=runtime)  # type: ignore[arg-type]
    partition = host.lead()
    answered: Counter[int] = Counter()
    codes: Counter[ErrorCode] = Counter()
    acknowledged: list[int] = []
    all_answered = threading.Event()
    lock = threading.Lock()
    stop = threading.Event()

    def produce(producer: int) -> None:
        for number in range(REQUESTS):
            key = producer * REQUESTS + number

            def respond(response: object, key: int = key) -> None:
                (found,) = response.partitions  # type: ignore[attr-defined]
                with lock:
                    answered[key] += 1
                    codes[found.error_code] += 1
                    if found.error_code is ErrorCode.NONE:
                        acknowledged.append(found.base_offset)
                        assert partition.high_watermark > found.base_offset
                    if len(answered) == PRODUCERS * REQUESTS:
                        all_answered.set()

            parts = (ProducePartition(TP, batch()),)
            host.manager.writes.produce(ProduceRequest(-1, 2000, parts), respond)

    def follow() -> None:
        offset = 0
        while not stop.is_set():
            done = threading.Event()
            request = FetchRequest((part(offset, log_start=0),), 2, EPOCH + 2, max_wait_ms=20)
            host.manager.fetches.fetch(request, lambda response, done=done: done.set())  # type: ignore
            assert done.wait(patience())
            offset = partition.log_end_offset

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(PRODUCERS)]
    follower = threading.Thread(target=follow)
    try:
        for thread in [*threads, follower]:
            thread.start()
        for epoch in range(1, 6):  # led on, under new epochs, while they produce
            host.lead(epoch=epoch)
        for thread in threads:
            thread.join()
        assert all_answered.wait(patience())
        assert set(answered.values()) == {1}
        assert len(set(acknowledged)) == len(acknowledged)
        assert codes[ErrorCode.NONE] > 0
        late = threading.Event()
        parts = (ProducePartition(TP, batch()),)
        stop.set()
        follower.join()
        host.manager.writes.produce(ProduceRequest(-1, 60_000, parts), lambda response: late.set())
        host.follow(epoch=9, leader=-1)
        assert late.wait(patience())
    finally:
        stop.set()
        runtime.close()
