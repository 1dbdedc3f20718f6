"""Where descriptors are short, nothing that the disk holds is given up."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable

import pytest

from logstore.common.config import LogConfig
from logstore.common.errors import ResourceBusyError, StorageFailedError
from logstore.log import LogOwner, PartitionLog, run_inline
from logstore.manager import ManagerOwner
from logstore.manager.manager import LogManager
from logstore.testing import FaultyStorage
from logstore.testing.faulty import FOREVER
from tests.support.builders import marker, produced
from tests.support.cases import for_each
from tests.support.logs import check_invariants

CONFIG = LogConfig(segment_bytes=1500, segment_index_bytes=2000, retention_bytes=3000)
RECORD = [(None, bytes(300))]


def _open(storage: FaultyStorage, *, inline: bool = False) -> PartitionLog:
    background = run_inline if inline else lambda task: None
    return PartitionLog.open(
        "/d/t-0", CONFIG, storage=storage, owner=LogOwner(background=background)
    )


def _short_from(storage: FaultyStorage, after: int) -> None:
    storage.fail("open", after=after, error=errno.EMFILE, times=FOREVER)


@for_each("after", range(12))
def test_an_append_that_raises_has_appended_nothing(after: int) -> None:
    """Who tries again would write the record twice."""
    storage = FaultyStorage()
    log = _open(storage, inline=True)
    acknowledged = 0
    _short_from(storage, after)
    for _ in range(12):
        try:
            log.append(RECORD)
            acknowledged += 1
        except ResourceBusyError:
            storage.heal()
        assert log.log_end_offset == acknowledged

    log.flush()
    assert [r.offset for r in log.records()] == list(range(acknowledged))
    assert log.recovery_point == acknowledged
    log.close()


def test_an_abort_that_cannot_be_noted_leaves_no_leader_epoch_behind() -> None:
    storage = FaultyStorage()
    log = PartitionLog.open("/d/t-0", CONFIG, storage=storage, owner=LogOwner(replicated=True))
    log.replica.append_as_follower(produced(transactional=True), 0)
    before = log.epochs.entries
    storage.fail("open", "*.txnindex", error=errno.EMFILE)
    abort = bytearray(marker(commit=False, base_offset=1))
    struct.pack_into(">i", abort, 12, 7)  # the leader epoch

    with pytest.raises(ResourceBusyError):
        log.replica.append_as_follower(abort, 7)

    assert log.epochs.entries == before
    log.replica.append_as_follower(abort, 7)
    assert log.epochs.entries == (*before, (7, 1))
    log.replica.update_high_watermark(2)
    assert len(log.read(0, committed=True).aborted) == 1
    log.close()


def test_what_an_append_left_undone_is_done_later() -> None:
    storage = FaultyStorage()
    log = _open(storage, inline=True)
    for _ in range(4):
        log.append(RECORD)
    storage.fail("sync", error=errno.ENOMEM, times=2)  # once more without idle files
    log.append(RECORD)
    assert log.recovery_point == 0

    log.append(RECORD)

    assert log.recovery_point == log.segments[-1].base_offset == 4


@pytest.mark.parametrize(
    "operation", [lambda log: log.truncate_to(7), lambda log: log.maintenance.delete_old_segments()]
)
def test_rolls_that_cannot_be_settled_stop_a_removal_before_it_begins(
    operation: Callable[[PartitionLog], object],
) -> None:
    storage = FaultyStorage()
    log = _open(storage)
    for _ in range(30):
        log.append(RECORD)
    _short_from(storage, 0)
    with pytest.raises(ResourceBusyError):
        operation(log)
    storage.heal()

    assert [r.offset for r in log.records()] == list(range(30))
    log.append(RECORD)
    operation(log)
    check_invariants(log)
    log.close()


@pytest.mark.parametrize(
    "operation",
    [
        lambda manager: manager.housekeeper.checkpoint_recovery_points(),
        lambda manager: manager.housekeeper.checkpoint_high_watermarks(),
        lambda manager: manager.create_topic("other", 2),
        lambda manager: manager.alter_topic("t", {"retention.ms": "5"}),
    ],
)
def test_a_directory_stays_online(operation: Callable[[LogManager], object]) -> None:
    storage = FaultyStorage()
    manager = LogManager(
        ["/d"], CONFIG, storage=storage, owner=ManagerOwner(run_later=lambda task: task())
    )
    for log in manager.create_topic("t", 2):
        log.append(RECORD)
        log.flush()
    _short_from(storage, 0)
    with pytest.raises(ResourceBusyError):
        operation(manager)
    storage.heal()

    assert not manager.offline_directories
    operation(manager)
    manager.close()


def test_a_change_of_configuration_that_failed_half_way_may_be_tried_again() -> None:
    storage = FaultyStorage()
    manager = LogManager(
        ["/d"], CONFIG, storage=storage, owner=ManagerOwner(run_later=lambda task: task())
    )
    logs = manager.create_topic("t", 3)
    _short_from(storage, 1)
    with pytest.raises(ResourceBusyError):
        manager.alter_topic("t", {"retention.ms": "5"})
    storage.heal()

    manager.alter_topic("t", {"retention.ms": "5"})

    assert [log.config.retention_ms for log in logs] == [5, 5, 5]


def test_an_append_behind_a_cut_waits_for_descriptors() -> None:
    storage = FaultyStorage()
    manager = LogManager(
        ["/d"], CONFIG, storage=storage, owner=ManagerOwner(run_later=lambda task: task())
    )
    (log,) = manager.create_topic("t", 1)
    for _ in range(3):
        log.append(RECORD)
    log.flush()
    manager.housekeeper.checkpoint_recovery_points()
    log.truncate_to(1)
    storage.fail("open", "*recovery-point*", error=errno.EMFILE)

    with pytest.raises(ResourceBusyError):
        log.append(RECORD)

    assert not manager.offline_directories
    assert log.append(RECORD).first_offset == 1
    manager.close()


def test_a_close_that_cannot_write_the_epochs_says_so_in_our_words() -> None:
    storage = FaultyStorage()
    log = _open(storage)
    log.append(RECORD)
    log.truncate_to(0)  # the file still has the epoch
    storage.fail("open", "*leader-epoch*")
    with pytest.raises(StorageFailedError):
        log.close()
    assert log.failed
