"""One operation, a crash at every change it makes to the disk: S-36, S-37, S-38, S-40, S-41."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from logstore.common.config import BrokerConfig, LogConfig
from logstore.common.errors import StorageFailedError
from logstore.log import PartitionLog
from logstore.manager import LogManager, ManagerOwner
from logstore.storage.base import Storage
from logstore.testing import FaultyStorage, ManualClock
from tests.crash.checks import check_lookups, check_state
from tests.crash.disk import (
    CONFIG,
    DIRECTORY,
    T0,
    Disk,
    batches_of,
    crashes,
    disk_with,
    joined,
    log_bytes,
    open_log,
    opening_crashes,
    tree,
    written,
)
from tests.crash.model import Batch, segment_files, stored_batches

Act = Callable[[PartitionLog], object]


def crashes_in(
    prepare: Callable[[], PartitionLog], act: Act
) -> Iterator[tuple[FaultyStorage, str]]:
    """The disk after every crash inside ``act``, and without one."""
    log: PartitionLog

    def prepared() -> Disk:
        nonlocal log
        log = prepare()
        storage = log.core.storage
        assert isinstance(storage, Disk)
        return storage

    yield from crashes(prepared, lambda _: act(log))
    log.crash()


def assert_prefix(
    storage: Storage, place: str, *versions: list[Batch], flushed: int = 0, point: int = 0
) -> PartitionLog:
    log = open_log(storage, recovery_point=point)
    found = stored_batches(storage, DIRECTORY)
    fits = [v for v in versions if [b.data for b in v[: len(found)]] == found]
    assert fits, f"{place}: {len(found)} batches are no prefix of what was appended"
    batches = fits[0][: len(found)]
    assert log.log_end_offset >= flushed, f"{place}: {log} lost what was flushed"
    check_state(log, batches, whole=True)
    check_lookups(log, batches, random.Random(0))
    return log


BATCHES = batches_of(12)


def appended(batches: list[Batch], *, flush: bool, rolls: int = 0) -> PartitionLog:
    log = open_log(disk_with({}))
    for at, batch in enumerate(batches):
        if rolls and at and at % rolls == 0:
            log.roll()
        log.replica.append_as_follower(batch.data)
    if flush:
        log.flush()
    return log


@pytest.mark.slow
def test_s36_crash_during_roll_and_the_next_append() -> None:
    """Either the roll happened or not; no hole where the old segment ended."""

    def act(log: PartitionLog) -> None:
        log.roll()
        log.replica.append_as_follower(BATCHES[6].data)

    for storage, place in crashes_in(lambda: appended(BATCHES[:6], flush=False), act):
        assert_prefix(storage, place, BATCHES[:7])


@pytest.mark.slow
def test_s36_what_was_flushed_before_a_roll_stays() -> None:
    for storage, place in crashes_in(lambda: appended(BATCHES[:6], flush=True), PartitionLog.roll):
        assert_prefix(storage, place, BATCHES[:6], flushed=18, point=18)


NEW = batches_of(8, epoch=2, base=12, size=60)


@pytest.mark.slow
@pytest.mark.parametrize("epoch", [0, 2])
def test_s37_crash_during_truncation_and_what_is_appended_then(epoch: int) -> None:
    """A prefix of the old log or of the new one, also when both are of one leadership."""
    new = batches_of(8, epoch=epoch, base=12, size=61 if epoch else 60)

    def act(log: PartitionLog) -> None:
        log.truncate_to(12)
        for batch in new[:3]:
            log.replica.append_as_follower(batch.data)
        log.flush()

    old = BATCHES
    for storage, place in crashes_in(lambda: appended(old, flush=True, rolls=3), act):
        log = assert_prefix(storage, place, old, BATCHES[:4] + new[:3], flushed=12)
        assert dict(log.epochs.entries).keys() == {b.epoch for b in log_batches(log, old, new)}


def log_batches(log: PartitionLog, *versions: list[Batch]) -> list[Batch]:
    known = {batch.data: batch for version in versions for batch in version}
    return [known[data] for data in stored_batches(log.core.storage, log.directory)]


@pytest.mark.slow
def test_s37_crash_during_a_full_truncation() -> None:
    new = batches_of(2, base=100, epoch=1)

    def act(log: PartitionLog) -> None:
        log.maintenance.truncate_fully_and_start_at(100)
        log.replica.append_as_follower(joined(new))
        log.flush()

    for storage, place in crashes_in(lambda: appended(BATCHES, flush=True, rolls=3), act):
        assert_prefix(storage, place, BATCHES, new)


# -- S-38: leftovers of a replacement --------------------------------------------------------------

THREE = written(BATCHES, rolls=4)  # segments 0, 12, 24
ONE = written(BATCHES)[f"{DIRECTORY}/00000000000000000000.log"]
SWAP = {f"{DIRECTORY}/00000000000000000000.log.swap": ONE}


def test_s38_a_cleaned_file_means_nothing_happened() -> None:
    storage = disk_with(THREE | {f"{DIRECTORY}/00000000000000000000.log.cleaned": ONE[:100]})
    assert_prefix(storage, "cleaned", BATCHES, flushed=36)
    assert len(segment_files(storage, DIRECTORY)) == 3
    assert not [path for path, _ in tree(storage) if "cleaned" in path]


@pytest.mark.parametrize("gone", [(), (0,), (0, 12), (0, 12, 24)])
def test_s38_a_whole_swap_file_is_finished(gone: tuple[int, ...]) -> None:
    """However many originals were renamed before the crash."""
    files = dict(THREE)
    for base in gone:
        for path in [p for p in files if f"/{base:020}." in p]:
            files[path + ".deleted"] = files.pop(path)
    storage = disk_with(files | SWAP)
    assert_prefix(storage, str(gone), BATCHES, flushed=36)
    assert [base for base, _ in segment_files(storage, DIRECTORY)] == [0]


def test_s38_only_an_index_is_left_to_rename() -> None:
    files = {path: data for path, data in THREE.items() if "/" + "0" * 20 + ".index" not in path}
    moved = THREE[f"{DIRECTORY}/00000000000000000000.index"]
    storage = disk_with(files | {f"{DIRECTORY}/00000000000000000000.index.swap": moved})
    assert_prefix(storage, "index", BATCHES, flushed=36)
    assert not [path for path, _ in tree(storage) if path.endswith(".swap")]


def test_s38_a_split_cut_short_is_undone() -> None:
    """One output is ``.swap``, the other still ``.cleaned``: both go, the original stays."""
    half = joined(BATCHES[6:])
    storage = disk_with(
        THREE
        | {
            f"{DIRECTORY}/00000000000000000000.log.cleaned": joined(BATCHES[:6]),
            f"{DIRECTORY}/00000000000000000018.log.swap": half,
        }
    )
    assert_prefix(storage, "split", BATCHES, flushed=36)
    assert [base for base, _ in segment_files(storage, DIRECTORY)] == [0, 12, 24]


@pytest.mark.slow
def test_s38_crash_while_finishing_a_swap() -> None:
    files = THREE | SWAP
    for storage, place in opening_crashes(lambda: disk_with(files), open_log):
        assert_prefix(storage, place, BATCHES, flushed=36)
        assert [base for base, _ in segment_files(storage, DIRECTORY)] == [0]


# -- S-41: recovery itself -------------------------------------------------------------------------


LOGS = sorted(path for path in THREE if path.endswith(".log"))
DAMAGED = {
    "torn tail": {LOGS[2]: THREE[LOGS[2]][:-7]},
    "torn in the middle": {LOGS[1]: THREE[LOGS[1]][:-7]},
    "bit flip": {LOGS[1]: THREE[LOGS[1]][:150] + b"\xee" + THREE[LOGS[1]][151:]},
    "zero tail": {LOGS[2]: THREE[LOGS[2]] + bytes(700)},
    "indexes gone": {path: b"" for path in THREE if path.endswith("index")},
    "leftovers": SWAP,
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", list(DAMAGED))
def test_s41_crash_during_recovery(damage: str) -> None:
    files = THREE | DAMAGED[damage]
    uninterrupted = disk_with(files)
    wanted = open_log(uninterrupted)
    kept = {path: data for path, data in tree(uninterrupted) if path.endswith(".cut")}
    for storage, place in opening_crashes(lambda: disk_with(files), open_log):
        log = open_log(storage)
        assert log_bytes(storage) == log_bytes(uninterrupted), place
        assert log.log_end_offset == wanted.log_end_offset
        cut = {p: d for p, d in tree(storage) if p.endswith(".cut")}
        if damage == "leftovers":  # the first original may be gone, and then the others are kept
            cut = {p: d for p, d in cut.items() if d not in THREE.values()}
        assert cut == kept, place
        log.crash()


# -- S-40: the marker of a clean stop --------------------------------------------------------------

MARKER = "/d/.kafka_cleanshutdown"
MANAGED = LogConfig(segment_index_bytes=1200)


def manager_on(storage: Storage, *directories: str) -> LogManager:
    return LogManager(
        directories or ("/d",),
        MANAGED,
        storage=storage,
        clock=ManualClock(T0),
        broker_config=BrokerConfig(num_recovery_threads_per_data_dir=1),
        owner=ManagerOwner(cluster_id="c"),
    )


def closed_disk() -> Disk:
    storage = Disk()
    manager = manager_on(storage)
    for batch in BATCHES:
        manager.get_or_create("t", 0).replica.append_as_follower(batch.data)
    manager.close()
    return storage


def test_s40a_a_crash_after_the_marker_is_a_clean_stop() -> None:
    storage = closed_disk()
    storage.crash(mode="all_lost")
    log = manager_on(storage).get("t", 0)
    assert log.recovery_report.clean
    assert log.log_end_offset == 36


@pytest.mark.slow
def test_s40b_a_crash_while_loading_is_unclean() -> None:
    """The marker goes before a log is touched."""
    seen = set()
    for storage, place in crashes(closed_disk, lambda disk: manager_on(disk).crash()):
        marked = storage.info(MARKER) is not None
        seen.add(marked)
        manager = manager_on(storage)
        log = manager.get("t", 0)
        assert log.log_end_offset == 36, place
        assert log.recovery_report.clean == marked, place
        assert not (marked and "/d/t-0" in place), f"the marker survived, {place}"
        manager.crash()
    assert len(seen) == 2


def test_s40c_no_marker_when_loading_did_not_complete() -> None:
    storage = closed_disk()
    storage.remove(MARKER)
    storage.fail("list", "/d/t-0")
    with pytest.raises(StorageFailedError):
        manager_on(storage)
    assert storage.info(MARKER) is None


def test_s40d_a_marker_that_cannot_be_removed() -> None:
    storage = closed_disk()
    storage.fail("remove", MARKER)
    with pytest.raises(StorageFailedError):
        manager_on(storage)


def test_s40d_an_unreadable_marker_still_counts() -> None:
    """Only its existence decides (F-46)."""
    storage = closed_disk()
    storage.write_file(MARKER, b"\xff not json")
    assert manager_on(storage).get("t", 0).recovery_report.clean


def test_s40e_each_directory_by_itself() -> None:
    storage = FaultyStorage()
    manager = manager_on(storage, "/d", "/e")
    manager.get_or_create("t", 0)
    manager.get_or_create("t", 1)
    manager.close()
    storage.remove(MARKER)
    logs = manager_on(storage, "/d", "/e").logs.values()
    clean = {log.directory[:2]: log.recovery_report.clean for log in logs}
    assert clean == {"/d": False, "/e": True}


def test_s40f_a_failed_flush_at_the_end_leaves_no_marker() -> None:
    storage = FaultyStorage()
    manager = manager_on(storage)
    manager.get_or_create("t", 0).append([(b"k", b"v")])
    manager.get_or_create("t", 1).append([(b"k", b"v")])
    storage.fail("sync", "*t-1/*.log")
    manager.close()
    assert storage.info(MARKER) is None


def test_config_of_the_scenes() -> None:
    """The scenes are what their names say."""
    assert len(LOGS) == 3
    assert CONFIG.segment_bytes > len(ONE)
