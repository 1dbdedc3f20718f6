"""Truncations: what readers of committed data see after one, and what no truncation accepts."""

from __future__ import annotations

import pytest

from logstore.common.config import LogConfig
from logstore.common.errors import InvalidRecordError, StorageFailedError
from logstore.log import LogOwner, PartitionLog
from logstore.segments.producer_state import AppendOrigin
from logstore.testing import FaultyStorage
from tests.support.builders import marker, produced
from tests.support.logs import check_invariants


def _open(storage: FaultyStorage, *, replicated: bool = False) -> PartitionLog:
    return PartitionLog.open(
        "/d/t-0", LogConfig(), storage=storage, owner=LogOwner(replicated=replicated)
    )


@pytest.mark.parametrize("replicated", [False, True])
def test_committed_transactions_stay_committed_when_the_end_is_cut(replicated: bool) -> None:
    """The replay after a cut must not hold readers back at what was decided before."""
    log = _open(FaultyStorage(), replicated=replicated)
    log.append_as_leader(produced(transactional=True), 0)
    log.append_as_leader(marker(commit=True), 0, AppendOrigin.COORDINATOR)
    log.append([(None, b"b")])
    log.replica.update_high_watermark(3)
    log.append([(None, b"c")])

    log.truncate_to(3)

    assert log.last_stable_offset == log.high_watermark == 3
    assert [r.offset for r in log.read(2, committed=True).records()] == [2]


@pytest.mark.parametrize("offset", [-1, 2**63, 2**70])
def test_a_log_cannot_start_at_what_is_no_offset(offset: int) -> None:
    log = _open(FaultyStorage())
    log.append([(None, b"a")])

    with pytest.raises(ValueError):
        log.maintenance.truncate_fully_and_start_at(offset)

    assert log.append([(None, b"b")]).first_offset == 1
    check_invariants(log)


def test_the_last_offset_of_all_is_not_given_to_a_record() -> None:
    log = _open(FaultyStorage())
    log.maintenance.truncate_fully_and_start_at(2**63 - 2)
    log.append([(None, b"a")])

    with pytest.raises(InvalidRecordError):
        log.append([(None, b"b")])

    assert log.log_end_offset == 2**63 - 1
    assert [r.offset for r in log.records()] == [2**63 - 2]
    log.close()


def test_a_cut_that_was_abandoned_half_way_refuses_appends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody completes it: an append must not wait for that."""
    log = _open(FaultyStorage())
    log.append([(None, b"a")])
    log.append([(None, b"b")])

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("logstore.segments.segment.Segment.truncate_files", interrupt)
        with pytest.raises(KeyboardInterrupt):
            log.truncate_to(1)

    with pytest.raises(StorageFailedError):
        log.append([(None, b"c")])
    assert log.failed


@pytest.mark.parametrize("known", [False, True])
def test_a_cut_writes_a_snapshot_only_if_there_ever_was_a_producer(known: bool) -> None:
    """A snapshot of none spares no replay; the close writes one for the next start (F-201)."""
    storage = FaultyStorage()
    log = _open(storage)
    log.append_as_leader(produced(), 0) if known else log.append([(None, b"a")])
    log.append([(None, b"b")])

    log.truncate_to(1)

    assert log.state.producers.snapshots == ([1] if known else [])
    assert log.append([(None, b"c")]).first_offset == 1
    log.truncate_to(1)
    log.close()
    log = _open(storage)
    assert not log.recovery_report.warnings
    assert log.state.producers.snapshots == [1]
    assert log.state.producers.empty != known
    check_invariants(log)
    log.close()
