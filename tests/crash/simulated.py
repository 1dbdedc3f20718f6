"""A search for a crash that loses what was promised: everything of a run follows from one seed.

A run is a few *lives* of a log directory on a simulated disk. A life opens the directory, checks
what it finds, works for a while, and ends: in most cases the machine goes down in the middle of a
change, sometimes between two steps, sometimes after a fault of the disk, sometimes in order.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

from checkpoints.offset_checkpoint import RECOVERY_POINT
from logstore.common.config import LogConfig
from logstore.common.errors import LogstoreError
from logstore.common.types import TopicPartition
from logstore.log import Background, PartitionLog, run_inline
from logstore.manager import LogManager, ManagerOwner
from logstore.storage.base import Storage
from logstore.testing import Fault, FaultyStorage, ManualClock, SimulatedCrash
from logstore.testing.faulty import CrashMode
from tests.crash.checks import check_lookups, check_recovered
from tests.crash.model import Batch, Model, segment_files, stored_batches
from tests.crash.workload import Work, expect_refusal
from tests.histories.history import Run, history

DIRECTORY = "/data"
INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex")
MODES: tuple[CrashMode, ...] = ("random", "random", "random", "all_lost", "all_kept")
FAULT_SHARE = 0.15  # of the lives
FAULTS = (
    ("write", errno.EIO),
    ("write", errno.ENOSPC),
    ("sync", errno.EIO),
    ("reserve", errno.ENOSPC),
    ("open", errno.EMFILE),
    ("rename", errno.EIO),
    ("truncate", errno.EIO),
    ("read", errno.EIO),
    ("sync_dir", errno.EIO),
    ("remove", errno.EIO),
)


def open_manager(
    storage: Storage, config: LogConfig, clock: ManualClock, run_later: Background = run_inline
) -> LogManager:
    """One thread; ``run_later`` decides when a rolled segment is flushed."""
    return LogManager(
        [DIRECTORY],
        config,
        storage=storage,
        clock=clock,
        owner=ManagerOwner(cluster_id="c", run_later=run_later),
    )


@history
def run(found: Run) -> None:
    search = _Search(found)
    try:
        search.go()
    finally:
        search.release()
        found.done += search.storage.struck


def random_config(rng: random.Random) -> LogConfig:
    return LogConfig(
        segment_bytes=rng.choice((600, 900, 2000, 8000)),
        segment_index_bytes=rng.choice((24, 48, 240, 1200)),
        index_interval_bytes=rng.choice((0, 60, 400, 4096)),
        preallocate=rng.random() < 0.1,
        flush_messages=rng.choice((2**62, 2**62, 2**62, 3)),
        flush_ms=rng.choice((2**62, 1000)),
        retention_bytes=rng.choice((-1, 0, 1000, 3000)),
        retention_ms=-1,
        file_delete_delay_ms=rng.choice((0, 1000)),
    )


class _Search:
    def __init__(self, found: Run) -> None:
        self.run = found
        self.rng = rng = random.Random(found.seed)
        self.clock = ManualClock()
        self.storage = FaultyStorage()
        self.config = random_config(rng)
        self.lives = rng.choice((1, 2, 2, 3, 4))
        count = 2 if rng.random() < 0.2 else 1
        self.works = [
            Work(TopicPartition("t", at), rng, self.clock, Model()) for at in range(count)
        ]
        self.kept = {work.partition: 0 for work in self.works}
        """Where each log must reach at least when it is opened next: a kill loses nothing."""
        self.powered_off = False
        self.later: list[Callable[[], None]] = []  # tasks of this life that wait
        self.promptness = rng.choice((1.0, 1.0, 0.5, 0.0))
        self.managers: list[LogManager] = []
        self.note(f"{self.config}")

    @property
    def manager(self) -> LogManager:
        return self.managers[-1]

    def note(self, text: str) -> None:
        self.run.trace.append(text)

    def run_later(self, task: Callable[[], None]) -> None:
        if self.rng.random() < self.promptness:
            task()
        else:
            self.later.append(task)

    def go(self) -> None:
        for life in range(self.lives):
            self.note(f"-- life {life}")
            self.life()
        self.open(crashing=False)
        self.note("-- the end")

    def release(self) -> None:
        """Let go of files and maps, wherever the run ended."""
        for manager in self.managers[-1:]:
            manager.crash()

    # -- one life ------------------------------------------------------------------------------

    def life(self) -> None:
        rng, storage = self.rng, self.storage
        self.open(crashing=rng.random() < 0.4)
        if rng.random() < 0.9:
            storage.crash_after(rng.randint(1, rng.choice((10, 40, 150))))
        fault = self.plan_fault() if rng.random() < FAULT_SHARE else None
        try:
            for _ in range(rng.randint(1, 30)):
                work = rng.choice(self.works)
                if self.later and rng.random() < 0.2:
                    self.note("what waited is done")
                    self.later.pop(0)()
                self.note(f"{work.partition.partition}: {work.step()}")
                if fault is not None and fault.struck:
                    break
            else:
                if rng.random() < 0.5 and fault is None:
                    self.close()
                    return
        except SimulatedCrash as crash:
            self.note(f"crash {crash}, in {self.doing()}")
        except LogstoreError as error:
            if fault is None or not fault.struck:
                raise
            self.note(f"the disk failed: {error}")
        if fault is not None and fault.struck:
            self.check_refusals()
        storage.heal()
        self.crash(rng.choice(MODES))

    def doing(self) -> str:
        return ", ".join(f"{w.partition.partition}: {w.doing}" for w in self.works)

    def plan_fault(self) -> Fault:
        operation, error = self.rng.choice(FAULTS)
        self.note(f"{errno.errorcode[error]} is planned for {operation}")
        partial = self.rng if operation == "write" else 0
        return self.storage.fail(
            operation, after=self.rng.randint(0, 12), error=error, partial=partial
        )

    def check_refusals(self) -> None:
        """I-19: a log that met a failed write, sync or name takes nothing more."""
        for work in self.works:
            if work.log.failed and expect_refusal(work) is None:
                raise AssertionError("I-19: a failed log accepted an append")

    def close(self) -> None:
        """An orderly stop: everything is flushed."""
        self.manager.close()
        self.later.clear()
        for work in self.works:
            work.model.flushed, work.model.ghost = work.model.leo, None
        self.note("closed in order")
        self.run.done["clean close"] += 1
        self.storage.heal()
        if self.rng.random() < 0.5:
            self.crash(self.rng.choice(MODES))

    def crash(self, mode: CrashMode) -> None:
        self.note(f"the machine goes down: {mode}")
        self.run.done["crash points"] += 1
        self.run.done[f"crash {mode}"] += 1
        self.storage.crash(self.rng, mode)
        self.later.clear()
        for work in self.works:
            if mode == "all_kept":  # the cache lives on: what was appended is there
                whole = work.model.live()
                self.kept[work.partition] = whole[-1].last + 1 if whole else 0
            else:
                self.kept[work.partition] = 0
        self.powered_off = mode != "all_kept"
        self.manager.crash()

    def start(self) -> LogManager:
        return open_manager(self.storage, self.config, self.clock, self.run_later)

    # -- opening and checking ------------------------------------------------------------------

    def open(self, *, crashing: bool) -> None:
        """Open the directory, perhaps with crashes inside, and check all that recovery promises."""
        expected = self.uninterrupted() if crashing else None
        while crashing:
            self.storage.crash_after(self.rng.randint(1, 25))
            try:
                self.managers.append(self.start())
            except SimulatedCrash as crash:
                self.run.done["crash in recovery"] += 1
                self.run.done["crash points"] += 1
                mode = self.rng.choice(MODES)
                self.note(f"crash in recovery {crash}, {mode}")
                self.storage.crash(self.rng, mode)
                if mode != "all_kept":
                    if not self.powered_off:
                        expected = None  # what only the cache held may be gone now
                    self.powered_off = True
                    self.kept = dict.fromkeys(self.kept, 0)
                crashing = self.rng.random() < 0.3
            else:
                self.storage.heal()
                self.adopt()
                self.compare(expected)
                return
        self.managers.append(self.start())
        self.adopt()
        self.compare(expected)
        if self.rng.random() < 0.15:
            self.check_idempotence()
        if self.rng.random() < 0.15:
            self.check_disposables()

    def adopt(self) -> None:
        """Check each recovered log against its model and go on from what is there."""
        for work in self.works:
            partition = work.partition
            log = self.manager.get_or_create(*partition)
            model = work.model
            candidates = [model.batches]
            if work.pending is not None:
                candidates.append(work.pending)
            if model.ghost is not None:
                candidates.append(model.ghost)
            model.history.update((batch.data, batch) for batch in work.pending or ())
            flushed, model.flushed = model.flushed, max(model.flushed, self.floor(work))
            batches = check_recovered(
                self.storage, log, model, candidates, self.rng, work.pending_start
            )
            model.flushed = flushed
            self.settle(work, log, batches)

    def floor(self, work: Work) -> int:
        """A kill loses nothing that was appended, unless a cut was under way."""
        cut = work.pending is not None and len(work.pending) < len(work.model.batches)
        return 0 if cut else self.kept[work.partition]

    def settle(self, work: Work, log: PartitionLog, batches: list[Batch]) -> None:
        model = work.model
        model.forgotten = max(model.forgotten, model.start, log.log_start_offset)
        before = model.ghost or model.batches
        model.appended = [batch for batch in batches if batch.base >= model.forgotten]
        model.batches = [batch for batch in batches if batch.last >= log.log_start_offset]
        if self.powered_off:
            model.ghost = None
        elif work.pending is not None and len(work.pending) < len(before):
            model.ghost = before  # cut by a process that died: only the cache knows of it
        model.start, model.leo = log.log_start_offset, log.log_end_offset
        model.epoch = max(model.epoch, log.epochs.latest)
        model.durable_start = min(model.durable_start, model.start)
        if self.powered_off:  # what a power cut left is on the disk, and must stay there
            model.flushed = model.leo
        model.flushed = min(model.flushed, model.leo)
        self.kept[work.partition] = 0
        work.attach(self.manager, log)

    def reopened(self, storage: FaultyStorage) -> dict[TopicPartition, list[bytes]]:
        """What the logs of a copy of the disk hold once it was opened."""
        manager = open_manager(storage, self.config, self.clock)
        found = {
            work.partition: stored_batches(
                storage, manager.get_or_create(*work.partition).directory
            )
            for work in self.works
        }
        manager.crash()
        return found

    def copy(self, *without: str) -> FaultyStorage:
        """The disk as it is now, all of it durable, without the files of some suffixes."""
        other = FaultyStorage()
        for path, data in sorted(_tree(self.storage, DIRECTORY)):
            other.make_dir(path.rpartition("/")[0])
            if not without or not path.endswith(without):
                other.write_file(path, data)
        other.make_dir(DIRECTORY)
        other.crash(mode="all_kept")
        return other

    def uninterrupted(self) -> dict[TopicPartition, list[bytes]]:
        return self.reopened(self.copy())

    def compare(self, expected: dict[TopicPartition, list[bytes]] | None) -> None:
        if expected is None:
            return
        for work in self.works:
            found = stored_batches(self.storage, work.log.directory)
            assert found == expected[work.partition], (
                "I-14: a crash inside recovery changed its result"
            )

    def check_idempotence(self) -> None:
        """I-14: recovering what was recovered changes no byte of a ``.log``."""
        self.run.done["second recovery"] += 1
        before = _logs(self.storage, self.works)
        other = self.copy()
        self.reopened(other)
        assert _logs(other, self.works) == before, "I-14: a second recovery changed a .log"

    def check_disposables(self) -> None:
        """I-15, I-16: indexes and recovery points are worth time, never an answer."""
        self.run.done["indexes deleted"] += 1
        before = _logs(self.storage, self.works)
        other = self.copy(*INDEX_SUFFIXES, RECOVERY_POINT)
        manager = open_manager(other, self.config, self.clock)
        for work in self.works:
            log = manager.get_or_create(*work.partition)
            assert log.log_end_offset == work.log.log_end_offset
            check_lookups(log, work.model.batches, self.rng, work.model.forgotten)
        manager.crash()
        assert _logs(other, self.works) == before, "I-16: without checkpoints the log differs"


def _tree(storage: Storage, path: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    if storage.info(path) is None:
        return found
    for entry in storage.scan_dir(path):
        inner = f"{path}/{entry.name}"
        found += _tree(storage, inner) if entry.is_dir else [(inner, storage.read_file(inner))]
    return found


def _logs(storage: Storage, works: list[Work]) -> dict[str, bytes]:
    """The used bytes of all ``.log`` files."""
    return {
        path: storage.read_file(path).rstrip(b"\0")
        for work in works
        for _, path in segment_files(storage, f"{DIRECTORY}/{work.partition}")
    }
