"""How many records a log promises and does not give: one number (docs/verify.md)."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import verify_logs
from verify_logs import DAMAGE, LOG_DIR, PARTITION, check, copy, harm, names, patch

from logstore.format.reader import iter_batches
from logstore.storage import Storage
from logstore.storage.memory import MemoryStorage

MIDDLE, LAST = 1, -1


def log_dir() -> MemoryStorage:
    """185 offsets in five segments."""
    return verify_logs.log_dir(replace(verify_logs.SMALL, segment_bytes=2500))


def segments(storage: Storage) -> dict[str, bytes]:
    return {path: storage.read_file(path) for path in names(storage, ".log")}


def records_of(data: bytes) -> int:
    return sum(batch.record_count for batch in iter_batches(data))


@pytest.mark.parametrize("number", [MIDDLE, LAST])
@pytest.mark.parametrize("kind", ["flipped", "torn", "dropped", "emptied", "gone", "bare"])
def test_each_kind_of_loss_counts(kind: str, number: int) -> None:
    """A batch that is damaged or missing, at the end too, and all that a lost segment had."""
    storage = log_dir()
    path, data = list(segments(storage).items())[number]
    lost = list(iter_batches(data))[-1].record_count
    harm(storage, path, kind, 0.999)
    assert check(storage).unreadable == (
        lost if kind in ("flipped", "torn", "dropped") else records_of(data)
    )


def test_records_that_do_not_decode_count() -> None:
    storage = log_dir()
    path, data = next(iter(segments(storage).items()))
    chosen = list(iter_batches(data))[2]
    patch(storage, path, chosen.position + 61, b"\xff")  # the length of the first record
    assert check(storage).unreadable == chosen.record_count


def test_gaps_of_a_compacted_log_are_no_loss() -> None:
    storage = log_dir()
    harm(storage, names(storage, ".log")[MIDDLE], "gone", 0)
    assert check(storage).unreadable > 0
    storage.write_file(f"{LOG_DIR}/cleaner-offset-checkpoint", b"0\n1\norders 0 100\n")
    assert check(storage).unreadable == 0


def test_deleted_records_are_no_loss() -> None:
    storage = log_dir()
    path, data = next(iter(segments(storage).items()))
    start = list(iter_batches(data))[3].base_offset
    harm(storage, path, "flipped", 0)
    storage.write_file(f"{LOG_DIR}/log-start-offset-checkpoint", b"0\n1\norders 0 %d\n" % start)
    assert check(storage).unreadable == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_what_is_promised_is_read_or_counted(seed: int) -> None:
    """From the first segment that is left to the end of the log as its checkpoints have it."""
    plain = log_dir()
    for number in range(100 * seed, 100 * (seed + 1)):
        rng = Random(number)
        storage = MemoryStorage()
        copy(plain, LOG_DIR, storage, LOG_DIR)
        before = segments(storage)
        for path in rng.sample(sorted(before), rng.randint(1, 2)):
            harm(storage, path, rng.choice(DAMAGE), rng.random())
        left = sorted(p for p in before if storage.info(p))
        start = int(left[0].removeprefix(f"{PARTITION}/")[:20]) if left else 0
        given = 0
        for path, data in before.items():
            held = storage.read_file(path) if storage.info(path) else b""
            for each in iter_batches(data):
                is_whole = data[each.position : each.end_position] in held
                given += each.record_count if is_whole else 0
        report = check(storage)
        assert report.unreadable == 185 - start - given, (number, report.findings)
