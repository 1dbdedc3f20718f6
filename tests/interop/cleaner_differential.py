"""One history, cleaned by Kafka's own cleaner and by ours: what is left must be the same.

Four directories get the same appends. Kafka's cleaner works on the first and ours on the second;
on the other two they take turns, so that each goes on from what the other left. ::

    python tests/interop/cleaner_differential.py --seeds 0:10000 --jobs 2
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import cleaner_histories
from cleaner_histories import TOPIC, History
from kafka_cleaner import Batch, KafkaCleaner, KafkaReading
from kafka_jars import JavaError

from checkpoints.offset_checkpoint import LOG_START, OffsetCheckpoint
from logstore import TopicPartition
from logstore.storage.local import LocalStorage

WHERE = TopicPartition(TOPIC, 0)
CHECKPOINT = "cleaner-offset-checkpoint"
MEMORY = Path("/dev/shm")
"""Nothing here depends on a disk, and thousands of syncs would take most of the time."""

PASSES_MAX = 200
KAFKA_FAILS = "Attempt to append to a full"
"""Kafka's cleaner writes in other pieces than producers did, and may need more index entries than
``segment.index.bytes`` has room for; it then gives the partition up."""

Cleaner = Callable[[Path, int, History], list[int]]
"""Cleans the log of ``TOPIC`` below a directory at a time, until nothing is due.

Returns the checkpoint after each pass.
"""


class Difference(AssertionError):
    """What is left after one cleaner is not what is left after the other."""


@dataclass(slots=True)
class Seen:
    """What histories did, counted, so that a test can tell that they did something."""

    counts: Counter[str] = field(default_factory=Counter)

    def count(self, before: KafkaReading, after: KafkaReading, passes: Sequence[int]) -> None:
        counts = self.counts
        counts["passes"] += len(passes)
        counts["rounds with several passes"] += len(passes) > 1
        counts["records removed"] += len(before.uncommitted()) - len(after.uncommitted())
        counts["tombstones removed"] += _tombstones(before) - _tombstones(after)
        counts["markers removed"] += _markers(before) - _markers(after)
        counts["horizons"] += sum(b.delete_horizon_ms is not None for b in after.batches)
        counts["empty batches"] += sum(not b.records for b in after.batches)
        counts["segments merged away"] += max(0, len(before.segments) - len(after.segments))
        counts["aborted transactions forgotten"] += _aborted(before) - _aborted(after)
        counts["aborted transactions kept"] += _aborted(after)
        counts["batches rewritten, compressed"] += sum(
            b.compression != "none" and len(b.records) < b.last_offset - b.base_offset + 1
            for b in after.batches
        )


def _tombstones(reading: KafkaReading) -> int:
    return sum(value is None for _, _, _, value, _ in reading.uncommitted())


def _markers(reading: KafkaReading) -> int:
    return sum(batch.control and bool(batch.records) for batch in reading.batches)


def _aborted(reading: KafkaReading) -> int:
    return sum(len(segment.aborted) for segment in reading.segments)


# --- the cleaners ---------------------------------------------------------------------------------


def checkpoint_of(root: Path) -> int:
    """Return what the cleaner's checkpoint says of the log; −1 when nothing."""
    path = root / CHECKPOINT
    if not path.exists():
        return -1
    return OffsetCheckpoint(str(path), LocalStorage()).read().get(WHERE, -1)


def log_start_of(root: Path) -> int:
    path = root / LOG_START
    if not path.exists():
        return 0
    return OffsetCheckpoint(str(path), LocalStorage()).read().get(WHERE, 0)


def kafka_cleaner(kafka: KafkaCleaner) -> Cleaner:
    """Return Kafka's cleaner in the shape of ``Cleaner``."""

    def clean(root: Path, now_ms: int, history: History) -> list[int]:
        passes = kafka.clean(
            root / f"{TOPIC}-0",
            now_ms,
            history.config,
            history.settings,
            passes=PASSES_MAX,
            log_start_offset=log_start_of(root),
        )
        return [each.end_offset for each in passes]

    return clean


# --- comparing ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Left:
    """What is in a directory, as Kafka reads it and by its files."""

    reading: KafkaReading
    checkpoint: int
    files: dict[str, bytes]
    """The files whose bytes follow from the rules alone, whoever wrote them, by name."""
    names: frozenset[str]
    """All files but indexes, which Kafka makes when it misses them."""


COMPARED_BYTES = (".log", ".txnindex", "leader-epoch-checkpoint")


def look(kafka: KafkaCleaner, root: Path, now_ms: int, history: History) -> Left:
    directory = root / f"{TOPIC}-0"
    reading = kafka.read(
        directory,
        now_ms,
        history.config,
        history.settings,
        log_start_offset=log_start_of(root),
    )
    paths = [path for path in directory.iterdir() if path.suffix not in (".index", ".timeindex")]
    compressed = _compressed(reading)
    files = {
        path.name: path.read_bytes()
        for path in paths
        if path.name.endswith(COMPARED_BYTES) and path.name not in compressed
    }
    return Left(reading, checkpoint_of(root), files, frozenset(path.name for path in paths))


def _compressed(reading: KafkaReading) -> set[str]:
    """Return the log files with a compressed batch: libraries differ in how they pack bytes."""
    bases = [segment.base_offset for segment in reading.segments]
    found = set()
    for batch in reading.batches:
        if batch.compression != "none":
            base = max((base for base in bases if base <= batch.base_offset), default=bases[0])
            found.add(f"{base:020}.log")
    return found


def compare(expected: Left, found: Left, what: str) -> None:
    """Raise ``Difference`` with the first thing that is not the same."""

    def same(name: str, one: object, other: object) -> None:
        if one != other:
            raise Difference(f"{what}: {name}: Kafka {one!r}, ours {other!r}")

    for number, (ours, theirs) in enumerate(
        zip(found.reading.batches, expected.reading.batches, strict=False)
    ):
        if ours != theirs:
            raise Difference(f"{what}: batch {number}: {_fields_that_differ(theirs, ours)}")
    same(
        "batches",
        [batch.base_offset for batch in expected.reading.batches],
        [batch.base_offset for batch in found.reading.batches],
    )
    for name in ("log_start_offset", "log_end_offset", "last_stable_offset", "committed"):
        same(name, getattr(expected.reading, name), getattr(found.reading, name))
    same("segments", expected.reading.segments, found.reading.segments)
    same("producers", expected.reading.producers, found.reading.producers)
    same("checkpoint", expected.checkpoint, found.checkpoint)
    same("files", sorted(expected.names), sorted(found.names))
    for name, data in expected.files.items():
        same(f"bytes of {name}", data.hex(), found.files[name].hex())


def _fields_that_differ(expected: Batch, found: Batch) -> str:
    differing = [
        f"{name}: Kafka {getattr(expected, name)!r}, ours {getattr(found, name)!r}"
        for name in Batch.__slots__
        if getattr(expected, name) != getattr(found, name)
    ]
    return f"base offset {expected.base_offset}: " + "; ".join(differing)


# --- running --------------------------------------------------------------------------------------


def run(
    history: History, kafka: KafkaCleaner, ours: Cleaner, directory: Path, seen: Seen | None = None
) -> None:
    """Run ``history`` on four directories below ``directory`` and compare after each round.

    Raises:
        Difference: with seed, round and pair in its text.
    """
    theirs = kafka_cleaner(kafka)
    takes_turns: dict[str, Sequence[Cleaner]] = {
        "Kafka": (theirs, theirs),
        "ours": (ours, ours),
        "Kafka, then ours": (theirs, ours),
        "ours, then Kafka": (ours, theirs),
    }
    for number, each in enumerate(history.rounds):
        left: dict[str, Left] = {}
        passes: dict[str, list[int]] = {}
        before: KafkaReading | None = None
        for name, cleaners in takes_turns.items():
            root = directory / name.replace(", ", "-").replace(" ", "-")
            cleaner_histories.write(root, each.steps, history)
            if name == "Kafka" and seen is not None:
                before = look(kafka, root, each.clean_at_ms, history).reading
            try:
                passes[name] = cleaners[number % 2](root, each.clean_at_ms, history)
            except JavaError as error:
                if KAFKA_FAILS not in str(error):
                    raise
                if seen is not None:
                    seen.counts["rounds that Kafka cannot clean"] += 1
                return
            left[name] = look(kafka, root, each.clean_at_ms, history)
        for name in takes_turns:
            what = f"seed {history.seed}, round {number}, {name}"
            compare(left["Kafka"], left[name], what)
            if passes[name] != passes["Kafka"]:
                raise Difference(f"{what}: passes: Kafka {passes['Kafka']}, ours {passes[name]}")
        if seen is not None and before is not None:
            seen.count(before, left["Kafka"].reading, passes["Kafka"])
    _compare_after_recovery(history, kafka, directory)


def _compare_after_recovery(history: History, kafka: KafkaCleaner, directory: Path) -> None:
    """Compare what Kafka makes of the directories when it rebuilds everything from the logs."""
    now_ms = history.rounds[-1].clean_at_ms
    readings = {}
    for root in sorted(directory.iterdir()):
        partition = root / f"{TOPIC}-0"
        for path in partition.iterdir():
            if path.suffix != ".log":
                path.unlink()
        readings[root.name] = kafka.read(
            partition,
            now_ms,
            history.config,
            history.settings,
            clean_shutdown=False,
            log_start_offset=log_start_of(root),
        )
    for name, reading in readings.items():
        if reading != readings["Kafka"]:
            raise Difference(f"seed {history.seed}, {name}, recovered: not as Kafka's")


@contextmanager
def working_directory() -> Iterator[Path]:
    """A directory in memory, where the machine has such, that is gone afterwards."""
    parent = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="cleaner-", dir=parent) as name:
        yield Path(name)


def run_seeds(seeds: Iterable[int], kafka: KafkaCleaner, ours: Cleaner) -> tuple[Seen, list[str]]:
    """Run the histories of ``seeds``; what they did, and the first difference of each."""
    seen = Seen()
    found = []
    with working_directory() as directory:
        for seed in seeds:
            try:
                run(cleaner_histories.make(seed), kafka, ours, directory / str(seed), seen)
            except Difference as difference:
                found.append(str(difference))
            shutil.rmtree(directory / str(seed))
    return seen, found
