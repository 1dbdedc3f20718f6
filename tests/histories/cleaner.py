"""One history of a compacted log: everything follows from its seed.

Records, deletions of keys and transactions of several producers in all codecs; rolls, passes with a
map that may be too small, log starts that move, truncations, clocks that jump, full disks, and a
crash at any change of the disk, in a pass or in the start after one.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from logstore.common.config import BrokerConfig, LogConfig
from logstore.common.errors import LogCleaningAbortedError
from logstore.common.types import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.codecs.compression import Compression
from logstore.format.reader import iter_batches
from logstore.log import ReplicaLog
from logstore.manager import LogManager
from logstore.segments.producer_state import AppendOrigin
from logstore.testing import FaultyStorage, ManualClock, SimulatedCrash
from logstore.testing.faulty import CrashMode
from tests.histories.cleaner_rules import Model, Put
from tests.histories.history import Run, history
from tests.support.builders import marker

TP = TopicPartition("t", 0)
PRODUCERS = (7, 8)
MODES: tuple[CrashMode, ...] = ("all_kept", "all_lost", "random", "random")
RETENTION_MS = 1000


@dataclass(slots=True)
class Producer:
    sequence: int = 0
    open: list[Put] | None = None  # records of the transaction that is under way


@history
def run(found: Run) -> None:
    search = Search(random.Random(found.seed), found)
    try:
        search.go(40)
    finally:
        search.release()


class Search:
    def __init__(self, rng: random.Random, found: Run) -> None:
        self.rng, self.run = rng, found
        self.clock = ManualClock()
        self.storage = FaultyStorage(clock=lambda: self.clock.wall_ms() / 1000)
        self.config = LogConfig(
            cleanup_policy=rng.choice((("compact",), ("compact", "delete"))),
            segment_bytes=rng.choice((300, 600, 1500)),
            segment_index_bytes=120,
            index_interval_bytes=rng.choice((0, 200)),
            retention_ms=-1,
            delete_retention_ms=RETENTION_MS,
            file_delete_delay_ms=rng.choice((0, 500)),
            min_cleanable_dirty_ratio=0,
            max_message_bytes=1 << 20,
        )
        keys = rng.choice((3, 8, 1000))
        self.broker = BrokerConfig(
            log_cleaner_dedupe_buffer_size=24 * keys,
            log_cleaner_io_buffer_size=rng.choice((1, 200, 4096)),
            producer_id_expiration_ms=2**62,
        )
        self.model = Model(RETENTION_MS)
        self.producers = {pid: Producer() for pid in PRODUCERS}
        self.written: dict[int, list[Put]] = {pid: [] for pid in PRODUCERS}  # in transactions
        self.last_offset = dict.fromkeys(PRODUCERS, -1)
        self.manager: LogManager | None = None
        self.open()

    def release(self) -> None:
        if self.manager is not None:
            self.storage.heal()
            self.manager.crash()

    def open(self) -> None:
        self.manager = LogManager(
            ["/d"],
            self.config,
            broker_config=self.broker,
            storage=self.storage,
            clock=self.clock,
            background=False,
            run_later=lambda task: task(),
        )
        self.manager.get_or_create(*TP, config=self.config)

    @property
    def log(self) -> ReplicaLog:
        assert self.manager is not None
        return self.manager.get(*TP)

    def go(self, steps: int) -> None:
        actions: list[tuple[int, Callable[[], None]]] = [
            (10, self.append),
            (4, self.append_idempotent),
            (5, self.append_transactional),
            (4, self.end_transaction),
            (3, self.roll),
            (6, self.clean),
            (3, self.crash_in_pass),
            (1, self.full_disk),
            (2, self.wait),
            (1, self.jump),
            (1, self.crash),
            (1, self.restart),
            (1, self.truncate),
            (1, self.delete_records),
            (1, self.purge),
        ]
        for _ in range(steps):
            (action,) = self.rng.choices([a for _, a in actions], [w for w, _ in actions])
            self.run.trace.append(action.__name__)
            self.run.done[action.__name__] += 1
            action()
            self.check()

    # -- appends -------------------------------------------------------------------------------

    def rows(self) -> list[tuple[bytes, bytes | None, int]]:
        now = self.clock.wall_ms()
        return [
            (
                b"k%d" % self.rng.randrange(6),
                None if self.rng.random() < 0.25 else self.rng.randbytes(self.rng.randrange(12)),
                now - self.rng.randrange(3),
            )
            for _ in range(self.rng.randrange(1, 5))
        ]

    def write(self, **fields: int | bool) -> list[Put]:
        rows = self.rows()
        codec = self.rng.choice((Compression.NONE, Compression.NONE, *Compression))
        data = bytes(encode_batch(rows, compression=codec, **fields))  # type: ignore[arg-type]
        first = self.log.append_as_leader(data, 0).first_offset
        puts = [Put(first + at, *row) for at, row in enumerate(rows)]
        self.run.trace.append(f"    {first}: {[(p.key, p.value) for p in puts]} {codec} {fields}")
        return puts

    def append(self) -> None:
        self.model.puts |= {put.offset: put for put in self.write()}

    def produce(self, pid: int, transactional: bool) -> list[Put]:
        producer = self.producers[pid]
        puts = self.write(
            producer_id=pid,
            producer_epoch=0,
            base_sequence=producer.sequence,
            transactional=transactional,
        )
        producer.sequence += len(puts)
        self.last_offset[pid] = puts[-1].offset
        return puts

    def append_idempotent(self) -> None:
        pid = self.rng.choice(PRODUCERS)
        if self.producers[pid].open is None:
            self.model.puts |= {put.offset: put for put in self.produce(pid, False)}

    def append_transactional(self) -> None:
        pid = self.rng.choice(PRODUCERS)
        producer = self.producers[pid]
        puts = self.produce(pid, True)
        self.written[pid] += puts
        producer.open = (producer.open or []) + puts

    def end_transaction(self) -> None:
        pid = self.rng.choice(PRODUCERS)
        puts = self.producers[pid].open
        if puts is None:
            return
        commit = self.rng.random() < 0.5
        data = marker(commit=commit, producer_id=pid, timestamp=self.clock.wall_ms())
        self.log.append_as_leader(data, 0, AppendOrigin.COORDINATOR)
        self.run.trace.append(f"    {'commit' if commit else 'abort'} {pid}")
        self.producers[pid].open = None
        if commit:
            self.model.puts |= {put.offset: put for put in puts}
        else:
            self.model.aborted |= {put.offset for put in puts}

    def roll(self) -> None:
        self.log.roll()

    # -- the cleaner ---------------------------------------------------------------------------

    def clean(self) -> None:
        assert self.manager is not None
        self.begin_pass()
        try:
            self.manager.cleaner.clean_by_hand(TP)
        except LogCleaningAbortedError:
            raise AssertionError("nobody was beside it") from None
        self.settle()

    def begin_pass(self) -> None:
        """A pass flushes what it may replace, and reads below what it may not."""
        log = self.log
        end = min(log.active_segment.base_offset, log.last_stable_offset)
        self.model.note_pass(self.clock.wall_ms(), end, log.log_end_offset)
        self.run.trace.append(f"    pass at {self.clock.wall_ms()} below {end}")

    def crash_in_pass(self) -> None:
        self.begin_pass()
        self.storage.crash_after(self.rng.randrange(1, 60))
        assert self.manager is not None
        try:
            self.manager.cleaner.clean_by_hand(TP)
        except SimulatedCrash:
            self.run.done["crashed"] += 1
        self.crash()

    def full_disk(self) -> None:
        """Every write of the pass from some on is refused; the log goes on."""
        self.begin_pass()
        operation = self.rng.choice(("write", "sync"))
        glob = self.rng.choice(("*.cleaned", "*replaced-segments"))
        fault = self.storage.fail(
            operation, glob, after=self.rng.randrange(3), error=errno.ENOSPC, times=1000
        )
        assert self.manager is not None
        self.manager.cleaner.clean_filthiest()
        self.storage.heal()
        if fault.struck:
            self.run.done["refused"] += 1
            assert not self.log.failed
            assert TP in self.manager.cleaner.uncleanable
            assert not [
                entry.name
                for entry in self.storage.scan_dir("/d/t-0")
                if entry.name.endswith((".cleaned", ".swap"))
            ]
        self.settle()

    # -- everything else -----------------------------------------------------------------------

    def wait(self) -> None:
        self.clock.advance(self.rng.choice((1, 300, 700, 2000)))

    def jump(self) -> None:
        self.clock.set_wall_ms(max(self.clock.wall_ms() + self.rng.randrange(-3000, 3000), 10_000))

    def truncate(self) -> None:
        log = self.log
        low = max(self.model.decided, log.log_start_offset)
        if low >= log.log_end_offset:
            return
        log.truncate_to(self.rng.randrange(low, log.log_end_offset + 1))
        self.forget_from(log.log_end_offset)
        self.append()  # until then a crash may bring back what was cut

    def forget_from(self, end: int) -> None:
        """What was cut off: producers go on where the log says."""
        self.model.cut(end)
        log = self.log
        for pid, producer in self.producers.items():
            self.written[pid] = [put for put in self.written[pid] if put.offset < end]
            entry = log.producers.producers.get(pid)
            producer.sequence = 0 if entry is None else entry.last_sequence + 1
            first = -1 if entry is None else entry.current_txn_first_offset
            if first < 0:
                producer.open = None
            elif producer.open is not None:
                producer.open = [put for put in producer.open if put.offset < end]
            if first >= 0 and not producer.open:
                self.reopen(pid, producer, first, end)

    def reopen(self, pid: int, producer: Producer, first: int, end: int) -> None:
        """The marker was cut off: its records are undecided again."""
        producer.open = [put for put in self.written[pid] if first <= put.offset < end]
        for put in producer.open:
            self.model.puts.pop(put.offset, None)
            self.model.aborted.discard(put.offset)

    def delete_records(self) -> None:
        log = self.log
        if log.config.delete:
            stable = min(log.last_stable_offset, log.log_end_offset)
            log.delete_records(self.rng.randrange(log.log_start_offset, stable + 1))
            log.delete_old_segments()
            self.model.start = log.log_start_offset

    def purge(self) -> None:
        assert self.manager is not None
        self.manager.purge_deleted()
        self.manager.checkpoint_recovery_points()

    def restart(self) -> None:
        assert self.manager is not None
        self.manager.close()
        self.open()
        self.settle()

    def crash(self) -> None:
        """The machine goes down, perhaps in the start after it again."""
        assert self.manager is not None
        self.storage.stopped = True
        with suppress(SimulatedCrash):
            self.manager.crash()
        self.storage.crash(self.rng, self.rng.choice(MODES))
        while True:
            try:
                if self.rng.random() < 0.3:
                    self.storage.crash_after(self.rng.randrange(1, 40))
                self.open()
                self.storage.heal()
                break
            except SimulatedCrash:
                self.run.done["crashed at a start"] += 1
                self.storage.crash(self.rng, self.rng.choice(MODES))
        self.forget_from(self.log.log_end_offset)
        self.settle()

    def settle(self) -> None:
        self.model.start = max(self.log.log_start_offset, 0)

    # -- what must hold ------------------------------------------------------------------------

    def check(self) -> None:
        log = self.log
        log.check_invariants()
        end = log.last_stable_offset
        self.model.check(self.committed(), end)
        self.check_producers()

    def committed(self) -> list[Put]:
        log, found = self.log, []
        at = log.log_start_offset
        while at < log.last_stable_offset:
            fetched = log.read(at, 1 << 20, committed=True)
            if not fetched.data:
                break
            found += [Put(r.offset, r.key or b"", r.value, r.timestamp) for r in fetched.records()]
            at = max(list(iter_batches(fetched.data))[-1].next_offset, at + 1)
        return found

    def check_producers(self) -> None:
        known = self.log.producers.producers
        for pid, producer in self.producers.items():
            if pid not in known and self.last_offset[pid] < self.log.log_start_offset:
                producer.sequence = 0  # it may be forgotten with its records
            if producer.sequence:
                assert pid in known, f"producer {pid} is forgotten"
                assert known[pid].last_sequence == producer.sequence - 1, (
                    f"producer {pid}: {known[pid].last_sequence}, not {producer.sequence - 1}"
                )
