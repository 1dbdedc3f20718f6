"""``PartitionLog`` against plain lists, and hostile bytes in every file of its directory."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoints.errors import CheckpointError
from logstore.common.config import LogConfig
from logstore.common.errors import LogstoreError, OffsetOutOfRangeError
from logstore.log import EARLIEST, LATEST, LogOwner, PartitionLog
from logstore.log.reading.fetching import FetchData
from logstore.storage.base import Storage
from logstore.testing import FaultyStorage, ManualClock
from tests.support.logs import check_invariants

DIRECTORY = "/t-0"
T0 = 1_700_000_000_000
CONFIG = LogConfig(
    segment_bytes=700,
    segment_index_bytes=120,
    index_interval_bytes=100,
    retention_ms=-1,
    retention_bytes=1500,
    file_delete_delay_ms=0,
)

Batch: TypeAlias = list[tuple[int, int, bytes]]  # offset, timestamp, value


def open_log(
    storage: Storage,
    *,
    clean: bool = False,
    point: int = 0,
    start: int = 0,
    config: LogConfig = CONFIG,
) -> PartitionLog:
    return PartitionLog.open(
        DIRECTORY,
        config,
        storage=storage,
        clock=ManualClock(T0),
        owner=LogOwner(clean_shutdown=clean, recovery_point=point, log_start_offset=start),
    )


@dataclass
class Model:
    """The log as a list of batches."""

    batches: list[Batch] = field(default_factory=list)
    start: int = 0
    end: int = 0
    flushed: int = 0
    uncut: list[Batch] | None = None
    """Before a truncation, which becomes durable with the next append."""

    def records(self) -> Batch:
        return [r for batch in self.batches for r in batch if r[0] >= self.start]


class Machine:
    """Applies one step to the log and to the model, and compares them."""

    def __init__(self, seed: int) -> None:
        self.storage = FaultyStorage()
        self.log = open_log(self.storage)
        self.model = Model()
        self.rng = random.Random(seed)

    def append(self, count: int, size: int, jitter: int) -> None:
        first = self.model.end
        batch = [
            (
                first + at,
                T0 + first + (jitter if at else -jitter),
                b"%d" % (first + at) + bytes(size),
            )
            for at in range(count)
        ]
        info = self.log.append([(b"k", value, stamp) for _, stamp, value in batch])
        assert (info.first_offset, info.last_offset) == (first, first + count - 1)
        self.model.batches.append(batch)
        self.model.uncut = None
        self.model.end += count

    def read(self, offset: int, max_bytes: int, up_to: int) -> None:
        model = self.model
        up_to = min(up_to, model.end)
        if not model.start <= offset <= model.end:
            with pytest.raises(OffsetOutOfRangeError):
                self.log.read(offset, max_bytes)
            return
        fetched = self.log.read(offset, max_bytes, up_to=up_to)
        wanted = [r for r in model.records() if offset <= r[0] < up_to]
        got = _whole(fetched)
        assert got == wanted[: len(got)]
        assert not wanted or got, "the first batch always comes whole"
        if max_bytes == 0 and wanted:
            size = fetched.slice.first_batch.size if fetched.slice else 0
            assert len(fetched) == size

    def truncate(self, offset: int) -> None:
        model = self.model
        offset = min(offset, model.end)
        model.uncut = model.uncut or model.batches
        gone = [b for b in model.batches if b[-1][0] >= offset]
        model.batches = [b for b in model.batches if b[-1][0] < offset]
        self.log.truncate_to(offset)
        # A batch that contains the offset goes whole: the log ends where it began.
        offset = min([offset, *(b[0][0] for b in gone)])
        model.start, model.end = min(model.start, offset), offset
        model.flushed = min(model.flushed, offset)

    def delete_records(self, offset: int) -> None:
        if offset > self.model.end:
            with pytest.raises(OffsetOutOfRangeError):
                self.log.delete_records(offset)
            return
        self.model.start = max(self.model.start, offset)
        assert self.log.delete_records(offset) == self.model.start

    def retain(self) -> None:
        self.log.maintenance.delete_old_segments()
        assert self.log.log_start_offset >= self.model.start
        self.model.start = self.log.log_start_offset

    def flush(self) -> None:
        self.log.flush()
        self.model.flushed = self.model.end

    def roll(self) -> None:
        self.log.roll()

    def find(self, stamp: int) -> None:
        wanted = next(((r[1], r[0]) for r in self.model.records() if r[1] >= T0 + stamp), None)
        got = self.log.offset_for_timestamp(T0 + stamp)
        assert (tuple(got) if got else None) == wanted
        earliest, latest = (self.log.offset_for_timestamp(x) for x in (EARLIEST, LATEST))
        assert earliest is not None
        assert latest is not None
        assert (earliest.offset, latest.offset) == (self.model.start, self.model.end)

    def reopen(self) -> None:
        self.log.close()
        self.log = open_log(self.storage, clean=True, start=self.model.start)
        self.model.flushed, self.model.uncut = self.model.end, None
        self.shrink_to_data()

    def crash(self) -> None:
        """Power fails; the owner kept the log start and the recovery point in its checkpoints."""
        before, point = self.model.uncut or self.model.batches, self.log.recovery_point
        self.model.uncut = None
        self.storage.crash(self.rng)
        self.log.crash()
        self.log = open_log(self.storage, point=point, start=self.model.start)
        end = self.log.log_end_offset
        held = [b[-1][0] + 1 for b in before if b[-1][0] < self.model.flushed]
        assert end >= max(held, default=0)
        self.model.batches = [b for b in before if b[-1][0] < end]
        self.shrink_to_data()

    def shrink_to_data(self) -> None:
        """After a cut inside a batch the log ends before its target (F-272, F-252)."""
        model = self.model
        model.end = self.log.log_end_offset
        model.start = self.log.log_start_offset
        model.flushed = min(model.flushed, model.end)

    def check(self) -> None:
        check_invariants(self.log)
        model = self.model
        assert (self.log.log_start_offset, self.log.log_end_offset) == (model.start, model.end)
        assert [(r.offset, r.timestamp, r.value) for r in self.log.records()] == model.records()


def _whole(fetched: FetchData) -> Batch:
    return [(r.offset, r.timestamp, r.value or b"") for r in fetched.records()]


OFFSETS = st.integers(0, 60)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 4), st.integers(0, 90), st.integers(0, 9)),
        st.tuples(st.just("append"), st.integers(1, 4), st.integers(0, 90), st.integers(0, 9)),
        st.tuples(st.just("append"), st.integers(1, 4), st.integers(0, 90), st.integers(0, 9)),
        st.tuples(st.just("read"), OFFSETS, st.sampled_from([0, 1, 100, 500, 1 << 20]), OFFSETS),
        st.tuples(st.just("find"), st.integers(-10, 70)),
        st.tuples(st.just("truncate"), OFFSETS),
        st.tuples(st.just("delete_records"), OFFSETS),
        st.tuples(st.sampled_from(["retain", "flush", "roll", "reopen", "crash"])),
    ),
    min_size=5,
    max_size=40,
)


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, seed=st.integers(0, 2**32 - 1))
@pytest.mark.slow
def test_a_log_is_a_list(steps: list[tuple[str, *tuple[int, ...]]], seed: int) -> None:
    machine = Machine(seed)
    for name, *arguments in steps:
        getattr(machine, name)(*arguments)
        machine.check()


# -- hostile bytes ---------------------------------------------------------------------------------


def _files() -> dict[str, bytes]:
    storage = FaultyStorage()
    config = LogConfig(segment_index_bytes=1200, index_interval_bytes=60)
    log = open_log(storage, config=config)
    for at in range(12):
        if at == 6:
            log.roll()
        log.append([(b"k", b"%d" % at * 20)] * 2, leader_epoch=at // 4)
    log.close()
    return {e.name: storage.read_file(f"{DIRECTORY}/{e.name}") for e in storage.scan_dir(DIRECTORY)}


FILES = _files()
NAMES = [
    *("00000000000000000000" + s for s in (".log", ".index", ".timeindex", ".txnindex")),
    *("00000000000000000012" + s for s in (".log", ".index", ".timeindex", ".txnindex")),
    "00000000000000000012.snapshot",
    "00000000000000000024.snapshot",
    "leader-epoch-checkpoint",
    "partition.metadata",
]


@st.composite
def damaged(draw: st.DrawFn, original: bytes) -> bytes:
    """Any bytes at all, or the original with a piece replaced, cut or added."""
    kind = draw(st.sampled_from(["any", "piece", "cut", "added"]))
    if kind == "any" or not original:
        return draw(st.binary(max_size=300))
    at = draw(st.integers(0, len(original)))
    more = draw(st.binary(max_size=80))
    return {
        "piece": original[:at] + more + original[at + len(more) :],
        "cut": original[:at],
        "added": original + more,
    }[kind]


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(data=st.data(), clean=st.booleans(), point=st.sampled_from([0, 12, 24]))
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_hostile_bytes(name: str, data: st.DataObject, clean: bool, point: int) -> None:
    """A report or a typed error; nothing but the documented cut touches a ``.log``."""
    storage = FaultyStorage()
    storage.make_dir(DIRECTORY)
    files = FILES | {name: data.draw(damaged(FILES.get(name, b"")))}
    for other, content in files.items():
        storage.write_file(f"{DIRECTORY}/{other}", content)
    with suppress(LogstoreError, CheckpointError):
        log = open_log(storage, clean=clean, point=point)
        check_invariants(log)
        with suppress(LogstoreError, CheckpointError):
            records = list(log.records())
            assert len(records) <= 24 or name.endswith(".log")
            for stamp in (0, T0, T0 + 10**6):
                log.offset_for_timestamp(stamp)
            log.reader.aborted_transactions(0, log.log_end_offset)
        assert_kept(storage, files, name)
        log.append([(b"k", b"v")])
        log.crash()


def assert_kept(storage: Storage, files: dict[str, bytes], name: str) -> None:
    """A whole ``.log`` is as it was, or was set aside behind damage; the damaged one was cut."""
    present = {e.name for e in storage.scan_dir(DIRECTORY)}
    for other in (n for n in files if n.endswith(".log") and files[n]):
        aside = f"{other}.0.cut"
        found = storage.read_file(f"{DIRECTORY}/{aside if aside in present else other}")
        if other == name:
            assert files[other].startswith(found)
        else:
            assert found == files[other], f"{other} changed because of {name}"
            assert aside not in present or name.endswith(".log")
