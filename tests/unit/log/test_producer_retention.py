"""A producer is known until it expires, whatever becomes of its records."""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore import LogConfig, LogManager, PartitionLog
from logstore.testing import FaultyStorage, ManualClock
from logstore.verify import verify

LINES = [b"line %d" % number for number in range(20)]
CONFIG = LogConfig(retention_ms=1, file_delete_delay_ms=0)


def take_in(log: PartitionLog) -> int:
    """The import of docs/embedding.md; how many lines it wrote."""
    producer = log.producer("import")
    begin = producer.next_sequence
    for number in range(begin, len(LINES)):
        producer.append([(None, LINES[number])])
    return len(LINES) - begin


def remove_all(log: PartitionLog, clock: ManualClock, how: str) -> None:
    if how == "retention":
        clock.advance(60_000)
        log.maintenance.delete_old_segments()
    else:
        log.delete_records(20)


@pytest.mark.parametrize("how", ["retention", "delete_records"])
@pytest.mark.parametrize("killed", [False, True])
def test_an_import_after_all_records_were_deleted(how: str, killed: bool) -> None:
    clock, storage = ManualClock(), FaultyStorage()
    log = PartitionLog.open("/d/t-0", CONFIG, storage=storage, clock=clock)
    assert take_in(log) == 20
    remove_all(log, clock, how)
    for _ in range(3):
        if killed:
            log.crash()
            storage.crash(mode="all_kept")
        else:
            log.close()
        log = PartitionLog.open("/d/t-0", CONFIG, storage=storage, clock=clock)
        assert log.log_end_offset == 20
        assert take_in(log) == 0


@pytest.mark.parametrize("how", ["retention", "delete_records"])
def test_verify_has_no_doubt_about_it(tmp_path: Path, how: str) -> None:
    clock = ManualClock()
    for _ in range(2):
        with PartitionLog.open(tmp_path / "t-0", CONFIG, clock=clock) as log:
            take_in(log)
            remove_all(log, clock, how)
    assert {finding.rule for finding in verify([str(tmp_path)]).findings} <= {"meta-missing"}


def test_a_manager_forgets_it_when_it_expires(tmp_path: Path) -> None:
    clock, written = ManualClock(), []
    for days in (0, 0, 1):
        clock.advance(days * 86_400_000)
        with LogManager([tmp_path], CONFIG, clock=clock, background=False) as manager:
            log = manager.get_or_create("t", 0)
            written.append(take_in(log))
            clock.advance(60_000)
            log.maintenance.delete_old_segments()
    assert written == [20, 0, 20]


def test_a_log_that_is_cut_to_its_start_knows_the_producers_before_it(tmp_path: Path) -> None:
    clock = ManualClock()
    log = PartitionLog.open(tmp_path / "t-0", CONFIG, clock=clock)
    take_in(log)
    log.roll()
    log.delete_records(20)
    log.append([(None, b"more")])
    log.truncate_to(20)
    assert log.producer("import").next_sequence == 20
    log.close()
