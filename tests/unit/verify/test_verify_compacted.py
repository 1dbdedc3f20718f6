"""Compacted logs are sound whatever compaction took, and while it takes it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from compacting import Swap, bases_of, compacted
from verify_logs import CODECS, LOG_DIR, PARTITION, SMALL, check, copy, log_dir, short

from checkpoints.offset_checkpoint import CLEANER, OffsetCheckpoint
from checkpoints.types import TopicPartition
from logstore.manager import LogManager
from logstore.storage.base import File, FileInfo
from logstore.storage.memory import MemoryStorage
from logstore.verify import verify
from logstore.verify.replicas import replicas
from tests.support.cases import for_each

INTERVAL = SMALL.index_interval_bytes


def swaps(storage: MemoryStorage, seed: int) -> list[Swap]:
    new = compacted(storage, PARTITION, random.Random(seed), INTERVAL)
    return [Swap(storage, PARTITION, *one) for one in reversed(new.values())]


@pytest.mark.parametrize("clean", [True, False])
@for_each("seed", range(8))
def test_what_compaction_leaves_is_clean(seed: int, clean: bool) -> None:
    """Holes in batches and between them, empty batches of producers, horizons, markers without
    their data, segments of several: with an entry of the cleaner's checkpoint, and without."""
    storage = log_dir(transactions=True, seed=seed, batches=150, clean=clean, codecs=CODECS)
    before = len(bases_of(storage, PARTITION))
    for swap in swaps(storage, seed):
        for step in swap.steps():
            step()
    assert len(bases_of(storage, PARTITION)) <= before
    assert short(check(storage)) == []
    first_dirty = bases_of(storage, PARTITION)[-1]
    path = f"{LOG_DIR}/{CLEANER}"
    OffsetCheckpoint(path, storage).write({TopicPartition("orders", 0): first_dirty})
    assert short(check(storage)) == []
    if clean:  # where the cleaner stopped lies inside the log
        OffsetCheckpoint(path, storage).write({TopicPartition("orders", 0): 10**6})
        assert [rule for _, rule, _ in short(check(storage))] == ["cleaner-offset"]


@pytest.mark.parametrize("seed", range(3))
def test_what_a_crash_in_a_swap_leaves_is_no_error(seed: int) -> None:
    """F-310: the next start completes it, or takes it back."""
    storage = log_dir(transactions=True, seed=seed, batches=90, clean=False)
    for swap in swaps(storage, seed):
        for step in swap.steps():
            step()
            report = check(storage)
            whole = {f.rule for f in report.findings if f.severity == "error"}
            assert not whole, [str(f) for f in report.findings]


class Busy(MemoryStorage):
    """Does something of its own before each listing, opening and reading."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.at: dict[int, list[Callable[[], object]]] = {}
        self.watched = False

    def _turn(self) -> None:
        if self.watched:
            self.watched = False
            for action in self.at.pop(self.calls, ()):
                action()
            self.watched = True
            self.calls += 1

    def scan_dir(self, path: str) -> list[FileInfo]:
        self._turn()
        return super().scan_dir(path)

    def open(self, path: str, **options: bool) -> File:
        self._turn()
        return super().open(path, **options)

    def read_file(self, path: str, limit: int = -1) -> bytes:
        self._turn()
        return super().read_file(path, limit)


def busy_log_dir(seed: int) -> Busy:
    storage = Busy()
    storage.make_dir(LOG_DIR)
    copy(log_dir(transactions=True, seed=seed, batches=120, clean=False), LOG_DIR, storage, LOG_DIR)
    return storage


def _steps(storage: Busy, seed: int) -> Iterator[Callable[[], None]]:
    for swap in swaps(storage, seed):
        yield from swap.steps()


def test_a_cleaner_at_work_at_any_moment_is_no_fault() -> None:
    """All of its swaps at once, before any access of a verification; and one step at each."""
    storage = busy_log_dir(1)
    storage.watched = True
    assert short(check(storage)) == []
    accesses = storage.calls
    assert accesses > 20
    for moment in range(accesses):
        storage = busy_log_dir(1)
        storage.at[moment] = [lambda s=storage: [step() for step in _steps(s, 1)]]
        storage.watched = True
        report = check(storage)
        assert short(report) == [], moment
        assert report.unusable == []
        assert report.partitions[0].segments == len(bases_of(storage, PARTITION)), moment
    for start in range(0, accesses, 3):
        storage = busy_log_dir(1)
        storage.at = {start + n: [step] for n, step in enumerate(_steps(storage, 1))}
        storage.watched = True
        report = check(storage)
        assert short(report) == [], start
        assert report.unusable == [] or report.partitions == []


def test_true_damage_is_told_beside_a_cleaner() -> None:
    """Where files are replaced each time there is no table; what was found each time is told."""
    storage = busy_log_dir(1)
    damaged = f"{PARTITION}/{bases_of(storage, PARTITION)[0]:020d}.log"
    file = storage.open(damaged)
    file.write_at(40, bytes([file.read_at(40, 1)[0] ^ 1]))
    file.close()
    touched = f"{PARTITION}/{bases_of(storage, PARTITION)[1]:020d}.timeindex"
    times = itertools.count(1)

    def touch() -> None:
        storage.set_mtime(touched, next(times))

    storage.at = {n: [touch] for n in range(4000)}
    storage.watched = True
    report = check(storage)
    assert [line for line in report.unusable if "busy" in line]
    assert report.partitions == []
    assert [(r, f) for _, r, f in short(report)] == [("log-checksum", damaged.rpartition("/")[2])]


def test_without_a_second_look_it_would_be_called_faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_incoherent", lambda *arguments: False)
    told = []
    for moment in range(20):
        storage = busy_log_dir(1)
        storage.at[moment] = [lambda s=storage: [step() for step in _steps(s, 1)]]
        storage.watched = True
        told += short(check(storage))
    assert told


def test_a_kill_before_the_checkpoint_of_a_pass(tmp_path: Path) -> None:
    """Whole batches and segments are gone, and topic.properties alone says why."""
    config = {"segment.bytes": "800", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    with LogManager([tmp_path], background=False) as manager:
        log = manager.create_topic("t", 1, config)[0]
        for number in range(40):
            log.append([(b"one key", b"%d" % number + b"x" * 60)])
        assert manager.cleaner.clean_filthiest() is not None
    (tmp_path / CLEANER).unlink()
    found = verify([str(tmp_path)]).findings
    assert {finding.rule for finding in found} == {"log-compacted-gap"}
    (tmp_path / "t-0" / "topic.properties").unlink()
    told = {finding.rule for finding in verify([str(tmp_path)]).findings}
    assert "log-offset-order" in told
