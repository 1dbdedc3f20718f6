"""What a leader appended last is read from memory: the same bytes as the file has, or nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest

from logstore.common.config import LogConfig
from logstore.log import LogOwner, PartitionLog
from logstore.log.writing import recent as recent_module
from logstore.log.writing.recent import RecentBudget
from logstore.storage.memory import MemoryStorage
from tests.support.builders import batch
from tests.support.cases import for_each

ALL = 1 << 30


def opened(name: str = "t-0", *, storage: Any = None, **config: Any) -> PartitionLog:
    log = PartitionLog.open(
        f"/logs/{name}",
        LogConfig(**config),
        storage=storage or MemoryStorage(),
        owner=LogOwner(replicated=True),
    )
    assert isinstance(log, PartitionLog)
    return log


def append(log: PartitionLog, count: int = 1, size: int = 50, epoch: int = 3) -> int:
    data = batch(count=count, value=bytes(size))
    return log.append_as_leader(data, epoch).last_offset + 1


@for_each("seed", range(20), at_once=7)
def test_the_bytes_are_those_of_the_file(seed: int) -> None:
    """Any appends, rolls, cuts and readers: what memory gives is what the file gives."""
    rng = random.Random(seed)
    codec = rng.choice(["producer", "zstd"])
    log = opened(segment_bytes=4000, segment_index_bytes=1 << 10, compression_type=codec)
    log.replica.keep_recent(RecentBudget(rng.choice([4_000, 20_000]), 10_000))
    hits = epoch = 0
    bases = [0]
    for _ in range(300):
        kind = rng.random()
        if kind < 0.5:
            parts = [
                batch(count=rng.randint(1, 4), value=rng.randbytes(rng.randint(0, 300)))
                for _ in range(rng.choice([1, 1, 1, 3]))
            ]
            bases.append(log.append_as_leader(b"".join(parts), epoch).first_offset)
        elif kind < 0.55:
            log.truncate_to(rng.randint(0, log.log_end_offset))
        elif kind < 0.6:
            epoch += 1
        else:
            start = rng.choice([*bases[-5:], rng.randint(0, log.log_end_offset)])
            limit = rng.choice([rng.randint(0, log.log_end_offset), log.log_end_offset])
            most = rng.choice([100, 400, 3_000, ALL])
            found = log.replica.read_recent(start, limit, most)
            if found is None:
                continue
            hits += 1
            assert 0 < len(found) <= most
            assert log.read(start, ALL, up_to=limit).data.startswith(found)
    assert hits > 10


def test_only_whole_appends_that_fit_are_given() -> None:
    log = opened()
    log.replica.keep_recent(RecentBudget())
    one, two = append(log, 2), append(log, 2)
    (first, both) = (
        len(log.replica.read_recent(0, one, ALL) or b""),
        len(log.replica.read_recent(0, two, ALL) or b""),
    )
    assert 0 < first < both
    assert log.replica.read_recent(0, two, both - 1) == log.read(0).data[:first]
    assert log.replica.read_recent(0, one + 1, ALL) == log.read(0).data[:first]
    assert log.replica.read_recent(0, two, first - 1) is None
    assert log.replica.read_recent(0, one - 1, ALL) is None
    assert log.replica.read_recent(1, two, ALL) is None  # inside an append
    assert log.replica.read_recent(two, two, ALL) is None


def test_memory_is_bounded_for_a_log_and_for_all() -> None:
    storage = MemoryStorage()
    logs = [opened(f"t-{n}", storage=storage) for n in range(3)]
    budget = RecentBudget(10_000, 4_000)
    for log in logs:
        log.replica.keep_recent(budget)
    for _ in range(50):
        for log in logs:
            append(log, size=500)
            assert len(log.state.recent or ()) <= 4_000
            assert budget.kept <= 10_000
            assert budget.kept == sum(len(each.state.recent or ()) for each in logs)
            assert len(budget.order) <= 20
    append(logs[0], size=5_000)  # larger than a log may keep
    assert logs[0].replica.read_recent(50, 51, ALL) is None
    for log in logs:
        log.replica.keep_recent(None)
        assert log.replica.read_recent(log.log_end_offset - 1, log.log_end_offset, ALL) is None
    assert budget.kept == 0


def test_nothing_is_left_of_what_was_dropped() -> None:
    """One log is quiet; others append for ever, and push out each other's."""
    storage = MemoryStorage()
    logs = [opened(f"t-{n}", storage=storage) for n in range(4)]
    budget = RecentBudget(8_000, 4_000)
    for log in logs:
        log.replica.keep_recent(budget)
    append(logs[0], size=7)
    for count in (40, 200):
        for log in logs[1:2]:
            for _ in range(count):
                append(log, size=500)
        assert len(budget.order) <= 6
    for _ in range(200):
        for log in logs[1:]:
            append(log, size=500)
    assert len(budget.order) <= 12
    for log in logs[1:]:
        assert log.state.recent is not None
        assert len(log.state.recent._order) <= 6


def test_all_that_an_append_holds_is_counted() -> None:
    """Small ones cost more than their bytes; what is no whole batch is not kept."""
    log = opened()
    budget = RecentBudget(20_000, 20_000)
    log.replica.keep_recent(budget)
    whole = batch(value=b"small")
    for _ in range(200):
        log.append_as_leader(whole + batch(value=bytes(5_000))[:-1], 3)
    held = [entry.data for entry in budget.order]
    assert sum(len(data) + 300 for data in held if data is not None) <= 20_000
    assert log.replica.read_recent(199, 200, ALL) == log.read(199).data


def test_what_was_cut_off_is_forgotten() -> None:
    log = opened()
    log.replica.keep_recent(RecentBudget())
    append(log)
    append(log, size=7)
    log.truncate_to(1)
    assert log.replica.read_recent(1, 2, ALL) is None
    append(log, size=9, epoch=4)
    assert log.replica.read_recent(1, 2, ALL) == log.read(1).data
    log.maintenance.truncate_fully_and_start_at(10)
    assert log.replica.read_recent(1, 2, ALL) is None


def test_a_reader_that_a_cut_overtakes_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened()
    log.replica.keep_recent(RecentBudget())
    append(log)
    append(log, size=7)
    recent = log.state.recent
    assert recent is not None
    true = recent.read

    def read(*args: Any, **options: Any) -> Any:
        found = true(*args, **options)
        assert found is not None
        log.truncate_to(1)
        append(log, size=9, epoch=4)
        return found

    monkeypatch.setattr(recent, "read", read)
    assert log.replica.read_recent(1, 2, ALL) is None


def test_a_log_that_failed_gives_nothing() -> None:
    log = opened()
    log.replica.keep_recent(RecentBudget())
    append(log)
    log.close()
    assert log.replica.read_recent(0, 1, ALL) is None


def test_deleted_records_are_not_given() -> None:
    log = opened()
    log.replica.keep_recent(RecentBudget())
    append(log)
    append(log)
    log.replica.update_high_watermark(2)
    log.delete_records(1)
    assert log.replica.read_recent(0, 2, ALL) is None
    assert log.replica.read_recent(1, 2, ALL) == log.read(1).data


def test_whole_is_all_or_nothing_and_few_appends() -> None:
    """For who sends the file itself: a part, or many small pieces, would be worse than it."""
    log = opened()
    log.replica.keep_recent(RecentBudget())
    ends = [append(log) for _ in range(40)]
    end = ends[-1]
    assert log.replica.read_recent(end - 32, end, ALL, whole=True) == log.read(end - 32).data
    assert log.replica.read_recent(end - 33, end, ALL, whole=True) is None
    assert log.replica.read_recent(end - 33, end, ALL) == log.read(end - 33).data
    size = len(log.read(end - 2).data)
    assert log.replica.read_recent(end - 2, end, size, whole=True) is not None
    assert log.replica.read_recent(end - 2, end, size - 1, whole=True) is None
    assert (
        log.replica.read_recent(end - 2, end + 1, ALL, whole=True) is not None
    )  # the log ends there


def test_nothing_is_kept_where_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until somebody does; the bytes are the file's again."""
    monkeypatch.setattr(recent_module, "_UNREAD_MAX", 3)
    log = opened()
    budget = RecentBudget()
    log.replica.keep_recent(budget)
    for _ in range(3):
        append(log)
    assert len(budget.order) == 3
    append(log)
    assert not budget.order
    assert budget.kept == 0
    append(log)
    assert not budget.order
    assert log.replica.read_recent(4, 5, ALL) is None
    end = append(log, size=7)
    assert log.replica.read_recent(5, end, ALL) == log.read(5).data
    for _ in range(10):
        end = append(log)
        assert log.replica.read_recent(end - 1, end, ALL) == log.read(end - 1).data
