"""One history of a compacted log: everything follows from its seed.

Records, deletions of keys and transactions of several producers in all codecs; rolls, passes with a
map that may be too small, log starts that move, truncations, clocks that jump, full disks, and a
crash at any change of the disk, in a pass or in the start after one. What a pass leaves is what
``cleaner_model`` says, batch by batch.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from logstore.common.config import BrokerConfig, LogConfig
from logstore.common.errors import LogCleaningAbortedError
from logstore.common.types import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.codecs.compression import Compression
from logstore.format.header import BatchHeader
from logstore.format.reader import batch_records, iter_batches
from logstore.kernels import OffsetMap
from logstore.log import PartitionLog
from logstore.manager import LogManager, ManagerOwner
from logstore.segments.producer_state import AppendOrigin
from logstore.testing import FaultyStorage, ManualClock, SimulatedCrash
from logstore.testing.faulty import CrashMode
from tests.histories.cleaner_model import (
    AbortedTxn,
    Batch,
    LastRecord,
    Limits,
    LogState,
    Segment,
    one_pass,
)
from tests.histories.history import Run, history
from tests.support.builders import marker
from tests.support.logs import check_invariants

TP = TopicPartition("t", 0)
PRODUCERS = (7, 8)
MODES: tuple[CrashMode, ...] = ("all_kept", "all_lost", "random", "random")
RETENTION_MS = 1000


@dataclass(slots=True)
class Producer:
    sequence: int = 0
    open: list[int] | None = None  # records of the transaction that is under way


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
        self.limits = Limits(RETENTION_MS, 0, OffsetMap(24 * keys, 0.9).limit)
        self.batches: tuple[Batch, ...] = ()  # what the log must hold
        self.expected: tuple[Batch, ...] | None = None  # what a pass under way will leave
        self.started = 0  # the log start of the last pass
        self.passed = 0  # no log start may move back behind a pass
        self.decided = 0  # markers below it were believed by a pass: nobody may cut them off
        self.aborted: list[AbortedTxn] = []
        self.gone: set[int] = set()  # offsets of aborted records
        self.producers = {pid: Producer() for pid in PRODUCERS}
        self.written: dict[int, list[int]] = {pid: [] for pid in PRODUCERS}  # in transactions
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
            owner=ManagerOwner(run_later=lambda task: task()),
        )
        self.manager.get_or_create(*TP, config=self.config)

    @property
    def log(self) -> PartitionLog:
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

    def write(self, **fields: int | bool) -> list[int]:
        rows = self.rows()
        codec = self.rng.choice((Compression.NONE, Compression.NONE, *Compression))
        data = bytes(encode_batch(rows, compression=codec, **fields))  # type: ignore[arg-type]
        first = self.log.append_as_leader(data, 0).first_offset
        self.run.trace.append(f"    {first}: {rows} {codec} {fields}")
        (batch,) = self.note_appended(first)
        expected = [
            (first + at, time, key, value, ()) for at, (key, value, time) in enumerate(rows)
        ]
        assert [*batch.records] == expected
        return [offset for offset, *_ in batch.records]

    def note_appended(self, first: int) -> list[Batch]:
        new = [batch for batch in self.held() if batch.base_offset >= first]
        self.batches += tuple(new)
        return new

    def append(self) -> None:
        self.write()

    def produce(self, pid: int, transactional: bool) -> list[int]:
        producer = self.producers[pid]
        offsets = self.write(
            producer_id=pid,
            producer_epoch=0,
            base_sequence=producer.sequence,
            transactional=transactional,
        )
        producer.sequence += len(offsets)
        self.last_offset[pid] = offsets[-1]
        return offsets

    def append_idempotent(self) -> None:
        pid = self.rng.choice(PRODUCERS)
        if self.producers[pid].open is None:
            self.produce(pid, False)

    def append_transactional(self) -> None:
        pid = self.rng.choice(PRODUCERS)
        producer = self.producers[pid]
        offsets = self.produce(pid, True)
        self.written[pid] += offsets
        producer.open = (producer.open or []) + offsets

    def end_transaction(self) -> None:
        pid = self.rng.choice(PRODUCERS)
        offsets = self.producers[pid].open
        if offsets is None:
            return
        commit = self.rng.random() < 0.5
        data = marker(commit=commit, producer_id=pid, timestamp=self.clock.wall_ms())
        at = self.log.append_as_leader(data, 0, AppendOrigin.COORDINATOR).first_offset
        self.note_appended(at)
        self.run.trace.append(f"    {'commit' if commit else 'abort'} {pid} at {at}")
        self.producers[pid].open = None
        if not commit:
            self.gone |= set(offsets)
            self.aborted.append(AbortedTxn(pid, offsets[0], at, at))

    def roll(self) -> None:
        self.log.roll()

    # -- the cleaner ---------------------------------------------------------------------------

    def clean(self) -> None:
        assert self.manager is not None
        end = self.begin_pass()
        try:
            self.manager.cleaner.clean_by_hand(TP)
        except LogCleaningAbortedError:
            raise AssertionError("nobody was beside it") from None
        self.end_pass(end)

    def begin_pass(self) -> int | None:
        """A pass flushes what it may replace; returns where it will end."""
        log = self.log
        self.decided = max(self.decided, log.log_end_offset)
        self.started = log.log_start_offset
        segments = [Segment(each.base_offset, 0) for each in log.segments]
        first = segments[0].base_offset
        ours = [batch for batch in self.batches if batch.base_offset >= first]
        # A transaction whose marker is gone has no batch either: what comes next is another one.
        ends = {batch.base_offset for batch in ours}
        producers = {
            each.producer_id: LastRecord(
                each.batches[-1].last_offset if each.batches else None, each.producer_epoch
            )
            for each in log.producers.known.producers.values()
        }
        state = LogState(
            log.log_start_offset,
            log.last_stable_offset,
            tuple(segments),
            tuple(ours),
            tuple(txn for txn in self.aborted if txn.last_offset in ends),
            producers,
        )
        now_ms = self.clock.wall_ms()
        cleaned = one_pass(state, self.checkpoint(), now_ms, self.limits)
        self.expected = None if cleaned is None else cleaned.batches
        self.run.trace.append(f"    pass at {now_ms}: {cleaned and cleaned.end_offset}")
        return None if cleaned is None else cleaned.end_offset

    def end_pass(self, end: int | None) -> None:
        if self.expected is not None:
            self.batches, self.expected = self.expected, None
            self.passed = self.log.log_start_offset
            assert self.checkpoint() == end, f"cleaned up to {self.checkpoint()}, not {end}"

    def checkpoint(self) -> int | None:
        try:
            lines = self.storage.read_file("/d/cleaner-offset-checkpoint").decode().splitlines()
        except FileNotFoundError:
            return None
        return next((int(line.split()[-1]) for line in lines if line.startswith("t 0 ")), None)

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
        low = max(self.decided, log.log_start_offset)
        if low >= log.log_end_offset:
            return
        log.truncate_to(self.rng.randrange(low, log.log_end_offset + 1))
        self.forget_from(log.log_end_offset)
        self.append()  # until then a crash may bring back what was cut

    def forget_from(self, end: int) -> None:
        """What was cut off: producers go on where the log says."""
        self.batches = tuple(batch for batch in self.batches if batch.last_offset < end)
        self.aborted = [txn for txn in self.aborted if txn.last_offset < end]
        self.gone = {offset for offset in self.gone if offset < end}
        log = self.log
        for pid, producer in self.producers.items():
            self.written[pid] = [offset for offset in self.written[pid] if offset < end]
            entry = log.producers.known.producers.get(pid)
            producer.sequence = 0 if entry is None else entry.last_sequence + 1
            first = -1 if entry is None else entry.current_txn_first_offset
            if first < 0:
                producer.open = None
            elif producer.open is not None:
                producer.open = [offset for offset in producer.open if offset < end]
            if first >= 0 and not producer.open:
                self.reopen(pid, producer, first, end)

    def reopen(self, pid: int, producer: Producer, first: int, end: int) -> None:
        """The marker was cut off: its records are undecided again."""
        producer.open = [offset for offset in self.written[pid] if first <= offset < end]
        self.gone -= set(producer.open)

    def delete_records(self) -> None:
        log = self.log
        if log.config.delete:
            stable = min(log.last_stable_offset, log.log_end_offset)
            log.delete_records(self.rng.randrange(log.log_start_offset, stable + 1))
            log.maintenance.delete_old_segments()

    def purge(self) -> None:
        assert self.manager is not None
        self.manager.housekeeper.purge_deleted()
        self.manager.housekeeper.checkpoint_recovery_points()

    def restart(self) -> None:
        assert self.manager is not None
        self.manager.close()
        self.open()

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
        self.settle()
        self.forget_from(self.log.log_end_offset)

    def settle(self) -> None:
        """A pass that was cut short left new segments up to an offset, and old ones from there."""
        left, self.expected = self.expected, None
        if left is None:
            return
        end, old = self.log.log_end_offset, self.batches
        found = self.held()
        for first in (*(batch.base_offset for batch in old), end):
            mixed = [batch for batch in left if batch.base_offset < first]
            mixed += [batch for batch in old if first <= batch.base_offset]
            if self.clipped(mixed) == found:
                if tuple(mixed) != old:
                    self.batches, self.passed = tuple(mixed), max(self.passed, self.started)
                return
        raise AssertionError(f"neither {old} nor {left}: {found}")

    # -- what must hold ------------------------------------------------------------------------

    def check(self) -> None:
        log = self.log
        check_invariants(log)
        assert log.log_start_offset >= self.passed, "a log start is back behind a pass"
        assert self.held() == self.clipped(self.batches)
        assert self.committed() == [
            record[:4]
            for batch in self.batches
            for record in batch.records
            if not batch.control
            and log.log_start_offset <= record[0] < log.last_stable_offset
            and record[0] not in self.gone
        ]
        self.check_producers()

    def held(self) -> list[Batch]:
        """All that is in the files."""
        found = []
        for entry in sorted(self.storage.scan_dir("/d/t-0"), key=lambda each: each.name):
            if entry.name.endswith(".log"):
                data = self.storage.read_file(f"/d/t-0/{entry.name}")
                found += [plain(data, each) for each in iter_batches(data)]
        return found

    def clipped(self, batches: Iterable[Batch]) -> list[Batch]:
        """Without those of segments that were deleted, and what a crash took from the end."""
        first, end = self.log.segments[0].base_offset, self.log.log_end_offset
        return [each for each in batches if first <= each.base_offset and each.last_offset < end]

    def committed(self) -> list[tuple[int, int, bytes | None, bytes | None]]:
        log, found = self.log, []
        at = log.log_start_offset
        while at < log.last_stable_offset:
            fetched = log.read(at, 1 << 20, committed=True)
            if not fetched.data:
                break
            found += [(r.offset, r.timestamp, r.key, r.value) for r in fetched.records()]
            at = max(list(iter_batches(fetched.data))[-1].next_offset, at + 1)
        return found

    def check_producers(self) -> None:
        known = self.log.producers.known.producers
        for pid, producer in self.producers.items():
            if pid not in known and self.last_offset[pid] < self.log.log_start_offset:
                producer.sequence = 0  # it may be forgotten with its records
            if producer.sequence:
                assert pid in known, f"producer {pid} is forgotten"
                assert known[pid].last_sequence == producer.sequence - 1, (
                    f"producer {pid}: {known[pid].last_sequence}, not {producer.sequence - 1}"
                )


def plain(data: bytes, header: BatchHeader) -> Batch:
    return Batch(
        header.magic,
        header.base_offset,
        header.last_offset,
        header.leader_epoch,
        str(header.compression),
        "CreateTime",
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.last_sequence,
        header.is_transactional,
        header.is_control,
        header.delete_horizon,
        tuple(
            (each.offset, each.timestamp, each.key, each.value, tuple(each.headers))
            for each in batch_records(data, header)
        ),
    )
