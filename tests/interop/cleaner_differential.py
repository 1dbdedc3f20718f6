"""One history, cleaned by Kafka's own cleaner and by ours: what is left must be the same.

Four directories get the same appends. Kafka's cleaner works on the first and ours on the second;
on the other two they take turns, so that each goes on from what the other left. ::

    PYTHONPATH=. python tests/interop/cleaner_differential.py --seeds 0:10000 --jobs 2
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import ClassVar

import cleaner_histories
from cleaner_histories import TOPIC, History
from kafka_cleaner import Batch, KafkaCleaner, KafkaReading
from kafka_jars import JavaError

from checkpoints.offset_checkpoint import LOG_START, OffsetCheckpoint
from logstore import TopicPartition
from logstore.manager import compact_directory
from logstore.storage.local import LocalStorage
from logstore.testing import ManualClock
from tests.histories import cleaner_model

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


class MergedOtherwise(Exception):
    """Segments whose sizes nearly fill another one were merged by one cleaner and not by the other.

    Compressed batches that both rebuilt have different sizes.
    """


@dataclass(slots=True)
class Seen:
    """What histories did, counted, so that a test can tell that they did something."""

    KINDS: ClassVar[tuple[str, ...]] = (
        "passes",
        "rounds with several passes",
        "records removed",
        "tombstones removed",
        "markers removed",
        "horizons",
        "empty batches",
        "segments merged away",
        "aborted transactions forgotten",
        "aborted transactions kept",
        "batches rewritten, compressed",
    )
    """What every search should see some of."""

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


def kafka_cleaner(kafka: KafkaCleaner, *, passes: int = PASSES_MAX) -> Cleaner:
    """Return Kafka's cleaner in the shape of ``Cleaner``, for so many passes at most."""

    def clean(root: Path, now_ms: int, history: History) -> list[int]:
        done = kafka.clean(
            root / f"{TOPIC}-0",
            now_ms,
            history.config,
            history.settings,
            passes=passes,
            log_start_offset=log_start_of(root),
        )
        return [each.end_offset for each in done]

    return clean


def our_cleaner(root: Path, now_ms: int, history: History) -> list[int]:
    """Our cleaner in the shape of ``Cleaner``."""
    settings = history.settings
    config: dict[str, str | int] = {
        **history.config,
        "retention.ms": -1,
        "log.cleaner.dedupe.buffer.size": settings.dedupe_buffer_size,
        "log.cleaner.io.buffer.load.factor": str(settings.load_factor),
        "log.cleaner.io.buffer.size": settings.io_buffer_size,
        "producer.id.expiration.ms": settings.producer_expiration_ms,
    }
    done: list[int] = []
    while len(done) < PASSES_MAX:
        clock = ManualClock(now_ms)
        outcome = compact_directory(root, topics=[TOPIC], config=config, clock=clock)
        [partition] = outcome.partitions
        if partition.error:
            raise Difference(f"seed {history.seed}: {partition.error}")
        if partition.stats.end_offset <= partition.stats.first_dirty:
            break
        done.append(checkpoint_of(root))
    return done


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


def compare(expected: Left, found: Left, what: str, *, compressed: bool) -> None:
    """Compare all that follows from the rules.

    Raises:
        Difference: with the first thing that is not the same.
        MergedOtherwise: nothing but the ends of segments differs, for which there is a reason.
    """

    def same(name: str, one: object, other: object) -> None:
        if one != other:
            if isinstance(one, list) and isinstance(other, list):
                pairs = zip_longest(one, other)
                one, other = next((a, b) for a, b in pairs if a != b)
            raise Difference(f"{what}: {name}: Kafka {one!r}, ours {other!r}")

    theirs, ours = expected.reading.batches, found.reading.batches
    for one, other in zip(theirs, ours, strict=False):
        if one != other:
            raise Difference(f"{what}: {_fields_that_differ(one, other)}")
    same("batches", [batch.base_offset for batch in theirs], [batch.base_offset for batch in ours])
    for name in ("log_start_offset", "log_end_offset", "last_stable_offset", "committed"):
        same(name, getattr(expected.reading, name), getattr(found.reading, name))
    theirs_at, ours_at = (
        [segment.base_offset for segment in left.reading.segments] for left in (expected, found)
    )
    if compressed and theirs_at != ours_at:
        raise MergedOtherwise
    same("segments", list(expected.reading.segments), list(found.reading.segments))
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
            if passes[name] != passes["Kafka"]:
                raise Difference(f"{what}: passes: Kafka {passes['Kafka']}, ours {passes[name]}")
            try:
                compare(left["Kafka"], left[name], what, compressed=history.compressed)
            except MergedOtherwise:
                if seen is not None:
                    seen.counts["histories ended by other merges"] += 1
                return
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
    expected = readings["Kafka"]
    for name, reading in readings.items():
        for field_name in ("producers", "committed", "last_stable_offset"):
            theirs, ours = getattr(expected, field_name), getattr(reading, field_name)
            if theirs != ours:
                what = f"seed {history.seed}, {name}, recovered: {field_name}"
                raise Difference(f"{what}: Kafka {theirs!r}, ours {ours!r}")


def check_model(history: History, kafka: KafkaCleaner, root: Path) -> int:
    """Compare each of Kafka's passes over ``history`` with the plain model; the number of them.

    Raises:
        Difference: with seed and round in its text.
    """
    limits = cleaner_model.Limits(
        delete_retention_ms=int(history.config["delete.retention.ms"]),
        min_compaction_lag_ms=int(history.config["min.compaction.lag.ms"]),
        keys_max=history.settings.keys_max,
    )
    total = 0
    for number, each in enumerate(history.rounds):
        what = f"seed {history.seed}, round {number}"
        cleaner_histories.write(root, each.steps, history)
        passes = [0]
        while passes:
            before = look(kafka, root, each.clean_at_ms, history)
            state = _state(before.reading)
            checkpoint = None if before.checkpoint < 0 else before.checkpoint
            expected = cleaner_model.one_pass(state, checkpoint, each.clean_at_ms, limits)
            passes = kafka_cleaner(kafka, passes=1)(root, each.clean_at_ms, history)
            after = look(kafka, root, each.clean_at_ms, history)
            if (expected is not None) != bool(passes):
                raise Difference(f"{what}: Kafka {passes}, the model {expected}")
            if expected is not None:
                found = cleaner_model.Cleaned(
                    passes[0], after.reading.batches, _state(after.reading).aborted
                )
                if found != expected:
                    raise Difference(f"{what}: {_first_difference(found, expected)}")
                total += 1
    return total


def _state(reading: KafkaReading) -> cleaner_model.LogState:
    return cleaner_model.LogState(
        reading.log_start_offset,
        reading.last_stable_offset,
        tuple(
            cleaner_model.Segment(each.base_offset, each.largest_timestamp)
            for each in reading.segments
        ),
        reading.batches,
        tuple(
            cleaner_model.AbortedTxn(*entry)
            for segment in reading.segments
            for entry in segment.aborted
        ),
        {
            each.producer_id: cleaner_model.LastRecord(
                each.last_data_offset if each.last_data_offset >= 0 else None, each.producer_epoch
            )
            for each in reading.producers
        },
    )


def _first_difference(found: cleaner_model.Cleaned, expected: cleaner_model.Cleaned) -> str:
    if found.end_offset != expected.end_offset:
        return f"end: Kafka {found.end_offset}, the model {expected.end_offset}"
    for theirs, ours in zip_longest(found.batches, expected.batches):
        if theirs != ours:
            return f"Kafka {theirs}, the model {ours}"
    return f"aborted: Kafka {found.aborted}, the model {expected.aborted}"


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


def _run_part(seeds: range) -> tuple[Seen, list[str]]:
    with KafkaCleaner() as kafka:
        return run_seeds(seeds, kafka, our_cleaner)


def main(argv: Sequence[str] | None = None) -> int:
    """Run many histories; 1 when there is a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:1000", help="FIRST:END")
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args(argv)
    first, _, end = args.seeds.partition(":")
    seeds = range(int(first), int(end or int(first) + 1))
    parts = [seeds[number :: args.jobs] for number in range(args.jobs)]
    seen = Seen()
    differences: list[str] = []
    with ProcessPoolExecutor(args.jobs) as pool:
        for part_seen, part_found in pool.map(_run_part, parts):
            seen.counts += part_seen.counts
            differences += part_found
    for difference in differences:
        print(difference)
    for what, count in sorted(seen.counts.items()):
        print(f"{count:10,}  {what}")
    print(f"{len(seeds):,} histories, {len(differences)} with a difference")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
