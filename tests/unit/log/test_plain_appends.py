"""One native call for batches that ask for nothing special: it does what the long way does."""

from __future__ import annotations

import random
import struct
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from logstore.common.config import LogConfig
from logstore.common.errors import InvalidTimestampError, LogstoreError, StorageFailedError
from logstore.kernels import WriteLock, crc32c
from logstore.log import LogOwner, PartitionLog
from logstore.log.writing.recent import RecentAppends, RecentBudget
from logstore.segments.producer_state import AppendOrigin
from logstore.testing import ManualClock
from tests.support.builders import NOW, Disk, batch, produced
from tests.support.cases import for_each
from tests.support.forked import held_by_another_thread, in_child
from tests.support.until import until
from tests.support.waiting import eager_switching, race

PLAIN = ("append_plain_as_leader", "append_plain_as_follower", "append_plain_own")


def opened(directory: Path, plain: bool, clock: ManualClock, **config: Any) -> PartitionLog:
    """A log; if not ``plain``, one that appends everything the long way."""
    log = PartitionLog.open(
        directory / "t-0",
        LogConfig(segment_index_bytes=600, retention_ms=-1, **config),
        clock=clock,
        owner=LogOwner(replicated=config.get("segment_ms", 0) == 1000),
    )
    if not plain:
        for name in PLAIN:
            setattr(log.state, name, lambda *_: None)
    return log


def some_batches(rng: random.Random, base: int, epoch: int, now: int) -> bytes:
    made = []
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        count, kind = rng.choice((1, 1, 3)), rng.random()
        fields: dict[str, Any] = {"timestamp": now + rng.choice((0, 0, -9, 9)), "epoch": epoch}
        fields |= {"value": bytes(rng.choice((0, 40, 300))), "key": rng.choice((b"k", b"k", None))}
        if kind < 0.05:
            fields["timestamp"] = now + 10**9
        made.append(batch(base, count, **fields))
        if 0.05 < kind < 0.1:
            made[-1] = made[-1][:-1] + b"?"
        base += count if base else 0
    return b"".join(made)


def step(rng: random.Random, log: PartitionLog, now: int) -> Any:
    """One call, which is the same for the same state of ``rng`` and of the log."""
    kind, end, epoch = rng.random(), log.log_end_offset, log.epochs.latest
    if kind < 0.35:
        data = some_batches(rng, 0, 0, now)
        origin = rng.choice((AppendOrigin.CLIENT, AppendOrigin.COORDINATOR))
        return log.append_as_leader(data, max(epoch + (rng.random() < 0.1), 0), origin)
    if kind < 0.6:
        data = some_batches(rng, end + rng.choice((0, 0, 0, 2)), max(epoch, 0), now)
        return log.replica.append_as_follower(data, rng.choice((None, max(epoch, 0), 0)))
    if kind < 0.85:
        rows = [(b"k", bytes(rng.choice((0, 40, 300))), now)] * rng.choice((1, 2))
        return log.append(rows, sync=rng.random() < 0.2)
    if kind < 0.9:
        return log.append_as_leader(produced(1, rng.choice((0, 1, 2))), max(epoch, 0))
    if kind < 0.93:
        return log.truncate_to(rng.randint(log.log_start_offset, end))
    if kind < 0.96:
        return log.replica.update_high_watermark(rng.randint(0, end))
    return log.roll()


def outcome(rng: random.Random, log: PartitionLog, now: int) -> tuple[Any, ...]:
    try:
        done = step(rng, log, now)
    except (LogstoreError, ValueError) as error:
        done = type(error), str(error).replace(log.directory, "")
    seen = log.snapshot
    fields = ("size", "offset_entries", "time_entries", "max_timestamp", "log_start_offset")
    more = ("log_end_offset", "high_watermark", "last_stable_offset", "version")
    return done, len(seen.sealed), *(getattr(seen, name) for name in (*fields, *more))


def files(directory: Path) -> dict[str, bytes]:
    """All but the one that has the time at which a file was written."""
    found = (file for file in (directory / "t-0").iterdir() if file.name != "clean-stop")
    return {file.name: file.read_bytes() for file in found}


@for_each("seed", range(16), at_once=2)
def test_one_call_does_what_the_long_way_does(seed: int, tmp_path: Path) -> None:
    """Results, refusals, snapshots at each step; in the end every file."""
    chosen = random.Random(seed)
    config: dict[str, Any] = {
        "segment_bytes": chosen.choice((3000, 1 << 20)),
        "index_interval_bytes": chosen.choice((0, 500)),
        "segment_ms": chosen.choice((10, 1000, 1 << 40)),
        "max_message_bytes": chosen.choice((600, 1 << 20)),
        "flush_messages": chosen.choice((3, 1 << 40)),
        "cleanup_policy": chosen.choice((("delete",), ("compact",))),
        "compression_type": chosen.choice(("producer", "producer", "zstd")),
    }
    seen = []
    for plain in (True, False):
        rng, clock = random.Random(seed), ManualClock(NOW)
        directory = tmp_path / f"{seed} {plain}"
        directory.mkdir()
        log = opened(directory, plain, clock, **config)
        log.replica.keep_recent(RecentBudget(2000, 2000) if seed % 2 else None)
        steps = []
        for _ in range(60):
            steps.append(outcome(rng, log, clock.wall_ms()))
            clock.advance(rng.choice((0, 0, 5)))
        log.close()
        seen.append((steps, files(directory)))
    assert seen[0] == seen[1]


def test_an_append_of_a_ready_batch_is_two_calls_of_python_at_most(tmp_path: Path) -> None:
    log = opened(tmp_path, True, ManualClock(NOW))
    ready, fetched = batch(), batch(2)
    log.append_as_leader(ready, 0)
    calls: list[str] = []

    def note(frame: Any, event: str, _: object) -> None:
        if event == "call" and "checked_locks" not in frame.f_code.co_filename:
            calls.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        log.append_as_leader(ready, 0)
        log.replica.append_as_follower(fetched, 0)
    finally:
        sys.setprofile(None)
    assert calls == ["append_as_leader", "append_as_follower"]
    assert log.log_end_offset == 3
    log.close()


def test_a_refused_write_takes_the_log_offline_before_another_can_follow() -> None:
    disk = Disk()
    log = disk.open()
    log.append_as_leader(batch(), 0)
    disk.storage.fail("write", "*.log", times=1)
    with pytest.raises(StorageFailedError):
        log.append_as_leader(batch(), 0)
    with pytest.raises(StorageFailedError):
        log.append_as_leader(batch(), 0)
    assert (log.log_end_offset, log.failed) == (1, True)
    log.crash()


def test_bytes_that_lie_apart_are_appended(tmp_path: Path) -> None:
    log, apart = opened(tmp_path, True, ManualClock(NOW)), bytearray(2 * len(batch()))
    for base, append in enumerate((log.append_as_leader, log.replica.append_as_follower)):
        apart[::2] = batch(base)
        append(memoryview(apart)[::2], 0)  # type: ignore[operator]
    assert log.log_end_offset == 2
    log.close()


def test_a_timestamp_before_all_that_are_allowed_is_refused(tmp_path: Path) -> None:
    log = opened(tmp_path, True, ManualClock(NOW))
    log.append_as_leader(batch(), 0)
    old = bytearray(batch())
    struct.pack_into(">qq", old, 27, -(2**63), -(2**63))
    struct.pack_into(">I", old, 17, crc32c(old[21:]))
    with pytest.raises(InvalidTimestampError):
        log.append_as_leader(old, 0)
    assert log.log_end_offset == 1
    log.close()


def test_an_interrupt_of_what_is_kept_leaves_no_reader_asleep(tmp_path: Path) -> None:
    log = opened(tmp_path, True, ManualClock(NOW))
    log.append_as_leader(batch(), 0)

    class Interrupted(RecentAppends):
        def add(self, *_: Any) -> None:
            raise KeyboardInterrupt

    log.state.recent = Interrupted(RecentBudget())
    woken: list[int] = []
    log.core.listeners.add(lambda: woken.append(log.snapshot.log_end_offset))
    with pytest.raises(KeyboardInterrupt):
        log.append_as_leader(batch(), 0)
    assert woken == [2]
    log.close()


def test_room_that_is_allocated_later_cuts_nothing(tmp_path: Path) -> None:
    log = opened(tmp_path, True, ManualClock(NOW))
    for _ in range(9):
        log.append_as_leader(batch(), 0)
    log.maintenance.configure(LogConfig(segment_bytes=5 * len(batch()), preallocate=True))
    assert log.writer.try_idle()
    log.append_as_leader(batch(), 0)
    assert len(list(log.records())) == 10
    log.close()


# -- the lock -------------------------------------------------------------------------------------


def test_the_lock_keeps_others_out_and_hands_over() -> None:
    lock, inside, done = WriteLock(), [0], [0]

    def work() -> None:
        for _ in range(300):
            with lock:
                inside[0] += 1
                assert (inside[0], lock.locked()) == (1, True)
                inside[0] -= 1
                done[0] += 1

    with eager_switching():
        race(*[work] * 6)
    assert (done, lock.locked()) == ([1800], False)


def test_a_waiter_is_overtaken_a_hundred_times_at_most() -> None:
    lock, got = WriteLock(), threading.Event()

    def wait() -> None:
        with lock:
            got.set()

    lock.acquire()
    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: lock.waiting == 1, "it waits")
    overtaken = 0
    while True:
        lock.release()
        if not lock.acquire(blocking=False):
            break  # the waiter was sooner, or it was handed over
        overtaken += 1
    thread.join()
    assert overtaken <= 100
    assert (got.is_set(), lock.locked()) == (True, False)


def test_the_lock_refuses_what_a_lock_refuses() -> None:
    lock = WriteLock()
    with pytest.raises(RuntimeError, match="unlocked"):
        lock.release()
    assert (lock.acquire(), lock.acquire(blocking=False)) == (True, False)
    with pytest.raises(ValueError, match="as long as it takes"):
        lock.acquire(timeout=1)
    lock.release()
    assert not lock.locked()


def test_the_lock_is_free_in_a_child() -> None:
    lock = WriteLock()
    with held_by_another_thread(lock):

        def child() -> bool:
            lock._at_fork_reinit()
            with lock:
                return lock.locked()

        assert in_child(child).value
        assert lock.locked()
